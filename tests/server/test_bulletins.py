"""What subscribers are told of time alone, and that nothing is made for anybody else."""

from functools import partial

import pytest
import trio

from bunqueue_trio.model.events import SystemEvent
from bunqueue_trio.server import bulletins
from bunqueue_trio.server.bulletins import run_bulletins
from tests.server.fakes import QUEUE, Rig, pull, pushes

PERIODIC = ("stats:snapshot", "storage:status", "queue:idle", "queue:counts")


@pytest.fixture
async def told(rig: Rig, nursery: trio.Nursery):
    """Start the bulletins; returns a way to subscribe to them."""
    nursery.start_soon(partial(run_bulletins, rig.broker, idle_threshold_ms=30_000))
    await trio.testing.wait_all_tasks_blocked()

    def subscribe(*names: str):
        return rig.broker.events.subscribe(lambda event: isinstance(event, SystemEvent) and event.event in names)

    return subscribe


def datas(subscription):
    return [event.data for event in subscription.take_nowait()]


async def test_counts_follow_ten_milliseconds_after_the_first_of_some_events(rig: Rig, told, autojump_clock):
    with told("queue:counts") as subscription:
        rig.talker().segment(*pushes(["a", "b"]), *pushes(["c"], priority=1), *pushes(["d"], delay=60_000), pull())
        await trio.sleep(0.009)
        assert datas(subscription) == []
        rig.push("e")
        await trio.sleep(0.002)
        first = datas(subscription)
        await trio.sleep(1)

        assert first == [
            {"queue": "q", "waiting": 3, "prioritized": 0, "active": 1, "completed": 0, "failed": 0, "delayed": 1}
        ]
        assert datas(subscription) == []  # one is enough, and it causes no other


async def test_counts_are_raw_and_each_queue_has_its_own(rig: Rig, told, autojump_clock):
    with told("queue:counts") as subscription:
        rig.talker().segment(*pushes(["a"]), *pushes(["b"], queue="r"), {"cmd": "Pause", "queue": QUEUE})
        await trio.sleep(0.1)

        found = [(data["queue"], data["waiting"]) for data in datas(subscription)]
    assert found == [("q", 1), ("r", 1)]


async def test_a_queue_that_has_gone_counts_nothing(rig: Rig, told, autojump_clock):
    with told("queue:counts") as subscription:
        rig.push("a")
        rig.talker().say("Cancel", id="a")
        await trio.sleep(0.5)

        assert datas(subscription)[-1]["waiting"] == 0


async def test_a_snapshot_every_five_seconds(rig: Rig, told, autojump_clock):
    rig.talker().segment(*pushes(["a", "b"]), *pushes(["c"], delay=600_000), pull())
    with told("stats:snapshot") as subscription:
        await trio.sleep(11)
        [_, snapshot] = datas(subscription)

    for name in ("uptime", "pushPerSec", "pullPerSec"):
        assert snapshot.pop(name) >= 0
    assert snapshot == {
        "waiting": 1, "active": 1, "delayed": 1, "completed": 0, "dlq": 0,
        "totalPushed": 3, "totalCompleted": 0, "totalFailed": 0,
        "queues": {"q": {"waiting": 1, "active": 1, "delayed": 1, "dlq": 0, "paused": False}},
        "workers": {"total": 0, "active": 0}, "cronJobs": 0,
    }  # fmt: skip


async def test_a_snapshot_shows_a_bounded_number_of_queues(rig: Rig, monkeypatch):
    monkeypatch.setattr(bulletins, "QUEUES_SHOWN", 2)
    for n in range(5):
        rig.push(f"j{n}", queue=f"q{n}")

    assert list(bulletins.stats_snapshot(rig.broker, rig.clock.now())["queues"]) == ["q0", "q1"]


async def test_the_state_of_the_storage_every_thirty_seconds(rig: Rig, told, autojump_clock):
    with told("storage:status") as subscription:
        await trio.sleep(61)
        found = datas(subscription)

    assert len(found) == 2
    assert found[0] == {"collections": rig.broker.monitoring.collections(), "diskFull": False}
    assert len(found[0]["collections"]) == 15


async def test_an_idle_queue_is_told_again_and_again_until_it_has_something_to_do(rig: Rig, told, autojump_clock):
    rig.push("later", delay=10_000_000)
    with told("queue:idle") as subscription:
        await trio.sleep(30)
        assert datas(subscription) == []
        await trio.sleep(31)
        idle = datas(subscription)
        rig.push("now")
        await trio.sleep(40)

        # The first round finds it idle at 10 s; the others follow every 10 s.
        assert idle == [{"queue": "q", "idleSeconds": seconds} for seconds in (30, 40, 50)]
        assert datas(subscription) == []


async def test_an_idle_threshold_of_0_is_never(rig: Rig, nursery, autojump_clock):
    rig.push("later", delay=10_000_000)
    nursery.start_soon(partial(run_bulletins, rig.broker, idle_threshold_ms=0))
    with rig.broker.events.subscribe(lambda event: getattr(event, "event", "") == "queue:idle") as subscription:
        await trio.sleep(100)

        assert datas(subscription) == []


async def test_time_without_subscribers_does_not_count_as_idle(rig: Rig, told, autojump_clock):
    rig.push("later", delay=10_000_000)
    with told("queue:idle"):
        await trio.sleep(25)
    await trio.sleep(100)
    with told("queue:idle") as subscription:
        await trio.sleep(25)

        assert datas(subscription) == []


async def test_nothing_is_made_without_subscribers_even_if_webhooks_listen(rig: Rig, told, autojump_clock):
    class Ear:
        names: list[str] = []

        def take(self, events):
            self.names += [getattr(event, "event", "job") for event in events]

    ear = Ear()
    rig.broker.events.add(ear)
    rig.push("a")
    await trio.sleep(100)

    assert not set(ear.names) & set(PERIODIC)
