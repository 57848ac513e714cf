"""RetryCompleted: completed jobs run again.

Completed jobs live in the file, so most of them have to be brought along: one by the facts of a command, all of a queue
in pages that the caller reads (`PagesNeededError`). Between reading and committing another command may have removed
such a job; the transaction finds out, leaves it alone and reports it.

Source: commands, "RetryCompleted"; CD-13, CD-14.
"""

from collections.abc import Iterable

from msgspec import UNSET

from bunqueue_trio.engine import dead_letters
from bunqueue_trio.engine.state import PendingChangeError, State
from bunqueue_trio.errors import BunqueueError
from bunqueue_trio.model.changes import Dirty
from bunqueue_trio.model.commands import RetryCompleted
from bunqueue_trio.model.entries import CompletedJob
from bunqueue_trio.model.instant import Now
from bunqueue_trio.model.job import (
    Job,
    JobRecord,
    JobState,
    Past,
    TimelineEntry,
    extended_timeline,
    queued_state,
    replace,
)
from bunqueue_trio.model.replies import CountReply
from bunqueue_trio.model.transitions import Transition, TransitionKind


class PagesNeededError(BunqueueError):
    """The completed jobs of *queue* are meant. Read them page by page and hand each page to `Reruns.rerun`.

    Attributes:
        count: how many at most; None for all.
        completed_by: only jobs that completed at that moment or before, epoch ms; None for all.
    """

    def __init__(self, queue: str, count: int | None, completed_by: float | None) -> None:
        super().__init__(f"the completed jobs of {queue} must be read from the file")
        self.queue = queue
        self.count = count
        self.completed_by = completed_by


class Reruns:
    """Brings completed jobs back."""

    def __init__(self, state: State) -> None:
        self._state = state

    def retry_completed(self, command: RetryCompleted, now: Now) -> CountReply:
        """Run a completed job again: attempts 0, progress 0; the old result stays until the next completion.

        Counts 0 for one that is not completed, of another queue, completed too late, or whose unique key a live job
        holds. With an id ``count`` says nothing, as in RetryDlq.

        Raises:
            PagesNeededError: no id was given. Nothing has changed.
            FactsNeededError: only the file can tell.
        """
        if command.id is None:
            count = None if command.count is UNSET else command.count
            if count == 0:
                return CountReply()
            raise PagesNeededError(command.queue, count, command.timestamp)
        job = self._state.find(command.id)
        if job is not None:
            self._state.settled(job)
            return CountReply()
        self._state.not_changing(command.id)
        completed = self._state.completed(command.id)
        if completed is None or completed.record.queue != command.queue:
            return CountReply()
        if not has_completed_by(completed, command.timestamp):
            return CountReply()
        return CountReply(count=self.rerun(command.queue, [completed], now))

    def rerun(self, queue_name: str, page: Iterable[CompletedJob], now: Now) -> int:
        """Stage a new life for each job of *page* that may have one. Returns for how many.

        Raises:
            PendingChangeError: the queue is being obliterated.

        Cost: about 10 µs per job.
        """
        queue = self._state.queue(queue_name)
        if queue.removal is not None:
            raise PendingChangeError(queue_name)
        going = self._going()
        return sum(
            completed.record.queue == queue_name and completed.record.id not in going and self._rerun(completed, now)
            for completed in page
        )

    def _rerun(self, completed: CompletedJob, now: Now) -> bool:
        state, old = self._state, completed.record
        if old.id in state.jobs or old.id in state.removing or old.id in state.amending:
            return False
        job = Job(record=_renewed(old, now), state=JobState.STAGED, seq=state.next_seq)
        if not dead_letters.take_key(state, job, now):
            return False
        state.next_seq += 1
        if completed.result is not None:
            job.past = Past(has_result=True)
        state.jobs[old.id] = job
        for dependency in old.depends_on:
            state.dependents.setdefault(dependency, set()).add(old.id)
        state.note_met(old.id)
        job.staged = rerun = Transition(TransitionKind.RERUN, job, job.record, JobState.READY, dirty=Dirty.FULL)
        state.stage(rerun)
        return True

    def _going(self) -> set[str]:
        """Completed jobs that a flush deletes, the one under way or the next."""
        state = self._state
        flushes = [state.changes] if state.in_flight is None else [state.changes, state.in_flight]
        return {job_id for changes in flushes for job_id in (*changes.expired, *changes.reborn)}

    # settling

    def apply(self, change: Transition, missing: frozenset[str], now: Now) -> None:
        """The row is a waiting one again; or, when it is among the *missing*, there was none any more."""
        state, job = self._state, change.job
        if job.record.id in missing:
            state.unreserve(change)
            return
        queue = state.queues[job.record.queue]
        state.history.pop(job.record.id)
        state.history.forget_finished(job.record.id)
        queue.completed_count -= 1
        state.enqueue(queue, job, now)


def has_completed_by(job: CompletedJob, moment: float | None) -> bool:
    """Whether it had completed at that moment, epoch ms; None: at any time."""
    return moment is None or (job.record.completed_at or 0) <= moment


def _renewed(old: JobRecord, now: Now) -> JobRecord:
    return replace(
        old,
        attempts=0,
        stall_count=0,
        run_at=now.wall_ms,
        last_heartbeat=now.wall_ms,
        started_at=None,
        completed_at=None,
        progress=0,
        timeline=extended_timeline(old, TimelineEntry(queued_state(old, now.wall_ms), now.wall_ms)),
    )
