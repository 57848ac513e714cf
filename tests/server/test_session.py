"""One connection's protocol: order, refusals, authentication, holding up, and how it ends."""

import msgpack
import pytest

from bunqueue_trio import __version__
from bunqueue_trio.engine.history import History
from bunqueue_trio.errors import InvariantError, StorageError
from bunqueue_trio.model import commands as c
from bunqueue_trio.server.waiting import MAX_PARKED
from tests.server.fakes import QUEUE, Rig, pull, pushes, settle_down

OK = {"ok": True}


def error(text, **fields):
    return {"ok": False, "error": text, **fields}


# order and shape


async def test_one_segment_is_answered_in_order_and_in_one_go(rig: Rig, mock_clock):
    talker = rig.talker()

    hold = talker.segment(*pushes(["a", "b"]), {"cmd": "Count", "queue": QUEUE}, pull(), {"cmd": "Ping"})

    assert hold is None
    replies = talker.replies
    assert [reply.get("id") for reply in replies[:2]] == ["a", "b"]
    assert replies[2] == {"ok": True, "count": 2}
    assert replies[3]["job"]["id"] == "a"
    assert replies[4]["data"] == {"pong": True, "time": rig.clock.now().wall_ms}
    assert talker.sends == [5]


@pytest.mark.parametrize("req_id", ["x", "", 7, 1.5, True, [1, {"a": 2}], {"k": "v"}, b"bin"])
async def test_a_request_id_of_any_type_is_echoed(rig: Rig, mock_clock, req_id):
    talker = rig.talker()
    talker.say("Ping", reqId=req_id)
    talker.say("PUSH", queue=QUEUE, reqId=req_id)
    talker.segment(*pushes(["a"], durable=True, reqId=req_id))
    await settle_down()

    assert [reply["reqId"] for reply in talker.replies] == [req_id] * 3


async def test_a_parked_pull_is_answered_under_its_own_id(rig: Rig, mock_clock):
    talker = rig.talker()
    talker.segment(pull(timeout=1_000, reqId=1), pull(timeout=1_000, reqId=2), {"cmd": "Ping", "reqId": 3})
    rig.push("a")
    rig.push("b")

    assert [(reply["reqId"], reply.get("job", {}).get("id")) for reply in talker.replies] == [
        (3, None),
        (1, "a"),
        (2, "b"),
    ]


async def test_hello_says_who_we_are(rig: Rig, mock_clock):
    talker = rig.talker()
    talker.say("Hello", protocolVersion=1)

    assert talker.replies == [
        {
            "ok": True,
            "protocolVersion": 2,
            "capabilities": ["pipelining"],
            "server": "bunqueue",
            "version": __version__,
        }
    ]


@pytest.mark.parametrize(
    ("asked", "version"), [(3, 3), (3.0, 3), (4, 3), (2**40, 3), (2, 2), (2.9, 2), ("3", 2), (True, 2), (None, 2)]
)
async def test_hello_settles_which_protocol_the_connection_speaks(rig: Rig, mock_clock, asked, version):
    talker = rig.talker()
    talker.say("Hello", protocolVersion=asked, capabilities=["separate-job-name"])
    speaks_3 = talker.session.speaks_3
    talker.say("Hello")

    first, second = talker.replies
    assert first == {
        "ok": True,
        "protocolVersion": version,
        "capabilities": ["pipelining", "separate-job-name"] if version == 3 else ["pipelining"],
        "server": "bunqueue",
        "version": __version__,
    }
    assert speaks_3 is (version == 3)
    assert (second["protocolVersion"], talker.session.speaks_3) == (2, False)


async def test_only_hello_decides_which_protocol_a_command_is_meant_in(rig: Rig, mock_clock):
    rig.push("a")
    talker = rig.talker()
    talker.segment({"cmd": "GetJob", "id": "a", "(newer)": True}, {"cmd": "GetJob", "id": "a"})

    first, second = talker.replies
    assert first == second


