"""Commands that change nothing."""

import pytest

from tests.engine_harness import EngineHarness, completed, needs_facts


@pytest.fixture
def harness() -> EngineHarness:
    return EngineHarness()


def everything(harness):
    """One job in each state."""
    harness.push(jobId="done")
    harness.ack(*harness.pull(), result=5)
    harness.push(jobId="dead", maxAttempts=1)
    harness.fail(*harness.pull(), error="no")
    harness.push(jobId="running")
    harness.pull()
    harness.push(jobId="ready")
    harness.push(jobId="urgent", priority=1)
    harness.push(jobId="later", delay=1_000)
    harness.push(jobId="parked", dependsOn=["ready"])


STATES = {
    "done": "completed", "dead": "failed", "running": "active", "ready": "waiting", "urgent": "prioritized",
    "later": "delayed", "parked": "waiting-children",
}  # fmt: skip


@pytest.mark.parametrize(("job_id", "state"), STATES.items())
def test_each_state_is_shown(harness, job_id, state):
    everything(harness)

    assert harness.ask("GetState", id=job_id) == {"ok": True, "id": job_id, "state": state}
    assert harness.shown(job_id)["state"] == state


def test_counts_of_every_state(harness):
    everything(harness)

    counts = harness.send("GetJobCounts", queue="q").counts
    assert counts == {
        "waiting": 1, "prioritized": 1, "delayed": 1, "active": 1, "completed": 1, "failed": 1, "waiting-children": 1,
        "paused": 0,
    }  # fmt: skip
    assert harness.ask("Count", queue="q") == {"ok": True, "count": 3}


def test_counts_of_a_paused_queue(harness):
    everything(harness)
    harness.send("Pause", queue="q")

    counts = harness.send("GetJobCounts", queue="q").counts
    assert (counts["waiting"], counts["prioritized"], counts["paused"], counts["delayed"]) == (0, 0, 2, 1)


def test_an_unknown_queue_is_empty_and_stays_unknown(harness):
    assert set(harness.send("GetJobCounts", queue="nowhere").counts.values()) == {0}
    assert harness.ask("Count", queue="nowhere") == {"ok": True, "count": 0}
    assert harness.ask("IsPaused", queue="nowhere") == {"ok": True, "paused": False}
    assert harness.ask("Dlq", queue="nowhere") == {"ok": True, "jobs": []}
    assert harness.ask("ListQueues") == {"ok": True, "queues": []}


def test_jobs_read_by_id_alone_and_pulled_show_no_state(harness):
    harness.push(jobId="j")
    assert "state" not in harness.ask("GetJobByCustomId", customId="j")["job"]
    assert "state" not in harness.ask("PULL", queue="q")["job"]


@pytest.mark.parametrize("job_id", ["nobody", None, 5, ["x"]])
def test_unknown_ids(harness, job_id):
    assert harness.refusal("GetJob", id=job_id) == "Job not found"
    assert harness.ask("GetState", id=job_id) == {"ok": True, "id": job_id, "state": "unknown"}
    assert harness.ask("GetResult", id=job_id) == {"ok": True, "id": job_id}
    assert harness.refusal("GetJobByCustomId", customId=job_id) == "Job not found"


def test_results(harness):
    everything(harness)

    assert harness.ask("GetResult", id="done")["result"] == 5
    assert "result" not in harness.ask("GetResult", id="running")


def test_only_live_jobs_are_found_by_custom_id(harness):
    everything(harness)

    found = {name for name in STATES if not isinstance(_by_custom_id(harness, name), str)}

    assert found == {"running", "ready", "urgent", "later", "parked"}


def _by_custom_id(harness, name):
    try:
        return harness.send("GetJobByCustomId", customId=name)
    except Exception as error:
        return str(error)


def test_a_discarded_job_keeps_its_custom_id_until_it_ends_in_another_way(harness):
    for name in ("queued", "active"):
        harness.push(jobId=name)
    harness.pull()
    harness.push(jobId="dad", childrenIds=["kid"])
    harness.push("kids", jobId="kid", parentId="dad", failParentOnFailure=True)

    for name in ("queued", "active"):
        harness.send("Discard", id=name)

    for name in ("queued", "active"):
        assert harness.ask("GetJobByCustomId", customId=name)["job"]["id"] == name
    harness.send("Discard", id="kid")
    assert harness.refusal("GetJobByCustomId", customId="dad") == "Job not found"
    harness.send("RetryDlq", queue="q", jobId="queued")
    harness.fail(*harness.pull(), unrecoverable=True)
    assert harness.state("queued") == "failed"
    assert harness.refusal("GetJobByCustomId", customId="queued") == "Job not found"


def test_a_generated_id_is_no_custom_id(harness):
    assert harness.refusal("GetJobByCustomId", customId=harness.push()) == "Job not found"


def test_queues_are_listed_in_the_order_of_their_first_use(harness):
    for name in ("c", "a", "b", "a"):
        harness.push(name)
    harness.pull("never")
    harness.send("Pause", queue="only-paused")

    assert harness.send("ListQueues").queues == ["c", "a", "b"]


def test_dead_letters_oldest_first_and_as_many_as_asked_for(harness):
    for name in "abc":
        harness.push(jobId=name, maxAttempts=1)
        harness.fail(*harness.pull())

    assert [job["id"] for job in harness.ask("Dlq", queue="q")["jobs"]] == ["a", "b", "c"]
    assert [job["id"] for job in harness.ask("Dlq", queue="q", count=2)["jobs"]] == ["a", "b"]
    assert [job["id"] for job in harness.ask("Dlq", queue="q", count=0)["jobs"]] == ["a", "b", "c"]


def test_a_read_does_not_leave_its_state_in_the_record(harness):
    harness.push(jobId="j")
    harness.shown("j")

    assert "state" not in harness.ask("PULL", queue="q")["job"]


@pytest.mark.parametrize("cmd", ["GetJob", "GetState", "GetResult", "GetProgress", "Progress"])
def test_when_memory_has_let_go_of_jobs_the_file_is_asked(harness, cmd):
    harness.engine.state.history.has_evicted = True

    assert needs_facts(harness, cmd, id="old", progress=1) == ["old"]


def test_what_the_file_says_is_shown(harness):
    harness.engine.state.history.has_evicted = True
    harness.engine.find_facts({"old": completed("old"), "never": None})

    assert harness.shown("old")["state"] == "completed"
    assert harness.state("old") == "completed"
    assert harness.ask("GetResult", id="old")["result"] == "r"
    assert harness.refusal("GetProgress", id="old") == "Job is not active (current state: completed)"
    assert harness.state("never") == "unknown"
    harness.engine.clear_facts()
    assert needs_facts(harness, "GetState", id="old") == ["old"]


def test_the_file_is_not_asked_about_jobs_in_memory(harness):
    harness.push(jobId="j")
    harness.engine.state.history.has_evicted = True

    assert harness.state("j") == "waiting"
    assert "result" not in harness.ask("GetResult", id="j")


def test_ping(harness):
    assert harness.ask("Ping")["data"] == {"pong": True, "time": harness.now.wall_ms}
