"""Lists of what only the file holds: one moment for memory and file, and nobody else waits."""

from typing import Any

import pytest
import trio

from bunqueue_trio.engine.history import History
from bunqueue_trio.errors import StorageError
from tests.server.fakes import Rig, Wire, pull, pushes, settle_down


async def complete(wire: Wire, *ids: str) -> None:
    for job_id in ids:
        await wire.send(*pushes([job_id]), pull())
        _, pulled = await wire.replies(2)
        assert await wire.call("ACK", id=job_id, token=pulled["token"]) == {"ok": True}


async def listed(wire: Wire, **fields: Any) -> dict[str, str]:
    reply = await wire.call("GetJobs", queue="q", **fields)
    return {job["id"]: job["state"] for job in reply["jobs"]}


async def test_completed_jobs_are_listed_among_the_others(rig: Rig, connect, autojump_clock):
    wire = connect(rig)
    await complete(wire, "a", "b")
    await wire.call("PUSH", queue="q", data=1, jobId="c")

    assert await listed(wire) == {"a": "completed", "b": "completed", "c": "waiting"}
    assert await listed(wire, state="completed") == {"a": "completed", "b": "completed"}
    assert await listed(wire, offset=1, limit=1) == {"b": "completed"}


async def test_a_list_waits_for_the_flush_under_way_and_shows_what_it_brings(rig: Rig, connect, autojump_clock):
    # given: a completion in flight
    first, second = connect(rig), connect(rig)
    await complete(first, "a")
    await first.send(*pushes(["b"]), pull())
    token = (await first.replies(2))[1]["token"]
    await trio.sleep(1)
    rig.store.close_gate()
    await first.send({"cmd": "ACK", "id": "b", "token": token})
    await settle_down()

    # when
    await second.send({"cmd": "GetJobs", "queue": "q"}, {"cmd": "Ping"})
    await second.silence()
    rig.store.open_gate()

    # then: in order, and of one moment
    jobs, ping = await second.replies(2)
    assert [(job["id"], job["state"]) for job in jobs["jobs"]] == [("a", "completed"), ("b", "completed")]
    assert ping["data"]["pong"] is True


async def test_a_list_holds_up_no_other_connection(rig: Rig, connect, autojump_clock):
    first, second = connect(rig), connect(rig)
    await complete(first, "a")
    await first.send(*pushes(["b"], durable=True))
    assert (await first.reply())["ok"]
    rig.store.close_gate()
    await first.send(*pushes(["c"], durable=True))
    await settle_down()
    await first.send({"cmd": "GetJobs", "queue": "q"})
    await settle_down()

    assert (await second.call("PUSH", queue="q", data=1, jobId="d"))["id"] == "d"
    rig.store.open_gate()
    assert (await first.reply())["id"] == "c"
    assert [job["id"] for job in (await first.reply())["jobs"]] == ["a", "b", "c", "d"]


async def test_lists_of_live_jobs_do_not_touch_the_file(rig: Rig, connect, autojump_clock):
    wire = connect(rig)
    await complete(wire, "a")
    await wire.call("PUSH", queue="q", data=1, jobId="b")

    assert await listed(wire, state="waiting") == {"b": "waiting"}
    assert rig.store.read_count == 0


async def test_no_flush_begins_while_the_snapshot_is_taken(rig: Rig, connect, autojump_clock):
    # given: a reader that takes its time for the snapshot, and for the read after it
    wire, busy = connect(rig), connect(rig)
    await complete(wire, "a")
    snapshot, read = trio.Event(), trio.Event()

    async def read_pinned(function, pinned) -> None:
        await snapshot.wait()
        function(rig.store.connection)
        pinned()
        await read.wait()

    rig.store.read_pinned = read_pinned
    await wire.send({"cmd": "GetJobs", "queue": "q"})
    await settle_down()
    before = rig.store.commit_count

    # when, then
    await busy.send(*pushes(["b"], durable=True))
    await busy.silence()
    assert rig.store.commit_count == before
    snapshot.set()
    assert (await busy.reply())["id"] == "b"
    read.set()
    assert [job["id"] for job in (await wire.reply())["jobs"]] == ["a"]


async def test_a_file_that_cannot_be_read_refuses_the_list_and_nothing_else(rig: Rig, connect, autojump_clock, log):
    wire = connect(rig)
    await complete(wire, "a")
    rig.store.fail_reads = StorageError("disk I/O error")

    assert await wire.call("GetJobs", queue="q") == {"ok": False, "error": "Storage unavailable: disk I/O error"}
    rig.store.fail_reads = None
    assert await listed(wire) == {"a": "completed"}
    assert await wire.call("Clean", queue="q", grace=0, state="completed") == {"ok": True, "count": 1, "ids": ["a"]}


async def test_a_client_that_leaves_meanwhile_leaves_nothing_behind(rig: Rig, connect, autojump_clock):
    leaving, staying = connect(rig), connect(rig)
    await complete(staying, "a")
    rig.store.close_gate()
    await staying.send(*pushes(["b"], durable=True))
    await settle_down()
    await leaving.send({"cmd": "GetJobs", "queue": "q"})
    await settle_down()
    leaving.close()
    rig.store.open_gate()

    assert (await staying.reply())["id"] == "b"
    assert await listed(staying) == {"a": "completed", "b": "waiting"}
    assert rig.engine.state.answer is None


