"""Commands about unique keys: who holds one, and to take it from its holder.

A key that is taken away stays in the record of its job, which clients go on showing; ``Job.key_expires_at`` says, in
memory and in the file, that its time is over. A new life of the job, after the dead letters or its completion, holds
the key again.

Source: newer clients, 13 "Deduplication keys".
"""

from typing import Any

from bunqueue_trio.engine.foresight import key_holder
from bunqueue_trio.engine.state import State
from bunqueue_trio.model.changes import Dirty
from bunqueue_trio.model.commands import GetDeduplicationJobId, RemoveDeduplicationKey, RemoveJobDeduplicationKey
from bunqueue_trio.model.instant import Now
from bunqueue_trio.model.job import Job, JobState
from bunqueue_trio.model.replies import DataReply
from bunqueue_trio.model.transitions import Transition, TransitionKind


class Keys:
    """Shows and frees unique keys."""

    def __init__(self, state: State) -> None:
        self._state = state

    def get_job_id(self, command: GetDeduplicationJobId, now: Now) -> DataReply:
        """Who holds a key of a queue, ``{"jobId": id or None}``.

        Raises:
            PendingChangeError: a change of the holder waits for its commit.
        """
        holder = self._holder(command.queue, command.deduplication_id, now)
        return DataReply(data={"jobId": None if holder is None else holder.record.id})

    def remove(self, command: RemoveDeduplicationKey, now: Now) -> DataReply:
        """Take a key of a queue from its holder, ``{"count": 1 or 0}``; the job stays, and still shows its key.

        Raises:
            PendingChangeError: as `get_job_id`.
        """
        holder = self._holder(command.queue, command.deduplication_id, now)
        return DataReply(data={"count": self._free(holder)})

    def remove_of_job(self, command: RemoveJobDeduplicationKey, now: Now) -> DataReply:
        """Take its key from a job, ``{"removed": bool}``: False unless it holds one now.

        Raises:
            PendingChangeError: as `get_job_id`.
        """
        job = self._state.find(command.id)
        if job is None or job.record.unique_key is None:
            return DataReply(data={"removed": False})
        holder = self._holder(job.record.queue, job.record.unique_key, now)
        return DataReply(data={"removed": bool(self._free(holder if holder is job else None))})

    def _holder(self, queue_name: str, key: Any, now: Now) -> Job | None:
        queue = self._state.queues.get(queue_name)
        holder = None if queue is None or type(key) is not str else key_holder(queue, key, now)
        return None if holder is None else self._state.settled(holder)

    def _free(self, holder: Job | None) -> int:
        if holder is None:
            return 0
        kind = TransitionKind.UPDATE if holder.state is JobState.ACTIVE else TransitionKind.MOVE
        change = Transition(kind, holder, holder.record, JobState.READY, dirty=Dirty.EXTRA, frees_key=True)
        self._state.stage_end(change)
        return 1
