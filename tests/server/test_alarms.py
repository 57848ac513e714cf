"""Limits are told when they are crossed, once, and again after they were not."""

from functools import partial

import pytest
import trio

from bunqueue_trio.model.events import SystemEvent
from bunqueue_trio.model.health import MemoryUse
from bunqueue_trio.server import alarms as alarms_module
from bunqueue_trio.server.alarms import MB, Alarms
from bunqueue_trio.server.bulletins import run_bulletins
from bunqueue_trio.server.facts import FileFacts
from tests.server.fakes import QUEUE, Rig, pull, pushes, settle_down


def watch(rig: Rig, name: str):
    return rig.broker.events.subscribe(lambda event: isinstance(event, SystemEvent) and event.event == name)


def datas(subscription):
    return [event.data for event in subscription.take_nowait()]


@pytest.fixture
def start(rig: Rig, nursery: trio.Nursery):
    """Start the bulletins with these limits."""

    def run(**limits) -> None:
        alarms = Alarms(rig.broker, **limits)
        nursery.start_soon(partial(run_bulletins, rig.broker, idle_threshold_ms=0, alarms=alarms))

    return run


async def test_a_long_queue_is_told_once_until_it_was_shorter(rig: Rig, start, autojump_clock):
    start(queue_size=3)
    with watch(rig, "queue:threshold") as subscription:
        rig.talker().segment(*pushes(["a", "b"]))
        await trio.sleep(0.1)
        assert datas(subscription) == []

        rig.talker().segment(*pushes(["c"], priority=1), *pushes(["d"]))
        await trio.sleep(0.1)
        rig.push("e")
        await trio.sleep(0.1)
        assert datas(subscription) == [{"queue": "q", "size": 4, "threshold": 3}]

        talker = rig.talker()
        talker.segment(pull(), pull(), pull())
        await trio.sleep(0.1)
        rig.push("f")
        await trio.sleep(0.1)
        assert datas(subscription) == [{"queue": "q", "size": 3, "threshold": 3}]


async def test_without_a_limit_no_queue_is_too_long(rig: Rig, start, autojump_clock):
    start()
    with watch(rig, "queue:threshold") as subscription:
        rig.talker().segment(*pushes(map(str, range(50))))
        await trio.sleep(20)

        assert datas(subscription) == []


async def test_a_worker_at_its_capacity_is_told_after_a_while(rig: Rig, start, autojump_clock):
    rig.engine.workers.timeout_ms = 1e9
    talker = rig.talker()
    talker.say("RegisterWorker", name="w", queues=[QUEUE], workerId="w1", concurrency=2)
    talker.say("Heartbeat", id="w1", activeJobs=2)
    start(overload_ms=15_000)
    with watch(rig, "worker:overloaded") as subscription:
        await trio.sleep(21)
        assert datas(subscription) == []
        await trio.sleep(10)
        told = datas(subscription)
        talker.say("Heartbeat", id="w1", activeJobs=1)
        await trio.sleep(10)

    # The first round finds it full at 10 s.
    assert told == [{"workerId": "w1", "name": "w", "activeJobs": 2, "concurrency": 2, "overloadedSeconds": 20}]


async def test_much_memory_is_told_once_until_it_was_well_below(rig: Rig, monkeypatch):
    used = {"mb": 0}
    monkeypatch.setattr(
        alarms_module, "measure_memory", lambda: MemoryUse(heap_used=used["mb"], heap_total=500, rss=600)
    )
    alarms = Alarms(rig.broker, memory_mb=100)
    told = []
    with watch(rig, "server:memory-warning") as subscription:
        for used["mb"] in (99, 100, 120, 95, 101, 89, 100):
            alarms.look_at_server(rig.clock.now())
            told.append(datas(subscription))

    warning = {"heapUsedMB": 100, "thresholdMB": 100, "rssMB": 600}
    assert told == [[], [warning], [], [], [], [], [warning]]


async def test_a_large_file_is_told(rig: Rig):
    rig.broker.monitoring.file_facts = lambda: FileFacts(data_bytes=5 * MB // 2, wal_bytes=0, checkpoint_age_s=0)
    alarms = Alarms(rig.broker, storage_mb=2)
    with watch(rig, "storage:size-warning") as subscription:
        for _ in range(3):
            alarms.look_at_server(rig.clock.now())

        assert datas(subscription) == [{"sizeMB": 2.5, "thresholdMB": 2}]


async def test_who_comes_after_a_while_without_subscribers_is_told_anew(rig: Rig, start, autojump_clock):
    start(queue_size=1)
    await settle_down()
    for job_id in "ab":
        with watch(rig, "queue:threshold") as subscription:
            rig.push(job_id)
            await trio.sleep(0.1)
            assert len(datas(subscription)) == 1
        await trio.sleep(20)


async def test_names_of_queues_that_are_gone_do_not_gather(rig: Rig):
    alarms = Alarms(rig.broker, queue_size=1)
    rig.push("a")
    for name in ("q", "gone"):
        alarms.look_at_queue(name, rig.engine.state.queues["q"])
    assert alarms._long_queues == {"q", "gone"}

    alarms.look_at_server(rig.clock.now())

    assert alarms._long_queues == {"q"}
