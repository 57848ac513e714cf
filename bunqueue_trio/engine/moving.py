"""Commands that change one job which has not finished, or bring it back from the dead letters.

Each takes effect when it has committed. A queued job leaves its place for that time, so that no pull can get it in its
old form; an active one stays with its holder until then.

Source: commands, "Job management".
"""

from heapq import nsmallest
from math import ceil
from typing import Any, NoReturn

from msgspec import UNSET

from bunqueue_trio.engine import dead_letters, job_forms, leases, parking, policies, retries
from bunqueue_trio.engine.queue_state import QueueState
from bunqueue_trio.engine.state import State
from bunqueue_trio.errors import NotFoundError, StateError
from bunqueue_trio.model.changes import Dirty
from bunqueue_trio.model.commands import (
    ChangeDelay,
    ChangePriority,
    Discard,
    Move,
    MoveToDelayed,
    MoveToWait,
    MoveToWaitingChildren,
    Promote,
    PromoteJobs,
    Update,
)
from bunqueue_trio.model.instant import Now
from bunqueue_trio.model.job import EnvelopeRecord, Job, JobRecord, JobState, replace, shown_state
from bunqueue_trio.model.naming import with_data
from bunqueue_trio.model.replies import CountReply, DataReply, Reply
from bunqueue_trio.model.transitions import Transition, TransitionKind

QUEUED = frozenset({JobState.READY, JobState.DELAYED})
UNFINISHED = QUEUED | {JobState.PARKED, JobState.ACTIVE}


