"""When backups are made, one at a time, what is told and remembered, and that a stop ends them.

Source: S3 backup and restore, "Scheduler", BD-12; R354 to R356, K43.
"""

import os
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import trio

from bunqueue_trio.backup import keeper, making, stopping
from bunqueue_trio.backup.keeper import Backups
from bunqueue_trio.backup.log_naming import shared_text
from bunqueue_trio.backup.making import Made
from bunqueue_trio.backup.record import BackupLock, read_record, write_record
from bunqueue_trio.backup.stopping import run_stoppable
from bunqueue_trio.clock import TrioClock
from bunqueue_trio.errors import BackupBusyError, BackupError, BackupStoppedError, ObjectStoreError
from bunqueue_trio.model.backup import BackupRecord
from tests.backup.fakes import FakeObjectStore, names_beside, patience, settings

REFUSED = ObjectStoreError("Access Denied (PutObject, HTTP 403)", status=403)


class Rig:
    """Backups over a bucket in memory, and what they have told."""

    def __init__(self, database: Path, store: FakeObjectStore, clock: Any, **changes: Any) -> None:
        self.told: list[tuple[str, dict[str, Any]]] = []
        self.flush_count = 0
        self.flush_error: Exception | None = None
        self.opened: list[Any] = []
        self.backups = Backups(
            settings(database, **changes),
            clock,
            self._open,
            version="1",
            flush=self._flush,
            announce=lambda name, data: self.told.append((name, data)),
            make_patience=patience,
        )
        self._store = store

    def _open(self, _settings: Any, waiting: Any) -> FakeObjectStore:
        self.opened.append(waiting)
        return self._store

    async def _flush(self) -> None:
        self.flush_count += 1
        if self.flush_error is not None:
            raise self.flush_error


@pytest.fixture
def rig(database: Path, store: FakeObjectStore, noon) -> Any:
    """Backups on a clock that stands still."""

    def make(**changes: Any) -> Rig:
        return Rig(database, store, noon, **changes)

    return make


class Scheduled:
    """Backups that take *lasts_s* and do nothing else; on Trio's virtual clock there can be no thread."""

    def __init__(self, database: Path, lasts_s: float, **changes: Any) -> None:
        self.began_s: list[float] = []
        self._lasts_s = lasts_s
        self._start_s = trio.current_time()
        self.error: BackupError | None = None
        self.backups = Backups(settings(database, **changes), TrioClock(), lambda *_: FakeObjectStore(), version="1")
        self.backups._make = self._make  # type: ignore[method-assign]

    async def _make(self) -> Made:
        self.began_s.append(round(trio.current_time() - self._start_s, 3))
        await trio.sleep(self._lasts_s)
        if self.error is not None:
            raise self.error
        return Made(key="k", made_at=0, size_bytes=0, packed_bytes=0, is_proven=True)


@pytest.mark.parametrize(
    ("interval_s", "lasts_s", "until_s", "begun"),
    [
        (21_600, 5, 43_300, [60, 21_600, 43_200]),
        (90, 5, 300, [60, 90, 180, 270]),
        (60, 0, 200, [60, 120, 180]),  # both fall together at first: one is made
        (60, 5, 200, [60, 120, 180]),
        (60, 130, 400, [60, 240]),  # slower than the interval: what has become due meanwhile is left out
        (3_600, 0, 59.9, []),
    ],
)
async def test_one_a_minute_after_the_start_and_then_one_each_interval(
    tmp_path, autojump_clock, interval_s, lasts_s, until_s, begun
):
    scheduled = Scheduled(tmp_path / "x.db", lasts_s, interval_ms=interval_s * 1000)

    with trio.move_on_after(until_s):
        await scheduled.backups.run()

    assert scheduled.began_s == begun


async def test_a_failure_is_no_reason_to_stop_trying(tmp_path, autojump_clock):
    scheduled = Scheduled(tmp_path / "x.db", 1, interval_ms=60_000)
    scheduled.error = BackupError("no")

    with trio.move_on_after(200):
        await scheduled.backups.run()

    assert scheduled.began_s == [60, 120, 180]


async def test_an_unexpected_error_is_not_hidden(tmp_path, autojump_clock):
    scheduled = Scheduled(tmp_path / "x.db", 1, interval_ms=60_000)
    scheduled.error = ZeroDivisionError()  # type: ignore[assignment]

    with pytest.RaisesGroup(ZeroDivisionError):
        await scheduled.backups.run()


