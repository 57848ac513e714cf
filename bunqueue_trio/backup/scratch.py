"""Scratch files beside the data file: on its disk, so that a rename can put one in its place; gone on every way out."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from glob import escape, glob

from bunqueue_trio.errors import BackupError

SIDE_FILES = ("-wal", "-shm", "-journal")
"""What SQLite may have beside a database, by what it appends to the name."""


@contextmanager
def scratch_path(database: str, purpose: str, wall_ms: float) -> Iterator[str]:
    """The name of a new, empty file ``<database>.<purpose>-<ms>-<random>.tmp``, which is removed at the end if it is
    still there, and what SQLite has made beside it too.

    Raises:
        BackupError: it cannot be made.
    """
    path = f"{database}.{purpose}-{wall_ms:.0f}-{os.urandom(4).hex()}.tmp"
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    except OSError as error:
        raise BackupError(f"{path}: {error.strerror}") from error
    try:
        yield path
    finally:
        for name in (path, *(path + suffix for suffix in SIDE_FILES)):
            with suppress(FileNotFoundError):
                os.unlink(name)


def sweep(database: str) -> None:
    """Remove what a killed process has left. Only with the `BackupLock` of that database."""
    for purpose in ("backup", "verify", "restore"):
        for path in glob(f"{escape(database)}.{purpose}-*.tmp*"):
            with suppress(OSError):
                os.unlink(path)
