"""Checks of PUSH and PUSHB: the job data and thirty options, in the spec's order and wording (4.1, 4.2, P-9)."""

from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

from msgspec.structs import astuple

from bunqueue_trio.errors import ValidationError
from bunqueue_trio.model.commands import ABSENT, Push, PushBatch, PushEntry, PushOptions
from bunqueue_trio.model.job import BackoffConfig, Dedup, RepeatConfig
from bunqueue_trio.model.naming import check_name
from bunqueue_trio.protocol.fields import (
    MAX_DAY_MS,
    MAX_SAFE_INTEGER,
    MAX_YEAR_MS,
    Check,
    flag,
    known_queues,
    number,
    pushed_queue,
    text,
    text_or_none,
    texts,
)
from bunqueue_trio.protocol.group_checks import group_id, group_priority
from bunqueue_trio.protocol.kinship import parent_link
from bunqueue_trio.protocol.payloads import json_length_exceeds
from bunqueue_trio.protocol.tolerant import NOT_AN_OBJECT

_Checks = tuple[tuple[int, str, Check], ...]  # position among the fields, name, check

SEEN_PLAIN: Final = object()
"""Put into ``is_plain`` by the codec when the frame itself shows that there is nothing to check."""


class BatchEntryError(ValidationError):
    """An entry of a PUSHB is refused. The entries in front of it have passed and are normalised.

    Attributes:
        index: position of the entry.
    """

    def __init__(self, index: int, text: str) -> None:
        super().__init__(f"jobs[{index}]: {text}")
        self.index = index


def check_push(command: Push) -> None:
    """Check and normalise a PUSH. Its name is checked last of all, when its dependencies have been (`Admission`)."""
    if command.is_plain is SEEN_PLAIN and command.queue in known_queues and 0 < len(command.data) <= _SMALL_DATA_BYTES:
        command.is_plain = True
        return
    command.queue = pushed_queue(command.queue)
    _check_data(command)
    values = astuple(command)
    command.is_plain = values[OPTIONS_START:OPTIONS_END] == OPTION_DEFAULTS
    if not command.is_plain:
        _check_options(command, values, _PUSH_CHECKS, _GROUPED_PUSH_CHECKS)
        return
    if command.durable is not None:
        command.durable = _durable(command.durable)
    if command.job_id is not None:
        command.job_id = text_or_none("jobId", command.job_id)
    if command.receipt is not None:
        command.receipt = flag(command.receipt)


def check_push_batch(command: PushBatch) -> None:
    """Check and normalise a PUSHB, entry by entry.

    Raises:
        BatchEntryError: the first entry that is refused.
    """
    command.queue = pushed_queue(command.queue)
    if command.jobs is None:
        raise ValidationError("jobs must be an array")
    if command.receipt is not None:
        command.receipt = flag(command.receipt)
    for index, entry in enumerate(command.jobs):
        try:
            _check_entry(entry)
        except ValidationError as error:
            raise BatchEntryError(index, str(error)) from None


def _check_entry(entry: PushEntry) -> None:
    if entry is NOT_AN_OBJECT:
        raise ValidationError("Job must be an object")
    if entry.name is not ABSENT:
        check_name(entry.name)
    _check_data(entry)
    values = astuple(entry)
    entry.is_plain = values[OPTIONS_START:OPTIONS_END] == OPTION_DEFAULTS
    if not entry.is_plain:
        _check_options(entry, values, _ENTRY_CHECKS, _GROUPED_ENTRY_CHECKS)
        return
    if entry.durable is not None:
        entry.durable = _durable(entry.durable)
    if entry.custom_id is not None:
        entry.custom_id = text_or_none("customId", entry.custom_id)


def _check_data(options: PushOptions) -> None:
    size = len(options.data)
    if not size and options.name is ABSENT:
        raise ValidationError("Job data is required")
    if size > _SMALL_DATA_BYTES and json_length_exceeds(options.data):
        raise ValidationError("Job data too large (max 10MB)")


def _check_options(options: PushOptions, values: tuple[Any, ...], checks: _Checks, grouped: _Checks) -> None:
    """*grouped* are the checks of members of named groups, whose priority has other bounds."""
    if options.name is not ABSENT and options.group_id is not None:
        options.group_id = group_id(options.group_id)
        checks = grouped
    for position, name, check in checks:
        value = values[position]
        if value is not None:
            setattr(options, name, check(value))
    options.link = None if options.parent_id is None else parent_link(options)


def _durable(value: Any) -> bool | str:
    return "fsync" if value == "fsync" else flag(value)


def _backoff(value: Any) -> float | BackoffConfig:
    if type(value) is BackoffConfig:
        return value
    if type(value) is list:
        value = {}
    if type(value) is not dict:
        return number("backoff", value, 0, MAX_DAY_MS)
    kind = value.get("type")
    if kind not in ("fixed", "exponential"):
        raise ValidationError("backoff.type must be 'fixed' or 'exponential'")
    if value.get("delay") is None:
        raise ValidationError("backoff.delay is required")
    delay = number("backoff.delay", value["delay"], 0, MAX_DAY_MS)
    max_delay = value.get("maxDelay")
    if max_delay is None:
        return BackoffConfig(kind, delay)
    return BackoffConfig(kind, delay, number("backoff.maxDelay", max_delay, 0, MAX_DAY_MS))


def _depends_on(value: Any) -> list[str] | None:
    return list(dict.fromkeys(texts("dependsOn", value))) or None


