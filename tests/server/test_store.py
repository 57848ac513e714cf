"""The real store: a file in a temporary directory, two threads, the real clock."""

import threading
from contextlib import ExitStack, closing
from typing import Any

import apsw
import pytest
import trio

from bunqueue_trio.errors import DiskFullError, StartError, StorageError
from bunqueue_trio.model.entries import QueueSettings
from bunqueue_trio.server import store as store_module
from bunqueue_trio.server.flusher import Flusher
from bunqueue_trio.server.store import open_store
from bunqueue_trio.storage import connection as db
from bunqueue_trio.storage import reads, writes
from bunqueue_trio.storage.batch import Batch
from bunqueue_trio.storage.connection import JOURNAL_SIZE_LIMIT_BYTES
from bunqueue_trio.storage.repairs import repair_keys
from tests.engine_harness import EngineHarness
from tests.server.fakes import FULL, Rig, settle_down, wait_for


@pytest.fixture
def batch_of():
    """Make a batch of new jobs; the rows of one test never clash."""
    harness = EngineHarness(auto_commit=False)

    def make(*ids: str, result: str | None = None, **options: Any) -> Batch:
        for job_id in ids:
            harness.push(jobId=job_id, **options)
            if result is not None:
                pulled = harness.pull()
                assert pulled is not None
                harness.ack(job_id, pulled[1], result=result)
        flight = harness.take()
        harness.land(flight)
        return flight.batch

    return make


def stored_ids(path) -> list[str]:
    # Through the store's own copy of SQLite: two copies in one process do not see each other's locks.
    with closing(apsw.Connection(str(path))) as connection:
        return [row[0] for row in connection.execute("SELECT id FROM jobs ORDER BY rowid")]


async def test_what_was_committed_is_seen_by_others_and_stays(tmp_path, batch_of):
    path = tmp_path / "jobs.db"
    async with open_store(str(path), synchronous="NORMAL") as store:
        report = await store.commit(batch_of("a", "b"))

        assert stored_ids(path) == ["a", "b"]
        assert report.wal_bytes == store.wal_bytes > 0
        assert not store.is_in_memory
    assert stored_ids(path) == ["a", "b"]
    assert [entry.name for entry in tmp_path.iterdir()] == ["jobs.db"]  # the WAL is folded in and gone


async def test_recovery_may_repair_the_file(tmp_path):
    path = str(tmp_path / "jobs.db")
    with closing(db.open_writer(path)) as writer:
        writer.execute("INSERT INTO queue_state(name, paused) VALUES (x'71', 1)")

    async with open_store(path, synchronous="NORMAL") as store:
        await store.recover(repair_keys)

        assert await store.read(lambda reader: dict(reads.queue_settings(reader))) == {"q": QueueSettings(True)}


async def test_a_file_that_cannot_be_repaired_stops_the_start(tmp_path):
    path = str(tmp_path / "jobs.db")

    def fail(_connection: apsw.Connection) -> None:
        raise DiskFullError("database or disk is full")

    async with open_store(path, synchronous="NORMAL") as store:
        with pytest.raises(StartError, match=r"jobs\.db: database or disk is full; free some space"):
            await store.recover(fail)


async def test_sizes_for_the_metrics(tmp_path, batch_of):
    path = tmp_path / "jobs.db"
    async with open_store(str(path), synchronous="NORMAL") as store:
        await store.commit(batch_of("a"))
        facts = store.facts()
        path.rename(tmp_path / "elsewhere.db")
        moved = store.facts()
        (tmp_path / "elsewhere.db").rename(path)

    assert facts is not None
    assert moved is not None
    assert facts.data_bytes > 0
    assert facts.wal_bytes > 0
    assert 0 <= facts.checkpoint_age_s < 60
    assert moved.data_bytes == 0


async def test_in_memory_there_are_no_sizes():
    async with open_store(":memory:", synchronous="NORMAL") as store:
        assert store.facts() is None


async def test_a_completed_job_is_found_and_another_is_not(tmp_path, batch_of):
    async with open_store(str(tmp_path / "jobs.db"), synchronous="NORMAL") as store:
        await store.commit(batch_of("a", result="done"))
        await store.commit(batch_of("b"))

        found = await store.find_completed(["a", "b", "c"])

    assert found["a"].record.id == "a"
    assert bytes(found["a"].result) == b"\xa4done"
    assert (found["b"], found["c"]) == (None, None)


