"""Flows and children of parents there are, as connections see them.

Source: newer clients, "PUSHF" and "Child of an existing parent".
"""

from typing import Any

import trio

from bunqueue_trio.engine.history import History
from bunqueue_trio.errors import StorageError
from tests.flows import flow_job, tree
from tests.server.fakes import FULL, Rig, pull, pushes, settle_down

SHUTTING_DOWN = "Server is shutting down"


def push_flow(*jobs: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"cmd": "PUSHF", "jobs": list(jobs), **fields}


def push_child(job_id: str, parent: str = "dad") -> dict[str, Any]:
    data = {"__parentId": parent, "__parentQueue": "p"}
    return {"cmd": "PUSH", "queue": "c", "name": "n", "data": data, "parentId": parent, "jobId": job_id}


async def test_a_waiting_pull_gets_a_leaf_when_the_whole_flow_is_stored(rig: Rig, mock_clock):
    rig.store.close_gate()
    producer, worker = rig.talker(), rig.talker()
    worker.say("PULL", queue="c", timeout=60_000, owner="w")
    worker.say("PULL", queue="p", timeout=60_000, owner="w")
    producer.segment(push_flow(*tree("dad", "a")))
    await settle_down()
    assert (producer.replies, worker.replies) == ([], [])

    rig.store.open_gate()
    await settle_down()

    [flow] = producer.replies
    assert [job["id"] for job in flow["data"]["jobs"]] == ["a", "dad"]
    assert [reply["job"]["id"] for reply in worker.replies] == ["a"]
    assert rig.state("dad") == "waiting-children"
    assert sorted(rig.store.ids) == ["a", "dad"]


async def test_a_flow_that_the_file_refuses_leaves_nothing(rig: Rig, mock_clock):
    rig.store.fail_next.append(StorageError("no", transient=True))
    producer, worker = rig.talker(), rig.talker()
    worker.say("PULL", queue="c", timeout=60_000, owner="w")
    producer.segment(push_flow(*tree("dad", "a", "b"), reqId=7))
    await settle_down()

    [reply] = producer.replies
    assert (reply["ok"], reply["reqId"]) == (False, 7)
    assert worker.replies == []
    assert {rig.state(job_id) for job_id in ("a", "b", "dad")} == {"unknown"}
    assert rig.store.ids == []
    rig.check()


async def test_flows_of_one_segment_share_a_flush(rig: Rig, mock_clock):
    talker = rig.talker()

    hold = talker.segment(*(push_flow(*tree(f"dad{n}", f"a{n}", f"b{n}"), reqId=n) for n in range(20)))
    assert hold is None
    await settle_down()

    assert [reply["reqId"] for reply in talker.replies] == list(range(20))
    assert rig.store.commit_count == 1


async def test_an_empty_flow_is_answered_at_once(rig: Rig, mock_clock):
    talker = rig.talker()
    talker.segment(push_flow())

    assert talker.replies == [{"ok": True, "data": {"jobs": []}}]


async def test_names_stand_beside_the_data_whoever_asks(rig: Rig, mock_clock):
    older, newer = rig.talker(), rig.talker()
    newer.say("Hello", protocolVersion=3)
    newer.take()
    older.segment(push_flow(flow_job("a", "q", data={"to": "x"})))
    newer.segment(push_flow(flow_job("b", "q", data={"to": "x"})))
    await settle_down()

    for talker in (older, newer):
        [job] = talker.take()[0]["data"]["jobs"]
        assert (job["name"], job["data"]) == ("n", {"to": "x"})
    older.segment(pull(), pull())
    assert [reply["job"]["data"] for reply in older.take()] == [{"to": "x", "name": "n"}] * 2


async def test_ids_that_only_the_file_knows_are_looked_up_together(start_rig, mock_clock):
    rig = await start_rig(history=History(max_jobs=1))
    talker = rig.talker()
    for job_id in ("old", "new"):
        talker.segment(*pushes([job_id]), pull())
        talker.say("ACK", id=job_id, token=talker.take()[-1]["token"])
        await settle_down()
        talker.take()

    hold = talker.segment(push_flow(flow_job("fresh", "q"), flow_job("old", "q")))
    assert hold is not None
    assert hold.ids == ["fresh", "old"]
    await rig.broker.learn(hold.ids)
    assert talker.go_on() is None

    assert talker.replies == [{"ok": False, "error": "Flow job old already exists"}]
    assert rig.state("fresh") == "unknown"


