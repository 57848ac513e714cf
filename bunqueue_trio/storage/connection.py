"""Opening and closing the database: pragmas, the schema, WAL checkpoints. Knows no jobs.

Source: persistence, "File and pragmas", PD-20, PD-21, PD-24; R3-R10, K26.
"""

import contextlib
import os
import time
from collections.abc import Callable
from typing import Final, Literal

import apsw
from msgspec import Struct

from bunqueue_trio.errors import StartError
from bunqueue_trio.storage import faults
from bunqueue_trio.storage.paths import MEMORY, FileLock, check_path, refusal
from bunqueue_trio.storage.schema import TABLES, ensure_schema
from bunqueue_trio.storage.soundness import find_damage
from bunqueue_trio.storage.wal import keep_damaged_wal, wal_bytes

__all__ = [
    "MEMORY",
    "CheckpointMode",
    "CheckpointResult",
    "DataFile",
    "FileLock",
    "Synchronous",
    "begin_snapshot",
    "checkpoint",
    "close_data_file",
    "close_writer",
    "lease_secret",
    "malformed",
    "open_data_file",
    "open_reader",
    "open_writer",
    "wal_bytes",
]

BUSY_TIMEOUT_MS: Final = 5_000
OPEN_RETRY_S: Final = 5.0
STATEMENT_CACHE: Final = 512  # apsw's maximum; it counts executions, not distinct statements
JOURNAL_SIZE_LIMIT_BYTES: Final = 12 * 1024 * 1024  # what a WAL keeps for itself once it has been folded in
MMAP_BYTES: Final = 268_435_456
CACHE_KEPT_BYTES: Final = 4 * 1024 * 1024
"""More than this of the page cache is given back at a checkpoint. SQLite goes through all pages of its cache at each
commit that has put pages of a tree in order, which is nearly every one of 100 rows: with 64 MB of them a commit takes a
third longer. What it needs again it gets from the mapped file."""

CheckpointMode = Literal["PASSIVE", "FULL", "RESTART", "TRUNCATE"]
Synchronous = Literal["NORMAL", "FULL"]

_ADVICE: Final[dict[type[apsw.Error], str]] = {
    apsw.BusyError: "another program holds it locked: close that program and start again",
    apsw.NotADBError: "name another data path, or restore a backup",
    apsw.CorruptError: "restore a backup, or recover what is left with the sqlite3 tool on a copy",
    apsw.FullError: "free some space on the disk and start again",
    apsw.IOError: "check the disk and start again",
    apsw.ReadOnlyError: "let this user write to the file and its folder",
    apsw.CantOpenError: "let this user write to the file and its folder",
}


class CheckpointResult(Struct, frozen=True, gc=False):
    """What a WAL checkpoint did.

    ``busy``: a reader or another writer kept it from finishing. ``wal_frames``: pages in the WAL. ``moved``: how many
    of them are in the database file by now; both 0 after a complete TRUNCATE.
    """

    busy: bool
    wal_frames: int
    moved: int


class DataFile(Struct):
    """An open data file; made by `open_data_file`, ended by `close_data_file`.

    ``reader`` is the writer itself when the database is in memory. ``warnings`` are lines for the operator.
    """

    writer: apsw.Connection
    reader: apsw.Connection
    lock: FileLock
    warnings: list[str]


def open_data_file(path: str, *, synchronous: Synchronous = "NORMAL") -> DataFile:
    """Lock the file, open it for the one writer, and once more for queries.

    Raises:
        StartError: one line: which file, why, what to do. Nothing stays open or locked.
    """
    warnings: list[str] = []
    with contextlib.ExitStack() as undo:
        lock = undo.enter_context(FileLock.acquire(path))
        writer = open_writer(path, synchronous=synchronous, warnings=warnings)
        undo.callback(writer.close, True)
        reader = writer if path == MEMORY else open_reader(path)
        undo.pop_all()
    return DataFile(writer, reader, lock, warnings)


