"""What reaches the disk when, and what SQLite's errors become. Source: K18, PD-4, PD-22; persistence 12."""

import apsw
import pytest

from bunqueue_trio.errors import CorruptDatabaseError, DiskFullError, StorageError
from bunqueue_trio.storage import connection as db
from bunqueue_trio.storage import faults, writes
from bunqueue_trio.storage.batch import Batch
from tests.storage.samples import plain

# Syncs --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("synchronous", "needs_sync"), [("NORMAL", True), ("FULL", True), ("FULL", False)])
def test_the_connection_keeps_its_level(path, synchronous, needs_sync):
    writer = db.open_writer(path, synchronous=synchronous)
    level = writer.pragma("synchronous")

    writes.apply_batch(writer, Batch(plain=plain(3), needs_sync=needs_sync), path)

    assert writer.pragma("synchronous") == level
    writer.close()


def test_the_level_is_raised_around_this_commit_only(writer, path, trace):
    writes.apply_batch(writer, Batch(plain=plain(1)), path)
    assert not any("synchronous" in sql for sql in trace)
    trace.clear()

    writes.apply_batch(writer, Batch(plain=plain(1, 1), needs_sync=True), path)

    levels = [sql for sql in trace if "synchronous" in sql.lower() and "=" in sql]
    assert levels == ["PRAGMA synchronous = FULL", "PRAGMA synchronous = NORMAL"]
    assert trace.index(levels[0]) < trace.index("BEGIN IMMEDIATE") < trace.index("COMMIT") < trace.index(levels[1])


# Faults -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "kind", "text", "transient"),
    [
        (apsw.FullError("x"), DiskFullError, "database or disk is full", True),
        (apsw.BusyError("x"), StorageError, "database is locked", True),
        (apsw.ReadOnlyError("x"), StorageError, "attempt to write a readonly database", True),
        (apsw.IOError("x"), StorageError, "disk I/O error", True),
        (apsw.CorruptError("x"), CorruptDatabaseError, "database disk image is malformed", False),
        (apsw.NotADBError("x"), CorruptDatabaseError, "file is not a database", False),
        (apsw.ConstraintError("UNIQUE constraint failed: a.b"), StorageError, "UNIQUE constraint failed: a.b", False),
        (apsw.TooBigError("string or blob too big"), StorageError, "string or blob too big", False),
        (apsw.SQLError("no such\n table: x"), StorageError, "no such table: x", True),
    ],
)
def test_errors_keep_sqlites_words(error, kind, text, transient):
    found = faults.from_apsw(error)

    assert type(found) is kind
    assert (str(found), found.transient) == (text, transient)
