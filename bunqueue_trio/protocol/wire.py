"""What every command must satisfy before the engine sees it: the spec's wording, the spec's order, normal forms.

`checked` changes a command in place and nothing else. After it, numbers are ints within 32 bits or floats, flags
real bools, ids and tokens strings, and None means absent.
"""

import math
from collections.abc import Callable
from typing import Any, Final

import msgspec

from bunqueue_trio.errors import ValidationError
from bunqueue_trio.model import commands as c
from bunqueue_trio.model.commands import ABSENT
from bunqueue_trio.protocol import control_checks, cron_checks, letter_checks, limit_checks, list_checks
from bunqueue_trio.protocol.event_checks import CHECKS as EVENT_CHECKS
from bunqueue_trio.protocol.fields import (
    MAX_DAY_MS,
    ValidConfig,
    any_queue,
    array,
    counted,
    finite,
    flag,
    number,
    number_of_text,
    pushed_queue,
    text,
    text_or_none,
    texts,
)
from bunqueue_trio.protocol.finish_checks import CHECKS as FINISH_CHECKS
from bunqueue_trio.protocol.finish_checks import check_removals
from bunqueue_trio.protocol.flow_checks import CHECKS as FLOW_CHECKS
from bunqueue_trio.protocol.flow_entry_checks import CHECKS as FLOW_ENTRY_CHECKS
from bunqueue_trio.protocol.group_checks import CHECKS as GROUP_CHECKS
from bunqueue_trio.protocol.group_checks import pull_group
from bunqueue_trio.protocol.payloads import MAX_DEPTH, UNDECODABLE, json_length_exceeds
from bunqueue_trio.protocol.push_checks import check_push, check_push_batch
from bunqueue_trio.protocol.series_checks import CHECKS as SERIES_CHECKS
from bunqueue_trio.protocol.tolerant import NOT_A_LIST
from bunqueue_trio.protocol.values import INT_MAX, is_truthy, js_text, wire_number, wire_tree
from bunqueue_trio.protocol.watch_checks import CHECKS as WATCH_CHECKS
from bunqueue_trio.protocol.webhook_checks import CHECKS as WEBHOOK_CHECKS
from bunqueue_trio.protocol.worker_checks import CHECKS as WORKER_CHECKS

MAX_POLL_MS = 60_000
MAX_PULL_COUNT = 1_000
DEFAULT_LOCK_TTL_MS = 30_000
STACK_LINES_MAX = 100
MAX_PRIORITY = 1_000_000
_JS_BLANKS: Final = "\t\n\v\f\r \xa0\u1680\u2028\u2029\u202f\u205f\u3000\ufeff" + "".join(
    map(chr, range(0x2000, 0x200B))
)
_encode_json = msgspec.json.Encoder().encode


def checked(command: c.AnyCommand) -> None:
    """Check *command* and bring its fields into the forms that the engine relies on.

    Invariant: a checked command stays as it is when it is checked again, for one that meets an uncommitted change or
    needs the file is executed, and so checked, more than once.

    Raises:
        ValidationError: the text for the client. The command may be half normalised and must not be used; for an
            entry of a PUSHB it is a `push_checks.BatchEntryError`, and the entries before it are usable.

    Cost: about 0.3 µs for an ordinary PUSH, ACK or PULL.
    """
    check = CHECKS.get(type(command))
    if check is not None:
        check(command)


def _check_pull(command: c.Pull) -> None:
    _check_pull_options(command)
    command.detach = flag(command.detach)


def _check_pull_batch(command: c.PullBatch) -> None:
    _check_pull_options(command)
    count = command.count
    command.count = 1 if count is None else number("count", count, 1, MAX_PULL_COUNT, is_whole=True)


def _check_pull_options(command: c.Pull | c.PullBatch) -> None:
    command.queue = pushed_queue(command.queue)
    timeout = command.timeout
    command.timeout = 0 if timeout is None else number("timeout", timeout, 0, MAX_POLL_MS)
    if command.group is not ABSENT:
        command.group = pull_group(command.group)
    lock_ttl = command.lock_ttl
    command.lock_ttl = DEFAULT_LOCK_TTL_MS if lock_ttl is None else number("lockTtl", lock_ttl, 1, MAX_DAY_MS)
    owner = command.owner
    if type(owner) is not str:
        owner = js_text(owner) if is_truthy(owner) else None
    command.owner = owner or None


