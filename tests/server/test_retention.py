"""Completed jobs that are let go: by age, by count, in steps, and correctly while the file is slow or refuses."""

import trio

from bunqueue_trio.engine.history import History
from bunqueue_trio.errors import StorageError
from bunqueue_trio.server import retention as retention_module
from bunqueue_trio.server.retention import PERIOD_S, run_retention
from tests.server.fakes import QUEUE, Rig, pull, pushes, settle_down


def start(rig: Rig, nursery: trio.Nursery, *, age: int | None = None, count: int | None = None) -> None:
    nursery.start_soon(lambda: run_retention(rig.broker, rig.store, max_age_ms=age, max_count=count))  # type: ignore


async def complete(rig: Rig, *ids: str, queue: str = QUEUE) -> None:
    """Push, pull and acknowledge each."""
    talker = rig.talker()
    for job_id in ids:
        talker.segment(*pushes([job_id], queue=queue), pull(queue=queue))
        talker.say("ACK", id=job_id, token=talker.take()[-1]["token"], result=job_id)
        await settle_down()
        assert talker.take() == [{"ok": True}]


def completed(rig: Rig, queue: str = QUEUE) -> int:
    return rig.call("GetJobCounts", queue=queue)["counts"]["completed"]


async def test_without_limits_there_is_nothing_to_do(rig: Rig, autojump_clock):
    await run_retention(rig.broker, rig.store, max_age_ms=None, max_count=None)  # type: ignore[arg-type]


async def test_jobs_go_when_they_are_too_old_also_without_any_traffic(rig: Rig, nursery, autojump_clock):
    start(rig, nursery, age=60_000)
    await complete(rig, "a", "b")
    await trio.sleep(30)
    await complete(rig, "c")
    await trio.sleep(29)
    assert (completed(rig), rig.store.ids) == (3, ["a", "b", "c"])
    await trio.sleep(1 + PERIOD_S + 0.1)

    assert (completed(rig), rig.store.ids) == (1, ["c"])
    assert rig.state("a") == "unknown"
    assert "result" not in rig.call("GetResult", id="a")
    assert rig.store.connection.execute("SELECT job_id FROM job_results").fetchall() == [("c",)]
    await trio.sleep(30)
    assert (completed(rig), rig.store.ids) == (0, [])


async def test_the_oldest_go_when_there_are_too_many(rig: Rig, nursery, autojump_clock):
    start(rig, nursery, count=3)
    for job_id in ("a", "b", "c"):
        await complete(rig, job_id)
        await trio.sleep(1)
    await complete(rig, "x", queue="other")
    await trio.sleep(0.01)
    await complete(rig, "y", queue="other")
    await trio.sleep(PERIOD_S + 0.1)

    assert rig.store.ids == ["c", "x", "y"]
    assert (completed(rig), completed(rig, "other")) == (1, 2)
    await trio.sleep(60)
    assert rig.store.ids == ["c", "x", "y"]


async def test_a_count_of_zero_keeps_none(rig: Rig, nursery, autojump_clock):
    start(rig, nursery, count=0)
    await complete(rig, "a", "b")
    rig.push("waiting")
    await trio.sleep(PERIOD_S + 0.1)

    assert rig.store.ids == ["waiting"]


async def test_both_limits_hold_together(rig: Rig, nursery, autojump_clock):
    start(rig, nursery, age=20_000, count=2)
    await complete(rig, "a")
    await trio.sleep(1)
    await complete(rig, "b", "c")
    await trio.sleep(PERIOD_S + 0.1)
    assert "a" not in rig.store.ids
    assert completed(rig) == 2
    await trio.sleep(20)

    assert completed(rig) == 0


async def test_more_than_one_step_is_done_at_once(start_rig, nursery, autojump_clock, monkeypatch):
    monkeypatch.setattr(retention_module, "ROWS_PER_STEP", 3)
    rig = await start_rig()
    await complete(rig, *(f"j{n}" for n in range(10)))
    await trio.sleep(1)
    start(rig, nursery, age=500)
    await trio.sleep(PERIOD_S + 0.2)

    assert rig.store.ids == []
    assert completed(rig) == 0


