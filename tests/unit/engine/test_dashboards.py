"""DashboardQueues and DashboardQueue: which keys, which counts, which jobs in which order."""

import pytest

from tests.engine_harness import EngineHarness


@pytest.fixture
def harness() -> EngineHarness:
    return EngineHarness()


def overview(harness):
    return harness.ask("DashboardQueues")["data"]["queues"]


def board(harness, queue="q", **fields):
    return harness.ask("DashboardQueue", queue=queue, **fields)["data"]


def listed(harness, queue="q", **fields):
    """Ids by state, of the states that have any."""
    jobs = board(harness, queue, includeJobs=True, **fields)["jobs"]
    assert set(jobs) == {"waiting", "active", "delayed", "paused"}
    return {state: [job["id"] for job in found] for state, found in jobs.items() if found}


def test_all_queues_with_raw_counts_in_the_order_of_their_first_use(harness):
    harness.push("b")
    harness.push("b", priority=2)
    harness.push("b", delay=60_000)
    harness.send("Pause", queue="b")
    harness.push("a", maxAttempts=1)
    harness.fail(*harness.pull("a"))
    harness.push("a")
    harness.pull("a")
    harness.send("Pause", queue="never used")

    reply = harness.ask("DashboardQueues")
    assert reply["data"]["timestamp"] == harness.now.wall_ms
    assert reply["data"]["queues"] == [
        {"name": "b", "waiting": 1, "prioritized": 1, "delayed": 1, "active": 0, "dlq": 0, "paused": True},
        {"name": "a", "waiting": 0, "prioritized": 0, "delayed": 0, "active": 1, "dlq": 1, "paused": False},
    ]


def test_a_delay_that_has_run_out_is_seen_before_the_tick(harness):
    harness.push("a", delay=500)
    harness.push("b", delay=500)
    harness.clock.advance(500)

    assert [(line["waiting"], line["delayed"]) for line in overview(harness)] == [(1, 0), (1, 0)]
    assert harness.wakes() == {"a": 1, "b": 1}


def test_a_queue_with_everything(harness):
    harness.push(jobId="done")
    harness.ack(*harness.pull())
    harness.push(jobId="dead", data={"n": 0}, maxAttempts=1)
    harness.fail(*harness.pull())
    born = harness.now.wall_ms
    harness.push(jobId="runs")
    harness.pull()
    harness.push(jobId="waits")
    harness.push(jobId="urgent", priority=4)
    harness.push(jobId="later", delay=60_000)
    harness.push(jobId="parked", dependsOn=["later"])
    harness.clock.advance(10)

    assert board(harness) == {
        "name": "q",
        "counts": {
            "waiting": 1,
            "prioritized": 1,
            "delayed": 1,
            "active": 1,
            "completed": 1,
            "failed": 1,
            "waiting-children": 1,
            "paused": 0,
            "totalCompleted": 1,
            "totalFailed": 1,
        },
        "paused": False,
        "priorityCounts": {"0": 2, "4": 1},
        "dlqPreview": [{"id": "dead", "data": {"n": 0}, "attempts": 1, "createdAt": born}],
        "timestamp": born + 10,
    }
    assert listed(harness) == {"waiting": ["waits"], "active": ["runs"], "delayed": ["later"]}


def test_a_queue_nobody_has_used_is_empty_and_stays_unknown(harness):
    seen = board(harness, "nowhere", includeJobs=True)

    assert set(seen["counts"].values()) == {0}
    assert (seen["name"], seen["priorityCounts"], seen["dlqPreview"]) == ("nowhere", {}, [])
    assert overview(harness) == []


def test_a_paused_queue_shows_its_ready_jobs_as_paused(harness):
    harness.push(jobId="waits")
    harness.clock.advance(1)
    harness.push(jobId="urgent", priority=1)
    harness.push(jobId="later", delay=1_000)
    harness.send("Pause", queue="q")

    seen = board(harness)
    assert seen["paused"] is True
    assert (seen["counts"]["waiting"], seen["counts"]["prioritized"], seen["counts"]["paused"]) == (0, 0, 2)
    assert listed(harness) == {"paused": ["waits", "urgent"], "delayed": ["later"]}


def test_a_listed_job_has_six_fields(harness):
    job_id = harness.push(priority=-2, timestamp=1_700_000_000_000.0)
    harness.fail(*harness.pull())
    harness.advance(60_000)
    harness.pull()
    harness.send("Progress", id=job_id, progress=40)

    [seen] = board(harness, includeJobs=True)["jobs"]["active"]
    run_at = seen.pop("runAt")
    assert harness.job(job_id).record.run_at == run_at
    assert seen == {
        "id": job_id, "priority": -2, "createdAt": 1_700_000_000_000.0, "attempts": 1, "progress": 40,
    }  # fmt: skip


