"""Fuzz target: bytes of a connection. Only ProtocolError or CommandError may come out, whatever arrives."""

import random
import struct

import msgpack
from harness import instrumented, run

with instrumented():
    from msgspec import Raw

    from bunqueue_trio.errors import CommandError, MalformedFrameError
    from bunqueue_trio.model.commands import ABSENT
    from bunqueue_trio.model.replies import StateReply
    from bunqueue_trio.protocol.codec import decode_command, encode_frame, string_req_id
    from bunqueue_trio.protocol.framing import FrameBuffer
    from bunqueue_trio.protocol.payloads import canonical, to_python
    from bunqueue_trio.protocol.wire import checked

MAX_FRAME_BYTES = 1 << 20
UNDEFINED = msgpack.ExtType(0, b"\x00")
OPTIONS = {"priority": 5, "delay": 1000.5, "backoff": {"type": "fixed", "delay": 5}, "dependsOn": ["a"], "lifo": 1}
OPTIONS |= {"dedup": {"ttl": 5}, "repeat": {"every": 1000, "endDate": 2**41}, "durable": "fsync", "tags": ["t", "π"]}
FLOW_CHILD = {"name": "n", "data": {"__parentId": "p", "__parentQueue": "q", "x": [1]}, "parentId": "p", "lifo": True}
FLOW_INPUT = {"data": {"__childrenIds": ["k"]}, "dependsOn": ["k"], "childrenIds": ["k"], "tags": UNDEFINED}
FLOW_PARENT = {"id": "p", "queue": "q", "input": FLOW_INPUT}
SAMPLES = [
    {"cmd": "PUSH", "queue": "q", "data": {"a": [1, 2.5, "π", b"\xcf", None, {}]}, "reqId": "1", **OPTIONS},
    {"cmd": "PUSHB", "queue": "q", "jobs": [{"data": 1}, {"data": {}, "customId": "c", **OPTIONS}, 5], "reqId": 7},
    {"cmd": "PUSHF", "jobs": [FLOW_PARENT, {"id": "k", "queue": "c", "input": FLOW_CHILD}, {"id": 5, "input": 5}]},
    {"cmd": "PUSH", "queue": "c", **FLOW_CHILD, "reqId": "2"},
    {"cmd": "PULL", "queue": "q", "timeout": 1000, "owner": "w", "lockTtl": 5000.0, "detach": UNDEFINED},
    {"cmd": "PULLB", "queue": "q", "count": 10, "owner": 1},
    {"cmd": "ACK", "id": "a", "result": [2**40, -(2**40)], "token": "t"},
    {"cmd": "ACKB", "ids": ["a", "b"], "tokens": ["t", None], "results": [1, UNDEFINED]},
    {"cmd": "FAIL", "id": "a", "error": {"m": 1}, "stack": ["a", " "], "unrecoverable": 1},
    {"cmd": "JobHeartbeatB", "ids": ["a"], "tokens": [""]},
    {"cmd": "ExtendLocks", "ids": ["a"], "tokens": ["t"], "durations": [5]},
    {"cmd": "Progress", "id": "a", "progress": "50", "message": {"m": msgpack.Timestamp(5)}},
    {"cmd": "GetState", "id": {"a": [2**60]}, "reqId": [1, 2**50]},
    {"cmd": "SetStallConfig", "queue": "q", "config": {"enabled": True, "stallInterval": "5"}},
    {"cmd": "RegisterWorker", "name": "w", "queues": ["q"], "pid": 5, "startedAt": 2**41},
    {"cmd": 5, "reqId": {"a": b"b"}},
    [1, {"cmd": "PUSH"}],
]


def check(data: bytes) -> int:
    """Feed *data* as a connection would, once whole and once in pieces; return how many commands were accepted.

    Raises:
        Exception: whatever is neither a ProtocolError nor a CommandError, or an AssertionError: a defect.
    """
    whole, split = FrameBuffer(MAX_FRAME_BYTES), FrameBuffer(MAX_FRAME_BYTES)
    bodies = whole.feed(data)
    step = 1 + (data[-1] if data else 0)
    in_pieces = [body for start in range(0, len(data), step) for body in split.feed(data[start : start + step])]
    assert in_pieces == bodies
    assert (whole.fault is None) == (split.fault is None)
    return sum(check_body(body) for body in (*bodies, data))


def check_body(body: bytes) -> bool:
    """Decode and check one body; True if it is a command that the engine would see."""
    string_req_id(body)
    try:
        command = decode_command(body)
    except MalformedFrameError as refusal:
        check_payload(refusal.req_id or ABSENT)
        return False
    for payload in (command.req_id, getattr(command, "data", ABSENT), getattr(command, "result", ABSENT)):
        check_payload(payload)
    try:
        checked(command)
    except CommandError:
        return False
    encode_frame(StateReply(id=getattr(command, "id", None), req_id=command.req_id))
    return True


def check_payload(payload: Raw) -> None:
    """What leaves the codec must be canonical, and any client must be able to decode it."""
    assert canonical(payload) == payload
    to_python(payload)
    if payload:
        msgpack.unpackb(bytes(payload))  # raises where a client would


def make(dice: random.Random) -> bytes:
    """A stream of a few sample frames, most of them damaged."""
    frames = []
    for sample in dice.choices(SAMPLES, k=dice.randint(1, 3)):
        body = bytearray(msgpack.packb(sample))
        for _ in range(dice.choice((0, 0, 1, 2, 8))):
            damage(dice, body)
        frames.append(struct.pack(">I", len(body)) + body)
    return b"".join(frames)


def damage(dice: random.Random, body: bytearray) -> None:
    """Change, drop, double or insert some bytes."""
    start = dice.randrange(len(body) + 1)
    end = min(len(body), start + dice.randint(1, 4))
    kind = dice.randrange(4)
    if kind == 0:
        body[start:end] = dice.randbytes(end - start)
    elif kind == 1:
        del body[start:end]
    elif kind == 2:
        body[start:start] = body[start:end]
    else:
        heads = (0x80, 0x91, 0xC1, 0xC4, 0xCB, 0xCF, 0xD3, 0xD4, 0xD6, 0xDB, 0xDD, 0xDF, 0xFF)
        body.insert(start, dice.choice(heads))


if __name__ == "__main__":
    run("frames", check, make)
