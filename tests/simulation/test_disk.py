"""The simulated disk itself: what survives what. The test of the test."""

from pathlib import Path

import apsw
import pytest

from bunqueue_trio.errors import DiskFullError, StorageError
from bunqueue_trio.storage import connection as db
from bunqueue_trio.storage import writes
from bunqueue_trio.storage.batch import Batch
from tests.simulation.disk import VFS_NAME, Disk, Trouble, simulated_vfs
from tests.simulation.node import PATH
from tests.storage.powercut import Loss
from tests.storage.samples import plain


@pytest.fixture
def vfs():
    with simulated_vfs() as vfs:
        yield vfs


@pytest.fixture
def writer(vfs):
    """A database of three jobs, folded in and synced."""
    writer = db.open_writer(PATH, vfs=VFS_NAME)
    writes.apply_batch(writer, Batch(plain=plain(3)), PATH)
    db.checkpoint(writer, "TRUNCATE")
    yield writer
    vfs.disk.recover()
    writer.close(True)


def add(writer: apsw.Connection, start: int, *, needs_sync: bool = False) -> None:
    writes.apply_batch(writer, Batch(plain=plain(2, start), needs_sync=needs_sync), PATH)


def count(vfs, disk: Disk) -> int:
    """How many jobs a server finds on *disk*."""
    before, vfs.disk = vfs.disk, disk
    reader = db.open_writer(PATH, vfs=VFS_NAME)
    try:
        return reader.execute("SELECT count(*) FROM jobs").fetchone()[0]
    finally:
        reader.close(True)
        vfs.disk = before


def test_a_kill_keeps_what_was_written(vfs, writer):
    add(writer, 3)
    vfs.disk.plan_end(-1)

    add(writer, 5)  # nobody will see it

    assert vfs.disk.has_ended
    assert count(vfs, vfs.disk.after_kill()) == 5


def test_a_power_cut_loses_what_was_not_synced(vfs, writer):
    add(writer, 3, needs_sync=True)
    add(writer, 5)
    vfs.disk.plan_end(-1)

    assert count(vfs, vfs.disk.after_power_cut(Loss.ALL, 0)) == 5
    assert count(vfs, vfs.disk.after_power_cut(Loss.NONE, 0)) == 7


def test_a_kill_syncs_nothing(vfs, writer):
    add(writer, 3)
    vfs.disk.plan_end(-1)
    left = vfs.disk.after_kill()

    left.plan_end(-1)

    assert count(vfs, left.after_power_cut(Loss.ALL, 0)) == 3


def test_who_finds_a_wal_that_nobody_has_synced_syncs_its_folder(vfs):
    # Else a rollback journal that the first process has deleted comes back, and rolls back all that was synced since.
    vfs.disk = Disk({})
    vfs.disk.plan_end(7)
    db.open_writer(PATH, vfs=VFS_NAME).close(True)
    vfs.disk = vfs.disk.after_kill()
    assert len(vfs.disk.files[f"{Path(PATH).name}-wal"]) == 32
    second = db.open_writer(PATH, vfs=VFS_NAME)
    add(second, 0, needs_sync=True)
    vfs.disk.plan_end(-1)
    second.close(True)

    assert count(vfs, vfs.disk.after_power_cut(Loss.ALL, 0)) == 2


def test_an_end_amid_a_commit_leaves_none_of_it(vfs, writer):
    vfs.disk.plan_end(2)
    add(writer, 3)

    assert vfs.disk.has_ended
    assert count(vfs, vfs.disk.after_kill()) == 3


@pytest.mark.parametrize("trouble", [Trouble.WRITE, Trouble.TORN, Trouble.FULL, Trouble.SYNC])
def test_trouble_fails_a_commit_and_passes(vfs, writer, trouble):
    vfs.disk.plan_trouble(trouble, 0)

    with pytest.raises(DiskFullError if trouble is Trouble.FULL else StorageError):
        add(writer, 3, needs_sync=True)
    vfs.disk.recover()
    add(writer, 5)

    assert vfs.disk.trouble_count > 0
    vfs.disk.plan_end(-1)
    assert count(vfs, vfs.disk.after_kill()) == 5


@pytest.mark.parametrize("synchronous", ["NORMAL", "FULL"])
def test_what_was_refused_because_its_sync_failed_is_not_there_after_a_kill(vfs, synchronous):
    """In the WAL it is whole: whoever was told no would find it done by the next start."""
    writer = db.open_writer(PATH, vfs=VFS_NAME, synchronous=synchronous)
    writes.apply_batch(writer, Batch(plain=plain(3)), PATH)
    vfs.disk.plan_trouble(Trouble.SYNC, 0)

    with pytest.raises(StorageError, match="disk I/O error"):
        add(writer, 3, needs_sync=synchronous == "NORMAL")

    assert count(vfs, vfs.disk.after_kill()) == 3
    vfs.disk.recover()
    assert writer.pragma("synchronous") == {"NORMAL": 1, "FULL": 2}[synchronous]
    add(writer, 3, needs_sync=True)
    assert writer.execute("SELECT count(*) FROM jobs").fetchall() == [(5,)]
    writer.close(True)
