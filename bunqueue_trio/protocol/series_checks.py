"""Checks of Metrics about one queue.

Source: newer clients, 13 "Metrics".
"""

from collections.abc import Callable
from typing import Any, Final

from bunqueue_trio.errors import ValidationError
from bunqueue_trio.model import commands as c
from bunqueue_trio.protocol.fields import MAX_SAFE_INTEGER, pushed_queue

LAST: Final = -1
"""As ``end``: the oldest minute there is."""


def _check_metrics(command: c.Metrics) -> None:
    """Leaves a command without queue and type as it is: that one is about the server."""
    if command.queue is None and command.kind is None:
        return
    if type(command.queue) is not str:
        raise ValidationError("Metrics queue is required")
    command.queue = pushed_queue(command.queue)
    if command.kind not in ("completed", "failed"):
        raise ValidationError("Metrics type must be 'completed' or 'failed'")
    command.start = 0 if command.start is None else _index("start", command.start)
    is_last = command.end is None or (type(command.end) in (int, float) and command.end == LAST)
    command.end = LAST if is_last else _index("end", command.end)


def _index(name: str, value: Any) -> int:
    if type(value) is float and value.is_integer():
        value = int(value)
    if type(value) is not int or not 0 <= value <= MAX_SAFE_INTEGER:
        raise ValidationError(f"{name} must be a non-negative safe integer")
    return value


CHECKS: Final[dict[type, Callable[[Any], None]]] = {c.Metrics: _check_metrics}
