"""GetQueueLimits: the limits of a queue, and how long until the next job may leave."""

import pytest

from bunqueue_trio.errors import ValidationError
from tests.engine_harness import EngineHarness

NOTHING = {"rateLimit": None, "rateLimitTtl": -2, "concurrencyLimit": None, "maxed": False}


@pytest.fixture
def harness() -> EngineHarness:
    harness = EngineHarness()
    harness.push_many("q", [{}] * 6)
    return harness


def limits(harness: EngineHarness, queue: str = "q", **fields: object) -> dict[str, object]:
    return harness.ask("GetQueueLimits", queue=queue, **fields)["data"]["limits"]


def rest(harness: EngineHarness, **fields: object) -> object:
    return limits(harness, **fields)["rateLimitTtl"]


def test_a_queue_without_limits_known_or_not(harness):
    assert limits(harness) == NOTHING
    assert limits(harness, "none") == NOTHING
    assert "none" not in harness.engine.state.queues


def test_a_rate_limit_and_the_time_until_the_next_token(harness):
    harness.send("RateLimit", queue="q", limit=2, duration=60_000)
    assert limits(harness) == {**NOTHING, "rateLimit": {"max": 2, "duration": 60_000}, "rateLimitTtl": 0}
    harness.pull()
    assert rest(harness) == 0
    harness.pull()
    assert rest(harness) == 30_000
    harness.clock.advance(29_999.5)
    assert rest(harness) == 1
    harness.clock.advance(0.5)
    assert rest(harness) == 0


def test_the_duration_is_a_second_if_none_was_given(harness):
    harness.send("RateLimit", queue="q", limit=5)

    assert limits(harness)["rateLimit"] == {"max": 5, "duration": 1_000}


def test_fewer_than_asked_about_are_used_up(harness):
    harness.send("RateLimit", queue="q", limit=2, duration=60_000)
    harness.pull()
    harness.pull()

    assert [rest(harness, maxJobs=count) for count in (5, 3, 2, 1, 0, None)] == [0, 0, 30_000, 30_000, 30_000, 30_000]
    harness.clock.advance(10_000)
    assert rest(harness, maxJobs=2) == 20_000


def test_a_limit_that_lifts_itself_shows_its_rest_always(harness):
    harness.send("RateLimit", queue="q", limit=1, ttl=60_000)
    assert rest(harness, maxJobs=9) == 60_000
    harness.clock.advance(59_999)
    assert rest(harness) == 1
    harness.clock.advance(1)
    assert limits(harness) == NOTHING


def test_a_limit_that_lets_nothing_out_has_no_end(harness):
    harness.send("RateLimit", queue="q", limit=0)

    assert rest(harness) == -1


def test_a_cleared_limit(harness):
    harness.send("RateLimit", queue="q", limit=1)
    harness.send("SetConcurrency", queue="q", limit=1)
    harness.send("RateLimitClear", queue="q")
    harness.send("ClearConcurrency", queue="q")

    assert limits(harness) == NOTHING


def test_a_concurrency_limit_that_is_reached(harness):
    harness.pull()
    harness.send("SetConcurrency", queue="q", limit=2)
    assert limits(harness) == {**NOTHING, "concurrencyLimit": 2}
    pulled = harness.pull()
    assert limits(harness)["maxed"] is True
    harness.ack(*pulled)
    assert limits(harness)["maxed"] is False
    harness.send("SetConcurrency", queue="q", limit=0)
    assert limits(harness)["maxed"] is True


def test_a_limit_counts_when_it_has_committed(harness):
    with harness.pending():
        harness.send("SetConcurrency", queue="q", limit=0)
        assert limits(harness) == NOTHING
        harness.commit()

    assert limits(harness)["concurrencyLimit"] == 0


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, "Queue name is required"),
        ({"queue": 5}, "queue must be a string"),
        ({"queue": "q", "maxJobs": "x"}, "maxJobs must be a number"),
        ({"queue": "q", "maxJobs": -1}, "maxJobs must be at least 0"),
    ],
)
def test_what_is_refused(harness, fields, text):
    with pytest.raises(ValidationError) as refused:
        harness.ask("GetQueueLimits", **fields)
    assert str(refused.value) == text


@pytest.mark.parametrize("cmd", ["GetDeduplicationJobId", "RemoveDeduplicationKey"])
def test_a_key_is_one_of_a_queue(harness, cmd):
    with pytest.raises(ValidationError, match=r"^Queue name is required$"):
        harness.ask(cmd, deduplicationId="k")
