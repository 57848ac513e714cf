"""How long jobs have been ready without being handed out. Looks at a few of each queue, and never at all of them."""

from __future__ import annotations

from bunqueue_trio.engine.catalog import PRIORITIZED, WAITING
from bunqueue_trio.engine.heaps import first
from bunqueue_trio.engine.queue_state import QueueState
from bunqueue_trio.model.instant import Now
from bunqueue_trio.model.job import JobState

READY = (WAITING, PRIORITIZED)
LOOKS_PER_BLOCK = 8  # stepping over a block costs about as much as so many jobs
IS_READY = JobState.READY
READY_LOOKED_AT = 8


class Ages:
    """One round over queues.

    The oldest ready job is the next to be handed out, unless others of a lower priority, LIFO jobs or members of a busy
    group have waited longer; those are found among the eight ready jobs that were created first. So the age is exact
    where no more than seven of the jobs created before it have become ready after it, and too low elsewhere.

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
        oldest = float("inf")
        for block in queue.catalog.blocks:
            self._looks_left -= LOOKS_PER_BLOCK
            if self._looks_left <= 0:
                break
            if not (block is queue.catalog.tail or block.count(READY)):
                continue
            found_count = looked_at = 0
            for job in block.jobs:
                looked_at += 1
                if job.state is IS_READY and job.block is block:
                    if (run_at := job.record.run_at) < oldest:
                        oldest = run_at
                    found_count += 1
                    if found_count == READY_LOOKED_AT:
                        break
            self._looks_left -= looked_at
            if found_count:
                break
        return oldest
