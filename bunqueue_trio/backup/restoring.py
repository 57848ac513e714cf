"""A backup takes the place of the data file. Blocks.

Nothing is touched before every check has passed. Then, with the lock of the data file held: the old file gets a second
name and its WAL a copy; the WAL, which would otherwise be replayed over the new file, is folded into the old one; and
one rename puts the new file in place. A process that is killed leaves the one or the other, whole. The old state is
kept until the next successful restore.

Only where the WAL cannot be folded in, because the old file is damaged or the disk full, it is moved away instead:
killed just then, the old file is without it under its name, and all of the old state is under the new one.

Source: S3 backup and restore, "Restore", BD-2, BD-3, BD-11; R212 to R214, R342 to R344, R362, K4.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from glob import escape, glob
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from bunqueue_trio.backup.checking import Fetched, fetch
from bunqueue_trio.backup.naming import iso
from bunqueue_trio.backup.object_store import ObjectStore
from bunqueue_trio.backup.patience import Patience
from bunqueue_trio.backup.record import BackupLock
from bunqueue_trio.backup.scratch import SIDE_FILES, scratch_path, sweep
from bunqueue_trio.errors import BackupError, FileInUseError, StartError
from bunqueue_trio.storage.copying import fold_in
from bunqueue_trio.storage.paths import FileLock, sync_folder
from bunqueue_trio.storage.users import is_open_elsewhere
from bunqueue_trio.storage.wal import wal_bytes

if TYPE_CHECKING:
    from bunqueue_trio.clock import Clock

WAL: Final = "-wal"
Build = Callable[[str], None]
IN_USE: Final = "database is in use by a running server. Stop it first."


class Restored(Struct, frozen=True, gc=False):
    """The database is that of the backup. ``kept_as`` names what it was before; None: there was none."""

    size_bytes: int
    is_verified: bool
    kept_as: str | None


def restore(
    store: ObjectStore,
    key: str,
    database: str,
    patience: Patience,
    clock: Clock,
    *,
    build: Build | None = None,
) -> Restored:
    """Replace the data file *database* by the backup *key*, or leave everything as it is.

    Args:
        build: makes of the unpacked backup, whose path it is given, what is to take the place; raises `BackupError`.

    Raises:
        BackupError: no such backup, it is damaged, a server uses the file, or the disk is full.
    """
    path = os.path.realpath(database)
    was_there = os.path.exists(path)
    try:
        lock = FileLock.acquire(path)
    except FileInUseError as error:
        raise BackupError(IN_USE) from error
    except StartError as error:
        raise BackupError(str(error)) from error
    has_succeeded = False
    try:
        with lock, BackupLock.acquire(path):
            if is_open_elsewhere(path):
                raise BackupError(IN_USE)
            sweep(path)
            restored = _restore(store, key, path, patience, clock, build, was_there=was_there)
            has_succeeded = True
    finally:
        if not was_there and not has_succeeded:
            _remove_empty(path)  # locking has made it
    return restored


def rehearse(
    store: ObjectStore, key: str, database: str, patience: Patience, clock: Clock, *, build: Build | None = None
) -> Fetched:
    """Everything that `restore` does, but for the swap: the data file may be in use, and is not touched.

    Args:
        build: as for `restore`.

    Raises:
        BackupError: a restore would fail with the same text.
    """
    path = os.path.realpath(database)
    with BackupLock.acquire(path):
        sweep(path)
        with scratch_path(path, "verify", clock.now().wall_ms) as scratch:
            fetched = fetch(store, key, scratch, patience)
            if build is not None:
                build(scratch)
            return fetched


def _restore(
    store: ObjectStore,
    key: str,
    path: str,
    patience: Patience,
    clock: Clock,
    build: Build | None,
    *,
    was_there: bool,
) -> Restored:
    now_ms = clock.now().wall_ms
    with scratch_path(path, "restore", now_ms) as scratch:
        fetched = fetch(store, key, scratch, patience)
        if build is not None:
            build(scratch)
        size_bytes = os.stat(scratch).st_size
        patience.check()
        kept = f"{path}.before-restore-{iso(now_ms).replace(':', '-').replace('.', '-')}" if was_there else None
        try:
            _dress(scratch, path)
            _swap(scratch, path, kept)
        except OSError as error:
            raise BackupError(f"{error.filename or path}: {error.strerror}") from error
    _forget_older(path, kept)
    return Restored(size_bytes, fetched.is_verified, kept)


def _dress(scratch: str, path: str) -> None:
    """Owner and rights are those of the file that is replaced: another user may run the server."""
    status = os.stat(path)
    os.chmod(scratch, status.st_mode & 0o7777)
    with suppress(PermissionError):
        os.chown(scratch, status.st_uid, status.st_gid)


def _swap(scratch: str, path: str, kept: str | None) -> None:
    """Put *scratch* in the place of *path*, which nobody uses; on an error everything is where it was."""
    moved: list[tuple[str, str]] = []
    folder = os.path.dirname(path)
    try:
        if kept is not None:
            _keep(path, kept)
        for suffix in SIDE_FILES:
            if os.path.exists(path + suffix):
                target = (kept or f"{path}.stale") + suffix
                os.replace(path + suffix, target)
                moved.append((path + suffix, target))
        os.replace(scratch, path)
    except OSError:
        for name, target in reversed(moved):
            os.replace(target, name)
        if kept is not None:
            _forget(kept)
        raise
    sync_folder(folder)
    if kept is None:
        for _, target in moved:
            os.unlink(target)


def _keep(path: str, kept: str) -> None:
    """Give the old state the name *kept*, and let the file *path* have all of it without a WAL, if that can be."""
    has_copy = False
    if wal_bytes(path):
        with suppress(OSError):
            shutil.copy(path + WAL, kept + WAL)
            has_copy = True
    _second_name(path, kept)
    if has_copy:
        fold_in(path)


def _forget(kept: str) -> None:
    for name in (kept, kept + WAL):
        with suppress(OSError):
            os.unlink(name)


def _second_name(path: str, kept: str) -> None:
    """The file is never without its first name, so a server that starts too early does not begin an empty one."""
    os.link(path, kept)


def _forget_older(path: str, kept: str | None) -> None:
    for name in glob(f"{escape(path)}.before-restore-*"):
        if kept is None or not name.startswith(kept):
            with suppress(OSError):
                os.unlink(name)


def _remove_empty(path: str) -> None:
    with suppress(OSError):
        if os.stat(path).st_size == 0:
            os.unlink(path)
