"""One queue: its jobs in order, its groups, its unique keys, its dead letters, and exact counters."""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from bunqueue_trio.engine.heaps import Entry, compact, first, push_delayed, push_ready, ready_entry
from bunqueue_trio.engine.limits import TokenBucket
from bunqueue_trio.model.entries import DEFAULT_SETTINGS, DlqEntry, QueueSettings
from bunqueue_trio.model.job import Job, JobState


class Group:
    """Jobs of one ``groupId``: at most one is active; those met meanwhile wait aside, in their order."""

    __slots__ = ("active", "aside")

    def __init__(self) -> None:
        self.active: Job | None = None
        self.aside: list[Entry] = []


class QueueState:
    """The jobs of one queue that are not finished.

    Counters are maintained, never recounted: ``waiting_count`` and ``prioritized_count`` split the ready jobs by
    priority. A group member set aside stays READY and counted: only its heap differs.
    """

    __slots__ = (
        "active_count",
        "bucket",
        "completed_count",
        "delayed",
        "delayed_count",
        "groups",
        "is_known",
        "keys",
        "letters",
        "name",
        "parked_count",
        "prioritized_count",
        "ready",
        "refill_mono_ms",
        "settings",
        "staged_count",
        "waiting_count",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.settings: QueueSettings = DEFAULT_SETTINGS
        self.bucket: TokenBucket | None = None
        self.refill_mono_ms = 0.0
        """When the next token is due, if somebody is to be told; pulls that poll must not set a timer each."""
        self.ready: list[Entry] = []
        self.delayed: list[Entry] = []
        self.groups: dict[str, Group] = {}
        self.keys: dict[str, Job] = {}
        self.letters: dict[str, DlqEntry] = {}
        self.is_known = False
        self.waiting_count = 0
        self.prioritized_count = 0
        self.delayed_count = 0
        self.parked_count = 0
        self.active_count = 0
        self.completed_count = 0
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
            or self.letters
            or self.settings != DEFAULT_SETTINGS
        )

    def insert(self, job: Job, wall_ms: float) -> bool:
        """Queue *job*, ready or delayed by its run time. Returns True when it is ready."""
        if job.record.run_at > wall_ms:
            job.state = JobState.DELAYED
            self.delayed_count += 1
            push_delayed(self.delayed, job)
            return False
        job.state = JobState.READY
        self._count_ready(job, 1)
        push_ready(self.ready, job)
        return True

    def remove(self, job: Job) -> None:
        """Take *job* out of the order, whatever heap it stands in. Its state is the caller's to set."""
        job.place = None
        if job.state is JobState.DELAYED:
            self.delayed_count -= 1
            compact(self.delayed, self.delayed_count)
        else:
            self._count_ready(job, -1)
            compact(self.ready, self.waiting_count + self.prioritized_count)
            if job.record.group_id is not None:
                self._next_of_group(job.record.group_id)

    def pop_ready(self, job: Job) -> None:
        """Take *job*, which `first` has just shown at the top, out of the ready heap."""
        heappop(self.ready)
        job.place = None
        self._count_ready(job, -1)

    def mature(self, wall_ms: float) -> int:
        """Move every delayed job whose time has come among the ready ones. Returns how many."""
        moved = 0
        while self.delayed and self.delayed[0][0] <= wall_ms:
            job = first(self.delayed)
            if job is None or job.record.run_at > wall_ms:
                break
            heappop(self.delayed)
            self.delayed_count -= 1
            job.state = JobState.READY
            self._count_ready(job, 1)
            push_ready(self.ready, job)
            moved += 1
        return moved

    def put_back(self, job: Job) -> None:
        """The wall clock went back: a job that was ready has to wait again."""
        self.pop_ready(job)
        job.state = JobState.DELAYED
        self.delayed_count += 1
        push_delayed(self.delayed, job)
        if job.record.group_id is not None:
            self._next_of_group(job.record.group_id)

    def rewind(self, wall_ms: float) -> None:
        """After a backward jump: every ready job whose run time lies ahead becomes delayed again. O(ready jobs)."""
        early = [e[-1] for e in self.ready if e[-1].place is e and e[-1].record.run_at > wall_ms]
        for job in early:
            job.place = None
            self._count_ready(job, -1)
            job.state = JobState.DELAYED
            self.delayed_count += 1
            push_delayed(self.delayed, job)
        if early:
            self.ready = [entry for entry in self.ready if entry[-1].place is entry]
            heapify(self.ready)
        for group_id in dict.fromkeys(job.record.group_id for job in early if job.record.group_id is not None):
            self._next_of_group(group_id)  # a delayed job holds up no other member

    # groups

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
        group = self.groups.get(group_id)
        if group is not None and group.active is job:
            group.active = None
            self._next_of_group(group_id)

    def _next_of_group(self, group_id: str) -> None:
        """One member set aside becomes visible again; it meets the group's rule when a pull reaches it."""
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
        else:
            self.waiting_count += by