async def test_who_asks_for_a_backup_gets_it(tmp_path, autojump_clock, nursery):
    scheduled = Scheduled(tmp_path / "x.db", 100, interval_ms=3_600_000)
    nursery.start_soon(scheduled.backups.run)
    await trio.sleep(1)

    made = await scheduled.backups.make_on_request()

    assert made.key == "k"
    assert scheduled.began_s == [1]


async def test_a_backup_goes_on_when_whoever_asked_for_it_has_left(tmp_path, autojump_clock, nursery):
    scheduled = Scheduled(tmp_path / "x.db", 100, interval_ms=3_600_000)
    ended_s: list[float] = []
    make = scheduled.backups._make

    async def watched() -> Made:
        made = await make()
        ended_s.append(trio.current_time() - scheduled._start_s)
        return made

    scheduled.backups._make = watched  # type: ignore[method-assign]
    nursery.start_soon(scheduled.backups.run)
    await trio.sleep(1)

    with trio.move_on_after(60) as patience:
        await scheduled.backups.make_on_request()

    assert patience.cancelled_caught
    assert scheduled.backups.status().is_running
    with pytest.raises(BackupBusyError):
        await scheduled.backups.make_on_request()
    await trio.sleep(60)
    assert ended_s == [101]
    assert not scheduled.backups.status().is_running


@pytest.mark.parametrize("error", [BackupError("no"), ZeroDivisionError()])
async def test_who_asks_for_a_backup_learns_why_there_is_none(tmp_path, autojump_clock, nursery, error):
    scheduled = Scheduled(tmp_path / "x.db", 1, interval_ms=60_000)
    scheduled.error = error
    nursery.start_soon(scheduled.backups.run)
    await trio.sleep(1)

    with pytest.raises(type(error)):
        await scheduled.backups.make_on_request()

    scheduled.error = None
    await scheduled.backups.make_on_request()  # the schedule is kept to, and so are requests


async def test_a_server_that_stops_makes_none_on_request(tmp_path, autojump_clock):
    scheduled = Scheduled(tmp_path / "x.db", 100, interval_ms=3_600_000)
    told: list[str] = []

    async def ask() -> None:
        with pytest.raises(BackupStoppedError) as refused:
            await scheduled.backups.make_on_request()
        told.append(str(refused.value))

    await ask()  # it has not begun
    async with trio.open_nursery() as nursery:
        with trio.move_on_after(50):
            nursery.start_soon(ask)
            await scheduled.backups.run()
    await ask()

    assert told == [keeper.NOT_NOW] * 3
    assert not scheduled.backups.status().is_running


class FakeLog:
    """A change log that needs a snapshot when told to. ``begun_s``: when it got one."""

    def __init__(self, backups: Backups) -> None:
        self.begun_s: list[float] = []
        self.needs_snapshot = True
        self.snapshot_wanted = trio.Event()
        self.works = True
        self._start_s = trio.current_time()
        backups.changes = self  # type: ignore[assignment]
        backups._begin_log = self.begin  # type: ignore[method-assign]

    async def begin(self) -> None:
        await trio.lowlevel.checkpoint()
        self.begun_s.append(trio.current_time() - self._start_s)
        if self.works:
            self.needs_snapshot, self.snapshot_wanted = False, trio.Event()

    def lose(self) -> None:
        self.needs_snapshot = True
        self.snapshot_wanted.set()


async def test_with_a_change_log_the_first_backup_still_comes_after_a_minute(tmp_path, autojump_clock):
    scheduled = Scheduled(tmp_path / "x.db", 0, interval_ms=90_000)
    changes = FakeLog(scheduled.backups)

    with trio.move_on_after(200):
        await scheduled.backups.run()

    assert scheduled.began_s == [60, 90, 180]
    assert changes.begun_s == [2]


async def test_snapshots_for_the_log_that_fail_come_more_and_more_seldom(tmp_path, autojump_clock):
    scheduled = Scheduled(tmp_path / "x.db", 0)
    changes = FakeLog(scheduled.backups)
    changes.works = False

    with trio.move_on_after(3_000):
        await scheduled.backups.run()

    assert changes.begun_s == [2, 32, 92, 212, 452, 932, 1_532, 2_132, 2_732]
    assert scheduled.began_s == [60]


async def test_a_log_that_breaks_all_the_time_begins_anew_more_and_more_seldom_and_one_that_lasted_at_once(
    tmp_path, autojump_clock
):
    scheduled = Scheduled(tmp_path / "x.db", 0)
    changes = FakeLog(scheduled.backups)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(scheduled.backups.run)
        for after_s in (10, 1, 40, 5_000, 1):
            await trio.sleep(after_s)
            changes.lose()
        await trio.sleep(100)
        nursery.cancel_scope.cancel()

    assert changes.begun_s == [2, 32, 92, 5_051, 5_081]


