"""From a cron's definition to its runs: expressions and intervals behind one protocol, and what a restart does."""

from datetime import tzinfo
from typing import Final, Protocol

from bunqueue_trio.engine.cron.dialect import PREFIX, parse
from bunqueue_trio.engine.cron.pattern import Pattern
from bunqueue_trio.engine.cron.zones import find_zone
from bunqueue_trio.errors import ValidationError

NEITHER: Final = "Cron job must have either schedule or repeatEvery"
NEVER: Final = PREFIX + "Cron expression has no future occurrences"
FARTHEST_MS: Final = 2**53 - 1  # beyond it not every whole number is a float
SMALL_STEP_MS: Final = 60_000  # a clock set back by less makes nothing run twice for one time of day


class Timing(Protocol):
    """When a cron runs. All moments are wall clock, whole epoch ms; None is never again."""

    def first_run(self, now_ms: float) -> float | None:
        """When a cron that is made at *now_ms*, or that forgets what it missed until then, fires first."""

    def run_after(self, due_ms: float, now_ms: float) -> float | None:
        """The run that follows the one due at *due_ms*, decided at *now_ms*: later than both."""

    def rearmed(self, due_ms: float, now_ms: float) -> float | None:
        """The run to wait for after the wall clock was set to *now_ms*: as due, or sooner if it was set back."""


class Interval:
    """A fixed interval. Runs keep their phase: whole intervals from the first one, however late each is noticed.

    Source: scheduling, "Firing"; SD-6; R178.
    """

    def __init__(self, every_ms: float) -> None:
        self._every_ms = int(every_ms)

    def first_run(self, now_ms: float) -> float:
        """One interval from now. One of ages begins where moments are still exact, else its grid would not be."""
        return float(min(int(now_ms) + self._every_ms, FARTHEST_MS))

    def run_after(self, due_ms: float, now_ms: float) -> float:
        """The next run of the grid; those missed are passed over. Arithmetic, not a loop over them."""
        return self._on_grid(due_ms, max(due_ms, now_ms))

    def rearmed(self, due_ms: float, now_ms: float) -> float:
        """On the grid, and at most one interval away."""
        return min(due_ms, self._on_grid(due_ms, now_ms))

    def _on_grid(self, due_ms: float, after_ms: float) -> float:
        """The first moment later than *after_ms* that lies whole intervals before or behind *due_ms*."""
        passed = (int(after_ms) - int(due_ms)) // self._every_ms + 1
        return float(int(due_ms) + passed * self._every_ms)


def open_timing(
    schedule: str | None, repeat_every_ms: float | None, timezone: str | None, *, local_zone: tzinfo
) -> Timing:
    """The timing of a cron: its expression, or without one its interval.

    Args:
        repeat_every_ms: whole and at least 1, or None or 0 for none.
        timezone: for the expression alone; not looked at otherwise. None or empty: *local_zone*.
    Raises:
        ValidationError: neither is given, the expression is not understood, or the zone is unknown; in that order.

    Cost: 0.3 ms for an expression.
    Source: scheduling, "Validation, in this order".
    """
    if schedule:
        expression = parse(schedule)
        return Pattern(expression, find_zone(timezone) if timezone else local_zone)
    if repeat_every_ms:
        return Interval(repeat_every_ms)
    raise ValidationError(NEITHER)


def first_run(timing: Timing, now_ms: float) -> float:
    """When a new cron fires first.

    Raises:
        ValidationError: never (SD-3).
    """
    found = timing.first_run(now_ms)
    if found is None:
        raise ValidationError(NEVER)
    return found


def run_at_start(timing: Timing, due_ms: float, now_ms: float, *, skips_missed: bool) -> float | None:
    """The run that a cron of a just started server waits for; None if its pattern has ended.

    A run still ahead is kept. Of missed ones, the first is kept and so fires at once; ``run_after`` then passes over
    the others: they never pile up. With *skips_missed* none of them fires, and an interval starts anew from now.

    Args:
        skips_missed: the cron has skipMissedOnRestart or skipIfNoWorker.
    Source: scheduling, "Persistence, restart, missed runs, clock changes"; R190, K32.
    """
    if due_ms > now_ms or not skips_missed:
        return due_ms
    return timing.first_run(now_ms)
