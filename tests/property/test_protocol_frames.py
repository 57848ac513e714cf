"""Any split of a byte stream gives the same frames; any bytes give a command or a refusal, and nothing else."""

import struct

import msgpack
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bunqueue_trio.errors import CommandError, ProtocolError
from bunqueue_trio.protocol.codec import decode_command, string_req_id
from bunqueue_trio.protocol.framing import FrameBuffer
from bunqueue_trio.protocol.wire import checked

bodies = st.lists(st.binary(max_size=60), max_size=8)
cuts = st.lists(st.integers(min_value=0, max_value=600), max_size=20)


def pieces(stream: bytes, places: list[int]) -> list[bytes]:
    ends = sorted(place for place in places if place < len(stream))
    return [stream[start:end] for start, end in zip([0, *ends], [*ends, len(stream)], strict=True)]


@given(bodies, cuts, st.binary(max_size=3))
def test_any_split_gives_the_same_frames(sent, places, rest):
    stream = b"".join(struct.pack(">I", len(body)) + body for body in sent) + rest
    buffer = FrameBuffer()

    taken = [body for piece in pieces(stream, places) for body in buffer.feed(piece)]

    assert taken == sent
    assert buffer.buffered_bytes == len(rest)
    assert buffer.has_partial is bool(rest)


@given(st.binary(max_size=200), cuts)
def test_any_split_of_any_bytes_meets_the_same_fate(stream, places):
    whole = FrameBuffer(max_frame_bytes=50)
    split = FrameBuffer(max_frame_bytes=50)

    at_once = whole.feed(stream)
    by_piece = [body for piece in pieces(stream, places) for body in split.feed(piece)]

    assert by_piece == at_once
    assert split.buffered_bytes == whole.buffered_bytes
    assert str(split.fault) == str(whole.fault)


def is_command_or_refusal(body: bytes) -> None:
    string_req_id(body)
    try:
        checked(decode_command(body))
    except (ProtocolError, CommandError):
        return


@given(st.binary(max_size=300))
@example(b"\x91" * 100_000)
@example(b"\x81\xa3cmd" * 300)
@example(b"\xdd\xff\xff\xff\xff")
@example(b"\x82\xa3cmd\xa4PUSH\xa4data" + b"\xdc\xff\xff" * 900)
def test_any_bytes_are_a_command_or_a_refusal(body):
    is_command_or_refusal(body)


COMMANDS = [
    "PUSH",
    "PUSHB",
    "PUSHF",
    "PULL",
    "PULLB",
    "ACK",
    "ACKB",
    "FAIL",
    "JobHeartbeat",
    "JobHeartbeatB",
    "ExtendLock",
]
COMMANDS += ["ExtendLocks", "Progress", "GetState", "Count", "Dlq", "SetStallConfig", "RegisterWorker", "Heartbeat"]
FIELDS = [
    "queue",
    "data",
    "jobs",
    "id",
    "ids",
    "token",
    "tokens",
    "result",
    "results",
    "durations",
    "duration",
    "count",
]
FIELDS += ["priority", "backoff", "dependsOn", "repeat", "dedup", "error", "stack", "progress", "message", "config"]
FIELDS += ["timestamp", "name", "queues", "owner", "lockTtl", "timeout", "reqId", "durable", "customId", "jobId"]

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=8)
    | st.binary(max_size=8)
    | st.sampled_from(
        [msgpack.ExtType(0, b"\x00"), msgpack.ExtType(7, b"x"), msgpack.Timestamp(5), msgpack.Timestamp(2**60)]
    )
)
keys = st.text(max_size=6) | st.sampled_from([*FIELDS, "data", "type", "delay"]) | st.integers(-5, 5) | st.none()
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4))
field_maps = st.dictionaries(st.sampled_from(FIELDS), values, max_size=6)
entries = st.lists(st.dictionaries(st.sampled_from(FIELDS), values, max_size=4) | values, max_size=4)


@settings(max_examples=60)
@given(st.sampled_from(COMMANDS) | scalars, field_maps, entries)
def test_any_values_in_the_fields_are_a_command_or_a_refusal(cmd, fields, jobs):
    is_command_or_refusal(msgpack.packb({"cmd": cmd, **fields}))
    is_command_or_refusal(msgpack.packb({"queue": "q", "jobs": jobs, **fields, "cmd": "PUSHB"}))


FLOW_FIELDS = ["id", "queue", "input", "name", "data", "dependsOn", "childrenIds", "parentId", "customId", "groupId"]
kin = st.dictionaries(st.sampled_from(["__parentId", "__parentQueue", "__childrenIds"]), values, max_size=3)
flow_inputs = st.dictionaries(st.sampled_from([*FLOW_FIELDS, *FIELDS]), values | kin, max_size=5) | values
flow_jobs = st.fixed_dictionaries(
    {"id": st.text(max_size=3) | values, "queue": values | st.just("q"), "input": flow_inputs}
)


@settings(max_examples=60)
@given(st.lists(flow_jobs | values, max_size=4) | values)
def test_any_flow_is_a_command_or_a_refusal(jobs):
    is_command_or_refusal(msgpack.packb({"cmd": "PUSHF", "jobs": jobs}))
    for job in jobs if isinstance(jobs, list) else []:
        if isinstance(job, dict) and isinstance(job.get("input"), dict):
            is_command_or_refusal(msgpack.packb({**job["input"], "queue": "q", "name": "n", "cmd": "PUSH"}))


@given(st.lists(flow_jobs, min_size=1, max_size=3), st.randoms(use_true_random=False))
def test_a_damaged_flow_is_a_command_or_a_refusal(jobs, dice):
    body = bytearray(msgpack.packb({"cmd": "PUSHF", "jobs": jobs}))
    for _ in range(3):
        body[dice.randrange(len(body))] = dice.randrange(256)

    is_command_or_refusal(bytes(body))


@given(st.sampled_from(COMMANDS), field_maps, st.randoms(use_true_random=False))
def test_a_damaged_command_is_a_command_or_a_refusal(cmd, fields, dice):
    body = bytearray(msgpack.packb({"cmd": cmd, **fields}))
    for _ in range(3):
        body[dice.randrange(len(body))] = dice.randrange(256)

    is_command_or_refusal(bytes(body))
