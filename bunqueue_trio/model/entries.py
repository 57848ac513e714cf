"""Records that are not jobs: settings of a queue, dead-letter entries, registered workers."""

from msgspec import Raw, Struct

from bunqueue_trio.model.job import JobRecord

DLQ_MAX_AGE_MS = 604_800_000  # 7 days, the reference's default
DLQ_MAX_ENTRIES = 10_000


class StallPolicy(Struct, frozen=True, gc=False, rename="camel"):
    """When a silent active job counts as stalled. Shape of GetStallConfig; times in ms; ``max_stalls`` 0 = no limit."""

    enabled: bool = True
    stall_interval: float | int = 30_000
    max_stalls: float | int = 3
    grace_period: float | int = 5_000


class RateLimit(Struct, frozen=True, gc=False):
    """At most ``limit`` deliveries per ``duration_ms``; lifts itself at ``expires_at`` (epoch ms, None: never)."""

    limit: float | int
    duration_ms: float | int = 1_000
    expires_at: float | None = None


class DlqPolicy(Struct, frozen=True, gc=False, rename="camel"):
    """What becomes of the dead letters of a queue. Shape of GetDlqConfig; times in ms, ``max_age`` None or 0: no end.

    ``auto_retry_interval`` is the pause before the first two retries; it doubles from the third on.
    """

    auto_retry: bool = False
    auto_retry_interval: float | int = 3_600_000
    max_auto_retries: float | int = 3
    max_age: float | int | None = DLQ_MAX_AGE_MS
    max_entries: int = DLQ_MAX_ENTRIES


class QueueSettings(Struct, frozen=True, gc=False):
    """What operators set on a queue. Rows exist only while something differs from the default: ``queue_state`` for all
    but ``dlq``, which the reference does not store and ``bqt_queues`` does.
    """

    paused: bool = False
    rate_limit: RateLimit | None = None
    concurrency_limit: float | int | None = None
    stall: StallPolicy = StallPolicy()
    dlq: DlqPolicy = DlqPolicy()


DEFAULT_SETTINGS = QueueSettings()


class AttemptRecord(Struct, frozen=True, gc=False, rename="camel"):
    """One attempt as a dead-letter entry remembers it; times epoch ms, ``duration`` ms."""

    attempt: int
    started_at: float
    failed_at: float
    reason: str
    error: str | None
    duration: float


class DlqEntry(Struct, gc=False, rename="camel"):
    """A dead letter: a job out of attempts, kept for people. The same map on the wire and in ``dlq.entry``.

    Source: persistence, "DLQ entry".
    """

    job: JobRecord
    entered_at: float
    reason: str
    error: str | None
    attempts: list[AttemptRecord]
    retry_count: int = 0
    last_retry_at: float | None = None
    next_retry_at: float | None = None
    expires_at: float | None = None


class LetterFilter(Struct, frozen=True, gc=False):
    """Which dead letters are meant, all conditions together; None and False ask for nothing.

    ``reason`` is exact; ``until`` and ``since`` bound when they entered, epoch ms, both included. ``is_retriable``: an
    automatic retry is due; ``has_expired``: their age is over. Of those the first ``offset`` are passed over, and at
    most ``limit`` taken, in the order of their arrival.
    """

    reason: str | None = None
    until: float | None = None
    since: float | None = None
    is_retriable: bool = False
    has_expired: bool = False
    offset: int = 0
    limit: int | None = None


NO_FILTER = LetterFilter()


class WorkerInfo(Struct, gc=False, rename="camel"):
    """A registered worker, as the client described itself. Information only: who may pull does not depend on it.

    It was last heard of at ``last_seen`` (epoch ms, for people) and ``seen_mono_ms`` (monotonic, for `is_alive`).
    """

    id: str
    name: str
    queues: list[str]
    concurrency: float | int
    hostname: str
    pid: float | int
    registered_at: float
    last_seen: float
    seen_mono_ms: float
    active_jobs: float | int = 0
    processed_jobs: float | int = 0
    failed_jobs: float | int = 0
    current_job: None = None
    connection_id: int | None = None

    def is_alive(self, mono_ms: float, timeout_ms: float) -> bool:
        """Whether it has been heard of within *timeout_ms*; a wall clock that is set makes nobody fall silent."""
        return mono_ms - self.seen_mono_ms < timeout_ms


class CompletedJob(Struct, gc=False):
    """A finished job as history keeps it; ``result`` is None when ACK carried none (a null result is ``c0``)."""

    record: JobRecord
    result: Raw | None


class LogLine(Struct, frozen=True, gc=False):
    """A line of a job's log, as GetLogs shows it; ``timestamp`` epoch ms, the other two msgpack as they came."""

    timestamp: float
    level: Raw
    message: Raw
