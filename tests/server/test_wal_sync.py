"""The WAL reaches the disk in portions, beside the writer; nothing depends on it."""

import os
import threading

import pytest

from bunqueue_trio.server import wal_sync as wal_sync_module
from bunqueue_trio.server.wal_sync import SYNC_EVERY_FRAMES, WalSync
from tests.server.fakes import wait_for


class Disk:
    """Stands in for ``os.fdatasync``: counts, blocks and fails when told to."""

    def __init__(self) -> None:
        self.sync_count = 0
        self.error: OSError | None = None
        self.may_go_on = threading.Event()
        self.may_go_on.set()

    def fdatasync(self, file: int) -> None:
        os.fstat(file)  # it is open
        self.may_go_on.wait()
        self.sync_count += 1
        if self.error is not None:
            raise self.error


@pytest.fixture
def disk(monkeypatch):
    made = Disk()
    monkeypatch.setattr(wal_sync_module.os, "fdatasync", made.fdatasync)
    return made


@pytest.fixture
async def wal_sync(tmp_path):
    (tmp_path / "jobs.db-wal").write_bytes(b"frames")
    made = WalSync(str(tmp_path / "jobs.db"))
    yield made
    made.stop()


async def test_each_portion_is_synced_once(disk, wal_sync):
    for frames in range(0, 4 * SYNC_EVERY_FRAMES, 16):
        wal_sync.keep_up(frames)
        await wait_for(lambda: not wal_sync.is_running)

    assert disk.sync_count == 3


async def test_a_wal_that_begins_anew_is_followed(disk, wal_sync):
    wal_sync.keep_up(4 * SYNC_EVERY_FRAMES)
    await wait_for(lambda: not wal_sync.is_running)
    wal_sync.keep_up(10)
    wal_sync.keep_up(SYNC_EVERY_FRAMES - 1)
    assert not wal_sync.is_running

    wal_sync.keep_up(SYNC_EVERY_FRAMES)
    await wait_for(lambda: not wal_sync.is_running)

    assert disk.sync_count == 2


async def test_one_sync_at_a_time_whatever_is_written_meanwhile(disk, wal_sync):
    disk.may_go_on.clear()
    for portion in range(1, 10):
        wal_sync.keep_up(portion * SYNC_EVERY_FRAMES)
    assert wal_sync.is_running

    disk.may_go_on.set()
    await wait_for(lambda: not wal_sync.is_running)
    assert disk.sync_count == 1


async def test_an_error_is_left_to_those_who_need_the_sync(disk, wal_sync):
    disk.error = OSError(5, "Input/output error")
    wal_sync.keep_up(SYNC_EVERY_FRAMES)
    await wait_for(lambda: not wal_sync.is_running)

    disk.error = None
    wal_sync.keep_up(2 * SYNC_EVERY_FRAMES)
    await wait_for(lambda: not wal_sync.is_running)
    assert disk.sync_count == 2


async def test_a_wal_that_is_not_there_is_nothing_to_sync(disk, tmp_path):
    wal_sync = WalSync(str(tmp_path / "missing.db"))
    wal_sync.keep_up(SYNC_EVERY_FRAMES)
    await wait_for(lambda: not wal_sync.is_running)
    wal_sync.stop()

    assert disk.sync_count == 0


async def test_stopping_ends_the_sync_and_closes_the_file(disk, tmp_path):
    (tmp_path / "jobs.db-wal").write_bytes(b"frames")
    wal_sync = WalSync(str(tmp_path / "jobs.db"))
    wal_sync.keep_up(SYNC_EVERY_FRAMES)

    wal_sync.stop()

    assert disk.sync_count == 1
    assert wal_sync._file is not None
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(wal_sync._file)
