"""Named groups: turns, order, what holds a group up, what a pull may ask for, and what is left of a group.

Source: newer clients, 8.1 and 8.2; NC-5.
"""

from __future__ import annotations

from typing import Any

import pytest

from bunqueue_trio.engine import group_lines, named_groups
from bunqueue_trio.engine.named_groups import NamedGroups
from bunqueue_trio.errors import ValidationError
from tests.engine_harness import EngineHarness

ONE_AT_A_TIME = {"concurrency": 1}
TWO_A_MINUTE = {"limit": {"max": 2, "duration": 60_000}}


@pytest.fixture
def harness() -> EngineHarness:
    return EngineHarness()


def push(harness: EngineHarness, job_id: str, group: str | None = None, **options: Any) -> str:
    """A named job; its group is the first letter of its id, unless another one is given."""
    return harness.push(jobId=job_id, name="n", groupId=group or job_id[0], **options)


def push_all(harness: EngineHarness, *job_ids: str) -> None:
    for job_id in job_ids:
        push(harness, job_id)


def pulls(harness: EngineHarness, count: int, **fields: Any) -> list[str | None]:
    return [harness.pull_id(**fields) for _ in range(count)]


def groups_of(harness: EngineHarness) -> NamedGroups:
    groups = harness.engine.state.queues["q"].named_groups
    assert groups is not None
    return groups


def finish(harness: EngineHarness, pulled: tuple[str, str | None] | None) -> None:
    assert pulled is not None
    harness.ack(*pulled)


# turns


def test_groups_take_turns_in_the_order_of_their_first_ready_job(harness):
    push_all(harness, "b1", "b2", "b3", "a1", "c1", "a2")

    assert harness.pull_all() == ["b1", "a1", "c1", "b2", "a2", "b3"]


def test_all_others_come_first(harness):
    push_all(harness, "a1", "b1")
    harness.push(jobId="plain", name="n", priority=-5)
    harness.push(jobId="unnamed", groupId="a", priority=-9)

    assert harness.pull_id() == "plain"
    assert harness.pull_id() == "unnamed"
    assert harness.pull_id() == "b1"  # the unnamed member of the other group runs alone


def test_lower_numbers_first_and_lifo_has_no_effect(harness):
    push(harness, "a5", priority=5)
    push(harness, "a1", priority=1, lifo=True)
    push(harness, "a2", priority=1, lifo=True)
    push(harness, "a0")

    assert harness.pull_all() == ["a0", "a1", "a2", "a5"]


def test_a_group_that_was_empty_stands_at_the_end(harness):
    push_all(harness, "a1", "b1", "b2")

    assert harness.pull_id() == "a1"
    push(harness, "a2")
    assert harness.pull_all() == ["b1", "a2", "b2"]


def test_a_delayed_job_gives_no_turn_before_its_time(harness):
    push(harness, "a1", delay=100)
    push_all(harness, "b1", "b2")

    harness.advance(100)

    assert harness.pull_all() == ["b1", "a1", "b2"]


def test_a_group_that_is_passed_over_keeps_its_turn(harness):
    push_all(harness, "a1", "a2", "b1", "b2", "b3")
    harness.send("PauseGroup", queue="q", groupId="a")

    assert pulls(harness, 2) == ["b1", "b2"]
    harness.send("ResumeGroup", queue="q", groupId="a")
    assert harness.pull_all() == ["a1", "b3", "a2"]


def test_a_job_that_comes_back_keeps_its_place_by_first_push(harness):
    push(harness, "a1", backoff={"type": "fixed", "delay": 0})
    push_all(harness, "a2", "a3")
    job_id, token = harness.pull()
    harness.pull_id()

    harness.fail(job_id, token)

    assert harness.pull_all() == ["a1", "a3"]


def test_a_priority_change_moves_a_job_within_its_group(harness):
    push(harness, "a1", priority=1)
    push(harness, "a2", priority=2)

    harness.send("ChangePriority", id="a2", priority=0)

    assert harness.pull_all() == ["a2", "a1"]


def test_an_expired_job_is_deleted_on_sight(harness):
    push(harness, "a1", ttl=10)
    push(harness, "a2")
    harness.clock.advance(20)

    assert harness.pull_id() == "a2"
    assert harness.state("a1") == "unknown"


