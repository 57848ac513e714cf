"""How long jobs have been ready without being handed out. Looks at a few of each queue, and never at all of them."""

from __future__ import annotations

from bunqueue_trio.engine.catalog import PRIORITIZED, WAITING, kind_of
from bunqueue_trio.engine.heaps import first
from bunqueue_trio.engine.queue_state import QueueState
from bunqueue_trio.model.instant import Now

READY = (WAITING, PRIORITIZED)
LOOKS_PER_BLOCK = 8  # stepping over a block costs about as much as so many jobs
READY_LOOKED_AT = 16


class Ages:
    """One round over queues.

    The oldest ready job is the next to be handed out, unless others of a lower priority, LIFO jobs or members of a busy
    group have waited longer; those are found among the sixteen ready jobs that were created first. So the age is exact
    where no more than fifteen of the jobs created before it have become ready after it, and too low elsewhere.

    Args:
        looks_max: how many entries may be looked at in all queues together, some 0.1 µs each. Of queues that come when
            they are used up only the next job to be handed out counts.
    """

    def __init__(self, now: Now, looks_max: int) -> None:
        self._now = now
        self._looks_left = looks_max

    def oldest_ready_ms(self, queue: QueueState) -> float:
        """How long ago the run time of its oldest ready job was; 0 where nothing is ready."""
        head = first(queue.ready)
        if head is None and not (queue.waiting_count or queue.prioritized_count):
            return 0
        since = self._first_created(queue)
        if head is not None:
            since = min(since, head.record.run_at)
        return max(0.0, self._now.wall_ms - since) if since != float("inf") else 0

    def _first_created(self, queue: QueueState) -> float:
        """The earliest run time among the first ready jobs of the list; infinity when it finds none in time."""
        for block in queue.catalog.blocks:
            self._looks_left -= LOOKS_PER_BLOCK
            if self._looks_left <= 0:
                break
            if not block.count(READY):
                continue
            found: list[float] = []
            for job in block.jobs:
                self._looks_left -= 1
                if job.block is block and kind_of(job) in READY and job.record.run_at <= self._now.wall_ms:
                    found.append(job.record.run_at)
                    if len(found) == READY_LOOKED_AT:
                        break
            if found:
                return min(found)
        return float("inf")
