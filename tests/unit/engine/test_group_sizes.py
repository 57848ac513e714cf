"""How many jobs a named group may hold, and what pushes of members are checked for.

Source: newer clients, 5.
"""

from __future__ import annotations

from typing import Any

import msgpack
import pytest

from bunqueue_trio.engine.group_sizes import GroupSizes
from bunqueue_trio.engine.state import PendingChangeError
from bunqueue_trio.errors import StateError, ValidationError
from bunqueue_trio.model.commands import PushEntry
from tests.engine_harness import EngineHarness

FULL = "Group g has reached its maximum size of {}"
BAD_SIZE = "group.maxSize must be a positive safe integer"


@pytest.fixture
def harness() -> EngineHarness:
    return EngineHarness()


def member(**options: Any) -> dict[str, Any]:
    return {"queue": "q", "name": "n", "data": 1, "groupId": "g", **options}


def entry(**options: Any) -> dict[str, Any]:
    return {"name": "n", "data": 1, "groupId": "g", **options}


def refusal(harness: EngineHarness, **options: Any) -> str:
    return harness.refusal("PUSH", **member(**options))


def test_a_full_group_refuses_a_push(harness):
    harness.send("PUSH", **member(groupMaxSize=1))

    assert refusal(harness, groupMaxSize=1) == FULL.format(1)
    assert refusal(harness, groupMaxSize=1.0) == FULL.format(1)
    harness.send("PUSH", **member(groupMaxSize=2))
    harness.send("PUSH", **member())
    harness.send("PUSH", **member(groupId="h", groupMaxSize=1))
    harness.send("PUSH", **member(queue="r", groupMaxSize=1))
    assert refusal(harness, groupMaxSize=3, dependsOn=[harness.push()]) == FULL.format(3)


def test_delayed_jobs_take_room_active_and_parked_ones_do_not(harness):
    harness.send("PUSH", **member(delay=1_000))
    assert refusal(harness, groupMaxSize=1) == FULL.format(1)
    harness.send("PUSH", **member(dependsOn=[harness.push("r")]))
    assert refusal(harness, groupMaxSize=1) == FULL.format(1)
    harness.send("PUSH", **member(groupMaxSize=2))

    harness.pull()

    harness.send("PUSH", **member(groupMaxSize=2))
    assert refusal(harness, groupMaxSize=2) == FULL.format(2)


def test_who_is_no_member_is_not_counted_and_not_refused(harness):
    harness.push(groupId="g", groupMaxSize=1)
    harness.push(groupId="g", groupMaxSize=1)
    harness.push(name="n", groupMaxSize=1)
    harness.push(name="n", groupMaxSize=1)
    harness.push(groupId="g", groupMaxSize="odd")  # protocol 2 knows no such option

    harness.send("PUSH", **member(groupMaxSize=1))


@pytest.mark.parametrize("size", [0, -1, 1.5, "1", True, 2**53, float("nan"), []])
@pytest.mark.parametrize("group", [{}, {"groupId": msgpack.ExtType(0, b"\0")}])
def test_a_size_is_a_positive_number(harness, size, group):
    assert refusal(harness, groupMaxSize=size, **group) == BAD_SIZE
    assert harness.refusal("PUSHB", queue="q", jobs=[entry(), entry(groupMaxSize=size, **group)]) == BAD_SIZE


def test_a_push_that_another_job_stands_for_is_not_refused(harness):
    harness.send("PUSH", **member(jobId="a", uniqueKey="k"))

    assert harness.send("PUSH", **member(jobId="a", groupMaxSize=1)).id == "a"
    assert harness.send("PUSH", **member(uniqueKey="k", groupMaxSize=1)).id == "a"
    jobs = [entry(customId="a", groupMaxSize=1), entry(uniqueKey="k", groupMaxSize=1)]
    assert harness.send("PUSHB", queue="q", jobs=jobs).ids == ["a", "a"]


def test_a_job_that_is_replaced_makes_room(harness):
    harness.send("PUSH", **member(jobId="a", uniqueKey="k"))

    assert harness.send("PUSH", **member(uniqueKey="k", dedup={"replace": True}, groupMaxSize=1)).id != "a"
    jobs = [entry(uniqueKey="k", dedup={"replace": True}, groupMaxSize=1)] * 2
    harness.send("PUSHB", queue="q", jobs=jobs)
    assert harness.counts() == {"waiting": 1}


def test_a_batch_that_overfills_a_group_is_refused_whole(harness):
    harness.send("PUSH", **member())
    jobs = [entry(), entry(groupId="h"), entry(groupMaxSize=2)]

    assert harness.refusal("PUSHB", queue="q", jobs=jobs) == FULL.format(2)

    assert harness.counts() == {"waiting": 1}
    harness.send("PUSHB", queue="q", jobs=[entry(), entry(groupMaxSize=3)])
    assert harness.refusal("PUSHB", queue="q", jobs=[{"data": 1}, entry(groupMaxSize=3)]) == FULL.format(3)