async def test_many_lists_at_once_are_all_answered(rig: Rig, connect, autojump_clock):
    wires = [connect(rig) for _ in range(20)]
    await complete(wires[0], "a", "b")
    for wire in wires:
        await wire.send(
            *[{"cmd": "GetJobs", "queue": "q", "limit": 1}, {"cmd": "GetJobs", "queue": "q", "offset": 1}] * 3
        )

    for wire in wires:
        pages = [[job["id"] for job in reply["jobs"]] for reply in await wire.replies(6)]
        assert pages == [["a"], ["b"]] * 3


# cleaning


async def test_completed_jobs_are_cleaned_from_the_file_and_memory(rig: Rig, connect, autojump_clock):
    wire = connect(rig)
    await complete(wire, "a", "b", "c")

    assert await wire.call("Clean", queue="q", grace=0, state="completed", limit=2) == {
        "ok": True,
        "count": 2,
        "ids": ["a", "b"],
    }
    assert rig.store.ids == ["c"]
    assert rig.store.connection.execute("SELECT count(*) FROM job_results WHERE job_id IN ('a', 'b')").fetchall() == [
        (0,)
    ]
    assert await listed(wire) == {"c": "completed"}
    assert rig.state("a") == "unknown"


async def test_two_cleans_at_once_share_the_work(rig: Rig, connect, autojump_clock):
    first, second = connect(rig), connect(rig)
    await complete(first, "a", "b", "c")
    clean = {"cmd": "Clean", "queue": "q", "grace": 0, "state": "completed", "limit": 2}
    await first.send(clean)
    await second.send(clean)

    removed = (await first.reply())["ids"] + (await second.reply())["ids"]
    assert sorted(removed) == ["a", "b", "c"]
    assert rig.engine.state.queues.get("q") is None or rig.engine.state.queues["q"].completed_count == 0


async def test_a_clean_that_cannot_be_stored_removes_nothing(rig: Rig, connect, autojump_clock, log):
    wire = connect(rig)
    await complete(wire, "a")
    await wire.call("PUSH", queue="q", data=1, jobId="b")
    await trio.sleep(1)
    rig.store.fill_disk()

    for state in ("completed", "waiting"):
        assert not (await wire.call("Clean", queue="q", grace=0, state=state))["ok"]
    assert (rig.state("a"), rig.state("b")) == ("completed", "waiting")
    rig.store.heal()


@pytest.mark.parametrize("state", ["completed", "waiting"])
async def test_a_clean_is_seen_by_the_read_behind_it(rig: Rig, connect, autojump_clock, state):
    wire = connect(rig)
    await complete(wire, "a")
    await wire.call("PUSH", queue="q", data=1, jobId="b")
    await wire.send({"cmd": "Clean", "queue": "q", "grace": 0, "state": state}, {"cmd": "GetJobs", "queue": "q"})

    cleaned, jobs = await wire.replies(2)
    gone, left = ("a", "b") if state == "completed" else ("b", "a")
    assert (cleaned["ids"], [job["id"] for job in jobs["jobs"]]) == ([gone], [left])


async def slowly(rig: Rig, wire: Wire, command: dict[str, Any]) -> None:
    """Send *command*; what it reads from the file reaches it half a second later."""
    read = rig.store.read

    async def slow_read(function: Any) -> Any:
        found = await read(function)
        await trio.sleep(0.5)
        return found

    rig.store.read = slow_read  # type: ignore[method-assign]
    await wire.send(command)
    await settle_down()
    rig.store.read = read  # type: ignore[method-assign]


async def dad_of_two(start_rig: Any, connect: Any) -> tuple[Rig, Wire, Wire]:
    """A completed job that only the file knows, and two that may become its children."""
    rig = await start_rig(history=History(max_jobs=1))
    first, second = connect(rig), connect(rig)
    await complete(first, "dad", "other")
    await first.send(*pushes(["kid1", "kid2"], data={}, queue="kids"))
    await first.replies(2)
    return rig, first, second


async def children(wire: Wire) -> list[str]:
    reply = await wire.call("GetJob", id="dad")
    found: list[str] = reply["job"]["childrenIds"]
    return found


async def test_two_children_linked_at_once_to_a_parent_that_only_the_file_knows(start_rig, connect, autojump_clock):
    rig, first, second = await dad_of_two(start_rig, connect)

    await slowly(rig, second, {"cmd": "UpdateParent", "childId": "kid2", "parentId": "dad"})
    assert (await first.call("UpdateParent", childId="kid1", parentId="dad"))["ok"]
    assert (await second.reply())["ok"]

    assert await children(first) == ["kid1", "kid2"]


@pytest.mark.parametrize("fields", [{}, {"id": "dad"}], ids=["all", "one"])
async def test_a_job_that_runs_again_keeps_the_child_it_got_meanwhile(start_rig, connect, autojump_clock, fields):
    rig, first, second = await dad_of_two(start_rig, connect)

    await slowly(rig, second, {"cmd": "RetryCompleted", "queue": "q", **fields})
    assert (await first.call("UpdateParent", childId="kid1", parentId="dad"))["ok"]
    assert (await second.reply())["ok"]

    assert (await second.call("GetState", id="dad"))["state"] == "waiting"
    assert await children(first) == ["kid1"]
