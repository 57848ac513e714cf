"""Commands that change nothing. Counts are maintained elsewhere; nothing here scans."""

from copy import copy
from typing import Any

from msgspec import UNSET, Raw

from bunqueue_trio.engine import job_forms, retries
from bunqueue_trio.engine.letter_filter import has_expired, is_retry_due
from bunqueue_trio.engine.queue_state import QueueState
from bunqueue_trio.engine.state import FactsNeededError, State
from bunqueue_trio.errors import NotFoundError, StateError
from bunqueue_trio.model.commands import (
    Count,
    GetCountsPerPriority,
    GetDlqConfig,
    GetJob,
    GetJobByCustomId,
    GetJobCounts,
    GetProgress,
    GetResult,
    GetStallConfig,
    GetState,
    IsPaused,
    ListQueues,
)
from bunqueue_trio.model.entries import DlqEntry, DlqPolicy
from bunqueue_trio.model.instant import Now
from bunqueue_trio.model.job import Job, JobRecord, JobState, shown_state
from bunqueue_trio.model.replies import (
    CountReply,
    CountsReply,
    DlqConfigReply,
    JobReply,
    PausedReply,
    PriorityCountsReply,
    ProgressReply,
    QueuesReply,
    ResultReply,
    StallConfigReply,
    StateReply,
)
from bunqueue_trio.model.transitions import TransitionKind

REASONS = (
    "explicit_fail",
    "max_attempts_exceeded",
    "timeout",
    "stalled",
    "ttl_expired",
    "worker_lost",
    "unknown",
)


