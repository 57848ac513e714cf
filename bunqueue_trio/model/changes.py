"""What became dirty since the last flush: the engine's side of persistence, without a word about SQL."""

from msgspec import Struct, field

from bunqueue_trio.model.entries import DlqEntry
from bunqueue_trio.model.job import Job
from bunqueue_trio.model.transitions import Staged


class Dirty:
    """Bits of ``Job.dirty``: what the file does not know about a job."""

    PLAIN = 1  # a new row whose options are all defaults: a short INSERT will do
    FULL = 2  # a new row, or options changed: every column
    STATE = 4  # execution columns only
    EXTRA = 8  # the fields that live in our side table


class Changes(Struct, gc=False):
    """Everything one flush will carry. Taken as a whole by the flusher, which leaves a fresh one.

    ``jobs`` holds each dirty job once, in the order in which they became dirty; a job of state GONE is a deletion.
    ``reborn`` are custom ids pushed again although only the file may still know their finished predecessor.
    ``letters`` are new dead letters outside transitions, by job id, ``letters_gone`` ids whose entries leave the file.
    ``expired`` are completed jobs whose time in the file is over, with their queues.
    ``finished`` are ids completed and removed on which a stored job still depends; ``finished_gone`` the reverse. Ids
    in the order in which they came, each once: many may come and go before a flush.
    """

    jobs: list[Job] = field(default_factory=list)
    staged: list[Staged] = field(default_factory=list)
    reborn: list[str] = field(default_factory=list)
    letters: dict[str, DlqEntry] = field(default_factory=dict)
    letters_gone: list[str] = field(default_factory=list)
    expired: dict[str, str] = field(default_factory=dict)
    finished: dict[str, None] = field(default_factory=dict)
    finished_gone: dict[str, None] = field(default_factory=dict)
    failures: dict[str, int] = field(default_factory=dict)
    """How many jobs of a queue have failed for good outside transitions."""
    ended: dict[str, tuple[int, int]] = field(default_factory=dict)
    """How many jobs of a queue complete and fail for good with these changes: see `engine.series`."""
    needs_sync: bool = False
    """True when a push asked for ``durable: "fsync"``."""
    new_count: int = 0
    """How many of ``jobs`` are new rows: enough of them start a flush. What pulls change can wait for its 10 ms: most
    of it is overtaken by the job's end, and then only that is written."""

    def touch(self, job: Job, bits: int) -> None:
        """Note that the file does not know *bits* of *job* yet."""
        if not job.dirty:
            self.jobs.append(job)
        job.dirty |= bits
        if bits & (Dirty.PLAIN | Dirty.FULL):
            self.new_count += 1

    @property
    def row_count(self) -> int:
        """How many rows a flush would write now, roughly."""
        return len(self.jobs) + len(self.staged) + len(self.letters) + len(self.letters_gone) + len(self.expired)

    def __bool__(self) -> bool:
        return bool(
            self.jobs
            or self.staged
            or self.letters
            or self.letters_gone
            or self.reborn
            or self.expired
            or self.finished
            or self.finished_gone
        )
