"""Explain names everything that holds a job, and no more."""

import pytest

from bunqueue_trio.engine import explaining
from bunqueue_trio.engine.history import History
from tests.engine_harness import EngineHarness, completed, needs_facts
from tests.flows import fail_child


@pytest.fixture
def harness() -> EngineHarness:
    harness = EngineHarness()
    harness.send("RegisterWorker", name="w", queues=["q"], workerId="w")
    return harness


def explain(harness, job_id="a"):
    """The state and the reasons, by name."""
    reply = harness.ask("Explain", id=job_id)
    assert reply["id"] == job_id
    reasons = {reason.pop("reason"): reason for reason in reply["reasons"]}
    assert len(reasons) == len(reply["reasons"])
    return reply["state"], reasons


def test_the_reply_has_its_keys_at_the_top(harness):
    harness.push(jobId="a")

    assert harness.ask("Explain", id="a") == {
        "ok": True,
        "id": "a",
        "state": "waiting",
        "reasons": [{"reason": "ready"}],
    }


@pytest.mark.parametrize("job_id", ["nobody", None, 7])
def test_an_unknown_job_is_refused(harness, job_id):
    assert harness.refusal("Explain", id=job_id) == "Job not found"


def test_a_paused_queue(harness):
    harness.push(jobId="a", priority=1)
    harness.send("Pause", queue="q")

    assert explain(harness) == ("prioritized", {"paused": {"queue": "q"}})


def test_a_delay(harness):
    harness.push(jobId="a", delay=5_000)

    assert explain(harness) == ("delayed", {"delayed": {"until": harness.now.wall_ms + 5_000}})


def test_a_ttl_that_is_over(harness):
    harness.push(jobId="a", ttl=1_000)
    since = harness.now.wall_ms + 1_000
    harness.advance(1_001)

    assert explain(harness) == ("waiting", {"expired": {"since": since}})


def test_jobs_in_front_are_counted(harness):
    for n in range(3):
        harness.push(jobId=f"x{n}")
    harness.push(jobId="a")
    harness.push(jobId="urgent", priority=9)
    harness.push(jobId="behind")
    harness.push(jobId="later", delay=5_000)
    harness.send("Cancel", id="x1")

    assert explain(harness) == ("waiting", {"jobs-ahead": {"count": 3, "atLeast": False}})
    assert explain(harness, "urgent") == ("prioritized", {"ready": {}})


def test_lifo_jobs_come_after_all_others(harness):
    for name in ("a", "b"):
        harness.push(jobId=name, lifo=True)
    harness.push(jobId="x")

    assert explain(harness)[1] == {"jobs-ahead": {"count": 2, "atLeast": False}}
    assert explain(harness, "b")[1] == {"jobs-ahead": {"count": 1, "atLeast": False}}


@pytest.mark.parametrize(
    ("count", "shown", "more"), [(1_000, 1_000, False), (1_001, 1_000, True), (3_000, 1_000, True)]
)
def test_more_jobs_in_front_than_anybody_counts(count, shown, more):
    harness = EngineHarness(checks=False)
    for _ in range(count):
        harness.push()
    harness.push(jobId="a")

    assert explain(harness)[1]["jobs-ahead"] == {"count": 1_000, "atLeast": more}


def test_stale_entries_in_front_cost_only_so_much(monkeypatch):
    monkeypatch.setattr(explaining, "LOOKED_AT_MAX", 50)
    harness = EngineHarness(checks=False)
    for n in range(100):
        harness.push(jobId=f"x{n}")
    harness.push(jobId="a")
    for n in range(1, 100):
        harness.send("Cancel", id=f"x{n}")

    ahead = explain(harness)[1]["jobs-ahead"]
    assert ahead["atLeast"]
    assert ahead["count"] <= 1


def test_a_busy_group(harness):
    for name in ("first", "a"):
        harness.push(jobId=name, groupId="g")
    harness.pull()
    assert explain(harness)[1] == {"group": {"groupId": "g", "active": "first"}}

    assert harness.pull() is None  # which sets it aside

    assert explain(harness)[1] == {"group": {"groupId": "g", "active": "first"}}


def test_a_full_concurrency_limit(harness):
    harness.send("SetConcurrency", queue="q", limit=1)
    for name in ("first", "a"):
        harness.push(jobId=name)
    assert "concurrency" not in explain(harness)[1]

    harness.pull()

    assert explain(harness) == ("waiting", {"concurrency": {"limit": 1, "active": 1}})


