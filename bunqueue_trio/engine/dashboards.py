"""DashboardQueues and DashboardQueue: what people look at, at a cost that does not grow with the jobs.

Source: commands, "Monitoring and dashboards"; H1.
"""

from collections.abc import Iterable
from itertools import islice
from typing import Any, Final

from msgspec import Raw

from bunqueue_trio.engine.catalog import ACTIVE, DELAYED, PRIORITIZED, WAITING
from bunqueue_trio.engine.maturing import mature_due
from bunqueue_trio.engine.queries import Queries
from bunqueue_trio.engine.queue_state import QueueState
from bunqueue_trio.engine.state import State
from bunqueue_trio.model.commands import DashboardQueue, DashboardQueues, GetJobCounts
from bunqueue_trio.model.glances import JobGlance, LetterGlance, QueueGlance
from bunqueue_trio.model.instant import Now
from bunqueue_trio.model.job import Job, JobRecord
from bunqueue_trio.model.naming import NO_DATA
from bunqueue_trio.model.replies import DataReply

LETTERS_SHOWN = 10
NULL: Final = Raw(b"\xc0")


class Dashboards:
    """Reads for dashboards."""

    def __init__(self, state: State, queries: Queries) -> None:
        self._state = state
        self._queries = queries

    def queues(self, command: DashboardQueues, now: Now) -> DataReply:
        """One line per queue of ListQueues, in the order of their first use. Cost: about 0.8 µs per queue."""
        mature_due(self._state, now)
        lines = [_glance(queue) for queue in self._state.queues.values() if queue.is_known]
        return DataReply(data={"queues": lines, "timestamp": now.wall_ms})

    def queue(self, command: DashboardQueue, now: Now) -> DataReply:
        """Counts of one queue, its oldest dead letters and, if asked for, the first jobs of four states.

        The jobs come in the order of `Lists.get_jobs`: by createdAt, then id.
        """
        queue = self._state.queues.get(command.queue) or QueueState(command.queue)
        counts = self._queries.get_job_counts(GetJobCounts(queue=command.queue), now).counts
        letters = islice(queue.letters.values(), LETTERS_SHOWN)
        data: dict[str, Any] = {
            "name": command.queue,
            "counts": {**counts, "totalCompleted": queue.total_completed, "totalFailed": queue.total_failed},
            "paused": queue.settings.paused,
            "priorityCounts": queue.count_per_priority,
            "dlqPreview": [_letter_glance(entry.job) for entry in letters],
            "timestamp": now.wall_ms,
        }
        if command.include_jobs:
            data["jobs"] = _jobs(queue, command.jobs_limit)
        return DataReply(data=data)


def _glance(queue: QueueState) -> QueueGlance:
    return QueueGlance(
        queue.name,
        queue.waiting_count,
        queue.prioritized_count,
        queue.delayed_count,
        queue.active_count,
        len(queue.letters),
        queue.settings.paused,
    )


def _letter_glance(record: JobRecord) -> LetterGlance:
    data = NULL if record.data == NO_DATA else record.data
    return LetterGlance(record.id, data, record.attempts, record.created_at)


def _jobs(queue: QueueState, limit: int) -> dict[str, list[JobGlance]]:
    """A paused queue shows its ready jobs as paused, prioritized ones included; any other only those that wait."""

    def first(*kinds: int) -> list[JobGlance]:
        return _shown(queue.catalog.page(kinds, 0, limit))

    is_paused = queue.settings.paused
    return {
        "waiting": [] if is_paused else first(WAITING),
        "active": first(ACTIVE),
        "delayed": first(DELAYED),
        "paused": first(WAITING, PRIORITIZED) if is_paused else [],
    }


def _shown(jobs: Iterable[Job]) -> list[JobGlance]:
    glances = []
    for job in jobs:
        r = job.record
        glances.append(JobGlance(r.id, r.priority, r.created_at, r.run_at, r.attempts, r.progress))
    return glances
