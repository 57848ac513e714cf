"""Workers of the npm clients: all that a processor may do with a job, as the processor and the queue see it.

Source: newer clients 17.2.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.peers.npm import Outcomes
from tests.peers.packages import NEWEST, OLDER
from tests.process import ServerProcess

pytestmark = pytest.mark.slow

VERSIONS = [pytest.param(NEWEST, id="newest"), pytest.param(OLDER, id="older")]
DATA = {"to": "ada"}


@pytest.fixture(scope="module", params=VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def outcomes(packages: None, shared_server: ServerProcess, version: str) -> Outcomes:
    return Outcomes(shared_server, version, "worker.ts")


@pytest.fixture
def after(outcomes: Outcomes, version: str) -> Any:
    """Compares a job as its owner sees it at the end.

    The older client shows a queue's job as it is on the wire: with the name among the data, and without its result and
    the number of attempts.
    """

    def check(scenario: str, **expected: Any) -> None:
        job = outcomes[scenario]["after"]
        data = expected.pop("data", DATA)
        if version == OLDER:
            data = {"name": "send", **data}
            expected.pop("returnvalue", None)
            expected["attemptsMade"] = 0
        assert job == {"name": "send", "data": data, **expected}

    return check


def test_a_job_completes(outcomes: Outcomes, after: Any) -> None:
    seen = outcomes["completes"]
    assert (seen["added"], seen["finished"]) == ("send", ["send", DATA, {"sent": "ada"}])
    after("completes", state="completed", attemptsMade=0, progress=100, returnvalue={"sent": "ada"})


def test_a_job_that_throws_is_tried_again(outcomes: Outcomes, after: Any) -> None:
    seen = outcomes["triesAgain"]
    assert seen["runs"] == [["send", DATA, attempt] for attempt in range(3)]
    assert seen["failures"] == ["not yet", "not yet"]
    after("triesAgain", state="completed", attemptsMade=2, progress=100, returnvalue="at last", failedReason="not yet")


def test_a_job_fails_for_good(outcomes: Outcomes, after: Any) -> None:
    assert outcomes["failsForGood"]["finished"] == ["send", "boom"]
    after("failsForGood", state="failed", attemptsMade=1, progress=0, failedReason="boom")


def test_an_unrecoverable_error_is_the_last(outcomes: Outcomes, after: Any) -> None:
    assert outcomes["givesUpAtOnce"]["runs"] == 1
    after("givesUpAtOnce", state="failed", attemptsMade=1, progress=0, failedReason="no use")


def test_a_processor_moves_its_job_to_delayed(outcomes: Outcomes, after: Any) -> None:
    assert outcomes["movesToDelayed"]["runs"] == [["send", DATA], ["send", DATA]]
    after("movesToDelayed", state="completed", attemptsMade=0, progress=100, returnvalue="later")


def test_a_processor_updates_data_progress_and_logs(outcomes: Outcomes, version: str) -> None:
    seen = outcomes["updatesItsJob"]
    new_data = {"to": "grace", "copies": 2}

    assert seen["progress"] == [40, 100]
    assert seen["logs"] == ["[info] sent the first"]
    # The older client's update is all that is left of the data, its name is not among it.
    second_name, last_name = ("send", "send") if version == NEWEST else ("default", "unknown")
    assert seen["runs"] == [["send", DATA], [second_name, new_data]]
    after = seen["after"]
    assert (after["name"], after["data"], after["state"]) == (last_name, new_data, "completed")
    assert (after["progress"], after["failedReason"]) == (100, "again, please")


def test_a_worker_removes_what_is_finished(outcomes: Outcomes, version: str) -> None:
    seen = outcomes["removesWhatIsFinished"]
    assert seen["finished"] == ["bad", "good"]
    if version == NEWEST:  # the older one knows the option and does nothing with it
        assert (seen["left"], seen["counts"]) == ([None, None], [0, 0])


def test_a_worker_that_closes_gives_back_what_it_has_not_begun(outcomes: Outcomes) -> None:
    assert outcomes["closesWithJobsInItsBuffer"] == {
        "runs": 1,
        "counts": [19, 0, 1, 0],
        "names": ["send"],
        "attempts": [0],
    }


def test_a_worker_does_many_jobs_at_a_time(outcomes: Outcomes) -> None:
    assert outcomes["worksManyAtATime"] == {"asExpected": True}


def test_simple_mode(outcomes: Outcomes) -> None:
    assert outcomes["routesJobsByTheirNames"] == {"send": {"sent": "ada"}, "count": 2, "often": "grace"}


def test_a_sandboxed_worker(packages: None, shared_server: ServerProcess, version: str) -> None:
    result = {"name": "good", "data": DATA} if version == NEWEST else {"data": {"name": "good", **DATA}}

    assert Outcomes(shared_server, version, "sandboxed.ts")["worksInABox"] == {
        "results": [result],
        "failures": ["boom in the box"],
        "states": ["completed", "failed"],
    }