def close_data_file(opened: DataFile) -> None:
    """Close both connections, the WAL folded in, and only then let go of the file.

    Raises:
        StorageError: the WAL could not be folded in; everything is closed all the same.
    """
    try:
        if opened.reader is not opened.writer:
            opened.reader.close(True)
        close_writer(opened.writer)
    finally:
        opened.lock.release()


def open_writer(
    path: str, *, synchronous: Synchronous = "NORMAL", vfs: str | None = None, warnings: list[str] | None = None
) -> apsw.Connection:
    """Open the database for the one writer, create or upgrade its schema, and fold that into the main file.

    Take a `FileLock` on the file first; ":memory:" needs none. The connection never checkpoints by itself.

    Args:
        synchronous: "FULL" syncs every commit, "NORMAL" leaves it to the checkpoints (R4).
        vfs: A file system shim for fault tests; it has neither shared memory nor mapping, so both are switched off.
        warnings: Receives one line per thing the operator should know although the start went well.

    Raises:
        StartError: one line: which file, why, what to do. The file has not been changed.

    Cost: waits up to about 5 s for a locked file; looks for damage, about 1 s per million jobs and 5 s at most.
    """
    if path != MEMORY:
        check_path(path)
        _report_damaged_wal(path, warnings)
    flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
    return _retry_while_locked(path, lambda: _open_once(path, flags, vfs, synchronous))


def open_reader(path: str) -> apsw.Connection:
    """Open the database for queries: it sees what is committed, never waits for the writer, and cannot write.

    Raises:
        StartError: one line: which file, why, what to do.
    """
    return _retry_while_locked(path, lambda: _open_once(path, apsw.SQLITE_OPEN_READONLY, None, None))


def begin_snapshot(connection: apsw.Connection) -> None:
    """From now until COMMIT *connection* sees the file as it is now.

    Raises:
        StorageError: the file cannot be read.
    """
    try:
        connection.execute("BEGIN")
        connection.execute("SELECT 1 FROM migrations LIMIT 1").fetchall()  # only reading takes the snapshot
    except apsw.Error as error:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise faults.from_apsw(error) from error


def close_writer(connection: apsw.Connection) -> None:
    """Fold the WAL into the main file and close. ``-wal`` and ``-shm`` vanish unless another program uses the file.

    Raises:
        StorageError: the WAL could not be folded in; it stays and is replayed by the next start. The connection is
            closed in any case.
    """
    try:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        connection.close()
    except apsw.Error as error:
        with contextlib.suppress(apsw.Error):
            connection.close(True)
        raise faults.from_apsw(error) from error


def checkpoint(
    connection: apsw.Connection, mode: CheckpointMode, *, wait_ms: int = BUSY_TIMEOUT_MS
) -> CheckpointResult:
    """Move pages from the WAL into the main file, and give back what the page cache has grown by.

    Args:
        mode: PASSIVE waits for nobody; TRUNCATE also empties the WAL file, for which no reader may be using it.
        wait_ms: How long the other modes wait for readers and writers before they report ``busy``.

    Raises:
        StorageError: disk full or an I/O error. Nothing is lost: the WAL stays.
    """
    try:
        connection.set_busy_timeout(wait_ms)
        rows = connection.execute(f"PRAGMA wal_checkpoint({mode})").fetchall()
    except apsw.Error as error:
        raise faults.from_apsw(error) from error
    finally:
        connection.set_busy_timeout(BUSY_TIMEOUT_MS)
    if connection.status(apsw.SQLITE_DBSTATUS_CACHE_USED)[0] > CACHE_KEPT_BYTES:
        connection.release_memory()
    busy, frames, moved = (int(value or 0) for value in rows[0])
    return CheckpointResult(busy != 0, max(frames, 0), max(moved, 0))  # -1 where there is no WAL


def lease_secret(connection: apsw.Connection) -> bytes:
    """The 32 bytes that lease tokens of this file are made with; drawn at first use, then kept in the file.

    Raises:
        StorageError: it could be neither read nor stored.
    """
    try:
        row = connection.execute("SELECT value FROM bqt_meta WHERE key = 'lease-secret'").fetchone()
        if row is None:
            row = (os.urandom(32),)
            connection.execute("INSERT INTO bqt_meta(key, value) VALUES ('lease-secret', ?)", row)
    except apsw.Error as error:
        raise faults.from_apsw(error) from error
    return bytes(row[0])


