"""What an autoscaler is told: work that could run, its age, what runs, and how much could at a time."""

import pytest

from bunqueue_trio.engine.scaling import scale_of
from tests.engine_harness import EngineHarness

TIMEOUT_MS = 30_000
NOTHING = {"depth": 0, "oldestAgeMs": None, "busy": 0, "capacity": 0}


@pytest.fixture
def harness() -> EngineHarness:
    return EngineHarness()


def scale(harness, queue="q"):
    return scale_of(harness.engine.state, queue, harness.now, TIMEOUT_MS)


def register(harness, worker_id, queues=("q",), **fields):
    harness.ask("RegisterWorker", name=worker_id, queues=list(queues), workerId=worker_id, **fields)


def test_an_unknown_queue_has_nothing_to_do_and_is_not_made(harness):
    assert scale(harness, "nobody") == NOTHING
    assert "nobody" not in harness.engine.state.queues


def test_ready_jobs_of_any_priority_count_and_others_do_not(harness):
    harness.push(priority=0)
    harness.push(priority=5)
    harness.push(delay=1_000)
    harness.push("other")

    assert scale(harness)["depth"] == 2


def test_a_job_that_has_become_due_counts_at_once(harness):
    harness.push(delay=1_000)
    harness.advance(1_500)

    assert (scale(harness)["depth"], scale(harness)["oldestAgeMs"]) == (1, 500)


def test_a_paused_queue_asks_for_nobody(harness):
    harness.push()
    harness.push()
    harness.pull()
    harness.ask("Pause", queue="q")

    assert scale(harness) == {**NOTHING, "busy": 1}


def test_the_age_is_that_of_the_oldest_whatever_runs_first(harness):
    harness.push(jobId="old")
    harness.advance(700)
    harness.push(jobId="first", priority=9)
    harness.advance(300)

    assert scale(harness)["oldestAgeMs"] == 1_000
    harness.pull()  # "first"
    assert scale(harness) == {"depth": 1, "oldestAgeMs": 1_000, "busy": 1, "capacity": 0}
    harness.pull()
    assert scale(harness) == {"depth": 0, "oldestAgeMs": None, "busy": 2, "capacity": 0}


def test_a_clock_that_is_set_back_makes_no_negative_age(harness):
    harness.push()
    harness.skew(-500)

    assert scale(harness)["oldestAgeMs"] in (None, 0)


def test_the_capacity_is_that_of_the_live_workers_of_the_queue(harness):
    register(harness, "silent", concurrency=100)
    harness.advance(TIMEOUT_MS)
    register(harness, "plain")
    register(harness, "both", queues=("other", "q"), concurrency=4)
    register(harness, "elsewhere", queues=("other",), concurrency=50)

    assert scale(harness)["capacity"] == 5
    harness.ask("UnregisterWorker", workerId="both")
    assert scale(harness)["capacity"] == 1
