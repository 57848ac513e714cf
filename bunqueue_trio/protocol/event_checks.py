"""What the commands about events must satisfy.

Source: newer clients, "Events", "Limits, keys, metrics".
"""

from collections.abc import Callable
from typing import Any, Final

from bunqueue_trio.errors import ValidationError
from bunqueue_trio.model import commands as c
from bunqueue_trio.protocol.fields import MAX_SAFE_INTEGER, pushed_queue


def _check_subscribe(command: c.SubscribeEvents) -> None:
    command.queue = pushed_queue(command.queue)


def _check_trim(command: c.TrimEvents) -> None:
    command.queue = pushed_queue(command.queue)
    length = command.max_length
    is_whole = type(length) is int or (type(length) is float and length.is_integer())
    if not is_whole or not 0 <= length <= MAX_SAFE_INTEGER:
        raise ValidationError("maxLength must be a non-negative safe integer")


CHECKS: Final[dict[type, Callable[[Any], None]]] = {
    c.SubscribeEvents: _check_subscribe,
    c.TrimEvents: _check_trim,
}
