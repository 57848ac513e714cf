"""Numbers, truth and text as JavaScript has them, and trees made fit to be sent."""

import math

import msgpack
import pytest
from msgspec.msgpack import Ext

from bunqueue_trio.protocol.values import UNDEFINED, is_sound_timestamp, is_truthy, js_text, wire_number, wire_tree


@pytest.mark.parametrize(
    ("value", "expected"),
    [(5, 5), (5.0, 5), (-0.0, 0), (2**32 - 1, 2**32 - 1), (-(2**31), -(2**31)), (float(2**32 - 1), 2**32 - 1)],
)
def test_whole_numbers_within_32_bits_leave_as_int(value, expected):
    sent = wire_number(value)

    assert sent == expected
    assert type(sent) is int


@pytest.mark.parametrize("value", [2**32, -(2**31) - 1, 2**63, 1.5, 1e300, math.inf])
def test_other_numbers_leave_as_float(value):
    sent = wire_number(value)

    assert sent == value
    assert type(sent) is float


def test_nan_stays_nan():
    assert math.isnan(wire_number(math.nan))


@pytest.mark.parametrize("value", [None, False, 0, 0.0, -0.0, math.nan, "", UNDEFINED, Ext(0, b"\x00")])
def test_false_values_of_javascript(value):
    assert is_truthy(value) is False


@pytest.mark.parametrize("value", [True, 1, -1, 0.5, math.inf, "false", "0", [], {}, b"", Ext(5, b"")])
def test_true_values_of_javascript(value):
    assert is_truthy(value) is True


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("x", "x"),
        (None, "null"),
        (True, "true"),
        (False, "false"),
        (7, "7"),
        (7.0, "7"),
        (-0.0, "0"),
        (1.5, "1.5"),
        (1e20, "100000000000000000000"),
        (1e22, "1e+22"),
        (math.nan, "NaN"),
        (math.inf, "Infinity"),
        (-math.inf, "-Infinity"),
        ([1, "a", [2], {}], "1,a,[object Object],[object Object]"),
        ({"a": 1}, "[object Object]"),
        (b"a\xff", "a�"),
        (UNDEFINED, "undefined"),
    ],
)
def test_text_of_a_value(value, text):
    assert js_text(value) == text


def test_a_tree_gets_string_keys_and_narrow_integers():
    tree = {1: [2**40, {None: -(2**40)}], 2: True, 1.5: 4, b"k": "v"}

    sent = wire_tree(tree, max_depth=5)

    assert sent == {"1": [2.0**40, {"null": -(2.0**40)}], "2": True, "1.5": 4, "k": "v"}
    assert type(sent["1"][0]) is float


def test_the_later_of_two_equal_keys_wins():
    assert wire_tree({1: "first", "1": "second"}, max_depth=1) == {"1": "second"}


def test_a_scalar_root_is_replaced():
    assert type(wire_tree(2**40, max_depth=1)) is float
    assert wire_tree(UNDEFINED, max_depth=1) is UNDEFINED


def test_a_tree_deeper_than_allowed_is_refused():
    assert wire_tree([[1]], max_depth=2) == [[1]]

    with pytest.raises(ValueError, match="too deep"):
        wire_tree([[[]]], max_depth=2)


def test_a_key_that_is_no_scalar_is_refused():
    with pytest.raises(ValueError, match="key"):
        wire_tree({(1, 2): 3}, max_depth=2)


def test_timestamps_become_extensions():
    stamp = msgpack.Timestamp(1_700_000_000, 5)

    assert wire_tree([stamp], max_depth=1) == [Ext(-1, stamp.to_bytes())]


def test_a_timestamp_beyond_the_calendar_is_refused():
    with pytest.raises(ValueError, match="range"):
        wire_tree([msgpack.Timestamp(2**50)], max_depth=1)


@pytest.mark.parametrize(
    ("body", "is_sound"),
    [
        (msgpack.Timestamp(0).to_bytes(), True),
        (msgpack.Timestamp(253_402_300_799, 999_999_999).to_bytes(), True),
        (msgpack.Timestamp(253_402_300_800).to_bytes(), False),
        (b"\xff" * 8, False),
        (b"\x00\x00", False),
    ],
)
def test_soundness_of_timestamps(body, is_sound):
    assert is_sound_timestamp(body) is is_sound
