"""Commands about named groups: replies, checks, what is stored, what is bounded.

Source: newer clients, 8.3.
"""

from __future__ import annotations

from typing import Any

import msgpack
import pytest

from bunqueue_trio.engine import group_commands, named_groups
from bunqueue_trio.engine.state import PendingChangeError
from bunqueue_trio.errors import ValidationError
from tests.engine_harness import EngineHarness
from tests.stored_engine import Stored

UNDEFINED = msgpack.ExtType(0, b"\0")
OF_ONE_GROUP = {
    "GetGroupJobsCount": {},
    "GetGroupActiveCount": {},
    "SetGroupConcurrency": {"concurrency": 1},
    "GetGroupConcurrency": {},
    "RemoveGroupConcurrency": {},
    "SetGroupRateLimit": {"max": 1, "duration": 1},
    "GetGroupRateLimit": {},
    "RemoveGroupRateLimit": {},
    "GetGroupRateLimitTtl": {},
    "PauseGroup": {},
    "ResumeGroup": {},
    "IsGroupPaused": {},
    "RateLimitGroup": {"duration": 1},
}
READS = {
    "GetGroupJobsCount": {"count": 0},
    "GetGroupActiveCount": {"count": 0},
    "GetGroupConcurrency": {"concurrency": None},
    "RemoveGroupConcurrency": {"removed": 0},
    "GetGroupRateLimit": {"limit": None},
    "RemoveGroupRateLimit": {"removed": 0},
    "GetGroupRateLimitTtl": {"ttl": -2},
    "ResumeGroup": {"changed": False},
    "IsGroupPaused": {"paused": False},
}


@pytest.fixture
def harness() -> EngineHarness:
    return EngineHarness()


def push(harness: EngineHarness, job_id: str, group: str = "g", queue: str = "q", **options: Any) -> str:
    return harness.push(queue, jobId=job_id, name="n", groupId=group, **options)


def say(harness: EngineHarness, cmd: str, group: str = "g", queue: str = "q", **fields: Any) -> Any:
    """What the reply holds under ``data``."""
    return harness.ask(cmd, queue=queue, groupId=group, **fields).get("data")


# checks


@pytest.mark.parametrize("cmd", OF_ONE_GROUP)
@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, "groupId is required"),
        ({"groupId": UNDEFINED}, "groupId is required"),
        ({"groupId": None}, "groupId must be a string"),
        ({"groupId": 5}, "groupId must be a string"),
        ({"groupId": ""}, "groupId must be a non-empty string"),
        ({"groupId": "a" * 257}, "groupId must be at most 256 characters"),
        ({"groupId": "\U0001f600" * 129}, "groupId must be at most 256 characters"),
        ({"groupId": "a\0"}, "groupId must not contain NUL characters"),
        ({"groupId": 5, "queue": "a b"}, "Queue name contains invalid characters"),
        ({"groupId": 5, "queue": None}, "Queue name is required"),
    ],
)
def test_queue_and_group_are_checked(harness, cmd, fields, text):
    with pytest.raises(ValidationError, match=f"^{text}$"):
        harness.send(cmd, **{"queue": "q", **OF_ONE_GROUP[cmd], **fields})


def test_the_longest_group_id(harness):
    assert say(harness, "PauseGroup", "\U0001f600" * 128) == {"changed": True}


@pytest.mark.parametrize(
    ("cmd", "fields", "name"),
    [
        ("SetGroupConcurrency", {}, "concurrency"),
        ("SetGroupRateLimit", {"duration": 1}, "max"),
        ("SetGroupRateLimit", {"max": 1}, "duration"),
        ("RateLimitGroup", {}, "duration"),
    ],
)
@pytest.mark.parametrize("value", [None, UNDEFINED, 0, -1, 1.5, "1", True, 2**53, float("inf")])
def test_numbers_are_checked(harness, cmd, fields, name, value):
    with pytest.raises(ValidationError, match=f"^{name} must be a positive safe integer$"):
        harness.send(cmd, queue="q", groupId="g", **{**fields, name: value})


def test_a_checked_command_stays_as_it_is():
    command = EngineHarness.command("PauseGroup", queue="q", groupId="g")
    from bunqueue_trio.protocol.wire import checked

    checked(command)

    assert (command.queue, command.group_id) == ("q", "g")


def test_the_queue_of_all_groups_is_checked(harness):
    with pytest.raises(ValidationError, match="Queue name contains invalid characters"):
        harness.send("GetGroupsJobsCount", queue="a b")


# replies