async def test_a_second_one_is_refused_at_once_and_counted(tmp_path, autojump_clock):
    scheduled = Scheduled(tmp_path / "x.db", 100)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(scheduled.backups.make)
        await trio.testing.wait_all_tasks_blocked()

        with pytest.raises(BackupBusyError, match=r"^Backup already in progress$"):
            await scheduled.backups.make()

        status = scheduled.backups.status()
        assert (status.is_running, status.rejected_count) == (True, 1)
    assert scheduled.began_s == [0]
    assert scheduled.backups.status().is_running is False


async def test_what_has_been_answered_is_flushed_first_and_success_is_told(rig, store):
    it = rig()

    made = await it.backups.make()

    assert it.flush_count == 1
    assert store.backups == [made.key]
    bucket = it.backups.settings.bucket
    assert it.told == [
        ("storage:backup-started", {"bucket": bucket}),
        ("storage:backup-completed", {"bucket": bucket, "key": made.key}),
    ]


async def test_a_success_is_remembered_over_a_restart(rig, database, noon):
    made = await rig().backups.make()
    noon.advance(5_000)

    status = rig().backups.status()

    assert (status.last_key, status.last_proven_key) == (made.key, made.key)
    assert status.last_success_at == status.last_proven_at == made.made_at == noon.now().wall_ms - 5_000
    assert status.last_size == made.size_bytes
    assert read_record(str(database)).last_proven_key == made.key


async def test_one_that_is_not_read_back_is_no_proof(rig, noon):
    proven = await rig().backups.make()
    noon.advance(5_000)

    it = rig(verify="off")
    made = await it.backups.make()

    status = it.backups.status()
    assert (status.last_key, status.last_proven_key) == (made.key, proven.key)
    assert status.last_proven_at == proven.made_at


async def test_a_failure_is_told_logged_and_remembered_until_the_next_success(rig, store, noon, database, capsys):
    it = rig()
    store.fail(REFUSED, "put")
    since = noon.now().wall_ms
    for _ in range(2):
        with pytest.raises(ObjectStoreError):
            await it.backups.make()
        noon.advance(1_000)

    status = it.backups.status()
    assert (status.error, status.failing_since, status.failed_count) == (str(REFUSED), since, 2)
    assert status.last_attempt_at == since + 1_000
    assert it.told[-1] == ("storage:backup-failed", {"bucket": status.bucket, "error": str(REFUSED)})
    assert capsys.readouterr().err.count(f'[Backup] Backup failed {{"error":"{REFUSED}"}}') == 2
    assert read_record(str(database)).error == str(REFUSED)
    assert rig().backups.status().error is None  # says nothing about the time after a restart

    store.fail(REFUSED)
    await it.backups.make()
    assert (it.backups.status().error, it.backups.status().failing_since) == (None, None)
    assert read_record(str(database)).error is None


async def test_without_a_flush_there_is_no_backup(rig, store):
    it = rig()
    it.flush_error = BackupError("The write buffer cannot be flushed: database or disk is full")

    with pytest.raises(BackupError, match="cannot be flushed"):
        await it.backups.make()

    assert store.history == []
    assert it.backups.status().failed_count == 1


async def test_a_missing_folder_or_full_disk_fails_the_backup_and_not_the_server(rig, store, database):
    it = rig()
    store.before = lambda name, key: (_ for _ in ()).throw(OSError(28, "No space left on device", "scratch"))

    with pytest.raises(BackupError, match=r"^scratch: No space left on device$"):
        await it.backups.make()

    assert names_beside(database) == {""}


async def test_another_process_that_makes_one_is_not_disturbed(rig, store, database):
    it = rig()
    with BackupLock.acquire(str(database)), pytest.raises(BackupBusyError, match=r"^Backup already in progress$"):
        await it.backups.make()

    assert store.history == []
    assert (it.backups.status().rejected_count, it.backups.status().error) == (1, None)


async def test_a_stop_during_an_upload_ends_it_and_leaves_nothing(rig, store, database):
    it = rig()
    is_waiting = threading.Event()

    def hang(name: str, key: str) -> None:
        if name == "part":
            is_waiting.set()
            it.opened[-1].pause(60)  # as a socket does: until it is cut

    store.before = hang
    async with trio.open_nursery() as nursery:
        nursery.start_soon(it.backups.make)
        await trio.to_thread.run_sync(is_waiting.wait)
        nursery.cancel_scope.cancel()

    assert store.objects == {}
    assert names_beside(database) == {""}
    assert it.backups.status().error is None
    await trio.to_thread.run_sync(lambda: BackupLock.acquire(str(database)).__exit__())


