"""Commands about the dead letters of a queue: bring them back, delete them.

Source: commands, "Dead letter queue".
"""

from msgspec import UNSET

from bunqueue_trio.engine import dead_letters
from bunqueue_trio.engine.state import State
from bunqueue_trio.model.commands import PurgeDlq, RetryDlq
from bunqueue_trio.model.instant import Now
from bunqueue_trio.model.job import Job, JobState
from bunqueue_trio.model.replies import CountReply
from bunqueue_trio.model.transitions import Transition, TransitionKind


class LetterCommands:
    """Changes dead letters; each change takes effect when it has committed."""

    def __init__(self, state: State) -> None:
        self._state = state

    def retry_dlq(self, command: RetryDlq, now: Now) -> CountReply:
        """Bring dead letters of a queue back, one by id or the oldest ``count``, all in one transaction.

        One whose unique key another job holds by now is skipped and not counted (CD-13).
        """
        count = None if command.count is UNSET else command.count
        letters = self._letters(command.queue, command.job_id, count)
        revived = sum(dead_letters.revive(self._state, job, now) for job in letters)
        if revived and command.job_id is not None:
            self._state.announce("dlq:retried", queue=command.queue, count=revived, jobId=command.job_id)
        elif revived:
            self._state.announce("dlq:retry-all", queue=command.queue, count=revived)
        return CountReply(count=revived)

    def purge_dlq(self, command: PurgeDlq, now: Now) -> CountReply:
        """Delete all dead letters of a queue for good."""
        letters = self._letters(command.queue, None, None)
        for job in letters:
            job.staged = purge = Transition(TransitionKind.PURGE, job, job.record, JobState.GONE)
            self._state.stage(purge)
        if letters:
            self._state.announce("dlq:purged", queue=command.queue, count=len(letters))
        return CountReply(count=len(letters))

    def _letters(self, queue_name: str, job_id: str | None, count: int | None) -> list[Job]:
        state = self._state
        queue = state.queues.get(queue_name)
        if queue is None:
            return []
        ids = list(queue.letters) if job_id is None else [job_id] if job_id in queue.letters else []
        return [state.settled(state.jobs[found]) for found in ids[:count]]