def _check_ack(command: c.Ack) -> None:
    if type(command.id) is str and type(command.token) is str and command.token:
        return  # nearly every ACK
    text("id", command.id)
    command.token = text_or_none("token", command.token)


def _check_ack_batch(command: c.AckBatch) -> None:
    size = len(texts("ids", command.ids))
    if command.tokens is not None:
        command.tokens = _tokens(command.tokens)
        if len(command.tokens) != size:
            raise ValidationError("tokens must match ids length")
    if command.results is NOT_A_LIST:
        raise ValidationError("results must be an array")
    if command.results is not None and len(command.results) != size:
        raise ValidationError("results must match ids length")
    if command.remove_on_completes is not None:
        check_removals(command)


def _tokens(value: Any) -> list[str | None]:
    return [text_or_none(f"tokens[{index}]", token) for index, token in enumerate(array("tokens", value))]


def _check_fail(command: c.Fail) -> None:
    text("id", command.id)
    command.token = text_or_none("token", command.token)
    command.error = _error_text(command.error)
    command.unrecoverable = flag(command.unrecoverable)
    command.stack = _stack(command.stack)


def _error_text(value: Any) -> str | None:
    """Strings as they are, null as absent, anything else as its JSON text."""
    if value is None or type(value) is str:
        return value
    try:
        return _encode_json(wire_tree(value, MAX_DEPTH)).decode()
    except UNDECODABLE:
        raise ValidationError("error must be a string") from None


def _stack(value: Any) -> tuple[str, ...] | None:
    """The lines of a stack, trimmed (6.3). None: keep the previous stack; an empty tuple: there is none any more."""
    if type(value) is tuple:
        return value
    if type(value) is not list or not value:
        return None
    lines = [line for line in value if type(line) is str][:STACK_LINES_MAX]
    trimmed = (line.strip(_JS_BLANKS) for line in lines)
    return tuple(line for line in trimmed if line)


def _duration(name: str, value: Any) -> float | None:
    return None if value is None else number(name, value, 1, MAX_DAY_MS)


def _check_renewal(command: c.JobHeartbeat | c.ExtendLock) -> None:
    text("id", command.id)
    command.token = text_or_none("token", command.token)
    command.duration = _duration("duration", command.duration)


def _paired(items: list[Any], size: int) -> list[Any]:
    """As many items as there are ids: what is missing counts as None, what is too much is dropped."""
    return items[:size] + [None] * (size - len(items))


def _check_heartbeats(command: c.JobHeartbeatBatch) -> None:
    size = len(texts("ids", command.ids))
    command.tokens = _paired([] if command.tokens is None else _tokens(command.tokens), size)


def _check_extend_locks(command: c.ExtendLocks) -> None:
    size = len(texts("ids", command.ids))
    command.tokens = _paired(_tokens(command.tokens), size)
    durations = array("durations", command.durations)
    checked_durations = [_duration(f"durations[{index}]", value) for index, value in enumerate(durations)]
    command.durations = _paired(checked_durations, size)


def _check_progress(command: c.Progress) -> None:
    text("id", command.id)
    value = command.progress
    if type(value) is str:
        value = number_of_text(value)
    if (type(value) is not int and type(value) is not float) or math.isnan(value):
        raise ValidationError("progress must be a number")
    command.progress = wire_number(min(max(value, 0), 100))


def _check_any_id(command: c.GetState | c.GetResult) -> None:
    """Any id is accepted and echoed, so it must be fit to be sent."""
    if type(command.id) is not str:
        try:
            command.id = wire_tree(command.id, MAX_DEPTH)
        except ValueError:
            raise ValidationError("id must be a string") from None


def _check_queue(command: Any) -> None:
    command.queue = any_queue(command.queue)


def _check_dlq(command: c.Dlq) -> None:
    command.queue = any_queue(command.queue)
    if command.count is not None:
        # An int, since it ends a slice; more entries than 32 bits count there cannot be.
        command.count = min(math.floor(number("count", command.count, 0)), INT_MAX) or None
    letter_checks.take_filter(command)


_STALL_BOUNDS: Final = {
    # The wire's name, ours, the least and the greatest value; 0 stalls means that there is no limit.
    "stallInterval": ("stall_interval", 1, 31_536_000_000),
    "maxStalls": ("max_stalls", 0, 1_000_000),
    "gracePeriod": ("grace_period", 0, 31_536_000_000),
}


