"""The task of one connection over a socket pair: own writes, deadlines, limits in both directions, and the end.

Source: protocol 1.1 to 1.5, 5.4; P-1, P-2.
"""

import socket

import pytest
import trio

from bunqueue_trio.engine.history import History
from bunqueue_trio.errors import StorageError
from bunqueue_trio.model import commands as c
from bunqueue_trio.server import connection as connection_module
from bunqueue_trio.settings.limits import MAX_FRAME_BYTES
from tests.server.fakes import QUEUE, Rig, frame, header, is_cut, pull, pushes, settle_down

# one segment sees its own writes


async def test_a_durable_push_is_seen_by_the_read_behind_it(rig: Rig, connect, autojump_clock):
    wire = connect(rig)
    await wire.send(*pushes(["a"], durable=True), {"cmd": "GetJob", "id": "a"}, {"cmd": "Count", "queue": QUEUE})

    pushed, got, counted = await wire.replies(3)

    assert pushed == {"ok": True, "id": "a"}
    assert got["job"]["state"] == "waiting"
    assert counted["count"] == 1


async def test_an_ack_is_seen_by_the_read_behind_it(rig: Rig, connect, autojump_clock):
    wire = connect(rig)
    await wire.send(*pushes(["a"]), pull())
    token = (await wire.replies(2))[1]["token"]
    await wire.send({"cmd": "ACK", "id": "a", "token": token}, {"cmd": "GetState", "id": "a"})

    assert await wire.replies(2) == [{"ok": True}, {"ok": True, "id": "a", "state": "completed"}]


async def test_an_ack_frees_the_slot_for_the_pull_behind_it(rig: Rig, connect, autojump_clock):
    state = rig.engine.state.queue(QUEUE)
    state.settings = type(state.settings)(concurrency_limit=1)
    wire = connect(rig)
    await wire.send(*pushes(["a", "b"]), pull(), pull())
    replies = await wire.replies(4)
    assert replies[3]["job"] is None
    await wire.send({"cmd": "ACK", "id": "a", "token": replies[2]["token"]}, pull())

    assert await wire.reply() == {"ok": True}
    assert (await wire.reply())["job"]["id"] == "b"


async def test_replies_of_other_commands_overtake_a_promise(rig: Rig, connect, autojump_clock):
    wire = connect(rig)
    rig.store.close_gate()
    await wire.send(*pushes(["a"], durable=True, reqId=1), *pushes(["b"], reqId=2), {"cmd": "Ping", "reqId": 3})

    assert [reply["reqId"] for reply in await wire.replies(2)] == [2, 3]
    await wire.silence()
    rig.store.open_gate()

    assert (await wire.reply())["reqId"] == 1


async def test_a_segment_behind_a_failed_promise_goes_on(rig: Rig, connect, autojump_clock):
    wire = connect(rig)
    rig.store.fail_next.append(StorageError("disk I/O error"))
    await wire.send(*pushes(["a"], durable=True), {"cmd": "GetState", "id": "a"})

    assert await wire.replies(2) == [
        {"ok": False, "error": "disk I/O error"},
        {"ok": True, "id": "a", "state": "unknown"},
    ]


async def test_frames_may_be_cut_anywhere(rig: Rig, connect, autojump_clock):
    wire = connect(rig)
    for byte in frame(pushes(["a"])[0]) + frame({"cmd": "GetState", "id": "a"}):
        await wire.send_bytes(bytes([byte]))
        await settle_down()

    assert [reply["ok"] for reply in await wire.replies(2)] == [True, True]


# facts


@pytest.fixture
async def forgetful(start_rig):
    """A rig whose memory keeps one completed job, with three in the file."""
    rig = await start_rig(history=History(max_jobs=1))
    talker = rig.talker()
    for job_id in ("x", "y", "z"):
        talker.segment(*pushes([job_id]), pull())
        talker.say("ACK", id=job_id, token=talker.take()[-1]["token"], result=job_id)
        await settle_down()
        talker.take()
    return rig


