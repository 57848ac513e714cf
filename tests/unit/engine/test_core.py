"""The engine as a whole: dispatch, time, and being the same every time."""

import random

import pytest

from bunqueue_trio.engine.core import Engine
from bunqueue_trio.engine.holdings import DUE_SWEPT_FROM
from bunqueue_trio.ids import Ids
from bunqueue_trio.model import commands as c
from bunqueue_trio.model.replies import Reply
from tests.engine_harness import SECRET, EngineHarness, decoded, snapshot_of

ABOUT_THE_SERVER = (c.Stats, c.Metrics, c.StorageStatus, c.CompactMemory, c.Prometheus, c.DashboardOverview)
ABOUT_WEBHOOKS = (c.AddWebhook, c.RemoveWebhook, c.ListWebhooks, c.SetWebhookEnabled)
NOT_THE_ENGINES = (c.Auth, c.Hello, c.SubscribeEvents, c.UnsubscribeEvents, *ABOUT_THE_SERVER, *ABOUT_WEBHOOKS)


@pytest.fixture
def harness() -> EngineHarness:
    return EngineHarness()


@pytest.mark.parametrize("kind", c.AnyCommand.__args__, ids=lambda kind: kind.__name__)
def test_every_command_has_a_handler(harness, kind):
    assert harness.engine.knows(kind()) == (kind not in NOT_THE_ENGINES)


@pytest.mark.parametrize("kind", NOT_THE_ENGINES)
def test_a_command_of_others_is_a_defect(harness, kind):
    with pytest.raises(TypeError, match=kind.__name__):
        harness.engine.execute(kind(), harness.now)


def test_a_command_that_is_lent_is_answered_by_the_lender(harness):
    reply = Reply()
    harness.engine.lend({c.Stats: lambda command, now: reply})

    assert harness.engine.knows(c.Stats())
    assert harness.engine.execute(c.Stats(), harness.now) is reply


def test_nothing_is_due_in_an_empty_engine(harness):
    assert harness.engine.next_deadline_mono_ms(harness.now) == float("inf")
    harness.tick()


def test_the_deadline_is_the_earliest_of_all(harness):
    start = harness.now.mono_ms
    harness.push(delay=50_000)
    assert harness.engine.next_deadline_mono_ms(harness.now) == start + 50_000
    harness.push()
    harness.pull(lockTtl=1_000)

    assert harness.engine.next_deadline_mono_ms(harness.now) == start + 3_000


def test_a_jump_of_the_wall_clock_moves_the_deadline_of_delayed_jobs(harness):
    harness.push(delay=50_000)
    harness.clock.skew(20_000)

    assert harness.engine.next_deadline_mono_ms(harness.now) == harness.now.mono_ms + 30_000


def test_small_steps_back_are_left_to_the_pulls(harness):
    harness.push(delay=500)
    harness.advance(500)
    harness.skew(-400)

    assert harness.counts() == {"waiting": 1}
    assert harness.pull() is None


def script(harness: EngineHarness, seed: int) -> list:
    chance = random.Random(seed)
    replies = []
    pulled: list[tuple[str, str]] = []
    for _ in range(120):
        step = chance.randrange(6)
        if step < 2:
            replies.append(harness.push(priority=chance.randrange(3), durable=chance.random() < 0.3))
        elif step == 2 and (got := harness.pull()) is not None:
            pulled.append(got)
            replies.append(got)
        elif step == 3 and pulled:
            replies.append(decoded(harness.ack(*pulled.pop())))
        elif step == 4 and pulled:
            replies.append(decoded(harness.fail(*pulled.pop())))
        else:
            harness.advance(chance.randrange(1_000))
    return replies


def test_the_same_commands_moments_and_ids_give_the_same_state():
    one, other = EngineHarness(seed=5), EngineHarness(seed=5)

    assert script(one, 3) == script(other, 3)
    assert snapshot_of(one.engine) == snapshot_of(other.engine)


def test_active_jobs_are_counted_over_all_queues(harness):
    harness.push("a")
    harness.push("b")
    harness.pull("a")
    pulled = harness.pull("b")
    assert harness.engine.active_count == 2

    harness.ack(*pulled)

    assert harness.engine.active_count == 1


def test_totals(harness):
    harness.push()
    harness.push(durable=True)
    harness.push_many("q", [{"priority": 1}, {}])
    harness.ack(*harness.pull())
    harness.fail(*harness.pull())
    harness.fail(*harness.pull(), unrecoverable=True)

    totals = harness.engine.state.totals
    assert (totals.pushed, totals.pulled, totals.completed, totals.failed) == (4, 3, 1, 1)


def test_reports_about_unknown_queues_do_no_harm(harness):
    harness.engine.forgotten(["nowhere"])
    harness.push()
    harness.engine.forgotten(["q"])

    assert harness.counts() == {"waiting": 1}


def test_a_fresh_engine_is_sound():
    Engine(Ids(SECRET, random.Random(1))).check_invariants()


def test_far_delayed_jobs_that_are_cancelled_leave_no_entry_each() -> None:
    harness = EngineHarness(checks=False)

    for n in range(3_000):
        job_id = harness.push(delay=10_000_000 - n)
        harness.send("Cancel", id=job_id)

    assert len(harness.engine.state.due) <= DUE_SWEPT_FROM + 1
