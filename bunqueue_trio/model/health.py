"""What the health probe shows. The server fills it in, the web layer only sends it.

Shape: ``{"ok", "status", "uptime", "version", "queues", "connections", "memory", "wal"?, "reasons"?, "backup"?,
"storage"?}``.
Source: HTTP, "Probes and diagnostics"; R256 to R261, HD-2, HD-7, K51.
"""

from typing import Literal

from msgspec import UNSET, Struct, UnsetType


class QueueTotals(Struct, frozen=True, kw_only=True, gc=False):
    """Jobs of all queues together, by state.

    Wire: ``waiting`` holds ready jobs of priority 0 and below only, as dashboards built on the reference expect.
    """

    waiting: int = 0
    active: int = 0
    delayed: int = 0
    completed: int = 0
    dlq: int = 0


class ConnectionCounts(Struct, frozen=True, kw_only=True, gc=False):
    """Open connections by kind."""

    tcp: int = 0
    ws: int = 0
    sse: int = 0


class MemoryUse(Struct, frozen=True, kw_only=True, rename="camel", gc=False):
    """Memory of the process, whole MiB: what `bunqueue_trio.memory.measure_memory` says of each figure."""

    heap_used: int = 0
    heap_total: int = 0
    rss: int = 0


class WalUse(Struct, frozen=True, kw_only=True, rename="camel", gc=False):
    """The write-ahead log and what has not reached it yet.

    ``bytes`` is the size of the WAL file, ``checkpoint_age_seconds`` the time since the last full WAL checkpoint
    (None: none yet), ``backlog`` the number of rows not yet committed.
    """

    bytes: int = 0
    checkpoint_age_seconds: int | None = None
    backlog: int = 0


class BackupAge(Struct, frozen=True, kw_only=True, rename="camel", gc=False):
    """How old the last backup is that was read back and found sound; None: none yet, or none is read back.

    ``last_success_at`` is when the last stored one was made, ``last_attempt_at`` when the last try began, epoch ms;
    ``error`` is why that failed, None when it did not. ``recovery_point_age_seconds`` is how much would be lost with
    the machine now; left out where changes are not uploaded between backups, None before the first backup.
    """

    proven_age_seconds: int | None
    proven_key: str | None
    last_success_at: float | None
    last_attempt_at: float | None
    error: str | None
    recovery_point_age_seconds: float | UnsetType | None = UNSET


class StorageTrouble(Struct, frozen=True, kw_only=True, rename="camel", gc=False):
    """Why writing fails: SQLite's words, and since when (epoch ms)."""

    disk_full: bool
    error: str | None
    since: float | None


class Reason(Struct, frozen=True, kw_only=True, gc=False):
    """One cause of being degraded.

    ``code`` is one of ``storage.diskFull``, ``storage.error``, ``backup.failing``, ``internal.error``; ``since`` is
    epoch ms.
    """

    code: str
    message: str
    since: float


class HealthReport(Struct, frozen=True, kw_only=True, gc=False):
    """One look at the server. ``uptime`` is whole seconds since the start.

    ``status`` is ``degraded`` exactly when ``ok`` is False; make such a report with `degraded`. ``wal`` is absent for
    a server in memory, ``backup`` for one that makes none, ``storage`` while nothing is wrong with the file,
    ``reasons`` while healthy.
    """

    ok: bool = True
    status: Literal["healthy", "degraded"] = "healthy"
    uptime: int
    version: str
    queues: QueueTotals = QueueTotals()
    connections: ConnectionCounts = ConnectionCounts()
    memory: MemoryUse = MemoryUse()
    wal: WalUse | UnsetType = UNSET
    reasons: list[Reason] | UnsetType = UNSET
    backup: BackupAge | UnsetType = UNSET
    # Wire: the reference sends this member last.
    storage: StorageTrouble | UnsetType = UNSET