async def test_work_that_cannot_be_interrupted_is_left_behind(monkeypatch):
    monkeypatch.setattr(stopping, "GRACE_S", 0.05)
    release = threading.Event()
    waiting = patience()
    with trio.fail_after(5):
        with trio.move_on_after(0.05) as scope:
            await run_stoppable(release.wait, waiting)
        assert scope.cancelled_caught
    with pytest.raises(BackupStoppedError):
        waiting.check()
    release.set()


async def test_gentle_work_gives_way_in_a_thread_that_nobody_else_gets():
    def look() -> tuple[int, int]:
        return threading.get_native_id(), os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    before = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    gentle = await run_stoppable(look, patience(), is_gentle=True)
    usual = await run_stoppable(look, patience())

    assert gentle[1] == (max(before, stopping.NICENESS) if sys.platform == "linux" else before)
    assert usual[1] == before
    assert gentle[0] != usual[0]


async def test_an_error_of_gentle_work_is_passed_on_bare():
    def fail() -> None:
        raise BackupStoppedError("x")

    with pytest.raises(BackupStoppedError):
        await run_stoppable(fail, patience(), is_gentle=True)


async def test_a_backup_has_a_limit(rig, store, monkeypatch):
    monkeypatch.setattr(keeper, "LIMIT_S", 0.05)
    it = rig()
    store.before = lambda name, key: it.opened[-1].pause(60)

    with pytest.raises(BackupError, match=r"^Backup was given up after 0 s$"):
        await it.backups.make()

    assert it.backups.status().failed_count == 1


async def test_an_error_of_the_work_is_passed_on_bare():
    def fail() -> None:
        raise BackupStoppedError("x")

    with pytest.raises(BackupStoppedError):
        await run_stoppable(fail, patience())


@pytest.mark.parametrize("text", ["", "{", "[]", '{"lastKey": 5}'])
def test_a_record_that_cannot_be_read_is_none(database, text):
    Path(f"{database}.backup-state.json").write_text(text)

    assert read_record(str(database)) == BackupRecord()


def test_a_record_survives_a_write_that_fails(database, monkeypatch):
    write_record(str(database), BackupRecord(last_key="old"))
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError("no")))

    with pytest.raises(OSError, match="no"):
        write_record(str(database), BackupRecord(last_key="new"))

    assert read_record(str(database)).last_key == "old"


async def test_the_only_proven_backup_outlives_those_that_are_not_read_back(rig, store, noon):
    proven = await rig(retention=2).backups.make()
    for _ in range(4):
        noon.advance(1)
        last = await rig(retention=2, verify="off").backups.make()

    assert len(store.backups) == 3
    assert {proven.key, last.key} <= set(store.backups)
    noon.advance(1)
    await rig(retention=2).backups.make()
    noon.advance(1)
    await rig(retention=2).backups.make()
    assert proven.key not in store.backups
    assert len(store.backups) == 2


async def test_a_shared_prefix_is_a_trouble_until_a_backup_finds_it_no_longer(rig, monkeypatch, noon):
    one = rig()
    monkeypatch.setattr(making, "shared_with", lambda prefix, objects, interval_ms: ["one", "two"])
    since = noon.now().wall_ms
    await one.backups.make()
    noon.advance(1_000)
    made = await one.backups.make()

    status = one.backups.status()
    assert status.error == made.warning == shared_text("backups/", ["one", "two"])
    assert (status.failing_since, status.made_count, status.failed_count) == (since, 2, 0)
    monkeypatch.undo()
    await one.backups.make()
    assert (one.backups.status().error, one.backups.status().failing_since) == (None, None)


def test_a_turn_waits_for_the_snapshot_of_a_log_and_for_nothing_else(database):
    pauses: list[float] = []
    with BackupLock.acquire(str(database)), pytest.raises(BackupBusyError):
        BackupLock.acquire(str(database), pause=pauses.append)
    assert pauses == []

    first = BackupLock.acquire(str(database), is_for_log=True)

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            first.__exit__()

    with pytest.raises(BackupBusyError):
        BackupLock.acquire(str(database))
    with BackupLock.acquire(str(database), pause=pause), pytest.raises(BackupBusyError):
        BackupLock.acquire(str(database), pause=pause)
    assert pauses == [0.25] * 3


def test_a_turn_that_is_waited_for_can_be_given_up(database):
    waiting = patience()
    waiting.stop()
    with BackupLock.acquire(str(database), is_for_log=True), pytest.raises(BackupStoppedError):
        BackupLock.acquire(str(database), pause=waiting.pause)
    BackupLock.acquire(str(database)).__exit__()
