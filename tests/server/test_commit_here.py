"""A client who is alone and waits for one commit: it is made in the turn that asks for it, if it does not take long.

Where it does, or the client waits for several replies, it is begun there and ended by the flusher; while somebody else
is busy the flusher commits as ever. Reading goes on meanwhile (D-180, D-191).
"""

import pytest
import trio

from bunqueue_trio.errors import StorageError
from bunqueue_trio.server.flusher import COMMITS_WITHOUT_PATIENCE, FIRST_RETRY_S
from tests.server.fakes import QUEUE, Rig, pull, pushes, settle_down

DISK_ERROR = "disk I/O error"


async def durable(wire, job_id):
    return await wire.call("PUSH", queue=QUEUE, data=1, jobId=job_id, durable=True)


async def test_who_is_alone_needs_no_flusher(start_rig, connect, autojump_clock):
    rig = await start_rig(flusher=False)
    wire = connect(rig)

    assert await durable(wire, "a") == {"ok": True, "id": "a"}
    await wire.send(pull())
    token = (await wire.reply())["token"]
    assert await wire.call("ACK", id="a", token=token) == {"ok": True}

    assert rig.store.states == {"a": "completed"}
    assert not rig.broker.is_flushing


async def test_buffered_changes_of_before_are_committed_along(start_rig, connect, autojump_clock):
    rig = await start_rig(flusher=False)
    wire = connect(rig)
    await wire.call("PUSH", queue=QUEUE, data=1, jobId="buffered")

    await durable(wire, "a")

    assert rig.store.ids == ["buffered", "a"]
    assert rig.store.commit_count == 1


async def test_buffered_changes_alone_are_left_to_the_flusher(start_rig, connect, autojump_clock):
    rig = await start_rig(flusher=False)
    wire = connect(rig)

    await wire.call("PUSH", queue=QUEUE, data=1, jobId="buffered")

    assert rig.store.commit_count == 0
    assert rig.broker.flush_wanted.is_set()


async def test_what_is_pipelined_is_begun_in_the_turn_and_ended_by_the_flusher(start_rig, connect, autojump_clock):
    rig = await start_rig(flusher=False)
    wire = connect(rig)

    await wire.send(*pushes(["a", "b"], durable=True))
    await wire.silence()
    assert rig.broker.is_flushing
    assert rig.broker.flush_wanted.is_set()

    await rig.flusher.flush_all()
    assert [await wire.reply(), await wire.reply()] == [{"ok": True, "id": "a"}, {"ok": True, "id": "b"}]
    assert rig.store.ids == ["a", "b"]
    assert rig.store.commit_count == 1
    await durable(wire, "c")  # what takes longer in any case is no reason for impatience
    assert rig.store.commit_count == 2


async def test_while_somebody_else_is_busy_too_it_is_left_to_the_flusher(start_rig, connect, autojump_clock):
    rig = await start_rig(flusher=False)
    wire, other = connect(rig), connect(rig)
    await wire.call("Ping")
    await other.call("Ping")

    await wire.send(*pushes(["a"], durable=True))
    await wire.silence()

    assert rig.store.commit_count == 0
    assert rig.broker.flush_wanted.is_set()


async def test_a_commit_that_takes_longer_holds_nobody_and_is_ended_by_the_flusher(rig: Rig, connect, autojump_clock):
    wire, other = connect(rig), connect(rig)
    await other.call("Ping")
    await wire.call("Ping")
    rig.store.close_gate()
    await wire.send(*pushes(["slow"], durable=True, reqId=1))
    await settle_down()
    assert rig.broker.is_flushing

    assert (await other.call("Ping"))["ok"]
    await wire.send({"cmd": "Ping", "reqId": 2})
    assert (await wire.reply())["reqId"] == 2
    rig.store.open_gate()

    assert (await wire.reply())["reqId"] == 1
    assert rig.store.ids == ["slow"]
    assert not rig.broker.is_flushing


async def test_after_a_slow_commit_the_next_ones_are_left_to_the_flusher_for_a_while(start_rig, connect, mock_clock):
    rig = await start_rig(flusher=False)
    wire = connect(rig)
    rig.store.close_gate()
    await wire.send(*pushes(["slow"], durable=True))
    await settle_down()
    rig.store.open_gate()
    await rig.flusher.flush_all()
    await wire.reply()

    for number in range(COMMITS_WITHOUT_PATIENCE):
        await wire.send(*pushes([f"j{number}"], durable=True))
        await settle_down()
        before = rig.store.commit_count
        await rig.flusher.flush_all()
        assert rig.store.commit_count == before + 1
        await wire.reply()

    before = rig.store.commit_count
    await wire.send(*pushes(["quick"], durable=True))
    await settle_down()
    assert rig.store.commit_count == before + 1


