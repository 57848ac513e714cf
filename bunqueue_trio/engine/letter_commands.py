"""Commands about the dead letters of a queue: bring them back, delete them.

Source: commands, "Dead letter queue"; newer clients, 12.
"""

from collections.abc import Iterable
from typing import Any

from msgspec import UNSET

from bunqueue_trio.engine import dead_letters
from bunqueue_trio.engine.letter_filter import selected
from bunqueue_trio.engine.state import State
from bunqueue_trio.model.commands import PurgeDlq, RemoveDlqJob, RetryDlq
from bunqueue_trio.model.instant import Now
from bunqueue_trio.model.job import Job, JobState
from bunqueue_trio.model.replies import CountReply, DataReply
from bunqueue_trio.model.transitions import Transition, TransitionKind


class LetterCommands:
    """Changes dead letters; each change takes effect when it has committed."""

    def __init__(self, state: State) -> None:
        self._state = state

    def retry_dlq(self, command: RetryDlq, now: Now) -> CountReply:
        """Bring dead letters of a queue back, all in one transaction: those that the filter means; without one that
        of the id, or the oldest ``count``.

        One whose unique key another job holds by now is skipped and not counted (CD-13).
        """
        job_id = None
        if command.selection is not None:
            letters = self._meant(command, now)
        else:
            job_id, count = command.job_id, None if command.count is UNSET else command.count
            letters = self._letters(command.queue, job_id, count)
        revived = sum(dead_letters.revive(self._state, job, now) for job in letters)
        if revived and job_id is not None:
            self._state.announce("dlq:retried", queue=command.queue, count=revived, jobId=job_id)
        elif revived:
            self._state.announce("dlq:retry-all", queue=command.queue, count=revived)
        return CountReply(count=revived)

    def purge_dlq(self, command: PurgeDlq, now: Now) -> CountReply:
        """Delete all dead letters of a queue for good."""
        return CountReply(count=self._purge(command.queue, self._letters(command.queue, None, None)))

    def remove_dlq_job(self, command: RemoveDlqJob, now: Now) -> DataReply:
        """Delete one dead letter of a queue for good, with the job, its result and its log. False for any other id."""
        found = [] if type(command.job_id) is not str else self._letters(command.queue, command.job_id, None)
        return DataReply(data={"removed": bool(self._purge(command.queue, found, jobId=command.job_id))})

    def _purge(self, queue_name: str, letters: list[Job], **told: Any) -> int:
        for job in letters:
            job.staged = purge = Transition(TransitionKind.PURGE, job, job.record, JobState.GONE)
            self._state.stage(purge)
        if letters:
            self._state.announce("dlq:purged", queue=queue_name, count=len(letters), **told)
        return len(letters)

    def _meant(self, command: RetryDlq, now: Now) -> list[Job]:
        queue = self._state.queues.get(command.queue)
        if queue is None:
            return []
        return self._settled(entry.job.id for entry in selected(queue, command.selection, now))

    def _letters(self, queue_name: str, job_id: str | None, count: int | None) -> list[Job]:
        queue = self._state.queues.get(queue_name)
        if queue is None:
            return []
        ids = list(queue.letters) if job_id is None else [job_id] if job_id in queue.letters else []
        return self._settled(ids[:count])

    def _settled(self, ids: Iterable[str]) -> list[Job]:
        state = self._state
        return [state.settled(state.jobs[job_id]) for job_id in ids]