async def test_who_speaks_protocol_3_hears_of_late_reports_and_must_send_tokens(rig: Rig, mock_clock):
    newer, older = rig.talker(), rig.talker()
    newer.say("Hello", protocolVersion=3)
    for job_id in ("a", "b", "c"):
        rig.push(job_id)
    newer.segment(*[pull(owner="w", timeout=0)] * 3)
    tokens = [reply["token"] for reply in newer.take()[1:]]
    newer.say("ACK", id="a", token=tokens[0])
    await settle_down()
    newer.take()

    for talker in (newer, older):
        talker.segment(
            {"cmd": "ACK", "id": "a", "token": tokens[0]},
            {"cmd": "FAIL", "id": "a", "token": tokens[0]},
            {"cmd": "ACKB", "ids": ["a"], "tokens": tokens[:1]},
            {"cmd": "MoveToWait", "id": "b" if talker is newer else "c"},
        )
        await settle_down()

    late = {"ok": True, "data": {"applied": False, "reason": "already-finalized"}}
    refusal = {"ok": False, "error": "Lock token required for job b"}
    ignored = {"ok": True, "data": {"ignoredIndices": [0], "ignoredIds": ["a"]}}
    assert newer.take() == [late, late, ignored, refusal]
    assert older.take() == [{"ok": True}] * 4
    assert (rig.state("b"), rig.state("c")) == ("active", "waiting")


async def test_each_session_has_an_id_of_its_own(rig: Rig, mock_clock):
    assert len({rig.talker().session.id for _ in range(10)}) == 10


# refused frames


async def test_broken_frames_are_answered_and_the_connection_goes_on(rig: Rig, mock_clock):
    talker = rig.talker()

    talker.bodies(b"", msgpack.packb([1]), msgpack.packb({"reqId": "r"}), msgpack.packb({"cmd": "Nope", "reqId": 5}))
    talker.say("Ping")

    assert talker.replies[:4] == [
        error("Invalid command format"),
        error("Invalid command"),
        error("Invalid command", reqId="r"),
        error("Unknown command: Nope", reqId=5),
    ]
    assert talker.replies[4]["ok"]


async def test_refused_frames_do_not_wait_behind_commands_that_do(rig: Rig, mock_clock):
    talker = rig.talker()
    rig.store.close_gate()
    hold = talker.segment(*pushes(["a"], durable=True), {"cmd": "GetJob", "id": "a"})
    assert hold is not None

    talker.bodies(b"\xc1")

    assert [reply["ok"] for reply in talker.replies] == [False]


# seeing one's own writes


async def test_a_read_waits_for_the_connections_own_promise_and_others_do_not(rig: Rig, mock_clock):
    rig.store.close_gate()
    talker, other = rig.talker(), rig.talker()
    hold = talker.segment(*pushes(["a"], durable=True), {"cmd": "GetJob", "id": "a"})
    assert hold is not None
    assert hold.ids is None
    other.say("GetState", id="a")
    assert other.take() == [{"ok": True, "id": "a", "state": "unknown"}]
    rig.store.open_gate()
    await settle_down()

    assert talker.go_on() is None
    assert talker.replies[0] == {"ok": True, "id": "a"}
    assert talker.replies[1]["job"]["id"] == "a"


async def test_commands_that_commute_do_not_wait_for_a_promise(rig: Rig, mock_clock):
    rig.store.close_gate()
    talker = rig.talker()
    hold = talker.segment(
        *pushes(["a"], durable=True), *pushes(["b"]), {"cmd": "Ping"}, *pushes(["c"], durable=True, reqId=3)
    )

    assert hold is None
    assert len(talker.replies) == 2
    assert talker.session.unconfirmed_count == 2
    rig.store.open_gate()
    await settle_down()
    assert talker.replies[2:] == [{"ok": True, "id": "a"}, {"ok": True, "id": "c", "reqId": 3}]
    assert talker.session.unconfirmed_count == 0


