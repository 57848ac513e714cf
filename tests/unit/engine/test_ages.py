"""How long the oldest ready job has waited: whatever hides it, and never by looking at all jobs."""

import pytest

from bunqueue_trio.engine.ages import LOOKS_PER_BLOCK, READY_LOOKED_AT, Ages
from bunqueue_trio.engine.catalog import FULL
from tests.engine_harness import EngineHarness


@pytest.fixture
def harness() -> EngineHarness:
    return EngineHarness(checks=False)


def age(harness, queue="q", looks=1_000_000):
    return Ages(harness.now, looks).oldest_ready_ms(harness.engine.state.queue(queue))


def test_it_is_0_where_nothing_is_ready(harness):
    assert age(harness) == 0

    harness.push(delay=10_000)
    dependency = harness.push("other")
    harness.push(dependsOn=[dependency])
    harness.clock.advance(5_000)

    assert age(harness) == 0


def test_it_is_that_of_the_oldest(harness):
    harness.push()
    harness.clock.advance(3_000)
    harness.push()
    harness.clock.advance(2_000)
    assert age(harness) == 5_000

    harness.pull()

    assert age(harness) == 2_000


def test_it_begins_at_the_run_time(harness):
    harness.push(delay=1_000)
    harness.advance(4_000)

    assert age(harness) == 3_000


def test_a_job_that_has_only_just_become_ready_does_not_hide_the_others(harness):
    harness.push(delay=5_000)
    harness.clock.advance(1_000)
    harness.push()
    harness.advance(4_000)

    assert age(harness) == 4_000


@pytest.mark.parametrize("newer", [{"priority": 5}, {"priority": 1, "lifo": True}, {}])
def test_what_goes_first_does_not_hide_what_waits_longer(harness, newer):
    harness.push(lifo=not newer)
    for _ in range(100):
        harness.clock.advance(100)
        harness.push(**newer)

    assert age(harness) == 10_000


def test_members_of_a_busy_group_count(harness):
    harness.push(groupId="g")
    harness.push(groupId="g")
    harness.pull()
    assert harness.pull() is None  # sets the second aside
    harness.clock.advance(2_000)

    assert age(harness) == 2_000


def test_a_clock_that_was_set_back_makes_no_negative_age(harness):
    harness.push()
    harness.clock.skew(-60_000)

    assert age(harness) == 0


def test_paused_queues_have_an_age_too(harness):
    harness.push()
    harness.send("Pause", queue="q")
    harness.clock.advance(1_000)

    assert age(harness) == 1_000


def test_many_jobs_that_are_not_ready_are_stepped_over_by_the_block(harness):
    harness.push_many("q", [{"delay": 1_000_000}] * 20 * FULL)
    harness.clock.advance(10)
    harness.push(priority=1)
    harness.clock.advance(10)
    harness.push(priority=2)
    ages = Ages(harness.now, 10**9)

    assert ages.oldest_ready_ms(harness.engine.state.queue("q")) == 10
    assert 10**9 - ages._looks_left <= 21 * LOOKS_PER_BLOCK + 2 * FULL


def test_the_looks_at_all_queues_together_are_bounded(harness):
    for n in range(50):
        harness.push(f"q{n}", priority=1)
        harness.clock.advance(1)
        harness.push(f"q{n}", priority=2)
    ages = Ages(harness.now, 5 * (LOOKS_PER_BLOCK + 2))
    found = [ages.oldest_ready_ms(harness.engine.state.queue(f"q{n}")) for n in range(50)]

    # The first queues show their oldest job, the others the next to be handed out: a moment younger.
    now = harness.now.wall_ms
    exact = [now - min(e[-1].record.run_at for e in harness.engine.state.queue(f"q{n}").ready) for n in range(50)]
    assert [found[n] == exact[n] for n in range(50)] == [True] * 5 + [False] * 45
    assert all(found[n] == exact[n] - 1 for n in range(5, 50))


def test_eight_are_looked_at_and_no_more(harness):
    for _ in range(READY_LOOKED_AT + 100):
        harness.push(priority=1)
    ages = Ages(harness.now, 1_000)
    ages.oldest_ready_ms(harness.engine.state.queue("q"))

    assert 1_000 - ages._looks_left == READY_LOOKED_AT + LOOKS_PER_BLOCK
