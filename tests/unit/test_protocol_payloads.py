"""Payloads: what passes as it came, what is rewritten, what is refused, and how long its JSON text is."""

import json
import struct
from datetime import UTC, datetime

import msgpack
import pytest
from msgspec import Raw

from bunqueue_trio.errors import MalformedFrameError, ValidationError
from bunqueue_trio.model.commands import ABSENT
from bunqueue_trio.protocol import scanning
from bunqueue_trio.protocol.payloads import canonical, from_python, json_length_exceeds, received, to_python

UNDEFINED = b"\xd4\x00\x00"
TIMESTAMP = msgpack.packb(msgpack.Timestamp(1_700_000_000))


def nested(depth: int, core: bytes = b"\xc0") -> bytes:
    return b"\x91" * depth + core


AS_THEY_CAME = {
    "nil": b"\xc0",
    "small integer": b"\x07",
    "greatest 32-bit integer": b"\xce\xff\xff\xff\xff",
    "least 32-bit integer": b"\xd2\x80\x00\x00\x00",
    "integer in a longer form than needed": b"\xce\x00\x00\x00\x05",
    "float32": b"\xca\x3f\x80\x00\x00",
    "float whose bytes look like a wide integer": b"\xcb" + struct.pack(">d", 1.7e12).replace(b"\x42", b"\xcf", 1),
    "Greek text": msgpack.packb({"λ": "στρατός"}),
    "Greek text under a long header": b"\xde\x00\x01\xd9\x01a\xd9\x02\xcf\x80",
    "binary that holds the bytes of wide integers": msgpack.packb({"b": b"\xcf\xd3" * 9}),
    "long binary": msgpack.packb([b"\xcf" * 300, b"\xd3" * 70_000]),
    "long text beside binary": msgpack.packb(["x" * 40, "y" * 300, "z" * 70_000, b""]),
    "undefined within": b"\x91" + UNDEFINED,
    "timestamps": b"\x93"
    + TIMESTAMP
    + msgpack.packb(msgpack.Timestamp(1, 5))
    + msgpack.packb(msgpack.Timestamp(2**35)),
    "nine levels": nested(9),
    "512 levels": nested(512),
    "a map below many lists": nested(9, msgpack.packb({"a": {"b": [1, -1, 2.5, True]}})),
    "long containers": msgpack.packb([{str(i): i for i in range(20)}, list(range(20)), b""]),
    "a repeated key": b"\x82\xa1a\x01\xa1a\x02",
}


@pytest.mark.parametrize("data", AS_THEY_CAME.values(), ids=AS_THEY_CAME)
def test_canonical_payloads_pass_as_they_came(data):
    assert bytes(canonical(Raw(data))) == data


REWRITTEN = {
    "bad UTF-8": (b"\xa3a\xffb", "a�b"),
    "a surrogate in UTF-8": (b"\xa3\xed\xa0\x80", "���"),
    "bad UTF-8 in a key": (b"\x81\xa1\xff\x01", {"�": 1}),
    "integer key": (b"\x81\x01\x02", {"1": 2}),
    "nil key": (b"\x81\xc0\x02", {"null": 2}),
    "key of binary": (b"\x81\xc4\x01k\x02", {"k": 2}),
    "uint64": (b"\xcf" + struct.pack(">Q", 2**53 + 2), float(2**53 + 2)),
    "int64": (b"\xd3" + struct.pack(">q", -(2**40)), -(2.0**40)),
    "small value in a 64-bit form": (b"\x91\xcf" + struct.pack(">Q", 5), [5]),
    "wide integer beside binary": (b"\x92\xc4\x01b\xcf" + struct.pack(">Q", 2**60), [b"b", 2.0**60]),
    "undefined in a longer form": (b"\x91\xc7\x01\x00\x00", [None]),
}


@pytest.mark.parametrize(("data", "value"), REWRITTEN.values(), ids=REWRITTEN)
def test_other_payloads_are_rewritten(data, value):
    rewritten = canonical(Raw(data))

    assert to_python(rewritten) == value
    assert bytes(rewritten) != data
    assert bytes(canonical(rewritten)) == bytes(rewritten)


