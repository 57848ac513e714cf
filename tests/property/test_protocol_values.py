"""Payloads and fields keep their value, and no 64-bit integer form ever leaves."""

import math
import struct

import msgpack
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw

from bunqueue_trio.errors import CommandError, MalformedFrameError
from bunqueue_trio.model import commands as c
from bunqueue_trio.model.job import JobRecord, RepeatConfig, TimelineEntry
from bunqueue_trio.model.replies import (
    CountReply,
    DataReply,
    ErrorReply,
    JobReply,
    ProgressReply,
    ResultReply,
    StateReply,
)
from bunqueue_trio.protocol.codec import decode_command, encode_frame, wire_number
from bunqueue_trio.protocol.payloads import canonical, from_python, json_length_exceeds, to_python
from bunqueue_trio.protocol.scanning import is_canonical
from bunqueue_trio.protocol.wire import checked

numbers = st.integers(-(2**63), 2**64 - 1) | st.floats() | st.integers(-(2**31), 2**32 - 1).map(float)
scalars = st.none() | st.booleans() | numbers | st.text(max_size=12) | st.binary(max_size=12)
json_like = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4)
)
any_keys = st.recursive(
    scalars | st.just(msgpack.ExtType(0, b"\x00")) | st.just(msgpack.Timestamp(1_700_000_000, 5)),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=5) | st.integers(-(2**63), 2**64 - 1) | st.none(), inner, max_size=4)
    ),
)
texts = st.text(max_size=6, alphabet=st.sampled_from("abcπσ\U0001f600 "))


def skip(data: bytes, position: int, wide: list[int]) -> int:
    """The end of the value at *position*; notes where a 64-bit integer form stands. Written apart from the package."""
    head = data[position]
    start = position + 1
    if head in (0xCF, 0xD3):
        wide.append(position)
    fixed = {0xC0: 0, 0xC2: 0, 0xC3: 0, 0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4}
    fixed |= {0xD3: 8, 0xD4: 2, 0xD5: 3, 0xD6: 5, 0xD7: 9, 0xD8: 17}
    if head < 0x80 or head >= 0xE0:
        return start
    if head in fixed:
        return start + fixed[head]
    if 0xA0 <= head < 0xC0:
        return start + (head & 31)
    if head < 0xA0:
        return skip_many(data, start, (head & 15) * (2 if head < 0x90 else 1), wide)
    width = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xC7: 1, 0xC8: 2, 0xC9: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}.get(head)
    if width is not None:
        extra = 1 if 0xC7 <= head <= 0xC9 else 0
        return start + width + extra + int.from_bytes(data[start : start + width])
    width = 2 if head in (0xDC, 0xDE) else 4
    length = int.from_bytes(data[start : start + width])
    return skip_many(data, start + width, length * (2 if head >= 0xDE else 1), wide)


def skip_many(data: bytes, position: int, count: int, wide: list[int]) -> int:
    for _ in range(count):
        position = skip(data, position, wide)
    return position


def has_wide_form(data: bytes) -> bool:
    wide: list[int] = []
    assert skip(data, 0, wide) == len(data)
    return bool(wide)


def narrowed(value: object) -> object:
    """What a payload's value must be after canonicalisation: the same, wide integers as floats, keys as strings."""
    if isinstance(value, dict):
        return {"null" if key is None else str(key): narrowed(item) for key, item in value.items()}
    if isinstance(value, list):
        return [narrowed(item) for item in value]
    if isinstance(value, int) and not isinstance(value, bool) and not -(2**31) <= value < 2**32:
        return float(value)
    return value


def unpacked(data: bytes) -> object:
    return msgpack.unpackb(data, strict_map_key=True)


def same(left: object, right: object) -> bool:
    """Equality that knows NaN and tells 1 from True."""
    return msgpack.packb(left) == msgpack.packb(right)


def test_the_scanner_of_these_tests_sees_wide_forms():
    assert has_wide_form(msgpack.packb({"a": [b"x", "y" * 300, 1.5, 2**40]}))
    assert not has_wide_form(msgpack.packb({"a": [b"\xcf" * 9, "ρ", 1.5, list(range(20)), 2**32 - 1]}))


@given(any_keys)
def test_canonical_payloads_keep_their_value(value):
    data = msgpack.packb(value)

    result = bytes(canonical(Raw(data)))

    assert same(unpacked(result), narrowed(value))
    assert not has_wide_form(result)
    assert bytes(canonical(Raw(result))) == result
    assert is_canonical(result, 512)


@given(any_keys)
def test_a_payload_is_rewritten_only_when_it_must_be(value):
    data = msgpack.packb(value)

    if not has_wide_form(data) and same(narrowed(value), value):
        assert bytes(canonical(Raw(data))) == data


@given(st.binary(max_size=80))
def test_any_bytes_become_canonical_or_are_refused(data):
    try:
        result = bytes(canonical(Raw(data)))
    except MalformedFrameError:
        return

    assert not data or not has_wide_form(result)
    assert bytes(canonical(Raw(result))) == result
    if data:
        msgpack.unpackb(result)
        to_python(Raw(result))


@given(json_like)
def test_python_values_survive_as_payloads(value):
    raw = from_python(value)

    assert same(to_python(raw), narrowed(value))
    assert not has_wide_form(bytes(raw))


@given(
    st.recursive(
        texts | st.integers(-(2**31), 2**31) | st.booleans(),
        lambda v: st.lists(v, max_size=4) | st.dictionaries(texts, v, max_size=4),
    )
)
def test_json_length_agrees_with_the_encoder(value):
    units = len(msgspec.json.encode(value).decode().encode("utf-16-le")) // 2
    raw = from_python(value)

    assert json_length_exceeds(raw, units - 1)
    assert not json_length_exceeds(raw, units)


