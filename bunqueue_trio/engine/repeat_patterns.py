"""Patterns of the option ``repeat``: read when a job is pushed, asked whenever a job of the chain completes.

The dialect, the zones and the texts of refusals are those of crons.

Source: scheduling and flows, "Job option repeat"; SD-8.
"""

from collections.abc import Iterable
from datetime import tzinfo

from bunqueue_trio.engine.cron.dialect import parse
from bunqueue_trio.engine.cron.pattern import Pattern
from bunqueue_trio.engine.cron.timing import first_run
from bunqueue_trio.engine.cron.zones import find_zone
from bunqueue_trio.errors import ValidationError
from bunqueue_trio.model.instant import Now
from bunqueue_trio.model.job import RepeatConfig

MAX_IN_BATCH = 100
MAX_KNOWN = 1_000  # patterns that are kept as read, each some KB; a chain asks for its own again and again


class RepeatPatterns:
    """Reads patterns, and remembers the newest.

    Args:
        local_zone: the zone of patterns that name none.
    """

    def __init__(self, local_zone: tzinfo) -> None:
        self._local_zone = local_zone
        self._known: dict[tuple[str, str | None], Pattern] = {}

    def __len__(self) -> int:
        return len(self._known)

    def check(self, repeat: RepeatConfig, now: Now) -> None:
        """See that the pattern of a push, if it has one, can be understood and ever comes round.

        Raises:
            ValidationError: as for a cron of that expression and zone.

        Cost: 50 µs; linear in the text. Some 10 ms for what comes rarely or never; next to nothing when asked again.
        """
        asked = pattern_of(repeat)
        if asked is not None:
            first_run(self._pattern(asked), now.wall_ms)

    def check_count(self, repeats: Iterable[RepeatConfig]) -> None:
        """See that those of one batch can be read without holding up everybody else.

        Raises:
            ValidationError: there are more than 100 different ones.
        """
        if len({pattern_of(repeat) for repeat in repeats} - {None}) > MAX_IN_BATCH:
            raise ValidationError(f"Too many different repeat patterns in one batch (max {MAX_IN_BATCH})")

    def next_match(self, pattern: str, zone: str | None, after_ms: float) -> float | None:
        """See `repeats.NextMatch`. What nobody can read, which a push would refuse, names no moment."""
        try:
            found = self._pattern((pattern, zone))
        except ValidationError:
            return None
        return found.next_run(after_ms)

    def _pattern(self, asked: tuple[str, str | None]) -> Pattern:
        found = self._known.pop(asked, None)
        if found is None:
            pattern, zone = asked
            found = Pattern(parse(pattern), self._local_zone if zone is None else find_zone(zone))
        self._known[asked] = found
        if len(self._known) > MAX_KNOWN:
            del self._known[next(iter(self._known))]
        return found


def pattern_of(repeat: RepeatConfig) -> tuple[str, str | None] | None:
    """Pattern and zone (None: that of the server); None if there is no pattern."""
    if not isinstance(repeat.pattern, str) or not repeat.pattern:
        return None
    return repeat.pattern, repeat.tz if isinstance(repeat.tz, str) and repeat.tz else None