@pytest.mark.parametrize("cmd", READS)
def test_a_group_that_nobody_knows(harness, cmd):
    assert say(harness, cmd) == READS[cmd]
    assert harness.engine.state.queues == {}


def test_counts_are_those_of_the_group(harness):
    push(harness, "g1")
    push(harness, "g2", delay=1_000)
    push(harness, "h1", "h")
    push(harness, "elsewhere", queue="r")

    assert say(harness, "GetGroupJobsCount") == {"count": 2}
    assert say(harness, "GetGroupJobsCount", "h") == {"count": 1}
    assert harness.ask("GetGroupsJobsCount", queue="q", maxCount=1)["data"] == {"count": 3}
    assert say(harness, "GetGroupActiveCount") == {"count": 0}
    harness.pull()
    assert say(harness, "GetGroupActiveCount") == {"count": 1}
    assert say(harness, "GetGroupActiveCount", "h") == {"count": 0}
    assert say(harness, "GetGroupJobsCount") == {"count": 1}


def test_concurrency_is_set_shown_and_removed(harness):
    assert say(harness, "SetGroupConcurrency", concurrency=2) is None
    assert say(harness, "GetGroupConcurrency") == {"concurrency": 2}
    assert say(harness, "GetGroupConcurrency", "h") == say(harness, "GetGroupConcurrency", queue="r")
    assert say(harness, "GetGroupConcurrency", "h") == {"concurrency": None}
    assert say(harness, "RemoveGroupConcurrency") == {"removed": 1}
    assert say(harness, "RemoveGroupConcurrency") == {"removed": 0}
    assert say(harness, "GetGroupConcurrency") == {"concurrency": None}


def test_a_rate_limit_is_set_shown_and_removed(harness):
    assert say(harness, "SetGroupRateLimit", max=5, duration=1_000) is None
    assert say(harness, "GetGroupRateLimit") == {"limit": {"max": 5, "duration": 1_000}}
    assert say(harness, "GetGroupRateLimit", "h") == say(harness, "GetGroupRateLimit", queue="r") == {"limit": None}
    assert say(harness, "RemoveGroupRateLimit") == {"removed": 1}
    assert say(harness, "RemoveGroupRateLimit") == {"removed": 0}


def test_pause_and_resume_say_whether_they_changed_anything(harness):
    assert say(harness, "PauseGroup") == {"changed": True}
    assert say(harness, "PauseGroup") == {"changed": False}
    assert say(harness, "IsGroupPaused") == {"paused": True}
    assert say(harness, "IsGroupPaused", "h") == say(harness, "IsGroupPaused", queue="r") == {"paused": False}
    assert say(harness, "ResumeGroup") == {"changed": True}
    assert say(harness, "ResumeGroup") == {"changed": False}
    assert say(harness, "IsGroupPaused") == {"paused": False}


def test_one_setting_leaves_the_others(harness):
    say(harness, "SetGroupConcurrency", concurrency=2)
    say(harness, "SetGroupRateLimit", max=5, duration=1_000)
    say(harness, "PauseGroup")
    say(harness, "RemoveGroupRateLimit")
    say(harness, "ResumeGroup")

    assert say(harness, "GetGroupConcurrency") == {"concurrency": 2}


def test_the_ttl_of_a_window(harness):
    for number in range(4):
        push(harness, f"j{number}")
    limit = {"limit": {"max": 3, "duration": 60_000}}
    harness.pull(group=limit)
    harness.advance(1_000)
    harness.pull(group=limit)
    harness.pull()  # brings no limit, and is not counted

    assert say(harness, "GetGroupRateLimitTtl") == {"ttl": 59_000}
    assert say(harness, "GetGroupRateLimitTtl", maxJobs=3) == {"ttl": 0}
    assert say(harness, "GetGroupRateLimitTtl", maxJobs=2) == {"ttl": 59_000}
    for odd in (0, -1, None, "a", UNDEFINED, True):
        assert say(harness, "GetGroupRateLimitTtl", maxJobs=odd) == {"ttl": 59_000}
    assert say(harness, "GetGroupRateLimitTtl", "h") == say(harness, "GetGroupRateLimitTtl", queue="r") == {"ttl": -2}
    harness.advance(59_000)
    assert say(harness, "GetGroupRateLimitTtl") == {"ttl": -2}