async def test_a_flow_that_meets_a_promise_waits_for_it(rig: Rig, mock_clock):
    rig.store.close_gate()
    one, two = rig.talker(), rig.talker()
    one.segment(*pushes(["a"], durable=True))
    await settle_down()

    hold = two.segment(push_flow(flow_job("a", "q")))
    assert hold is not None
    rig.store.open_gate()
    await settle_down()

    assert two.go_on() is None
    assert two.replies == [{"ok": False, "error": "Flow job a already exists"}]


async def test_a_stopping_server_takes_no_flows(rig: Rig, mock_clock):
    rig.broker.stop_pulls()
    talker = rig.talker()
    talker.segment(push_flow(flow_job("a", "q")))

    assert talker.replies == [{"ok": False, "error": SHUTTING_DOWN}]


async def test_while_the_file_refuses_flows_are_refused_and_take_no_room(start_rig, autojump_clock):
    rig = await start_rig()
    rig.store.fill_disk()
    rig.push("first")
    await trio.sleep(0.05)

    for number in range(5):
        talker = rig.talker()
        talker.segment(push_flow(*tree(f"dad{number}", f"a{number}")))
        await trio.sleep(0.1)
        [reply] = talker.replies
        assert FULL in reply["error"]

    assert [job.record.id for job in rig.engine.state.changes.jobs] == ["first"]
    rig.store.heal()
    await trio.sleep(60)
    assert rig.store.ids == ["first"]
    rig.check()


async def test_flows_are_measured_like_pushes(rig: Rig, mock_clock):
    talker = rig.talker()
    talker.segment(push_flow(flow_job("a", "q")))
    await settle_down()

    assert rig.broker.latencies.push.count == 1


# children


async def test_children_of_one_segment_join_one_change_of_their_parent(rig: Rig, mock_clock):
    talker = rig.talker()
    talker.segment(*pushes(["dad"], queue="p", durable=True))
    await settle_down()
    before = rig.store.commit_count
    talker.take()

    ids = [f"k{n}" for n in range(50)]
    assert talker.segment(*map(push_child, ids)) is None
    await settle_down()

    assert [reply["id"] for reply in talker.replies] == ids
    assert rig.store.commit_count == before + 1
    assert rig.call("GetJob", id="dad")["job"]["childrenIds"] == ids
    rig.check()


async def test_children_that_come_during_the_flush_wait_and_are_linked(rig: Rig, mock_clock):
    one, two = rig.talker(), rig.talker()
    one.segment(*pushes(["dad"], queue="p", durable=True))
    await settle_down()
    rig.store.close_gate()
    one.segment(push_child("a"))
    await settle_down()

    hold = two.segment(push_child("b"), push_child("c"))
    assert hold is not None
    rig.store.open_gate()
    await settle_down()
    assert two.go_on() is None
    await settle_down()

    assert [reply["id"] for reply in two.replies] == ["b", "c"]
    assert rig.call("GetJob", id="dad")["job"]["dependsOn"] == ["a", "b", "c"]


async def test_a_link_that_the_file_refuses_leaves_the_parent_alone(rig: Rig, mock_clock):
    talker = rig.talker()
    talker.segment(*pushes(["dad"], queue="p", durable=True))
    await settle_down()
    talker.take()
    rig.store.fail_next.append(StorageError("no", transient=True))
    talker.segment(push_child("a"), push_child("b"))
    await settle_down()

    assert [reply["ok"] for reply in talker.replies] == [False, False]
    assert [rig.state(job_id) for job_id in ("dad", "a", "b")] == ["waiting", "unknown", "unknown"]
    assert rig.call("GetJob", id="dad")["job"]["childrenIds"] == []
    rig.check()