class Moving:
    """Moves and changes jobs."""

    def __init__(self, state: State) -> None:
        self._state = state

    def update(self, command: Update, now: Now) -> Reply:
        """Replace the data of a queued, parked or active job, or of the successor of a completed one.

        Raises:
            NotFoundError: unknown or finished.
        """
        refusal = "Job not found or cannot be updated"
        successor = self._state.successors.get(command.id) if type(command.id) is str else None
        if successor is None or command.id in self._state.jobs:
            job = self._find(command.id, UNFINISHED, refusal)
        else:
            job = self._find(successor, QUEUED, refusal)
        record, data = job.record, command.data
        if type(record) is EnvelopeRecord and not command.is_newer:
            data = job_forms.taken_out(record.name, data)  # NC-2: an older worker writes back what it was given
        self._put(job, with_data(record, data), Dirty.FULL)
        self._state.announce("job:data-updated", jobId=job.record.id)
        return Reply()

    def change_priority(self, command: ChangePriority, now: Now) -> Reply:
        """Change the priority, and LIFO if given, of a queued job; its run time stays.

        Raises:
            NotFoundError: not queued.
        """
        job = self._find(command.id, QUEUED, "Job not found or not in queue")
        lifo = job.record.lifo if command.lifo is None else command.lifo
        self._change(job, Dirty.FULL, priority=command.priority, lifo=lifo)
        self._state.announce("job:priority-changed", jobId=command.id, newPriority=command.priority)
        return Reply()

    def promote(self, command: Promote, now: Now) -> Reply:
        """Make a delayed job ready now.

        Raises:
            NotFoundError: not delayed.
        """
        refusal = "Job not found or not delayed"
        job = self._find(command.id, QUEUED, refusal)
        if job.record.run_at <= now.wall_ms:
            raise NotFoundError(refusal)
        self._promote(job, now)
        return Reply()

    def promote_jobs(self, command: PromoteJobs, now: Now) -> CountReply:
        """Make the delayed jobs of a queue ready, oldest first, at most ``count`` of them. O(delayed jobs)."""
        queue = self._state.queues.get(command.queue)
        delayed = [] if queue is None else _delayed(queue, now)
        if command.count is not UNSET:
            delayed = nsmallest(command.count, delayed, key=_age)
        for job in delayed:
            self._promote(job, now)
        return CountReply(count=len(delayed))

    def _promote(self, job: Job, now: Now) -> None:
        self._change(job, 0, run_at=now.wall_ms)
        self._state.announce("job:promoted", jobId=job.record.id)

    def change_delay(self, command: ChangeDelay, now: Now) -> Reply:
        """Let a queued or active job run ``delay`` ms from now.

        Raises:
            NotFoundError: parked, finished or unknown.
            LeaseLostError: as `fence`.
        """
        job = self._find(command.id, QUEUED | {JobState.ACTIVE}, "Job not found or cannot change delay")
        fence(job, command, now)
        self._requeue(job, float(ceil(now.wall_ms + command.delay)), command.delay)
        self._state.announce("job:delay-changed", jobId=command.id, newDelay=command.delay)
        return Reply()

    def move_to_delayed(self, command: MoveToDelayed, now: Now) -> Reply:
        """The same as `change_delay`, with errors of its own.

        Raises:
            NotFoundError, StateError: unknown; parked or finished.
            LeaseLostError: as `fence`.
        """
        job = self._state.find(command.id)
        if job is not None:
            self._state.settled(job)
        if job is None or job.state not in QUEUED | {JobState.ACTIVE}:
            shown = self._shown(job, command.id, now)
            if shown == "unknown":
                raise NotFoundError("Job not found")
            raise StateError(f"Job is not active (current state: {shown})")
        fence(job, command, now)
        self._requeue(job, float(ceil(now.wall_ms + command.delay)), command.delay)
        self._state.announce("job:moved-to-delayed", jobId=command.id, delay=command.delay)
        return Reply()

    def move_to_wait(self, command: MoveToWait, now: Now) -> Reply:
        """Make a job ready now, wherever it is: delayed, active or among the dead letters.

        Raises:
            StateError: parked, completed or unknown.
            LeaseLostError: as `fence`.
        """
        job = self._state.find(command.id)
        if job is not None:
            self._state.settled(job)
        if job is None or job.state is JobState.PARKED:
            self._refuse_move(self._shown(job, command.id, now))
        fence(job, command, now)
        if job.state is JobState.FAILED:
            if not dead_letters.revive(self._state, job, now):
                raise StateError("Unique key of the job is held by another job")
        elif job.state is JobState.ACTIVE or job.record.run_at > now.wall_ms:
            self._requeue(job, now.wall_ms)
        return Reply()

    def move_to_waiting_children(self, command: MoveToWaitingChildren, now: Now) -> DataReply:
        """Let an active job wait for its children, also for those that it is yet to have; nothing is charged.

        Shape: ``{"moved": true}``.

        Raises:
            StateError: not active.
            LeaseLostError: as `fence`.
        """
        job = self._state.find(command.id)
        if job is None or self._state.settled(job).state is not JobState.ACTIVE:
            raise StateError("Job is not active")
        fence(job, command, now)
        self._state.stage_end(parking.parked(self._state, job, now))
        return DataReply(data={"moved": True})

    def discard(self, command: Discard, now: Now) -> Reply:
        """Send a queued or active job to the dead letters; its attempts stay as they are. A final failure (CD-20).

        Raises:
            NotFoundError: parked, finished or unknown.
            LeaseLostError: as `fence`.
        """
        job = self._find(command.id, QUEUED | {JobState.ACTIVE}, "Job not found")
        fence(job, command, now)
        entry = dead_letters.dead_letter(self._state, job, job.record, retries.UNKNOWN, None, now)
        discard = Transition(TransitionKind.DISCARD, job, job.record, JobState.GONE, entry=entry)
        policies.stage_failure(self._state, discard, None, now)
        return Reply()

    def _requeue(self, job: Job, run_at: float, delay_ms: float | None = None) -> None:
        """Another run time for a queued job; an active one is taken from its holder without charging anything."""
        kind = TransitionKind.MOVE
        self._change(job, 0, kind=kind, delay_ms=delay_ms, run_at=run_at, started_at=None)

    def _change(
        self, job: Job, dirty: int, *, kind: TransitionKind | None = None, delay_ms: float | None = None, **fields: Any
    ) -> None:
        self._put(job, replace(job.record, **fields), dirty, kind=kind, delay_ms=delay_ms)

    def _put(
        self,
        job: Job,
        record: JobRecord,
        dirty: int,
        *,
        kind: TransitionKind | None = None,
        delay_ms: float | None = None,
    ) -> None:
        if kind is None:
            kind = TransitionKind.UPDATE if job.state is JobState.ACTIVE else TransitionKind.MOVE
        self._state.stage_end(Transition(kind, job, record, JobState.READY, dirty=dirty, delay_ms=delay_ms))

    def _find(self, job_id: Any, states: frozenset[JobState], refusal: str) -> Job:
        job = self._state.find(job_id)
        if job is not None and self._state.settled(job).state in states:
            return job
        raise NotFoundError(refusal)

    def _shown(self, job: Job | None, job_id: Any, now: Now) -> str:
        if job is not None:
            return shown_state(job, now.wall_ms)
        return "unknown" if self._state.completed(job_id) is None else "completed"

    @staticmethod
    def _refuse_move(shown: str) -> NoReturn:
        raise StateError(f"Cannot move job from state '{shown}' to waiting")


def fence(job: Job, command: Move, now: Now) -> None:
    """Let pass who may move *job*: anybody, unless it is active under a lock.

    Then a token, where one is given, has to be that of the lock. Who speaks protocol 3 has to give one (NC-7).

    Raises:
        LeaseLostError: it is not, or has expired: no grace here. Nothing has changed.
    """
    if job.state is JobState.ACTIVE and (command.token is not None or command.is_newer):
        leases.fence(job, command.token, now, grace=False)


def _delayed(queue: QueueState, now: Now) -> list[Job]:
    queue.mature(now.wall_ms)
    return [entry[-1] for entry in queue.delayed if entry[-1].place is entry]


def _age(job: Job) -> tuple[float, int]:
    return job.record.created_at, job.seq