class Queries:
    """Reads."""

    def __init__(self, state: State) -> None:
        self._state = state

    def get_job(self, command: GetJob, now: Now) -> JobReply:
        """The job and its state, wherever it is.

        Raises:
            NotFoundError: no such job.
            FactsNeededError: only the file can tell.
        """
        job = self.visible(command.id)
        if job is not None:
            record = copy(job.record)
            record.state = shown_state(job, now.wall_ms)
            return JobReply(job=self._read(record, job, command))
        completed = self._state.completed(command.id)
        if completed is None:
            raise NotFoundError("Job not found")
        record = copy(completed.record)
        record.state = "completed"
        return JobReply(job=job_forms.read(record, completed.result, is_newer=command.is_newer))

    def get_state(self, command: GetState, now: Now) -> StateReply:
        """The state; ``unknown`` for an id that names no job, echoed as sent."""
        job = self.visible(command.id)
        if job is not None:
            return StateReply(id=command.id, state=shown_state(job, now.wall_ms))
        completed = self._state.completed(command.id)
        return StateReply(id=command.id, state="unknown" if completed is None else "completed")

    def visible(self, job_id: Any) -> Job | None:
        """The job as clients may see it: what waits for its commit has not happened yet."""
        job = self._state.find(job_id)
        if job is None or job.state is not JobState.STAGED:
            return job
        staged = job.staged
        assert staged is not None
        return staged.former if staged.kind in (TransitionKind.PUBLISH, TransitionKind.RERUN) else job

    def get_result(self, command: GetResult, now: Now) -> ResultReply:
        """The result; none, whatever the reason, is absent. A job that runs again still has its old one.

        Raises:
            FactsNeededError: only the file can tell.
        """
        kept = self._state.kept_results.get(command.id)
        if kept is not None:
            return ResultReply(id=command.id, result=kept)
        job = self.visible(command.id)
        if job is not None:
            result = self._old_result(job)
        else:
            completed = self._state.completed(command.id)
            result = None if completed is None else completed.result
        return ResultReply(id=command.id, result=UNSET if result is None else result)

    def _old_result(self, job: Job) -> Raw | None:
        if job.past is None or not job.past.has_result:
            return None
        job_id = job.record.id
        if job_id not in self._state.facts:
            raise FactsNeededError([job_id])
        return self._state.old_results.get(job_id)

    def get_job_by_custom_id(self, command: GetJobByCustomId, now: Now) -> JobReply:
        """A queued, parked, active or discarded job by its custom id, without its state.

        Raises:
            NotFoundError: none has it. A job that has completed or failed for good has it no longer.
        """
        job = self._state.find(command.custom_id)
        if job is None or job.record.custom_id is None or job.state is JobState.STAGED:
            raise NotFoundError("Job not found")
        if job.state is JobState.FAILED and not self._is_discarded(job):
            raise NotFoundError("Job not found")
        return JobReply(job=self._read(job.record, job, command))

    def _read(self, record: JobRecord, job: Job, command: GetJob | GetJobByCustomId) -> JobRecord:
        """The record of a live job as it is shown: one that runs again still has its old result."""
        is_newer = command.is_newer
        result = self._old_result(job) if is_newer or record.own_name is not UNSET else None
        return job_forms.read(record, result, is_newer=is_newer)

    def _is_discarded(self, letter: Job) -> bool:
        """Whether a dead letter has come by Discard, the one way that names neither a reason nor an error."""
        entry = self._state.queues[letter.record.queue].letters.get(letter.record.id)
        return entry is not None and entry.reason == retries.UNKNOWN and entry.error is None

    def get_progress(self, command: GetProgress, now: Now) -> ProgressReply:
        """Progress of an active job.

        Raises:
            NotFoundError, StateError: unknown, or not active.
        """
        record = self.active(command.id, now).record
        return ProgressReply(progress=record.progress, message=record.progress_message)

    def active(self, job_id: str, now: Now) -> Job:
        """The active job of that id.

        Raises:
            NotFoundError, StateError: unknown, or not active.
        """
        job = self._state.find(job_id)
        if job is not None and job.state is JobState.ACTIVE:
            return job
        if job is not None and job.state is not JobState.STAGED:
            raise StateError(f"Job is not active (current state: {shown_state(job, now.wall_ms)})")
        if self._state.completed(job_id) is not None:
            raise StateError("Job is not active (current state: completed)")
        raise NotFoundError("Job not found")

    def count(self, command: Count, now: Now) -> CountReply:
        """How many jobs are queued."""
        queue = self._state.queues.get(command.queue)
        return CountReply(count=0 if queue is None else queue.queued_count)

    def get_job_counts(self, command: GetJobCounts, now: Now) -> CountsReply:
        """How many jobs are in each state; on a paused queue the ready ones count as paused."""
        queue = self._state.queues.get(command.queue) or QueueState(command.queue)
        if moved := queue.mature(now.wall_ms):
            self._state.wake(queue, moved)  # the tick will find them ready already
        waiting, prioritized, paused = queue.waiting_count, queue.prioritized_count, 0
        if queue.settings.paused:
            waiting, prioritized, paused = 0, 0, waiting + prioritized
        return CountsReply(
            counts={
                "waiting": waiting,
                "prioritized": prioritized,
                "delayed": queue.delayed_count,
                "active": queue.active_count,
                "completed": queue.completed_count,
                "failed": len(queue.letters),
                "waiting-children": queue.parked_count,
                "paused": paused,
            }
        )

    def get_counts_per_priority(self, command: GetCountsPerPriority, now: Now) -> PriorityCountsReply:
        """How many jobs are queued by priority, from the lowest to the highest."""
        queue = self._state.queues.get(command.queue)
        if queue is None:
            return PriorityCountsReply(queue=command.queue)
        return PriorityCountsReply(queue=command.queue, counts=queue.count_per_priority)

    def is_paused(self, command: IsPaused, now: Now) -> PausedReply:
        """Whether the queue is paused; one nobody has used is not."""
        queue = self._state.queues.get(command.queue)
        return PausedReply(paused=queue is not None and queue.settings.paused)

    def list_queues(self, command: ListQueues, now: Now) -> QueuesReply:
        """Known queues, in the order of their first use."""
        return QueuesReply(queues=[queue.name for queue in self._state.queues.values() if queue.is_known])

    def dead_letters(self, queue_name: str) -> list[DlqEntry]:
        """The dead letters of a queue, oldest first."""
        queue = self._state.queues.get(queue_name)
        return [] if queue is None else list(queue.letters.values())

    def dead_letter_statistics(self, queue_name: str, now: Now) -> dict[str, Any]:
        """How many there are, by reason; oldest and newest as epoch ms or None. O(dead letters, 10,000 at the most)."""
        entries, queue = self.dead_letters(queue_name), self._state.queues.get(queue_name)
        policy = DlqPolicy() if queue is None else queue.settings.dlq
        by_reason = dict.fromkeys(REASONS, 0)
        for entry in entries:
            by_reason[entry.reason] = by_reason.get(entry.reason, 0) + 1
        times = [entry.entered_at for entry in entries]
        return {
            "total": len(entries),
            "byReason": by_reason,
            "byQueue": {queue_name: len(entries)},
            "pendingRetry": sum(is_retry_due(entry, policy, now.wall_ms) for entry in entries),
            "expired": sum(has_expired(entry, now.wall_ms) for entry in entries),
            "oldestEntry": min(times, default=None),
            "newestEntry": max(times, default=None),
        }

    def get_dlq_config(self, command: GetDlqConfig, now: Now) -> DlqConfigReply:
        """The queue's policy about dead letters."""
        queue = self._state.queues.get(command.queue)
        return DlqConfigReply() if queue is None else DlqConfigReply(config=queue.settings.dlq)

    def get_stall_config(self, command: GetStallConfig, now: Now) -> StallConfigReply:
        """The queue's stall policy."""
        queue = self._state.queues.get(command.queue)
        return StallConfigReply() if queue is None else StallConfigReply(config=queue.settings.stall)
