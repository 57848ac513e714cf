"""Pause, cancel, stall policy."""

import pytest

from tests.engine_harness import EngineHarness


@pytest.fixture
def harness() -> EngineHarness:
    harness = EngineHarness()
    harness.connect(2)
    return harness


def test_pause_and_resume(harness):
    job_id = harness.push(priority=1)
    assert harness.ask("Pause", queue="q") == {"ok": True}
    assert harness.ask("IsPaused", queue="q") == {"ok": True, "paused": True}
    assert (harness.counts(), harness.state(job_id)) == ({"paused": 1}, "prioritized")
    harness.wakes()

    harness.send("Resume", queue="q")

    assert harness.wakes()["q"] >= 1
    assert harness.counts() == {"prioritized": 1}


def test_resume_wakes_as_many_pulls_as_can_be_served(harness):
    harness.send("Pause", queue="q")
    harness.push_many("q", [{}] * 4)
    harness.wakes()

    harness.send("Resume", queue="q")

    assert harness.wakes() == {"q": 4}


def test_pausing_does_not_touch_running_jobs(harness):
    harness.push()
    pulled = harness.pull()
    harness.send("Pause", queue="q")

    harness.ack(*pulled)

    assert harness.counts() == {"completed": 1}


def test_an_empty_queue_stays_paused(harness):
    harness.send("Pause", queue="q")
    harness.advance(60_000)
    harness.push()

    assert harness.pull() is None  # CD-10


# cancel


@pytest.mark.parametrize("options", [{}, {"priority": 1}, {"delay": 1_000}, {"groupId": "g"}])
def test_queued_jobs_can_be_cancelled(harness, options):
    harness.push(jobId="j", **options)
    harness.commit()

    assert harness.ask("Cancel", id="j") == {"ok": True}

    assert (harness.state("j"), harness.counts()) == ("unknown", {})
    assert harness.batches[-1].deleted == ["j"]


def test_a_parked_job_can_be_cancelled(harness):
    harness.push("deps", jobId="dep")
    harness.push(jobId="j", dependsOn=["dep"], uniqueKey="k")

    harness.send("Cancel", id="j")

    assert harness.counts() == {}
    assert harness.engine.state.dependents == {}
    assert harness.push(uniqueKey="k") != "j"


@pytest.mark.parametrize("place", ["active", "completed", "failed", "unknown"])
def test_others_cannot(harness, place):
    if place != "unknown":
        harness.push(jobId="j")
        pulled = harness.pull()
        if place == "completed":
            harness.ack(*pulled)
        elif place == "failed":
            harness.fail(*pulled, unrecoverable=True)

    assert harness.refusal("Cancel", id="j") == "Job not found or cannot be cancelled"
    assert harness.state("j") == place


@pytest.mark.parametrize("job_id", [None, 5, [], {"a": 1}])
def test_an_id_that_is_no_string_names_no_job(harness, job_id):
    assert harness.refusal("Cancel", id=job_id) == "Job not found or cannot be cancelled"


# stall policy

DEFAULTS = {"enabled": True, "stallInterval": 30_000, "maxStalls": 3, "gracePeriod": 5_000}


def test_the_policy_has_defaults(harness):
    assert harness.ask("GetStallConfig", queue="q") == {"ok": True, "config": DEFAULTS}


def test_valid_keys_are_merged(harness):
    harness.send("SetStallConfig", queue="q", config={"stallInterval": 1_000, "maxStalls": -1, "nonsense": 1})
    harness.send("SetStallConfig", queue="q", config={"enabled": False})

    assert harness.ask("GetStallConfig", queue="q")["config"] == {**DEFAULTS, "stallInterval": 1_000, "enabled": False}