@given(
    json_like | st.text(alphabet='\x00\x1f"\\\n', min_size=1) | st.lists(st.sampled_from([False, None, -32, 1e-300]))
)
def test_no_json_text_is_longer_than_six_times_its_payload(value):
    raw = from_python(value)

    assert len(msgspec.json.encode(to_python(raw))) <= 6 * len(raw)


@given(numbers)
def test_wire_numbers_never_leave_in_a_wide_form(number):
    sent = wire_number(number)
    reply = encode_frame(DataReply(data={"n": sent}))

    assert math.isnan(number) or sent in (number, float(number))
    assert not has_wide_form(reply[4:])


@given(numbers, st.integers(-(2**31), 2**32 - 1))
def test_no_reply_holds_a_wide_form(number, small):
    sent = wire_number(number)
    raw = from_python([number])
    record = JobRecord(
        id="a",
        queue="q",
        data=raw,
        created_at=float(number),
        run_at=float(number),
        last_heartbeat=float(number),
        timeline=(TimelineEntry("waiting", float(number), attempt=small),),
        backoff=sent,
        progress=sent,
        progress_message=raw,
        repeat=RepeatConfig(every=sent, limit=sent),
        ttl=sent,
        timeout=sent,
        stall_timeout=sent,
        priority=small,
    )
    replies = [
        JobReply(job=record, token="t", req_id=raw),
        ResultReply(id=sent, result=raw),
        StateReply(id=sent),
        ProgressReply(progress=sent, message=raw),
        CountReply(count=small),
        ErrorReply(error="ρ" * 40, req_id=raw),
    ]

    assert not any(has_wide_form(encode_frame(reply)[4:]) for reply in replies)


valid_pushes = st.fixed_dictionaries(
    {"queue": st.from_regex(r"[A-Za-z0-9_.:-]{1,20}", fullmatch=True), "data": json_like},
    optional={
        "reqId": scalars,
        "priority": st.integers(-1_000_000, 1_000_000),
        "delay": st.floats(0, 31_536_000_000),
        "maxAttempts": st.integers(1, 1000),
        "backoff": st.integers(0, 86_400_000),
        "timestamp": st.integers(0, 2**53 - 1),
        "tags": st.lists(st.text(max_size=5), max_size=3),
        "dependsOn": st.lists(st.text(max_size=5), max_size=3),
        "jobId": st.text(min_size=1, max_size=5),
        "lifo": st.booleans(),
        "removeOnComplete": st.booleans(),
    },
)


@settings(max_examples=60)
@given(valid_pushes)
def test_valid_pushes_come_out_as_they_went_in(fields):
    command = decode_command(msgpack.packb({"cmd": "PUSH", **fields}))

    checked(command)

    assert isinstance(command, c.Push)
    assert command.queue == fields["queue"]
    assert same(to_python(command.data), narrowed(fields["data"]))
    assert command.is_plain is (not fields.keys() - {"queue", "data", "reqId", "jobId"})
    assert command.priority == fields.get("priority")
    assert command.delay == fields.get("delay")
    assert command.timestamp == fields.get("timestamp")
    assert command.tags == fields.get("tags")
    assert command.job_id == fields.get("jobId")
    assert command.lifo is fields.get("lifo")
    assert set(command.depends_on or []) == set(fields.get("dependsOn", []))
    if "reqId" in fields:
        assert same(unpacked(bytes(command.req_id)), narrowed(fields["reqId"]))


@settings(max_examples=40)
@given(st.lists(valid_pushes, max_size=3))
def test_valid_batches_agree_with_single_pushes(pushes):
    jobs = [{key: value for key, value in push.items() if key not in ("queue", "reqId", "jobId")} for push in pushes]
    batch = decode_command(msgpack.packb({"cmd": "PUSHB", "queue": "q", "jobs": jobs}))
    singles = [decode_command(msgpack.packb({"cmd": "PUSH", "queue": "q", **job})) for job in jobs]

    checked(batch)
    for single in singles:
        checked(single)

    assert isinstance(batch, c.PushBatch)
    for entry, single in zip(batch.jobs or [], singles, strict=True):
        for name in c.PushOptions.__struct_fields__:
            assert getattr(entry, name) == getattr(single, name)


@pytest.mark.parametrize("cmd", ["PULL", "PULLB", "Progress", "Heartbeat", "JobHeartbeat", "Dlq", "GetState", "PUSH"])
@given(number=numbers, fields=st.lists(st.sampled_from(["timeout", "lockTtl", "count", "progress", "activeJobs"])))
def test_checked_numbers_never_leave_in_a_wide_form(cmd, number, fields):
    body = {"cmd": cmd, "queue": "q", "data": 1, "id": number if cmd == "GetState" else "a", "timestamp": number}
    command = decode_command(msgpack.packb({**body, **dict.fromkeys(fields, number)}))
    try:
        checked(command)
    except CommandError:
        return

    relevant = {name: getattr(command, name) for name in command.__struct_fields__ if name != "is_plain"}
    assert not any(has_wide_form(msgspec.msgpack.encode(value)) for value in relevant.values() if value != c.ABSENT)


@given(st.floats(allow_nan=False), st.integers(0, 2))
def test_payload_floats_keep_their_bits(number, kind):
    data = [struct.pack(">Bd", 0xCB, number), msgpack.packb([number]), msgpack.packb({"a": number})][kind]

    assert bytes(canonical(Raw(data))) == data