async def test_reads_have_a_thread_of_their_own_beside_a_commit(tmp_path, nursery, monkeypatch, batch_of):
    real, began, release = writes.apply_batch, threading.Event(), threading.Event()

    def slow(*args):
        began.set()
        release.wait()
        return real(*args)

    async with open_store(str(tmp_path / "jobs.db"), synchronous="NORMAL") as store:
        monkeypatch.setattr(writes, "apply_batch", slow)
        nursery.start_soon(store.commit, batch_of("a"))
        await wait_for(began.is_set)

        assert await store.read(lambda db: db.execute("SELECT count(*) FROM jobs").fetchone()) == (0,)
        release.set()
        await store.commit(batch_of("b"))
        assert await store.read(lambda db: db.execute("SELECT count(*) FROM jobs").fetchone()) == (2,)


async def test_a_reading_connection_cannot_write(tmp_path):
    async with open_store(str(tmp_path / "jobs.db"), synchronous="NORMAL") as store:
        with pytest.raises(Exception, match="readonly"):
            await store.read(lambda db: db.execute("DELETE FROM jobs"))


async def test_a_failed_commit_changes_nothing_and_says_so(tmp_path, monkeypatch, batch_of):
    async with open_store(str(tmp_path / "jobs.db"), synchronous="NORMAL") as store:
        pages = await store.in_writer(lambda writer: writer.pragma("page_count"))
        await store.in_writer(lambda writer: writer.pragma("max_page_count", pages))
        large = batch_of(*map(str, range(50)), data="x" * 4_000)

        with pytest.raises(DiskFullError, match=FULL):
            await store.commit(large)

        assert await store.read(lambda db: db.execute("SELECT count(*) FROM jobs").fetchone()) == (0,)
        await store.in_writer(lambda writer: writer.pragma("max_page_count", 1_000_000))
        await store.commit(batch_of("a"))
    assert stored_ids(tmp_path / "jobs.db") == ["a"]


async def test_a_commit_that_has_begun_is_never_abandoned(tmp_path, monkeypatch, batch_of):
    real, began, release = writes.apply_batch, threading.Event(), threading.Event()

    def slow(*args):
        began.set()
        release.wait()
        return real(*args)

    async def cancel_it():
        await wait_for(began.is_set)
        scope.cancel()
        await settle_down()
        release.set()

    async with open_store(str(tmp_path / "jobs.db"), synchronous="NORMAL") as store:
        monkeypatch.setattr(writes, "apply_batch", slow)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(cancel_it)
            with trio.CancelScope() as scope:
                assert (await store.commit(batch_of("a"))).duration_ms > 0
    assert stored_ids(tmp_path / "jobs.db") == ["a"]


async def test_a_commit_cancelled_before_it_has_begun_writes_nothing(tmp_path, batch_of):
    async with open_store(str(tmp_path / "jobs.db"), synchronous="NORMAL") as store:
        with trio.CancelScope() as scope:
            scope.cancel()
            await store.commit(batch_of("a"))
        assert scope.cancelled_caught
    assert stored_ids(tmp_path / "jobs.db") == []


# the WAL


async def test_a_small_wal_is_left_alone_and_a_large_one_is_folded_in(tmp_path, monkeypatch, batch_of):
    monkeypatch.setattr(store_module, "PASSIVE_ABOVE_FRAMES", 20)
    async with open_store(str(tmp_path / "jobs.db"), synchronous="NORMAL") as store:
        checkpoints = []
        real = store.checkpoint

        async def counting(mode):
            checkpoints.append(mode)
            await real(mode)

        store.checkpoint = counting
        await store.commit(batch_of("a"))
        await store.tend_wal()
        assert checkpoints == []

        began = store.checkpointed_mono_s
        while store._wal_frames <= 20:
            await store.commit(batch_of(*(f"{store._wal_frames}-{n}" for n in range(10))))
        await store.tend_wal()
        assert checkpoints == ["PASSIVE"]
        assert store.checkpointed_mono_s > began
        await store.tend_wal()  # nothing new
        assert checkpoints == ["PASSIVE"]


async def test_a_huge_wal_is_truncated(tmp_path, monkeypatch, batch_of):
    monkeypatch.setattr(store_module, "PASSIVE_ABOVE_FRAMES", 2)
    monkeypatch.setattr(store_module, "TRUNCATE_ABOVE_BYTES", 10_000)
    async with open_store(str(tmp_path / "jobs.db"), synchronous="NORMAL") as store:
        await store.commit(batch_of(*map(str, range(100))))
        assert store.wal_bytes > 10_000
        await store.tend_wal()

        assert store.wal_bytes == 0
        assert (tmp_path / "jobs.db-wal").stat().st_size == 0