def test_setting_or_removing_a_limit_closes_the_window(harness):
    for number in range(4):
        push(harness, f"j{number}")
    say(harness, "SetGroupRateLimit", max=1, duration=60_000)
    limit = {"limit": {"max": 9, "duration": 1}}
    harness.pull(group=limit)
    assert say(harness, "GetGroupRateLimitTtl") == {"ttl": 60_000}

    say(harness, "SetGroupRateLimit", max=1, duration=60_000)
    assert say(harness, "GetGroupRateLimitTtl") == {"ttl": -2}
    assert harness.pull_id(group=limit) == "j1"
    say(harness, "SetGroupConcurrency", concurrency=9)
    assert say(harness, "GetGroupRateLimitTtl") == {"ttl": 60_000}
    say(harness, "RemoveGroupRateLimit")
    assert say(harness, "GetGroupRateLimitTtl") == {"ttl": -2}


def test_a_rest_is_over_when_its_time_is(harness):
    push(harness, "g1")
    push(harness, "h1", "h")
    push(harness, "elsewhere", queue="r")
    assert say(harness, "RateLimitGroup", duration=1_000) is None

    assert harness.pull_id("r") == "elsewhere"
    assert harness.pull_id() == "h1"
    assert say(harness, "GetGroupRateLimitTtl") == say(harness, "GetGroupRateLimitTtl", maxJobs=50) == {"ttl": 1_000}
    assert harness.pull_id() is None
    harness.wakes()
    harness.advance(999)
    assert harness.wakes() == {}
    harness.advance(1)
    assert harness.wakes()
    assert harness.pull_id() == "g1"


def test_the_last_rest_counts(harness):
    push(harness, "g1")
    say(harness, "RateLimitGroup", duration=10_000)
    assert harness.pull_id() is None
    harness.wakes()

    say(harness, "RateLimitGroup", duration=100)

    assert say(harness, "GetGroupRateLimitTtl") == {"ttl": 100}
    assert harness.pull_id() is None
    harness.advance(100)
    assert harness.pull_id() == "g1"


def test_no_number_leaves_in_a_form_of_64_bits(harness):
    longest = 2**53 - 1
    say(harness, "SetGroupConcurrency", concurrency=longest)
    say(harness, "SetGroupRateLimit", max=longest, duration=longest)
    say(harness, "RateLimitGroup", duration=longest)

    shown = [
        say(harness, "GetGroupConcurrency")["concurrency"],
        *say(harness, "GetGroupRateLimit")["limit"].values(),
        say(harness, "GetGroupRateLimitTtl")["ttl"],
    ]

    assert shown == pytest.approx([longest] * 4)
    assert {type(number) for number in shown} == {float}


@pytest.mark.parametrize("cmd", ["SetGroupConcurrency", "SetGroupRateLimit", "PauseGroup", "RateLimitGroup"])
def test_a_setting_makes_the_queue_known(harness, cmd):
    say(harness, cmd, **OF_ONE_GROUP[cmd])

    assert harness.send("ListQueues").queues == ["q"]


def test_what_resumes_or_removes_wakes_pulls(harness):
    push(harness, "g1")
    push(harness, "g2")
    say(harness, "SetGroupConcurrency", concurrency=1)
    say(harness, "PauseGroup")
    assert harness.pull_id() is None
    harness.wakes()

    say(harness, "ResumeGroup")
    assert harness.wakes()["q"] >= 2
    assert [harness.pull_id(group={"concurrency": 9}) for _ in range(2)] == ["g1", None]
    say(harness, "RemoveGroupConcurrency")
    assert harness.wakes()
    assert harness.pull_id(group={"concurrency": 9}) == "g2"


# commits


def test_a_setting_takes_effect_with_its_commit():
    harness = EngineHarness(auto_commit=False)
    harness.send("PauseGroup", queue="q", groupId="g")
    assert harness.engine.state.waits_for_commit
    assert say(harness, "IsGroupPaused") == {"paused": False}
    with pytest.raises(PendingChangeError):
        harness.send("PauseGroup", queue="q", groupId="g")
    assert harness.send("PauseGroup", queue="q", groupId="h").data == {"changed": True}

    flight = harness.take()
    with pytest.raises(PendingChangeError):
        harness.send("ResumeGroup", queue="q", groupId="g")
    harness.land(flight)

    assert say(harness, "IsGroupPaused") == {"paused": True}


def test_a_setting_whose_commit_fails_does_not_hold():
    harness = EngineHarness(auto_commit=False)
    harness.send("PauseGroup", queue="q", groupId="g")

    harness.reject()

    assert harness.send("PauseGroup", queue="q", groupId="g").data == {"changed": True}


def test_no_setting_is_made_while_the_queue_is_being_obliterated():
    harness = EngineHarness(auto_commit=False)
    push(harness, "g1")
    harness.commit()
    harness.send("Obliterate", queue="q")

    with pytest.raises(PendingChangeError):
        harness.send("PauseGroup", queue="q", groupId="g")


