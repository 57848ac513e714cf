"""Checks of single fields, with the spec's texts. Each returns the normalised value or raises ValidationError."""

import math
import re
from collections.abc import Callable
from typing import Any, Final

from msgspec import UNSET

from bunqueue_trio.errors import ValidationError
from bunqueue_trio.model.commands import ABSENT
from bunqueue_trio.protocol.values import is_truthy, wire_number

Check = Callable[[Any], Any]

MAX_DAY_MS = 86_400_000
MAX_YEAR_MS = 31_536_000_000
MAX_SAFE_INTEGER = 2**53 - 1  # the largest whole number that every client language holds exactly
MAX_QUEUE_UNITS = 256

_is_good_queue: Final = re.compile(r"[A-Za-z0-9_\-.:]+").fullmatch
_is_decimal: Final = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII).fullmatch
known_queues: Final[dict[str, None]] = {}
"""Names that have passed lately."""
_KNOWN_QUEUES_MAX = 1_024


def number(name: str, value: Any, low: float, high: int | None = None, *, is_whole: bool = False) -> float:
    """*value* as a number of the wire within its bounds, which are inclusive (4.1).

    Integers of any form count by value; bool is no number.
    """
    kind = type(value)
    if kind is float:
        if not math.isfinite(value):
            raise ValidationError(f"{name} must be a finite number")
        if is_whole and not value.is_integer():
            raise ValidationError(f"{name} must be an integer")
    elif kind is not int:
        raise ValidationError(f"{name} must be a number")
    if value < low:
        raise ValidationError(f"{name} must be at least {low}")
    if high is not None and value > high:
        raise ValidationError(f"{name} must be at most {high}")
    return wire_number(value)


def number_of_text(value: str) -> float | None:
    """A decimal number written as text, as JavaScript would read it; None for any other text."""
    stripped = value.strip()
    if not _is_decimal(stripped):
        return None
    converted = float(stripped)
    return wire_number(converted) if math.isfinite(converted) else None


def finite(value: Any) -> float | None:
    """What JavaScript's number conversion makes of *value*, or None where that is no finite number."""
    if isinstance(value, str):
        return number_of_text(value)
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, int | float) and math.isfinite(value):
        return wire_number(value)
    return None


def counted(value: Any) -> Any:
    """How many: UNSET for all; null and what is no positive number are 0; fractions round down."""
    if value is ABSENT or value is UNSET:
        return UNSET
    converted = finite(value)
    return 0 if converted is None else max(0, math.floor(converted))


def exceeds_units(value: str, most: int) -> bool:
    """Whether a text is longer than *most* UTF-16 units."""
    return len(value) > most or (2 * len(value) > most and len(value) + sum(char > "\uffff" for char in value) > most)


class ValidConfig(dict[str, Any]):
    """A policy's keys that have been checked, under our names: a command that is executed again keeps them."""


def text(name: str, value: Any) -> str:
    """*value*, which must be a string."""
    if type(value) is not str:
        raise ValidationError(f"{name} must be a string")
    return value


def text_or_none(name: str, value: Any) -> str | None:
    """A string, or None for null and the empty string: tokens, ids and keys mean the same by them."""
    return (text(name, value) or None) if value is not None else None


def short(name: str, value: str | None, longest: int) -> str | None:
    """*value*, of at most *longest* characters: it is kept, and shown in lists with many others."""
    if value is not None and len(value) > longest:
        raise ValidationError(f"{name} too long (max {longest} characters)")
    return value


def array(name: str, value: Any) -> list[Any]:
    """*value*, which must be a list."""
    if type(value) is not list:
        raise ValidationError(f"{name} must be an array")
    return value


def texts(name: str, value: Any) -> list[str]:
    """A list of strings."""
    for index, item in enumerate(array(name, value)):
        if type(item) is not str:
            raise ValidationError(f"{name}[{index}] must be a string")
    return value  # type: ignore[no-any-return]


def flag(value: Any) -> bool:
    """Truth as JavaScript sees it: 1, "false" and {} are true."""
    return value if type(value) is bool else is_truthy(value)


def pushed_queue(value: Any) -> str:
    """The name of a queue, by the rules of pushes and pulls (4.1).

    Cost: names that passed lately are remembered, a bounded number of them.
    """
    if type(value) is str:
        if value in known_queues:
            return value
        if value:
            _check_queue_name(value)
            if len(known_queues) >= _KNOWN_QUEUES_MAX:
                known_queues.clear()
            known_queues[value] = None
            return value
    elif is_truthy(value):
        raise ValidationError("Queue name contains invalid characters")
    raise ValidationError("Queue name is required")


def _check_queue_name(value: str) -> None:
    if len(value) > MAX_QUEUE_UNITS or sum(2 if char > "\uffff" else 1 for char in value) > MAX_QUEUE_UNITS:
        raise ValidationError(f"Queue name too long (max {MAX_QUEUE_UNITS} characters)")
    if not _is_good_queue(value):
        raise ValidationError("Queue name contains invalid characters")


def any_queue(value: Any) -> str:
    """The name of a queue for commands that take any string, also an empty one."""
    if value is None:
        raise ValidationError("Queue name is required")
    return text("queue", value)
