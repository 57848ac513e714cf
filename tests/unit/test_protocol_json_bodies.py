"""JSON in and out: what a body becomes, what a payload is shown as, and that nothing is lost on the way."""

import json
import math
from datetime import UTC, datetime

import msgpack
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bunqueue_trio.errors import ValidationError
from bunqueue_trio.model import commands as c
from bunqueue_trio.protocol.json_bodies import command_of, json_of, object_of
from bunqueue_trio.protocol.payloads import from_python

UNDEFINED = msgpack.ExtType(0, b"\x00")


def shown(value):
    """How a payload looks over HTTP."""
    return json.loads(json_of(msgpack.packb({"v": value}, datetime=True)))["v"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.0, "1"),
        (-0.0, "0"),
        (1_795_977_923_427.0, "1795977923427"),
        (2.5, "2.5"),
        (1e21, "1e21"),
        (math.nan, "null"),
        (math.inf, "null"),
        (None, "null"),
        (True, "true"),
        ("ü\n", '"ü\\n"'),
        (b"", '{"$binary":""}'),
        (b"\x00\xff", '{"$binary":"AP8="}'),
        ({"a": b"x"}, '{"a":{"$binary":"eA=="}}'),
        ([b"x", [b"y"]], '[{"$binary":"eA=="},[{"$binary":"eQ=="}]]'),
        (datetime(2026, 11, 29, 18, 47, 16, 532_000, UTC), '"2026-11-29T18:47:16.532Z"'),
        ({"a": UNDEFINED, "b": 1}, '{"b":1}'),
        ([UNDEFINED, 1], "[null,1]"),
        # maps that only look like binary
        ({"$binary": "AP8="}, '{"$$binary":"AP8="}'),
        ({"$$binary": "AP8="}, '{"$$$binary":"AP8="}'),
        ({"$binary": "no base64"}, '{"$binary":"no base64"}'),
        ({"$binary": 5}, '{"$binary":5}'),
        ({"$binary": "", "more": 1}, '{"$binary":"","more":1}'),
        ({"binary": "AP8="}, '{"binary":"AP8="}'),
    ],
)
def test_how_values_are_shown(value, text):
    assert json_of(msgpack.packb({"v": value}, datetime=True)) == f'{{"v":{text}}}'.encode()


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"$binary":"AP8="}', b"\x00\xff"),
        ('{"\\u0024binary":"AP8="}', b"\x00\xff"),
        ('{"$$binary":"AP8="}', {"$binary": "AP8="}),
        ('{"$binary":"no base64"}', {"$binary": "no base64"}),
        ('{"$binary":"AP8"}', {"$binary": "AP8"}),
        ('{"$binary":null}', {"$binary": None}),
        ('{"$binary":"","x":1}', {"$binary": "", "x": 1}),
        ('[{"x":{"$binary":""}}]', [{"x": b""}]),
        ("123456789012345678901234567890", 123456789012345678901234567890),
        ("1e999", math.inf),
        ('"\\ud800"', "\ud800"),
        ('{"a":1,"a":2}', {"a": 2}),
    ],
)
def test_how_bodies_are_read(text, value):
    assert object_of(f'{{"v":{text}}}'.encode()) == {"v": value}


def test_a_byte_order_mark_and_bad_utf8_are_read_as_javascript_does():
    assert object_of(b'\xef\xbb\xbf {"a":"\xff"} ') == {"a": "\ufffd"}


@pytest.mark.parametrize(
    "text",
    [
        b"", b"{", b"null", b"[]", b"1", b'"x"', b"{'a':1}", b'{"a":1,}', b'{"a":NaN}', b'{"a":Infinity}',
        b'{"a":-Infinity}', b'{"a":1}x', b'{"a":"\n"}', b"[" * 100_000, b'{"a":' * 100_000, b"\xff",
    ],
)  # fmt: skip
def test_what_is_no_object_is_refused(text):
    with pytest.raises(ValidationError, match="Invalid JSON body"):
        object_of(text)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**31), 2**32 - 1) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=4), inner, max_size=4)
    | st.dictionaries(st.sampled_from(["$binary", "$$binary"]), inner | st.just("AP8="), min_size=1, max_size=1),
    max_leaves=20,
)  # fmt: skip


@given(JSON_VALUES)
def test_whatever_json_is_pushed_is_shown_again(value):
    stored = from_python(object_of(json.dumps({"v": value}).encode()))

    assert json.loads(json_of(bytes(stored)))["v"] == value


@given(st.recursive(JSON_VALUES | st.binary(max_size=8), lambda inner: st.lists(inner, max_size=3)))
def test_whatever_is_stored_comes_back_as_it_was(value):
    stored = from_python({"v": value})

    assert object_of(json_of(bytes(stored))) == msgspec.msgpack.decode(stored)


def test_a_command_is_what_it_would_be_on_the_wire():
    command = command_of("PUSH", {"queue": "q", "data": {"b": b"x"}, "cmd": "Obliterate", "priority": "high"})

    assert type(command) is c.Push
    assert (command.queue, command.priority) == ("q", "high")
    assert msgspec.msgpack.decode(command.data) == {"b": b"x"}


def test_what_makes_no_command_is_refused():
    nested: list = []
    for _ in range(600):
        nested = [nested]

    with pytest.raises(ValidationError, match="Invalid JSON body"):
        command_of("PUSH", {"queue": "q", "data": nested})
