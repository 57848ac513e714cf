"""Checks of PUSHF: each job by itself. How the jobs hang together is `engine.flow_graph`.

The texts are those of the newer protocol and differ from those of PUSH; what the options mean does not.

Source: newer clients, 6.1.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from msgspec import Raw
from msgspec.structs import astuple

from bunqueue_trio.errors import ValidationError
from bunqueue_trio.model.commands import ABSENT, FlowEntry, FlowInput, FlowPlan, PushFlow
from bunqueue_trio.model.job import BackoffConfig
from bunqueue_trio.model.naming import check_name, is_map
from bunqueue_trio.protocol.fields import (
    MAX_DAY_MS,
    MAX_SAFE_INTEGER,
    MAX_YEAR_MS,
    Check,
    exceeds_units,
    pushed_queue,
)
from bunqueue_trio.protocol.flow_frames import MAX_JOBS, TOO_MANY
from bunqueue_trio.protocol.framing import MAX_FRAME_BYTES
from bunqueue_trio.protocol.group_checks import group_id, group_priority
from bunqueue_trio.protocol.kinship import named_kin
from bunqueue_trio.protocol.payloads import json_length_exceeds
from bunqueue_trio.protocol.push_checks import OPTION_DEFAULTS, OPTIONS_END, OPTIONS_START
from bunqueue_trio.protocol.values import js_text, wire_number

MAX_ID_UNITS = 1_024
MAX_TAG_UNITS = 256
MAX_DATA_BYTES = 64 * 1024 * 1024
JOB_MAP_BYTES = 1_100
"""What a job map of the reply takes beyond what the client has sent of it, at most; a test holds it to that."""
TOO_LARGE = "flow data is too large (max 64MB per atomic batch)"


def check_push_flow(command: PushFlow) -> None:
    """Check and normalise the jobs of a PUSHF, one by one.

    Cost: some 10 µs per job, once, however often the command is executed.
    """
    plan: FlowPlan = command.plan
    if plan.is_checked:
        return
    if plan.fault is not None:
        raise ValidationError(plan.fault)
    for entry in plan.jobs:
        if _input(entry).name is not ABSENT:
            check_name(_input(entry).name)
    if len(plan.jobs) > MAX_JOBS:
        raise ValidationError(TOO_MANY)
    known_ids: set[str] = set()
    data_bytes = 0
    for entry in plan.jobs:
        _check_entry(entry, known_ids)
        data_bytes += len(_input(entry).data)
        if data_bytes > MAX_DATA_BYTES:
            raise ValidationError(TOO_LARGE)
        _check_options(_input(entry))
    if plan.size_bytes + JOB_MAP_BYTES * len(plan.jobs) > MAX_FRAME_BYTES:
        # The reply brings all of it back, and must not turn out too long when everything is stored.
        raise ValidationError(TOO_LARGE)
    plan.is_checked = True


def _input(entry: FlowEntry) -> FlowInput:
    assert entry.input is not None
    return entry.input


# a job


def _check_entry(entry: FlowEntry, known_ids: set[str]) -> None:
    """Who it is, whom it names, and its data."""
    job_id = entry.id = _job_id(entry.id)
    if job_id in known_ids:
        raise ValidationError(f"duplicate flow job id: {job_id}")
    known_ids.add(job_id)
    entry.queue = _queue(entry.queue)
    options = _input(entry)
    if options.custom_id is not None and options.custom_id != job_id:
        raise ValidationError(f"custom id does not match planned id: {job_id}")
    if options.parent_id is not None and (type(options.parent_id) is not str or not options.parent_id):
        raise ValidationError(f"flow parent id is invalid: {job_id}")
    options.depends_on = _ids("dependsOn", options.depends_on)
    options.children_ids = _ids("childrenIds", options.children_ids)
    _check_data(options.data)
    entry.named_parent = entry.named_children = None
    if options.parent_id is not None or options.children_ids is not None:
        entry.named_parent, entry.named_children = named_kin(options.data)


def _job_id(value: Any) -> str:
    if type(value) is not str:
        raise ValidationError("flow job id must be a string")
    if not value or exceeds_units(value, MAX_ID_UNITS):
        raise ValidationError("flow job id is invalid or is not well-formed Unicode")
    if ":" in value:
        raise ValidationError("flow job id cannot contain a colon")
    return value


def _queue(value: Any) -> str:
    try:
        return pushed_queue(value)
    except ValidationError:
        raise ValidationError(f"invalid flow queue: {'undefined' if value is None else js_text(value)}") from None


def _ids(name: str, value: Any) -> list[str] | None:
    if value is None:
        return None
    if type(value) is not list or not all(type(item) is str and item for item in value):
        raise ValidationError(f"{name} must be an array of valid string job ids")
    return value or None


def _check_data(data: Raw) -> None:
    if not is_map(data):
        raise ValidationError("flow job data must be an object")
    if json_length_exceeds(data):
        raise ValidationError("Job data too large (max 10MB)")


# options


def _number(name: str, value: Any, low: int, high: int, *, is_whole: bool = False) -> float:
    if type(value) not in (int, float) or not math.isfinite(value):
        raise ValidationError(f"{name} must be a finite number")
    if is_whole and type(value) is float and not value.is_integer():
        raise ValidationError(f"{name} must be an integer")
    if not low <= value <= high:
        raise ValidationError(f"{name} must be between {low} and {high}")
    return wire_number(value)


def _backoff(value: Any) -> float | BackoffConfig:
    if type(value) is not dict and type(value) is not list:
        return _number("backoff", value, 0, MAX_DAY_MS)
    options = value if type(value) is dict else {}
    kind = options.get("type")
    if kind not in ("fixed", "exponential"):
        raise ValidationError("backoff.type must be 'fixed' or 'exponential'")
    if options.get("delay") is None:
        raise ValidationError("backoff.delay is required")
    delay = _number("backoff.delay", options["delay"], 0, MAX_DAY_MS)
    if options.get("maxDelay") is None:
        return BackoffConfig(kind, delay)
    return BackoffConfig(kind, delay, _number("backoff.maxDelay", options["maxDelay"], 0, MAX_DAY_MS))


def _boolean(name: str, value: Any) -> bool:
    if type(value) is not bool:
        raise ValidationError(f"{name} must be a boolean")
    return value


def _tags(value: Any) -> list[str]:
    is_good = type(value) is list and all(type(tag) is str and not exceeds_units(tag, MAX_TAG_UNITS) for tag in value)
    if not is_good:
        raise ValidationError("tags must be an array of strings of at most 256 characters")
    return value  # type: ignore[no-any-return]


def _unsupported(what: str, _value: Any) -> Any:
    raise ValidationError(f"{what} is not supported inside an atomic flow")


_CHECKS: Final[dict[str, Check]] = {
    "priority": partial(_number, "priority", low=-1_000_000, high=1_000_000, is_whole=True),
    "delay": partial(_number, "delay", low=0, high=MAX_YEAR_MS),
    "timeout": partial(_number, "timeout", low=0, high=MAX_DAY_MS),
    "ttl": partial(_number, "ttl", low=0, high=MAX_YEAR_MS),
    "max_attempts": partial(_number, "attempts", low=1, high=1_000, is_whole=True),
    "stall_timeout": partial(_number, "stallTimeout", low=0, high=MAX_DAY_MS),
    "stack_trace_limit": partial(_number, "stackTraceLimit", low=0, high=10_000, is_whole=True),
    "keep_logs": partial(_number, "keepLogs", low=0, high=1_000_000, is_whole=True),
    "size_limit": partial(_number, "sizeLimit", low=0, high=10_485_760, is_whole=True),
    "timestamp": partial(_number, "timestamp", low=0, high=MAX_SAFE_INTEGER),
    "group_max_size": partial(_number, "group.maxSize", low=1, high=MAX_SAFE_INTEGER, is_whole=True),
    "backoff": _backoff,
    "lifo": partial(_boolean, "lifo"),
    "remove_on_complete": partial(_boolean, "removeOnComplete"),
    "remove_on_fail": partial(_boolean, "removeOnFail"),
    "durable": partial(_boolean, "durable"),
    "fail_parent_on_failure": partial(_boolean, "failParentOnFailure"),
    "remove_dependency_on_failure": partial(_boolean, "removeDependencyOnFailure"),
    "continue_parent_on_failure": partial(_boolean, "continueParentOnFailure"),
    "ignore_dependency_on_failure": partial(_boolean, "ignoreDependencyOnFailure"),
    "group_id": group_id,
    "tags": _tags,
    "repeat": partial(_unsupported, "repeat"),
    "unique_key": partial(_unsupported, "deduplication"),
    "dedup": partial(_unsupported, "deduplication"),
    "debounce_id": partial(_unsupported, "debounce"),
    "debounce_ttl": partial(_unsupported, "debounce"),
}
"""In the order in which they are made; Wire: a client with two mistakes hears of the first."""

_FIELDS: Final = FlowInput.__struct_fields__
_ORDERED: Final = tuple((_FIELDS.index(name), name, check) for name, check in _CHECKS.items())
_POLICIES: Final = slice(_FIELDS.index("fail_parent_on_failure"), _FIELDS.index("ignore_dependency_on_failure") + 1)


def _check_options(options: FlowInput) -> None:
    values = astuple(options)
    for position, name, check in _ORDERED:
        value = values[position]
        if value is not None:
            if name == "priority" and options.group_id is not None:
                check = group_priority
            setattr(options, name, check(value))
    options.is_plain = values[OPTIONS_START:OPTIONS_END] == OPTION_DEFAULTS
    set_count = values[_POLICIES].count(True)
    if set_count > 1:
        raise ValidationError("flow failure policies are mutually exclusive")
    if set_count and options.parent_id is None:
        raise ValidationError("a flow failure policy requires a parent")


CHECKS: Final[dict[type, Callable[[Any], None]]] = {PushFlow: check_push_flow}
"""What `wire.checked` does with the command."""