@pytest.mark.parametrize("by_tick", [True, False])
def test_a_wall_clock_that_goes_back_makes_its_jobs_wait(harness, by_tick):
    push(harness, "a1", delay=100)
    push(harness, "b1")
    harness.advance(100)

    (harness.skew if by_tick else harness.clock.skew)(-5_000)

    assert harness.pull_id() is None
    harness.advance(5_000)
    assert harness.pull_all() == ["b1", "a1"]


def test_limits_of_the_queue_hold_for_groups_too(harness):
    push_all(harness, "a1", "b1")
    harness.send("SetConcurrency", queue="q", limit=1)

    assert pulls(harness, 2) == ["a1", None]
    harness.send("Pause", queue="q")
    harness.send("ClearConcurrency", queue="q")
    assert harness.pull_id() is None


# one group, named and unnamed members


def test_an_unnamed_member_waits_while_a_named_one_runs(harness):
    push(harness, "a1")
    pulled = harness.pull()
    harness.push(jobId="unnamed", groupId="a")
    harness.push(jobId="other")

    assert pulls(harness, 2) == ["other", None]
    finish(harness, pulled)
    assert harness.pull_id() == "unnamed"


def test_no_named_member_passes_an_unnamed_one_that_waits(harness):
    push_all(harness, "a1", "a2", "a3")
    first, second = harness.pull(), harness.pull()
    harness.push(jobId="unnamed", groupId="a")

    assert harness.pull_id() is None
    finish(harness, first)
    assert harness.pull_id() is None
    finish(harness, second)
    assert pulls(harness, 2) == ["unnamed", None]


def test_named_members_go_on_when_the_unnamed_one_is_gone(harness):
    push_all(harness, "a1", "a2")
    harness.pull()
    harness.push(jobId="unnamed", groupId="a")
    assert harness.pull_id() is None
    harness.wakes()

    harness.send("Cancel", id="unnamed")

    assert harness.wakes()["q"] >= 1
    assert harness.pull_id() == "a2"


def test_the_end_of_an_unnamed_member_wakes_for_all_named_ones(harness):
    harness.push(jobId="unnamed", groupId="a")
    pulled = harness.pull()
    push_all(harness, "a1", "a2", "a3")
    assert harness.pull_id() is None
    harness.wakes()

    finish(harness, pulled)

    assert harness.wakes()["q"] >= 3
    assert len(harness.pull_all()) == 3


# what pulls ask for


def test_concurrency_counts_the_active_jobs_of_each_group(harness):
    push_all(harness, "a1", "a2", "b1", "b2")

    batch = harness.send("PULLB", queue="q", count=9, owner="w", group=ONE_AT_A_TIME)

    assert [job.id for job in batch.jobs] == ["a1", "b1"]
    assert harness.pull_id(group=ONE_AT_A_TIME) is None
    harness.ack("a1", batch.tokens[0])
    assert pulls(harness, 2, group=ONE_AT_A_TIME) == ["a2", None]


def test_each_end_makes_room_for_one_more(harness):
    two = {"concurrency": 2}
    push_all(harness, "a1", "a2", "a3", "a4")
    first = harness.pull(group=two)
    assert pulls(harness, 2, group=two) == ["a2", None]
    harness.wakes()

    finish(harness, first)

    assert harness.wakes()
    assert pulls(harness, 2, group=two) == ["a3", None]


def test_a_pull_without_limits_is_bound_by_none(harness):
    push_all(harness, "a1", "a2", "a3", "a4")
    harness.send("SetGroupConcurrency", queue="q", groupId="a", concurrency=1)
    harness.send("SetGroupRateLimit", queue="q", groupId="a", max=1, duration=60_000)

    assert pulls(harness, 2) == ["a1", "a2"]
    assert harness.pull_id(group={}) == "a3"
    assert harness.pull_id(group=ONE_AT_A_TIME) is None


def test_what_is_set_for_a_group_takes_the_place_of_what_pulls_bring(harness):
    push_all(harness, "a1", "a2", "a3", "b1", "b2")
    harness.send("SetGroupConcurrency", queue="q", groupId="a", concurrency=2)

    assert pulls(harness, 4, group=ONE_AT_A_TIME) == ["a1", "b1", "a2", None]
    harness.send("RemoveGroupConcurrency", queue="q", groupId="a")
    assert pulls(harness, 2, group={"concurrency": 3}) == ["b2", "a3"]


