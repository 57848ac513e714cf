"""What only HTTP shows: shapes, cuts, and that the figures agree with the commands."""

import pytest
import trio

from bunqueue_trio.errors import ValidationError
from bunqueue_trio.server import overviews
from bunqueue_trio.server.overviews import Overviews
from tests.server.fakes import QUEUE, Rig

COLLECTIONS = {
    "jobIndex", "completedJobs", "jobResults", "jobLogs", "customIdMap", "jobLocks", "clientJobs", "clientJobsTotal",
    "pendingDepChecks", "stalledCandidates", "processingTotal", "queuedTotal", "waitingDepsTotal", "temporalIndexTotal",
    "delayedHeapTotal",
}  # fmt: skip


def worker(rig: Rig, name: str, *queues: str) -> None:
    rig.call("RegisterWorker", name=name, workerId=name, queues=list(queues), concurrency=2)


async def busy(rig: Rig) -> None:
    """A job in every state but failed, a cron that goes on and one that is over."""
    rig.push("active")
    rig.talker().say("PULL", queue=QUEUE)
    rig.push("ready")
    rig.push("soon", priority=3)
    rig.push("later", delay=60_000)
    rig.push("parked", dependsOn=["ready"])
    for name, limit in (("on", 5), ("over", 1)):
        rig.talker().say("Cron", name=name, queue="c", repeatEvery=60_000, maxLimit=limit, immediately=True)
    await trio.sleep(1)


async def test_stats_agree_with_the_gauges(rig: Rig, autojump_clock):
    await busy(rig)

    shown = Overviews(rig.broker).stats()

    stats = shown["stats"]
    assert {name: stats[name] for name in ("prioritized", "delayed", "active", "dlq", "completed")} == {
        "prioritized": 1,
        "delayed": 1,
        "active": 1,
        "dlq": 0,
        "completed": 0,
    }
    assert (stats["waiting"], stats["waiting-children"]) == (rig.engine.state.gauges.waiting, 1)
    assert (stats["totalPushed"], stats["totalPulled"], stats["totalCompleted"], stats["totalFailed"]) == (7, 1, 0, 0)
    assert stats["uptime"] >= 1_000
    assert {"pushPerSec", "pullPerSec", "completePerSec", "failPerSec"} <= set(stats)
    assert stats["cronJobs"] == len(rig.engine.state.crons)
    assert set(shown["memory"]) == {"heapUsed", "heapTotal", "rss", "external", "arrayBuffers"}
    assert set(shown["collections"]) == COLLECTIONS


async def test_a_cron_that_has_reached_its_limit_is_not_pending(rig: Rig, autojump_clock):
    await busy(rig)
    pending = [
        cron for cron in rig.engine.state.crons.by_name.values() if cron.job.executions < (cron.job.max_limit or 10**9)
    ]

    assert Overviews(rig.broker).stats()["stats"]["cronPending"] == len(pending) >= 1


async def test_a_delay_that_has_run_out_counts_as_ready_at_once(start_rig, autojump_clock):
    rig = await start_rig(reaper=False)
    rig.push("a", delay=1_000)
    rig.push("b", delay=1_000, priority=1, queue="other")
    looks = Overviews(rig.broker)
    await trio.sleep(2)

    assert looks.stats()["stats"]["waiting"] == 1
    assert looks.dashboard_queues(10, 0)["queues"][0]["waiting"] == 1
    assert [line["counts"]["prioritized"] for line in looks.summary(10, 0)] == [0, 1]


async def test_the_summary_shows_a_paused_queue_raw(rig: Rig, autojump_clock):
    await busy(rig)
    rig.talker().say("Pause", queue=QUEUE)
    await trio.sleep(0.1)

    [line] = [line for line in Overviews(rig.broker).summary(10, 0) if line["name"] == QUEUE]

    assert line == {
        "name": QUEUE,
        "paused": True,
        "counts": {"waiting": 1, "prioritized": 1, "active": 1, "completed": 0, "failed": 0, "delayed": 1},
    }