async def test_a_command_that_meets_another_clients_promise_waits_for_it(rig: Rig, mock_clock):
    rig.store.close_gate()
    one, two = rig.talker(), rig.talker()
    one.segment(*pushes(["a"], durable=True))
    await settle_down()

    hold = two.segment(*pushes(["a"]), {"cmd": "Ping"})
    assert hold is not None
    assert two.replies == []
    assert two.session.backlog_count == 2
    rig.store.open_gate()
    await settle_down()

    assert two.go_on() is None
    assert two.replies[0] == {"ok": True, "id": "a"}
    assert rig.call("Count", queue=QUEUE)["count"] == 1


# facts of the file


async def test_a_completed_job_that_memory_has_forgotten_is_looked_up_in_the_file(start_rig, mock_clock):
    rig = await start_rig(history=History(max_jobs=1))
    talker = rig.talker()
    for job_id in ("old", "new"):
        talker.segment(*pushes([job_id]), pull())
        talker.say("ACK", id=job_id, token=talker.take()[-1]["token"], result=[job_id])
        await settle_down()
        talker.take()

    hold = talker.segment({"cmd": "GetState", "id": "new"}, {"cmd": "GetResult", "id": "old"}, {"cmd": "Ping"})
    assert hold is not None
    assert hold.ids == ["old"]
    assert [reply["state"] for reply in talker.take()] == ["completed"]
    await rig.broker.learn(hold.ids)
    assert talker.go_on() is None

    assert talker.replies[0] == {"ok": True, "id": "old", "result": ["old"]}
    assert talker.replies[1]["ok"]


async def test_a_command_whose_facts_cannot_be_had_may_be_refused(start_rig, mock_clock):
    rig = await start_rig(history=History(max_jobs=1))
    rig.engine.state.history.has_evicted = True
    talker = rig.talker()
    hold = talker.segment({"cmd": "GetState", "id": "x", "reqId": 1}, {"cmd": "Ping", "reqId": 2})
    assert hold is not None

    talker.session.refuse_next("no")
    assert talker.go_on() is None

    assert talker.replies[0] == error("no", reqId=1)
    assert talker.replies[1]["reqId"] == 2
    talker.session.refuse_next("nothing waits")
    talker.session.flush()
    assert len(talker.replies) == 2


# parked pulls


async def test_fifty_parked_pulls_hold_up_the_next_command_but_no_refusal(rig: Rig, mock_clock):
    talker = rig.talker()
    talker.segment(*[pull(timeout=1_000)] * (MAX_PARKED - 1), {"cmd": "Ping"})
    assert len(talker.take()) == 1

    talker.segment(pull(timeout=1_000), {"cmd": "Ping", "reqId": "held"}, {"cmd": "Nope"})
    assert talker.take() == [error("Unknown command: Nope")]
    assert talker.session.backlog_count == 1
    assert talker.slot_count == 0

    rig.push("a")
    assert talker.slot_count == 1
    talker.go_on()

    replies = talker.take()
    assert replies[0]["job"]["id"] == "a"
    assert replies[1]["reqId"] == "held"


async def test_a_slot_that_is_freed_in_the_sessions_own_turn_is_used_in_it(rig: Rig, mock_clock):
    talker = rig.talker()
    talker.segment(*[pull(timeout=1_000)] * MAX_PARKED, {"cmd": "Ping"})
    assert talker.take() == []
    now = rig.clock.now()
    rig.broker.execute(c.Push(queue=QUEUE, data=msgpack.packb(1)), None, now)  # nobody has been served yet

    talker.segment({"cmd": "Ping"})

    assert [("job" in reply, "data" in reply) for reply in talker.replies] == [
        (True, False),
        (False, True),
        (False, True),
    ]
    assert talker.session.backlog_count == 0


async def test_no_slot_is_announced_when_nothing_waits_for_it(rig: Rig, mock_clock):
    talker = rig.talker()
    talker.segment(pull(timeout=1_000))
    rig.push("a")

    assert talker.slot_count == 0


