"""Giving back memory: what shrinks, what stays, and how often."""

import gc
import sys

import pytest

from bunqueue_trio.server import compaction
from bunqueue_trio.server.compaction import Compaction
from tests.engine_harness import EngineHarness


@pytest.fixture
def harness() -> EngineHarness:
    return EngineHarness(checks=False)


def test_the_index_shrinks_after_a_peak_and_nothing_is_lost(harness, monkeypatch):
    monkeypatch.setattr(compaction, "SPARSE_BYTES", 10_000)
    ids = harness.push_many("q", [{}] * 1_000)
    for job_id in ids[:-3]:
        harness.send("Cancel", id=job_id)
    before = sys.getsizeof(harness.engine.state.jobs)

    assert Compaction(harness.engine.state).run(0) is True

    assert sys.getsizeof(harness.engine.state.jobs) < before / 10
    assert harness.pull_all() == ids[-3:]
    harness.engine.check_invariants()


def test_an_index_that_is_full_or_small_is_left_alone(harness, monkeypatch):
    state = harness.engine.state
    harness.push_many("q", [{}] * 1_000)
    index = state.jobs
    Compaction(state).run(0)
    monkeypatch.setattr(compaction, "SPARSE_BYTES", 10_000)
    Compaction(state).run(0)

    assert state.jobs is index


def test_garbage_is_collected_at_most_once_a_second(harness, monkeypatch):
    runs = []
    monkeypatch.setattr(gc, "collect", lambda: runs.append(1))
    one = Compaction(harness.engine.state)

    assert [one.run(at) for at in (5_000, 5_999, 6_000)] == [True, False, True]
    assert len(runs) == 2
