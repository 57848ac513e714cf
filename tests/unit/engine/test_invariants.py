"""The self-check finds what it is there to find: each broken thing is named."""

import pytest

from bunqueue_trio.errors import InvariantError
from bunqueue_trio.model.job import JobState
from tests.engine_harness import EngineHarness


@pytest.fixture
def harness() -> EngineHarness:
    harness = EngineHarness()
    harness.push(jobId="a", groupId="g", uniqueKey="k")
    harness.push(jobId="dep")
    harness.push(jobId="b", dependsOn=["dep"])
    harness.push(jobId="ready", uniqueKey="l")
    harness.push(jobId="later", delay=9_000)
    harness.pull()
    harness.engine.check_invariants()
    return harness


def counter(name):
    def spoil(harness):
        queue = harness.engine.state.queues["q"]
        setattr(queue, name, getattr(queue, name) + 1)

    return spoil


def total(harness):
    harness.engine.state.active_count += 1


def wrong_index(harness):
    harness.engine.state.jobs["other"] = harness.job("ready")


def gone_in_index(harness):
    harness.job("ready").state = JobState.GONE


def staged_without_change(harness):
    harness.job("ready").state = JobState.STAGED


def no_place(harness):
    harness.job("ready").place = None


def no_lease(harness):
    harness.job("a").lease = None
    harness.engine.state.held.clear()


def group_taken(harness):
    harness.engine.state.queues["q"].groups["g"].active = None


def key_of_nobody(harness):
    harness.engine.state.queues["q"].keys["m"] = harness.job("ready")


def key_of_the_gone(harness):
    queue = harness.engine.state.queues["q"]
    queue.keys["l"] = harness.job("ready").__copy__()


def held_by_another(harness):
    harness.engine.state.held[9] = {"a": harness.job("a")}


def held_but_ready(harness):
    harness.engine.state.held[9] = {"ready": harness.job("ready")}


def waits_but_is_gone(harness):
    harness.engine.state.dependents["dep"].add("nobody")


def queue_missing(harness):
    del harness.engine.state.queues["q"]


@pytest.mark.parametrize(
    "spoil",
    [
        *[
            counter(name)
            for name in ("waiting_count", "prioritized_count", "delayed_count", "parked_count", "active_count")
        ],
        total, wrong_index, gone_in_index, staged_without_change, no_place, no_lease, group_taken, key_of_nobody,
        key_of_the_gone, held_by_another, held_but_ready, waits_but_is_gone, queue_missing,
    ],
)  # fmt: skip
def test_what_is_wrong_is_found(harness, spoil):
    spoil(harness)

    with pytest.raises(InvariantError, match=r".+"):
        harness.engine.check_invariants()
