"""All crons by name, the one that is due next, and what waits for its commit. No rule of its own."""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from bunqueue_trio.engine.cron.timing import Timing
from bunqueue_trio.model.cron_job import CronJob

SWEPT_FROM = 1_000


class Cron:
    """A cron at work.

    ``fired_mono_ms`` is its last run in this process, for the overlap rule; a new definition forgets it. ``place`` is
    the heap entry that stands for it; None while a change of it waits for its commit.
    """

    __slots__ = ("fired_mono_ms", "job", "place", "timing")

    def __init__(self, job: CronJob, timing: Timing, fired_mono_ms: float | None = None) -> None:
        self.job = job
        self.timing = timing
        self.fired_mono_ms = fired_mono_ms
        self.place: Place | None = None


Place = tuple[float, int, Cron]


class CronTable:
    """The crons, in the order in which they were made.

    ``pending`` are changes that wait for their commit, at most one per name: the cron as it will be, None when it
    goes. ``due`` is a heap of (wall ms, tie, cron) with one live entry for each cron that has no such change.
    """

    def __init__(self) -> None:
        self.by_name: dict[str, Cron] = {}
        self.pending: dict[str, Cron | None] = {}
        self.due: list[Place] = []
        self._tie = 0

    def __len__(self) -> int:
        return len(self.by_name)

    @property
    def unborn_count(self) -> int:
        """How many new ones wait for their commit. Cost: a look at each change."""
        return sum(name not in self.by_name for name in self.pending)

    def job(self, name: str) -> CronJob | None:
        """The cron of that name as it is now; None if there is none."""
        cron = self.by_name.get(name)
        return None if cron is None else cron.job

    def add(self, cron: Cron) -> None:
        """Take in a cron that the file holds."""
        self.by_name[cron.job.name] = cron
        self.arm(cron, cron.job.next_run)

    def hold(self, name: str, changed: Cron | None) -> None:
        """A change of the cron of that name waits for its commit; until then it does not fire."""
        self.pending[name] = changed
        current = self.by_name.get(name)
        if current is not None:
            current.place = None

    def settle(self, name: str) -> None:
        """The change has committed."""
        changed = self.pending.pop(name)
        if changed is None:
            self.by_name.pop(name, None)
        else:
            self.add(changed)

    def let_go(self, name: str, not_before_ms: float) -> None:
        """The change has not committed: everything is as before, and nothing is tried before that moment."""
        del self.pending[name]
        current = self.by_name.get(name)
        if current is not None:
            self.arm(current, max(current.job.next_run, not_before_ms))

    def arm(self, cron: Cron, wall_ms: float) -> None:
        """Look at *cron* at that moment."""
        self._tie += 1
        cron.place = (wall_ms, self._tie, cron)
        heappush(self.due, cron.place)
        if len(self.due) > SWEPT_FROM and len(self.due) > 2 * len(self.by_name):
            # Definitions that are replaced again and again must not leave an entry each.
            self.due = [place for place in self.due if place[2].place is place]
            heapify(self.due)

    def look_at_all(self, wall_ms: float) -> None:
        """The clock was set back: look at every cron, from now on."""
        for cron in self.by_name.values():
            if cron.place is not None:
                self._tie += 1
                cron.place = (wall_ms, self._tie, cron)
        self.due = [cron.place for cron in self.by_name.values() if cron.place is not None]
        heapify(self.due)

    def next_due_ms(self) -> float:
        """When one is to be looked at next; infinity when there is none."""
        due = self.due
        while due and due[0][2].place is not due[0]:
            heappop(due)
        return due[0][0] if due else float("inf")

    def pop_due(self, wall_ms: float) -> Cron | None:
        """One that is to be looked at by now; the caller arms it again, or holds it."""
        if self.next_due_ms() > wall_ms:
            return None
        cron = heappop(self.due)[2]
        cron.place = None
        return cron
