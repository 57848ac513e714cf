"""Jobs left waiting for a job that was removed are counted, once each, and only those.

Source: scheduling and flows, SD-17.
"""

import pytest

from tests.engine_harness import EngineHarness


@pytest.fixture
def harness() -> EngineHarness:
    return EngineHarness()


def orphaned(harness) -> int:
    return harness.engine.state.totals.orphaned


def family(harness, count=2) -> str:
    """A job in q, and *count* jobs of another queue that wait for it; returns its id."""
    job_id = harness.push()
    for _ in range(count):
        harness.push("waiting", dependsOn=[job_id])
    return job_id


def cancel(harness, job_id):
    harness.send("Cancel", id=job_id)


def drain(harness, job_id):
    harness.send("Drain", queue="q")


def obliterate(harness, job_id):
    harness.send("Obliterate", queue="q")


def clean(harness, job_id):
    harness.send("Clean", queue="q", grace=0, state="waiting", limit=10)


def purge(harness, job_id):
    harness.send("Discard", id=job_id)
    assert orphaned(harness) == 0  # a dead letter can still come back
    harness.send("PurgeDlq", queue="q")


def purge_by_clean(harness, job_id):
    harness.send("Discard", id=job_id)
    harness.send("Clean", queue="q", grace=0, state="failed", limit=10)


WAYS = (cancel, drain, obliterate, clean, purge, purge_by_clean)


@pytest.mark.parametrize("way", WAYS)
def test_each_job_that_goes_on_waiting_counts_once(harness, way):
    job_id = family(harness, count=3)

    way(harness, job_id)

    assert orphaned(harness) == 3
    assert harness.counts("waiting") == {"waiting-children": 3}


@pytest.mark.parametrize("way", WAYS)
def test_nobody_waiting_is_nobody_counted(harness, way):
    way(harness, harness.push())

    assert orphaned(harness) == 0


def test_a_dependency_that_completed_before_it_was_removed_counts_nobody(harness):
    family(harness)
    harness.ack(*harness.pull())

    harness.send("Obliterate", queue="q")

    assert orphaned(harness) == 0


def test_jobs_that_go_along_are_not_counted(harness):
    first = harness.push()
    harness.push(dependsOn=[first])

    harness.send("Obliterate", queue="q")

    assert orphaned(harness) == 0


def test_a_removal_that_fails_counts_nobody(harness):
    job_id = family(harness)
    with harness.pending():
        harness.send("Cancel", id=job_id)
        harness.reject()

    assert orphaned(harness) == 0


def test_a_job_whose_time_to_live_ends_counts(harness):
    job_id = harness.push(ttl=100)
    harness.push("waiting", dependsOn=[job_id])
    harness.advance(200)

    assert harness.pull() is None
    assert orphaned(harness) == 1


def test_a_job_that_is_removed_on_failure_counts(harness):
    job_id = harness.push(maxAttempts=1, removeOnFail=True)
    harness.push("waiting", dependsOn=[job_id])

    harness.fail(*harness.pull())

    assert orphaned(harness) == 1


@pytest.mark.parametrize("policy", ["failParentOnFailure", "removeDependencyOnFailure", "ignoreDependencyOnFailure"])
@pytest.mark.parametrize("timed_out", [False, True])
def test_a_parent_that_its_child_lets_go_is_not_counted(harness, policy, timed_out):
    child = harness.push(maxAttempts=1, removeOnFail=True, parentId="p", timeout=100, **{policy: True})
    harness.push("waiting", jobId="p", dependsOn=[child], childrenIds=[child])
    pulled = harness.pull()

    if timed_out:
        harness.advance(200)
    else:
        harness.fail(*pulled)

    assert "waiting-children" not in harness.counts("waiting")
    assert orphaned(harness) == 0


def test_a_dead_letter_whose_id_lives_again_counts_nobody(harness):
    harness.push(jobId="again")
    harness.push("waiting", dependsOn=["again"])
    harness.send("Discard", id="again")

    harness.push(jobId="again")
    assert orphaned(harness) == 0
    harness.ack(*harness.pull())

    assert harness.counts("waiting") == {"waiting": 1}


def test_a_job_that_another_replaces_counts(harness):
    job_id = harness.push(uniqueKey="k")
    harness.push("waiting", dependsOn=[job_id])

    harness.push(uniqueKey="k", dedup={"replace": True})

    assert orphaned(harness) == 1


def test_an_expired_dead_letter_counts(harness):
    job_id = family(harness, count=1)
    harness.send("SetDlqConfig", queue="q", config={"maxAge": 1_000})
    harness.send("Discard", id=job_id)

    harness.advance(2_000)

    assert orphaned(harness) == 1
