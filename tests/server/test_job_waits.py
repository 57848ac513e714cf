"""WaitJob over connections: parked, answered by whatever ends the job, bounded, and nothing kept of those who left."""

import pytest
import trio

from bunqueue_trio.engine.history import History
from bunqueue_trio.server.waiting import MAX_PARKED
from tests.server.fakes import QUEUE, Rig, pushes, settle_down

DONE = {"ok": True, "completed": True}
NOT_DONE = {"ok": True, "completed": False}


def lease(rig: Rig, queue: str = QUEUE):
    """A worker with the next job."""
    worker = rig.talker()
    worker.say("PULL", queue=queue, owner="w")
    [reply] = worker.take()
    return worker, reply["job"]["id"], reply["token"]


def wait(talker, job_id: str = "a", **fields):
    talker.say("WaitJob", **{"id": job_id, "timeout": 60_000, **fields})


def is_empty(rig: Rig) -> bool:
    """Nobody waits and nothing is remembered of anybody who did."""
    state = rig.engine.state
    return not (rig.broker.job_waits.count or state.awaited or state.ended)


async def test_everybody_who_waits_is_told_under_an_id_of_his_own(rig: Rig, mock_clock):
    rig.push("a")
    talkers = [rig.talker() for _ in range(3)]
    for number, talker in enumerate(talkers):
        wait(talker, reqId=number)
    wait(talkers[0], reqId="again")
    wait(talkers[1])  # without an id, behind those who have one
    worker, job_id, token = lease(rig)

    worker.say("ACK", id=job_id, token=token, result={"r": [1, 2]})
    await settle_down()

    answer = {**DONE, "result": {"r": [1, 2]}}
    assert talkers[0].replies == [{**answer, "reqId": 0}, {**answer, "reqId": "again"}]
    assert talkers[1].replies == [{**answer, "reqId": 1}, answer]
    assert talkers[2].replies == [{**answer, "reqId": 2}]
    assert is_empty(rig)


async def test_a_batch_of_acks_ends_every_wait(rig: Rig, mock_clock):
    talker = rig.talker()
    for job_id in ("a", "b"):
        rig.push(job_id)
        wait(talker, job_id)
    leased = [lease(rig) for _ in range(2)]

    leased[0][0].say("ACKB", ids=["a", "b"], tokens=[token for _, _, token in leased], results=[1, 2])
    await settle_down()

    assert talker.replies == [{**DONE, "result": 1}, {**DONE, "result": 2}]


async def test_nobody_is_told_before_the_commit(rig: Rig, mock_clock):
    rig.push("a")
    talker = rig.talker()
    wait(talker)
    worker, job_id, token = lease(rig)
    await settle_down()
    rig.store.close_gate()
    worker.say("ACK", id=job_id, token=token)
    await settle_down()
    assert talker.replies == []

    rig.store.open_gate()
    await settle_down()

    assert talker.replies == [{**DONE, "result": None}]


@pytest.mark.parametrize("timeout_ms", [1, 250.5, 30_000, 600_000])
async def test_a_wait_ends_exactly_at_its_time(rig: Rig, autojump_clock, timeout_ms):
    rig.push("a")
    talker = rig.talker()
    wait(talker, timeout=timeout_ms)
    await trio.sleep((timeout_ms - 0.5) / 1_000)
    assert talker.replies == []

    await trio.sleep(0.0015)

    assert talker.replies == [NOT_DONE]
    assert is_empty(rig)


async def test_without_a_time_a_wait_lasts_half_a_minute(rig: Rig, autojump_clock):
    rig.push("a")
    talker = rig.talker()
    talker.say("WaitJob", id="a")
    await trio.sleep(29.9)
    assert talker.replies == []

    await trio.sleep(0.2)

    assert talker.replies == [NOT_DONE]


async def test_no_time_is_an_answer_at_once(rig: Rig, mock_clock):
    rig.push("a")

    assert rig.call("WaitJob", id="a", timeout=0) == NOT_DONE
    assert is_empty(rig)


async def test_a_job_that_fails_for_good_ends_the_wait(rig: Rig, mock_clock):
    rig.push("a", maxAttempts=1)
    talker = rig.talker()
    wait(talker)
    worker, job_id, token = lease(rig)

    worker.say("FAIL", id=job_id, token=token)
    await settle_down()

    assert talker.replies == [NOT_DONE]
    assert is_empty(rig)


@pytest.mark.parametrize("command", ["Cancel", "Discard"])
async def test_a_job_that_is_taken_away_ends_the_wait(rig: Rig, mock_clock, command):
    rig.push("a")
    talker = rig.talker()
    wait(talker)

    rig.talker().say(command, id="a")
    await settle_down()

    assert talker.replies == [NOT_DONE]


async def test_a_lost_lock_ends_the_wait_when_the_job_may_not_run_again(rig: Rig, autojump_clock):
    rig.push("a", maxAttempts=1)
    talker, worker = rig.talker(), rig.talker()
    wait(talker)
    worker.say("PULL", queue=QUEUE, owner="w", lockTtl=1_000)

    await trio.sleep(10)

    assert talker.replies == [NOT_DONE]


async def test_a_closed_connection_ends_the_wait_for_what_it_ran(rig: Rig, mock_clock):
    rig.push("a", maxAttempts=1)
    talker = rig.talker()
    wait(talker)
    worker, _, _ = lease(rig)

    worker.session.close()

    assert talker.replies == [NOT_DONE]


async def test_a_push_that_replaces_the_job_ends_the_wait_in_the_same_turn(rig: Rig, mock_clock):
    rig.push("a", uniqueKey="k")
    talker = rig.talker()
    wait(talker)

    rig.push("b", uniqueKey="k", dedup={"replace": True})

    assert talker.replies == [NOT_DONE]


