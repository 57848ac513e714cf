"""What a damaged WAL costs: never more than what only it held, never half a transaction.

Source: persistence 12.5, PD-21; R183, R184.
"""

import os
import shutil
from pathlib import Path

import apsw
import pytest

from bunqueue_trio.errors import StartError
from bunqueue_trio.storage import connection as db
from bunqueue_trio.storage import wal, writes
from bunqueue_trio.storage.batch import Batch
from bunqueue_trio.storage.records import plain_row
from tests.storage.samples import job

PUSHES = 50
FRAME = 24 + 4096


@pytest.fixture(scope="module")
def crashed(tmp_path_factory) -> Path:
    """A folder as kill -9 leaves it: 50 pushes in the main file, 50 more only in the WAL, a commit each."""
    folder = tmp_path_factory.mktemp("crashed")
    live = tmp_path_factory.mktemp("live")
    path = str(live / "jobs.db")
    writer = db.open_writer(path)
    for number in range(2 * PUSHES):
        if number == PUSHES:
            db.checkpoint(writer, "TRUNCATE")
        writes.apply_batch(writer, Batch(plain=[plain_row(job(f"{number:03}"), number + 1, "waiting")]), path)
    for name in os.listdir(live):
        shutil.copy(live / name, folder / name)
    writer.close()
    return folder


@pytest.fixture
def path(crashed, tmp_path) -> str:
    for name in os.listdir(crashed):
        shutil.copy(crashed / name, tmp_path / name)
    return str(tmp_path / "jobs.db")


def survivors(path: str) -> tuple[list[str], list[str]]:
    """Ids after a start, and the warnings it gave. The database is whole and usable."""
    warnings: list[str] = []
    writer = db.open_writer(path, warnings=warnings)
    assert writer.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    ids = [job_id for (job_id,) in writer.execute("SELECT id FROM jobs ORDER BY id")]
    writes.apply_batch(writer, Batch(plain=[plain_row(job("later"), 1_000, "waiting")]), path)
    db.close_writer(writer)
    return ids, warnings


def ids(count: int) -> list[str]:
    return [f"{number:03}" for number in range(count)]


def test_an_undamaged_wal_is_replayed(path):
    assert survivors(path) == (ids(100), [])


def test_a_shortened_wal_gives_a_strict_prefix(path):
    size = os.path.getsize(path + "-wal")
    os.truncate(path + "-wal", size // 2)

    found, warnings = survivors(path)

    assert found == ids(len(found))
    assert PUSHES < len(found) < 2 * PUSHES
    assert warnings == []


def test_a_wal_cut_by_ten_bytes_loses_one_push(path):
    os.truncate(path + "-wal", os.path.getsize(path + "-wal") - 10)

    assert survivors(path) == (ids(99), [])


def test_every_frame_boundary_gives_a_prefix(path, tmp_path):
    # given
    size = os.path.getsize(path + "-wal")
    lengths = set()

    # when: at boundaries and in the middle of frames
    for cut in range(32, size, FRAME * 23 // 2):
        folder = tmp_path / str(cut)
        folder.mkdir()
        shutil.copy(path, folder / "jobs.db")
        (folder / "jobs.db-wal").write_bytes(Path(path + "-wal").read_bytes()[:cut])
        found, warnings = survivors(str(folder / "jobs.db"))

        # then
        assert found == ids(len(found))
        assert warnings == []
        lengths.add(len(found))

    assert min(lengths) == PUSHES
    assert len(lengths) > 10


def overwrite_header(content: bytes) -> bytes:
    return b"\xa5" * 32 + content[32:]


def wrong_check_sum(content: bytes) -> bytes:
    return content[:24] + bytes(byte ^ 1 for byte in content[24:32]) + content[32:]


def wrong_salt(content: bytes) -> bytes:
    return content[:40] + bytes(byte ^ 0x5A for byte in content[40:48]) + content[48:]


@pytest.mark.parametrize(
    "damage",
    [
        overwrite_header,
        wrong_check_sum,
        wrong_salt,
        lambda content: b"\xa5" * len(content),
        lambda content: content[:20],
        lambda content: b"not a WAL",
    ],
)
def test_a_wal_that_contributes_nothing_is_kept_and_reported(path, damage):
    damaged = damage(Path(path + "-wal").read_bytes())
    Path(path + "-wal").write_bytes(damaged)

    found, warnings = survivors(path)

    assert found == ids(PUSHES)
    [warning] = warnings
    assert f"{path}-wal ({len(damaged)} bytes)" in warning
    assert f"{path}-wal.damaged-1" in warning
    assert "\n" not in warning
    assert Path(path + "-wal.damaged-1").read_bytes() == damaged


def test_an_older_copy_is_never_overwritten(path):
    Path(path + "-wal.damaged-1").write_bytes(b"older")
    Path(path + "-wal").write_bytes(b"garbage")

    _, [warning] = survivors(path)

    assert ".damaged-2" in warning
    assert Path(path + "-wal.damaged-1").read_bytes() == b"older"
    assert Path(path + "-wal.damaged-2").read_bytes() == b"garbage"


@pytest.mark.parametrize("is_deleted", [True, False])
def test_without_its_wal_the_file_holds_what_was_checkpointed(path, is_deleted):
    if is_deleted:
        os.unlink(path + "-wal")
    else:
        os.truncate(path + "-wal", 0)

    assert survivors(path) == (ids(PUSHES), [])


def test_garbage_in_the_shared_memory_file_costs_nothing(path):
    Path(path + "-shm").write_bytes(os.urandom(32_768))

    assert survivors(path) == (ids(100), [])


def test_a_wal_whose_first_commit_never_came_is_no_damage(path, tmp_path):
    # A process killed while it began to write after a checkpoint: a new header before frames of the old generation.
    writer = db.open_writer(path)
    old = Path(path + "-wal").read_bytes()
    db.checkpoint(writer, "RESTART")
    writes.apply_batch(writer, Batch(plain=[plain_row(job("new"), 500, "waiting")]), path)
    new = Path(path + "-wal").read_bytes()
    writer.close()
    assert new[16:20] != old[16:20]
    folder = tmp_path / "torn"
    folder.mkdir()
    shutil.copy(path, folder / "jobs.db")
    (folder / "jobs.db-wal").write_bytes(new[:32] + old[32:])

    found, warnings = survivors(str(folder / "jobs.db"))

    assert (found[:100], warnings) == (ids(100), [])


def test_a_damaged_wal_that_cannot_be_copied_stops_the_start(path, monkeypatch):
    Path(path + "-wal").write_bytes(b"garbage")

    def no_space(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(wal.shutil, "copyfileobj", no_space)

    with pytest.raises(StartError, match=r"cannot be copied: No space left on device; free some space"):
        db.open_writer(path)

    assert Path(path + "-wal").read_bytes() == b"garbage"
    assert not os.path.exists(path + "-wal.damaged-1")


def test_the_wal_of_a_fresh_start_is_accepted_by_sqlite_and_by_us(path):
    # The check of ours must agree with SQLite about a WAL that SQLite itself has written.
    with open(path + "-wal", "rb") as file:
        assert wal.contributes(file.read(56))
    assert apsw.Connection(path).execute("SELECT count(*) FROM jobs").fetchall() == [(100,)]
