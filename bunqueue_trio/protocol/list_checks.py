"""Checks of GetJobs, GetCountsPerPriority and Clean.

Source: commands, 3 and 6; CD-1, CD-4, CD-12.
"""

import math
from collections.abc import Callable
from typing import Any, Final

from msgspec import Raw

from bunqueue_trio.errors import ValidationError
from bunqueue_trio.model import commands as c
from bunqueue_trio.protocol.fields import any_queue, number, number_of_text
from bunqueue_trio.protocol.payloads import UNDECODABLE, to_python

DEFAULT_PAGE: Final = 100
DEFAULT_CLEAN: Final = 1_000
COUNT_MAX: Final = 1 << 53  # more than there can be jobs; keeps sums within a word


def _count(name: str, value: Any) -> int:
    """A whole number out of whatever a client writes for one: fractions round down, texts are converted (CD-4)."""
    if type(value) is str:
        value = number_of_text(value)
    if (type(value) is not int and type(value) is not float) or math.isnan(value):
        raise ValidationError(f"{name} must be a number")
    return math.floor(max(-1, min(value, COUNT_MAX)))


def _check_get_jobs(command: c.GetJobs) -> None:
    """Leaves in ``state`` None for all states, a name, or a list of names; in ``limit`` -1 for no limit."""
    command.queue = any_queue(command.queue)
    asked = command.state
    if type(asked) is list:
        command.state = [name if type(name) is str else "" for name in asked] or None
    elif not asked:
        command.state = None
    elif type(asked) is not str:
        raise ValidationError("state must be a string or an array")
    command.offset = 0 if command.offset is None else max(0, _count("offset", command.offset))
    command.limit = DEFAULT_PAGE if command.limit is None else _count("limit", command.limit)
    if command.asc is not c.ABSENT and type(command.asc) is not bool:
        command.asc = not _is_false(command.asc)


def _is_false(raw: Raw) -> bool:
    """Whether it is false or 0. Wire: everything else lists the oldest jobs first."""
    try:
        value = to_python(raw)
    except UNDECODABLE:
        return False
    return type(value) in (bool, int, float) and not value


def _check_queue(command: c.GetCountsPerPriority) -> None:
    command.queue = any_queue(command.queue)


def _check_clean(command: c.Clean) -> None:
    """Leaves in ``state`` None only where none was given: what is no name of a state selects nothing."""
    command.queue = any_queue(command.queue)
    if command.grace is None:
        raise ValidationError("grace is required")
    command.grace = number("grace", command.grace, 0)
    if command.state is not None and type(command.state) is not str:
        command.state = ""
    command.limit = DEFAULT_CLEAN if command.limit is None else max(0, _count("limit", command.limit))


CHECKS: Final[dict[type, Callable[[Any], None]]] = {
    c.GetJobs: _check_get_jobs,
    c.GetCountsPerPriority: _check_queue,
    c.Clean: _check_clean,
}
"""A check per command, for `wire.checked`."""
