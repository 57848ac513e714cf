"""Checks of the commands of those who watch: logs of jobs and dashboards.

Ids are not checked here: one that is no string names no job (commands 1). Level and message of a log line may be of any
type; as payloads they are canonical already.
"""

import math
from collections.abc import Callable
from typing import Any, Final

from bunqueue_trio.errors import ValidationError
from bunqueue_trio.model import commands as c
from bunqueue_trio.protocol.fields import any_queue, flag, number, number_of_text
from bunqueue_trio.protocol.values import INT_MAX, INT_MIN

MAX_LINE_BYTES = 262_144  # a hundred of them fit into one reply
DEFAULT_JOBS_LISTED = 10
MAX_JOBS_LISTED = 50


def _whole(name: str, value: Any) -> int | None:
    """A whole number within 32 bits: fractions rounded down (CD-4), text converted, None for what is absent."""
    if value is None:
        return None
    if type(value) is str:
        value = number_of_text(value)
    return math.floor(min(max(number(name, value, -math.inf), INT_MIN), INT_MAX))


def _check_add_log(command: c.AddLog) -> None:
    if len(command.message) + len(command.level) > MAX_LINE_BYTES:
        raise ValidationError("Log message too large (max 256KB)")


def _check_get_logs(command: c.GetLogs) -> None:
    command.start = _whole("start", command.start)
    command.end = _whole("end", command.end)


def _check_clear_logs(command: c.ClearLogs) -> None:
    command.keep_logs = max(0, _whole("keepLogs", command.keep_logs) or 0)


def _check_dashboard_queue(command: c.DashboardQueue) -> None:
    command.queue = any_queue(command.queue)
    command.include_jobs = flag(command.include_jobs)
    limit = _whole("jobsLimit", command.jobs_limit)
    command.jobs_limit = DEFAULT_JOBS_LISTED if limit is None else min(max(limit, 0), MAX_JOBS_LISTED)


CHECKS: Final[dict[type, Callable[[Any], None]]] = {
    c.AddLog: _check_add_log,
    c.GetLogs: _check_get_logs,
    c.ClearLogs: _check_clear_logs,
    c.DashboardQueue: _check_dashboard_queue,
}
