"""Pauses between attempts, verdicts, and the bound of the dead letters. (Bounds of the pauses: property tests.)"""

import pytest

from bunqueue_trio.engine import retries
from bunqueue_trio.model.instant import Now
from bunqueue_trio.model.job import BackoffConfig, JobRecord
from tests.engine_harness import EngineHarness, raw


def record(backoff: float = 1_000, config: BackoffConfig | None = None) -> JobRecord:
    return JobRecord("j", "q", raw(1), 0.0, 0.0, 0.0, backoff=backoff, backoff_config=config)


@pytest.mark.parametrize(
    ("backoff", "config", "attempts", "low", "high"),
    [
        (1_000, None, 1, 1_000, 3_000),
        (1_000, None, 2, 2_000, 6_000),
        (1_000, None, 5, 16_000, 48_000),
        (1_000, BackoffConfig("exponential", 1_000), 1, 1_000, 3_000),
        (1_000, BackoffConfig("fixed", 1_000), 1, 800, 1_200),
        (1_000, BackoffConfig("fixed", 1_000), 9, 800, 1_200),
        (0, None, 7, 0, 0),
        (1_000, None, 30, 3_600_000, 3_600_000),
        (1_000, None, 1_000, 3_600_000, 3_600_000),
        (86_400_000, BackoffConfig("fixed", 86_400_000), 1, 3_600_000, 3_600_000),
        (1_000, BackoffConfig("exponential", 1_000, 5_000), 9, 4_000, 5_000),
        (1_000, BackoffConfig("exponential", 1_000, 0), 1, 0, 0),
        (1_000, BackoffConfig("fixed", 1_000, 500), 1, 400, 500),
        (1_000, BackoffConfig("fixed", 1_000, 9_000), 1, 800, 1_200),
    ],
)
def test_the_range_of_the_pause(backoff, config, attempts, low, high):
    one = record(backoff, config)

    assert retries.backoff_ms(one, attempts, 0.0) == pytest.approx(low)
    assert low <= retries.backoff_ms(one, attempts, 0.5) <= high
    assert retries.backoff_ms(one, attempts, 0.999_999) == pytest.approx(high, rel=1e-5)


def test_the_next_attempt_starts_on_a_whole_millisecond():
    at = retries.retry_at(record(backoff=7), 1, Now(1_000.0, 0.0), 0.123_456)

    assert at == int(at)
    assert isinstance(at, float)
    assert 1_007 <= at <= 1_022


def test_no_pause_is_at_once():
    assert retries.retry_at(record(backoff=0), 3, Now(1_000.0, 0.0), 0.9) == 1_000.0


@pytest.mark.parametrize(
    ("attempts", "stalls", "max_stalls", "verdict"),
    [
        (1, 1, 3, None),
        (3, 0, 3, "max_attempts_exceeded"),
        (3, 3, 3, "max_attempts_exceeded"),
        (2, 3, 3, "stalled"),
        (2, 9, 0, None),
        (4, 0, 0, "max_attempts_exceeded"),
    ],
)
def test_the_verdict(attempts, stalls, max_stalls, verdict):
    harness = EngineHarness()
    harness.send("SetStallConfig", queue="q", config={"maxStalls": max_stalls})

    assert retries.verdict(harness.engine.state, record(), attempts, stalls) == verdict
