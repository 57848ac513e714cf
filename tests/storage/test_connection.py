"""Opening, pragmas, WAL checkpoints, refusals. Source: R3-R10, K26, PD-20, PD-24, persistence 12.2-12.4."""

import os
from pathlib import Path

import apsw
import pytest

from bunqueue_trio.errors import StorageError
from bunqueue_trio.storage import connection as db
from bunqueue_trio.storage import writes
from bunqueue_trio.storage.batch import Batch
from bunqueue_trio.storage.records import plain_row
from tests.storage.samples import job


def pragma(connection: apsw.Connection, name: str):
    return connection.execute(f"PRAGMA {name}").fetchall()[0][0]


def push(connection: apsw.Connection, path: str, *ids: str) -> None:
    rows = [plain_row(job(job_id), seq, "waiting") for seq, job_id in enumerate(ids, 1)]
    writes.apply_batch(connection, Batch(plain=rows), path)


COMMON = {"busy_timeout": 5_000, "cache_size": -64_000, "temp_store": 2, "mmap_size": 268_435_456}


def test_pragmas_of_the_writer(writer):
    expected = COMMON | {
        "journal_mode": "wal", "synchronous": 1, "page_size": 4_096, "wal_autocheckpoint": 0, "query_only": 0,
        "journal_size_limit": 12 * 1024 * 1024, "auto_vacuum": 0, "locking_mode": "normal", "application_id": 0,
        "user_version": 0, "encoding": "UTF-8",
    }  # fmt: skip

    assert {name: pragma(writer, name) for name in expected} == expected


def test_pragmas_of_a_reader(writer, path):
    reader = db.open_reader(path)
    expected = COMMON | {"journal_mode": "wal", "query_only": 1}

    assert {name: pragma(reader, name) for name in expected} == expected
    with pytest.raises(apsw.ReadOnlyError):
        reader.execute("DELETE FROM jobs")
    reader.close()


def test_the_page_size_is_on_disk(writer, path):
    assert int.from_bytes(Path(path).read_bytes()[16:18], "big") == 4_096


def test_synchronous_full_is_taken(path):
    writer = db.open_writer(path, synchronous="FULL")

    assert pragma(writer, "synchronous") == 2
    writer.close()


def cache_bytes(connection):
    return connection.status(apsw.SQLITE_DBSTATUS_CACHE_USED)[0]


def test_a_database_in_memory():
    opened = db.open_data_file(":memory:")
    push(opened.writer, ":memory:", "a")

    assert opened.reader is opened.writer
    assert db.wal_bytes(":memory:") == 0
    assert not db.checkpoint(opened.writer, "TRUNCATE").busy
    db.close_data_file(opened)


def test_readers_see_what_is_committed_and_do_not_hold_up_the_writer(writer, path):
    reader = db.open_reader(path)
    reader.execute("BEGIN")
    assert reader.execute("SELECT count(*) FROM jobs").fetchall() == [(0,)]

    push(writer, path, "a")

    assert reader.execute("SELECT count(*) FROM jobs").fetchall() == [(0,)]
    reader.execute("COMMIT")
    assert reader.execute("SELECT count(*) FROM jobs").fetchall() == [(1,)]
    reader.close()


def test_a_passive_checkpoint_moves_pages_and_keeps_the_file(writer, path):
    push(writer, path, "a", "b")
    size = db.wal_bytes(path)

    result = db.checkpoint(writer, "PASSIVE")

    assert result.wal_frames == result.moved > 0
    assert not result.busy
    assert db.wal_bytes(path) == size > 0


@pytest.mark.parametrize("mode", ["PASSIVE", "TRUNCATE"])
def test_a_checkpoint_gives_back_what_the_page_cache_has_grown_by(writer, path, mode):
    assert 0 < cache_bytes(writer) < db.CACHE_KEPT_BYTES
    push(writer, path, *(f"{number}-{'x' * 1_000}" for number in range(2_000)))
    assert cache_bytes(writer) > db.CACHE_KEPT_BYTES

    db.checkpoint(writer, mode)

    assert cache_bytes(writer) < 1_000_000
    assert pragma(writer, "cache_size") == -64_000


def test_a_truncating_checkpoint_empties_the_wal(writer, path):
    push(writer, path, "a")

    assert db.checkpoint(writer, "TRUNCATE") == db.CheckpointResult(False, 0, 0)
    assert db.wal_bytes(path) == 0


def test_a_reader_makes_a_truncating_checkpoint_busy_without_waiting(writer, path):
    reader = db.open_reader(path)
    push(writer, path, "a")
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM jobs").fetchall()
    push(writer, path)
    writer.execute("INSERT INTO bqt_finished VALUES ('x')")

    result = db.checkpoint(writer, "TRUNCATE", wait_ms=0)

    assert result.busy
    assert db.wal_bytes(path) > 0
    assert pragma(writer, "busy_timeout") == 5_000
    reader.close()


def test_the_wal_never_checkpoints_by_itself(writer, path):
    for _ in range(12):
        ids = [os.urandom(8).hex() for _ in range(500)]
        rows = [plain_row(job(job_id), None, "waiting") for job_id in ids]  # type: ignore[arg-type]
        writes.apply_batch(writer, Batch(plain=rows), path)

    assert db.checkpoint(writer, "PASSIVE").wal_frames > 1_000


def test_closing_leaves_one_file(path, tmp_path):
    opened = db.open_data_file(path)
    push(opened.writer, path, "a")

    db.close_data_file(opened)

    assert os.listdir(tmp_path) == ["jobs.db"]
    assert apsw.Connection(path).execute("SELECT id FROM jobs").fetchall() == [("a",)]


def test_the_wal_of_a_symbolic_link_lies_beside_the_file(path, tmp_path):
    (tmp_path / "real").mkdir()
    os.symlink(tmp_path / "real" / "jobs.db", path)
    writer = db.open_writer(path)

    push(writer, path, "a")

    assert db.wal_bytes(path) == os.stat(tmp_path / "real" / "jobs.db-wal").st_size > 0
    writer.close()


def test_the_lease_secret_is_drawn_once_and_kept(writer, path):
    secret = db.lease_secret(writer)

    assert len(secret) == 32
    assert db.lease_secret(writer) == secret
    db.close_writer(writer)
    again = db.open_writer(path)
    assert db.lease_secret(again) == secret
    again.close()


def test_lease_secrets_of_two_files_differ(tmp_path):
    secrets = set()
    for name in ("a.db", "b.db"):
        writer = db.open_writer(str(tmp_path / name))
        secrets.add(db.lease_secret(writer))
        writer.close()

    assert len(secrets) == 2


def test_closing_with_a_full_disk_reports_and_closes(writer, path):
    push(writer, path, "a")

    class Full:
        """A connection whose checkpoint finds no space."""

        def execute(self, sql, *rest):
            raise apsw.FullError("database or disk is full")

        def close(self, force=False):
            writer.close(force)

    with pytest.raises(StorageError, match="database or disk is full"):
        db.close_writer(Full())  # type: ignore[arg-type]

    with pytest.raises(apsw.ConnectionClosedError):
        writer.execute("SELECT 1")
