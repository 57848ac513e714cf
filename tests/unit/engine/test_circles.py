"""Jobs that would wait for each other for ever: not let in, whether they come together or one after the other."""

import pytest

from bunqueue_trio.engine import circles
from tests.engine_harness import EngineHarness

CIRCLE = "Circular dependency"


@pytest.fixture
def harness() -> EngineHarness:
    return EngineHarness()


def cancel(harness: EngineHarness) -> None:
    harness.send("Cancel", id="a")


def bury(harness: EngineHarness) -> None:
    harness.send("Discard", id="a")


def waiting_for_one_that_is_over(harness: EngineHarness, end, *, length: int = 1) -> str:
    """``a`` is over, and a line of jobs waits for it, one for the other; the last of them."""
    harness.push("deps", jobId="a", delay=1_000)
    last = "a"
    for number in range(length):
        last = harness.push(jobId=f"w{number}", dependsOn=[last])
    end(harness)
    return last


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("length", [1, 4])
@pytest.mark.parametrize("end", [cancel, bury])
def test_an_id_that_lives_again_may_not_wait_for_one_that_waits_for_it(harness, end, length, durable):
    last = waiting_for_one_that_is_over(harness, end, length=length)
    before = harness.state("a")

    assert harness.refusal("PUSH", queue="q", data=1, jobId="a", dependsOn=[last], durable=durable) == CIRCLE

    assert harness.state("a") == before


@pytest.mark.parametrize("end", [cancel, bury])
def test_nor_may_it_in_a_batch_over_other_entries(harness, end):
    last = waiting_for_one_that_is_over(harness, end)
    jobs = [{"data": 1}, {"data": 1, "customId": "a", "dependsOn": ["b"]}]
    jobs += [{"data": 1, "customId": "b", "dependsOn": [last]}]

    assert harness.refusal("PUSHB", queue="q", jobs=jobs) == f"jobs[1]: {CIRCLE}"


def test_it_may_wait_for_others(harness):
    waiting_for_one_that_is_over(harness, cancel)
    harness.push("deps", jobId="other")

    harness.push("q", jobId="a", dependsOn=["other"])
    harness.ack(*harness.pull("deps"))

    pulled = harness.pull()
    assert (pulled[0], harness.state("w0")) == ("a", "waiting-children")
    harness.ack(*pulled)
    assert harness.pull_id() == "w0"


def test_it_may_wait_for_one_that_waits_no_longer(harness):
    waiting_for_one_that_is_over(harness, cancel)
    harness.send("RemoveChildDependency", id="a")

    harness.push("deps", jobId="a", dependsOn=["w0"])

    harness.ack(*harness.pull())
    assert harness.pull_id("deps") == "a"


def test_a_live_job_answers_for_its_id_whatever_the_push_depends_on(harness):
    harness.push("deps", jobId="a")
    harness.push(jobId="w", dependsOn=["a"])

    assert harness.push(jobId="a", dependsOn=["w"]) == "a"


def test_a_circle_wider_than_is_looked_at_is_let_in_and_can_be_undone(harness, monkeypatch):
    monkeypatch.setattr(circles, "LOOKED_AT_MAX", 3)
    last = waiting_for_one_that_is_over(harness, cancel, length=3)
    assert harness.push("deps", jobId="a", dependsOn=[last]) == "a"
    assert harness.pull_id() is None

    harness.send("Cancel", id="a")
    harness.send("RemoveChildDependency", id="a")

    assert harness.pull_id() == "w0"
