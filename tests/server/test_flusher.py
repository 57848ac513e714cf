"""When rows go to the file, and what happens when the file refuses them.

Source: R11 to R13, R84 to R90, K16, K19, K20, K53, PD-6.
"""

import pytest
import trio
from msgspec.structs import replace

from bunqueue_trio.errors import StorageError
from tests.server.fakes import QUEUE, FakeStore, Rig, pull, pushes, settle_down

DISK_ERROR = "disk I/O error"


def numbered(count: int, prefix: str = "j") -> list[str]:
    return [f"{prefix}{number}" for number in range(count)]


def rounded(times: list[float], start: float) -> list[float]:
    return [round(time - start, 6) for time in times]


# when a flush starts


async def test_99_buffered_pushes_stay_in_memory_and_the_100th_brings_one_flush(rig: Rig, mock_clock):
    talker = rig.talker()
    talker.segment(*pushes(numbered(99)))
    await settle_down()
    assert len(talker.take()) == 99
    assert rig.store.commit_count == 0

    talker.segment(*pushes(["last"]))
    await settle_down()

    assert rig.store.commit_count == 1
    assert rig.store.ids == [*numbered(99), "last"]


async def test_a_hundred_in_one_segment_or_one_batch_are_a_hundred(rig: Rig, mock_clock):
    rig.talker().segment(*pushes(numbered(100)))
    await settle_down()
    assert rig.store.commit_count == 1

    rig.call("PUSHB", queue=QUEUE, jobs=[{"data": 1}] * 99)
    await settle_down()
    assert rig.store.commit_count == 1
    rig.call("PUSHB", queue=QUEUE, jobs=[{"data": 1}])
    await settle_down()

    assert rig.store.commit_count == 2
    assert len(rig.store.ids) == 200


async def test_one_push_is_written_after_ten_milliseconds_and_not_before(rig: Rig, mock_clock):
    rig.push("a")
    await settle_down()
    mock_clock.jump(0.009)
    await settle_down()
    assert rig.store.commit_count == 0

    mock_clock.jump(0.001_001)
    await settle_down()

    assert rig.store.commit_count == 1
    assert rig.store.ids == ["a"]


async def test_the_window_counts_from_the_first_row_whatever_follows(rig: Rig, mock_clock):
    for number in range(5):
        rig.push(f"j{number}")
        await settle_down()
        assert rig.store.commit_count == 0
        mock_clock.jump(0.002)
    await settle_down()

    assert rig.store.ids == numbered(5)
    assert rig.store.commit_count == 1


async def test_the_next_window_begins_with_the_next_row(rig: Rig, mock_clock):
    rig.push("a")
    await settle_down()
    mock_clock.jump(0.010)
    await settle_down()
    mock_clock.jump(0.007)
    rig.push("b")
    await settle_down()
    mock_clock.jump(0.009)
    await settle_down()
    assert rig.store.ids == ["a"]

    mock_clock.jump(0.001)
    await settle_down()

    assert rig.store.ids == ["a", "b"]


async def test_both_triggers_with_mixed_traffic(rig: Rig, mock_clock):
    rig.talker().segment(*pushes(numbered(100, "x")))
    await settle_down()
    rig.push("y")
    await settle_down()
    assert rig.store.commit_count == 1

    mock_clock.jump(0.010)
    await settle_down()

    assert rig.store.commit_count == 2


async def test_who_waits_for_a_commit_starts_a_flush_at_once(rig: Rig, mock_clock):
    rig.push("buffered")
    talker = rig.talker()
    talker.say("PUSH", queue=QUEUE, data=1, jobId="durable", durable=True)
    assert talker.replies == []
    await settle_down()

    assert talker.replies == [{"ok": True, "id": "durable"}]
    assert rig.store.ids == ["buffered", "durable"]
    assert rig.store.commit_count == 1


async def test_what_arrives_during_a_commit_shares_the_next(rig: Rig, mock_clock):
    talkers = [rig.talker() for _ in range(20)]
    rig.store.close_gate()
    talkers[0].segment(*pushes(["first"], durable=True))
    await settle_down()
    for number, talker in enumerate(talkers[1:]):
        talker.segment(*pushes([f"j{number}"], durable=number % 2 == 0))
    talkers[-1].say("Pause", queue="other")
    await settle_down()
    assert rig.store.commit_count == 0

    rig.store.open_gate()
    await settle_down()

    assert rig.store.commit_count == 2
    assert len(rig.store.ids) == 20
    assert all(reply["ok"] for talker in talkers for reply in talker.replies)


