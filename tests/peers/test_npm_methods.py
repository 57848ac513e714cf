"""Methods of the newest npm client's Queue that need more than protocol 2: each does what it says.

Source: newer clients 2, 17.6.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.peers.npm import Outcomes
from tests.peers.packages import NEWEST
from tests.process import ServerProcess

pytestmark = pytest.mark.slow

BAD_NAME = "jobs[0]: Job name must be a non-empty string of at most 256 characters"


@pytest.fixture(scope="module")
def outcomes(packages: None, shared_server: ServerProcess) -> Outcomes:
    return Outcomes(shared_server, NEWEST, "methods.ts")


def test_names_beside_all_kinds_of_data(outcomes: Outcomes) -> None:
    kinds: list[tuple[str, Any]] = [
        ("send", {"to": "ada"}), ("send", {"name": "Bob"}), ("send", [1, 2]), ("send", None), ("send", ...),
        ("send", "text"), ("send", 7), ("default", {"to": "ada"}), ("default", {"name": "Bob"}),
    ]  # fmt: skip
    jobs = [{"name": name} if data is ... else {"name": name, "data": data} for name, data in kinds]

    seen = outcomes["keepsANameBesideItsData"]

    assert seen["read"] == seen["page"] == jobs
    assert seen["updated"] == [
        {"name": "send", "data": {"to": "grace", "name": "Grace"}},
        {"name": "send", "data": ["a list now"]},
    ]


def test_bad_names_are_refused(outcomes: Outcomes) -> None:
    assert outcomes["refusesBadNames"] == {"empty": BAD_NAME, "long": BAD_NAME, "fits": "taken"}


def test_a_schedule_names_its_jobs(outcomes: Outcomes) -> None:
    assert outcomes["namesTheJobsOfASchedule"] == {
        "names": ["report", "report", "report"],
        "spawned": ["report", {"to": "ada"}],
        "every": 3_600_000,
        "removed": True,
    }


def test_lists_of_jobs_and_their_results(outcomes: Outcomes) -> None:
    assert outcomes["shows"] == {
        "rising": ["job-1", "job-2", "job-3"],
        "falling": ["job-3", "job-2", "job-1"],
        "newest": ["job-3"],
        "returnvalues": [[f"job-{n}", {"n": n}] for n in (1, 2, 3)],
        "one": {"n": 1},
    }


def test_dead_letters_are_read_with_filters(outcomes: Outcomes) -> None:
    assert outcomes["readsDeadLetters"] == {
        "all": ["first", "second"],
        "letter": ["first", {"n": 1}, "max_attempts_exceeded", "boom", 1],
        "byReason": [["first", "second"], []],
        "byTime": [["first"], ["second"]],
        "byPlace": [["first"], ["second"]],
        "stats": [2, 2, 0, [2]],
        "times": True,
    }


def test_only_dead_letters_that_the_filter_selects_are_retried(outcomes: Outcomes) -> None:
    assert outcomes["retriesDeadLettersThatAFilterSelects"] == {"counts": [0, 1], "states": ["failed", "waiting"]}


def test_one_dead_letter_is_removed(outcomes: Outcomes) -> None:
    assert outcomes["removesADeadLetter"] == {"removed": True, "again": False, "left": ["second"], "job": None}


def test_limits_are_read(outcomes: Outcomes) -> None:
    nothing = [None, None, False, -2]
    assert outcomes["readsItsLimits"] == {
        "before": nothing,
        "set": [1, {"max": 5, "duration": 60_000}, False, 0],
        "maxed": True,
        "after": nothing,
    }


def test_deduplication_keys_are_found_and_freed(outcomes: Outcomes) -> None:
    assert outcomes["freesDeduplicationKeys"] == {
        "duplicateIsFirst": True,
        "holderIsFirst": True,
        "freed": [1, 0],
        "free": None,
        "secondIsNew": True,
        "byJob": [True, False],
        "count": 2,
    }


def test_metrics_count_what_is_finished(outcomes: Outcomes) -> None:
    assert outcomes["countsWhatIsFinished"] == {"none": [0, [], 0], "total": 2, "isRecent": True, "length": True}


def test_events_are_trimmed(outcomes: Outcomes) -> None:
    assert outcomes["trimsEvents"] == {"isNumber": True}


def test_jobs_finished_by_hand(outcomes: Outcomes) -> None:
    seen = outcomes["finishesJobsByHand"]

    assert "Invalid or expired lock token for job" in seen.pop("wrongToken")
    assert seen == {
        "names": ["job-1", "job-2", "job-3", "job-4"],
        "moved": True,
        "states": ["completed", "delayed", "waiting", "delayed"],
        "returnvalue": {"done": True},
    }


def test_finished_jobs_run_again(outcomes: Outcomes) -> None:
    assert outcomes["runsFinishedJobsAgain"] == {"waiting": 2, "completed": 1, "names": ["job-1", "job-2", "job-3"]}


def test_a_processor_takes_batches(outcomes: Outcomes) -> None:
    assert outcomes["worksBatches"] == {"calls": 2, "failed": ["failed", "not seven"], "others": ["completed"]}
