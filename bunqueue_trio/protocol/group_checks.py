"""Checks of what is said about named groups: in pushes, in pulls, and by commands of their own.

Source: newer clients, 5 and 8.
"""

from collections.abc import Callable
from typing import Any, Final

import msgspec
from msgspec import Raw
from msgspec.msgpack import Ext

from bunqueue_trio.errors import ValidationError
from bunqueue_trio.model import commands as c
from bunqueue_trio.model.commands import ABSENT
from bunqueue_trio.model.grouping import GroupLimit, PullGroup
from bunqueue_trio.protocol.fields import MAX_SAFE_INTEGER, exceeds_units, pushed_queue
from bunqueue_trio.protocol.payloads import UNDECODABLE
from bunqueue_trio.protocol.values import UNDEFINED, wire_number

MAX_GROUP_ID_UNITS = 256
MAX_GROUP_PRIORITY = 2_097_151

_decode = msgspec.msgpack.Decoder().decode


def group_id(value: Any) -> str:
    """The id of a named group."""
    if type(value) is not str:
        raise ValidationError("groupId must be a string")
    if not value:
        raise ValidationError("groupId must be a non-empty string")
    if exceeds_units(value, MAX_GROUP_ID_UNITS):
        raise ValidationError(f"groupId must be at most {MAX_GROUP_ID_UNITS} characters")
    if "\0" in value:
        raise ValidationError("groupId must not contain NUL characters")
    return value


def group_priority(value: Any) -> float:
    """The priority of a member of a named group: the lower, the earlier."""
    if type(value) not in (int, float) or not -float("inf") < value < float("inf"):
        raise ValidationError("group.priority must be a finite number")
    if value != int(value):
        raise ValidationError("group.priority must be an integer")
    if not 0 <= value <= MAX_GROUP_PRIORITY:
        raise ValidationError(f"group.priority must be between 0 and {MAX_GROUP_PRIORITY}")
    return wire_number(value)


def positive(name: str, value: Any) -> float:
    """A whole number from 1 on, which every client language holds exactly."""
    if type(value) not in (int, float) or not 1 <= value <= MAX_SAFE_INTEGER or value != int(value):
        raise ValidationError(f"{name} must be a positive safe integer")
    return wire_number(value)


def pull_group(value: Any) -> PullGroup | Raw:
    """The ``group`` of a pull, as its bytes came; `ABSENT` where they say "undefined"."""
    if type(value) is not Raw:
        return value  # type: ignore[no-any-return]  # it has been here before
    given = _decoded(value)
    if _is_absent(given):
        return ABSENT
    if type(given) is not dict:
        raise ValidationError("group must be an object")
    fields: dict[str, Any] = {name: item for name, item in given.items() if not _is_absent(item)}
    found: dict[str, Any] = {}
    if "affinity" in fields:
        found["affinity"] = fields["affinity"]
        if type(found["affinity"]) not in (str, type(None)):
            raise ValidationError("group.affinity must be a string or null")
    if "concurrency" in fields:
        found["concurrency"] = positive("group.concurrency", fields["concurrency"])
    if "limit" in fields:
        limit = fields["limit"]
        if type(limit) is not dict:
            raise ValidationError("group.limit must be an object")
        found["limit"] = GroupLimit(
            positive("group.limit.max", limit.get("max")), positive("group.limit.duration", limit.get("duration"))
        )
    return PullGroup(**found)


def _decoded(raw: Raw) -> Any:
    """What the bytes say; something that no field may be where they say nothing."""
    try:
        return _decode(raw)
    except UNDECODABLE:
        return NotImplemented


def _is_absent(value: Any) -> bool:
    return type(value) is Ext and value.code == UNDEFINED.code


def _check_group(command: Any) -> None:
    command.queue = pushed_queue(command.queue)
    value = command.group_id
    if type(value) is Raw:
        value = _decoded(value) if value is not ABSENT else UNDEFINED
        if _is_absent(value):
            raise ValidationError("groupId is required")
    command.group_id = group_id(value)


def _check_queue(command: Any) -> None:
    command.queue = pushed_queue(command.queue)


def _check_concurrency(command: c.SetGroupConcurrency) -> None:
    _check_group(command)
    command.concurrency = positive("concurrency", command.concurrency)


def _check_rate_limit(command: c.SetGroupRateLimit) -> None:
    _check_group(command)
    command.max = positive("max", command.max)
    command.duration = positive("duration", command.duration)


def _check_ttl(command: c.GetGroupRateLimitTtl) -> None:
    """A ``maxJobs`` that is no positive number counts as not given."""
    _check_group(command)
    limit = command.max_jobs
    command.max_jobs = limit if type(limit) in (int, float) and limit > 0 else None


def _check_rest(command: c.RateLimitGroup) -> None:
    _check_group(command)
    command.duration = positive("duration", command.duration)


CHECKS: Final[dict[type, Callable[[Any], None]]] = {
    c.GetGroupJobsCount: _check_group,
    c.GetGroupsJobsCount: _check_queue,
    c.GetGroupActiveCount: _check_group,
    c.SetGroupConcurrency: _check_concurrency,
    c.GetGroupConcurrency: _check_group,
    c.RemoveGroupConcurrency: _check_group,
    c.SetGroupRateLimit: _check_rate_limit,
    c.GetGroupRateLimit: _check_group,
    c.RemoveGroupRateLimit: _check_group,
    c.GetGroupRateLimitTtl: _check_ttl,
    c.PauseGroup: _check_group,
    c.ResumeGroup: _check_group,
    c.IsGroupPaused: _check_group,
    c.RateLimitGroup: _check_rest,
}