async def test_with_nothing_dirty_nothing_is_flushed(rig: Rig, autojump_clock):
    rig.call("GetState", id="nobody")
    rig.call("Ping")
    await trio.sleep(60)

    assert rig.store.attempts_s == []
    assert rig.flusher.flush_count == 0


async def test_each_flush_looks_after_the_wal(rig: Rig, autojump_clock):
    rig.push("a")
    await trio.sleep(0.02)
    rig.store.fail_checkpoints = StorageError(DISK_ERROR)
    rig.push("b")
    await trio.sleep(0.02)

    assert rig.store.tended_count == 2
    assert not rig.health.is_degraded
    assert rig.flusher.flush_count == 2


# promises


async def test_a_durable_push_does_not_exist_before_its_commit_and_is_handed_out_after_it(rig: Rig, mock_clock):
    waiting, pushing = rig.talker(), rig.talker()
    waiting.segment(pull(timeout=60_000))
    rig.store.close_gate()
    pushing.segment(*pushes(["a"], durable=True))
    await settle_down()
    assert waiting.replies == []
    assert rig.call("PULL", queue=QUEUE)["job"] is None
    assert rig.state("a") == "unknown"
    assert rig.call("GetJobCounts", queue=QUEUE)["counts"]["waiting"] == 0

    rig.store.open_gate()
    await settle_down()

    assert pushing.replies == [{"ok": True, "id": "a"}]
    assert [reply["job"]["id"] for reply in waiting.replies] == ["a"]


async def test_an_ack_is_answered_after_its_commit_and_the_job_stays_active_until_then(rig: Rig, mock_clock):
    talker = rig.talker()
    talker.segment(*pushes(["a"]), pull())
    token = talker.take()[1]["token"]
    rig.store.close_gate()
    talker.say("ACK", id="a", token=token, result=7)
    await settle_down()
    assert talker.replies == []
    assert rig.state("a") == "active"

    rig.store.open_gate()
    await settle_down()

    assert talker.replies == [{"ok": True}]
    assert rig.state("a") == "completed"
    assert rig.store.states == {"a": "completed"}


# being cancelled


async def test_a_flusher_cancelled_before_the_commit_has_begun_loses_nothing(start_rig, mock_clock):
    rig = await start_rig(flusher=False)
    talker = rig.talker()
    rig.store.door = trio.Event()
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(rig.flusher.run)
            talker.segment(*pushes(["a", "b"]), *pushes(["c"], durable=True))
            await settle_down()
            talker.segment(*pushes(["d"]), *pushes(["e"], durable=True))
            await settle_down()
            scope.cancel()
    assert scope.cancelled_caught
    assert rig.store.attempts_s == []
    assert [reply["id"] for reply in talker.take()] == ["a", "b", "d"]
    rig.check()
    rig.store.door = None

    assert await rig.flusher.finish(10) == 0

    assert rig.store.ids == ["a", "b", "c", "d", "e"]
    assert rig.store.commit_count == 1
    assert talker.replies == [{"ok": True, "id": "c"}, {"ok": True, "id": "e"}]


async def test_a_flusher_cancelled_while_it_commits_settles_first(start_rig, mock_clock):
    rig = await start_rig(flusher=False)
    talker = rig.talker()
    rig.store.close_gate()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(rig.flusher.run)
        talker.segment(*pushes(["a"], durable=True))
        await settle_down()
        nursery.cancel_scope.cancel()
        rig.store.open_gate()

    assert talker.replies == [{"ok": True, "id": "a"}]
    assert rig.store.ids == ["a"]
    assert not rig.engine.state.changes


async def test_a_flusher_cancelled_in_its_pause_leaves_no_pause_behind(start_rig, autojump_clock):
    rig = await start_rig(flusher=False)
    rig.store.fill_disk()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(rig.flusher.run)
        rig.push("a")
        await trio.sleep(10)
        assert rig.health.is_pausing
        nursery.cancel_scope.cancel()

    assert not rig.health.is_pausing


# stopping


async def test_flush_all_empties_the_buffer_at_once_and_folds_the_wal_in(rig: Rig, mock_clock):
    rig.push("a")

    await rig.flusher.flush_all()

    assert rig.store.ids == ["a"]
    assert rig.store.checkpoints == ["TRUNCATE"]


async def test_flush_all_waits_for_the_flush_that_is_under_way(rig: Rig, nursery, mock_clock):
    rig.store.close_gate()
    rig.talker().segment(*pushes(["a"], durable=True))
    await settle_down()
    rig.push("b")
    nursery.start_soon(rig.flusher.flush_all)
    await settle_down()
    assert len(rig.store.attempts_s) == 1

    rig.store.open_gate()
    await settle_down()

    assert rig.store.ids == ["a", "b"]
    assert rig.store.checkpoints == ["TRUNCATE"]


