"""What is kept beside the data file: the lock that lets one backup or restore run at a time, and how the last went.

Both are files of their own, so that the data file is not written to: ``<database>.backup-lock``, which is empty, and
``<database>.backup-state.json``.

Source: S3 backup and restore, "Scheduler", BD-12; K43, R218, R219.
"""

from __future__ import annotations

import fcntl
import os
from typing import Final, Self

import msgspec

from bunqueue_trio.errors import BackupBusyError, BackupError
from bunqueue_trio.model.backup import BackupRecord

IN_PROGRESS: Final = "Backup already in progress"


def read_record(database: str) -> BackupRecord:
    """What is remembered; an empty record where there is none, or none that can be read."""
    try:
        with open(_state_path(database), "rb") as file:
            return msgspec.json.decode(file.read(), type=BackupRecord)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return BackupRecord()


def write_record(database: str, record: BackupRecord) -> None:
    """Remember. With `BackupLock` held.

    Raises:
        OSError: it could not be written; what was remembered before still is.
    """
    path = _state_path(database)
    scratch = f"{path}.tmp"
    with open(scratch, "wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n")
    os.replace(scratch, path)


class BackupLock:
    """The right to back up, or to replace, one data file; ends with the process, whatever ends it."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @classmethod
    def acquire(cls, database: str) -> Self:
        """Take it; does not wait.

        Raises:
            BackupBusyError: somebody has it.
            BackupError: there is no folder to keep the lock in, or it is read-only.
        """
        try:
            descriptor = os.open(f"{os.path.realpath(database)}.backup-lock", os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise BackupError(f"{error.filename}: {error.strerror}") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            if isinstance(error, BlockingIOError):
                raise BackupBusyError(IN_PROGRESS) from error
            raise BackupError(f"cannot be locked: {error.strerror}") from error
        return cls(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        os.close(self._descriptor)


def _state_path(database: str) -> str:
    return f"{os.path.realpath(database)}.backup-state.json"
