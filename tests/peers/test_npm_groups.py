"""Groups of the newest npm client.

Source: newer clients 8.
"""

from __future__ import annotations

import pytest

from tests.peers.npm import Outcomes
from tests.peers.packages import NEWEST
from tests.process import ServerProcess

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def outcomes(packages: None, shared_server: ServerProcess) -> Outcomes:
    return Outcomes(shared_server, NEWEST, "groups.ts")


def test_they_take_turns(outcomes: Outcomes) -> None:
    assert outcomes["takeTurns"]["order"] == ["alone", "a0", "b0", "a1", "b1", "a2"]


def test_a_worker_limits_each_group(outcomes: Outcomes) -> None:
    assert outcomes["areLimitedByTheWorker"]["most"] == {"a": 2, "b": 2}


def test_a_paused_group_is_passed_over(outcomes: Outcomes) -> None:
    assert outcomes["arePausedAndCounted"] == {
        "counts": [2, 5, 0],
        "paused": [True, False, True],
        "whilePaused": ["b", "b", "b"],
        "left": ["a0", "a1"],
        "resumed": True,
        "isPaused": False,
    }


def test_a_group_has_limits_of_its_own(outcomes: Outcomes) -> None:
    assert outcomes["haveLimitsOfTheirOwn"] == {
        "before": [None, None],
        "set": [3, {"max": 5, "duration": 1_000}, -2],
        "removed": [1, 1],
        "after": [None, None],
    }


def test_a_full_group_takes_no_more(outcomes: Outcomes) -> None:
    assert outcomes["areFull"] == {"refusal": "Group a has reached its maximum size of 1", "count": 1}
