"""Clean: old jobs of one state go for good, oldest first; answered when that has committed.

Source: commands, 6 "Clean"; CD-11, CD-12.
"""

from typing import Any

from bunqueue_trio.engine.catalog import DELAYED, PRIORITIZED, WAITING
from bunqueue_trio.engine.queue_state import QueueState
from bunqueue_trio.engine.reading import ReadNeededError
from bunqueue_trio.engine.state import PendingChangeError, State
from bunqueue_trio.model.commands import Clean
from bunqueue_trio.model.instant import Now
from bunqueue_trio.model.job import Job, JobState
from bunqueue_trio.model.questions import OldestCompleted
from bunqueue_trio.model.replies import CleanReply
from bunqueue_trio.model.transitions import CompletedRemoval, Transition, TransitionKind

READY = (WAITING, PRIORITIZED)
QUEUED = {
    None: (WAITING, PRIORITIZED, DELAYED),
    "waiting": (WAITING,),
    "wait": (WAITING,),
    "prioritized": (PRIORITIZED,),
    "delayed": (DELAYED,),
    "paused": READY,
}


class Cleaning:
    """Removes what is old."""

    def __init__(self, state: State) -> None:
        self._state = state

    def clean(self, command: Clean, now: Now) -> CleanReply:
        """Remove up to ``limit`` jobs of a state that are at least ``grace`` ms old; parked and active ones stay.

        Age is measured from createdAt for queued jobs, from their end for completed and failed ones.

        Raises:
            PendingChangeError: one of them has a change that waits for its commit, or the queue is being emptied.
            ReadNeededError: completed jobs are to go, and only the file knows which are the oldest.

        Cost: what it removes, and of failed jobs a look at each; all in one transaction.
        """
        queue = self._state.queues.get(command.queue)
        if queue is None or not command.limit:
            return CleanReply()
        if queue.removal is not None:
            raise PendingChangeError(queue.name)
        until = now.wall_ms - command.grace
        if command.state == "completed":
            return self._clean_completed(command, queue, until)
        if command.state == "failed":
            return self._clean_failed(command, queue, until)
        if command.state in QUEUED and not (command.state == "paused" and not queue.settings.paused):
            if moved := queue.mature(now.wall_ms):
                self._state.wake(queue, moved)
            return self._clean_queued(command, queue, until)
        return CleanReply()

    def _clean_queued(self, command: Clean, queue: QueueState, until: float) -> CleanReply:
        jobs: list[Job] = []
        for job in queue.catalog.each(QUEUED[command.state]):
            if job.record.created_at > until:
                break
            jobs.append(self._state.settled(job))
            if len(jobs) == command.limit:
                break
        for job in jobs:
            self._state.stage_end(Transition(TransitionKind.REMOVE, job, job.record, JobState.GONE))
        return self._cleaned(command, [job.record.id for job in jobs])

    def _clean_failed(self, command: Clean, queue: QueueState, until: float) -> CleanReply:
        state = self._state
        old = [job_id for job_id, entry in queue.letters.items() if entry.entered_at <= until][: command.limit]
        for job in [state.settled(state.jobs[job_id]) for job_id in old]:
            job.staged = purge = Transition(TransitionKind.PURGE, job, job.record, JobState.GONE)
            state.stage(purge)
        return self._cleaned(command, old)

    def _clean_completed(self, command: Clean, queue: QueueState, until: float) -> CleanReply:
        state = self._state
        answer = state.answered(command)
        if not isinstance(answer, OldestCompleted):
            if not queue.completed_count:
                return CleanReply()
            if not state.holds_file:
                raise ReadNeededError
            over = state.over_in_file()
            raise ReadNeededError(OldestCompleted(command, queue.name, until, command.limit, over))
        ids = answer.ids or []
        gone = set(state.over_in_file())
        for job_id in ids:
            if job_id in state.removing:
                raise PendingChangeError(job_id)
            renewed = state.jobs.get(job_id)
            if renewed is not None and renewed.state is JobState.STAGED:
                raise PendingChangeError(job_id)  # a durable push is about to end it
            if renewed is not None or job_id in gone:
                raise ReadNeededError  # it has gone or lives again since: others take its place
        if ids:
            kept = [job_id for job_id in ids if job_id in state.dependents]
            state.removing.update(ids)
            state.stage(CompletedRemoval(queue.name, ids, kept))
        return self._cleaned(command, ids)

    def _cleaned(self, command: Clean, ids: list[Any]) -> CleanReply:
        if ids:
            state = {} if command.state is None else {"state": command.state}
            self._state.announce("queue:cleaned", queue=command.queue, **state, count=len(ids))
        return CleanReply(count=len(ids), ids=ids)
