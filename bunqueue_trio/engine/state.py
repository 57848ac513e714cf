"""What the engine holds, and the few steps that every rule shares. The rules themselves live in the other rooms."""

from __future__ import annotations

from heapq import heapify, heappush
from typing import Any, Protocol

from bunqueue_trio.engine.history import History
from bunqueue_trio.engine.queue_state import QueueState
from bunqueue_trio.errors import BunqueueError
from bunqueue_trio.model.changes import Changes, Dirty
from bunqueue_trio.model.entries import CompletedJob, DlqEntry, WorkerInfo
from bunqueue_trio.model.instant import Now
from bunqueue_trio.model.job import Job, JobState
from bunqueue_trio.model.transitions import Staged, Transition


class IdSource(Protocol):
    """Ids, tokens and chance, made outside so that the engine is reproducible."""

    def job_id(self, wall_ms: float) -> str:
        """A new UUIDv7, greater than all before."""
        ...

    def lease_token(self, job_id: str, seq: int, started_at: float, attempts: int) -> str:
        """The secret of one delivery; the same values give the same token, also after a restart."""
        ...

    def lease_start(self, token: str) -> float | None:
        """When the delivery of a token began; None for what cannot be one."""
        ...

    def jitter(self) -> float:
        """A number in [0, 1)."""
        ...

    def worker_id(self, wall_ms: float) -> str:
        """An id for a worker that brought none."""
        ...


class PendingChangeError(BunqueueError):
    """The command meets a change that has not committed yet. Nothing happened; execute it again after the commit."""


class FactsNeededError(BunqueueError):
    """Only the file can tell whether these ids completed. Execute again with `State.facts` filled in.

    Attributes:
        ids: the ids to look up.
    """

    def __init__(self, ids: list[str]) -> None:
        super().__init__(f"{len(ids)} ids must be looked up in the file")
        self.ids = ids


TIMERS_SWEPT_FROM = 1_000
DUE_SWEPT_FROM = 1_000
Timer = tuple[float, int, Job | QueueState]


def is_live(timer: Timer) -> bool:
    """False for a timer whose job has been finished, taken back or given a later deadline since."""
    mono_ms, _, target = timer
    if not isinstance(target, Job):
        return True
    lease = target.lease
    return target.state is JobState.ACTIVE and lease is not None and lease.armed_mono_ms == mono_ms


class Totals:
    """Counters since start, for metrics. Deliveries count as pulled, final failures as failed."""

    __slots__ = ("completed", "failed", "pulled", "pushed")

    def __init__(self) -> None:
        self.pushed = self.pulled = self.completed = self.failed = 0