def test_a_spent_rate_limit_says_when_the_next_token_is_due(harness):
    harness.send("RateLimit", queue="q", limit=1, duration=10_000)
    for name in ("first", "a"):
        harness.push(jobId=name)
    assert "rate-limit" not in explain(harness)[1]
    harness.pull()
    harness.advance(4_000)

    assert explain(harness) == ("waiting", {"rate-limit": {"limit": 1, "until": harness.now.wall_ms + 6_000}})


def test_a_rate_limit_that_never_lets_anything_out(harness):
    harness.send("RateLimit", queue="q", limit=0)
    harness.push(jobId="a")

    assert explain(harness)[1] == {"rate-limit": {"limit": 0, "until": None}}


def test_a_rate_limit_whose_time_is_over_holds_nothing(harness):
    harness.send("RateLimit", queue="q", limit=0, ttl=1_000)
    harness.push(jobId="a")
    harness.advance(1_000)

    assert explain(harness)[1] == {"ready": {}}


def test_dependencies_and_what_became_of_them(harness):
    for name in ("w", "f", "x", "done", "act"):
        harness.push(name, jobId=name)
    harness.push(jobId="a", dependsOn=["w", "f", "x", "done", "act"])
    harness.pull("act")
    harness.ack(*harness.pull("done"))
    fail_child(harness, queue="f")
    harness.send("Cancel", id="x")

    state, reasons = explain(harness)

    assert state == "waiting-children"
    states = {"w": "waiting", "f": "failed", "x": "removed", "act": "active"}
    expected = [{"id": job_id, "state": state} for job_id, state in states.items()]
    assert reasons == {"dependencies": {"total": 4, "dependencies": expected}}


def test_only_the_first_dependencies_are_shown():
    harness = EngineHarness(checks=False)
    ids = [harness.push("c") for _ in range(150)]
    harness.push(jobId="a", dependsOn=ids)

    dependencies = explain(harness)[1]["dependencies"]

    assert dependencies["total"] == 150
    assert [one["id"] for one in dependencies["dependencies"]] == ids[:100]


def test_a_parked_job_may_be_held_by_more(harness):
    harness.push(jobId="a", dependsOn=[harness.push("c")], delay=5_000)
    harness.send("Pause", queue="q")

    assert set(explain(harness)[1]) == {"paused", "delayed", "dependencies"}


def test_everything_at_once(harness):
    harness.send("SetConcurrency", queue="q", limit=1)
    harness.send("RateLimit", queue="q", limit=1, duration=10_000)
    for name in ("first", "front", "a"):
        harness.push(jobId=name, groupId="g", ttl=1_000)
    harness.pull()
    harness.send("Pause", queue="q")
    harness.send("UnregisterWorker", workerId="w")
    harness.advance(1_001)

    expected = {"paused", "expired", "group", "concurrency", "rate-limit", "jobs-ahead", "no-worker"}
    assert set(explain(harness)[1]) == expected


def test_a_queue_that_nobody_serves(harness):
    harness.push("lonely", jobId="a")
    assert explain(harness)[1] == {"no-worker": {"queue": "lonely"}}

    harness.engine.state.has_parked_pull = lambda queue: queue == "lonely"

    assert explain(harness)[1] == {"ready": {}}


def test_a_server_that_stops(harness):
    harness.push(jobId="a")
    harness.engine.stop_handing_out()

    assert explain(harness)[1] == {"stopping": {}}


def test_a_leased_job(harness):
    harness.push(jobId="a")
    harness.pull(owner="me", lockTtl=30_000)
    harness.advance(4_000)

    until = harness.now.wall_ms + 26_000
    assert explain(harness) == ("active", {"leased": {"owner": "me", "until": until, "heartbeatAge": 4_000}})


def test_a_job_that_is_active_without_a_lock(harness):
    harness.push(jobId="a")
    harness.send("PULL", queue="q")

    assert explain(harness) == ("active", {"leased": {"owner": None, "until": None, "heartbeatAge": 0}})


def test_a_dead_letter(harness):
    harness.push(jobId="a")
    fail_child(harness, "boom", queue="q")

    expected = {"cause": "max_attempts_exceeded", "error": "boom", "since": harness.now.wall_ms}
    assert explain(harness) == ("failed", {"failed": expected})


