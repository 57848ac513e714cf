"""Crons: what a definition must look like, in the order of the spec, and the forms in which the engine gets it."""

import pytest

from bunqueue_trio.errors import ValidationError
from bunqueue_trio.model.cron_job import CronOptions
from bunqueue_trio.model.job import BackoffConfig, Dedup
from tests.engine_harness import EngineHarness

NEITHER = "Cron job must have either schedule or repeatEvery"
BAD_INTERVAL = "Cron repeatEvery must be a positive safe integer number of milliseconds"
GOOD = {"name": "c", "queue": "q", "repeatEvery": 1_000}


def command(**fields):
    return EngineHarness.command("Cron", **{**GOOD, **fields})


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"repeatEvery": None}, NEITHER),
        ({"repeatEvery": 0, "schedule": ""}, NEITHER),
        ({"repeatEvery": None, "name": None, "queue": 5}, NEITHER),
        ({"name": None}, "Cron name is required"),
        ({"name": ""}, "Cron name is required"),
        ({"name": 5}, "name must be a string"),
        ({"queue": None}, "Queue name is required"),
        ({"queue": "a b"}, "Queue name contains invalid characters"),
        ({"schedule": 5}, "schedule must be a string"),
        ({"schedule": ["* * * * *"]}, "schedule must be a string"),
        ({"repeatEvery": -1}, BAD_INTERVAL),
        ({"repeatEvery": 1.5}, BAD_INTERVAL),
        ({"repeatEvery": "1000"}, BAD_INTERVAL),
        ({"repeatEvery": True}, BAD_INTERVAL),
        ({"repeatEvery": float("inf")}, BAD_INTERVAL),
        ({"repeatEvery": 2.0**53}, BAD_INTERVAL),
        ({"repeatEvery": 0, "schedule": "* * * * *"}, BAD_INTERVAL),
        ({"timezone": 5}, "timezone must be a string"),
        ({"name": "x" * 1_025}, "name too long (max 1024 characters)"),
        ({"timezone": "x" * 1_025}, "timezone too long (max 1024 characters)"),
        ({"uniqueKey": "x" * 1_025}, "uniqueKey too long (max 1024 characters)"),
        ({"schedule": "x" * 8_193}, "schedule too long (max 8192 characters)"),
        ({"priority": "5"}, "priority must be a number"),
        ({"priority": 1.5}, "priority must be an integer"),
        ({"maxLimit": "5"}, "maxLimit must be a number"),
        ({"maxLimit": float("nan")}, "maxLimit must be a finite number"),
        ({"uniqueKey": 5}, "uniqueKey must be a string"),
        ({"dedup": 5}, "dedup must be an object"),
        ({"dedup": {"ttl": "5"}}, "dedup.ttl must be a number"),
        ({"jobOptions": []}, "jobOptions must be an object"),
        ({"jobOptions": {"maxAttempts": 0}}, "jobOptions.maxAttempts must be at least 1"),
        ({"jobOptions": {"backoff": "x"}}, "jobOptions.backoff must be a number"),
        ({"jobOptions": {"timeout": -1}}, "jobOptions.timeout must be at least 0"),
        ({"jobOptions": {"delay": "x"}}, "jobOptions.delay must be a number"),
        ({"jobOptions": {"stallTimeout": "x"}}, "jobOptions.stallTimeout must be a number"),
        ({"data": "x" * 10_485_760}, "Job data too large (max 10MB)"),
    ],
)
def test_what_is_refused(fields, text):
    with pytest.raises(ValidationError) as refused:
        command(**fields)

    assert str(refused.value) == text


def test_null_is_absent():
    names = ("schedule", "priority", "timezone", "maxLimit", "immediately", "uniqueKey", "dedup", "preventOverlap")
    more = ("skipMissedOnRestart", "skipIfNoWorker", "jobOptions")

    with_nulls, without = command(**dict.fromkeys((*names, *more))), command()

    for name in with_nulls.__struct_fields__:
        if name not in ("data", "req_id"):
            assert getattr(with_nulls, name) == getattr(without, name)
    assert (without.priority, without.skip_missed_on_restart, without.skip_if_no_worker) == (0, True, False)
    assert (without.prevent_overlap, without.immediately) == (None, False)


@pytest.mark.parametrize(
    ("given", "limit"), [(0, None), (-3, None), (5, 5), (5.0, 5), (2.5, 3), (1e300, 1e300), (-1e300, None)]
)
def test_a_limit_is_whole_and_none_when_it_is_not_positive(given, limit):
    assert command(maxLimit=given).max_limit == limit


def test_options_take_the_form_of_a_push_and_others_are_ignored():
    given = command(
        jobOptions={
            "maxAttempts": 7.0,
            "backoff": {"type": "fixed", "delay": 5},
            "removeOnFail": 1,
            "priority": "odd",
            "timeout": None,
        },
        dedup={"ttl": 9, "extend": 1},
        immediately=1,
        preventOverlap=0,
    )

    assert given.job_options == CronOptions(max_attempts=7, backoff=BackoffConfig("fixed", 5), remove_on_fail=True)
    assert given.dedup == Dedup(9, True, False)
    assert (given.immediately, given.prevent_overlap) == (True, False)


@pytest.mark.parametrize("cmd", ["CronGet", "CronDelete"])
@pytest.mark.parametrize("name", [None, 5, ["c"], {}])
def test_what_is_no_text_names_no_cron(cmd, name):
    assert EngineHarness.command(cmd, name=name).name is None
