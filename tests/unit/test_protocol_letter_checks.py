"""The filter of Dlq and RetryDlq: what it asks for, what it refuses, and that its presence is told from its content."""

import msgpack
import pytest

from bunqueue_trio.errors import ValidationError
from bunqueue_trio.model import commands as c
from bunqueue_trio.model.entries import LetterFilter
from bunqueue_trio.protocol.codec import decode_command
from bunqueue_trio.protocol.wire import checked

UNDEFINED = msgpack.ExtType(0, b"\x00")


def sent(cmd: str = "Dlq", **fields: object):
    command = decode_command(msgpack.packb({"cmd": cmd, "queue": "q", **fields}))
    checked(command)
    return command


def wanted(**conditions: object) -> LetterFilter | None:
    found = sent(filter=conditions).selection
    assert sent("RetryDlq", filter=conditions).selection == found
    return found


def refusal(given: object, cmd: str = "Dlq") -> str:
    with pytest.raises(ValidationError) as refused:
        sent(cmd, filter=given)
    return str(refused.value)


@pytest.mark.parametrize(
    "given", [UNDEFINED, None, {}, {"reason": UNDEFINED, "limit": None}, {"queue": "x", "other": 1}]
)
@pytest.mark.parametrize("cmd", ["Dlq", "RetryDlq"])
def test_a_filter_that_asks_for_nothing_is_none_but_it_is_there(cmd, given):
    command = sent(cmd, filter=given)

    assert (command.selection, bool(command.filter)) == (None, True)


@pytest.mark.parametrize("cmd", ["Dlq", "RetryDlq"])
def test_without_the_key_there_is_nothing(cmd):
    command = sent(cmd)

    assert (command.selection, bool(command.filter)) == (None, False)


def test_presence_survives_the_tolerant_way():
    """A frame with a wide integer in an odd place, or bad UTF-8, is written anew."""
    body = msgpack.packb({"cmd": "Dlq", "queue": "q", "filter": UNDEFINED}) + b""
    odd = body[:1].replace(b"\x83", b"\x84") + body[1:] + b"\x05\x05"

    assert bool(decode_command(odd).filter)


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({"reason": "stalled"}, LetterFilter(reason="stalled")),
        ({"reason": ""}, LetterFilter(reason="")),
        ({"olderThan": 0}, LetterFilter(until=0)),
        ({"olderThan": 1_795_977_888_140}, LetterFilter(until=1_795_977_888_140.0)),
        ({"newerThan": 5.5}, LetterFilter(since=5.5)),
        ({"retriable": True, "expired": False}, LetterFilter(is_retriable=True)),
        ({"expired": 1}, LetterFilter(has_expired=True)),
        ({"offset": 2.9, "limit": 3.0}, LetterFilter(offset=2, limit=3)),
        ({"offset": 0, "limit": 0, "reason": "x"}, LetterFilter(reason="x")),
        ({"limit": 1e300}, LetterFilter(limit=2**32 - 1)),
    ],
)
def test_what_is_asked_for(given, found):
    assert wanted(**given) == found


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (5, "filter must be an object"),
        ("x", "filter must be an object"),
        ([], "filter must be an object"),
        (True, "filter must be an object"),
        ({"pad": "x" * 70_000}, "filter must be an object"),
        ({"reason": 5}, "filter.reason must be a string"),
        ({"olderThan": "x"}, "filter.olderThan must be a number"),
        ({"newerThan": True}, "filter.newerThan must be a number"),
        ({"olderThan": float("inf")}, "filter.olderThan must be a finite number"),
        ({"limit": -1}, "filter.limit must be at least 0"),
        ({"offset": "1"}, "filter.offset must be a number"),
    ],
)
@pytest.mark.parametrize("cmd", ["Dlq", "RetryDlq"])
def test_a_condition_that_is_not_understood_is_refused(cmd, given, text):
    """Given that passing over it would mean more letters, and RetryDlq would bring all of them back."""
    assert refusal(given, cmd) == text


def test_what_a_client_sends_under_the_names_of_the_server_has_no_effect():
    command = sent("Dlq", **{"(selection)": {"limit": 1}})

    assert command.selection is None


@pytest.mark.parametrize("kind", [c.GetDlqStats, c.RemoveDlqJob])
def test_a_queue_is_required_and_a_string(kind):
    with pytest.raises(ValidationError, match=r"^Queue name is required$"):
        checked(kind())
    with pytest.raises(ValidationError, match=r"^queue must be a string$"):
        checked(kind(queue=5))