def _check_stall_config(command: c.SetStallConfig) -> None:
    """Leave in ``config`` what is valid, under the names of `StallPolicy`; drop the rest without a word (CD-1)."""
    command.queue = any_queue(command.queue)
    if type(command.config) is ValidConfig:
        return
    given = command.config if type(command.config) is dict else {}
    valid: dict[str, Any] = {}
    if type(given.get("enabled")) is bool:
        valid["enabled"] = given["enabled"]
    for wire_name, (name, low, high) in _STALL_BOUNDS.items():
        value = given.get(wire_name)
        if type(value) is str:
            value = number_of_text(value)
        if (type(value) is int or type(value) is float) and low <= value <= high:
            valid[name] = wire_number(value)
    command.config = ValidConfig(valid)


def _check_auth(command: c.Auth) -> None:
    command.token = command.token if type(command.token) is str else None


def _positive_or_none(value: Any) -> float | None:
    """A positive number; anything else counts as not given (commands 8)."""
    converted = finite(value)
    return converted if converted is not None and converted > 0 else None


def _check_limit(command: c.RateLimit | c.SetConcurrency) -> None:
    limit = finite(command.limit)
    if limit is None:
        raise ValidationError("limit must be a finite number")
    command.queue = any_queue(command.queue)
    command.limit = limit


def _check_rate_limit(command: c.RateLimit) -> None:
    _check_limit(command)
    command.duration = _positive_or_none(command.duration)
    command.ttl = _positive_or_none(command.ttl)


def _check_update(command: c.Update) -> None:
    if not command.data:
        raise ValidationError("Job data is required")
    if json_length_exceeds(command.data):
        raise ValidationError("Job data too large (max 10MB)")


def _check_priority(command: c.ChangePriority) -> None:
    command.priority = number("priority", command.priority, -MAX_PRIORITY, MAX_PRIORITY, is_whole=True)
    command.lifo = None if command.lifo is None else flag(command.lifo)


def _check_counted(command: c.PromoteJobs | c.RetryDlq) -> None:
    command.queue = any_queue(command.queue)
    command.count = counted(command.count)


def _check_retry_dlq(command: c.RetryDlq) -> None:
    _check_counted(command)
    command.job_id = text_or_none("jobId", command.job_id)
    letter_checks.take_filter(command)


CHECKS: Final[dict[type, Callable[[Any], None]]] = {
    c.Push: check_push,
    c.PushBatch: check_push_batch,
    c.Pull: _check_pull,
    c.PullBatch: _check_pull_batch,
    c.Ack: _check_ack,
    c.AckBatch: _check_ack_batch,
    c.Fail: _check_fail,
    c.JobHeartbeat: _check_renewal,
    c.JobHeartbeatBatch: _check_heartbeats,
    c.ExtendLock: _check_renewal,
    c.ExtendLocks: _check_extend_locks,
    c.Progress: _check_progress,
    c.GetState: _check_any_id,
    c.GetResult: _check_any_id,
    c.Count: _check_queue,
    c.GetJobCounts: _check_queue,
    c.Pause: _check_queue,
    c.Resume: _check_queue,
    c.IsPaused: _check_queue,
    c.Dlq: _check_dlq,
    c.SetStallConfig: _check_stall_config,
    c.GetStallConfig: _check_queue,
    c.RateLimit: _check_rate_limit,
    c.RateLimitClear: _check_queue,
    c.SetConcurrency: _check_limit,
    c.ClearConcurrency: _check_queue,
    c.Update: _check_update,
    c.ChangePriority: _check_priority,
    c.PromoteJobs: _check_counted,
    c.RetryDlq: _check_retry_dlq,
    c.PurgeDlq: _check_queue,
    c.Auth: _check_auth,
    **control_checks.CHECKS,
    **cron_checks.CHECKS,
    **FINISH_CHECKS,
    **EVENT_CHECKS,
    **FLOW_CHECKS,
    **FLOW_ENTRY_CHECKS,
    **letter_checks.CHECKS,
    **limit_checks.CHECKS,
    **GROUP_CHECKS,
    **list_checks.CHECKS,
    **SERIES_CHECKS,
    **WATCH_CHECKS,
    **WEBHOOK_CHECKS,
    **WORKER_CHECKS,
}
"""Commands that are missing here have nothing to check: ids that are looked up may be anything."""
