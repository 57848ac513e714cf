"""Checks of GetJobs, GetCountsPerPriority and Clean. Source: commands, CD-1, CD-4, CD-12."""

import math
from typing import Any

import msgpack
import pytest

from bunqueue_trio.errors import ValidationError
from bunqueue_trio.protocol.codec import decode_command
from bunqueue_trio.protocol.wire import checked


def check(cmd: str, **fields: Any) -> Any:
    command = decode_command(msgpack.packb({"cmd": cmd, **fields}))
    checked(command)
    return command


def refusal(cmd: str, **fields: Any) -> str:
    with pytest.raises(ValidationError) as refused:
        check(cmd, **fields)
    return str(refused.value)


@pytest.mark.parametrize("cmd", ["GetJobs", "GetCountsPerPriority", "Clean"])
@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, "Queue name is required"),
        ({"queue": None}, "Queue name is required"),
        ({"queue": 5}, "queue must be a string"),
    ],
)
def test_a_queue_is_needed(cmd, fields, text):
    assert refusal(cmd, grace=0, **fields) == text


def test_any_name_of_a_queue_will_do():
    assert check("GetJobs", queue="with blanks").queue == "with blanks"


@pytest.mark.parametrize("state", [None, "", []])
def test_no_state_means_all_of_them(state):
    assert check("GetJobs", queue="q", state=state).state is None


@pytest.mark.parametrize("state", ["waiting", "no-such-state", ["waiting", "failed"]])
def test_names_of_states_are_taken_as_they_are(state):
    assert check("GetJobs", queue="q", state=state).state == state


def test_what_is_no_name_in_a_list_selects_nothing():
    assert check("GetJobs", queue="q", state=[1, None]).state == ["", ""]


@pytest.mark.parametrize("state", [5, True, {"a": 1}])
def test_a_state_of_another_type_is_refused(state):
    assert refusal("GetJobs", queue="q", state=state) == "state must be a string or an array"


@pytest.mark.parametrize(
    ("given", "offset"),
    [(None, 0), (0, 0), (3, 3), (3.0, 3), (2.9, 2), ("4", 4), (-1, 0), (-0.5, 0), (1e300, 1 << 53), (1 << 63, 1 << 53)],
)
def test_offset_in_the_forms_that_clients_write(given, offset):
    assert check("GetJobs", queue="q", offset=given).offset == offset


@pytest.mark.parametrize(
    ("given", "limit"),
    [(None, 100), (0, 0), (7, 7), (7.9, 7), ("8", 8), (-1, -1), (-50, -1), (-0.5, -1), (math.inf, 1 << 53)],
)
def test_limit_in_the_forms_that_clients_write(given, limit):
    assert check("GetJobs", queue="q", limit=given).limit == limit


@pytest.mark.parametrize("name", ["offset", "limit"])
@pytest.mark.parametrize("value", ["many", True, [], math.nan])
def test_paging_numbers_must_be_numbers(name, value):
    assert refusal("GetJobs", queue="q", **{name: value}) == f"{name} must be a number"


@pytest.mark.parametrize("fields", [{}, {"grace": None}])
def test_clean_needs_a_grace(fields):
    assert refusal("Clean", queue="q", **fields) == "grace is required"


@pytest.mark.parametrize(
    ("grace", "text"),
    [
        (-1, "grace must be at least 0"),
        ("soon", "grace must be a number"),
        (math.nan, "grace must be a finite number"),
    ],
)
def test_a_grace_is_a_number_from_0_on(grace, text):
    assert refusal("Clean", queue="q", grace=grace) == text


def test_the_grace_is_kept():
    assert check("Clean", queue="q", grace=60_000.0).grace == 60_000


@pytest.mark.parametrize(("given", "limit"), [(None, 1_000), (0, 0), (5, 5), (2.9, 2), ("3", 3), (-4, 0)])
def test_how_many_clean_removes_at_most(given, limit):
    assert check("Clean", queue="q", grace=0, limit=given).limit == limit


def test_a_limit_of_clean_must_be_a_number():
    assert refusal("Clean", queue="q", grace=0, limit="all") == "limit must be a number"


@pytest.mark.parametrize(
    ("given", "state"), [(None, None), ("waiting", "waiting"), ("", ""), (5, ""), (["failed"], "")]
)
def test_only_a_missing_state_lets_clean_remove_all_queued_jobs(given, state):
    assert check("Clean", queue="q", grace=0, state=given).state == state