async def test_the_lists_of_the_dashboard_are_cut(rig: Rig, autojump_clock, monkeypatch):
    monkeypatch.setattr(overviews, "LISTED", 2)
    for number in range(3):
        worker(rig, f"w{number}", QUEUE)
    await busy(rig)

    shown = Overviews(rig.broker).dashboard()

    assert [entry["id"] for entry in shown["workers"]["list"]] == ["w0", "w1"]
    assert (shown["workers"]["total"], shown["workers"]["active"], shown["workers"]["truncated"]) == (3, 3, True)
    assert shown["crons"]["total"] == len(shown["crons"]["list"]) <= 2
    assert not shown["crons"]["truncated"]
    assert list(shown) == [
        "ok", "stats", "throughput", "latency", "memory", "collections", "workers", "crons", "storage", "timestamp",
    ]  # fmt: skip


async def test_workers_of_a_queue_are_those_heard_of_lately(rig: Rig, autojump_clock):
    worker(rig, "old", QUEUE)
    await trio.sleep(40)
    worker(rig, "new", "other", QUEUE)
    worker(rig, "elsewhere", "other")

    shown = Overviews(rig.broker).workers_of(QUEUE)["workers"]

    assert [entry["id"] for entry in shown] == ["new"]
    assert set(shown[0]) == {
        "id", "name", "queues", "concurrency", "registeredAt", "lastSeen", "activeJobs", "processedJobs", "failedJobs",
    }  # fmt: skip
    assert (shown[0]["queues"], shown[0]["concurrency"]) == (["other", QUEUE], 2)


async def test_a_queue_must_have_a_name_that_a_queue_can_have(rig: Rig, autojump_clock):
    looks = Overviews(rig.broker)

    assert looks.dashboard_queue("nobody", includes_jobs=True)["counts"]["waiting"] == 0
    with pytest.raises(ValidationError, match="Queue name contains invalid characters"):
        looks.dashboard_queue("a b", includes_jobs=False)


async def test_compacting_is_told_and_measured(rig: Rig, autojump_clock):
    told = []
    rig.broker.announce = lambda event, data: told.append((event, data))  # type: ignore[method-assign]

    shown = Overviews(rig.broker).compact()

    assert shown["ok"]
    assert set(shown["before"]) == set(shown["after"]) == {"heapUsed", "heapTotal", "rss"}
    assert told == [("memory:compacted", {})]


async def test_the_heap_is_looked_at_once_a_second_however_many_ask(rig: Rig, autojump_clock, monkeypatch):
    looks = Overviews(rig.broker)
    count = 0

    async def look() -> dict:
        nonlocal count
        count += 1
        await trio.sleep(0.3)
        return {"number": count}

    monkeypatch.setattr(looks, "_look_at_heap", look)
    seen: list[dict] = []

    async def ask() -> None:
        seen.append(await looks.heap())

    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(ask)
    await trio.sleep(1)

    assert seen == [{"number": 1}] * 5
    assert await looks.heap() == {"number": 2}


async def test_the_heap_by_type(rig: Rig, autojump_clock, monkeypatch):
    monkeypatch.setattr(overviews, "OBJECTS_PER_TURN", 1_000)
    shown = await Overviews(rig.broker).heap()

    assert shown["heap"]["objectCount"] > 1_000
    assert len(shown["heap"]["generations"]) == 3
    counts = [entry["count"] for entry in shown["topObjectTypes"]]
    assert len(counts) == 20
    assert counts == sorted(counts, reverse=True)
    assert set(shown["collections"]) == COLLECTIONS


async def test_what_is_announced_reaches_who_listens(rig: Rig, autojump_clock):
    rig.broker.announce("x:y", {"a": 1})  # nobody is there

    with rig.broker.events.subscribe() as subscription:
        rig.push("a")
        rig.broker.announce("x:y", {"a": 2})
        events = subscription.take_nowait()

    assert [getattr(event, "event", "job") for event in events][-1] == "x:y"
    assert (events[-1].data, events[-1].ts) == ({"a": 2}, rig.clock.now().wall_ms)