class State:
    """Everything the engine knows.

    ``jobs`` holds every job that is not completed, dead letters included, by id.
    ``dependents`` maps an id to the unfinished jobs that name it in ``dependsOn``, parked or not; ``kept_finished`` are
    the ids that the file remembers as completed although their row is gone, because such a job still names them.
    ``held`` maps a connection to the jobs it leased.
    ``timers`` is a heap of (monotonic ms, tie, job or queue), ``due`` one of (wall ms, queue name) with an entry for at
    least the earliest delayed job of each queue.
    ``wakes`` counts, per queue, the jobs that have just become runnable.
    ``waits_for_commit`` is set by a command whose reply must wait for the next flush.
    """

    def __init__(
        self, ids: IdSource, *, lease_grace_ms: float, history: History | None = None, syncs_commits: bool = False
    ) -> None:
        self.ids = ids
        self.lease_grace_ms = lease_grace_ms
        self.syncs_commits = syncs_commits
        self.history = History() if history is None else history
        self.jobs: dict[str, Job] = {}
        self.queues: dict[str, QueueState] = {}
        self.dependents: dict[str, set[str]] = {}
        self.kept_finished: set[str] = set()
        self.connections: set[int] = set()
        self.orderly: set[int] = set()
        self.held: dict[int, dict[str, Job]] = {}
        self.workers: dict[str, WorkerInfo] = {}
        self.timers: list[Timer] = []
        self.due: list[tuple[float, str]] = []
        self.wakes: dict[str, int] = {}
        self.facts: dict[str, CompletedJob | None] = {}
        self.changes = Changes()
        self.settings_in_flight: set[str] = set()
        self.in_flight: Changes | None = None
        self._in_flight_ids: set[int] | None = None
        self.counted_out: dict[str, int] = {}
        self.totals = Totals()
        self.next_seq = 1
        self.waits_for_commit = False
        self.hands_out = True
        self.active_count = 0
        self.last_wall_ms = 0.0
        self._tie = 0

    # look-ups

    def queue(self, name: str) -> QueueState:
        """The queue of that name, made on first use."""
        queue = self.queues.get(name)
        if queue is None:
            queue = self.queues[name] = QueueState(name)
        return queue

    def find(self, job_id: Any) -> Job | None:
        """The unfinished or failed job of that id. Anything that is no string names no job."""
        return self.jobs.get(job_id) if type(job_id) is str else None

    def settled(self, job: Job) -> Job:
        """*job* itself, unless a change of it waits for its commit.

        Raises:
            PendingChangeError: it does.
        """
        if job.staged is not None:
            raise PendingChangeError(job.record.id)
        return job

    def completed(self, job_id: Any) -> CompletedJob | None:
        """The completed job of that id, from memory or from the facts brought along.

        Raises:
            FactsNeededError: only the file can tell.
        """
        if type(job_id) is not str:
            return None
        found = self.history.get(job_id)
        if found is not None or not self.history.has_evicted:
            return found
        if job_id not in self.facts:
            raise FactsNeededError([job_id])
        return self.facts[job_id]

    def is_in_flight(self, job: Job) -> bool:
        """True while a flush that carries *job* is under way. Constant, but for the first question of a flush."""
        if self.in_flight is None:
            return False
        if self._in_flight_ids is None:
            self._in_flight_ids = {id(flying) for flying in self.in_flight.jobs}
        return id(job) in self._in_flight_ids

    def set_in_flight(self, changes: Changes | None) -> None:
        """A flush has begun, or ended."""
        self.in_flight, self._in_flight_ids = changes, None

    # shared steps

    def stage(self, staged: Staged) -> None:
        """Hold a change back until its commit; the reply waits for it."""
        self.changes.staged.append(staged)
        if isinstance(staged, Transition):
            self.queues[staged.record.queue].staged_count += 1
        self.waits_for_commit = True

    def stage_end(self, transition: Transition) -> None:
        """Hold back the end of a job. One that is queued or parked leaves its place now, so that no pull can get it."""
        job = transition.job
        job.staged = transition
        if job.state in (JobState.READY, JobState.DELAYED, JobState.PARKED):
            transition.held_from = job.state
            self.leave_place(job)
            job.state = JobState.STAGED
        self.stage(transition)

    def resume(self, transition: Transition, now: Now) -> None:
        """The end of a job that `stage_end` held back will not come: put it where it was."""
        job = transition.job
        queue = self.queues[job.record.queue]
        if transition.held_from is JobState.PARKED and job.missing:
            job.state = JobState.PARKED
            queue.parked_count += 1
        elif transition.held_from is not None:
            self.enqueue(queue, job, now)

    def unreserve(self, reservation: Transition) -> None:
        """A durable push will not come: nothing of it stays, and what it had taken goes back (PD-3)."""
        job = reservation.job
        job_id, key = job.record.id, job.record.unique_key
        job.state = JobState.GONE
        self.free_key(job)
        if self.jobs.get(job_id) is job:
            del self.jobs[job_id]
        if reservation.former is not None:
            self.jobs[job_id] = reservation.former
        self.forget_waiting(job)
        displaced = reservation.displaced
        if displaced is not None and key is not None and self.jobs.get(displaced.record.id) is displaced:
            self.queues[job.record.queue].keys[key] = displaced

    def wake(self, queue: QueueState, count: int = 1) -> None:
        """Note that *count* jobs of *queue* may have become runnable."""
        self.wakes[queue.name] = self.wakes.get(queue.name, 0) + count

    def arm(self, mono_ms: float, target: Job | QueueState) -> None:
        """Have `tick` look at *target* at that moment.

        Short jobs leave timers behind that stand for nothing; they are swept out before they outnumber the others by
        far, else a busy server would carry half a minute of them.
        """
        self._tie += 1
        heappush(self.timers, (mono_ms, self._tie, target))
        if len(self.timers) > TIMERS_SWEPT_FROM and len(self.timers) > 4 * self.active_count:
            self.timers = [timer for timer in self.timers if is_live(timer)]
            heapify(self.timers)

    def enqueue(self, queue: QueueState, job: Job, now: Now) -> None:
        """Queue *job*; wake a pull when it is ready, see to its due time when it is not."""
        if queue.insert(job, now.wall_ms):
            self.wake(queue)
        elif queue.delayed[0] is job.place:
            heappush(self.due, (job.record.run_at, queue.name))
            if len(self.due) > DUE_SWEPT_FROM and len(self.due) > 4 * len(self.queues):
                # Jobs pushed and cancelled long before they are due must not leave an entry each.
                self.due = [(q.delayed[0][0], q.name) for q in self.queues.values() if q.delayed]
                heapify(self.due)

    def deactivate(self, job: Job) -> None:
        """An active job is no longer: slot, group and connection are free again, and a waiting pull may try."""
        queue = self.queues[job.record.queue]
        queue.active_count -= 1
        self.active_count -= 1
        queue.leave_group(job)
        lease = job.lease
        if lease is not None and lease.connection_id is not None:
            held = self.held.get(lease.connection_id)
            if held is not None and held.get(job.record.id) is job:
                del held[job.record.id]
        self.wake(queue)

    def free_key(self, job: Job) -> None:
        """Give the job's unique key back, unless a newer job holds it by now (SD-23)."""
        key = job.record.unique_key
        if key is not None:
            keys = self.queues[job.record.queue].keys
            if keys.get(key) is job:
                del keys[key]

    def drop(self, job: Job) -> None:
        """Remove *job* for good, from wherever it is, and have its row deleted."""
        self.leave_place(job)
        self.free_key(job)
        self.forget_waiting(job)
        if self.jobs.get(job.record.id) is job:
            del self.jobs[job.record.id]
        job.state = JobState.GONE
        self.changes.touch(job, Dirty.STATE)

    def leave_place(self, job: Job) -> None:
        """Take *job* out of its queue's order, its parking place, its lease or the dead letters."""
        queue = self.queues[job.record.queue]
        state = job.state
        if state is JobState.READY or state is JobState.DELAYED:
            queue.remove(job)
        elif state is JobState.PARKED:
            queue.parked_count -= 1
        elif state is JobState.ACTIVE:
            self.deactivate(job)
        elif state is JobState.FAILED and queue.letters.pop(job.record.id, None) is not None:
            self.letter_gone(job.record.id)

    def letter_gone(self, job_id: str) -> None:
        """A dead letter leaves the file, or does not even get there: deletions come first in a batch."""
        self.changes.letters_gone.append(job_id)
        if self.changes.letters:
            self.changes.letters = [entry for entry in self.changes.letters if entry.job.id != job_id]

    def keep_finished(self, job_id: str) -> None:
        """Have the file remember that *job_id* completed although its row goes: others depend on it (PD-11)."""
        if job_id not in self.kept_finished:
            self.kept_finished.add(job_id)
            self.changes.finished.append(job_id)
            if job_id in self.changes.finished_gone:  # which would come after it in the batch
                self.changes.finished_gone.remove(job_id)

    def forget_waiting(self, job: Job) -> None:
        """*job* has ended: it no longer depends on anything."""
        job.missing = None
        if not job.record.depends_on:
            return
        heir = self.jobs.get(job.record.id)
        is_renewed = heir is not None and heir is not job and heir.state is not JobState.FAILED
        still_needed = heir.record.depends_on if heir is not None and is_renewed else ()
        for dependency in job.record.depends_on:
            waiting = self.dependents.get(dependency)
            if waiting is None or dependency in still_needed:
                continue
            waiting.discard(job.record.id)
            if not waiting:
                del self.dependents[dependency]
                if dependency in self.kept_finished:
                    self.kept_finished.remove(dependency)
                    self.changes.finished_gone.append(dependency)

    def forget_completed(self, job_id: str) -> bool:
        """The id starts a new life: the completed job of that id ends. Returns True if memory knew one.

        One that only the file knows is found by the transaction that deletes it (`Engine.forgotten`).
        """
        self.history.forget_finished(job_id)
        if job_id in self.kept_finished:  # else a restart would release those who wait for the new life
            self.kept_finished.remove(job_id)
            self.changes.finished_gone.append(job_id)
        completed = self.history.pop(job_id)
        if completed is not None:
            name = completed.record.queue
            self.queue(name).completed_count -= 1
        elif job_id in self.changes.expired:  # counted out when it expired
            name = self.changes.expired.pop(job_id)
        else:
            return False
        self.counted_out[name] = self.counted_out.get(name, 0) + 1
        return True

    def letter_job(self, entry: DlqEntry, *, is_stored: bool = False) -> Job:
        """The job that stands for a dead letter in the index."""
        job = Job(record=entry.job, state=JobState.FAILED, seq=0, is_stored=is_stored)
        self.jobs[entry.job.id] = job
        return job
