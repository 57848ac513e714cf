"""What the metrics show and the engine does not know."""

from __future__ import annotations

from msgspec import Struct

from bunqueue_trio.model.backup import BackupStatus
from bunqueue_trio.server.door import Tally
from bunqueue_trio.server.flush_figures import FlushFigures


class WebhookFacts(Struct, frozen=True, kw_only=True, gc=False):
    """What there is of webhooks now, and what has become since start of the events meant for them.

    An event counts once per webhook. ``dropped`` are those of ``failed`` for which there was no room.
    """

    total: int = 0
    enabled: int = 0
    waiting: int = 0
    delivered: int = 0
    failed: int = 0
    dropped: int = 0


class FileFacts(Struct, frozen=True, kw_only=True, gc=False):
    """The data file: its size and that of its WAL, and how long ago the WAL was last folded in as a whole."""

    data_bytes: int
    wal_bytes: int
    checkpoint_age_s: float


class StorageFacts(Struct, frozen=True, kw_only=True, gc=False):
    """The way into the file.

    ``backlog_rows`` and ``backlog_bytes`` wait for it, a flush under way included; bytes are those of payloads, at
    least. ``file`` is None when there is none, ``backup`` when none are made, ``backup_age_s`` when none was proven,
    ``recovery_point_age_s`` when nothing could be restored, or changes are not uploaded between backups.
    """

    is_degraded: bool = False
    backlog_rows: int = 0
    backlog_bytes: int = 0
    flushes: FlushFigures
    file: FileFacts | None = None
    backup: BackupStatus | None = None
    backup_age_s: float | None = None
    recovery_point_age_s: float | None = None


class LiveFacts(Struct, frozen=True, kw_only=True, gc=False):
    """Who watches live, and how many events WebSockets that did not read have lost."""

    sse: int = 0
    ws: int = 0
    skipped: int = 0


class Facts(Struct, frozen=True, kw_only=True, gc=False):
    """Everything."""

    uptime_s: int
    worker_count: int
    active_worker_count: int
    cron_count: int
    webhooks: WebhookFacts
    storage: StorageFacts
    live: LiveFacts = LiveFacts()
    cut_off_count: int = 0
    """Subscribers of events that were too slow."""
    queue_subscriber_count: int = 0
    """Connections that are sent the events of a queue."""
    tallies: dict[str, Tally] = {}
    """Connections by transport."""
