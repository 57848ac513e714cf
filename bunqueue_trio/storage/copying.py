"""Copies of the data file while it is in use, and whether a file is a sound database. Knows no jobs.

A copy shows one moment: a read transaction of its own holds that moment while pages are copied, so commits go on, the
copy never starts anew, and the WAL is not folded in beyond that moment until the copy is done.

Source: S3 backup and restore, BD-1; K2, R221.
"""

import os
from collections.abc import Callable
from typing import Final
from urllib.parse import quote

import apsw

from bunqueue_trio.errors import CorruptDatabaseError, StorageError
from bunqueue_trio.storage import faults
from bunqueue_trio.storage.connection import BUSY_TIMEOUT_MS
from bunqueue_trio.storage.wal import wal_bytes

PAGES_PER_STEP: Final = 256  # 1 MB: some milliseconds until a stop is seen
INSTRUCTIONS_PER_LOOK: Final = 200_000  # some 20 ms; each look takes the interpreter from whoever needs it
UNREADABLE: Final = "corrupt or invalid database"

StopCheck = Callable[[], None]
"""Called every few milliseconds of work; raises to end it."""


def copy_database(
    path: str, target: str, *, check: StopCheck, pinned: Callable[[apsw.Connection], None] | None = None
) -> None:
    """Copy the database *path*, its WAL included, as it is at one moment, to the file *target*. Blocks.

    The database is read through a connection of its own, so its owner need not stop, and is not changed. An unfinished
    *target* is left for the caller to remove.

    Args:
        target: a file that does not exist, or is empty.
        pinned: called once with the reading connection, as soon as the moment is fixed.

    Raises:
        StorageError: the database cannot be read or the copy not written. And what *check* raises.

    Cost: about 5 ms a MB; memory does not depend on the size.
    """
    had_wal = wal_bytes(path) > 0
    source = _open(path, apsw.SQLITE_OPEN_READWRITE)
    try:
        # Closed by its last user, SQLite folds the WAL in and removes it; one that a crash has left is not ours to
        # judge, while the empty one that reading makes should not stay behind.
        source.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, int(had_wal))
        source.execute("PRAGMA query_only = ON").fetchall()
        copy = _open(target, apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE)
        try:
            _copy(source, copy, check, pinned)
        finally:
            copy.close(True)
    finally:
        source.close(True)


def check_integrity(path: str, *, check: StopCheck) -> None:
    """Read all of the database file *path*, which nobody else may be writing to. Blocks.

    A WAL beside it does not count, and no file is made.

    Raises:
        CorruptDatabaseError: it is damaged or no database; the text is SQLite's first finding, which may span lines.
            And what *check* raises.

    Cost: reads the file and every index.
    """

    def look() -> bool:
        check()  # what it raises ends the statement, and comes out of it
        return False

    try:
        connection = apsw.Connection(
            f"file:{quote(os.path.abspath(path))}?immutable=1",
            flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI,
        )
        try:
            connection.set_progress_handler(look, INSTRUCTIONS_PER_LOOK)
            finding = str(connection.execute("PRAGMA integrity_check(1)").fetchall()[0][0])
        finally:
            connection.close(True)
    except apsw.Error as error:
        raise CorruptDatabaseError(UNREADABLE) from error
    if finding != "ok":
        raise CorruptDatabaseError(finding)


def fold_in(path: str) -> bool:
    """Fold the WAL of the database *path*, which nobody uses, into it, and remove it. Blocks.

    Killed at any moment it leaves the same rows: SQLite goes on where it was. False: that was not possible, for
    whatever reason; the rows are the same.
    """
    try:
        connection = _open(path, apsw.SQLITE_OPEN_READWRITE)
        try:
            connection.execute("PRAGMA synchronous = FULL").fetchall()
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        finally:
            connection.close(True)
    except (apsw.Error, StorageError):
        return False
    return wal_bytes(path) == 0


def _open(path: str, flags: int) -> apsw.Connection:
    try:
        connection = apsw.Connection(path, flags=flags)
        connection.set_busy_timeout(BUSY_TIMEOUT_MS)
        if flags & apsw.SQLITE_OPEN_CREATE:
            # A copy that a crash leaves half made is thrown away: it needs no journal, and no wait for the disk.
            for setting in ("journal_mode = OFF", "synchronous = OFF"):
                connection.execute(f"PRAGMA {setting}").fetchall()
    except apsw.Error as error:
        raise faults.from_apsw(error) from error
    return connection


def _copy(
    source: apsw.Connection,
    copy: apsw.Connection,
    check: StopCheck,
    pinned: Callable[[apsw.Connection], None] | None,
) -> None:
    try:
        source.execute("BEGIN")
        source.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchall()  # only reading fixes the moment
        if pinned is not None:
            pinned(source)
        with copy.backup("main", source, "main") as backup:
            while not backup.done:
                check()
                backup.step(PAGES_PER_STEP)
    except apsw.Error as error:
        raise faults.from_apsw(error) from error
