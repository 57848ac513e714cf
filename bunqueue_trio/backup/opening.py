"""The backups of a server, made of its settings and of what it lends them.

The client library of the store takes time and memory to import, which servers without backups need not spend.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from bunqueue_trio.backup.keeper import Backups
from bunqueue_trio.backup.log_keeper import Attach, ChangeLog, InWriter
from bunqueue_trio.backup.settings import BackupSettings
from bunqueue_trio.logs import get_logger

if TYPE_CHECKING:
    from bunqueue_trio.clock import Clock

log = get_logger("Backup")


def open_backups(
    settings: BackupSettings,
    clock: Clock,
    *,
    version: str,
    flush: Callable[[], Awaitable[None]],
    announce: Callable[[str, dict[str, Any]], None],
    in_writer: InWriter[None],
    attach: Attach,
) -> Backups | None:
    """Backups and their change log, to be run by the caller; None where they are off, or cannot work: the log says why.

    The arguments are those of `Backups` and `ChangeLog`.
    """
    if not settings.is_enabled:
        return None
    if problems := settings.problems():
        log.error("S3 backup configuration invalid", errors=problems)
        return None
    from bunqueue_trio.backup.s3 import S3Store

    changes: ChangeLog | None = None
    if settings.log_interval_ms:
        changes = ChangeLog(settings, clock, S3Store, in_writer=in_writer, attach=attach)
    return Backups(settings, clock, S3Store, version=version, flush=flush, announce=announce, changes=changes)