@pytest.mark.parametrize("is_slow", [False, True])
async def test_a_commit_that_is_refused_pauses_as_any_other(rig: Rig, connect, mock_clock, is_slow):
    wire = connect(rig)
    await wire.send(*pushes(["buffered"]))
    await wire.reply()
    rig.store.fail_next.append(StorageError(DISK_ERROR))
    if is_slow:
        rig.store.close_gate()
    await wire.send(*pushes(["a"], durable=True))
    await settle_down()
    rig.store.open_gate()

    assert await wire.reply() == {"ok": False, "error": DISK_ERROR}
    await settle_down()
    assert len(rig.store.attempts_s) == 1
    mock_clock.jump(FIRST_RETRY_S)
    await settle_down()
    assert len(rig.store.attempts_s) == 2
    assert rig.store.ids == ["buffered"]


async def test_who_leaves_during_a_slow_commit_loses_nothing_of_it(rig: Rig, connect, autojump_clock):
    wire = connect(rig)
    rig.store.close_gate()
    await wire.send(*pushes(["slow"], durable=True))
    await settle_down()
    wire.close()
    await settle_down()

    rig.store.open_gate()
    await settle_down()

    assert rig.store.ids == ["slow"]
    assert not rig.broker.is_flushing


@pytest.mark.parametrize("ends", ["flush_all", "finish"])
async def test_a_stopping_server_ends_what_was_begun(start_rig, connect, mock_clock, ends):
    rig = await start_rig(flusher=False)
    wire = connect(rig)
    rig.store.close_gate()
    await wire.send(*pushes(["slow"], durable=True))
    await settle_down()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(rig.flusher.flush_all if ends == "flush_all" else lambda: rig.flusher.finish(5.0))
        await settle_down()
        assert rig.store.ids == []
        rig.store.open_gate()

    assert rig.store.ids == ["slow"]
    assert (await wire.reply())["ok"]
    rig.broker.flush_turn.acquire_nowait()


async def test_whoever_reads_the_file_waits_for_a_slow_commit(rig: Rig, connect, autojump_clock):
    wire, other = connect(rig), connect(rig)
    await other.call("Ping")
    await wire.call("Ping")
    rig.store.close_gate()
    await wire.send(*pushes(["slow"], durable=True))
    await settle_down()
    await other.send({"cmd": "GetJobs", "queue": QUEUE, "state": "completed"})
    await settle_down()
    assert rig.broker.is_flushing

    rig.store.open_gate()

    assert (await other.reply())["ok"]
    assert (await wire.reply())["id"] == "slow"


async def test_a_due_checkpoint_is_left_to_the_flusher(rig: Rig, connect, autojump_clock):
    wire = connect(rig)
    await wire.call("Ping")
    before = rig.store.tended_count
    rig.store.is_checkpoint_due = True

    await durable(wire, "a")
    await settle_down()

    assert rig.store.tended_count == before + 1


async def test_during_a_checkpoint_it_is_left_to_the_flusher_and_tried_again_after_it(start_rig, connect, mock_clock):
    rig = await start_rig(flusher=False)
    wire = connect(rig)
    rig.store.is_checkpointing = True
    await wire.send(*pushes(["a"], durable=True))
    await settle_down()
    assert rig.store.commit_count == 0
    assert rig.broker.flush_wanted.is_set()
    await rig.flusher.flush_all()
    await wire.reply()

    rig.store.is_checkpointing = False
    await durable(wire, "b")

    assert rig.store.commit_count == 2


async def test_everybody_else_gets_a_turn_between_two_commits(start_rig, connect, autojump_clock):
    rig = await start_rig(flusher=False)
    wire = connect(rig)
    trail: list[str] = []

    async def somebody_else():
        while len(trail) < 6:
            trail.append("else")
            await trio.lowlevel.checkpoint()

    await durable(wire, "a")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(somebody_else)
        for job_id in ("b", "c"):
            await durable(wire, job_id)
            trail.append(job_id)

    assert trail.index("b") < trail.index("c")
    assert "else" in trail[trail.index("b") : trail.index("c")]