def test_a_window_starts_with_its_first_hand_out_and_counts_pulls_with_limits(harness):
    push_all(harness, "a1", "a2", "a3", "a4", "a5")
    harness.send("SetStallConfig", queue="q", config={"enabled": False})
    harness.advance(1_000)

    assert harness.pull_id(group=TWO_A_MINUTE, lockTtl=600_000) == "a1"
    assert harness.pull_id(lockTtl=600_000) == "a2"
    assert pulls(harness, 2, group=TWO_A_MINUTE, lockTtl=600_000) == ["a3", None]
    harness.advance(59_999)
    assert harness.pull_id(group=TWO_A_MINUTE) is None
    harness.advance(1)
    assert harness.pull_id(group=TWO_A_MINUTE) == "a4"


def test_another_limit_opens_another_window(harness):
    push_all(harness, "a1", "a2", "a3", "a4", "a5")

    assert pulls(harness, 3, group=TWO_A_MINUTE) == ["a1", "a2", None]
    assert harness.pull_id(group={"limit": {"max": 9, "duration": 60_000}}) == "a3"
    assert pulls(harness, 3, group=TWO_A_MINUTE) == ["a4", "a5", None]


def test_a_set_limit_is_one_limit_for_all_pulls_that_bring_one(harness):
    push_all(harness, "a1", "a2", "a3", "a4", "a5", "a6", "a7")
    harness.send("SetGroupRateLimit", queue="q", groupId="a", max=3, duration=60_000)
    nine = {"limit": {"max": 9, "duration": 1}}

    assert pulls(harness, 2, group=TWO_A_MINUTE) == ["a1", "a2"]
    assert pulls(harness, 2, group=nine) == ["a3", None]
    harness.send("SetGroupRateLimit", queue="q", groupId="a", max=3, duration=60_000)
    assert harness.pull_id(group=nine) == "a4"
    harness.send("RemoveGroupRateLimit", queue="q", groupId="a")
    assert pulls(harness, 3, group=TWO_A_MINUTE) == ["a5", "a6", None]


def test_pulls_that_wait_try_again_at_the_end_of_a_window(harness):
    push_all(harness, "a1", "a2", "a3", "b1", "b2")
    assert pulls(harness, 5, group={"limit": {"max": 1, "duration": 400}}) == ["a1", "b1", None, None, None]
    harness.wakes()

    harness.advance(399)
    assert harness.wakes() == {}
    harness.advance(1)

    assert harness.wakes()["q"] >= 2
    assert pulls(harness, 3, group={"limit": {"max": 1, "duration": 400}}) == ["a2", "b2", None]


def test_polling_sets_no_further_timers(harness):
    push_all(harness, "a1", "a2")
    limit = {"limit": {"max": 1, "duration": 60_000}}
    harness.pull_id(group=limit)
    harness.checks = False
    for _ in range(1_000):
        assert harness.pull_id(group=limit) is None

    assert len(harness.engine.state.timers) < 5
    assert len(groups_of(harness)._timed) == 1


def test_affinity_takes_one_group_only_or_none(harness):
    push_all(harness, "a1", "b1", "b2")
    harness.push(jobId="plain")

    assert pulls(harness, 3, group={"affinity": "b"}) == ["b1", "b2", None]
    assert pulls(harness, 2, group={"affinity": None}) == ["plain", None]
    assert harness.pull_id(group={"affinity": "nobody"}) is None
    assert harness.pull_id() == "a1"


def test_an_affine_pull_takes_the_turn_of_its_group(harness):
    push_all(harness, "a1", "a2", "b1")

    assert harness.pull_id(group={"affinity": "a"}) == "a1"
    assert harness.pull_all() == ["b1", "a2"]


def test_an_affine_pull_is_held_up_like_any_other(harness):
    push_all(harness, "a1", "a2", "a3")
    affine = {"affinity": "a", "limit": {"max": 1, "duration": 400}}

    assert pulls(harness, 2, group=affine) == ["a1", None]
    harness.wakes()
    harness.advance(400)
    assert harness.wakes()
    harness.send("PauseGroup", queue="q", groupId="a")
    assert harness.pull_id(group=affine) is None
    harness.send("ResumeGroup", queue="q", groupId="a")
    assert harness.pull_id(group=affine) == "a2"