async def test_a_wal_that_had_to_grow_gives_the_space_back_once_it_is_folded_in(tmp_path, batch_of):
    """Or each time of trouble would leave a larger one, and a disk that was full once would be full for good."""
    async with open_store(str(tmp_path / "jobs.db"), synchronous="NORMAL") as store:
        for number in range(14):
            await store.commit(batch_of(str(number), data="x" * 1_000_000))
        assert store.wal_bytes > JOURNAL_SIZE_LIMIT_BYTES
        await store.checkpoint("PASSIVE")
        await store.commit(batch_of("next"))

        assert (tmp_path / "jobs.db-wal").stat().st_size == JOURNAL_SIZE_LIMIT_BYTES


async def test_a_wal_that_a_reader_pins_is_tried_again_later_and_warned_of_once(tmp_path, monkeypatch, log, batch_of):
    monkeypatch.setattr(store_module, "PASSIVE_ABOVE_FRAMES", 2)
    monkeypatch.setattr(store_module, "TRUNCATE_ABOVE_BYTES", 10_000)
    monkeypatch.setattr(store_module, "PAUSE_S", 0.02)
    path = tmp_path / "jobs.db"
    async with open_store(str(path), synchronous="NORMAL") as store:
        await store.commit(batch_of("first"))
        with closing(apsw.Connection(str(path))) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM jobs").fetchone()
            for start in range(3):
                await store.commit(batch_of(*(f"{start}-{n}" for n in range(100))))
                await store.tend_wal()
                await trio.sleep(0.025)
            assert store.wal_bytes > 10_000
            assert len([line for line in log() if "read transaction" in line["message"]]) == 1
            reader.execute("ROLLBACK")
        await trio.sleep(0.025)
        await store.tend_wal()
        assert store.wal_bytes == 0


@pytest.mark.parametrize("trouble", ["a reader", "a sync under way", "an error"])
async def test_a_wal_that_could_not_be_folded_in_is_so_later_without_any_traffic(
    tmp_path, monkeypatch, nursery, trouble
):
    monkeypatch.setattr(store_module, "PASSIVE_ABOVE_FRAMES", 2)
    monkeypatch.setattr(store_module, "PAUSE_S", 0.02)
    path = tmp_path / "jobs.db"
    async with open_store(str(path), synchronous="NORMAL") as store:
        rig = Rig(store=store)
        with ExitStack() as over, monkeypatch.context() as patch:
            if trouble == "a reader":
                reader = over.enter_context(closing(apsw.Connection(str(path))))
                reader.execute("BEGIN")
                reader.execute("SELECT count(*) FROM jobs").fetchone()
            elif trouble == "a sync under way":
                patch.setattr(store._wal_sync, "is_running", True)
            else:
                patch.setattr(store_module.db, "checkpoint", fail)
            flusher = await nursery.start(run_in_scope, rig.flusher)
            for number in range(10):
                rig.push(f"job{number}")
            await wait_for(lambda: rig.flusher.flush_count)
            await trio.sleep(0.05)
            assert store._wal_frames > 2

        await wait_for(lambda: not store._wal_frames)
        assert rig.flusher.flush_count == 1
        flusher.cancel()


async def run_in_scope(flusher: Flusher, *, task_status: trio.TaskStatus[trio.CancelScope]) -> None:
    with trio.CancelScope() as scope:
        task_status.started(scope)
        await flusher.run()


async def test_a_checkpoint_waits_for_a_sync_that_is_under_way_but_not_for_ever(tmp_path, monkeypatch, batch_of):
    monkeypatch.setattr(store_module, "PASSIVE_ABOVE_FRAMES", 20)
    monkeypatch.setattr(store_module, "MAX_UNSYNCED_FRAMES", 60)
    async with open_store(str(tmp_path / "jobs.db"), synchronous="NORMAL") as store:
        monkeypatch.setattr(store._wal_sync, "is_running", True)
        due_at = []
        while store._wal_frames <= 80:
            await store.commit(batch_of(*(f"{store._wal_frames}-{n}" for n in range(10))))
            if store.is_checkpoint_due:
                due_at.append(store._wal_frames)

        assert due_at
        assert min(due_at) >= 60
        monkeypatch.setattr(store._wal_sync, "is_running", False)
        await store.tend_wal()
        assert not store.is_checkpoint_due