# the end


async def test_closing_releases_jobs_ends_waits_and_sends_nothing(rig: Rig, mock_clock):
    talker, other = rig.talker(), rig.talker()
    talker.segment(*pushes(["a"]), pull())
    talker.segment(pull(timeout=1_000))
    other.segment(pull(timeout=1_000))
    talker.take()
    talker.session.close()

    assert [reply["job"]["id"] for reply in other.replies] == ["a"]
    rig.push("b")
    assert rig.state("b") == "waiting"
    assert talker.replies == []


async def test_a_promise_is_kept_for_a_client_that_has_gone(rig: Rig, mock_clock):
    talker = rig.talker()
    rig.store.close_gate()
    talker.segment(*pushes(["a"], durable=True), {"cmd": "GetJob", "id": "a"})
    talker.session.close()
    rig.store.open_gate()
    await settle_down()

    assert rig.state("a") == "waiting"
    assert talker.session.backlog_count == 0


# our own defects


@pytest.fixture
def broken_count(rig: Rig):
    """A rig in which Count has a defect."""

    def fail(command, now):
        raise ZeroDivisionError("a defect")

    rig.engine.lend({c.Count: fail})
    return rig


async def test_a_defect_in_one_command_is_answered_counted_and_the_connection_goes_on(broken_count, mock_clock, log):
    rig = broken_count
    talker = rig.talker()
    talker.segment(
        *pushes(["a"]), {"cmd": "Count", "queue": QUEUE, "reqId": 9}, {"cmd": "Count", "queue": QUEUE}, pull()
    )

    assert talker.replies[1:3] == [error("Internal server error", reqId=9), error("Internal server error")]
    assert talker.replies[3]["job"]["id"] == "a"
    assert rig.broker.internal_errors == 2
    assert [line["message"] for line in log()] == ["Internal error in a command"] * 2


async def test_a_defect_that_broke_the_engine_ends_the_session(broken_count, mock_clock, log):
    rig = broken_count
    rig.engine.state.active_count = 1
    talker = rig.talker()

    with pytest.raises(InvariantError):
        talker.segment({"cmd": "Count", "queue": QUEUE})

    assert rig.broker.has_ended
    rig.engine.state.active_count = 0


async def test_an_error_of_the_storage_within_a_command_is_a_defect(rig: Rig, mock_clock, log):
    def fail(command, now):
        raise StorageError("no such table: jobs")

    rig.engine.lend({c.Count: fail})
    talker = rig.talker()
    talker.say("Count", queue=QUEUE)

    assert talker.replies == [error("Internal server error")]


async def test_a_command_that_has_to_come_again_means_the_same_as_before(rig: Rig, nursery, autojump_clock):
    """Given changes of another connection in flight, that each of these commands meets."""
    rig.push("j")
    rig.push("late", delay=60_000)
    first, second = rig.talker(), rig.talker()
    retried = {"type": "fixed", "delay": 7, "maxDelay": 9}
    pairs = [
        ({"cmd": "SetDlqConfig", "config": {"maxAge": 5}}, {"cmd": "SetDlqConfig", "config": {"maxEntries": 7}}),
        ({"cmd": "Cancel", "id": "j"}, {"cmd": "PUSH", "jobId": "j", "data": 1, "durable": True, "backoff": retried}),
    ]
    for before, command in pairs:
        rig.store.close_gate()
        first.segment({"queue": QUEUE, **before})
        await settle_down()

        hold = second.segment({"queue": QUEUE, **command})
        assert hold is not None
        rig.store.open_gate()
        await settle_down()
        assert second.go_on() is None
        await settle_down()

    assert [reply["ok"] for reply in second.replies] == [True, True]
    config = rig.call("GetDlqConfig", queue=QUEUE)["config"]
    assert (config["maxAge"], config["maxEntries"]) == (5, 7)
    assert rig.call("GetJob", id="j")["job"]["backoffConfig"] == retried
