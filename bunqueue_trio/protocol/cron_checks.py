"""Checks of the commands about crons. What the expression and the zone mean is the engine's to say.

Source: scheduling and flows, "Validation, in this order"; SD-1.
"""

import math
from collections.abc import Callable
from typing import Any, Final

from bunqueue_trio.errors import ValidationError
from bunqueue_trio.model import commands as c
from bunqueue_trio.model.cron_job import CronOptions
from bunqueue_trio.model.naming import check_name
from bunqueue_trio.protocol.fields import MAX_SAFE_INTEGER, flag, number, pushed_queue, short, text, text_or_none
from bunqueue_trio.protocol.payloads import json_length_exceeds
from bunqueue_trio.protocol.push_checks import OPTION_CHECKS
from bunqueue_trio.protocol.values import is_truthy, wire_number

NEITHER: Final = "Cron job must have either schedule or repeatEvery"
BAD_INTERVAL: Final = "Cron repeatEvery must be a positive safe integer number of milliseconds"
# Texts of crons are kept in memory and shown in one list, ten thousand of them.
MAX_TEXT_LENGTH: Final = 1_024
MAX_SCHEDULE_LENGTH: Final = 8_192  # twice what an expression may have, which the engine says in its own words

_JOB_OPTIONS: Final = {
    "maxAttempts": "max_attempts",
    "backoff": "backoff",
    "timeout": "timeout",
    "delay": "delay",
    "stallTimeout": "stall_timeout",
    "removeOnComplete": "remove_on_complete",
    "removeOnFail": "remove_on_fail",
}
"""Those of a push that the jobs of a cron may have; any other key of ``jobOptions`` is ignored."""


def _check_cron(command: c.Cron) -> None:
    """Everything but the expression and the zone; null is absent, and ``preventOverlap`` stays None when absent."""
    if not is_truthy(command.schedule) and not is_truthy(command.repeat_every):
        raise ValidationError(NEITHER)
    if command.name is None or command.name == "":
        raise ValidationError("Cron name is required")
    short("name", text("name", command.name), MAX_TEXT_LENGTH)
    command.queue = pushed_queue(command.queue)
    command.schedule = short("schedule", text_or_none("schedule", command.schedule), MAX_SCHEDULE_LENGTH)
    if command.repeat_every is not None:
        command.repeat_every = _interval(command.repeat_every)
    command.timezone = short("timezone", text_or_none("timezone", command.timezone), MAX_TEXT_LENGTH)
    command.priority = 0 if command.priority is None else OPTION_CHECKS["priority"](command.priority)
    command.max_limit = _limit(command.max_limit)
    command.unique_key = short("uniqueKey", text_or_none("uniqueKey", command.unique_key), MAX_TEXT_LENGTH)
    command.dedup = None if command.dedup is None else OPTION_CHECKS["dedup"](command.dedup)
    command.job_options = _options(command.job_options)
    command.immediately = flag(command.immediately)
    command.prevent_overlap = None if command.prevent_overlap is None else flag(command.prevent_overlap)
    command.skip_missed_on_restart = command.skip_missed_on_restart is None or flag(command.skip_missed_on_restart)
    command.skip_if_no_worker = flag(command.skip_if_no_worker)
    if json_length_exceeds(command.data):
        raise ValidationError("Job data too large (max 10MB)")
    if command.job_name is not None:
        check_name(command.job_name)


def _interval(value: Any) -> float:
    is_number = type(value) is int or (type(value) is float and value.is_integer())
    if not is_number or not 1 <= value <= MAX_SAFE_INTEGER:
        raise ValidationError(BAD_INTERVAL)
    return wire_number(value)


def _limit(value: Any) -> float | None:
    """How often it may run; 0 and less mean that there is no limit."""
    if value is None:
        return None
    limit = number("maxLimit", value, -math.inf)
    return wire_number(math.ceil(limit)) if limit > 0 else None


def _options(value: Any) -> CronOptions | None:
    if value is None or type(value) is CronOptions:
        return value
    if type(value) is not dict:
        raise ValidationError("jobOptions must be an object")
    found: dict[str, Any] = {}
    for wire_name, name in _JOB_OPTIONS.items():
        item = value.get(wire_name)
        if item is not None:
            try:
                found[name] = OPTION_CHECKS[name](item)
            except ValidationError as error:
                raise ValidationError(f"jobOptions.{error}") from None
    return CronOptions(**found)


def _check_name(command: c.CronGet | c.CronDelete) -> None:
    """Any name may be asked for; what is no string names no cron."""
    command.name = command.name if type(command.name) is str else None


CHECKS: Final[dict[type, Callable[[Any], None]]] = {
    c.Cron: _check_cron,
    c.CronGet: _check_name,
    c.CronDelete: _check_name,
}
