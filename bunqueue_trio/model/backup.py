"""What is known of the backups of a server: for the probes, the metrics and the page."""

from msgspec import Struct


class LogStatus(Struct, frozen=True, kw_only=True, rename="camel", gc=False):
    """The change log between backups. Everything up to ``recovery_point_at``, epoch ms, can be restored if the machine
    is lost now; None: nothing can. ``interval`` is ms.

    ``generation`` is the chain that goes on, None while a backup has to begin one. ``waiting_bytes`` are on this
    machine only. ``broken_count`` counts chains that had to be given up since the start. ``error`` is why changes are
    not uploaded, ``failing_since`` since when; both None while they are.
    """

    interval: int
    generation: str | None
    recovery_point_at: float | None
    waiting_bytes: int
    shipped_count: int
    broken_count: int
    error: str | None
    failing_since: float | None


class BackupRecord(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, gc=False):
    """How the backups of one data file have gone, as it is remembered over restarts.

    All moments are epoch ms; None: not yet. ``last_success_at`` is when the last backup that was stored was made,
    ``last_proven_at`` the same of the last one that was read back from the bucket, unpacked and found sound; keys
    likewise. ``last_size`` is bytes, unpacked, ``last_duration`` ms. ``error`` is why the last attempt failed,
    ``failing_since`` when the first of the failures in a row was; both None after a success.
    """

    last_attempt_at: float | None = None
    last_success_at: float | None = None
    last_key: str | None = None
    last_size: int | None = None
    last_duration: float | None = None
    last_proven_at: float | None = None
    last_proven_key: str | None = None
    error: str | None = None
    failing_since: float | None = None


class BackupStatus(BackupRecord, frozen=True, kw_only=True, rename="camel", omit_defaults=False, gc=False):
    """The same of a running server, with where they go (``bucket``), how often (``interval``, ms), and what has come of
    them since its start. ``log`` is None where changes are not uploaded between backups.
    """

    bucket: str
    interval: int
    is_running: bool = False
    made_count: int = 0
    failed_count: int = 0
    rejected_count: int = 0
    log: LogStatus | None = None