REFUSED = {
    "unknown extension": b"\xd4\x05\x00",
    "unknown extension within": b"\x92\x01\xc7\x02\x01ab",
    "list as key": b"\x81\x91\x01\x02",
    "map as key": b"\x81\x81\x01\x02\x03",
    "undefined as key": b"\x81" + UNDEFINED + b"\x01",
    "513 levels": nested(513),
    "100000 levels": nested(100_000),
    "malformed timestamp": b"\xd5\xff\x00\x00",
    "timestamp beyond the calendar": msgpack.packb(msgpack.Timestamp(2**50)),
    "two values": b"\x01\x02",
    "truncated text": b"\xa5ab",
    "length that lies": b"\xdd\xff\xff\xff\xff",
    "truncated length": b"\xdb\xff",
    "unused opcode": b"\xc1",
    "truncated extension": b"\xd4",
}


@pytest.mark.parametrize("data", REFUSED.values(), ids=REFUSED)
def test_hostile_payloads_are_refused(data):
    with pytest.raises(MalformedFrameError, match="Invalid command format"):
        canonical(Raw(data))


def test_the_result_does_not_keep_the_frame_alive():
    frame = bytearray(msgpack.packb({"a": 1}))

    stored = received(Raw(memoryview(frame)), False)
    frame.clear()  # a view into it would make this fail

    assert to_python(stored) == {"a": 1}


def test_top_level_undefined_is_absent():
    assert received(Raw(UNDEFINED), False) is ABSENT
    assert received(Raw(UNDEFINED), True) is ABSENT
    assert canonical(ABSENT) is ABSENT
    assert to_python(ABSENT) is None


def test_null_is_present():
    assert bytes(received(Raw(b"\xc0"), False)) == b"\xc0"


def test_a_payload_of_very_many_values_is_rewritten_without_a_walk():
    data = msgpack.packb([b"x", *range(scanning.MAX_VALUES)])

    assert not scanning.is_canonical(data, 512)
    assert to_python(canonical(Raw(data))) == [b"x", *range(scanning.MAX_VALUES)]


@pytest.mark.parametrize(
    ("value", "units"),
    [
        ("x" * 30, 32),
        ("é" * 30, 32),
        ("\U0001f600" * 30, 62),
        ('"\\\n\x01', 14),
        ([True, False, None, 12, -1.5], 25),
        ({"a": [1, {"b": "c"}]}, 19),
        (b"\xff" * 30, 30),
        ([b"12345", "x"], 11),
    ],
)
def test_json_length_is_exact(value, units):
    raw = Raw(msgpack.packb(value))

    assert not json_length_exceeds(raw, units)
    assert json_length_exceeds(raw, units - 1)


def test_json_length_agrees_with_a_json_encoder():
    value = {"list": [1, 2.5, "x", None, True], "text": 'q"uote\t', "map": {"a": {}}, "empty": []}
    length = len(json.dumps(value, separators=(",", ":"), ensure_ascii=False))

    assert json_length_exceeds(Raw(msgpack.packb(value)), length - 1)
    assert not json_length_exceeds(Raw(msgpack.packb(value)), length)


def test_a_small_payload_is_judged_by_its_size_alone():
    undecodable = Raw(b"\xc1" * 100)

    assert not json_length_exceeds(undecodable, 600)


def test_the_job_data_limit_is_that_of_the_wire():
    assert not json_length_exceeds(Raw(msgpack.packb("x" * 10_485_758)))
    assert json_length_exceeds(Raw(msgpack.packb("x" * 10_485_759)))
    assert not json_length_exceeds(Raw(msgpack.packb("é" * 6_291_456)))


def test_python_values_become_payloads():
    moment = datetime(2026, 3, 1, tzinfo=UTC)
    value = {"a": [1, 2**40, 5.0, None, b"x"], 7: moment}

    raw = from_python(value)

    assert to_python(raw) == {"a": [1, 2.0**40, 5.0, None, b"x"], "7": moment}
    assert bytes(canonical(raw)) == bytes(raw)


def test_what_only_json_can_hold_is_brought_into_range():
    value = {"huge": [10**30, 1], "lone": "a\ud800b", "pair": "\ud83d\ude00", "t": (1,), "f": 1.5}

    raw = from_python(value)

    assert to_python(raw) == {"huge": [1e30, 1], "lone": "a�b", "pair": "\U0001f600", "t": [1], "f": 1.5}


def cyclic() -> list[object]:
    loop: list[object] = []
    loop.append(loop)
    return loop


def deep(core: object) -> object:
    for _ in range(600):
        core = [core]
    return core


@pytest.mark.parametrize(
    "value",
    [object(), cyclic(), deep(1), deep(10**30), 10**400],
    ids=["object", "cycle", "deep", "deep and huge", "huge"],
)
def test_python_values_without_a_place_in_payloads_are_refused(value):
    with pytest.raises(ValidationError, match="cannot be encoded"):
        from_python(value)
