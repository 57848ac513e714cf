"""Checks of the commands about events: the texts of the spec. Source: newer clients, "Events", "TrimEvents"."""

import math

import msgpack
import pytest

from bunqueue_trio.errors import ValidationError
from bunqueue_trio.protocol.codec import decode_command
from bunqueue_trio.protocol.wire import checked

UNDEFINED = msgpack.ExtType(0, b"\0")
QUEUES = [
    (None, "Queue name is required"),
    (UNDEFINED, "Queue name is required"),
    ("", "Queue name is required"),
    ("a b", "Queue name contains invalid characters"),
    (7, "Queue name contains invalid characters"),
    ("x" * 257, "Queue name too long (max 256 characters)"),
]
LENGTH = "maxLength must be a non-negative safe integer"


def sent(cmd, **fields):
    command = decode_command(msgpack.packb({"cmd": cmd, **fields}))
    checked(command)
    checked(command)  # it may be executed again
    return command


def refusal(cmd, **fields):
    with pytest.raises(ValidationError) as caught:
        sent(cmd, **fields)
    return str(caught.value)


@pytest.mark.parametrize("cmd", ["SubscribeEvents", "TrimEvents"])
@pytest.mark.parametrize(("queue", "text"), QUEUES)
def test_the_queue_is_checked_as_that_of_a_pull(cmd, queue, text):
    assert refusal(cmd, queue=queue, maxLength=-1) == text


def test_a_good_queue_passes():
    assert sent("SubscribeEvents", queue="mail:eu.1-a_b").queue == "mail:eu.1-a_b"


@pytest.mark.parametrize("length", [-1, 1.5, 2**53, 1e300, math.nan, math.inf, "5", True, None, UNDEFINED, [], {}])
def test_a_length_that_is_no_safe_whole_number_is_refused(length):
    assert refusal("TrimEvents", queue="q", maxLength=length) == LENGTH


@pytest.mark.parametrize("length", [0, 0.0, 5, 5.0, 2**53 - 1])
def test_a_safe_whole_number_passes(length):
    assert sent("TrimEvents", queue="q", maxLength=length).max_length == length


def test_unsubscribing_has_nothing_to_check():
    sent("UnsubscribeEvents", queue=7)