def test_settings_survive_a_restart_and_windows_and_rests_do_not():
    stored = Stored()
    push(stored, "g1")
    push(stored, "g2")
    say(stored, "SetGroupConcurrency", concurrency=2)
    say(stored, "SetGroupRateLimit", "h", max=5, duration=1_000)
    say(stored, "PauseGroup", "i")
    say(stored, "PauseGroup", "i", "r")
    stored.pull(group={"limit": {"max": 1, "duration": 60_000}})
    say(stored, "RateLimitGroup", duration=60_000)
    stored.commit()

    stored.restart()

    assert say(stored, "GetGroupConcurrency") == {"concurrency": 2}
    assert say(stored, "GetGroupRateLimit", "h") == {"limit": {"max": 5, "duration": 1_000}}
    assert say(stored, "IsGroupPaused", "i") == say(stored, "IsGroupPaused", "i", "r") == {"paused": True}
    assert say(stored, "GetGroupRateLimitTtl") == {"ttl": -2}
    assert stored.send("ListQueues").queues == ["q", "r"]
    assert say(stored, "GetGroupActiveCount") == {"count": 0}
    assert say(stored, "GetGroupJobsCount") == {"count": 2}


def test_a_removed_setting_leaves_no_row():
    stored = Stored()
    say(stored, "SetGroupConcurrency", concurrency=2)
    say(stored, "PauseGroup")
    assert stored.rows("bqt_groups", "group_id") == ["g"]

    say(stored, "RemoveGroupConcurrency")
    say(stored, "ResumeGroup")

    assert stored.rows("bqt_groups", "group_id") == []
    assert stored.engine.state.queues["q"].named_groups is not None
    stored.advance(20_000)
    assert "q" not in stored.engine.state.queues


def test_obliterate_clears_the_rows_of_its_queue_only():
    stored = Stored()
    for queue in ("q", "r"):
        say(stored, "PauseGroup", "g", queue)

    stored.send("Obliterate", queue="q")

    assert stored.rows("bqt_groups", "queue") == ["r"]
    assert say(stored, "IsGroupPaused") == {"paused": False}


def test_a_setting_and_the_obliterate_after_it_in_one_flush():
    stored = Stored()
    push(stored, "g1")
    with stored.pending():
        stored.send("PauseGroup", queue="q", groupId="g")
        stored.send("Obliterate", queue="q")
        stored.commit()

    assert stored.rows("bqt_groups", "queue") == []
    assert "q" not in stored.engine.state.queues


def test_a_row_that_cannot_be_read_stays_and_means_nothing():
    stored = Stored()
    stored.file.execute("INSERT INTO bqt_groups VALUES ('q', 'bad', x'c1'), ('q', 'g', x'81a6706175736564c3')")

    stored.restart()

    assert say(stored, "IsGroupPaused") == {"paused": True}
    assert stored.rows("bqt_groups", "group_id") == ["bad", "g"]


# bounds


def test_groups_with_settings_are_bounded(harness, monkeypatch):
    monkeypatch.setattr(group_commands, "MAX_SETTINGS", 2)
    say(harness, "PauseGroup", "a")
    say(harness, "SetGroupConcurrency", "b", concurrency=1)

    text = harness.refusal("PauseGroup", queue="q", groupId="c")

    assert text == "Too many groups of this queue have settings (max 2)"
    assert say(harness, "PauseGroup", "b") == {"changed": True}
    assert say(harness, "PauseGroup", "c", "r") == {"changed": True}
    say(harness, "ResumeGroup", "a")
    assert say(harness, "PauseGroup", "c") == {"changed": True}


def test_groups_that_rest_are_bounded(harness, monkeypatch):
    monkeypatch.setattr(named_groups, "MAX_IDLE", 2)
    for group in "ab":
        say(harness, "RateLimitGroup", group, duration=1_000)
    push(harness, "d1", "d")

    assert harness.refusal("RateLimitGroup", queue="q", groupId="c", duration=1).startswith("Too many groups")
    say(harness, "RateLimitGroup", "d", duration=5_000)  # it holds a job
    assert harness.pull_id() is None
    harness.advance(1_000)
    assert harness.pull_id() is None
    say(harness, "RateLimitGroup", "c", duration=1)


def test_rests_without_end_leave_few_timers(harness):
    push(harness, "g1")
    harness.checks = False
    for number in range(1_000):
        say(harness, "RateLimitGroup", duration=10**6 + number)
        assert harness.pull_id() is None
    groups = harness.engine.state.queues["q"].named_groups

    assert len(groups._timed) <= 66
    assert len(harness.engine.state.timers) < 10
