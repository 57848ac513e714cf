"""Payloads as JSON text: the rows were observed in bodies of the reference server's webhooks."""

from datetime import UTC, datetime

import msgpack
import pytest
from msgspec import Raw

from bunqueue_trio.protocol.json_text import MAX_BINARY_BYTES, TooMuchBinaryError, json_number, json_text

UNDEFINED = msgpack.ExtType(0, b"\x00")
MOMENT = datetime(2024, 1, 2, 3, 4, 5, 678_000, UTC)


def text_of(value) -> str:
    return json_text(Raw(msgpack.packb(value, datetime=True))).decode()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (True, "true"),
        (0, "0"),
        ("", '""'),
        (b"\x01", '{"0":1}'),
        ({"b": b"\x01\x02"}, '{"b":{"0":1,"1":2}}'),
        ({"u": UNDEFINED, "a": 1}, '{"a":1}'),
        ([UNDEFINED, 1], "[null,1]"),
        (UNDEFINED, "null"),
        ({"d": MOMENT}, '{"d":"2024-01-02T03:04:05.678Z"}'),
        ([MOMENT.replace(microsecond=0)], '["2024-01-02T03:04:05.000Z"]'),
        (1.5, "1.5"),
        (-0.0, "0"),
        (float("nan"), "null"),
        ([float("inf"), float("-inf")], "[null,null]"),
        (2.0**40, "1099511627776"),
        ([3.0], "[3]"),
        ({"t": "ü</\u2028"}, '{"t":"ü</\u2028"}'),
        ({"z": 1, "a": {"y": [], "x": {}}}, '{"z":1,"a":{"y":[],"x":{}}}'),
    ],
)
def test_values_are_written_as_javascript_writes_them(value, text):
    assert text_of(value) == text


def test_a_number_beyond_plain_digits_keeps_its_exponent():
    assert float(text_of(1e21)) == 1e21
    assert "e" in text_of(1e21)


def test_depth_is_no_danger():
    nested = 1
    for _ in range(512):
        nested = [nested]

    assert text_of(nested) == "[" * 512 + "1" + "]" * 512


def test_binary_is_bounded_over_the_whole_payload():
    half = bytes(MAX_BINARY_BYTES // 2)

    assert text_of([half, half]).count(":0") == MAX_BINARY_BYTES
    with pytest.raises(TooMuchBinaryError):
        text_of([half, half, b"x"])


@pytest.mark.parametrize(("value", "shown"), [(5.0, "5"), (33.3, "33.3"), (7, "7"), (1e300, "1e+300")])
def test_numbers_lose_a_point_that_says_nothing(value, shown):
    assert str(json_number(value)) == shown
