"""Pulls of one queue that say different things about groups wait side by side, and nobody holds up another.

Source: newer clients, 8.2.
"""

from __future__ import annotations

from typing import Any

import pytest
import trio

from bunqueue_trio.model.commands import Pull
from bunqueue_trio.model.grouping import PullGroup
from bunqueue_trio.server.waiting import Waiting
from tests.server.fakes import QUEUE, Rig, Talker, pull, settle_down


class Client:
    """Where a pull came from."""

    id = 1


def waiting_pull(rig: Rig, **fields: Any) -> Talker:
    """A client of its own whose pull waits for a minute."""
    talker = rig.talker()
    talker.segment(pull(timeout=60_000, **fields))
    return talker


def push(rig: Rig, job_id: str, group: str) -> None:
    rig.push(job_id, name="n", groupId=group)


def got(talker: Talker) -> list[str | None]:
    return [reply["job"] and reply["job"]["id"] for reply in talker.replies]


# lanes


def test_a_lane_is_there_as_long_as_somebody_waits_in_it():
    waiting = Waiting()
    plain = waiting.park(Client(), Pull(queue="q"), 100.0)
    assert not waiting.has_lanes("q")
    affine = [waiting.park(Client(), Pull(queue="q", group=PullGroup(affinity=name)), 100.0) for name in "aab"]

    assert waiting.has_lanes("q")
    assert not waiting.has_lanes("r")
    assert [waiting.first(key) for key in waiting.lanes("q")] == [plain, affine[0], affine[2]]
    waiting.release(affine[0])
    waiting.release(plain)
    assert [waiting.first(key) for key in waiting.lanes("q")] == [affine[1], affine[2]]
    for waiter in affine[1:]:
        waiting.release(waiter)

    assert not waiting.has_lanes("q")
    assert list(waiting.lanes("q")) == []
    assert waiting._by_key == {}


async def test_who_cannot_be_served_holds_up_nobody(rig: Rig, autojump_clock):
    affine = waiting_pull(rig, group={"affinity": "b"})
    ungrouped = waiting_pull(rig, group={"affinity": None})
    single = waiting_pull(rig, group={"concurrency": 1})
    any_one = waiting_pull(rig)

    push(rig, "a1", "a")
    push(rig, "a2", "a")
    assert [got(talker) for talker in (affine, ungrouped, single, any_one)] == [[], [], ["a1"], ["a2"]]
    push(rig, "b1", "b")
    rig.push("plain")

    assert [got(talker) for talker in (affine, ungrouped)] == [["b1"], ["plain"]]


async def test_among_those_who_can_be_served_the_first_comes_first(rig: Rig, autojump_clock):
    kinds = [{}, {"group": {"concurrency": 5}}, {"group": {}}, {"group": {"concurrency": 5}}, {}]
    talkers = [waiting_pull(rig, **kind) for kind in kinds]

    for number in range(5):
        push(rig, f"j{number}", f"g{number % 2}")

    assert [got(talker) for talker in talkers] == [[f"j{number}"] for number in range(5)]
    assert rig.broker.waiting.count == 0


async def test_one_batch_serves_as_many_as_it_has_jobs(rig: Rig, autojump_clock):
    talkers = [waiting_pull(rig, group={"concurrency": 1}) for _ in range(3)]

    jobs = [{"name": "n", "data": 1, "groupId": group, "customId": f"{group}{n}"} for n in (1, 2) for group in "ab"]
    rig.call("PUSHB", queue=QUEUE, jobs=jobs)

    assert [got(talker) for talker in talkers] == [["a1"], ["b1"], []]


async def test_a_finished_job_lets_the_next_of_its_group_to_a_pull_that_waits(rig: Rig, autojump_clock):
    worker = rig.talker()
    for name in ("a1", "a2"):
        push(rig, name, "a")
    worker.segment(pull(group={"concurrency": 1}))
    waits = waiting_pull(rig, group={"concurrency": 1})
    assert got(waits) == []

    worker.say("ACK", id="a1", token=worker.take()[0]["token"])
    await settle_down()

    assert got(waits) == ["a2"]


async def test_a_pull_that_waits_is_served_at_the_end_of_a_window(rig: Rig, autojump_clock):
    limit = {"limit": {"max": 1, "duration": 400}}
    for name in ("a1", "a2"):
        push(rig, name, "a")
    assert rig.call("PULL", queue=QUEUE, owner="w", group=limit)["job"]["id"] == "a1"
    waits = waiting_pull(rig, group=limit)

    await trio.sleep(0.399)
    assert got(waits) == []
    await trio.sleep(0.002)

    assert got(waits) == ["a2"]


@pytest.mark.parametrize("fields", [{}, {"group": {"affinity": "a"}}, {"group": {"concurrency": 1}}])
async def test_a_pull_that_waits_is_served_when_its_group_is_resumed(rig: Rig, autojump_clock, fields):
    admin = rig.talker()
    admin.say("PauseGroup", queue=QUEUE, groupId="a")
    push(rig, "a1", "a")
    await settle_down()
    waits = waiting_pull(rig, **fields)
    assert admin.take() == [{"ok": True, "data": {"changed": True}}]

    admin.say("ResumeGroup", queue=QUEUE, groupId="a")
    await settle_down()

    assert got(waits) == ["a1"]


async def test_a_pull_that_waits_is_served_at_the_end_of_a_rest(rig: Rig, autojump_clock):
    assert rig.call("RateLimitGroup", queue=QUEUE, groupId="a", duration=300) == {"ok": True}
    push(rig, "a1", "a")
    waits = waiting_pull(rig)

    await trio.sleep(0.299)
    assert got(waits) == []
    await trio.sleep(0.002)

    assert got(waits) == ["a1"]


async def test_a_client_that_goes_leaves_its_lane(rig: Rig, autojump_clock):
    talker = waiting_pull(rig, group={"affinity": "a"})
    other = waiting_pull(rig, group={"affinity": "a"})

    talker.session.close()
    push(rig, "a1", "a")

    assert got(talker) == []
    assert got(other) == ["a1"]
    assert not rig.broker.waiting.has_lanes(QUEUE)


async def test_a_pull_that_waits_gives_up_at_its_time(rig: Rig, autojump_clock):
    talker = rig.talker()
    talker.segment(pull(timeout=200, group={"affinity": "a"}))
    await trio.sleep(0.3)

    assert talker.replies == [{"ok": True, "job": None, "token": None}]


async def test_explain_knows_of_a_pull_that_waits_in_a_lane(rig: Rig, autojump_clock):
    waiting_pull(rig, group={"affinity": "a"})
    push(rig, "b1", "b")

    assert rig.call("Explain", id="b1")["reasons"] == [{"reason": "ready"}]
