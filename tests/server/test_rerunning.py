"""RetryCompleted of a whole queue: page by page, answered after the last commit, holding up nobody else."""

import pytest
import trio

from bunqueue_trio.errors import InvariantError, StorageError
from bunqueue_trio.server import rerunning
from bunqueue_trio.server.rerunning import rerun_completed
from tests.server.fakes import QUEUE, Rig, settle_down

ALL = {"cmd": "RetryCompleted", "queue": QUEUE}


async def complete(rig: Rig, *job_ids: str) -> None:
    """Jobs that have completed, each with a result."""
    worker = rig.talker()
    for job_id in job_ids:
        rig.push(job_id)
        worker.segment({"cmd": "PULL", "queue": QUEUE}, {"cmd": "ACK", "id": job_id, "result": job_id})
        await settle_down()


def counts(rig: Rig) -> dict[str, int]:
    return {name: count for name, count in rig.call("GetJobCounts", queue=QUEUE)["counts"].items() if count}


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rerunning, "PAGE_JOBS", 2)


async def test_all_completed_jobs_run_again_over_several_pages(rig: Rig, connect, small_pages, autojump_clock):
    await complete(rig, *"abcde")
    wire = connect(rig)

    assert await wire.call("RetryCompleted", queue=QUEUE) == {"ok": True, "count": 5}

    assert counts(rig) == {"waiting": 5}
    assert set(rig.store.states.values()) == {"waiting"}
    assert rig.store.ids == [*"abcde"]
    assert await wire.call("GetResult", id="a") == {"ok": True, "id": "a", "result": "a"}
    assert max(len(batch.reruns) for batch in rig.store.batches) == 2


@pytest.mark.parametrize("count", [1, 2, 3, 5, 9])
async def test_at_most_as_many_run_again_as_asked_for_those_pushed_first(
    rig: Rig, connect, small_pages, autojump_clock, count
):
    await complete(rig, *"abcde")

    assert await connect(rig).call("RetryCompleted", queue=QUEUE, count=count) == {"ok": True, "count": min(count, 5)}

    assert [job_id for job_id in "abcde" if rig.state(job_id) == "waiting"] == [*"abcde"][:count]


async def test_those_that_cannot_run_again_do_not_count(rig: Rig, connect, small_pages, autojump_clock):
    await complete(rig, "a")
    worker = rig.talker()
    for job_id in "bcd":
        rig.push(job_id, uniqueKey="k" if job_id == "b" else None)
        worker.segment({"cmd": "PULL", "queue": QUEUE}, {"cmd": "ACK", "id": job_id})
        await settle_down()
    rig.push("holder", uniqueKey="k")

    assert await connect(rig).call("RetryCompleted", queue=QUEUE, count=3) == {"ok": True, "count": 3}

    assert [rig.state(job_id) for job_id in "abcd"] == ["waiting", "completed", "waiting", "waiting"]


async def test_only_those_that_had_completed_by_then_run_again(rig: Rig, connect, small_pages, autojump_clock):
    await complete(rig, *"abc")
    by = rig.broker.clock.now().wall_ms
    await trio.sleep(1)
    await complete(rig, *"defgh")
    wire = connect(rig)

    assert await wire.call("RetryCompleted", queue=QUEUE, timestamp=by) == {"ok": True, "count": 3}

    assert [job_id for job_id in "abcdefgh" if rig.state(job_id) == "waiting"] == [*"abc"]
    assert await wire.call("RetryCompleted", queue=QUEUE, timestamp=1) == {"ok": True, "count": 0}


@pytest.mark.parametrize("queue", ["ghost", QUEUE])
async def test_nothing_to_run_again_is_answered_at_once(rig: Rig, connect, autojump_clock, queue):
    assert await connect(rig).call("RetryCompleted", queue=queue) == {"ok": True, "count": 0}


async def test_later_commands_of_the_connection_wait_their_turn(rig: Rig, connect, small_pages, autojump_clock):
    await complete(rig, *"abc")
    wire = connect(rig)

    await wire.send(ALL, {"cmd": "Count", "queue": QUEUE, "reqId": 1}, {"cmd": "Ping", "reqId": 2})

    replies = await wire.replies(3)
    assert [reply.get("count") for reply in replies] == [3, 3, None]
    assert [reply.get("reqId") for reply in replies] == [None, 1, 2]


async def test_others_are_served_meanwhile(rig: Rig, connect, autojump_clock):
    await complete(rig, "a")
    rig.store.close_gate()
    busy, other = connect(rig), connect(rig)
    await busy.send(ALL)
    await settle_down()

    assert (await other.call("Ping"))["ok"]
    await busy.silence()
    rig.store.open_gate()
    assert await busy.reply() == {"ok": True, "count": 1}


