"""Bounds of the pause between attempts, for any job the wire lets in."""

from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from bunqueue_trio.engine.retries import BACKOFF_CAP_MS, backoff_ms, retry_at
from bunqueue_trio.model.instant import Now
from bunqueue_trio.model.job import BackoffConfig, JobRecord
from tests.engine_harness import raw

DAY_MS = 86_400_000
delays = st.one_of(st.integers(0, DAY_MS), st.floats(0, DAY_MS))
attempts = st.integers(1, 1_000)
jitters = st.floats(0, 1, exclude_max=True)
kinds = st.sampled_from(["plain", "fixed", "exponential"])


def record(kind: str, delay: float, max_delay: float | None = None) -> JobRecord:
    config = None if kind == "plain" else BackoffConfig(kind, delay, UNSET if max_delay is None else max_delay)
    return JobRecord("j", "q", raw(1), 0.0, 0.0, 0.0, backoff=delay, backoff_config=config)


@given(kinds, delays, attempts, jitters)
def test_the_pause_lies_within_its_jitter_and_the_cap(kind, delay, count, jitter):
    pause = backoff_ms(record(kind, delay), count, jitter)

    base = delay if kind == "fixed" else delay * 2.0 ** min(count, 64)
    low, high = (0.8, 1.2) if kind == "fixed" else (0.5, 1.5)
    assert min(base * low, BACKOFF_CAP_MS) * (1 - 1e-9) <= pause <= min(base * high, BACKOFF_CAP_MS) * (1 + 1e-9)


@given(kinds, delays, attempts, jitters, st.integers(0, DAY_MS))
def test_a_cap_of_the_jobs_own_is_never_passed_and_nearly_reached(kind, delay, count, jitter, max_delay):
    capped = backoff_ms(record(kind, delay, max_delay), count, jitter)
    free = backoff_ms(record(kind, delay), count, jitter)

    if kind == "plain" or free <= max_delay:
        assert capped == free or capped >= 0.8 * max_delay
    else:
        assert 0.8 * min(max_delay, BACKOFF_CAP_MS) * (1 - 1e-9) <= capped <= min(max_delay, BACKOFF_CAP_MS)


@given(st.sampled_from(["plain", "exponential"]), delays, attempts, jitters)
def test_another_attempt_never_shortens_the_pause(kind, delay, count, jitter):
    one = record(kind, delay)

    assert backoff_ms(one, count + 1, jitter) >= backoff_ms(one, count, jitter)


@given(kinds, delays, attempts, jitters, st.integers(0, 2**47))
def test_the_next_attempt_is_whole_and_never_early(kind, delay, count, jitter, wall):
    one = record(kind, delay)
    at = retry_at(one, count, Now(float(wall), 0.0), jitter)

    assert at == int(at)
    assert -1e-6 <= at - wall - backoff_ms(one, count, jitter) < 1.01
