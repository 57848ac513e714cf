"""The self-check finds what it is there to find: each broken thing is named."""

from collections import deque

import pytest

from bunqueue_trio.errors import InvariantError
from bunqueue_trio.model.job import ChildFailures, JobState
from bunqueue_trio.model.transitions import Removal
from tests.engine_harness import EngineHarness, raw


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


def data_of_another_form(harness):
    harness.push(jobId="named", name="n", data={"x": 1})
    harness.job("named").record.data = raw({"name": "own"})


def counter(name):
    def spoil(harness):
        queue = harness.engine.state.queues["q"]
        setattr(queue, name, getattr(queue, name) + 1)

    return spoil


def removal_gone_by(harness):
    harness.engine.state.queues["q"].removal = Removal("q", True, [], is_dropped=True)


def removal_of_the_unheld(harness):
    harness.engine.state.queues["q"].removal = Removal("q", True, [harness.job("ready")])


def removal_of_others(harness):
    harness.send("PUSH", queue="r", data=1, jobId="r")
    harness.auto_commit = False
    harness.send("Cancel", id="r")
    harness.engine.state.queues["q"].removal = Removal("q", True, [harness.job("r")])


def letter_unwatched(harness):
    harness.fail("a", unrecoverable=True, token=harness.job("a").lease.token)
    harness.engine.state.letters_due.clear()


def total(harness):
    harness.engine.state.active_count += 1


def gauge(name):
    def spoil(harness):
        gauges = harness.engine.state.gauges
        setattr(gauges, name, getattr(gauges, name) + 1)

    return spoil


def runs_unknown(harness):
    harness.engine.state.queues["q"].running.clear()


def runs_though_ready(harness):
    harness.engine.state.queues["q"].running["ready"] = harness.job("ready")


def priority_of_nobody(harness):
    harness.engine.state.queues["q"].priorities[3] = 1


def priority_uncounted(harness):
    harness.push(priority=2)
    harness.engine.state.queues["q"].priorities.clear()


def bytes_of_logs(harness):
    harness.engine.state.logs.total_bytes += 1


def too_many_lines(harness):
    harness.send("AddLog", id="ready", message="a")
    harness.send("AddLog", id="ready", message="b")
    harness.engine.state.logs._max_lines = 1


def empty_log(harness):
    harness.engine.state.logs._lines["ready"] = deque()


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


def parked_for_nothing(harness):
    harness.job("b").missing = None


def waits_unknown_to_the_other(harness):
    harness.engine.state.dependents.clear()


def waits_for_a_stranger(harness):
    harness.job("b").missing.add("ready")


def failures_of_the_dead(harness):
    harness.push("dead", jobId="d")
    harness.fail(*harness.pull("dead"), unrecoverable=True)
    harness.job("d").child_failures = ChildFailures()


def result_for_nobody(harness):
    harness.engine.state.kept_results.keep("x", raw(1))


def awaited_but_gone(harness):
    harness.engine.state.awaited.add("nobody")


def awaited_but_dead(harness):
    harness.push("dead", jobId="d")
    harness.fail(*harness.pull("dead"), unrecoverable=True)
    harness.engine.state.awaited.add("d")


def amended_by_nobody(harness):
    harness.engine.state.amending.add("x")


def queue_missing(harness):
    del harness.engine.state.queues["q"]


def named_groups(harness):
    """Two members that are ready, one delayed, one that runs."""
    for number in range(4):
        harness.push("n", jobId=f"n{number}", name="n", groupId="g", delay=1_000 if number == 3 else 0)
    harness.pull("n")
    harness.engine.check_invariants()
    groups = harness.engine.state.queues["n"].named_groups
    return groups, groups.get("g")


def of_groups(name):
    def spoil(harness):
        groups, _ = named_groups(harness)
        setattr(groups, name, getattr(groups, name) + 1)

    return spoil


def of_group(name, change=1):
    def spoil(harness):
        _, group = named_groups(harness)
        setattr(group, name, getattr(group, name) + change)

    return spoil


def group_without_turn(harness):
    _, group = named_groups(harness)
    group.turn = 0


def group_of_nobody(harness):
    groups, _ = named_groups(harness)
    groups.made("h")


def groups_forgotten(harness):
    named_groups(harness)
    harness.engine.state.queues["n"].named_groups = None


def group_missing(harness):
    groups, _ = named_groups(harness)
    del groups._by_id["g"]


def member_of_another(harness):
    named_groups(harness)
    harness.job("n1").record.group_id = "h"


def reserved_for_nobody(harness):
    _, group = named_groups(harness)
    group.reserved.add("nobody")


def runs_not_alone(harness):
    named_groups(harness)
    harness.engine.state.queues["n"].group("g").active = harness.job("n0")


@pytest.mark.parametrize(
    "spoil",
    [
        *[
            counter(name)
            for name in ("waiting_count", "prioritized_count", "delayed_count", "active_count")
        ],
        data_of_another_form, removal_gone_by, removal_of_the_unheld, removal_of_others, letter_unwatched,
        *[gauge(name) for name in ("waiting", "prioritized", "delayed", "parked", "completed", "dead")],
        priority_of_nobody, priority_uncounted, bytes_of_logs, too_many_lines,
        empty_log,
        total, wrong_index, gone_in_index, staged_without_change, no_place, no_lease, group_taken, key_of_nobody,
        key_of_the_gone, held_by_another, held_but_ready, waits_but_is_gone, queue_missing, parked_for_nothing,
        waits_unknown_to_the_other, waits_for_a_stranger, failures_of_the_dead, result_for_nobody, awaited_but_gone,
        awaited_but_dead, amended_by_nobody,
        *[of_groups(name) for name in ("ready_count", "queued_count", "settings_count", "line_length")],
        *[of_group(name) for name in ("ready_count", "queued_count", "active_count")],
        group_without_turn, group_of_nobody, groups_forgotten, group_missing, member_of_another, reserved_for_nobody,
        runs_not_alone,
    ],
)  # fmt: skip
def test_what_is_wrong_is_found(harness, spoil):
    spoil(harness)

    with pytest.raises(InvariantError, match=r".+"):
        harness.engine.check_invariants()
