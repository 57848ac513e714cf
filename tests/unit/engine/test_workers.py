"""The registry of workers."""

import pytest

from bunqueue_trio.engine import workers
from bunqueue_trio.errors import ValidationError
from tests.engine_harness import EngineHarness

HOUR_MS = 3_600_000


@pytest.fixture
def harness() -> EngineHarness:
    harness = EngineHarness()
    harness.connect(2)
    return harness


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
    harness.clock.advance(1)
    register(harness, workerId="new")
    harness.clock.advance(90_000)

    harness.engine.workers.forget_silent(harness.now)

    assert list(harness.engine.state.workers) == ["new"]


def test_a_clock_that_is_set_forward_makes_nobody_silent(harness):
    harness.engine.workers.timeout_ms = 300
    register(harness, workerId="w1")

    harness.skew(6 * HOUR_MS)
    harness.engine.workers.forget_silent(harness.now)

    assert listed(harness)["workers"][0]["status"] == "active"
    assert listed(harness)["stats"]["active"] == 1


def test_a_clock_that_is_set_back_keeps_nobody_alive(harness):
    harness.engine.workers.timeout_ms = 300
    register(harness, workerId="w1")

    harness.skew(-12 * HOUR_MS)
    harness.clock.advance(301)
    assert listed(harness)["workers"][0]["status"] == "stale"
    harness.clock.advance(600)
    harness.engine.workers.forget_silent(harness.now)

    assert listed(harness)["workers"] == []


def test_what_is_shown_as_last_seen_is_the_time_of_day(harness):
    register(harness, workerId="w1")
    harness.skew(-12 * HOUR_MS)

    harness.send("Heartbeat", id="w1")

    assert listed(harness)["workers"][0]["lastSeen"] == harness.now.wall_ms


def test_a_worker_is_kept_until_it_has_been_silent_for_more_than_three_timeouts(harness):
    harness.engine.workers.timeout_ms = 300
    register(harness, workerId="w1")
    seen = []

    for advance in (900, 1):
        harness.clock.advance(advance)
        harness.engine.workers.forget_silent(harness.now)
        seen.append(list(harness.engine.state.workers))

    assert seen == [["w1"], []]


def test_a_heartbeat_of_another_connection_moves_no_worker(harness):
    register(harness, 1, workerId="w1")

    harness.send("Heartbeat", 2, id="w1")
    harness.disconnect(2)

    assert list(harness.engine.state.workers) == ["w1"]


def test_workers_decide_nothing_about_pulls(harness):
    register(harness, workerId="w1", queues=["elsewhere"])
    job_id = harness.push()

    assert harness.pull_id() == job_id


# the list


def listed(harness):
    return harness.ask("ListWorkers")["data"]


def test_workers_are_listed_in_the_order_of_their_registration(harness):
    register(harness, workerId="b", queues=["q"], concurrency=2, hostname="h", pid=3)
    register(harness, 2, workerId="a")
    harness.clock.advance(40)
    register(harness, workerId="b", queues=["r"])

    [first, second] = listed(harness)["workers"]

    now = harness.now.wall_ms
    assert first == {
        "id": "b", "name": "w", "queues": ["r"], "concurrency": 1, "hostname": "h", "pid": 3, "status": "active",
        "registeredAt": now - 40, "lastSeen": now, "activeJobs": 0, "processedJobs": 0, "failedJobs": 0,
        "currentJob": None, "uptime": 40,
    }  # fmt: skip
    assert second["id"] == "a"


def test_a_silent_worker_is_stale_until_it_is_heard_of_again(harness):
    harness.engine.workers.timeout_ms = 300
    register(harness, workerId="s")
    seen = []

    for advance in (299, 1):
        harness.clock.advance(advance)
        seen.append((listed(harness)["workers"][0]["status"], listed(harness)["stats"]["active"]))
    harness.send("Heartbeat", id="s")
    seen.append((listed(harness)["workers"][0]["status"], listed(harness)["stats"]["active"]))

    assert seen == [("active", 1), ("stale", 0), ("active", 1)]


def leave_by_unregistering(harness):
    harness.send("UnregisterWorker", workerId="w1")


def leave_with_the_connection(harness):
    harness.disconnect(1)


def leave_by_silence(harness):
    harness.clock.advance(90_001)
    harness.send("Heartbeat", id="w2")
    harness.engine.workers.forget_silent(harness.now)


@pytest.mark.parametrize("leave", [leave_by_unregistering, leave_with_the_connection, leave_by_silence])
def test_the_sums_keep_the_share_of_those_who_left(harness, leave):
    register(harness, 1, workerId="w1")
    register(harness, 2, workerId="w2")
    harness.send("Heartbeat", id="w1", activeJobs=2, processed=5, failed=1)
    harness.send("Heartbeat", id="w2", activeJobs=3, processed=7, failed=2)

    leave(harness)

    assert listed(harness)["stats"] == {
        "total": 1, "active": 1, "totalProcessed": 12, "totalFailed": 3, "activeJobs": 3,
    }  # fmt: skip


def test_sums_beyond_32_bits_travel_as_floats(harness):
    register(harness, workerId="w1")
    register(harness, workerId="w2")
    for worker_id in ("w1", "w2"):
        harness.send("Heartbeat", id=worker_id, processed=3_000_000_000)

    assert isinstance(listed(harness)["stats"]["totalProcessed"], float)


def test_the_number_of_workers_is_bounded(harness, monkeypatch):
    monkeypatch.setattr(workers, "MAX_WORKERS", 2)
    register(harness, workerId="w1")
    register(harness, workerId="w2")

    assert harness.refusal("RegisterWorker", name="w", workerId="w3") == "Too many workers (max 2)"
    register(harness, workerId="w1")
    harness.send("UnregisterWorker", workerId="w2")
    register(harness, workerId="w3")

    assert list(harness.engine.state.workers) == ["w1", "w3"]


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"name": None}, "Worker name is required"),
        ({"name": ""}, "Worker name is required"),
        ({"queues": "q"}, "queues must be an array"),
        ({"queues": [1]}, "queues[0] must be a string"),
    ],
)
def test_a_worker_needs_a_name_and_a_list_of_queues(harness, fields, text):
    with pytest.raises(ValidationError) as refused:  # SD-16
        harness.send("RegisterWorker", **{"name": "w", "workerId": "w1", **fields})

    assert str(refused.value) == text
    assert harness.engine.state.workers == {}
