"""The named groups of one queue: they take turns, one job each; a group that is held up keeps its turn.

Which jobs are members is said by `model.grouping.takes_turns`. Ready members stand in their group's heap, delayed ones
among the delayed jobs of the queue. What holds a group up:

| for every pull | its pause; its rest (RateLimitGroup); a member without a name of its own that runs or waits aside |
| for pulls with that limit | as many active jobs as allowed; as many hand-outs in its window |

A group that holds nothing is forgotten, but not before its window or its rest is over.

Source: newer clients, 8.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from heapq import heapify, heappop, heappush

from bunqueue_trio.engine.group_lines import NEVER, GroupLine, NamedGroup
from bunqueue_trio.engine.groups import Group
from bunqueue_trio.engine.heaps import Entry, compact, first
from bunqueue_trio.model.grouping import DEFAULT_GROUP_SETTINGS, GroupSettings, PullGroup
from bunqueue_trio.model.job import Job

MAX_LINES = 16  # kinds of pulls that are remembered; one beyond costs a walk over the groups in line
MAX_IDLE = 10_000  # groups that hold nothing but a window or a rest
MAX_SETTINGS = 10_000  # groups with settings
NO_GROUP = PullGroup()
Timed = tuple[float, int, NamedGroup]


class NamedGroups:
    """Counters are maintained: ``ready_count`` and ``queued_count`` of the jobs of all groups, ``settings_count`` of
    groups with settings, ``line_length`` of groups with a turn.
    """

    __slots__ = (
        "_by_id",
        "_idle",
        "_lines",
        "_next_turn",
        "_tie",
        "_timed",
        "line_length",
        "queued_count",
        "ready_count",
        "settings_count",
    )

    def __init__(self) -> None:
        self._by_id: dict[str, NamedGroup] = {}
        self._lines: dict[tuple[object, object], GroupLine] = {}
        self._timed: list[Timed] = []
        self._idle: list[Timed] = []
        self._next_turn = 1
        self.line_length = 0
        self._tie = 0
        self.ready_count = 0
        self.queued_count = 0
        self.settings_count = 0

    def sizes(self) -> dict[str, int]:
        """Of each collection but those of the groups. A step per line."""
        return {
            "namedGroups": len(self._by_id),
            "lines": len(self._lines),
            "standing": sum([line.size for line in self._lines.values()]),
            "timed": len(self._timed),
            "idle": len(self._idle),
        }

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[NamedGroup]:
        return iter(self._by_id.values())

    def get(self, group_id: str | None) -> NamedGroup | None:
        """The group of that id, if it holds anything."""
        return None if group_id is None else self._by_id.get(group_id)

    def active_count(self, group_id: str) -> int:
        """How many jobs of the group run."""
        group = self._by_id.get(group_id)
        return 0 if group is None else group.active_count

    def made(self, group_id: str | None) -> NamedGroup:
        """The group of that id, made on first use; see that it holds something afterwards."""
        assert group_id is not None
        group = self._by_id.get(group_id)
        if group is None:
            group = self._by_id[group_id] = NamedGroup(group_id)
        return group

    @property
    def is_full(self) -> bool:
        """Whether no further group may rest that holds nothing else."""
        return len(self._idle) >= MAX_IDLE

    # jobs come and go

    def expect(self, job: Job) -> None:
        """*job* is queued from now on, ready or delayed."""
        self.made(job.record.group_id).queued_count += 1
        self.queued_count += 1

    def part_with(self, job: Job) -> None:
        """*job* is queued no longer."""
        group = self._of(job)
        group.queued_count -= 1
        self.queued_count -= 1
        self._settle(group)

    def add_ready(self, job: Job) -> None:
        """Put *job* among the ready ones; it is expected already."""
        group = self._of(job)
        job.place = entry = group.order(job)
        heappush(group.ready, entry)
        group.ready_count += 1
        self.ready_count += 1
        if not group.turn:
            self._line_up(group)

    def remove_ready(self, job: Job) -> None:
        """*job* is ready no longer; it may go on being expected."""
        job.place = None
        group = self._of(job)
        group.ready_count -= 1
        self.ready_count -= 1
        compact(group.ready, group.ready_count)
        if not group.ready_count:
            self._leave_line(group)

    def hand_out(self, job: Job, asked: PullGroup | None, mono_ms: float) -> None:
        """*job*, the first of its group, runs from now on; the group goes to the end of the line."""
        group = self._of(job)
        heappop(group.ready)
        job.place = None
        group.ready_count -= 1
        self.ready_count -= 1
        group.queued_count -= 1
        self.queued_count -= 1
        group.active_count += 1
        if asked is not None and asked.limit is not None:
            group.count_in_window(asked.limit, mono_ms)
        self._leave_line(group)
        if group.ready_count:
            self._line_up(group)

    def leave(self, job: Job) -> bool:
        """*job* runs no longer. Returns True when nothing of its group does."""
        group = self._of(job)
        group.active_count -= 1
        self._look_again(group)
        self._settle(group)
        return not group.active_count

    def take_ready(self) -> list[Job]:
        """Take every ready job out of the order; delayed ones leave it, too, and their places are the caller's."""
        taken = [entry[-1] for group in self for entry in group.ready if entry[-1].place is entry]
        self.ready_count = self.queued_count = 0
        for group in list(self):
            group.ready, group.ready_count, group.queued_count = [], 0, 0
            if group.turn:
                self._leave_line(group)
            self._settle(group)
        return taken

    def reserve(self, job: Job) -> None:
        """A durable push of *job* waits for its commit."""
        self.made(job.record.group_id).reserved.add(job.record.id)

    def unreserve(self, job: Job) -> None:
        """The push waits no longer, whatever became of it."""
        group = self.get(job.record.group_id)
        if group is not None and job.record.id in group.reserved:
            group.reserved.remove(job.record.id)
            self._settle(group)

    # whose turn it is

    def first(self, asked: PullGroup | None, plain: Mapping[str, Group], mono_ms: float) -> Job | None:
        """The job that a pull may have now, still in its place, or None.

        Args:
            plain: the queue's groups of members without a name of their own.

        Cost: O(log groups), but for a walk over the groups in line when pulls of this kind are new.
        """
        self.pass_time(mono_ms)
        if not self.ready_count:
            return None
        asked = asked or NO_GROUP
        if type(asked.affinity) is str:
            group = self.get(asked.affinity)
            if group is None or not group.turn or self._is_held(group, asked, plain, mono_ms):
                return None
            return first(group.ready)
        line = self._line(asked)
        while (group := line.first()) is not None:
            if not self._is_held(group, asked, plain, mono_ms):
                return first(group.ready)
            line.pass_over()
        return None

    def next_end_mono_ms(self) -> float:
        """When the first window or rest ends that holds up a group; infinity when none does."""
        return self._timed[0][0] if self._timed else NEVER

    def pass_time(self, mono_ms: float) -> None:
        """Windows and rests end: let their groups stand in line again, and forget those that hold nothing."""
        while self._timed and self._timed[0][0] <= mono_ms:
            until, _, group = heappop(self._timed)
            if group.timed_mono_ms == until:
                group.timed_mono_ms = 0.0
                self._look_again(group)
        while self._idle and self._idle[0][0] <= mono_ms:
            until, _, group = heappop(self._idle)
            if group.idle_mono_ms == until:
                group.idle_mono_ms = 0.0
                self._end_times(group, mono_ms)
                self._settle(group)

    # what is set

    def set(self, group_id: str, settings: GroupSettings, *, closes_window: bool = False) -> NamedGroup:
        """Let *settings* hold for the group from now on."""
        group = self.made(group_id)
        if settings == DEFAULT_GROUP_SETTINGS:
            settings = DEFAULT_GROUP_SETTINGS
        self.settings_count += (settings is not DEFAULT_GROUP_SETTINGS) - (group.settings is not DEFAULT_GROUP_SETTINGS)
        group.settings = settings
        if closes_window:
            group.close_window()
        self._look_again(group)
        self._settle(group)
        return group

    def let_rest(self, group_id: str, until_mono_ms: float) -> None:
        """Hand out nothing of the group until then; an earlier rest counts no more."""
        group = self.made(group_id)
        group.rests_until_mono_ms = until_mono_ms
        self._look_again(group)  # a longer rest may have been before
        self._settle(group)

    def reset(self) -> None:
        """Forget settings, windows and rests of all groups."""
        for group in list(self):
            group.rests_until_mono_ms = 0.0
            self.set(group.group_id, DEFAULT_GROUP_SETTINGS, closes_window=True)

    def look_again(self, group_id: str | None) -> None:
        """What has held up the group may have ended."""
        group = self.get(group_id)
        if group is not None:
            self._look_again(group)

    # inside

    def _of(self, job: Job) -> NamedGroup:
        assert job.record.group_id is not None
        return self._by_id[job.record.group_id]

    def _line_up(self, group: NamedGroup) -> None:
        group.turn = self._next_turn
        self._next_turn += 1
        self.line_length += 1
        self._look_again(group)

    def _leave_line(self, group: NamedGroup) -> None:
        group.turn = 0
        self.line_length -= 1

    def _look_again(self, group: NamedGroup) -> None:
        if group.turn:
            for line in self._lines.values():
                line.add(group, self.line_length)

    def _line(self, asked: PullGroup) -> GroupLine:
        """The line for pulls of this kind. The least lately used one makes room for a new one."""
        kind = (asked.concurrency, asked.limit)
        line = self._lines.pop(kind, None)
        if line is None:
            line = GroupLine(asked.concurrency, asked.limit)
            for group in self:
                if group.turn:
                    line.add(group, self.line_length)
            if len(self._lines) >= MAX_LINES:
                del self._lines[next(iter(self._lines))]
        self._lines[kind] = line
        return line

    def _is_held(self, group: NamedGroup, asked: PullGroup, plain: Mapping[str, Group], mono_ms: float) -> bool:
        until = group.held_until_mono_ms(asked.concurrency, asked.limit, mono_ms)
        if until:
            if until != NEVER and group.timed_mono_ms != until:
                group.timed_mono_ms = until
                self._push(self._timed, until, group)
                if len(self._timed) > 64 and len(self._timed) > 2 * len(self._by_id):
                    self._timed = [entry for entry in self._timed if entry[2].timed_mono_ms == entry[0]]
                    heapify(self._timed)
            return True
        other = plain.get(group.group_id)
        return other is not None and (other.active is not None or first(other.aside) is not None)

    def _push(self, heap: list[Timed], mono_ms: float, group: NamedGroup) -> None:
        self._tie += 1
        heappush(heap, (mono_ms, self._tie, group))

    @staticmethod
    def _end_times(group: NamedGroup, mono_ms: float) -> None:
        if group.rests_until_mono_ms <= mono_ms:
            group.rests_until_mono_ms = 0.0
        if group.window_ends_mono_ms <= mono_ms:
            group.close_window()

    def _settle(self, group: NamedGroup) -> None:
        """Forget the group if it holds nothing, at once or when its window and its rest are over."""
        if group.is_needed:
            return
        until = max(group.rests_until_mono_ms, group.window_ends_mono_ms)
        if not until:
            group.idle_mono_ms = 0.0  # an entry may still be on its way; the id may live again by then
            del self._by_id[group.group_id]
        elif group.idle_mono_ms != until:
            group.idle_mono_ms = until
            self._push(self._idle, until, group)
            if len(self._idle) > MAX_IDLE:
                self._thin_out()

    def _thin_out(self) -> None:
        """Too many groups hold nothing but a window: those go whose windows end first, a tenth of them at once."""
        live = sorted(entry for entry in self._idle if entry[2].idle_mono_ms == entry[0])
        excess = max(0, len(live) - MAX_IDLE * 9 // 10)
        for _, _, group in live[:excess]:
            group.idle_mono_ms = 0.0
            if not group.is_needed:
                del self._by_id[group.group_id]
        self._idle = live[excess:]

    # for others to look at

    def heaps(self) -> Iterator[list[Entry]]:
        """The ready jobs of each group."""
        return (group.ready for group in self)
