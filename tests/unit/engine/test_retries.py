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


def bury(harness: EngineHarness, name: str) -> None:
    harness.push(jobId=name, maxAttempts=1)
    harness.fail(*harness.pull())


def test_the_oldest_dead_letters_go_when_there_are_too_many(monkeypatch):
    monkeypatch.setattr(retries, "DLQ_MAX_ENTRIES", 2)
    harness = EngineHarness()
    for name in "abcd":
        bury(harness, name)

    assert [letter[0] for letter in harness.dead_letters()] == ["c", "d"]
    assert (harness.state("a"), harness.counts()) == ("unknown", {"failed": 2})
    assert harness.commit().letters_gone == ["b"]
    assert harness.batches[-2].letters_gone == ["a"]


def test_an_evicted_letter_that_was_never_written_is_not_written(monkeypatch):
    monkeypatch.setattr(retries, "DLQ_MAX_ENTRIES", 1)
    harness = EngineHarness()
    for name in "ab":
        harness.push(jobId=name, maxAttempts=1)
        harness.pull()
    harness.advance(32_000)

    assert [row[0] for row in harness.commit().letters] == ["b"]


@pytest.mark.parametrize("success", [True, False])
def test_an_evicted_letter_whose_id_is_being_pushed_again(monkeypatch, success):
    monkeypatch.setattr(retries, "DLQ_MAX_ENTRIES", 1)
    harness = EngineHarness()
    bury(harness, "a")
    harness.push(jobId="b", maxAttempts=1)
    pulled = harness.pull()
    with harness.pending():
        harness.fail(*pulled)
        first = harness.take()
        harness.push(jobId="a", durable=True)
        harness.land(first)
        if success:
            harness.commit()
        else:
            harness.reject()

    assert harness.state("a") == ("waiting" if success else "unknown")
    assert [letter[0] for letter in harness.dead_letters()] == ["b"]
