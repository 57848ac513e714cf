"""When the broker hands events over: once per turn, tick and flush, to those who listened when it happened."""

import random

import pytest
import trio

from bunqueue_trio.errors import StorageError
from bunqueue_trio.ids import Ids
from bunqueue_trio.model.commands import RegisterWorker
from bunqueue_trio.model.events import JobEvent, SystemEvent
from tests.engine_harness import SECRET
from tests.server.fakes import QUEUE, Rig, pull, pushes, settle_down
from tests.server.webhook_fakes import Hooks


class Ear:
    """Remembers the lists it is given."""

    def __init__(self) -> None:
        self.lists: list[list[str]] = []

    def take(self, events):
        self.lists.append([e.event_type if isinstance(e, JobEvent) else e.event for e in events])

    def heard(self):
        """The lists since the last call."""
        lists, self.lists = self.lists, []
        return lists


@pytest.fixture
def ear(rig: Rig) -> Ear:
    ear = Ear()
    rig.broker.events.add(ear)
    return ear


@pytest.fixture
def hooks(rig: Rig) -> Hooks:
    """Webhooks of this broker, whose calls go nowhere."""
    hooks = Hooks(Ids(SECRET, random.Random(2)), events=rig.broker.events)
    rig.broker.rooms.update(hooks.webhooks.handlers)
    return hooks


async def test_events_are_collected_only_while_somebody_listens(rig: Rig, autojump_clock):
    assert rig.engine.state.events is None

    with rig.broker.events.subscribe() as subscription:
        rig.push("a")
        told = subscription.take_nowait()
    rig.push("b")

    assert [event.job_id for event in told if isinstance(event, JobEvent)] == ["a"]
    assert rig.engine.state.events is None


async def test_a_turn_is_handed_over_as_one_list(rig: Rig, ear: Ear, autojump_clock):
    rig.talker().segment(*pushes(["a", "b"]), pull())

    assert ear.heard() == [["queue:created", "pushed", "pushed", "pulled"]]


async def test_a_turn_without_events_is_no_list(rig: Rig, ear: Ear, autojump_clock):
    rig.call("Ping")

    assert ear.heard() == []


async def test_a_parked_pull_that_is_served_is_told_with_the_push(rig: Rig, ear: Ear, autojump_clock):
    rig.talker().say("PULL", queue=QUEUE, timeout=1_000)

    rig.push("a")

    assert ear.heard() == [["queue:created", "pushed", "pulled"]]


async def test_what_is_promised_is_told_when_its_flush_has_ended(rig: Rig, ear: Ear, autojump_clock):
    talker = rig.talker()
    rig.store.close_gate()
    talker.segment(*pushes(["a"], durable=True))
    await settle_down()
    assert ear.heard() == []

    rig.store.open_gate()
    await settle_down()

    assert ear.heard() == [["queue:created", "pushed"]]


async def test_what_the_file_refuses_is_not_told(rig: Rig, ear: Ear, autojump_clock):
    rig.store.fill_disk()
    rig.talker().segment(*pushes(["a"], durable=True))
    await settle_down()
    rig.store.heal()
    await trio.sleep(5)

    assert ear.heard() == []


async def test_what_time_brings_about_is_told_by_the_tick(rig: Rig, ear: Ear, autojump_clock):
    rig.push("a", timeout=500)
    rig.talker().say("PULL", queue=QUEUE)
    ear.heard()

    await trio.sleep(0.6)

    assert ear.heard() == [["job:timeout", "failed", "retried"]]


async def test_what_a_lost_connection_brings_about_is_told_at_once(rig: Rig, ear: Ear, connect, autojump_clock):
    wire = connect(rig)
    await wire.call("RegisterWorker", name="w", queues=[QUEUE])
    ear.heard()

    wire.close()
    await settle_down()

    assert ear.heard() == [["worker:disconnected"], ["client:disconnected"]]


async def test_a_webhook_hears_nothing_of_what_happened_before_it(rig: Rig, ear: Ear, hooks: Hooks, autojump_clock):
    add = {"cmd": "AddWebhook", "url": "http://example.com/", "events": ["job.pushed"]}

    rig.talker().segment(*pushes(["a"]), add, *pushes(["b"]))

    assert ear.heard() == [["queue:created", "pushed"], ["webhook:added"], ["pushed"]]
    assert hooks.deliveries.pending_count == 1


async def test_a_webhook_that_is_switched_off_still_gets_what_happened_before(rig: Rig, hooks: Hooks, autojump_clock):
    talker = rig.talker()
    talker.say("AddWebhook", url="http://example.com/", events=["job.pushed"])
    [added] = talker.take()

    off = {"cmd": "SetWebhookEnabled", "id": added["data"]["webhookId"], "enabled": False}
    talker.segment(*pushes(["a"]), off, *pushes(["b"]))

    assert hooks.deliveries.pending_count == 1
    assert rig.engine.state.events is None


async def test_a_worker_that_is_dropped_is_told_of(rig: Rig, ear: Ear, autojump_clock):
    rig.engine.workers.timeout_ms = 100
    rig.broker.execute(RegisterWorker(name="w"), None, rig.clock.now())  # of no connection, as over HTTP
    rig.broker.after_turn(rig.clock.now())
    ear.heard()
    await trio.sleep(61)

    assert ear.heard() == [["worker:removed-stale"]]


async def test_system_events_are_no_job_events(rig: Rig, autojump_clock):
    with rig.broker.events.subscribe(lambda event: isinstance(event, SystemEvent)) as subscription:
        rig.push("a")
        rig.push("b", dependsOn=["a"])

        assert [event.event for event in subscription.take_nowait()] == ["queue:created", "job:waiting-children"]


# crons


async def test_a_run_of_a_cron_is_told_when_its_flush_has_ended_and_missed_with_the_error_of_the_file(
    rig: Rig, ear: Ear, autojump_clock
):
    rig.talker().say("Cron", name="c", queue=QUEUE, repeatEvery=1_000, preventOverlap=False)
    await trio.sleep(0.5)
    assert ear.heard() == [["cron:created"]]
    with rig.broker.events.subscribe() as subscription:
        rig.store.fail_always = StorageError("disk trouble")
        await trio.sleep(1)
        missed = subscription.take_nowait()
        rig.store.heal()
        await trio.sleep(3)
        fired = subscription.take_nowait()

    assert [(event.event, event.data["error"]) for event in missed] == [("cron:missed", "disk trouble")]
    assert [event.event for event in fired if isinstance(event, SystemEvent)].count("cron:fired") >= 1