async def test_a_checkpoint_that_fails_is_not_tried_again_at_once(tmp_path, monkeypatch, batch_of):
    monkeypatch.setattr(store_module, "PASSIVE_ABOVE_FRAMES", 2)
    monkeypatch.setattr(store_module, "PAUSE_S", 0.05)

    async with open_store(str(tmp_path / "jobs.db"), synchronous="NORMAL") as store:
        await store.commit(batch_of("a"))
        with monkeypatch.context() as patch:
            patch.setattr(store_module.db, "checkpoint", fail)
            with pytest.raises(StorageError):
                await store.tend_wal()
        assert not store.is_checkpoint_due

        await trio.sleep(0.06)
        assert store.is_checkpoint_due


# opening and closing


async def test_a_second_store_on_the_same_file_is_refused(tmp_path):
    path = str(tmp_path / "jobs.db")
    async with open_store(path, synchronous="NORMAL"):
        with pytest.raises(StartError, match=r"jobs\.db"):
            async with open_store(path, synchronous="NORMAL"):
                raise AssertionError
    async with open_store(path, synchronous="NORMAL"):
        pass


async def test_closing_ends_the_threads_also_when_cancelled(tmp_path, batch_of):
    with trio.CancelScope() as scope:
        async with open_store(str(tmp_path / "jobs.db"), synchronous="FULL") as store:
            await store.commit(batch_of("a"))
            scope.cancel()
            await trio.lowlevel.checkpoint()

    assert not {"bunqueue-writer", "bunqueue-reader"} & {thread.name for thread in threading.enumerate()}
    assert [entry.name for entry in tmp_path.iterdir()] == ["jobs.db"]


async def test_a_wal_that_cannot_be_folded_in_at_the_end_is_left_to_the_next_start(tmp_path, monkeypatch, log):
    real = store_module.db.close_data_file

    def fail(opened):
        real(opened)
        raise StorageError("disk I/O error")

    monkeypatch.setattr(store_module.db, "close_data_file", fail)
    async with open_store(str(tmp_path / "jobs.db"), synchronous="NORMAL"):
        pass

    assert [line["level"] for line in log()] == ["warn"]
    assert "bunqueue-writer" not in {thread.name for thread in threading.enumerate()}


async def test_in_memory_one_thread_serves_both(tmp_path, monkeypatch, batch_of):
    monkeypatch.chdir(tmp_path)
    async with open_store(":memory:", synchronous="NORMAL") as store:
        await store.commit(batch_of("a", result="done"))
        assert store.is_in_memory
        assert (await store.find_completed(["a"]))["a"] is not None
        await store.tend_wal()
        await store.checkpoint("TRUNCATE")
    assert list(tmp_path.iterdir()) == []


async def test_the_lease_secret_belongs_to_the_file(tmp_path):
    secrets = []
    for name in ("one.db", "one.db", "two.db"):
        async with open_store(str(tmp_path / name), synchronous="NORMAL") as store:
            secrets.append(store.lease_secret)

    assert secrets[0] == secrets[1] != secrets[2]
    assert len(secrets[0]) == 32


async def test_free_space_is_that_of_the_files_disk(tmp_path):
    async with open_store(str(tmp_path / "jobs.db"), synchronous="NORMAL") as store:
        assert store.free_bytes() > 0
        store.path = "/nowhere/at/all/jobs.db"
        assert store.free_bytes() == 0


@pytest.mark.parametrize("replacement", [None, b"something else"])
async def test_a_file_that_was_removed_or_replaced_is_noticed(tmp_path, batch_of, monkeypatch, replacement):
    monkeypatch.setattr(store_module, "LOOK_PERIOD_S", 0.0)
    path = tmp_path / "jobs.db"
    async with open_store(str(path), synchronous="NORMAL") as store:
        await store.commit(batch_of("a"))
        path.rename(tmp_path / "elsewhere.db")
        if replacement is not None:
            path.write_bytes(replacement)

        with pytest.raises(StorageError, match="removed or replaced"):
            await store.commit(batch_of("b"))

        path.unlink(missing_ok=True)
        (tmp_path / "elsewhere.db").rename(path)
        await store.commit(batch_of("c"))
        assert stored_ids(path) == ["a", "c"]