async def test_flush_all_gives_up_on_a_full_disk_and_loses_nothing(rig: Rig, autojump_clock):
    rig.store.fill_disk()
    rig.push("a")

    await rig.flusher.flush_all()
    assert rig.store.checkpoints == []
    rig.store.heal()
    await trio.sleep(1)

    assert rig.store.ids == ["a"]


async def test_flush_all_does_not_mind_a_wal_that_cannot_be_folded_in(rig: Rig, mock_clock):
    rig.store.fail_checkpoints = StorageError(DISK_ERROR)
    rig.push("a")

    await rig.flusher.flush_all()

    assert rig.store.ids == ["a"]


async def test_the_last_flush_is_tried_until_the_file_takes_it(start_rig, autojump_clock):
    rig = await start_rig(flusher=False)
    rig.push("a")
    rig.store.fail_next.extend([StorageError(DISK_ERROR)] * 7)
    began = trio.current_time()

    assert await rig.flusher.finish(30) == 0

    assert rig.store.ids == ["a"]
    assert trio.current_time() - began == pytest.approx(1.4)


async def test_a_stop_with_nothing_to_write_is_at_once(start_rig, mock_clock):
    rig = await start_rig(flusher=False)

    assert await rig.flusher.finish(30) == 0
    assert rig.store.attempts_s == []


async def test_jobs_that_the_file_never_takes_are_spilled_and_counted(start_rig, autojump_clock, tmp_path):
    rig = await start_rig(flusher=False, store=FakeStore(str(tmp_path / "jobs.db")))
    rig.store.fill_disk()
    rig.talker().segment(*pushes(numbered(3)))
    began = trio.current_time()

    assert await rig.flusher.finish(30) == 3

    assert trio.current_time() - began == pytest.approx(30)
    [spilled] = tmp_path.iterdir()
    assert spilled.name.startswith("jobs.db.lost-")
    assert all(job_id.encode() in spilled.read_bytes() for job_id in numbered(3))


@pytest.mark.parametrize("begun_by", ["the flusher", "a client", "a client, slowly"])
async def test_what_a_defect_kept_from_the_file_is_left_to_the_last_flush(start_rig, autojump_clock, begun_by):
    rig = await start_rig(flusher=False)
    rig.push("a")
    pusher = rig.talker()
    pusher.segment(*pushes(["durable"], durable=True))
    rig.store.fail_next.append(MemoryError())
    if begun_by == "a client":
        with pytest.raises(MemoryError):
            rig.flusher.commit_here()
    else:
        if begun_by == "a client, slowly":
            rig.store.close_gate()
            assert rig.flusher.commit_here()
            rig.store.open_gate()
        with pytest.raises(MemoryError):
            await rig.flusher.run()

    assert await rig.flusher.finish(5) == 0

    assert rig.store.ids == ["a", "durable"]
    assert pusher.replies == [{"ok": True, "id": "durable"}]


async def test_what_a_defect_keeps_from_the_last_flush_too_is_spilled(start_rig, autojump_clock, tmp_path):
    rig = await start_rig(flusher=False, store=FakeStore(str(tmp_path / "jobs.db")))
    rig.push("a")
    rig.store.fail_always = MemoryError()

    with pytest.raises(MemoryError):
        await rig.flusher.finish(5)

    [spilled] = tmp_path.iterdir()
    assert b"a" in spilled.read_bytes()


async def test_indexes_that_had_to_be_built_anew_are_told_of(rig: Rig, autojump_clock, log, monkeypatch):
    write = rig.store.write
    monkeypatch.setattr(rig.store, "write", lambda batch: replace(write(batch), has_mended=True))

    rig.push("a")
    await rig.flusher.flush_all()

    assert [line["message"] for line in log()] == [
        "Damaged indexes of the data file have been built anew: look at the disk"
    ]


async def test_a_wal_that_cannot_be_folded_in_is_told_once_per_trouble(rig: Rig, autojump_clock, log):
    for job_id in ("a", "b"):
        rig.store.fail_checkpoints = StorageError(DISK_ERROR)
        rig.push(job_id)
        await trio.sleep(0.1)
        for _ in range(3):
            await rig.flusher.flush_all()
        assert [line["message"] for line in log()] == ["WAL checkpoint failed"]
        rig.store.fail_checkpoints = None
        await rig.flusher.flush_all()
        log().clear()