def test_entries_that_are_parked_or_duplicates_take_no_room(harness):
    other = harness.push("r")
    jobs = [
        entry(dependsOn=[other]),
        entry(customId="a"),
        entry(customId="a", groupMaxSize=1),
        entry(groupMaxSize=2, dependsOn=["a"]),
        entry(groupMaxSize=2),
    ]

    harness.send("PUSHB", queue="q", jobs=jobs)

    assert harness.ask("GetGroupJobsCount", queue="q", groupId="g")["data"] == {"count": 2}


def test_durable_pushes_that_wait_for_their_commit_may_fill_a_group():
    harness = EngineHarness(auto_commit=False)
    harness.send("PUSH", **member(durable=True))
    with pytest.raises(PendingChangeError):
        harness.send("PUSH", **member(groupMaxSize=1))
    harness.send("PUSH", **member(groupMaxSize=3, durable=True))

    harness.commit()

    assert refusal(harness, groupMaxSize=2) == FULL.format(2)


def test_a_durable_push_that_fails_leaves_the_room_it_would_have_taken():
    harness = EngineHarness(auto_commit=False)
    harness.send("PUSH", **member(durable=True))

    harness.reject()

    harness.send("PUSH", **member(groupMaxSize=1))


def test_sizes_are_looked_at_after_dependencies_and_name(harness):
    assert refusal(harness, groupMaxSize=0, dependsOn=["nobody"]) == "Dependency job not found: nobody"
    assert refusal(harness, groupMaxSize=0, name="").startswith("Job name must")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"groupId": 5}, "groupId must be a string"),
        ({"groupId": None}, "groupId must be a string"),
        ({"groupId": None, "data": [{"groupId": None}]}, "groupId must be a string"),
        ({"groupId": ""}, "groupId must be a non-empty string"),
        ({"groupId": "a" * 257}, "groupId must be at most 256 characters"),
        ({"groupId": "\0"}, "groupId must not contain NUL characters"),
        ({"groupId": "", "priority": -1}, "groupId must be a non-empty string"),
        ({"priority": "1"}, "group.priority must be a finite number"),
        ({"priority": True}, "group.priority must be a finite number"),
        ({"priority": float("inf")}, "group.priority must be a finite number"),
        ({"priority": 1.5}, "group.priority must be an integer"),
        ({"priority": -1}, "group.priority must be between 0 and 2097151"),
        ({"priority": 2_097_152}, "group.priority must be between 0 and 2097151"),
        ({"priority": -1, "delay": -1}, "group.priority must be between 0 and 2097151"),
        ({"priority": -1, "groupMaxSize": 0}, "group.priority must be between 0 and 2097151"),
    ],
)
def test_a_faulty_member_is_refused(harness, options, text):
    with pytest.raises(ValidationError, match=f"^{text}$"):
        harness.send("PUSH", **member(**options))
    with pytest.raises(ValidationError, match=rf"^jobs\[1\]: {text}$"):
        harness.send("PUSHB", queue="q", jobs=[entry(), entry(**options)])


def test_data_comes_before_the_group(harness):
    with pytest.raises(ValidationError, match="too large"):
        harness.send("PUSH", **member(data="x" * 10_500_000, groupId=""))


def test_a_member_may_have_a_priority_that_other_jobs_may_not(harness):
    harness.send("PUSH", **member(priority=2_097_151))

    with pytest.raises(ValidationError, match="priority must be at most 1000000"):
        harness.send("PUSH", queue="q", name="n", data=1, priority=2_097_151)
    harness.push(groupId="", priority=-1_000_000)  # an unnamed job: protocol 2


def test_data_that_hold_a_group_of_null_mean_nothing(harness):
    data = {"groupId": None, "n": 2**40}
    undefined = msgpack.ExtType(0, b"\0")

    harness.send("PUSH", queue="q", name="n", data=data)
    harness.send("PUSH", queue="q", name="n", data=data, groupId=undefined)
    harness.send("PUSHB", queue="q", jobs=[{"name": "n", "data": data}, {"data": data, "groupId": None}, entry()])
    harness.send("PUSH", queue="q", data=data, groupId=None)

    assert harness.ask("GetGroupsJobsCount", queue="q")["data"] == {"count": 1}


def test_jobs_of_several_queues_can_be_followed(harness):
    harness.send("PUSH", **member())
    sizes = GroupSizes(harness.engine.state)
    options = PushEntry(name="n", group_id="g", group_max_size=2)

    sizes.admit("q", options, is_queued=True)
    sizes.admit("r", options, is_queued=False)
    sizes.admit("r", options, is_queued=True)
    sizes.admit("r", options, is_queued=True)
    with pytest.raises(StateError):
        sizes.admit("q", options, is_queued=False)
    with pytest.raises(StateError):
        sizes.admit("r", options, is_queued=True)
