"""Lines that clients add to the log of a job: kept in memory alone, and bounded in every direction.

Source: commands, "Logs"; K38, M3.
"""

from collections import OrderedDict, deque
from collections.abc import Sequence

from bunqueue_trio.model.entries import LogLine

MAX_JOBS = 10_000  # as the reference
MAX_LINES = 100
MAX_BYTES = 64 * 1024 * 1024  # of all lines together; a hundred lines of the greatest size are less than half of it
LINE_OVERHEAD_BYTES = 200  # what a line costs beside its text, about


class JobLogs:
    """The newest lines of the jobs whose logs were used last.

    When there are too many jobs, or their lines take too much memory, the logs that nobody has written or read for
    longest go whole; the one just written stays.
    """

    def __init__(self, max_jobs: int = MAX_JOBS, max_lines: int = MAX_LINES, max_bytes: int = MAX_BYTES) -> None:
        self._lines: OrderedDict[str, deque[LogLine]] = OrderedDict()
        self._max_jobs = max_jobs
        self._max_lines = max_lines
        self._max_bytes = max_bytes
        self.total_bytes = 0

    def __len__(self) -> int:
        """How many jobs have a log."""
        return len(self._lines)

    def add(self, job_id: str, line: LogLine) -> None:
        """Append *line*; the oldest goes when there are too many. Constant time."""
        lines = self._lines.get(job_id)
        if lines is None:
            lines = self._lines[job_id] = deque()
        else:
            self._lines.move_to_end(job_id)
        lines.append(line)
        self.total_bytes += _size(line)
        if len(lines) > self._max_lines:
            self.total_bytes -= _size(lines.popleft())
        while len(self._lines) > self._max_jobs or (self.total_bytes > self._max_bytes and len(self._lines) > 1):
            self.forget(next(iter(self._lines)))

    def get(self, job_id: str) -> Sequence[LogLine]:
        """The lines kept, oldest first; none for a job without a log."""
        lines = self._lines.get(job_id)
        if lines is None:
            return ()
        self._lines.move_to_end(job_id)
        return lines

    def keep_newest(self, job_id: str, count: int) -> None:
        """Delete all lines but the newest *count*; with none left the log is gone."""
        lines = self._lines.get(job_id)
        if lines is None:
            return
        while len(lines) > count:
            self.total_bytes -= _size(lines.popleft())
        if not lines:
            del self._lines[job_id]

    def forget(self, job_id: str) -> None:
        """Delete the whole log, if there is one."""
        self.keep_newest(job_id, 0)

    def recounted(self) -> tuple[int, int, int]:
        """For the invariants: bytes of all lines, the greatest number of lines of a job, the least."""
        counts = [len(lines) for lines in self._lines.values()]
        total = sum(_size(line) for lines in self._lines.values() for line in lines)
        return total, max(counts, default=0), min(counts, default=1)

    @property
    def max_lines(self) -> int:
        """How many lines of one job are kept."""
        return self._max_lines


def _size(line: LogLine) -> int:
    return len(line.message) + len(line.level) + LINE_OVERHEAD_BYTES
