"""One record per shape of reply. Every reply says ``ok`` and echoes ``reqId``, which the session fills in."""

from typing import Any

from msgspec import UNSET, Raw, Struct, UnsetType

from bunqueue_trio.model.entries import DlqEntry, DlqPolicy, StallPolicy
from bunqueue_trio.model.job import JobRecord


class Reply(Struct, rename="camel", gc=False):
    """Plain ok: ``{"ok": true}``. The base of all other shapes."""

    ok: bool = True
    req_id: Raw | UnsetType = UNSET


class ErrorReply(Reply):
    """``{"ok": false, "error": str}``."""

    ok: bool = False
    error: str = ""


class IdReply(Reply):
    """PUSH: ``{"ok": true, "id": str}``; with a receipt also ``durability`` and ``outcome``."""

    id: str = ""
    durability: str | UnsetType = UNSET
    outcome: str | UnsetType = UNSET


class IdsReply(Reply):
    """PUSHB: ``{"ok": true, "ids": [str]}``; with a receipt also ``durability`` and a list of ``outcomes``."""

    ids: list[str] = []
    durability: str | UnsetType = UNSET
    outcomes: list[str] | UnsetType = UNSET


class JobReply(Reply):
    """One job or null; ``token`` only for pulls with an owner."""

    job: JobRecord | None = None
    token: str | UnsetType | None = UNSET


class JobsReply(Reply):
    """Jobs; ``tokens`` only for pulls with an owner, in the order of the jobs."""

    jobs: list[JobRecord] = []
    tokens: list[str] | UnsetType = UNSET


class LettersReply(JobsReply):
    """Dlq: jobs; for newer clients also the ``entries`` around them, in the same order."""

    entries: list[DlqEntry] | UnsetType = UNSET


class StateReply(Reply):
    """GetState."""

    id: Any = None
    state: str = "unknown"


class ResultReply(Reply):
    """GetResult; without ``result`` when there is none, for null may be one."""

    id: Any = None
    result: Raw | UnsetType | None = UNSET


class CountReply(Reply):
    """Count, ExtendLocks."""

    count: int = 0


class CountsReply(Reply):
    """GetJobCounts: all eight keys, always."""

    counts: dict[str, int] = {}


class PriorityCountsReply(Reply):
    """GetCountsPerPriority: ``{"ok": true, "queue": str, "counts": {"<priority>": int}}``."""

    queue: str = ""
    counts: dict[str, int] = {}


class CleanReply(Reply):
    """Clean: how many jobs were removed, and their ids, oldest first."""

    count: int = 0
    ids: list[str] = []


class PausedReply(Reply):
    """IsPaused."""

    paused: bool = False


class QueuesReply(Reply):
    """ListQueues."""

    queues: list[str] = []


class ProgressReply(Reply):
    """GetProgress."""

    progress: float | int = 0
    message: Raw | None = None


class StallConfigReply(Reply):
    """GetStallConfig."""

    config: StallPolicy = StallPolicy()


class DlqConfigReply(Reply):
    """GetDlqConfig."""

    config: DlqPolicy = DlqPolicy()


class StatsReply(Reply):
    """Stats. Numbers in ``stats`` must be wire numbers."""

    stats: dict[str, Any] = {}


class MetricsReply(Reply):
    """Metrics. Numbers in ``metrics`` must be wire numbers."""

    metrics: dict[str, Any] = {}


class DataReply(Reply):
    """The wrapped shape: ``{"ok": true, "data": {...}}``. Numbers in ``data`` must be wire numbers."""

    data: dict[str, Any] = {}


class HelloReply(Reply):
    """Hello."""

    protocol_version: int = 2
    capabilities: list[str] = []
    server: str = ""
    version: str = ""
