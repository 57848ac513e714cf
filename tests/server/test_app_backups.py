"""Backups as a task of the whole server in this process, on the real clock and a real file, with a bucket in memory.

Source: design, "One nursery tree"; S3 backup and restore, "Scheduler"; R354, R423.
"""

import gc
import os
import signal
import sys
from contextlib import closing
from pathlib import Path

import apsw
import pytest
import trio

from bunqueue_trio.app import run_server
from bunqueue_trio.backup import keeper, s3
from bunqueue_trio.config import Config
from tests.backup.fakes import FakeObjectStore, names_beside
from tests.server.fakes import wait_for

TIMEOUT_S = 30


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> FakeObjectStore:
    """The bucket; the first backup is due at once."""
    made = FakeObjectStore()
    monkeypatch.setattr(s3, "S3Store", lambda settings, patience: made.belong_to(patience))
    monkeypatch.setattr(keeper, "FIRST_S", 0.05)
    return made


@pytest.fixture
def process_settings():
    """What the server sets for its whole process, put back."""
    interval, thresholds = sys.getswitchinterval(), gc.get_threshold()
    handler = signal.signal(signal.SIGTERM, signal.SIG_IGN)  # one that comes too late must not end the tests
    yield
    signal.signal(signal.SIGTERM, handler)
    sys.setswitchinterval(interval)
    gc.set_threshold(*thresholds)
    gc.unfreeze()


def config(path: Path) -> Config:
    return Config(
        tcp_port=0,
        http_port=0,
        data_path=str(path),
        s3_backup_enabled=True,
        s3_access_key_id="a",
        s3_secret_access_key="s",
        s3_bucket="b",
        s3_backup_interval=60_000,
    )


@pytest.mark.slow
async def test_the_server_makes_backups_by_itself(tmp_path, store, process_settings):
    with trio.fail_after(TIMEOUT_S):
        async with trio.open_nursery() as nursery:
            await nursery.start(run_server, config(tmp_path / "jobs.db"))
            await wait_for(lambda: store.backups and ("list", "backups/") in store.history)
            os.kill(os.getpid(), signal.SIGTERM)

    assert len(store.backups) == 1
    assert names_beside(tmp_path / "jobs.db") == {""}


@pytest.mark.slow
@pytest.mark.parametrize("is_pinned", [False, True])
async def test_the_wal_is_folded_in_before_a_backup_and_a_reader_that_keeps_it_is_no_obstacle(
    tmp_path, store, process_settings, is_pinned
):
    path = tmp_path / "jobs.db"
    with trio.fail_after(TIMEOUT_S):
        async with trio.open_nursery() as nursery:
            await nursery.start(run_server, config(path))
            wal = path.with_name("jobs.db-wal")
            with closing(apsw.Connection(str(path))) as reader:
                reader.execute("CREATE TABLE theirs AS SELECT 1").fetchall()
                if is_pinned:
                    reader.execute("BEGIN").fetchall()
                    reader.execute("SELECT count(*) FROM theirs").fetchall()
                assert wal.stat().st_size > 0
                await wait_for(lambda: store.backups)
                assert (wal.stat().st_size > 0) is is_pinned
            os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.slow
async def test_a_stop_during_an_upload_does_not_wait_for_it_and_lists_nothing(tmp_path, store, process_settings):
    is_hanging = trio.Event()
    token = trio.lowlevel.current_trio_token()

    def hang(name: str, key: str) -> None:
        if name == "part":
            token.run_sync_soon(is_hanging.set)
            assert store.patience is not None
            store.patience.pause(60)  # as a socket does: until it is cut

    store.before = hang
    with trio.fail_after(TIMEOUT_S):
        async with trio.open_nursery() as nursery:
            await nursery.start(run_server, config(tmp_path / "jobs.db"))
            await is_hanging.wait()
            os.kill(os.getpid(), signal.SIGTERM)
            began = trio.current_time()
        assert trio.current_time() - began < 10

    assert store.objects == {}
    assert names_beside(tmp_path / "jobs.db") == {""}
