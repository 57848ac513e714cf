"""Checks of what protocol 3 adds to the ends and moves of jobs.

Source: newer clients, "Finishing", "Moves of an active job".
"""

from collections.abc import Callable
from typing import Any, Final

from bunqueue_trio.errors import ValidationError
from bunqueue_trio.model import commands as c
from bunqueue_trio.protocol.fields import MAX_YEAR_MS, number, text_or_none


def check_removals(command: c.AckBatch) -> None:
    """``removeOnCompletes`` pairs up with ``ids``, which have been checked; whether each is true is seen later."""
    removals = command.remove_on_completes
    if removals is not None and (type(removals) is not list or len(removals) != len(command.ids)):
        raise ValidationError("ACKB removeOnCompletes length must match ids length")


def _check_move(command: c.Move) -> None:
    command.token = text_or_none("token", command.token)


def _check_delay(command: c.ChangeDelay | c.MoveToDelayed) -> None:
    command.delay = number("delay", command.delay, 0, MAX_YEAR_MS)
    _check_move(command)


CHECKS: Final[dict[type, Callable[[Any], None]]] = {
    c.ChangeDelay: _check_delay,
    c.MoveToDelayed: _check_delay,
    c.MoveToWait: _check_move,
    c.MoveToWaitingChildren: _check_move,
    c.Discard: _check_move,
}
"""What `wire.checked` does with each of these commands."""
