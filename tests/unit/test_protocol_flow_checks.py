"""Checks of the commands about flows and waits."""

import msgpack
import pytest
from msgspec import Raw

from bunqueue_trio.errors import ValidationError
from bunqueue_trio.protocol.flow_checks import name_parent
from tests.engine_harness import EngineHarness


def refusal(cmd, **fields):
    with pytest.raises(ValidationError) as caught:
        EngineHarness.command(cmd, **fields)
    return str(caught.value)


@pytest.mark.parametrize(
    ("timeout", "text"),
    [
        ("50", "timeout must be a number"),
        (True, "timeout must be a number"),
        ([1], "timeout must be a number"),
        (float("nan"), "timeout must be a finite number"),
        (float("inf"), "timeout must be a finite number"),
        (-1, "timeout must be at least 0"),
        (-0.5, "timeout must be at least 0"),
        (600_001, "timeout must be at most 600000"),
        (600_000.5, "timeout must be at most 600000"),
    ],
)
def test_a_wait_has_bounds(timeout, text):
    assert refusal("WaitJob", id="a", timeout=timeout) == text


@pytest.mark.parametrize(
    ("fields", "timeout"),
    [
        ({}, 30_000),
        ({"timeout": None}, 30_000),
        ({"timeout": 0}, 0),
        ({"timeout": 600_000}, 600_000),
        ({"timeout": 0.5}, 0.5),
    ],
)
def test_a_wait_lasts_as_long_as_asked_or_half_a_minute(fields, timeout):
    assert EngineHarness.command("WaitJob", id="a", **fields).timeout == timeout


def test_the_time_is_looked_at_before_the_id():
    assert refusal("WaitJob", id="nobody", timeout=-1) == "timeout must be at least 0"


@pytest.mark.parametrize("parent", [None, 7, ["dad"], {}])
def test_a_parent_is_named_by_a_string(parent):
    assert refusal("UpdateParent", childId="kid", parentId=parent) == "parentId must be a string"


def test_a_parent_has_a_name():
    assert refusal("UpdateParent", childId="kid", parentId="") == "parentId is required"


def test_what_writes_into_the_data_is_never_the_clients_choice():
    command = EngineHarness.command("UpdateParent", childId="kid", parentId="dad", **{"(nameParent)": "x"})

    assert command.name_parent is name_parent


@pytest.mark.parametrize(("given", "text"), [(None, "undefined"), (7, "7"), (True, "true"), ([1, 2], "1,2")])
def test_a_child_that_is_no_string_is_unknown_and_named_all_the_same(given, text):
    assert refusal("RemoveChildDependency", id=given) == f"Job not found: {text}"


@pytest.mark.parametrize(
    ("data", "queue", "named"),
    [
        ({}, "p", {"__parentId": "dad", "__parentQueue": "p"}),
        ({}, None, {"__parentId": "dad", "__parentQueue": "c"}),
        ({"__parentQueue": "x"}, None, {"__parentQueue": "x", "__parentId": "dad"}),
        ({"__parentQueue": "x", "__parentId": "y"}, "p", {"__parentQueue": "p", "__parentId": "dad"}),
        ([], "p", []),
        ([{}], "p", [{}]),
    ],
)
def test_naming_a_parent(data, queue, named):
    written = name_parent(Raw(msgpack.packb(data)), "dad", queue, "c")

    assert written is not None
    assert msgpack.unpackb(bytes(written)) == named
    assert list(msgpack.unpackb(bytes(written))) == list(named)


@pytest.mark.parametrize("size", [14, 15, 16, 65_534, 65_535, 65_536])
def test_maps_of_any_size_keep_their_members(size):
    data = {str(n): [n, {"deep": [None, b"x", 1.5]}] for n in range(size)}

    written = name_parent(Raw(msgpack.packb(data)), "dad", "p", "c")

    assert written is not None
    assert msgpack.unpackb(bytes(written)) == {**data, "__parentId": "dad", "__parentQueue": "p"}


@pytest.mark.parametrize("data", [b"", b"\xc0", b"\xc3", b"\x05", b"\xa1x", b"\xc4\x01x", b"\xcb" + bytes(8)])
def test_scalars_can_name_no_parent(data):
    assert name_parent(Raw(data), "dad", "p", "c") is None
