"""WaitJob: what can be answered at once. Who has to wait is parked by the caller and told by `State.note_end`.

Source: commands, "WaitJob"; CD-9.
"""

from bunqueue_trio.engine.queries import Queries
from bunqueue_trio.engine.state import State
from bunqueue_trio.errors import NotFoundError
from bunqueue_trio.model.commands import WaitJob
from bunqueue_trio.model.flow_replies import WaitReply
from bunqueue_trio.model.instant import Now
from bunqueue_trio.model.job import JobState


class Awaiting:
    """Answers for those who wait for the end of a job."""

    def __init__(self, state: State, queries: Queries) -> None:
        self._state = state
        self._queries = queries

    def wait_job(self, command: WaitJob, now: Now) -> WaitReply | None:
        """The end of a job, if it has come; None while the job may still complete.

        Raises:
            NotFoundError: no such job.
            FactsNeededError: only the file can tell.
        """
        job = self._queries.visible(command.id)
        if job is not None:
            return WaitReply() if job.state is JobState.FAILED else None
        completed = self._state.completed(command.id)
        if completed is None:
            raise NotFoundError("Job not found")
        return WaitReply(completed=True, result=completed.result)
