"""The change log of a real store: shipped while commits go on, kept while the bucket is away, begun anew when broken.

Source: point-in-time recovery; D-151, D-152.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import apsw
import pytest
import trio

from bunqueue_trio.backup import keeper, log_keeper
from bunqueue_trio.backup.keeper import Backups
from bunqueue_trio.backup.log_keeper import ChangeLog
from bunqueue_trio.backup.replaying import restore_to
from bunqueue_trio.clock import Clock, SystemClock
from bunqueue_trio.errors import ObjectStoreError
from bunqueue_trio.server.store import Store, open_store
from bunqueue_trio.storage.batch import Batch
from bunqueue_trio.storage.records import plain_row
from tests.backup.fakes import GONE, FakeObjectStore, patience, settings
from tests.server.fakes import wait_for
from tests.storage.samples import job

PREFIX = "backups/"
TIMEOUT_S = 30


class Rig:
    """A store with a log and backups, over a bucket in memory."""

    def __init__(
        self, path: Path, store: Store, objects: FakeObjectStore, clock: Clock | None = None, **changes: Any
    ) -> None:
        clock = clock or SystemClock()
        self.store = store
        self.objects = objects
        self.count = 0
        chosen = settings(path, log_interval_ms=60_000, **changes)
        self.log = ChangeLog(
            chosen,
            clock,
            lambda _settings, _patience: objects,
            in_writer=store.in_writer,
            attach=store.follow,
            make_patience=patience,
        )
        self.backups = Backups(
            chosen,
            clock,
            lambda _settings, _patience: objects,
            version="1",
            make_patience=patience,
            changes=self.log,
        )

    async def commit(self, number: int = 1, size: int = 10) -> None:
        """That many flushes of a job each."""
        for _ in range(number):
            self.count += 1
            made = job(f"job-{self.count}", data=b"\xc6" + size.to_bytes(4, "big") + b"x" * size)
            await self.store.commit(Batch(plain=[plain_row(made, self.count, "waiting")]))
            await self.store.tend_wal()

    @property
    def starts(self) -> list[str]:
        """Keys of the snapshots that chains begin with."""
        return [key for key in self.objects.objects if key.endswith("/start.snapshot")]

    @property
    def segments(self) -> list[str]:
        return [key for key in self.objects.objects if key.endswith(".segment.gz")]

    def status(self) -> Any:
        status = self.backups.status().log
        assert status is not None
        return status

    def restored(self, target: Path) -> int:
        """How many jobs come back."""
        restore_to(self.objects, PREFIX, None, str(target), patience(), SystemClock())
        with closing(sqlite3.connect(target)) as connection:
            return int(connection.execute("SELECT count(*) FROM jobs").fetchone()[0])


@pytest.fixture
async def rig(tmp_path: Path, store: FakeObjectStore) -> AsyncIterator[Rig]:
    (tmp_path / "live").mkdir()
    path = tmp_path / "live" / "jobs.db"
    async with opened_rig(path, store, log_max_bytes=2 << 20) as made:
        yield made


@asynccontextmanager
async def opened_rig(
    path: Path, objects: FakeObjectStore, clock: Clock | None = None, **changes: Any
) -> AsyncIterator[Rig]:
    """A rig on a real file."""
    with trio.fail_after(TIMEOUT_S):
        async with open_store(str(path), synchronous="NORMAL") as opened:
            made = Rig(path, opened, objects, clock, **changes)
            try:
                yield made
            finally:
                if made.log._chain is not None:
                    made.log._chain.give_up("the end of the test")


@pytest.fixture
def target(tmp_path: Path) -> Path:
    (tmp_path / "other").mkdir()
    return tmp_path / "other" / "jobs.db"


async def test_what_is_committed_is_shipped_and_comes_back(rig: Rig, target: Path):
    await rig.commit(3)
    await rig.backups.make()
    await rig.commit(5)
    assert rig.status().waiting_bytes == 0  # nothing is copied before it is time
    at = rig.status().recovery_point_at
    await trio.sleep(0.01)
    assert rig.status().recovery_point_at == at

    await rig.log.ship()

    assert rig.restored(target) == 8
    assert (rig.status().shipped_count, rig.status().error) == (1, None)
    assert rig.status().recovery_point_at > at
    await rig.log.ship()
    assert len(rig.segments) == 1  # nothing new, nothing uploaded


async def test_without_a_backup_nothing_can_be_restored_and_nothing_is_promised(rig: Rig):
    await rig.commit(3)

    await rig.log.ship()

    assert rig.objects.objects == {}
    assert rig.status().recovery_point_at is None
    assert rig.log.needs_snapshot
    assert rig.store.follower is None  # and commits cost nothing


async def test_checkpoints_and_a_restart_of_the_wal_lose_no_frame(rig: Rig, target: Path):
    await rig.backups.make()
    for mode in ("PASSIVE", "TRUNCATE", "RESTART", "FULL"):
        await rig.commit(10, size=3_000)
        await rig.store.checkpoint(mode)  # type: ignore[arg-type]
        await rig.commit(1)
    await rig.log.ship()

    assert rig.restored(target) == 44


async def test_an_absent_bucket_is_waited_for(rig: Rig, target: Path):
    await rig.backups.make()
    rig.objects.fail(GONE, "put_stream")
    for _ in range(5):
        await rig.commit(2)
        await rig.log.ship()
    status = rig.status()
    assert status.error == f"Changes cannot be uploaded: {GONE}"
    assert status.failing_since is not None
    assert status.waiting_bytes > 0
    assert not rig.segments

    rig.objects.before = lambda name, key: None
    await rig.log.ship()
    await rig.log.ship()

    assert (rig.status().error, rig.status().waiting_bytes) == (None, 0)
    assert rig.restored(target) == 10
    assert len(rig.segments) == 3  # those that waited went into few


async def test_a_log_that_outgrows_its_bound_ends_and_the_disk_is_free(rig: Rig, target: Path, tmp_path: Path):
    await rig.backups.make()
    rig.objects.fail(GONE, "put_stream")
    for _ in range(4):
        await rig.commit(20, size=20_000)
        await rig.log.ship()

    assert rig.status().broken_count == 1
    assert "bytes of changes wait to be uploaded" in rig.status().error
    assert rig.log.snapshot_wanted.is_set()
    assert rig.log.needs_snapshot
    assert rig.store.follower is None
    assert not list((tmp_path / "live").glob("*.log-*"))
    assert rig.restored(target) == 0  # the backup is still good


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log begins, and begins anew, without a pause."""
    monkeypatch.setattr(keeper, "BEGIN_LOG_S", 0.01)
    monkeypatch.setattr(keeper, "RETRY_S", 0.01)


