"""Drain and Obliterate: many jobs of one queue go at once, in one transaction.

One staged record stands for all of them, so that a hundred thousand cost little more than a walk over a list. From the
command to its commit the jobs are held: queued and parked ones have left their places, active ones stay with their
holders and dead letters where they are, and every command that meets one of them waits for the commit. Jobs that are
pushed meanwhile are not held, and their rows come after the deletion, whichever flush carries them.

A job of which another change waits for its commit cannot be held yet. That change is doomed instead: its row is not
written any more if there is still time, its effect on others takes place, and then its job is held with the rest.

Source: commands, "Queue control"; CD-11; scheduling and flows, SD-17.
"""

from collections.abc import Sequence

from bunqueue_trio.engine import happenings, leases
from bunqueue_trio.engine.catalog import ACTIVE, FAILED, PARKED, kind_of
from bunqueue_trio.engine.queue_state import QueueState
from bunqueue_trio.engine.state import PendingChangeError, State
from bunqueue_trio.model.commands import Drain, Obliterate
from bunqueue_trio.model.entries import DEFAULT_SETTINGS
from bunqueue_trio.model.events import Event
from bunqueue_trio.model.instant import Now
from bunqueue_trio.model.job import Job, JobState
from bunqueue_trio.model.replies import CountReply, Reply
from bunqueue_trio.model.transitions import Removal, Transition, TransitionKind

QUEUED = (JobState.READY, JobState.DELAYED)
STAYS_QUEUED = (TransitionKind.MOVE, TransitionKind.LOOSEN)