def _report_damaged_wal(path: str, warnings: list[str] | None) -> None:
    try:
        warning = keep_damaged_wal(path)
    except OSError as error:
        raise refusal(
            path,
            f"its write-ahead log is damaged and cannot be copied: {error.strerror}",
            "free some space or move the -wal file away",
        ) from error
    if warning is not None and warnings is not None:
        warnings.append(warning)


def _open_once(path: str, flags: int, vfs: str | None, synchronous: Synchronous | None) -> apsw.Connection:
    connection = apsw.Connection(path, flags=flags, vfs=vfs, statementcachesize=STATEMENT_CACHE)
    try:
        _set_pragmas(connection, synchronous, is_shim=vfs is not None)
        if synchronous is not None:
            _prepare_file(connection, path)
    except (apsw.Error, StartError, UnicodeDecodeError):
        if wal_bytes(path):
            # Closing would fold the WAL into a file of which nothing is known but that it is damaged.
            connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        connection.close(True)
        raise
    return connection


def _set_pragmas(connection: apsw.Connection, synchronous: Synchronous | None, *, is_shim: bool) -> None:
    # The time-out comes first, or a locked file would fail at once; the page size before WAL, which freezes it (K26).
    settings = [f"busy_timeout = {BUSY_TIMEOUT_MS}"]
    if is_shim:
        settings.append("locking_mode = EXCLUSIVE")
    if synchronous is not None:
        settings += ["page_size = 4096", "journal_mode = WAL", f"synchronous = {synchronous}"]
        settings += ["wal_autocheckpoint = 0", f"journal_size_limit = {JOURNAL_SIZE_LIMIT_BYTES}"]
    settings += ["cache_size = -64000", "temp_store = MEMORY", f"mmap_size = {0 if is_shim else MMAP_BYTES}"]
    if synchronous is None:
        settings.append("query_only = ON")
    for setting in settings:
        connection.execute(f"PRAGMA {setting}").fetchall()


def _prepare_file(connection: apsw.Connection, path: str) -> None:
    if connection.readonly("main"):
        raise refusal(path, "attempt to write a readonly database", "let this user write to the file and its folder")
    mode = connection.pragma("journal_mode")
    if mode != "wal" and path != MEMORY:
        raise refusal(path, f"its journal mode stays {mode}", "close every other program that uses the file")
    damage = find_damage(connection)
    if damage is not None:
        raise malformed(path, damage)
    if ensure_schema(connection, path):
        # PD-21: a schema that lived in the WAL alone would go with a damaged WAL.
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    for table in TABLES:  # the root pages, should the look at all of them have taken too long
        connection.execute(f"SELECT 1 FROM {table} LIMIT 1").fetchall()


def _retry_while_locked(path: str, open_once: Callable[[], apsw.Connection]) -> apsw.Connection:
    deadline = time.perf_counter() + OPEN_RETRY_S
    while True:
        try:
            return open_once()
        except apsw.BusyError as error:
            # SQLite reports some locks at once, without waiting for the time-out (PD-24).
            if time.perf_counter() >= deadline:
                raise _start_error(path, error) from error
            time.sleep(0.05)
        except apsw.Error as error:
            raise _start_error(path, error) from error
        except UnicodeDecodeError as error:  # in the names of the schema
            raise malformed(path, f"a text of the file is not UTF-8: {error}") from error


def malformed(path: str, damage: str) -> StartError:
    """The refusal of a file in which *damage* was found."""
    plain = faults.words(apsw.CorruptError())
    return refusal(path, plain if damage == plain else f"{plain} ({damage})", _ADVICE[apsw.CorruptError])


def _start_error(path: str, error: apsw.Error) -> StartError:
    return refusal(path, faults.words(error), _ADVICE.get(type(error), "check the file, or name another data path"))
