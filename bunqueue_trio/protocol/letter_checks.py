"""Checks of the commands about dead letters, and the filter that says which of them are meant.

Source: newer clients, 12; NC-8.
"""

import math
from collections.abc import Callable
from typing import Any, Final

import msgspec
from msgspec import Raw

from bunqueue_trio.errors import ValidationError
from bunqueue_trio.model import commands as c
from bunqueue_trio.model.entries import NO_FILTER, LetterFilter
from bunqueue_trio.protocol.fields import any_queue, flag, number, text
from bunqueue_trio.protocol.payloads import UNDECODABLE, undefined_is_none
from bunqueue_trio.protocol.values import INT_MAX

MAX_FILTER_BYTES: Final = 65_536  # its keys are few and small; whatever else is in there is not even read
_NO_OBJECT: Final = "filter must be an object"
_decode = msgspec.msgpack.Decoder(ext_hook=undefined_is_none).decode


def take_filter(command: c.Dlq | c.RetryDlq) -> None:
    """Put the filter of *command* into its ``selection``: None for null, undefined, and one that asks for nothing.

    A condition of the wrong type is refused: to pass over it would mean more letters than were asked for.
    """
    command.selection = _filter_of(command.filter) if command.filter else None


def _filter_of(raw: Raw) -> LetterFilter | None:
    if len(raw) > MAX_FILTER_BYTES:
        raise ValidationError(_NO_OBJECT)
    try:
        given = _decode(raw)
    except UNDECODABLE:
        raise ValidationError(_NO_OBJECT) from None
    if given is None:
        return None
    if type(given) is not dict:
        raise ValidationError(_NO_OBJECT)
    found = LetterFilter(
        reason=None if given.get("reason") is None else text("filter.reason", given["reason"]),
        until=_moment("olderThan", given),
        since=_moment("newerThan", given),
        is_retriable=flag(given.get("retriable")),
        has_expired=flag(given.get("expired")),
        offset=_count("offset", given) or 0,
        limit=_count("limit", given) or None,
    )
    return None if found == NO_FILTER else found


def _moment(name: str, given: dict[str, Any]) -> float | None:
    value = given.get(name)
    return None if value is None else number(f"filter.{name}", value, -math.inf)


def _count(name: str, given: dict[str, Any]) -> int | None:
    """A whole number; fractions round down (CD-4)."""
    value = given.get(name)
    return None if value is None else min(math.floor(number(f"filter.{name}", value, 0)), INT_MAX)


def _check_queue(command: c.GetDlqStats | c.RemoveDlqJob) -> None:
    """An id of another type is that of no job."""
    command.queue = any_queue(command.queue)


CHECKS: Final[dict[type, Callable[[Any], None]]] = {
    c.GetDlqStats: _check_queue,
    c.RemoveDlqJob: _check_queue,
}