@pytest.mark.parametrize("is_link", [False, True])
async def test_a_commit_counts_although_its_wal_can_no_longer_be_looked_at(tmp_path, batch_of, is_link):
    folder = tmp_path / "data"
    folder.mkdir()
    path = folder / "jobs.db"
    if is_link:
        path.symlink_to(tmp_path / "data" / "real.db")
    async with open_store(str(path), synchronous="NORMAL") as store:
        await store.commit(batch_of("a"))  # from here on nobody looks for a second whether the file is there
        folder.rename(tmp_path / "elsewhere")
        folder.write_bytes(b"no folder")

        report = await store.commit(batch_of("b"))

        assert report.wal_bytes == 0
        folder.unlink()
        (tmp_path / "elsewhere").rename(folder)
        assert stored_ids(path) == ["a", "b"]


@pytest.mark.parametrize("replacement", [None, b"something else"])
async def test_a_pinned_read_of_a_file_that_is_gone_is_refused_until_it_is_back(tmp_path, batch_of, replacement):
    path = tmp_path / "jobs.db"
    seen = []
    async with open_store(str(path), synchronous="NORMAL") as store:
        await store.commit(batch_of("a"))
        path.rename(tmp_path / "elsewhere.db")
        if replacement is not None:
            path.write_bytes(replacement)

        for _ in range(2):
            with pytest.raises(StorageError, match="removed or replaced"):
                await store.read_pinned(lambda db: seen.append(1), lambda: None)

        path.unlink(missing_ok=True)
        (tmp_path / "elsewhere.db").rename(path)
        await store.read_pinned(lambda db: seen.extend(db.execute("SELECT id FROM jobs")), lambda: None)
        assert seen == [("a",)]


async def test_a_store_whose_file_could_not_be_opened_for_a_list_still_closes_in_order(
    tmp_path, batch_of, monkeypatch, log
):
    async with open_store(str(tmp_path / "jobs.db"), synchronous="NORMAL") as store:
        await store.commit(batch_of("a"))
        monkeypatch.setattr(db, "open_reader", refuse)

        with pytest.raises(StorageError, match="no descriptor left"):
            await store.read_pinned(lambda db: None, lambda: None)

    assert [entry.name for entry in tmp_path.iterdir()] == ["jobs.db"]


def refuse(path: str) -> apsw.Connection:
    raise StartError(f"Cannot open database {path}: no descriptor left")


def fail(*_args: Any, **_options: Any) -> None:
    raise StorageError("disk I/O error")


async def test_a_pinned_read_that_has_ended_its_transaction_by_itself_says_why(tmp_path, batch_of):
    async with open_store(str(tmp_path / "jobs.db"), synchronous="NORMAL") as store:

        def end(connection: apsw.Connection) -> None:
            connection.execute("ROLLBACK")
            fail()

        with pytest.raises(StorageError, match="disk I/O error"):
            await store.read_pinned(end, lambda: None)


@pytest.mark.parametrize("in_memory", [False, True])
async def test_a_pinned_read_sees_the_file_as_it_was(tmp_path, nursery, batch_of, in_memory):
    # given: a read that begins before a commit and ends after it
    path = ":memory:" if in_memory else str(tmp_path / "jobs.db")
    async with open_store(path, synchronous="NORMAL") as store:
        await store.commit(batch_of("a"))
        may_commit, seen = trio.Event(), []

        async def read() -> None:
            await store.read_pinned(
                lambda db: seen.append(db.execute("SELECT id FROM jobs").fetchall()), may_commit.set
            )

        # when
        nursery.start_soon(read)
        await may_commit.wait()
        await store.commit(batch_of("b"))
        await wait_for(lambda: seen)

        # then: nor does it pin the WAL
        assert seen == [[("a",)]]
        await read()
        assert seen[1] == [("a",), ("b",)]
        await store.checkpoint("TRUNCATE")
        assert store.wal_bytes == 0


async def test_a_pinned_read_that_fails_lets_go_of_the_file(tmp_path, batch_of):
    async with open_store(str(tmp_path / "jobs.db"), synchronous="NORMAL") as store:
        for _ in range(2):
            with pytest.raises(ZeroDivisionError):
                await store.read_pinned(lambda db: 1 // 0, lambda: None)
        await store.commit(batch_of("a"))
        await store.checkpoint("TRUNCATE")
        assert store.wal_bytes == 0


async def test_a_pinned_read_that_is_cancelled_ends_first(tmp_path, batch_of):
    async with open_store(str(tmp_path / "jobs.db"), synchronous="NORMAL") as store:
        seen: list[int] = []
        with trio.CancelScope() as scope:
            await store.read_pinned(lambda db: seen.append(1), scope.cancel)

        assert seen == [1]
        await store.commit(batch_of("a"))
        await store.checkpoint("TRUNCATE")
        assert store.wal_bytes == 0