async def test_an_id_that_lives_again_stays(rig: Rig, nursery, autojump_clock):
    start(rig, nursery, age=5_000)
    await complete(rig, "a", "b")
    await trio.sleep(4)
    rig.push("a")
    await trio.sleep(60)

    assert rig.store.ids == ["a"]
    assert rig.state("a") == "waiting"
    assert completed(rig) == 0


async def test_jobs_that_memory_has_forgotten_go_as_well(start_rig, nursery, autojump_clock):
    rig = await start_rig(history=History(max_jobs=1))
    await complete(rig, "a", "b", "c")
    start(rig, nursery, age=1_000)
    await trio.sleep(PERIOD_S + 0.1)

    assert rig.store.ids == []
    assert completed(rig) == 0


async def test_a_slow_commit_does_not_make_it_count_twice(rig: Rig, nursery, autojump_clock, monkeypatch):
    monkeypatch.setattr(retention_module, "ROWS_PER_STEP", 3)
    await complete(rig, *(f"old{n}" for n in range(3)))
    await trio.sleep(10)
    await complete(rig, *(f"new{n}" for n in range(5)))
    start(rig, nursery, age=8_000)
    await trio.sleep(PERIOD_S - 0.005)
    # A commit is under way when the old ones are found, and the next one, which deletes them, is as slow.
    rig.store.close_gate()
    rig.talker().segment(*pushes(["durable"], durable=True))
    await trio.sleep(0.1)
    rig.store.open_gate()
    rig.store.close_gate()
    await trio.sleep(0.1)
    rig.store.open_gate()
    await trio.sleep(0.5)

    assert completed(rig) == 5
    assert rig.store.ids == [*(f"new{n}" for n in range(5)), "durable"]


async def test_counts_stay_right_while_the_file_refuses(rig: Rig, nursery, autojump_clock):
    await complete(rig, "old0", "old1")
    await trio.sleep(60)
    await complete(rig, *(f"new{n}" for n in range(8)))
    rig.store.fill_disk()
    start(rig, nursery, age=59_000)
    await trio.sleep(40)  # several looks, none of which can delete a row
    assert completed(rig) == 8
    rig.store.heal()
    rig.store.free += 1 << 30
    await trio.sleep(2)

    assert completed(rig) == 8
    assert rig.store.ids == [f"new{n}" for n in range(8)]


async def test_what_a_client_removes_while_the_file_is_read_is_counted_once(rig: Rig, connect, nursery, autojump_clock):
    # given: a retention whose read takes half a second
    await complete(rig, "old")
    await trio.sleep(60)
    await complete(rig, "new")
    client, read = connect(rig), rig.store.read

    async def slow_read(function):
        found = await read(function)
        await trio.sleep(0.5)
        return found

    rig.store.read = slow_read  # type: ignore[method-assign]
    start(rig, nursery, age=30_000)
    await trio.sleep(PERIOD_S + 0.1)
    rig.store.read = read  # type: ignore[method-assign]

    # when: meanwhile a client deletes what it has found
    await client.call("Clean", queue=QUEUE, grace=30_000, state="completed")
    await trio.sleep(1)

    # then
    assert (completed(rig), rig.store.ids) == (1, ["new"])


async def test_a_file_that_cannot_be_read_is_looked_at_again(rig: Rig, nursery, autojump_clock, log):
    await complete(rig, "a")
    start(rig, nursery, age=1_000)
    rig.store.fail_reads = StorageError("disk I/O error")
    await trio.sleep(PERIOD_S + 0.1)
    assert [line["message"] for line in log()] == ["Completed jobs cannot be looked up; they are kept for now"]
    rig.store.fail_reads = None
    await trio.sleep(PERIOD_S)

    assert rig.store.ids == []
