"""Sums over all queues follow every counter of every queue, whoever changes it."""

import pytest

from bunqueue_trio.engine.dead_letters import dead_letter
from bunqueue_trio.engine.gauges import Gauges, Letters
from bunqueue_trio.engine.queue_state import QueueState
from bunqueue_trio.model.job import Job, JobState
from tests.engine_harness import EngineHarness, completed


@pytest.fixture
def harness() -> EngineHarness:
    return EngineHarness()


def gauges(harness):
    g = harness.engine.state.gauges
    return (g.waiting, g.prioritized, g.delayed, g.parked, g.completed, g.dead)


def letters():
    sums = Gauges()
    found = Letters(sums)
    return sums, found


def entry(harness, job_id):
    record = completed(job_id).record
    job = Job(record=record, state=JobState.ACTIVE, seq=0)
    return dead_letter(harness.engine.state, job, record, "unknown", None, harness.now)


def test_every_state_is_summed_over_all_queues(harness):
    for name in ("a", "b"):
        harness.push(name, jobId=f"{name}-done")
        harness.ack(*harness.pull(name))
        harness.push(name, maxAttempts=1)
        harness.fail(*harness.pull(name))
        harness.push_many(name, [{}, {}, {}])
        harness.push(name, priority=1)
        harness.push(name, priority=-1)
        harness.push(name, delay=1_000)
        harness.push(name, dependsOn=[harness.push("c", delay=9_000)])

    assert gauges(harness) == (8, 2, 4, 2, 2, 2)
    assert harness.engine.state.gauges.queued == 14
    assert harness.engine.completed_count == 2


def test_what_leaves_a_queue_leaves_the_sums(harness):
    harness.push(jobId="dep", delay=5_000)
    harness.push(jobId="parked", dependsOn=["dep"])
    harness.push(jobId="dead", maxAttempts=1)
    harness.fail(*harness.pull())
    harness.send("PurgeDlq", queue="q")
    harness.send("Cancel", id="parked")
    harness.send("Cancel", id="dep")

    assert gauges(harness) == (0, 0, 0, 0, 0, 0)


def test_a_pause_moves_no_sum(harness):
    harness.push()
    harness.send("Pause", queue="q")

    assert gauges(harness) == (1, 0, 0, 0, 0, 0)


def test_a_completed_job_that_expires_or_lives_again_is_no_longer_summed(harness):
    for name in ("old", "again"):
        harness.push(jobId=name)
        harness.ack(*harness.pull())
    harness.engine.expire_completed([("old", "q")], harness.now.wall_ms)
    harness.push(jobId="again")

    assert gauges(harness) == (1, 0, 0, 0, 0, 0)


def test_letters_are_counted_one_by_one(harness):
    sums, found = letters()
    found["a"] = entry(harness, "a")
    found["a"] = entry(harness, "a")
    found["b"] = entry(harness, "b")
    found["c"] = entry(harness, "c")
    assert sums.dead == 3

    del found["a"]
    assert found.pop("b").job.id == "b"
    assert found.pop("nobody", None) is None
    assert sums.dead == 1

    found.clear()
    assert (sums.dead, found) == (0, {})


def test_taking_what_is_not_there_is_an_error_and_counts_nothing():
    sums, found = letters()

    with pytest.raises(KeyError):
        found.pop("nobody")
    with pytest.raises(KeyError):
        del found["nobody"]
    assert sums.dead == 0


def test_a_queue_that_is_given_up_takes_its_counts_along(harness):
    harness.push_many("q", [{}, {"priority": 1}, {"delay": 500}])
    harness.push(dependsOn=[harness.push("other", delay=1_000)])
    harness.push(maxAttempts=1, priority=9)
    harness.fail(*harness.pull())
    harness.push(priority=9)
    harness.ack(*harness.pull())
    queue = harness.engine.state.queues["q"]
    assert gauges(harness) == (1, 1, 2, 1, 1, 1)

    queue.retire()
    queue.completed_count += 1
    queue.letters.clear()

    assert gauges(harness) == (0, 0, 1, 0, 0, 0)


def test_a_queue_of_nobody_has_sums_of_its_own():
    queue = QueueState("q")
    queue.parked_count += 2

    assert (queue.gauges.parked, queue.parked_count) == (2, 2)


def test_priorities_of_queued_jobs_are_counted(harness):
    harness.push_many("q", [{}, {"priority": 3}, {"priority": 3, "delay": 1_000}, {"priority": -5}, {"delay": 500}])
    queue = harness.engine.state.queues["q"]
    assert queue.count_per_priority == {"0": 2, "3": 2, "-5": 1}

    harness.pull()
    assert queue.count_per_priority == {"0": 2, "3": 1, "-5": 1}

    harness.advance(1_000)
    assert harness.pull_all() != []
    assert queue.count_per_priority == {}


def test_a_changed_priority_is_counted_anew(harness):
    job_id = harness.push(priority=2)
    harness.send("ChangePriority", id=job_id, priority=7)
    assert harness.engine.state.queues["q"].count_per_priority == {"7": 1}

    harness.send("ChangePriority", id=job_id, priority=0)
    assert harness.engine.state.queues["q"].count_per_priority == {"0": 1}


def test_a_clock_that_goes_back_leaves_priorities_as_they_are(harness):
    harness.push(priority=2, delay=5_000)
    harness.advance(5_000)
    harness.skew(-3_000)
    harness.skew(-500)

    assert harness.pull() is None
    assert harness.engine.state.queues["q"].count_per_priority == {"2": 1}


def test_totals_of_a_queue_count_completions_and_final_failures(harness):
    harness.push_many(
        "q", [{}, {"removeOnComplete": True}, {"maxAttempts": 1}, {"maxAttempts": 1, "removeOnFail": True}]
    )
    harness.ack(*harness.pull())
    harness.ack(*harness.pull())
    harness.fail(*harness.pull())
    harness.fail(*harness.pull())
    harness.push(timeout=100, maxAttempts=1)
    harness.pull()
    harness.advance(100)
    harness.send("Discard", id=harness.push())

    queue = harness.engine.state.queues["q"]
    assert (queue.total_completed, queue.total_failed) == (2, 3)
    totals = harness.engine.state.totals
    assert (totals.completed, totals.failed) == (2, 3)


def test_a_failed_commit_counts_in_no_total(harness):
    harness.push()
    pulled = harness.pull()
    with harness.pending():
        harness.ack(*pulled)
        harness.reject()

    assert harness.engine.state.queues["q"].total_completed == 0