@pytest.mark.parametrize(
    ("group", "text"),
    [
        (5, "group must be an object"),
        (None, "group must be an object"),
        ([], "group must be an object"),
        ({"affinity": 5}, "group.affinity must be a string or null"),
        ({"affinity": 5, "concurrency": 0}, "group.affinity must be a string or null"),
        ({"concurrency": 0}, "group.concurrency must be a positive safe integer"),
        ({"concurrency": None}, "group.concurrency must be a positive safe integer"),
        ({"concurrency": True}, "group.concurrency must be a positive safe integer"),
        ({"concurrency": float("nan")}, "group.concurrency must be a positive safe integer"),
        ({"concurrency": 2**53}, "group.concurrency must be a positive safe integer"),
        ({"concurrency": 0, "limit": 5}, "group.concurrency must be a positive safe integer"),
        ({"limit": None}, "group.limit must be an object"),
        ({"limit": {}}, "group.limit.max must be a positive safe integer"),
        ({"limit": {"max": 1}}, "group.limit.duration must be a positive safe integer"),
        ({"limit": {"max": 1.5, "duration": 1}}, "group.limit.max must be a positive safe integer"),
    ],
)
@pytest.mark.parametrize("cmd", ["PULL", "PULLB"])
def test_a_faulty_group_is_refused(harness, cmd, group, text):
    with pytest.raises(ValidationError, match=f"^{text}$"):
        harness.send(cmd, queue="q", group=group)


def test_the_timeout_is_looked_at_before_the_group_and_the_lock_after_it(harness):
    with pytest.raises(ValidationError, match="timeout"):
        harness.send("PULL", queue="q", timeout=-1, group=5)
    with pytest.raises(ValidationError, match="group"):
        harness.send("PULL", queue="q", lockTtl=-1, group=5)


def test_what_is_undefined_is_absent(harness):
    import msgpack

    undefined = msgpack.ExtType(0, b"\0")
    push_all(harness, "a1", "a2", "a3")

    assert harness.pull_id(group=undefined) == "a1"
    assert harness.pull_id(group={"concurrency": undefined, "limit": undefined, "affinity": undefined}) == "a2"
    assert harness.pull_id(group={"concurrency": 3.0, "unknown": 1}) == "a3"


# counters through a job's life


WAYS_BACK = {
    "fail": lambda harness, job_id, token: harness.fail(job_id, token),
    "move to wait": lambda harness, job_id, token: harness.send("MoveToWait", id=job_id),
    "disconnect": lambda harness, job_id, token: harness.disconnect(),
    "expiry": lambda harness, job_id, token: harness.advance(40_000),
}


@pytest.mark.parametrize("way", WAYS_BACK)
def test_a_job_that_comes_back_frees_its_group(harness, way):
    push(harness, "a1", backoff={"type": "fixed", "delay": 0})
    job_id, token = harness.pull(group=ONE_AT_A_TIME)

    WAYS_BACK[way](harness, job_id, token)

    assert harness.ask("GetGroupActiveCount", queue="q", groupId="a")["data"] == {"count": 0}
    assert harness.ask("GetGroupJobsCount", queue="q", groupId="a")["data"] == {"count": 1}
    harness.connect(1)
    assert harness.pull_id(group=ONE_AT_A_TIME) == "a1"


@pytest.mark.parametrize("options", [{"removeOnComplete": True}, {}])
def test_nothing_is_left_of_a_group_that_holds_nothing(harness, options):
    push(harness, "a1", **options)
    push(harness, "b1")
    finish(harness, harness.pull())

    assert groups_of(harness).get("a") is None
    harness.send("Cancel", id="b1")
    assert len(groups_of(harness)) == 0
    harness.advance(60_000)
    assert "q" not in harness.engine.state.queues or harness.engine.state.queues["q"].named_groups is None


def test_drain_takes_ready_and_delayed_members_and_leaves_the_window(harness):
    push_all(harness, "a1", "a2", "b1")
    push(harness, "a3", delay=1_000)
    harness.pull_id(group=TWO_A_MINUTE)

    assert harness.send("Drain", queue="q").count == 3

    assert harness.ask("GetGroupsJobsCount", queue="q")["data"] == {"count": 0}
    push_all(harness, "a4", "a5")
    assert pulls(harness, 2, group=TWO_A_MINUTE) == ["a4", None]


def test_a_drain_that_fails_puts_the_members_back():
    harness = EngineHarness(auto_commit=False)
    push_all(harness, "a1", "b1", "a2")
    harness.commit()
    harness.send("Drain", queue="q")
    assert harness.pull_id() is None

    harness.reject()

    assert sorted(harness.pull_all()) == ["a1", "a2", "b1"]


