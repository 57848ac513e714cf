"""Checks of the commands that empty a queue, run its completed jobs again, or set the policy about its dead letters."""

import math
from collections.abc import Callable
from typing import Any, Final

from bunqueue_trio.model import commands as c
from bunqueue_trio.protocol.fields import ValidConfig, any_queue, counted, number, number_of_text, text_or_none
from bunqueue_trio.protocol.values import wire_number

MAX_INTERVAL_MS = 31_536_000_000  # a year
MAX_AGE_MS = 315_360_000_000  # ten years; null says for ever
MAX_RETRIES = 1_000_000
MAX_ENTRIES = 1_000_000  # dead letters are kept in memory


def _check_queue(command: Any) -> None:
    command.queue = any_queue(command.queue)


def _check_retry_completed(command: c.RetryCompleted) -> None:
    """Without an id, which is also what null and the empty string say, all completed jobs are meant."""
    command.queue = any_queue(command.queue)
    command.id = text_or_none("id", command.id)
    command.count = counted(command.count)
    if command.timestamp is not None:
        command.timestamp = number("timestamp", command.timestamp, 0)


def _number_within(value: Any, low: float, high: float) -> float | None:
    """A number, or a text that reads as one, within its bounds; None for anything else."""
    if type(value) is str:
        value = number_of_text(value)
    if (type(value) is int or type(value) is float) and low <= value <= high:
        return wire_number(value)
    return None


def _max_entries(value: Any) -> int | None:
    """At least 1, whatever was asked for (CD-16); None for what is no number."""
    if type(value) is str:
        value = number_of_text(value)
        if value is None:
            return None
    if value is None:
        return 1
    if type(value) not in (int, float) or math.isnan(value) or value > MAX_ENTRIES:
        return None
    return max(1, math.floor(value)) if value >= 1 else 1


def _check_dlq_config(command: c.SetDlqConfig) -> None:
    """Leave in ``config`` what is valid, under the names of `DlqPolicy`; drop the rest without a word (CD-1)."""
    command.queue = any_queue(command.queue)
    if type(command.config) is ValidConfig:
        return
    given = command.config if type(command.config) is dict else {}
    found: dict[str, Any] = {
        "auto_retry_interval": _number_within(given.get("autoRetryInterval"), 1, MAX_INTERVAL_MS),
        "max_auto_retries": _number_within(given.get("maxAutoRetries"), 0, MAX_RETRIES),
        "max_age": _number_within(given.get("maxAge"), 0, MAX_AGE_MS),
        "max_entries": _max_entries(given["maxEntries"]) if "maxEntries" in given else None,
    }
    valid = {name: value for name, value in found.items() if value is not None}
    if type(given.get("autoRetry")) is bool:
        valid["auto_retry"] = given["autoRetry"]
    if "maxAge" in given and given["maxAge"] is None:
        valid["max_age"] = None
    command.config = ValidConfig(valid)


CHECKS: Final[dict[type, Callable[[Any], None]]] = {
    c.Drain: _check_queue,
    c.Obliterate: _check_queue,
    c.RetryCompleted: _check_retry_completed,
    c.SetDlqConfig: _check_dlq_config,
    c.GetDlqConfig: _check_queue,
}
