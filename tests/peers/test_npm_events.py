"""QueueEvents and `waitUntilFinished` of the newest npm client, also over a restart of the server.

Source: newer clients 7, 17.3 and 17.5.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from tests.peers.npm import PROGRAMS, Outcomes, Program
from tests.peers.packages import NEWEST
from tests.process import ServerProcess, wait_until

pytestmark = pytest.mark.slow

DATA = {"to": "ada"}


@pytest.fixture(scope="module")
def outcomes(packages: None, shared_server: ServerProcess) -> Outcomes:
    return Outcomes(shared_server, NEWEST, "events.ts")


def test_they_tell_a_jobs_life_in_order(outcomes: Outcomes) -> None:
    seen, errors = outcomes.with_errors("tellAJobsLife")

    assert seen["good"] == [
        ["waiting", {}],
        ["active", {}],
        ["progress", {"data": 30}],
        ["completed", {"returnvalue": {"sent": True}}],
    ]
    assert seen["bad"] == [
        ["waiting", {}],
        ["active", {}],
        ["failed", {"failedReason": "boom", "data": DATA}],
        ["retried", {"prev": "failed"}],
        ["active", {}],
        ["failed", {"failedReason": "boom", "data": DATA}],
    ]
    assert seen["delays"] == ["waiting", "active", "delayed", "active", "completed"]
    assert errors == ["Error: boom", "Error: boom"]  # QueueEvents call each failure an error too


def test_they_tell_what_happens_to_a_queue(outcomes: Outcomes) -> None:
    assert outcomes["tellWhatHappensToAQueue"]["marks"] == [
        ["paused", False, {}],
        ["resumed", False, {}],
        ["waiting", True, {}],
        ["duplicated", True, {}],
        ["removed", True, {"prev": "waiting"}],
    ]


def test_they_tell_of_a_job_that_waits_for_children_of_its_own(outcomes: Outcomes) -> None:
    assert outcomes["tellOfAJobThatParksItself"]["events"] == [
        "waiting",
        "active",
        "waiting-children",
        "active",
        "completed",
    ]


def test_those_of_one_queue_tell_nothing_of_another(outcomes: Outcomes) -> None:
    assert outcomes["ofOneQueueTellNothingOfAnother"]["told"] == [["waiting", True]]


def test_they_tell_of_stalls(outcomes: Outcomes) -> None:
    seen, _ = outcomes.with_errors("tellOfStalls")  # the worker's ACK comes too late, and it may say so
    assert seen["isTheJob"] == [True, True]


def test_a_thousand_waits_end_whether_the_job_was_finished_or_not(outcomes: Outcomes) -> None:
    assert outcomes["waitAThousandTimes"] == {"asExpected": 1_000}


def test_jobs_that_are_waited_for_as_they_are_made(outcomes: Outcomes) -> None:
    assert outcomes["waitForEachJobAsItIsMade"] == {"asExpected": 100}


@pytest.mark.parametrize("restart", [ServerProcess.restart, ServerProcess.crash_and_restart])
def test_a_worker_and_queue_events_live_through_a_restart(
    packages: None, server: ServerProcess, restart: Callable[[ServerProcess], None]
) -> None:
    with Program(server, NEWEST, PROGRAMS / "restart.ts", "mail") as program:
        program.said("ready")
        assert answer(program, "before") == "before: 1"

        restart(server)
        # Both connect again in their own time; what happens before is told to nobody.
        numbers = itertools.count()
        wait_until(lambda: is_told_of(program, f"after-{next(numbers)}"), "QueueEvents tell of a job after the restart")

        said = program.finish()
    worked = [line["worked"] for line in said if "worked" in line]
    assert worked == ["before", *(f"after-{n}" for n in range(next(numbers)))]
    server.assert_no_faults()


def answer(program: Program, name: str) -> str:
    """Have a job of that name made and waited for; its result."""
    program.tell(name)
    said = program.said("waited")
    assert said["waited"] == name
    return str(said["result"])


def is_told_of(program: Program, name: str) -> bool:
    result = answer(program, name)
    assert result == f"{name}: 1"
    return {"event": "completed", "returnvalue": result} in program.messages
