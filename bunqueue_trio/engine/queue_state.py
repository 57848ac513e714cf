"""One queue: its jobs in order, its groups, its unique keys, its dead letters, and exact counters."""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from bunqueue_trio.engine.catalog import ACTIVE, DELAYED, FAILED, PARKED, PRIORITIZED, Catalog
from bunqueue_trio.engine.gauges import Gauges, Letters, Summed
from bunqueue_trio.engine.groups import Group
from bunqueue_trio.engine.heaps import Entry, compact, first, push_delayed, push_ready, ready_entry
from bunqueue_trio.engine.limits import TokenBucket
from bunqueue_trio.engine.named_groups import NamedGroups
from bunqueue_trio.model.entries import DEFAULT_SETTINGS, QueueSettings
from bunqueue_trio.model.grouping import PullGroup, takes_turns
from bunqueue_trio.model.job import Job, JobState
from bunqueue_trio.model.transitions import Removal

_ACTIVE = JobState.ACTIVE  # as a global, see `engine.finishing`


class QueueState:
    """The jobs of one queue that are not finished.

    Counters are maintained, never recounted: ``waiting_count`` and ``prioritized_count`` split the ready jobs by
    priority. A group member set aside stays READY and counted: only its heap differs. So do members of named groups,
    which stand in ``named_groups`` behind the jobs of ``ready``; it is None until the first of them comes. ``gauges``
    are the sums over all queues; a queue that is given up takes what it still counts out of them with `retire`.

    ``priorities`` counts queued jobs per priority other than 0; ``catalog`` lists what the counters count.
    ``total_completed`` and ``total_failed`` count since the queue became known.
    """

    __slots__ = (
        "_completed_count",
        "_parked_count",
        "active_count",
        "bucket",
        "catalog",
        "delayed",
        "delayed_count",
        "gauges",
        "groups",
        "is_known",
        "keys",
        "letters",
        "name",
        "named_groups",
        "priorities",
        "prioritized_count",
        "ready",
        "refill_mono_ms",
        "removal",
        "settings",
        "staged_count",
        "total_completed",
        "total_failed",
        "waiting_count",
    )

    completed_count = Summed("completed")
    parked_count = Summed("parked")

    def __init__(self, name: str, gauges: Gauges | None = None) -> None:
        self.name = name
        self.gauges = Gauges() if gauges is None else gauges
        self.settings: QueueSettings = DEFAULT_SETTINGS
        self.bucket: TokenBucket | None = None
        self.refill_mono_ms = 0.0
        """When the next token is due, if somebody is to be told; pulls that poll must not set a timer each."""
        self.ready: list[Entry] = []
        self.delayed: list[Entry] = []
        self.groups: dict[str, Group] = {}
        self.named_groups: NamedGroups | None = None
        self.keys: dict[str, Job] = {}
        self.letters = Letters(self.gauges)
        self.catalog = Catalog()
        self.priorities: dict[int, int] = {}
        self.is_known = False
        self.removal: Removal | None = None
        """A Drain or Obliterate that waits for its commit; there is one at a time."""
        self.waiting_count = 0
        self.prioritized_count = 0
        self.delayed_count = 0
        self._parked_count = 0
        self.active_count = 0
        self._completed_count = 0
        self.total_completed = 0
        self.total_failed = 0
        self.staged_count = 0
        """Changes of its jobs that wait for their commit; such a job may be counted nowhere else."""

    @property
    def queued_count(self) -> int:
        """Waiting, prioritized and delayed together."""
        return self.waiting_count + self.prioritized_count + self.delayed_count

    @property
    def is_idle(self) -> bool:
        """True when nothing of the queue is worth remembering."""
        return not (
            self.queued_count
            or self.parked_count
            or self.active_count
            or self.completed_count
            or self.staged_count
            or self.removal is not None
            or self.letters
            or self.named_groups is not None
            or self.settings != DEFAULT_SETTINGS
        )

    @property
    def count_per_priority(self) -> dict[str, int]:
        """How many jobs are queued with each priority, by its decimal text, from the lowest that anybody has."""
        counts = dict(self.priorities)
        if plain := self.queued_count - sum(counts.values()):
            counts[0] = plain
        return {str(priority): counts[priority] for priority in sorted(counts)}

    def raw_counts(self) -> dict[str, int]:
        """Jobs by state, whether the queue is paused or not."""
        return {
            "waiting": self.waiting_count,
            "prioritized": self.prioritized_count,
            "active": self.active_count,
            "completed": self.completed_count,
            "failed": len(self.letters),
            "delayed": self.delayed_count,
        }

    def retire(self) -> None:
        """The queue is given up with all it holds: the gauges count it no longer."""
        gauges = self.gauges
        gauges.waiting -= self.waiting_count
        gauges.prioritized -= self.prioritized_count
        gauges.delayed -= self.delayed_count
        gauges.parked -= self._parked_count
        gauges.completed -= self._completed_count
        gauges.dead -= len(self.letters)
        self.gauges = self.letters.gauges = Gauges()

    def insert(self, job: Job, wall_ms: float) -> bool:
        """Queue *job*, ready or delayed by its run time. Returns True when it is ready."""
        if job.block is None:
            self.catalog.add(job)
        if job.record.priority:
            self._count_priority(job, 1)
        if job.record.group_id is not None and takes_turns(job.record):
            self.with_groups().expect(job)
        if job.record.run_at > wall_ms:
            job.state = JobState.DELAYED
            self._count_delayed(job, 1)
            push_delayed(self.delayed, job)
            return False
        job.state = JobState.READY
        self._count_ready(job, 1)
        self._stand_ready(job)
        return True

    def note_kept(self) -> None:
        """The file keeps one more completed job."""
        self._completed_count += 1  # past the descriptor: every ACK comes here
        self.gauges.completed += 1

    def remove(self, job: Job) -> None:
        """Take *job* out of the order, whatever heap it stands in. Its state is the caller's to set."""
        groups = self.named_groups if takes_turns(job.record) else None
        job.place = None
        if job.record.priority:
            self._count_priority(job, -1)
        if job.state is JobState.DELAYED:
            self._count_delayed(job, -1)
            compact(self.delayed, self.delayed_count)
        else:
            self._count_ready(job, -1)
            if groups is not None:
                groups.remove_ready(job)
            else:
                compact(self.ready, self.waiting_count + self.prioritized_count)
                if job.record.group_id is not None:
                    self._next_of_group(job.record.group_id)
        if groups is not None:
            groups.part_with(job)

    def take_queued(self) -> list[Job]:
        """Take every ready and delayed job out of the order. Their states are the caller's to set, and lists go on
        counting them as what they were.

        Cost: O(queued jobs), some 0.1 µs each.
        """
        heaps = [self.ready, self.delayed, *(group.aside for group in self.groups.values())]
        taken = [entry[-1] for heap in heaps for entry in heap if entry[-1].place is entry]
        if self.named_groups is not None:
            taken += self.named_groups.take_ready()
        for job in taken:
            job.place = None
        self.ready, self.delayed = [], []
        for group in self.groups.values():
            group.aside = []
        self.groups = {group_id: group for group_id, group in self.groups.items() if group.active is not None}
        gauges = self.gauges
        gauges.waiting -= self.waiting_count
        gauges.prioritized -= self.prioritized_count
        gauges.delayed -= self.delayed_count
        self.waiting_count = self.prioritized_count = self.delayed_count = 0
        self.priorities = {}
        return taken

    def pop_ready(self, job: Job) -> None:
        """Take *job*, which `first` has just shown at the top, out of the ready heap."""
        heappop(self.ready)
        job.place = None
        self._count_ready(job, -1)
        if job.record.priority:
            self._count_priority(job, -1)

    def hand_out(self, job: Job, asked: PullGroup | None, mono_ms: float) -> None:
        """Take *job*, of which its named group has just said that it is next, out of the order; it is about to run."""
        assert self.named_groups is not None
        self.named_groups.hand_out(job, asked, mono_ms)
        self._count_ready(job, -1)
        if job.record.priority:
            self._count_priority(job, -1)

    def activate(self, job: Job) -> None:
        """*job*, taken out by `pop_ready` or `hand_out`, runs from now on."""
        job.state = _ACTIVE
        self.active_count += 1
        job.block.counts[ACTIVE] += 1

    def deactivate(self, job: Job) -> None:
        """*job* runs no longer. Its state is the caller's to set."""
        self.active_count -= 1
        job.block.counts[ACTIVE] -= 1
        self.leave_group(job)

    def park(self, job: Job) -> None:
        """Let *job* wait for others."""
        if job.block is None:
            self.catalog.add(job)
        job.state = JobState.PARKED
        self.parked_count += 1
        job.block.counts[PARKED] += 1

    def unpark(self, job: Job) -> None:
        """*job* waits for others no longer. Its state is the caller's to set."""
        self.parked_count -= 1
        job.block.counts[PARKED] -= 1

    def show_letter(self, job: Job) -> None:
        """List *job* among the dead letters."""
        if job.block is None:
            self.catalog.add(job)
        job.block.counts[FAILED] += 1

    def hide_letter(self, job: Job) -> None:
        """*job* is listed among the dead letters no longer."""
        job.block.counts[FAILED] -= 1

    def mature(self, wall_ms: float) -> int:
        """Move every delayed job whose time has come among the ready ones. Returns how many."""
        moved = 0
        while self.delayed and self.delayed[0][0] <= wall_ms:
            job = first(self.delayed)
            if job is None or job.record.run_at > wall_ms:
                break
            heappop(self.delayed)
            self._count_delayed(job, -1)
            job.state = JobState.READY
            self._count_ready(job, 1)
            self._stand_ready(job)
            moved += 1
        return moved

    def put_back(self, job: Job) -> None:
        """The wall clock went back: the job that was to be next has to wait again."""
        if takes_turns(job.record):
            self.with_groups().remove_ready(job)
        else:
            heappop(self.ready)
        self._count_ready(job, -1)
        job.state = JobState.DELAYED
        self._count_delayed(job, 1)
        push_delayed(self.delayed, job)
        if job.record.group_id is not None:
            self._next_of_group(job.record.group_id)

    def rewind(self, wall_ms: float) -> None:
        """After a backward jump: every ready job whose run time lies ahead becomes delayed again. O(ready jobs)."""
        heaps = [self.ready, *([] if self.named_groups is None else self.named_groups.heaps())]
        early = [e[-1] for heap in heaps for e in heap if e[-1].place is e and e[-1].record.run_at > wall_ms]
        for job in early:
            if takes_turns(job.record):
                self.with_groups().remove_ready(job)
            job.place = None
            self._count_ready(job, -1)
            job.state = JobState.DELAYED
            self._count_delayed(job, 1)
            push_delayed(self.delayed, job)
        if early:
            self.ready = [entry for entry in self.ready if entry[-1].place is entry]
            heapify(self.ready)
        for group_id in dict.fromkeys(job.record.group_id for job in early if job.record.group_id is not None):
            self._next_of_group(group_id)  # a delayed job holds up no other member

    def _stand_ready(self, job: Job) -> None:
        if job.record.group_id is not None and takes_turns(job.record):
            self.with_groups().add_ready(job)
        else:
            push_ready(self.ready, job)

    # groups

    def with_groups(self) -> NamedGroups:
        """The queue's named groups, made on first use."""
        if self.named_groups is None:
            self.named_groups = NamedGroups()
        return self.named_groups

    def forget_groups(self, mono_ms: float) -> None:
        """Let go of the named groups if nothing is left of them."""
        if self.named_groups is not None:
            self.named_groups.pass_time(mono_ms)
            if not len(self.named_groups):
                self.named_groups = None

    def is_busy(self, group_id: str) -> bool:
        """Whether anything of that group runs, so that a member without a name of its own has to wait."""
        group = self.groups.get(group_id)
        if group is not None and group.active is not None:
            return True
        return self.named_groups is not None and self.named_groups.active_count(group_id) > 0

    def group(self, group_id: str) -> Group:
        """The group of that id, made on first use; it goes when it is empty."""
        group = self.groups.get(group_id)
        if group is None:
            group = self.groups[group_id] = Group()
        return group

    def set_aside(self, job: Job, group: Group) -> None:
        """*job*, at the top of the ready heap, belongs to a busy group: let others pass."""
        heappop(self.ready)
        job.place = entry = ready_entry(job)
        heappush(group.aside, entry)

    def leave_group(self, job: Job) -> None:
        """*job* was its group's active one and is no longer."""
        group_id = job.record.group_id
        if group_id is None:
            return
        if takes_turns(job.record):
            if self.with_groups().leave(job):
                self._next_of_group(group_id)
            return
        group = self.groups.get(group_id)
        if group is not None and group.active is job:
            group.active = None
            self._next_of_group(group_id)

    def _next_of_group(self, group_id: str) -> None:
        """One member set aside becomes visible again; it meets the group's rule when a pull reaches it."""
        if self.named_groups is not None:
            self.named_groups.look_again(group_id)
        group = self.groups.get(group_id)
        if group is None or group.active is not None:
            return
        job = first(group.aside)
        if job is None:
            del self.groups[group_id]
            return
        heappop(group.aside)
        push_ready(self.ready, job)

    def _count_ready(self, job: Job, by: int) -> None:
        if job.record.priority > 0:
            self.prioritized_count += by
            job.block.counts[PRIORITIZED] += by
            self.gauges.prioritized += by
        else:
            self.waiting_count += by
            self.gauges.waiting += by

    def _count_delayed(self, job: Job, by: int) -> None:
        self.delayed_count += by
        job.block.counts[DELAYED] += by
        self.gauges.delayed += by

    def _count_priority(self, job: Job, by: int) -> None:
        priority = job.record.priority
        count = self.priorities.get(priority, 0) + by
        if count:
            self.priorities[priority] = count
        else:
            del self.priorities[priority]
