"""Orders of jobs: who is handed out first, and who becomes due first.

A heap entry is a tuple that ends in its job, and ``job.place`` points back at the one entry that counts. Leaving a
queue is therefore one assignment; the entry stays behind as a stale one and is dropped when it surfaces, or by
`compacted` when stale entries outnumber the others.
"""

from heapq import heapify, heappop, heappush
from typing import Any

from bunqueue_trio.model.job import Job

Entry = tuple[Any, ...]
COMPACT_AT = 1_000  # below this many entries, stale ones cost nothing worth a rebuild


def ready_entry(job: Job) -> Entry:
    """Higher priority first; then first in, first out by run time and push order; LIFO jobs after those, newest first.

    Source: protocol, "Selection and order"; P-15 (ties by push order); K14.
    """
    record = job.record
    if record.lifo:
        return (-record.priority, 1, -job.seq, job.seq, job)
    return (-record.priority, 0, record.run_at, job.seq, job)


def push_ready(heap: list[Entry], job: Job) -> None:
    """Put *job* among the ready ones."""
    job.place = entry = ready_entry(job)
    heappush(heap, entry)


def push_delayed(heap: list[Entry], job: Job) -> None:
    """Put *job* among those that wait for their run time."""
    job.place = entry = (job.record.run_at, job.seq, job)
    heappush(heap, entry)


def first(heap: list[Entry]) -> Job | None:
    """The job at the top, or None. Drops stale entries on the way."""
    while heap:
        entry = heap[0]
        job: Job = entry[-1]
        if job.place is entry:
            return job
        heappop(heap)
    return None


def compact(heap: list[Entry], live_count: int) -> None:
    """Rebuild *heap* in place when more than half of it is stale."""
    if len(heap) > COMPACT_AT and len(heap) > 2 * live_count:
        heap[:] = [entry for entry in heap if entry[-1].place is entry]
        heapify(heap)