def test_jobs_are_listed_only_when_asked_for(harness):
    harness.push()

    assert "jobs" not in board(harness)
    assert "jobs" not in board(harness, includeJobs=False)
    assert "jobs" not in board(harness, includeJobs=0)
    assert "jobs" in board(harness, includeJobs=1)


@pytest.mark.parametrize(
    ("fields", "count"),
    [
        ({}, 10),
        ({"jobsLimit": None}, 10),
        ({"jobsLimit": 3}, 3),
        ({"jobsLimit": 2.9}, 2),
        ({"jobsLimit": "4"}, 4),
        ({"jobsLimit": 0}, 0),
        ({"jobsLimit": -1}, 0),
        ({"jobsLimit": 51}, 50),
        ({"jobsLimit": 1e300}, 50),
    ],
)
def test_each_list_is_cut_at_the_limit(harness, fields, count):
    waiting = harness.push_many("q", [{"jobId": f"w{n:03}"} for n in range(120)])
    active = [harness.pull_id() for _ in range(60)]
    later = harness.push_many("q", [{"delay": 1_000 + n} for n in range(60)])

    seen = listed(harness, **fields)

    assert seen.get("waiting", []) == waiting[60 : 60 + count]
    assert seen.get("active", []) == active[:count]
    assert seen.get("delayed", []) == later[:count]
    harness.send("Pause", queue="q")
    assert listed(harness, **fields).get("paused", []) == waiting[60 : 60 + count]


def test_jobs_are_listed_by_their_time_and_then_by_their_id(harness):
    for name, options in (
        ("b", {"timestamp": 2_000.0}),
        ("old", {"timestamp": 1_000.0, "lifo": True}),
        ("urgent", {"timestamp": 500.0, "priority": 5}),
        ("a", {"timestamp": 2_000.0, "priority": -1}),
        ("soon", {"timestamp": harness.now.wall_ms, "delay": 1_000}),
        ("late", {"timestamp": harness.now.wall_ms - 2, "delay": 9_000}),
        ("gone", {"timestamp": harness.now.wall_ms - 1, "delay": 1_000}),
    ):
        harness.push(jobId=name, **options)
    harness.send("Cancel", id="gone")

    assert listed(harness) == {"waiting": ["old", "a", "b"], "delayed": ["late", "soon"]}
    assert listed(harness, jobsLimit=1) == {"waiting": ["old"], "delayed": ["late"]}


def test_members_of_a_busy_group_are_listed(harness):
    harness.push(jobId="a", groupId="g")
    harness.push(jobId="b", groupId="g")
    assert harness.pull_id() == "a"
    assert harness.pull_id() is None

    assert listed(harness) == {"waiting": ["b"], "active": ["a"]}


def test_the_first_ten_dead_letters_are_shown(harness):
    for n in range(12):
        harness.push(jobId=f"d{n}", maxAttempts=1)
        harness.fail(*harness.pull())

    assert [entry["id"] for entry in board(harness)["dlqPreview"]] == [f"d{n}" for n in range(10)]


def test_waiting_jobs_behind_many_prioritized_ones_are_found():
    harness = EngineHarness(checks=False)
    harness.push_many("q", [{"priority": 1}] * 3_000)
    harness.push(jobId="z")

    assert listed(harness)["waiting"] == ["z"]


def test_reading_a_dashboard_changes_nothing(harness):
    harness.push_many("q", [{"priority": n % 3} for n in range(20)])
    harness.commit()
    board(harness, includeJobs=True)
    overview(harness)

    assert not harness.engine.state.changes
    assert len(harness.pull_all()) == 20


@pytest.mark.parametrize("queue", ["", "with blanks", "x" * 300])
def test_any_string_names_a_queue(harness, queue):
    assert board(harness, queue)["name"] == queue


def test_the_preview_shows_data_as_stored_and_null_for_none(harness):
    for fields in ({"data": {"to": "x"}}, {}):
        harness.send("PUSH", queue="q", name="send", maxAttempts=1, **fields)
        harness.fail(*harness.pull())

    assert [glance["data"] for glance in board(harness)["dlqPreview"]] == [{"to": "x"}, None]
    preview = harness.send("DashboardQueue", queue="q").data["dlqPreview"]
    assert [bytes(glance.data) for glance in preview] == [b"\x81\xa2to\xa1x", b"\xc0"]
