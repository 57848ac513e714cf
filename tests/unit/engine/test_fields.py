"""Fields whose effect no other test would miss."""

import pytest

from tests.engine_harness import EngineHarness


@pytest.fixture
def harness() -> EngineHarness:
    return EngineHarness()


def test_the_duration_of_a_rate_limit_sets_how_fast_tokens_come_back(harness: EngineHarness) -> None:
    harness.push_many("q", [{}] * 4)
    harness.send("RateLimit", queue="q", limit=1, duration=10_000)
    assert len(harness.pull_all()) == 1

    harness.advance(9_000)
    assert harness.pull_all() == []
    harness.advance(1_000)

    assert len(harness.pull_all()) == 1


def test_a_rate_limit_lifts_itself_after_its_ttl(harness: EngineHarness) -> None:
    harness.push_many("q", [{}] * 4)
    harness.send("RateLimit", queue="q", limit=1, duration=3_600_000, ttl=5_000)
    assert len(harness.pull_all()) == 1

    harness.advance(4_999)
    assert harness.pull_all() == []
    harness.advance(1)

    assert len(harness.pull_all()) == 3


def test_lifo_of_a_priority_change_turns_the_order_and_stays_when_not_given(harness: EngineHarness) -> None:
    first, second = harness.push(), harness.push()
    for job_id in (first, second):
        harness.send("ChangePriority", id=job_id, priority=1, lifo=True)

    harness.send("ChangePriority", id=first, priority=2)

    assert harness.shown(first)["lifo"] is True
    harness.send("ChangePriority", id=first, priority=1)
    assert harness.pull_all() == [second, first]


def test_retry_dlq_by_id_takes_that_one_and_from_its_own_queue_only(harness: EngineHarness) -> None:
    first, second = harness.push(), harness.push()
    for job_id in (first, second):
        harness.send("Discard", id=job_id)

    assert harness.send("RetryDlq", queue="another", jobId=second).count == 0
    assert harness.send("RetryDlq", queue="q", jobId=second).count == 1

    assert [harness.state(job_id) for job_id in (first, second)] == ["failed", "waiting"]


@pytest.mark.parametrize("cmd", ["PULL", "PULLB"])
def test_the_lock_of_a_pull_lasts_as_long_as_asked(harness: EngineHarness, cmd: str) -> None:
    job_id = harness.push()
    reply = harness.ask(cmd, queue="q", owner="w", lockTtl=500)
    token = reply["token"] if cmd == "PULL" else reply["tokens"][0]

    harness.clock.advance(499)
    harness.send("JobHeartbeat", id=job_id, token=token)
    harness.clock.advance(500)

    assert harness.refusal("JobHeartbeat", id=job_id, token=token) == "Job not found or not active (or invalid token)"