def _dedup(value: Any) -> Dedup:
    if type(value) is Dedup:
        return value
    if type(value) is not dict:
        raise ValidationError("dedup must be an object")
    ttl = value.get("ttl")
    return Dedup(
        None if ttl is None else number("dedup.ttl", ttl, 0, MAX_SAFE_INTEGER),
        flag(value.get("extend")),
        flag(value.get("replace")),
    )


def _date(name: str, value: Any) -> float:
    """A moment in epoch ms, sent as a number, as a timestamp, or as ISO text (without a zone: UTC)."""
    if type(value) is str:
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            raise ValidationError(f"{name} must be a date") from None
    if isinstance(value, datetime):
        aware = value if value.tzinfo else value.replace(tzinfo=UTC)
        return number(name, aware.timestamp() * 1000, 0, MAX_SAFE_INTEGER)
    return number(name, value, 0, MAX_SAFE_INTEGER)


_REPEAT_CHECKS: Final[dict[str, tuple[str, Check]]] = {
    "every": ("every", partial(number, "repeat.every", low=0, high=MAX_SAFE_INTEGER)),
    "limit": ("limit", partial(number, "repeat.limit", low=0)),
    "pattern": ("pattern", partial(text, "repeat.pattern")),
    "count": ("count", partial(number, "repeat.count", low=0)),
    "startDate": ("start_date", partial(_date, "repeat.startDate")),
    "endDate": ("end_date", partial(_date, "repeat.endDate")),
    "tz": ("tz", partial(text, "repeat.tz")),
    "immediately": ("immediately", flag),
    "prevMillis": ("prev_millis", partial(number, "repeat.prevMillis", low=0, high=MAX_SAFE_INTEGER)),
    "offset": ("offset", partial(number, "repeat.offset", low=0, high=MAX_SAFE_INTEGER)),
    "jobId": ("job_id", partial(text, "repeat.jobId")),
}


def _repeat(value: Any) -> RepeatConfig:
    if type(value) is RepeatConfig:
        return value
    if type(value) is not dict:
        raise ValidationError("repeat must be an object")
    present = ((name, check, value.get(wire_name)) for wire_name, (name, check) in _REPEAT_CHECKS.items())
    return RepeatConfig(**{name: check(item) for name, check, item in present if item is not None})


OPTION_CHECKS: Final[dict[str, Check]] = {
    "durable": _durable,
    "priority": partial(number, "priority", low=-1_000_000, high=1_000_000, is_whole=True),
    "delay": partial(number, "delay", low=0, high=MAX_YEAR_MS),
    "timeout": partial(number, "timeout", low=0, high=MAX_DAY_MS),
    "max_attempts": partial(number, "maxAttempts", low=1, high=1_000, is_whole=True),
    "backoff": _backoff,
    "ttl": partial(number, "ttl", low=0, high=MAX_YEAR_MS),
    "depends_on": _depends_on,
    "unique_key": partial(text_or_none, "uniqueKey"),
    "tags": partial(texts, "tags"),
    "group_id": partial(text, "groupId"),
    "lifo": flag,
    "remove_on_complete": flag,
    "remove_on_fail": flag,
    "stall_timeout": partial(number, "stallTimeout", low=0, high=MAX_DAY_MS),
    "timestamp": partial(number, "timestamp", low=0, high=MAX_SAFE_INTEGER),
    "stack_trace_limit": partial(number, "stackTraceLimit", low=0),
    "keep_logs": partial(number, "keepLogs", low=0),
    "size_limit": partial(number, "sizeLimit", low=0),
    "children_ids": partial(texts, "childrenIds"),
    "parent_id": partial(text_or_none, "parentId"),
    "repeat": _repeat,
    "dedup": _dedup,
    "debounce_id": partial(text, "debounceId"),
    "debounce_ttl": partial(number, "debounceTtl", low=0, high=MAX_SAFE_INTEGER),
    "fail_parent_on_failure": flag,
    "remove_dependency_on_failure": flag,
    "continue_parent_on_failure": flag,
    "ignore_dependency_on_failure": flag,
    "job_id": partial(text_or_none, "jobId"),
    "custom_id": partial(text_or_none, "customId"),
    "receipt": flag,
}
_NOT_OPTIONS: Final = frozenset({"data", "is_plain", "link", "req_id", "queue", "name", "group_max_size"})
"""What is no option, or is checked when the dependencies have been: the name, and the size of the group."""


def _checks_of(record: type[PushOptions], **others: Check) -> _Checks:
    """The checks of a record's fields, in their order; an option without a check is an error at import."""
    names = enumerate(record.__struct_fields__)
    checks = OPTION_CHECKS | others
    return tuple((position, name, checks[name]) for position, name in names if name not in _NOT_OPTIONS)


_PUSH_CHECKS: Final = _checks_of(Push)
_ENTRY_CHECKS: Final = _checks_of(PushEntry)
_GROUPED_PUSH_CHECKS: Final = _checks_of(Push, priority=group_priority)
_GROUPED_ENTRY_CHECKS: Final = _checks_of(PushEntry, priority=group_priority)
OPTIONS_END: Final = len(PushOptions.__struct_fields__)
OPTIONS_START: Final = PushOptions.__struct_fields__.index("durable") + 1
OPTION_DEFAULTS: Final = astuple(PushOptions())[OPTIONS_START:]
_SMALL_DATA_BYTES: Final = 1_000_000  # no JSON text of so little data reaches the limit; `json_length_exceeds` is exact