async def test_a_freed_slot_does_not_run_the_command_a_second_time(rig: Rig, connect, autojump_clock):
    """A parked pull ends while the command in front is at work; whoever looks then must leave it alone."""
    await complete(rig, "a", "b")
    wire = connect(rig)
    await wire.send({"cmd": "PULL", "queue": "parked", "timeout": 60_000, "reqId": 1})
    await settle_down()
    rig.store.close_gate()
    await wire.send({**ALL, "reqId": 2}, {"cmd": "Ping", "reqId": 3})
    await settle_down()

    rig.push("p", queue="parked")
    await settle_down()
    await wire.send({"cmd": "Ping", "reqId": 4})
    await settle_down()
    rig.store.open_gate()

    replies = await wire.replies(4)
    assert [(reply["reqId"], reply.get("count")) for reply in replies] == [(1, None), (2, 2), (3, None), (4, None)]
    await wire.silence()


async def test_jobs_that_complete_again_meanwhile_do_not_run_a_third_time(rig: Rig, small_pages, autojump_clock):
    await complete(rig, *"abc")
    worker = rig.talker()
    async with trio.open_nursery() as nursery:
        replies = []
        nursery.start_soon(lambda: _note(replies, rig))
        for _ in range(20):
            worker.segment({"cmd": "PULL", "queue": QUEUE}, {"cmd": "ACK", "id": "a"})
            await trio.testing.wait_all_tasks_blocked()

    assert replies[0].count == 3


async def _note(replies: list, rig: Rig) -> None:
    replies.append(await rerun_completed(rig.broker, QUEUE))


async def test_a_file_that_cannot_be_read_is_an_error(rig: Rig, connect, autojump_clock, log):
    await complete(rig, "a")
    rig.store.fail_reads = StorageError("disk I/O error")
    wire = connect(rig)

    await wire.send(ALL, {"cmd": "Ping"})

    assert await wire.reply() == {"ok": False, "error": "Storage unavailable: disk I/O error"}
    assert (await wire.reply())["ok"]
    assert [line["message"] for line in log() if line["level"] == "error"] == ["The data file cannot be read"]


async def test_a_page_that_cannot_be_stored_is_an_error_and_leaves_its_jobs_completed(
    rig: Rig, connect, small_pages, autojump_clock
):
    await complete(rig, *"abc")
    rig.store.fail_next.append(StorageError("no"))
    wire = connect(rig)

    assert await wire.call("RetryCompleted", queue=QUEUE) == {"ok": False, "error": "no"}

    assert counts(rig) == {"completed": 3}


async def test_while_the_file_refuses_nothing_is_tried(rig: Rig, connect, autojump_clock):
    await complete(rig, "a")
    rig.store.fill_disk()
    wire = connect(rig)
    assert not (await wire.call("Pause", queue=QUEUE))["ok"]

    reply = await wire.call("RetryCompleted", queue=QUEUE)

    assert (reply["ok"], counts(rig)) == (False, {"completed": 1})
    rig.store.heal()


async def test_a_queue_that_is_being_obliterated_has_nothing_left_afterwards(rig: Rig, connect, autojump_clock):
    await complete(rig, "a")
    rig.store.close_gate()
    first, second = connect(rig), connect(rig)
    await first.send({"cmd": "Obliterate", "queue": QUEUE})
    await settle_down()
    await second.send(ALL)
    await settle_down()
    rig.store.open_gate()

    assert (await first.reply())["ok"]
    assert await second.reply() == {"ok": True, "count": 0}
    assert rig.store.ids == []


async def test_a_client_that_leaves_leaves_whole_pages(rig: Rig, connect, small_pages, autojump_clock):
    await complete(rig, *"abcd")
    rig.store.close_gate()
    wire = connect(rig)
    await wire.send(ALL)
    await settle_down()

    wire.close()
    await settle_down()
    rig.store.open_gate()
    await settle_down()

    found = counts(rig)
    assert found["waiting"] in (2, 4)
    assert found["waiting"] + found.get("completed", 0) == 4


async def test_a_defect_in_the_work_is_answered_and_the_connection_goes_on(rig: Rig, connect, autojump_clock, log):
    async def broken(*_: object) -> list:
        raise RuntimeError("a defect")

    rig.broker.read_completed = broken
    wire = connect(rig)
    await wire.send(ALL, {"cmd": "Ping"})

    assert await wire.reply() == {"ok": False, "error": "Internal server error"}
    assert (await wire.reply())["ok"]
    assert rig.broker.internal_errors == 1


async def test_a_defect_that_broke_the_engine_ends_the_work_with_the_session(rig: Rig, autojump_clock):
    async def broken(*_: object) -> list:
        raise InvariantError("broken")

    rig.broker.read_completed = broken
    talker = rig.talker()
    hold = talker.segment(ALL)

    with pytest.raises(InvariantError):
        await talker.session.do_work(hold.work)