async def test_a_new_life_of_the_id_is_waited_for_anew_even_within_one_turn(rig: Rig, mock_clock):
    rig.push("a", uniqueKey="k")
    first, second = rig.talker(), rig.talker()
    wait(first)

    second.segment(
        *pushes(["b"], uniqueKey="k", dedup={"replace": True}),
        *pushes(["a"]),
        {"cmd": "WaitJob", "id": "a", "timeout": 1_000, "reqId": "new"},
    )

    assert first.replies == [NOT_DONE]
    assert len(second.replies) == 2
    assert rig.broker.job_waits.count == 1


async def test_a_closed_connection_takes_its_waits_along(rig: Rig, mock_clock):
    rig.push("a")
    leaving, staying = rig.talker(), rig.talker()
    wait(leaving)
    wait(staying)

    leaving.session.close()

    assert rig.broker.job_waits.count == 1
    assert rig.engine.state.awaited == {"a"}
    staying.session.close()
    assert is_empty(rig)


async def test_a_stopping_server_ends_all_waits_and_takes_no_new_ones(rig: Rig, mock_clock):
    rig.push("a")
    talker = rig.talker()
    wait(talker)

    rig.broker.stop_pulls()

    assert talker.take() == [NOT_DONE]
    wait(talker)
    assert talker.replies == [NOT_DONE]
    assert is_empty(rig)


async def test_waits_and_pulls_share_the_fifty_places_of_a_connection(rig: Rig, mock_clock):
    for n in range(30):
        rig.push(f"a{n}")
    talker = rig.talker()
    for n in range(MAX_PARKED):
        if n % 2:
            wait(talker, f"a{n % 30}")
        else:
            talker.say("PULL", queue="empty", timeout=60_000)
    talker.say("WaitJob", id="a0", timeout=60_000)
    talker.say("Ping")
    assert talker.replies == []
    assert (rig.broker.job_waits.count, rig.broker.waiting.count) == (25, 25)

    worker, job_id, token = lease(rig)
    worker, job_id, token = lease(rig)
    worker.say("ACK", id=job_id, token=token)
    await settle_down()
    talker.go_on()

    assert talker.replies[0] == {**DONE, "result": None}
    assert talker.replies[-1]["data"]["pong"]


async def test_a_wait_sees_what_its_own_connection_asked_for(rig: Rig, mock_clock):
    talker = rig.talker()
    talker.segment(*pushes(["a"], durable=True), {"cmd": "WaitJob", "id": "a", "timeout": 60_000})
    await settle_down()
    talker.go_on()
    worker, job_id, token = lease(rig)
    worker.say("ACK", id=job_id, token=token, result=5)
    await settle_down()

    assert talker.replies == [{"ok": True, "id": "a"}, {**DONE, "result": 5}]


async def test_a_result_beyond_memory_is_read_from_the_file(start_rig, connect, mock_clock):
    rig = await start_rig(history=History(max_jobs=1))
    wire = connect(rig)
    for job_id in ("a", "b"):
        rig.push(job_id)
        worker, job_id, token = lease(rig)
        worker.say("ACK", id=job_id, token=token, result=job_id)
        await settle_down()

    assert await wire.call("WaitJob", id="a") == {**DONE, "result": "a"}
    assert await wire.call("WaitJob", id="x") == {"ok": False, "error": "Job not found"}


async def test_values_of_children_beyond_memory_need_one_read_each_time(start_rig, connect, mock_clock):
    rig = await start_rig(history=History(max_jobs=1))
    wire = connect(rig)
    for job_id, options in (("k1", {}), ("k2", {}), ("dad", {"childrenIds": ["k1", "k2"]}), ("last", {})):
        rig.push(job_id, **options)
        worker, job_id, token = lease(rig)
        worker.say("ACK", id=job_id, token=token, result=job_id)
        await settle_down()
    before = rig.store.read_count

    reply = await wire.call("GetChildrenValues", id="dad")

    assert reply["data"]["values"] == {"q:k1": "k1", "q:k2": "k2"}
    assert rig.store.read_count == before + 2  # the parent, then it and all its children


async def test_linking_jobs_beyond_memory_changes_their_rows(start_rig, connect, mock_clock):
    rig = await start_rig(history=History(max_jobs=1))
    wire = connect(rig)
    for job_id in ("kid", "dad", "last"):
        rig.push(job_id, data={"n": 1})
        worker, job_id, token = lease(rig)
        worker.say("ACK", id=job_id, token=token)
        await settle_down()

    assert await wire.call("UpdateParent", childId="kid", parentId="dad") == {"ok": True}

    child = (await wire.call("GetJob", id="kid"))["job"]
    assert (child["parentId"], child["state"]) == ("dad", "completed")
    assert child["data"] == {"n": 1, "__parentId": "dad", "__parentQueue": QUEUE}
    assert (await wire.call("GetJob", id="dad"))["job"]["childrenIds"] == ["kid"]


async def test_explain_knows_who_waits_for_jobs_of_a_queue(rig: Rig, mock_clock):
    rig.push("a")
    assert [reason["reason"] for reason in rig.call("Explain", id="a")["reasons"]] == ["no-worker"]
    rig.talker().say("PULL", queue=QUEUE, timeout=1_000)  # takes it
    rig.push("b", delay=5_000)
    rig.talker().say("PULL", queue=QUEUE, timeout=1_000)

    assert [reason["reason"] for reason in rig.call("Explain", id="b")["reasons"]] == ["delayed"]
