"""Finished jobs, as far as memory keeps them: a bounded window over what the file holds whole."""

from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

from msgspec import Raw

from bunqueue_trio.model.entries import CompletedJob
from bunqueue_trio.model.job import JobRecord

MAX_JOBS = 10_000  # the reference keeps as many results; a record and its result are about 2 KB
MAX_BYTES = 32 * 1024 * 1024  # large payloads must not turn the window into a leak
MAX_FINISHED_IDS = 50_000


class History:
    """The newest completed jobs, and the ids of those that were removed on completion.

    A job enters when its completion has committed, so leaving the window loses nothing. ``has_evicted`` says whether
    the file may know completed jobs that this window does not: only then is asking the file worth while.
    """

    def __init__(self, max_jobs: int = MAX_JOBS, max_bytes: int = MAX_BYTES) -> None:
        self._jobs: OrderedDict[str, CompletedJob] = OrderedDict()
        self._finished: OrderedDict[str, None] = OrderedDict()
        self._max_jobs = max_jobs
        self._max_bytes = max_bytes
        self._bytes = 0
        self.has_evicted = False

    def __len__(self) -> int:
        return len(self._jobs)

    @property
    def finished_count(self) -> int:
        """How many ids of removed jobs are remembered."""
        return len(self._finished)

    def add(self, completed: CompletedJob) -> None:
        """Remember a job whose completion has committed."""
        self._jobs[completed.record.id] = completed
        self._bytes += _size(completed)
        while len(self._jobs) > self._max_jobs or (self._bytes > self._max_bytes and len(self._jobs) > 1):
            _, oldest = self._jobs.popitem(last=False)
            self._bytes -= _size(oldest)
            self.has_evicted = True

    def get(self, job_id: str) -> CompletedJob | None:
        """The completed job of that id, if the window still holds it."""
        return self._jobs.get(job_id)

    def pop(self, job_id: str) -> CompletedJob | None:
        """Forget a completed job: its id starts a new life, or it was removed."""
        completed = self._jobs.pop(job_id, None)
        if completed is not None:
            self._bytes -= _size(completed)
        return completed

    def forget_queue(self, queue: str) -> list[str]:
        """Forget the completed jobs of a queue. Returns their ids. O(window)."""
        gone = [job_id for job_id, completed in self._jobs.items() if completed.record.queue == queue]
        for job_id in gone:
            self.pop(job_id)
        return gone

    def amend(self, record: JobRecord) -> None:
        """A completed job has another record now; nothing happens when the window no longer holds it."""
        known = self._jobs.get(record.id)
        if known is not None:
            self._jobs[record.id] = CompletedJob(record, known.result)
            self._bytes += len(record.data) - len(known.record.data)

    def remember_finished(self, job_id: str) -> None:
        """Remember the id of a job that completed and was removed: others may still come to depend on it."""
        self._finished[job_id] = None
        if len(self._finished) > MAX_FINISHED_IDS:
            self._finished.popitem(last=False)

    def forget_finished(self, job_id: str) -> None:
        """The id starts a new life, which has not finished."""
        self._finished.pop(job_id, None)

    def is_finished(self, job_id: str) -> bool:
        """True when the window knows that this id completed, its record kept or not."""
        return job_id in self._jobs or job_id in self._finished


def _size(completed: CompletedJob) -> int:
    data = len(completed.record.data)
    return data if completed.result is None else data + len(completed.result)


class KeptResults:
    """Results of jobs removed on completion, for as long as an unfinished job depends on them.

    Bounded in bytes: the oldest go first. In memory only: after a restart such a dependency counts as completed, but
    without a result.
    """

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._results: OrderedDict[str, Raw] = OrderedDict()
        self._max_bytes = max_bytes
        self._bytes = 0

    def __iter__(self) -> Iterator[str]:
        return iter(self._results)

    def __len__(self) -> int:
        return len(self._results)

    def keep(self, job_id: str, result: Raw) -> None:
        """Remember the result of a job whose completion has committed."""
        self.forget(job_id)
        self._results[job_id] = result
        self._bytes += len(result)
        while self._bytes > self._max_bytes and len(self._results) > 1:
            _, oldest = self._results.popitem(last=False)
            self._bytes -= len(oldest)

    def get(self, job_id: Any) -> Raw | None:
        """The result, if it is still kept."""
        return self._results.get(job_id) if type(job_id) is str else None

    def forget(self, job_id: str) -> None:
        """Nobody depends on it any more."""
        result = self._results.pop(job_id, None)
        if result is not None:
            self._bytes -= len(result)