async def test_jobs_that_memory_has_forgotten_are_found_in_the_file(forgetful: Rig, connect, autojump_clock):
    wire = connect(forgetful)
    await wire.send(
        {"cmd": "GetState", "id": "x"},
        {"cmd": "GetResult", "id": "y"},
        {"cmd": "GetState", "id": "nobody"},
        {"cmd": "GetState", "id": "z"},
    )

    states = await wire.replies(4)

    assert [reply.get("state") for reply in states] == ["completed", None, "unknown", "completed"]
    assert states[1]["result"] == "y"
    assert forgetful.store.read_count == 3
    assert forgetful.engine.state.facts == {}


async def test_a_dependency_that_memory_has_forgotten_is_met(forgetful: Rig, connect, autojump_clock):
    wire = connect(forgetful)
    await wire.send(*pushes(["next"], dependsOn=["x", "y"]), {"cmd": "GetState", "id": "next"})
    await wire.send(*pushes(["never"], dependsOn=["x", "nobody"]))

    assert [reply.get("state") for reply in await wire.replies(2)] == [None, "waiting"]
    assert await wire.reply() == {"ok": False, "error": "Dependency job not found: nobody"}


async def test_a_fact_is_looked_up_anew_for_each_command(forgetful: Rig, connect, autojump_clock):
    wire = connect(forgetful)
    await wire.send(*[{"cmd": "GetState", "id": job_id} for job_id in ("x", "y", "x")])
    await wire.replies(3)

    assert forgetful.store.read_count == 3


async def test_a_file_that_cannot_be_read_refuses_the_command_and_nothing_else(
    forgetful: Rig, connect, autojump_clock, log
):
    wire = connect(forgetful)
    forgetful.store.fail_reads = StorageError("disk I/O error")
    await wire.send({"cmd": "GetState", "id": "x", "reqId": 1}, {"cmd": "Ping", "reqId": 2})

    assert await wire.reply() == {"ok": False, "reqId": 1, "error": "Storage unavailable: disk I/O error"}
    assert (await wire.reply())["reqId"] == 2
    forgetful.store.fail_reads = None
    assert (await wire.call("GetState", id="x"))["state"] == "completed"


# parked pulls


async def test_a_parked_pull_leaves_the_connection_free_until_fifty_do(rig: Rig, connect, autojump_clock):
    wire = connect(rig)
    await wire.send(*[pull(timeout=60_000, reqId=n) for n in range(50)], {"cmd": "Ping", "reqId": "51st"})
    await wire.silence()
    await wire.send_bytes(frame({"cmd": "Nope", "reqId": "refused"}))
    assert (await wire.reply())["reqId"] == "refused"
    await wire.silence()

    rig.push("a")

    assert [(await wire.reply())["reqId"] for _ in range(2)] == [0, "51st"]


async def test_at_their_end_waits_are_answered_null_and_what_waited_behind_runs(rig: Rig, connect, autojump_clock):
    wire = connect(rig)
    began = trio.current_time()
    await wire.send(*[pull(timeout=1_000)] * 50, *[{"cmd": "Ping"}] * 3)

    replies = await wire.replies(53)

    assert [reply["job"] for reply in replies if "job" in reply] == [None] * 50
    assert trio.current_time() - began == pytest.approx(1, abs=1e-6)


async def test_a_slot_that_is_freed_behind_a_promise_keeps_the_order(rig: Rig, connect, autojump_clock):
    wire = connect(rig)
    await wire.send(
        *[pull(timeout=1_000)] * 50,
        *pushes(["a"], durable=True),
        {"cmd": "GetState", "id": "a"},
        {"cmd": "Cancel", "id": "nobody"},
    )
    await wire.silence()
    rig.push("wake")

    replies = await wire.replies(5)

    ids = [reply["job"]["id"] for reply in replies if reply.get("job")]
    assert ids == ["wake", "a"]
    assert [reply for reply in replies if "job" not in reply][:2] == [
        {"ok": True, "id": "a"},
        {"ok": True, "id": "a", "state": "active"},
    ]
    assert replies[-1]["ok"] is False


