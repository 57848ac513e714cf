"""The live jobs of one queue in the order of lists, createdAt then id, so that a page is found without a scan.

Jobs stand in blocks that follow each other; a block counts its jobs by kind, so whatever a page leaves out is skipped a
block at a time. Moving from one kind to another is a step of two counters; a job that ends leaves its block at once,
though its entry in the block's list goes only when enough of them have gathered.

Invariant: each key of a block is at least the block's ``first`` and less than that of the next.

Source: commands, 2.3 and 3; design, "Read paths must not scan".
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator

from bunqueue_trio.model.job import Job, JobState

FULL = 1_024  # a million jobs make a thousand blocks: 50 to 200 µs to step over, 40 µs to look through one
STALE_MAX = 64

# Plain ints, since indexing a list with a member of an enumeration takes twice as long.
WAITING, DELAYED, PARKED = int(JobState.READY), int(JobState.DELAYED), int(JobState.PARKED)
ACTIVE, FAILED = int(JobState.ACTIVE), int(JobState.FAILED)
PRIORITIZED = 7
"""The kind of a ready job with a positive priority; of any other the kind is the number of its `JobState`."""

LIVE_KINDS = (WAITING, PRIORITIZED, DELAYED, PARKED, ACTIVE, FAILED)
"""Every kind of job that memory lists; the completed ones are in the file."""

Key = tuple[float, str]


def kind_of(job: Job) -> int:
    """As what *job* is listed. One that has left its place for the time of a commit is listed as what it was."""
    state = job.state
    if state is JobState.READY:
        return PRIORITIZED if job.record.priority > 0 else WAITING
    if state is JobState.STAGED and job.staged is not None:
        return job.staged.held_kind
    return state


def key_of(job: Job) -> Key:
    """Its place in every list."""
    return job.record.created_at, job.record.id


class Block:
    """Some neighbours.

    ``jobs`` may hold entries of jobs that have left, ``stale_count`` of them. ``counts`` is indexed by kind; that of
    WAITING means nothing, for whatever is of no other kind waits: so pushing and pulling plain jobs costs less.
    """

    __slots__ = ("counts", "first", "jobs", "sorted_count", "stale_count")

    def __init__(self, first: Key) -> None:
        self.first = first
        self.jobs: list[Job] = []
        self.counts = [0] * 8
        self.stale_count = 0
        self.sorted_count = 0

    def count(self, kinds: tuple[int, ...]) -> int:
        """How many of its jobs are of one of these *kinds*."""
        counts = self.counts
        if kinds == (WAITING,):
            return len(self.jobs) - self.stale_count - sum(counts) + counts[WAITING]
        if WAITING not in kinds:
            return sum([counts[kind] for kind in kinds])
        left_out = sum([counts[kind] for kind in LIVE_KINDS if kind not in kinds])
        return len(self.jobs) - self.stale_count - left_out

    def in_order(self) -> list[Job]:
        """Its jobs in order, nothing stale among them."""
        if self.stale_count:
            self.compact()
        if self.sorted_count != len(self.jobs):
            self.jobs.sort(key=key_of)
            self.sorted_count = len(self.jobs)
        return self.jobs

    def compact(self) -> None:
        """Let go of the entries of jobs that have left."""
        was_sorted = self.sorted_count == len(self.jobs)
        self.jobs = [job for job in self.jobs if job.block is self]
        self.sorted_count = len(self.jobs) if was_sorted else 0
        self.stale_count = 0

    def recount(self) -> None:
        """Count its jobs anew, by what they are."""
        self.counts = [0] * 8
        for job in self.jobs:
            self.counts[kind_of(job)] += 1


class Catalog:
    """All blocks of one queue. Kinds are counted by `QueueState`, which knows when they change.

    ``aside`` is for a moment the block of plain jobs that turn out to belong further in front: the clock went back.
    """

    __slots__ = ("aside", "blocks", "tail")

    def __init__(self) -> None:
        self.aside = Block((0.0, ""))
        self.tail = Block((0.0, ""))
        self.blocks = [self.tail]

    @property
    def entry_count(self) -> int:
        """Entries of all blocks, those of jobs that have left included. A step per block."""
        return sum([len(block.jobs) for block in self.blocks])

    def room_at_end(self, created_at: float, job_id: str) -> Block | None:
        """The block for jobs from this key on, as pushes bring them; None when they belong further in front.

        The caller appends them.
        """
        tail = self.tail
        key = (created_at, job_id)
        if key < tail.first:
            if len(self.blocks) > 1:
                return None
            tail.first = key
        if len(tail.jobs) >= FULL:
            tail = self._grow(key)
            if key < tail.first:
                return None
        return tail

    def sort_in(self) -> None:
        """Give the waiting jobs that were set ``aside`` their places."""
        jobs, self.aside = self.aside.jobs, Block((0.0, ""))
        for job in jobs:
            self.add(job)

    def add(self, job: Job) -> None:
        """List *job* from now on, as waiting unless the caller counts another kind. O(log n)."""
        record = job.record
        block = self.room_at_end(record.created_at, record.id) or self._block_of(key_of(job))
        if len(block.jobs) >= 2 * FULL:
            self._split(block)
            block = self._block_of(key_of(job))
        job.block = block
        block.jobs.append(job)

    def remove(self, job: Job) -> None:
        """*job* has ended. It must be counted in no kind but the nameless one of WAITING."""
        block = job.block
        if block is None:
            return
        job.block = None
        block.stale_count += 1
        stale, total = block.stale_count, len(block.jobs)
        if stale == total:
            block.jobs.clear()
            block.sorted_count = block.stale_count = 0
            if block is not self.tail:
                del self.blocks[self._index(block.first)]
        elif 2 * stale > total + STALE_MAX:
            block.compact()

    def page(self, kinds: Iterable[int], offset: int, limit: int, *, newest_first: bool = False) -> list[Job]:
        """The jobs of these *kinds* from *offset* on, at most *limit*; *newest_first* counts from the other end.

        Cost: a step of 50 to 200 ns per 1,024 jobs of the queue, and a look at each job of the blocks it takes from.
        """
        found: list[Job] = []
        for jobs in self._groups(frozenset(kinds), offset, newest_first=newest_first):
            found += jobs[: limit - len(found)]
            if len(found) >= limit:
                break
        return found

    def each(self, kinds: Iterable[int]) -> Iterator[Job]:
        """The jobs of these *kinds* in order, for a caller that changes none of them before it has seen enough."""
        for jobs in self._groups(frozenset(kinds), 0):
            yield from jobs

    def _groups(self, wanted: frozenset[int], offset: int, *, newest_first: bool = False) -> Iterator[list[Job]]:
        """The jobs of these kinds in order, or in the reverse of it, a block at a time, without the first *offset*."""
        kinds = tuple(wanted)
        blocks = self.blocks
        if kinds and WAITING not in wanted:
            [kind, *others] = kinds
            blocks = [block for block in blocks if block.counts[kind] or (others and block.count(kinds))]
        for block in reversed(blocks) if newest_first else blocks:
            count = block.count(kinds)
            if count <= offset:
                offset -= count
                continue
            jobs = block.in_order()
            if count != len(jobs):
                jobs = [job for job in jobs if kind_of(job) in wanted]
            if newest_first:
                jobs = jobs[::-1]
            yield jobs[offset:] if offset else jobs
            offset = 0

    def _block_of(self, key: Key) -> Block:
        block = self.blocks[self._index(key)]
        if key < block.first:  # in front of them all
            block.first = key
        return block

    def _index(self, key: Key) -> int:
        return max(0, bisect_right(self.blocks, key, key=_first) - 1)

    def _grow(self, key: Key) -> Block:
        """The last block is full: begin another with *key*, or halve it if that belongs in front of its end."""
        tail = self.tail
        if tail.stale_count:
            tail.compact()
            if len(tail.jobs) < FULL // 2:
                return tail
        created_at, job_id = key
        latest = max([job.record.created_at for job in tail.jobs])
        if created_at == latest:
            is_last = job_id > max([job.record.id for job in tail.jobs if job.record.created_at == latest])
        else:
            is_last = created_at > latest
        if not is_last:
            self._split(tail)
        else:
            self.tail = Block(key)
            self.blocks.append(self.tail)
        return self.tail

    def _split(self, block: Block) -> None:
        jobs = block.in_order()
        half = len(jobs) // 2
        upper = Block(key_of(jobs[half]))
        upper.jobs, block.jobs = jobs[half:], jobs[:half]
        for job in upper.jobs:
            job.block = upper
        for part in (block, upper):
            part.sorted_count = len(part.jobs)
            part.recount()
        self.blocks.insert(self._index(block.first) + 1, upper)
        if block is self.tail:
            self.tail = upper


def _first(block: Block) -> Key:
    return block.first
