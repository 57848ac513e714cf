"""What is kept beside the data file: the lock that lets one backup or restore run at a time, and how the last went.

Both are files of their own, so that the data file is not written to: ``<database>.backup-lock``, empty or saying that
it is held for what the change log begins with, and ``<database>.backup-state.json``.

Source: S3 backup and restore, "Scheduler", BD-12; K43, R218, R219.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Self

import msgspec

from bunqueue_trio.backup.json_texts import read_json
from bunqueue_trio.errors import BackupBusyError, BackupError
from bunqueue_trio.model.backup import BackupRecord

IN_PROGRESS: Final = "Backup already in progress"
FOR_LOG: Final = b"log"
PAUSE_S: Final = 0.25


def read_record(database: str) -> BackupRecord:
    """What is remembered; an empty record where there is none, or none that can be read."""
    try:
        with open(_state_path(database), "rb") as file:
            return read_json(file.read(), BackupRecord)
    except (OSError, ValueError):
        return BackupRecord()


def write_record(database: str, record: BackupRecord) -> None:
    """Remember. With `BackupLock` held.

    Raises:
        OSError: it could not be written; what was remembered before still is.
    """
    path = _state_path(database)
    scratch = f"{path}.tmp"
    with suppress(FileNotFoundError):
        os.unlink(scratch)  # of a killed process, which may have been another user's
    with open(scratch, "wb") as file:
        _share(file.fileno(), database)
        file.write(msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n")
    os.replace(scratch, path)


class BackupLock:
    """The right to back up, or to replace, one data file; ends with the process, whatever ends it."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @classmethod
    def acquire(cls, database: str, *, is_for_log: bool = False, pause: Callable[[float], None] | None = None) -> Self:
        """Take it; does not wait, but for who makes the snapshot that a change log begins with, if there is a *pause*.

        Args:
            is_for_log: to make such a snapshot.
            pause: sleeps for some seconds, or raises.

        Raises:
            BackupBusyError: somebody has it.
            BackupError: there is no folder to keep the lock in, or it is read-only.
        """
        try:
            descriptor = _open_lock(f"{os.path.realpath(database)}.backup-lock")
            _share(descriptor, database)
        except OSError as error:
            raise BackupError(f"{error.filename}: {error.strerror}") from error
        try:
            while not _lock(descriptor):
                if pause is None or os.pread(descriptor, len(FOR_LOG), 0) != FOR_LOG:
                    raise BackupBusyError(IN_PROGRESS)
                pause(PAUSE_S)
            with suppress(OSError):  # another user's: then others are refused, who might have waited
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, FOR_LOG if is_for_log else b"", 0)
        except BaseException as error:
            os.close(descriptor)
            if isinstance(error, OSError):
                raise BackupError(f"cannot be locked: {error.strerror}") from error
            raise
        return cls(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        os.close(self._descriptor)


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _open_lock(path: str) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except PermissionError:
        return os.open(path, os.O_RDONLY)  # another user's: good enough for a lock, but on some network file systems


def _share(descriptor: int, database: str) -> None:
    """Give a file the owner and the rights of the data file: an operator's backup must not lock the server out."""
    with suppress(OSError):  # not ours, or no data file
        status = os.stat(database)
        if os.fstat(descriptor).st_uid == os.geteuid():
            os.fchmod(descriptor, status.st_mode & 0o666)
            os.fchown(descriptor, status.st_uid, status.st_gid)


def _state_path(database: str) -> str:
    return f"{os.path.realpath(database)}.backup-state.json"