async def test_the_log_begins_with_a_snapshot_that_is_none_of_the_backups(rig: Rig, target: Path, at_once):
    await rig.commit(1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(rig.backups.run)
        await wait_for(lambda: not rig.log.needs_snapshot)
        nursery.cancel_scope.cancel()
    await rig.commit(2)
    await rig.log.ship()

    assert rig.objects.backups == []
    assert len(rig.starts) == 1
    status = rig.backups.status()
    assert (status.made_count, status.last_key, status.error) == (0, None, None)
    assert rig.restored(target) == 3


async def test_a_backup_that_is_asked_for_waits_for_the_snapshot_and_is_not_refused(rig: Rig, at_once):
    is_asked = threading.Event()
    rig.objects.before = lambda name, key: is_asked.wait(10) if key.endswith(".snapshot") and name == "part" else None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(rig.backups.run)
        await wait_for(lambda: [name for name, _ in rig.objects.history].count("part") == 1)
        assert rig.backups.status().is_running is False
        nursery.start_soon(rig.backups.make)
        await wait_for(lambda: rig.backups.status().is_running)
        is_asked.set()
        await wait_for(lambda: rig.objects.backups)
        nursery.cancel_scope.cancel()

    assert len(rig.starts) == 1
    assert rig.backups.status().rejected_count == 0


async def test_a_broken_log_begins_anew_with_a_snapshot_by_itself(rig: Rig, target: Path, at_once):
    async with trio.open_nursery() as nursery:
        nursery.start_soon(rig.backups.run)
        await wait_for(lambda: not rig.log.needs_snapshot)
        first = rig.status().generation
        with closing(apsw.Connection(rig.store.path)) as other:  # the same library: locks are those of a process
            other.execute("INSERT INTO bqt_meta VALUES ('theirs', 'x')")
        await rig.commit(1)

        await rig.log.ship()

        await wait_for(lambda: not rig.log.needs_snapshot)
        nursery.cancel_scope.cancel()
    assert rig.status().generation != first
    assert (rig.status().broken_count, rig.status().error) == (1, None)
    assert (len(rig.starts), rig.objects.backups) == (2, [])
    await rig.commit(1)
    await rig.log.ship()
    assert rig.restored(target) == 2


async def test_a_snapshot_that_fails_is_tried_again_and_is_no_failed_backup(rig: Rig, at_once):
    rig.objects.fail(ObjectStoreError("Access Denied", status=403), "put_stream", times=2)
    seen = set()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(rig.backups.run)
        await wait_for(lambda: seen.add(rig.status().error) or not rig.log.needs_snapshot)
        nursery.cancel_scope.cancel()

    assert "The change log cannot begin: Access Denied" in seen
    assert rig.status().error is None
    assert len(rig.starts) == 1
    assert (rig.backups.status().failed_count, rig.backups.status().error) == (0, None)


async def test_a_snapshot_that_cannot_be_read_back_does_not_fill_the_bucket(rig: Rig, at_once):
    rig.objects.fail(GONE, "get")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(rig.backups.run)
        await wait_for(lambda: [name for name, _ in rig.objects.history].count("complete") == 3)
        nursery.cancel_scope.cancel()

    assert rig.log.needs_snapshot
    assert len(rig.starts) <= 1  # the last one may be under way


async def test_a_segment_that_the_bucket_has_not_kept_is_found_and_uploaded_again(rig: Rig, target: Path):
    await rig.backups.make()
    keep = rig.objects.keep
    rig.objects.keep = lambda key, data, kind, words: keep(key, data[:-30] + b"x" * 30, kind, words)
    await rig.commit(3)

    await rig.log.ship()

    assert rig.segments == []
    assert rig.status().error is not None
    assert rig.status().waiting_bytes > 0
    rig.objects.keep = keep
    await rig.log.ship()
    assert (len(rig.segments), rig.status().error) == (1, None)
    assert rig.restored(target) == 3


@pytest.mark.parametrize(("verify", "reads"), [("off", 0), ("auto", 1), ("on", 1)])
async def test_segments_are_read_back_unless_that_is_off(tmp_path: Path, store: FakeObjectStore, verify, reads):
    async with opened_rig(tmp_path / "jobs.db", store, verify=verify) as rig:
        await rig.backups.make()
        await rig.commit(1)
        store.history.clear()

        await rig.log.ship()

        assert [name for name, _ in store.history].count("get") == reads


async def test_a_clock_that_is_put_back_ends_the_chain_once_it_is_shipped(tmp_path: Path, store: FakeObjectStore, noon):
    async with opened_rig(tmp_path / "jobs.db", store, noon) as rig:
        await rig.backups.make()
        noon.skew(3_600_000)
        await rig.commit(1)
        noon.skew(-3_600_000)
        noon.advance(10)

        await rig.log.ship()

        assert len(rig.segments) == 1
        assert rig.status().error == "The change log has ended: the clock was put back"
        assert rig.log.snapshot_wanted.is_set()
        noon.advance(10)
        await rig.backups.make()
        await rig.commit(1)
        noon.advance(10)
        await rig.log.ship()
        assert rig.status().error is None
        assert rig.log.needs_snapshot is False


async def test_a_stop_does_not_wait_long_for_a_bucket_that_was_away_before(rig: Rig, monkeypatch):
    monkeypatch.setattr(log_keeper, "HOPELESS_S", 0.05)
    await rig.backups.make()
    rig.objects.fail(GONE, "put_stream")
    await rig.commit(1)
    await rig.log.ship()
    waiting: list[Any] = []
    monkeypatch.setattr(rig.log, "_make_patience", lambda: waiting.append(patience()) or waiting[-1])
    rig.objects.before = lambda name, key: waiting[-1].pause(60)

    with trio.fail_after(5):
        await rig.log.finish()

    assert rig.store.follower is None


async def test_a_base_that_cannot_be_stored_is_no_chain(rig: Rig):
    rig.objects.fail(GONE, "put", key=".base.json")

    await rig.backups.make()

    assert rig.log.needs_snapshot
    assert rig.status().error == f"The change log cannot begin: {GONE}"
    assert len(rig.objects.backups) == 1


async def test_the_end_ships_the_rest_and_leaves_nothing(rig: Rig, target: Path, tmp_path: Path):
    await rig.backups.make()
    await rig.commit(7)

    await rig.log.finish()

    assert rig.restored(target) == 7
    assert rig.store.follower is None
    assert not list((tmp_path / "live").glob("*.log-*"))


async def test_what_a_killed_server_has_left_is_removed_at_the_start(rig: Rig, tmp_path: Path):
    left = tmp_path / "live" / "jobs.db.log-20261130T120000000Z-00-3.tmp"
    left.write_bytes(b"x")

    Rig(tmp_path / "live" / "jobs.db", rig.store, rig.objects)

    assert not left.exists()


async def test_a_log_whose_backup_has_been_deleted_asks_for_another(rig: Rig, target: Path, monkeypatch):
    monkeypatch.setattr(log_keeper, "LOOK_PERIOD_MS", -1.0)
    await rig.backups.make()
    await rig.commit(1)
    await rig.log.ship()
    assert not rig.log.needs_snapshot
    (key,) = rig.objects.backups
    rig.objects.delete(key)
    await rig.commit(1)

    await rig.log.ship()

    assert rig.log.snapshot_wanted.is_set()
    assert rig.status().error == f"The backup that the change log begins with is gone: {key}"
    await rig.backups.make()
    assert (rig.log.needs_snapshot, rig.status().error, rig.log.snapshot_wanted.is_set()) == (False, None, False)
    await rig.commit(1)
    await rig.log.ship()
    assert rig.restored(target) == 3


async def test_that_its_backup_has_been_deleted_is_noticed_while_nothing_happens(rig: Rig, monkeypatch):
    monkeypatch.setattr(log_keeper, "LOOK_PERIOD_MS", -1.0)
    await rig.backups.make()
    rig.objects.delete(rig.objects.backups[0])

    await rig.log.ship()

    assert rig.log.needs_snapshot
    assert rig.status().recovery_point_at == rig.backups.status().last_success_at  # and no longer the present


async def test_a_base_that_could_not_be_renewed_is_looked_after_at_once(tmp_path: Path, store: FakeObjectStore):
    """The retention has taken the backup that the chain was restored from, and nothing refers to the new one."""
    async with opened_rig(tmp_path / "jobs.db", store, retention=1) as rig:
        await rig.backups.make()
        await trio.sleep(0.002)
        store.fail(GONE, "put", key=".base.json")
        await rig.backups.make()

        await rig.log.ship()

        assert len(store.backups) == 1
        assert rig.log.needs_snapshot
        assert rig.log.snapshot_wanted.is_set()


async def test_a_bucket_that_comes_back_empty_is_noticed_with_the_next_upload(rig: Rig):
    await rig.backups.make()
    await rig.commit(1)
    rig.objects.fail(ObjectStoreError("The specified bucket does not exist", status=404), "put_stream")
    await rig.log.ship()
    rig.objects.objects.clear()
    rig.objects.before = lambda name, key: None

    await rig.log.ship()

    assert rig.log.needs_snapshot
    assert "is gone" in str(rig.status().error)