def test_obliterate_leaves_nothing_of_groups(harness):
    push_all(harness, "a1", "a2")
    harness.pull_id(group=TWO_A_MINUTE)
    harness.send("PauseGroup", queue="q", groupId="a")
    harness.send("RateLimitGroup", queue="q", groupId="b", duration=60_000)

    harness.send("Obliterate", queue="q")

    assert "q" not in harness.engine.state.queues
    push_all(harness, "a1", "b1")
    assert harness.pull_all() == ["a1", "b1"]


def test_clean_takes_members(harness):
    push_all(harness, "a1", "a2")
    harness.advance(10)

    harness.send("Clean", queue="q", grace=0, state="waiting", limit=1)

    assert harness.pull_all() == ["a2"]


def test_counts_and_lists_show_members(harness):
    push_all(harness, "a1", "b1")
    push(harness, "a2", delay=1_000)
    harness.pull()

    assert harness.counts() == {"waiting": 1, "delayed": 1, "active": 1}
    assert [job.id for job in harness.send("GetJobs", queue="q", state="waiting").jobs] == ["b1"]


# bounds


def test_a_window_outlives_the_jobs_of_its_group(harness):
    push(harness, "a1")
    finish(harness, harness.pull(group={"limit": {"max": 1, "duration": 60_000}}))
    harness.advance(20_000)  # the sweep of idle queues has come by

    push(harness, "a2")
    assert harness.pull_id(group={"limit": {"max": 1, "duration": 60_000}}) is None
    harness.advance(40_000)
    assert harness.pull_id(group={"limit": {"max": 1, "duration": 60_000}}) == "a2"


def test_groups_with_nothing_but_a_window_are_bounded(harness, monkeypatch):
    monkeypatch.setattr(named_groups, "MAX_IDLE", 20)
    harness.checks = False
    for number in range(100):
        push(harness, f"x{number}", f"g{number}")
        finish(harness, harness.pull(group={"limit": {"max": 1, "duration": 60_000 + number}}))

    assert len(groups_of(harness)) <= 20
    assert groups_of(harness).get("g99") is not None
    assert groups_of(harness).get("g0") is None
    harness.advance(61_000)
    assert harness.engine.state.queues["q"].named_groups is None


def test_a_group_that_is_used_again_and_again_within_its_window_is_kept_once(harness):
    harness.checks = False
    for number in range(200):
        push(harness, f"a{number}")
        finish(harness, harness.pull(group={"limit": {"max": 1_000, "duration": 60_000}}))

    assert len(groups_of(harness)._idle) == 1


def test_kinds_of_pulls_are_bounded_and_a_forgotten_one_sees_the_same(harness, monkeypatch):
    monkeypatch.setattr(named_groups, "MAX_LINES", 3)
    push_all(harness, *(f"{group}{number}" for number in range(12) for group in "ab"))

    served = [harness.pull_id(group={"concurrency": 20 + number}) for number in range(24)]

    assert served == [f"{group}{number}" for number in range(12) for group in "ab"]
    assert len(groups_of(harness)._lines) == 3


def test_a_line_that_nobody_uses_does_not_grow(harness):
    push_all(harness, "a0", "b0")
    assert harness.pull_id(group={"concurrency": 9}) == "a0"
    harness.checks = False
    for number in range(1, 1_000):
        push_all(harness, f"a{number}", f"b{number}")
        harness.pull_id()
        harness.pull_id()
    lines = groups_of(harness)._lines

    assert max(len(line._heap) for line in lines.values()) <= group_lines.COMPACT_AT + 1
    harness.engine.check_invariants()


def test_full_groups_are_not_walked_past_by_each_pull(harness, monkeypatch):
    harness.checks = False
    for number in range(200):
        push(harness, f"x{number}", f"g{number}")
        push(harness, f"y{number}", f"g{number}")
    for _ in range(200):
        assert harness.pull_id(group=ONE_AT_A_TIME) is not None
    assert harness.pull_id(group=ONE_AT_A_TIME) is None
    looks = []
    held = group_lines.NamedGroup.held_until_mono_ms
    monkeypatch.setattr(
        group_lines.NamedGroup, "held_until_mono_ms", lambda *args: looks.append(args[0]) or held(*args)
    )

    for _ in range(50):
        assert harness.pull_id(group=ONE_AT_A_TIME) is None

    assert looks == []
