"""Pause, cancel, stall policy, and the registry of workers."""

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


# workers


def register(harness, connection=1, **fields):
    return harness.ask("RegisterWorker", connection, **{"name": "w", **fields})["data"]


def test_a_worker_is_described_in_full(harness):
    data = register(harness, queues=["a"], concurrency=4, workerId="w1", hostname="h", pid=7, startedAt=123)

    now = harness.now.wall_ms
    assert data == {
        "workerId": "w1", "name": "w", "queues": ["a"], "concurrency": 4, "hostname": "h", "pid": 7, "status": "active",
        "registeredAt": 123, "lastSeen": now, "activeJobs": 0, "processedJobs": 0, "failedJobs": 0, "currentJob": None,
    }  # fmt: skip


def test_a_worker_has_defaults_and_an_id(harness):
    data = register(harness)

    assert (data["queues"], data["concurrency"], data["hostname"], data["pid"]) == ([], 1, "unknown", 0)
    assert data["registeredAt"] == harness.now.wall_ms
    assert len(data["workerId"]) == 36
    assert register(harness)["workerId"] != data["workerId"]


def test_registering_again_renews_what_may_change(harness):
    register(harness, workerId="w1", queues=["a"], concurrency=4, hostname="h", pid=7)
    harness.send("Heartbeat", id="w1", processed=9)
    harness.clock.advance(100)

    data = register(harness, workerId="w1", name="other", queues=["b"])

    assert (data["name"], data["queues"], data["concurrency"]) == ("w", ["b"], 1)
    assert (data["hostname"], data["pid"], data["processedJobs"]) == ("h", 7, 9)
    assert data["lastSeen"] == harness.now.wall_ms == data["registeredAt"] + 100


def test_a_worker_belongs_to_the_connection_that_registered_it_last(harness):
    register(harness, 1, workerId="w1")
    register(harness, 2, workerId="w1")

    harness.disconnect(1)
    assert list(harness.engine.state.workers) == ["w1"]  # SD-15
    harness.disconnect(2)
    assert harness.engine.state.workers == {}


def test_a_worker_of_no_connection_stays(harness):
    register(harness, None, workerId="w1")
    harness.disconnect(1)

    assert list(harness.engine.state.workers) == ["w1"]


def test_a_heartbeat_replaces_the_counters_it_brings(harness):
    register(harness, workerId="w1")
    harness.send("Heartbeat", id="w1", activeJobs=2, processed=3, failed=1)
    harness.clock.advance(5)

    assert harness.ask("Heartbeat", id="w1", processed=4) == {"ok": True, "data": {"ok": True}}

    worker = harness.engine.state.workers["w1"]
    assert (worker.active_jobs, worker.processed_jobs, worker.failed_jobs) == (2, 4, 1)
    assert worker.last_seen == harness.now.wall_ms


@pytest.mark.parametrize("worker_id", ["nobody", None, 3])
def test_unknown_workers(harness, worker_id):
    assert harness.refusal("Heartbeat", id=worker_id) == "Worker not found"
    assert harness.refusal("UnregisterWorker", workerId=worker_id) == "Worker not found"


def test_unregister(harness):
    register(harness, workerId="w1")

    assert harness.ask("UnregisterWorker", workerId="w1") == {"ok": True, "data": {"removed": True}}
    assert harness.engine.state.workers == {}


def test_silent_workers_are_forgotten(harness):
    register(harness, workerId="old")
    harness.clock.advance(1_000)
    register(harness, workerId="new")

    harness.engine.workers.forget_silent(harness.now.wall_ms)

    assert list(harness.engine.state.workers) == ["new"]


def test_workers_decide_nothing_about_pulls(harness):
    register(harness, workerId="w1", queues=["elsewhere"])
    job_id = harness.push()

    assert harness.pull_id() == job_id
