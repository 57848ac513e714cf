"""Fuzz target: bodies of HTTP requests. Only a refusal may come out; what is taken comes back as it was."""

from __future__ import annotations

import json
import random
from typing import Any

import msgspec
from harness import Choices, instrumented, run
from werkzeug.datastructures import MultiDict

with instrumented():
    from bunqueue_trio.errors import CommandError
    from bunqueue_trio.model.replies import ResultReply
    from bunqueue_trio.protocol.codec import encode_frame
    from bunqueue_trio.protocol.json_bodies import command_of, json_of, object_of, value_of
    from bunqueue_trio.protocol.payloads import from_python
    from bunqueue_trio.protocol.wire import checked
    from bunqueue_trio.web.routes import ROUTES, Asked, Body

READING = [route for route in ROUTES if route.body is not Body.UNREAD and not route.look]
KEYS = (
    "data",
    "id",
    "ids",
    "token",
    "tokens",
    "results",
    "priority",
    "delay",
    "jobs",
    "name",
    "queue",
    "limit",
    "config",
)
KEYS += ("cmd", "reqId", "$binary", "timeout", "repeatEvery", "schedule", "url", "events", "durable", "dedup", "error")
PARAMETERS = ("queue", "id", "name", "state")


def check(data: bytes) -> int:
    """Give a body to a route; returns 1 when it made a command that is carried out.

    Raises:
        Exception: whatever is no refusal; an AssertionError for a value that comes back changed.
    """
    choices = Choices(data[:4])
    route = choices.pick(READING)
    body = data[2:]
    try:
        value = value_of(body)
    except CommandError:
        return 0
    _check_way_back(value)
    try:
        asked = Asked(dict.fromkeys(PARAMETERS, "q"), MultiDict({"limit": "5"}), object_of(body), len(body))
        command: Any = command_of(str(route.kind.__struct_config__.tag), route.fields_of(asked))
        checked(command)
    except CommandError:
        return 0
    return 1


def _check_way_back(value: Any) -> None:
    """What JSON has brought in leaves as JSON that, sent again, is stored and leaves the same."""
    try:
        first = from_python(value)
    except CommandError:
        return
    shown = json_of(msgspec.msgpack.encode(ResultReply(result=first)))
    second = from_python(value_of(shown)["result"])
    assert json_of(msgspec.msgpack.encode(ResultReply(result=second))) == shown, value
    encode_frame(ResultReply(result=first))


def make(dice: random.Random) -> bytes:
    """A body of likely keys, now and then damaged."""
    choices = Choices(dice.randbytes(400))
    fields = {dice.choice(KEYS): _json_value(choices) for _ in range(dice.randrange(6))}
    text = bytearray(json.dumps(fields).encode())
    if not dice.randrange(4):
        text[dice.randrange(len(text))] = dice.randrange(256)
    return dice.randbytes(2) + bytes(text)


def _json_value(choices: Choices) -> Any:
    value = choices.value()
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return {"$binary": "AAEC"}
    return value


if __name__ == "__main__":
    run("http", check, make)
