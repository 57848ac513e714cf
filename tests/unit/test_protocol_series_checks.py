"""Checks of Metrics: which of its two forms is meant, and the texts of the one about a queue."""

import msgpack
import pytest

from bunqueue_trio.errors import ValidationError
from bunqueue_trio.protocol.codec import decode_command
from bunqueue_trio.protocol.wire import checked

UNDEFINED = msgpack.ExtType(0, b"\x00")


def sent(**fields: object):
    command = decode_command(msgpack.packb({"cmd": "Metrics", **fields}))
    checked(command)
    checked(command)
    return command


@pytest.mark.parametrize("fields", [{}, {"queue": UNDEFINED, "type": UNDEFINED}, {"start": -5, "end": "x"}])
def test_without_queue_and_type_the_server_is_meant(fields):
    assert sent(**fields).kind is None


@pytest.mark.parametrize(
    ("fields", "start", "end"),
    [
        ({}, 0, -1),
        ({"start": 3, "end": 7}, 3, 7),
        ({"start": 3.0, "end": 7.0}, 3, 7),
        ({"start": UNDEFINED, "end": None}, 0, -1),
        ({"end": -1}, 0, -1),
        ({"end": 2**53 - 1}, 0, 2**53 - 1),
    ],
)
def test_a_range(fields, start, end):
    command = sent(queue="q", type="failed", **fields)

    assert (command.queue, command.kind, command.start, command.end) == ("q", "failed", start, end)


START, END = "start must be a non-negative safe integer", "end must be a non-negative safe integer"
TYPE = "Metrics type must be 'completed' or 'failed'"


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"type": "failed"}, "Metrics queue is required"),
        ({"queue": 5, "type": "x"}, "Metrics queue is required"),
        ({"queue": "", "type": "failed"}, "Queue name is required"),
        ({"queue": "a b", "type": "x"}, "Queue name contains invalid characters"),
        ({"queue": "q"}, TYPE),
        ({"queue": "q", "type": "active", "start": -1}, TYPE),
        ({"queue": "q", "type": ["failed"]}, TYPE),
        ({"queue": "q", "type": "failed", "start": -1, "end": -2}, START),
        ({"queue": "q", "type": "failed", "start": 1.5}, START),
        ({"queue": "q", "type": "failed", "start": True}, START),
        ({"queue": "q", "type": "failed", "start": 2**53}, START),
        ({"queue": "q", "type": "failed", "end": -2}, END),
        ({"queue": "q", "type": "failed", "end": "1"}, END),
        ({"queue": "q", "type": "failed", "end": float("nan")}, END),
    ],
)
def test_what_is_refused(fields, text):
    with pytest.raises(ValidationError) as refused:
        sent(**fields)
    assert str(refused.value) == text
