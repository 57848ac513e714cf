"""The token bucket, alone and in front of pulls."""

import pytest

from bunqueue_trio.engine.limits import TokenBucket
from bunqueue_trio.model.entries import RateLimit
from bunqueue_trio.model.instant import Now
from tests.engine_harness import EngineHarness


def at(mono_ms: float) -> Now:
    return Now(1_800_000_000_000 + mono_ms, mono_ms)


def test_a_bucket_starts_full_and_runs_empty():
    bucket = TokenBucket(RateLimit(3, 1_000), at(0))

    assert [bucket.take(at(0)) for _ in range(4)] == [True, True, True, False]


def test_it_refills_evenly():
    bucket = TokenBucket(RateLimit(4, 1_000), at(0))
    for _ in range(4):
        bucket.take(at(0))

    assert not bucket.take(at(249))
    assert bucket.take(at(250))
    assert not bucket.take(at(251))


def test_it_never_holds_more_than_its_limit():
    bucket = TokenBucket(RateLimit(2, 1_000), at(0))

    assert [bucket.take(at(1_000_000)) for _ in range(3)] == [True, True, False]


@pytest.mark.parametrize("limit", [1, 3, 7, 1_000])
def test_the_moment_it_names_is_the_earliest(limit):
    bucket = TokenBucket(RateLimit(limit, 1_000), at(0))
    while bucket.take(at(0)):
        pass

    moment = bucket.next_token_mono_ms(at(0))

    assert moment == pytest.approx(1_000 / limit)
    assert not bucket.take(at(moment - 0.5 * 1_000 / limit))
    assert bucket.take(at(moment + 0.001))


def test_a_full_bucket_names_the_present():
    assert TokenBucket(RateLimit(2), at(5)).next_token_mono_ms(at(7)) == 7


def test_a_limit_below_one_never_lets_anything_through():
    bucket = TokenBucket(RateLimit(0.5), at(0))

    assert not bucket.take(at(10_000_000))
    assert bucket.next_token_mono_ms(at(0)) is None


# through the engine


def limited(limit: float = 2, **fields) -> EngineHarness:
    harness = EngineHarness()
    harness.set(rate_limit=RateLimit(limit, 1_000, **fields))
    harness.push_many("q", [{}] * 5)
    harness.wakes()
    return harness


def test_pulls_stop_when_the_tokens_are_spent():
    harness = limited()

    assert len(harness.pull_all()) == 2
    assert harness.counts() == {"active": 2, "waiting": 3}


def test_the_refill_wakes_waiting_pulls():
    harness = limited()
    harness.pull_all()
    harness.wakes()
    start = harness.now.mono_ms

    assert harness.engine.next_deadline_mono_ms(harness.now) == start + 500
    harness.advance(500)

    assert harness.wakes()["q"] >= 1
    assert len(harness.pull_all()) == 1


def test_a_batch_pull_gets_what_the_tokens_allow():
    harness = limited(3)

    assert len(harness.send("PULLB", queue="q", count=10).jobs) == 3


def test_polling_sets_one_timer_only():
    harness = limited(1)
    harness.pull()
    for _ in range(50):
        harness.pull()

    state = harness.engine.state
    assert sum(target is state.queues["q"] for _, _, target in state.timers) == 1


def test_a_limit_lifts_itself():
    harness = limited(1, expires_at=EngineHarness().now.wall_ms + 10_000)
    harness.pull_all()
    harness.clock.advance(10_000)

    assert len(harness.pull_all()) == 4


@pytest.mark.parametrize("limit", [1, 0], ids=["a token a day", "no token ever"])
def test_waiting_pulls_are_woken_when_a_limit_lifts_itself(limit):
    harness = EngineHarness()
    harness.push_many("q", [{}] * 5)
    harness.send("RateLimit", queue="q", limit=limit, duration=86_400_000, ttl=10_000)
    harness.pull_all()
    harness.wakes()

    harness.advance(9_999)
    assert harness.wakes() == {}
    harness.advance(1)

    assert harness.wakes()["q"] >= 1
    assert harness.pull() is not None


def test_a_new_limit_starts_with_a_full_bucket():
    harness = limited()
    harness.pull_all()

    harness.set(rate_limit=RateLimit(2, 1_000))

    assert len(harness.pull_all()) == 2


def test_other_settings_leave_the_bucket_alone():
    harness = limited()
    harness.pull_all()

    harness.send("Pause", queue="q")
    harness.send("Resume", queue="q")

    assert harness.pull() is None


def test_a_lifted_limit_lets_all_through_and_wakes():
    harness = limited()
    harness.pull_all()
    harness.wakes()

    harness.set(rate_limit=None)

    assert harness.wakes() == {"q": 3}
    assert len(harness.pull_all()) == 3


def test_a_wall_clock_jump_makes_no_tokens():
    harness = limited()
    harness.pull_all()

    harness.clock.skew(3_600_000)

    assert harness.pull() is None


def test_a_job_refused_by_concurrency_costs_no_token():
    harness = limited(2)
    harness.set(concurrency_limit=1)
    pulled = harness.pull()
    assert harness.pull() is None
    harness.ack(*pulled)

    assert harness.pull() is not None