class Emptying:
    """Removes the jobs of a queue."""

    def __init__(self, state: State) -> None:
        self._state = state

    def drain(self, command: Drain, now: Now) -> CountReply:
        """Delete the waiting, prioritized and delayed jobs of a queue; the reply counts them.

        Cost: about 1 µs per job on the loop, in three steps; some 15 µs per row in the writer thread.
        """
        queue = self._free_queue(command.queue)
        if queue is None:
            return CountReply()
        doomed = [c for c in self._staged_of(queue) if c.kind in STAYS_QUEUED and c.held_from in QUEUED]
        count = queue.queued_count + len(doomed)
        if count:
            removal = Removal(queue.name, False, [])
            self._begin(queue, removal, doomed)
            self._hold_queued(queue, removal)
            self._state.stage(removal)
        return CountReply(count=count)

    def obliterate(self, command: Obliterate, now: Now) -> Reply:
        """Delete a queue: its jobs in every state, results, dead letters, keys, settings, its name.

        Jobs of other queues that depend on its jobs stay as they are: released by what has completed, parked for the
        rest (SD-17).

        Cost: as `drain`, for all its jobs that are not completed; a walk over the active jobs of all queues, the ids
        that unfinished jobs name, and the window of completed jobs.
        """
        state = self._state
        queue = self._free_queue(command.queue)
        if queue is None:
            queue = state.queue(command.queue)  # the file may still know what has ended in it
        removal = Removal(queue.name, True, [], named=tuple(state.dependents))
        doomed = self._staged_of(queue)
        for change in doomed:
            if change.kind is TransitionKind.COMPLETE:
                change.keeps_id = change.record.id in state.dependents
        self._begin(queue, removal, doomed)
        self._hold_queued(queue, removal)
        parked = _unheld(queue, PARKED)
        queue.parked_count -= len(parked)
        _hold(parked, removal, has_left=True)
        _hold(_unheld(queue, ACTIVE) + _unheld(queue, FAILED), removal, has_left=False)
        state.stage(removal)
        return Reply()

    # holding

    def _free_queue(self, name: str) -> QueueState | None:
        """The queue, unless nobody knows it.

        Raises:
            PendingChangeError: it is being emptied already.
        """
        queue = self._state.queues.get(name)
        if queue is not None and queue.removal is not None:
            raise PendingChangeError(name)
        return queue

    def _staged_of(self, queue: QueueState) -> list[Transition]:
        """The queue's changes that wait for a commit, in the flush under way or the next one."""
        state = self._state
        if not queue.staged_count:
            return []
        flying = [] if state.in_flight is None else state.in_flight.staged
        return [
            change
            for change in (*flying, *state.changes.staged)
            if isinstance(change, Transition) and change.record.queue == queue.name
        ]

    @staticmethod
    def _begin(queue: QueueState, removal: Removal, doomed: list[Transition]) -> None:
        queue.removal = removal
        for change in doomed:
            change.doomed_by = removal

    @staticmethod
    def _hold_queued(queue: QueueState, removal: Removal) -> None:
        _hold(queue.take_queued(), removal, has_left=True)

    def hold_outcome(self, change: Transition) -> None:
        """A doomed change has been applied: what it has made of its job goes with the others."""
        removal, state = change.doomed_by, self._state
        assert removal is not None
        job = state.jobs.get(change.record.id)
        if job is None or job.staged is not None or job.record.queue != removal.queue:
            return
        has_left = job.state in (*QUEUED, JobState.PARKED)
        if has_left:
            state.leave_place(job)
            job.block.counts[kind_of(job)] += 1  # lists go on showing it until the commit
        _hold([job], removal, has_left=has_left)
        state.queues[removal.queue].staged_count += 1

    # afterwards

    def apply(self, removal: Removal, now: Now) -> None:
        """The transaction has deleted the rows: nothing of the jobs stays in memory."""
        state = self._state
        queue = state.queues[removal.queue]
        queue.staged_count -= len(removal.jobs)
        queue.removal = None
        has_been_there = queue.is_known or bool(removal.jobs) or queue.settings != DEFAULT_SETTINGS
        known = state.jobs
        for job in removal.jobs:
            record, mark = job.record, job.staged
            assert mark is not None
            state.unhold(job, mark)
            job.staged = None
            if job.state is not JobState.STAGED or record.unique_key is not None or record.depends_on:
                self._let_go(queue, job)
            queue.catalog.remove(job)
            job.state = JobState.GONE
            if known.get(record.id) is job:
                del known[record.id]
            if state.awaited:
                state.note_end(record.id)
        if state.dependents:
            for job in removal.jobs:
                state.note_removed(job.record.id)
        if removal.is_whole:
            for job in removal.jobs:
                state.forget_logs(job.record.id)
            self._forget_queue(queue)
        if state.events is not None and has_been_there:
            self._tell(state.events, removal, now)

    def _tell(self, events: list[Event], removal: Removal, now: Now) -> None:
        if not removal.is_whole:
            if removal.jobs:  # else all of them had gone before
                happenings.tell(events, "queue:drained", now, queue=removal.queue, count=len(removal.jobs))
            return
        happenings.tell(events, "queue:obliterated", now, queue=removal.queue)
        if removal.queue not in self._state.queues:  # else it lives on with what has been pushed meanwhile
            happenings.tell(events, "queue:removed", now, queue=removal.queue)

    def _let_go(self, queue: QueueState, job: Job) -> None:
        """What a job holds beside its place: a lease, a dead letter, a key, the names of others. Most hold nothing."""
        state, job_id = self._state, job.record.id
        if job.state is JobState.ACTIVE:
            state.deactivate(job)
        elif job.state is JobState.FAILED and queue.letters.pop(job_id, None) is not None:
            queue.hide_letter(job)
        state.free_key(job)
        state.forget_waiting(job)

    def _forget_queue(self, queue: QueueState) -> None:
        """What is left of the queue is what has been pushed since."""
        state, name = self._state, queue.name
        queue.completed_count = 0
        for job_id in state.history.forget_queue(name):
            state.forget_logs(job_id)
        state.counted_out.pop(name, None)
        for job_id in [job_id for job_id, of in state.changes.expired.items() if of == name]:
            del state.changes.expired[job_id]
        queue.settings, queue.bucket = DEFAULT_SETTINGS, None
        if queue.named_groups is not None:
            queue.named_groups.reset()
            if not len(queue.named_groups):
                queue.named_groups = None
        queue.total_completed = queue.total_failed = 0
        state.wake(queue, queue.waiting_count + queue.prioritized_count)
        if queue.is_idle:
            del state.queues[name]

    def remember(self, kept: Sequence[str]) -> None:
        """Ids of which the transaction has noted that they completed, because unfinished jobs name them."""
        state = self._state
        for job_id in kept:
            if job_id in state.dependents and job_id not in state.jobs:  # else its new life is what they wait for
                state.kept_finished.add(job_id)
                state.changes.finished_gone.pop(job_id, None)
            else:
                state.changes.finished_gone[job_id] = None

    def drop(self, removal: Removal, now: Now) -> None:
        """The commit has failed: everything goes back to where it was."""
        state = self._state
        queue = state.queues[removal.queue]
        queue.staged_count -= len(removal.jobs)
        queue.removal = None
        removal.is_dropped = True
        for job in removal.jobs:
            mark = job.staged
            assert mark is not None
            state.unhold(job, mark)
            job.staged = None
            give_back(state, job, mark.held_from, now)


def give_back(state: State, job: Job, held_from: JobState | None, now: Now) -> None:
    """The change for which *job* was held will not come."""
    if held_from is not None:
        state.resume(job, held_from, now)
    elif job.state is JobState.ACTIVE and job.lease is not None:
        holder = job.lease.connection_id
        if holder is not None and holder not in state.connections:
            leases.release(state, job, now, is_orderly=False)


def _unheld(queue: QueueState, kind: int) -> list[Job]:
    """Its jobs of that kind of which no change waits for its commit."""
    return [job for job in queue.catalog.each((kind,)) if job.staged is None]


def _hold(jobs: list[Job], removal: Removal, *, has_left: bool) -> None:
    """Let *jobs* wait for the removal.

    Args:
        has_left: they have left their places; lists go on counting them as what they were.
    """
    marks: dict[int, Transition] = {}
    for job in jobs:
        kind = kind_of(job)
        mark = marks.get(kind)
        if mark is None:
            held_from = job.state if has_left else None
            mark = Transition(
                TransitionKind.REMOVE, job, job.record, JobState.GONE, held_from=held_from, held_kind=kind
            )
            marks[kind] = mark
        job.staged = mark
        if has_left:
            job.state = JobState.STAGED
    removal.jobs += jobs