def test_a_completed_job(harness):
    harness.push(jobId="a")
    harness.ack(*harness.pull())

    assert explain(harness) == ("completed", {"completed": {"since": harness.now.wall_ms}})


def test_a_completed_job_beyond_memory():
    harness = EngineHarness(history=History(max_jobs=1))
    for name in ("a", "b"):
        harness.push(jobId=name)
        harness.ack(*harness.pull())
    assert needs_facts(harness, "Explain", id="a") == ["a"]

    harness.engine.find_facts({"a": completed("a")})

    assert explain(harness) == ("completed", {"completed": {"since": 2.0}})


def test_changes_that_wait_for_their_commit(harness):
    harness.push(jobId="a")
    harness.push(jobId="b", dependsOn=["a"])
    with harness.pending():
        harness.push(jobId="new", durable=True)
        harness.send("Update", id="a", data=1)
        harness.send("Cancel", id="b")

        assert explain(harness, "new") == ("unknown", {"commit": {}})
        assert explain(harness) == ("waiting", {"commit": {}})
        assert set(explain(harness, "b")[1]) == {"commit", "dependencies"}
        harness.commit()


def test_asking_changes_nothing(harness):
    harness.push(jobId="a", ttl=1)
    harness.push(jobId="b", delay=1)
    harness.commit()
    harness.clock.advance(10)

    for name in ("a", "b"):
        explain(harness, name)

    assert not harness.engine.state.changes
    assert harness.counts()


def member(harness, job_id, group="g", **options):
    harness.push(jobId=job_id, name="n", groupId=group, **options)


def test_a_named_group_that_is_paused_or_rests(harness):
    member(harness, "a")
    harness.send("PauseGroup", queue="q", groupId="g")
    assert explain(harness) == ("waiting", {"group-paused": {"groupId": "g"}})

    harness.send("RateLimitGroup", queue="q", groupId="g", duration=1_000)
    until = harness.now.wall_ms + 1_000
    assert explain(harness)[1] == {
        "group-paused": {"groupId": "g"},
        "group-resting": {"groupId": "g", "until": until},
    }
    harness.send("ResumeGroup", queue="q", groupId="g")
    harness.advance(1_000)
    assert explain(harness)[1] == {"ready": {}}


def test_a_named_group_at_its_limits(harness):
    harness.send("SetGroupConcurrency", queue="q", groupId="g", concurrency=1)
    member(harness, "first")
    member(harness, "a")
    harness.pull(group={"limit": {"max": 1, "duration": 5_000}})

    assert explain(harness)[1] == {
        "group-concurrency": {"groupId": "g", "limit": 1, "active": 1},
        "group-rate-limit": {"groupId": "g", "limit": 1, "until": harness.now.wall_ms + 5_000},
    }
    harness.advance(5_000)
    harness.send("RemoveGroupConcurrency", queue="q", groupId="g")
    assert explain(harness)[1] == {"ready": {}}


def test_a_member_that_runs_alone_and_those_with_names(harness):
    member(harness, "first")
    harness.pull()
    harness.push(jobId="a", groupId="g")
    assert explain(harness)[1] == {"group": {"groupId": "g", "active": None}}

    harness.send("MoveToDelayed", id="first", delay=0)
    assert harness.pull_id() == "a"
    assert explain(harness, "first")[1]["group"] == {"groupId": "g", "active": "a"}


def test_what_is_ahead_of_a_member(harness):
    member(harness, "later", priority=9)
    member(harness, "first")
    member(harness, "a", priority=1)
    assert explain(harness)[1] == {"jobs-ahead": {"count": 1, "atLeast": False}}
    harness.push()
    assert explain(harness)[1] == {"jobs-ahead": {"count": 2, "atLeast": False}}
    member(harness, "other", group="h")

    assert explain(harness)[1] == {"jobs-ahead": {"count": 2, "atLeast": True}}
    assert explain(harness, "first")[1] == {"jobs-ahead": {"count": 1, "atLeast": True}}


def test_members_ahead_are_counted_up_to_a_bound(harness, monkeypatch):
    monkeypatch.setattr(explaining, "AHEAD_MAX", 2)
    for number in range(5):
        member(harness, f"j{number}")
    member(harness, "a")

    assert explain(harness)[1] == {"jobs-ahead": {"count": 2, "atLeast": True}}