async def test_a_connection_that_closes_takes_its_waits_along(rig: Rig, connect, autojump_clock):
    wire = connect(rig)
    await wire.send(pull(timeout=60_000))
    await settle_down()
    assert rig.broker.waiting.count == 1
    wire.close()
    await wire.has_ended.wait()

    assert rig.broker.waiting.count == 0
    rig.push("a")
    assert rig.state("a") == "waiting"


async def test_at_the_stop_a_long_poll_is_answered_null(rig: Rig, connect, autojump_clock):
    wire = connect(rig)
    await wire.send(pull(timeout=60_000))
    await settle_down()
    rig.broker.stop_pulls()

    assert await wire.reply() == {"ok": True, "job": None, "token": None}


async def test_closing_releases_jobs_at_once(rig: Rig, connect, autojump_clock):
    holder, other = connect(rig), connect(rig)
    await holder.send(*pushes(["a"]), pull())
    await holder.replies(2)
    await other.send(pull(timeout=60_000))
    await settle_down()
    closed_s = trio.current_time()
    holder.close()

    assert (await other.reply())["job"]["id"] == "a"
    assert trio.current_time() - closed_s < 0.001


async def test_what_arrived_before_the_end_is_executed(rig: Rig, connect, autojump_clock):
    wire = connect(rig)
    await wire.send(*pushes(["a"], durable=True), {"cmd": "GetState", "id": "a"})
    wire.socket.shutdown(socket.SHUT_WR)

    assert [reply["ok"] for reply in await wire.replies(2)] == [True, True]
    assert await is_cut(wire)
    assert rig.store.ids == ["a"]


# oversize frames


async def test_an_oversize_frame_gets_one_last_reply(rig: Rig, connect, autojump_clock):
    wire = connect(rig)
    await wire.send_bytes(header(MAX_FRAME_BYTES + 1))

    assert await wire.reply() == {"ok": False, "error": "Frame too large: 67108865 bytes exceeds maximum 67108864"}
    assert await is_cut(wire)
    await wire.has_ended.wait()


async def test_text_of_another_protocol_is_oversize(rig: Rig, connect, autojump_clock):
    wire = connect(rig)
    await wire.send_bytes(b"GET / HTTP/1.1\r\n\r\n")

    assert (await wire.reply())["error"] == "Frame too large: 1195725856 bytes exceeds maximum 67108864"


async def test_good_frames_in_front_of_an_oversize_one_are_answered_first(rig: Rig, connect, autojump_clock):
    wire = connect(rig)
    await wire.send_bytes(
        b"".join(map(frame, [*pushes(["a"], durable=True), {"cmd": "GetState", "id": "a"}])) + header(1 << 31)
    )

    replies = await wire.replies(3)

    assert replies[:2] == [{"ok": True, "id": "a"}, {"ok": True, "id": "a", "state": "waiting"}]
    assert replies[2]["error"].startswith("Frame too large")
    assert await is_cut(wire)


async def test_last_words_to_a_client_that_does_not_read_end_after_a_second(rig: Rig, connect, autojump_clock):
    wire = connect(rig, buffer_bytes=4_096)
    rig.push("a", data="x" * 100_000)
    await wire.send_bytes(frame({"cmd": "GetJob", "id": "a"}) + header(1 << 31))
    began = trio.current_time()
    await wire.has_ended.wait()

    assert trio.current_time() - began == pytest.approx(connection_module.LAST_WORDS_S, abs=0.1)


# our own defects


async def test_a_defect_leaves_the_connection_open(rig: Rig, connect, autojump_clock, log):
    def fail(command, now):
        raise RuntimeError("a defect")

    rig.engine.lend({c.Count: fail})
    wire = connect(rig)

    assert await wire.call("Count", queue=QUEUE) == {"ok": False, "error": "Internal server error"}
    assert (await wire.call("Ping"))["ok"]
    assert rig.broker.internal_errors == 1
