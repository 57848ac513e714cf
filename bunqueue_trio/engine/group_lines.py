"""Groups in line: those with ready jobs in their turns, as pulls of one kind see them.

Pulls that bring other limits find other groups full. So each kind of pull has a line of its own, without the groups
that it has found held up; such a group is looked at again when something may have changed for it. A pull therefore
never walks past the same full groups twice.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from bunqueue_trio.engine.heaps import Entry
from bunqueue_trio.model.grouping import DEFAULT_GROUP_SETTINGS, GroupLimit, GroupSettings
from bunqueue_trio.model.job import Job

NEVER = float("inf")
COMPACT_AT = 64  # below this many entries, stale ones cost nothing worth a rebuild


class NamedGroup:
    """One named group: its ready jobs in their order, its counters, its limits.

    ``turn`` is its place in line, 0 while it has no ready job. ``queued_count`` counts ready and delayed jobs.
    ``reserved`` are ids of durable pushes that wait for their commit. ``window_limit`` is the limit that the window at
    hand was opened for; under another one a new window begins. ``timed_mono_ms`` and ``idle_mono_ms`` are the moments
    for which entries in the heaps of `NamedGroups` stand; 0 when there is none.
    """

    __slots__ = (
        "active_count",
        "group_id",
        "idle_mono_ms",
        "queued_count",
        "ready",
        "ready_count",
        "reserved",
        "rests_until_mono_ms",
        "settings",
        "timed_mono_ms",
        "turn",
        "window_count",
        "window_ends_mono_ms",
        "window_limit",
    )

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.ready: list[Entry] = []
        self.ready_count = 0
        self.queued_count = 0
        self.active_count = 0
        self.reserved: set[str] = set()
        self.settings: GroupSettings = DEFAULT_GROUP_SETTINGS
        self.turn = 0
        self.rests_until_mono_ms = 0.0
        self.window_limit: GroupLimit | None = None
        self.window_ends_mono_ms = 0.0
        self.window_count = 0
        self.timed_mono_ms = 0.0
        self.idle_mono_ms = 0.0

    @property
    def is_needed(self) -> bool:
        """True while it holds more than a window or a rest, which end by themselves."""
        return bool(
            self.queued_count or self.active_count or self.reserved or self.settings is not DEFAULT_GROUP_SETTINGS
        )

    def held_until_mono_ms(self, concurrency: float | None, limit: GroupLimit | None, mono_ms: float) -> float:
        """When pulls that bring these limits may be served: 0 for now, `NEVER` when that is not a matter of time."""
        settings = self.settings
        if settings.paused:
            return NEVER
        if self.rests_until_mono_ms > mono_ms:
            return self.rests_until_mono_ms
        if concurrency is not None and self.active_count >= (settings.concurrency or concurrency):
            return NEVER
        if limit is not None:
            limit = settings.limit or limit
            if self.window_count >= limit.max and self.window_limit == limit and self.window_ends_mono_ms > mono_ms:
                return self.window_ends_mono_ms
        return 0.0

    def count_in_window(self, limit: GroupLimit, mono_ms: float) -> None:
        """A pull that brought *limit* has been served."""
        limit = self.settings.limit or limit
        if self.window_ends_mono_ms <= mono_ms or self.window_limit != limit:
            self.window_limit, self.window_count = limit, 0
            self.window_ends_mono_ms = mono_ms + limit.duration
        self.window_count += 1

    def close_window(self) -> None:
        """The next hand-out opens a new one."""
        self.window_limit, self.window_count, self.window_ends_mono_ms = None, 0, 0.0

    def order(self, job: Job) -> Entry:
        """Lower number first, then first in, first out by the push, whatever has happened since (newer clients 8.2)."""
        return (job.record.priority, job.seq, job)


class GroupLine:
    """The line for pulls of one kind. An entry counts while it is its group's present turn and is listed here."""

    __slots__ = ("_heap", "_listed", "concurrency", "limit")

    def __init__(self, concurrency: float | None, limit: GroupLimit | None) -> None:
        self.concurrency = concurrency
        self.limit = limit
        self._heap: list[tuple[int, NamedGroup]] = []
        self._listed: dict[NamedGroup, int] = {}

    @property
    def size(self) -> int:
        """Entries of the line, those that count no more included."""
        return len(self._heap)

    def add(self, group: NamedGroup, line_length: int) -> None:
        """*group* has got a turn, or may be served again. *line_length*: how many groups have a turn."""
        turn = group.turn
        if self._listed.get(group) == turn:
            return
        self._listed[group] = turn
        heappush(self._heap, (turn, group))
        if len(self._heap) > COMPACT_AT and len(self._heap) > 2 * line_length:
            self._heap = [entry for entry in self._heap if self._counts(entry)]
            heapify(self._heap)
            self._listed = {listed: listed.turn for _, listed in self._heap}

    def first(self) -> NamedGroup | None:
        """The group whose turn it is. Drops stale entries on the way."""
        heap = self._heap
        while heap:
            entry = heap[0]
            if self._counts(entry):
                return entry[1]
            heappop(heap)
            if self._listed.get(entry[1]) == entry[0]:
                del self._listed[entry[1]]
        return None

    def pass_over(self) -> None:
        """The group that `first` has just shown is held up: it keeps its turn, and is out of sight until `add`."""
        _, group = heappop(self._heap)
        del self._listed[group]

    def _counts(self, entry: tuple[int, NamedGroup]) -> bool:
        turn, group = entry
        return group.turn == turn and self._listed.get(group) == turn
