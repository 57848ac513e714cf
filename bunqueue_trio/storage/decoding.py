"""Rows to records, whatever state the rows are in: one bad cell never stops the start.

Numbers may be INTEGER or REAL, blobs may come from another server or be damaged. What cannot be read takes its
default and is named in `StoredJob.damage`.

Source: persistence, "Recovery at start" 3.3, 4 and 5, "Damaged rows".
"""

import math
from collections.abc import Callable
from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET, Meta, MsgspecError, Raw, Struct

from bunqueue_trio.model.entries import DEFAULT_SETTINGS, DlqPolicy, QueueSettings, RateLimit, StallPolicy
from bunqueue_trio.model.grouping import GroupSettings
from bunqueue_trio.model.job import (
    DEFAULT_BACKOFF_MS,
    DEFAULT_MAX_ATTEMPTS,
    ChildFailures,
    JobRecord,
    Past,
    TimelineEntry,
)
from bunqueue_trio.model.naming import named, record_class
from bunqueue_trio.storage.batch import FULL_COLUMNS
from bunqueue_trio.storage.payloads import EMPTY_MAP, checked_payload
from bunqueue_trio.storage.records import DEFAULT_RATE_WINDOW_MS, NAME_ALONE, NO_EXTRA, NO_MESSAGE, JobExtra

UNREADABLE: Final = (MsgspecError, TypeError, ValueError, OverflowError, RecursionError)
"""What decoding foreign bytes may raise."""

_SIDE_FIELDS: Final = tuple(
    name for name in JobExtra.__struct_fields__ if name in JobRecord.__struct_fields__ and name != "progress_message"
)
_CELLS: Final = (*FULL_COLUMNS, "extra")

_SOUND: Final[set[tuple[type, ...]]] = set()
"""Type combinations of rows that need no repair: a handful in a file written by a server."""
_SOUND_MAX: Final = 4_096

_SMALLEST, _LARGEST = -(2**31), 2**32 - 1
_COUNT_MAX: Final = 2**31 - 1
_LARGEST_EXACT: Final = 2**53 - 1

_texts = msgspec.msgpack.Decoder(tuple[str, ...])
_timeline = msgspec.msgpack.Decoder(tuple[TimelineEntry, ...])
_name = msgspec.msgpack.Decoder(Annotated[str, Meta(min_length=1)])
_extra = msgspec.msgpack.Decoder(JobExtra)
_policy = msgspec.msgpack.Decoder(DlqPolicy)
_group_settings = msgspec.msgpack.Decoder(GroupSettings)
_anything = msgspec.msgpack.Decoder(ext_hook=lambda _code, _data: UNSET)  # "undefined" is an extension: left out


class StoredJob(Struct, gc=False):
    """A row of ``jobs`` with its side row.

    Attributes:
        seq: The rowid, the order of pushes.
        state_name: ``waiting``, ``delayed``, ``active`` or ``completed``.
        key_expires_at: Epoch ms at which its unique key stops holding; None: as long as the job lives.
        damage: Names of the columns that could not be read. ``depends_on`` among them means that nobody knows
            whether the job may run.
    """

    record: JobRecord
    seq: int
    state_name: str
    key_expires_at: float | None = None
    is_from_cron: bool = False
    damage: tuple[str, ...] = ()
    past: Past | None = None
    child_failures: ChildFailures | None = None


def job_from_row(row: tuple[Any, ...]) -> StoredJob:
    """Decode one row: `batch.FULL_COLUMNS`, then the blob of its side row or None.

    Cost: about 6 µs for a plain job.
    """
    kinds = tuple(map(type, row))
    if kinds not in _SOUND:
        row = _sound_row(row, kinds)
    (
        seq, job_id, queue, data, priority, created_at, run_at, started_at, completed_at, attempts, max_attempts,
        backoff, ttl, timeout, unique_key, custom_id, depends_on, parent_id, children_ids, tags, state_name, lifo,
        group_id, progress, remove_on_complete, remove_on_fail, stall_timeout, last_heartbeat, stall_count, timeline,
        stacktrace, extra_blob,
    ) = row  # fmt: skip
    if (attempts | max_attempts | stall_count | abs(priority)) >> 31:
        counts = (attempts, max_attempts, stall_count, priority)
        attempts, max_attempts, stall_count, priority = (whole(count, 0) for count in counts)
    damage: list[str] = []
    payload = checked_payload(data)
    if payload is None:
        payload = Raw(EMPTY_MAP)
        damage.append("data")
    extra = NO_EXTRA if extra_blob is None else _extra_from(extra_blob, damage)
    name = extra.name or None
    kind = JobRecord if name is None else record_class(name, payload)
    created = float(created_at)
    record = kind(
        id=job_id,
        queue=queue,
        data=payload,
        created_at=created,
        run_at=float(run_at),
        last_heartbeat=created if last_heartbeat is None else float(last_heartbeat),
        timeline=() if timeline is None else _timeline_from(timeline, damage),
        started_at=None if started_at is None else float(started_at),
        completed_at=None if completed_at is None else float(completed_at),
        attempts=attempts,
        backoff=backoff if -1 < backoff <= _LARGEST else number(backoff, DEFAULT_BACKOFF_MS),
        depends_on=() if depends_on is None else _texts_from("depends_on", depends_on, damage),
        children_ids=() if children_ids is None else _texts_from("children_ids", children_ids, damage),
        tags=() if tags is None else _texts_from("tags", tags, damage),
        progress=progress or 0,
        stacktrace=None if stacktrace is None else _texts_from("stacktrace", stacktrace, damage),
        stall_count=stall_count,
        priority=priority,
        lifo=lifo != 0,
        max_attempts=max_attempts,
        remove_on_complete=bool(remove_on_complete),
        remove_on_fail=bool(remove_on_fail),
        ttl=None if ttl is None else number(ttl, 0),
        timeout=None if timeout is None else number(timeout, 0),
        unique_key=unique_key,
        custom_id=custom_id,
        parent_id=parent_id,
        group_id=group_id,
        stall_timeout=None if stall_timeout is None else number(stall_timeout, 0),
    )
    if extra is NO_EXTRA:
        return StoredJob(record, seq, state_name, damage=tuple(damage))
    if name is not None:
        record.own_name = name
    return _with_extra(StoredJob(record, seq, state_name, damage=tuple(damage)), extra)


def _with_extra(stored: StoredJob, extra: JobExtra) -> StoredJob:
    """Complete a row with what its side row says; the name is there already, for it decides the record's class."""
    record = stored.record
    for field in _SIDE_FIELDS:
        setattr(record, field, getattr(extra, field))
    if extra.progress_message is not NO_MESSAGE:
        record.progress_message = extra.progress_message
    stored.key_expires_at, stored.is_from_cron = extra.key_expires_at, extra.is_from_cron
    if extra.auto_retries or extra.has_result or extra.met or extra.is_parked_again:
        stored.past = Past(
            extra.auto_retries, extra.auto_retried_at, extra.has_result, extra.met, extra.is_parked_again
        )
    if extra.failed_children or extra.ignored_children:
        stored.child_failures = ChildFailures(extra.failed_children, extra.ignored_children)
    return stored


class PlainDecoder:
    """Decodes rows of `reads.PLAIN_PENDING`, jobs without any option but a name: None for one that needs the long way.

    Neighbours share what is equal (queue name, timeline, time stamps): they mostly came in one batch.
    """

    __slots__ = ("_created_at", "_created_ms", "_queues", "_timeline", "_timeline_blob")

    def __init__(self) -> None:
        self._queues: dict[str, str] = {}
        self._created_at = -1
        self._created_ms = -1.0
        self._timeline_blob = b""
        self._timeline: tuple[TimelineEntry, ...] = ()

    def __call__(self, row: tuple[Any, ...]) -> StoredJob | None:
        """Cost: about 2 µs."""
        seq, job_id, queue, data, priority, created_at, run_at, custom_id, timeline, state_name, extra, _is_plain = row
        payload = checked_payload(data)
        if payload is None:
            return None
        if timeline != self._timeline_blob:
            try:
                self._timeline = _timeline.decode(timeline)
            except MsgspecError:
                return None
            self._timeline_blob = timeline
        if created_at != self._created_at:
            self._created_at, self._created_ms = created_at, float(created_at)
        created = self._created_ms
        run = created if run_at == created_at else float(run_at)
        name = self._queues.setdefault(queue, queue)
        record = JobRecord(job_id, name, payload, created, run, created, self._timeline)
        record.priority = priority
        if extra is not None:
            try:
                record = named(record, _name.decode(extra[len(NAME_ALONE) :]))
            except MsgspecError:
                return None
            record.run_at, record.priority = run, priority
        record.custom_id = custom_id
        return StoredJob(record, seq, state_name)


def _sound_row(row: tuple[Any, ...], kinds: tuple[type, ...]) -> tuple[Any, ...]:
    """The row with every cell in a type that its column may have.

    A combination of types found sound is remembered, unless there is a float in it, which may be infinite.
    """
    repaired = tuple(_REPAIR[name](cell) for name, cell in zip(_CELLS, row, strict=True))
    if tuple(map(type, repaired)) == kinds and float not in kinds and len(_SOUND) < _SOUND_MAX:
        _SOUND.add(kinds)
    return repaired


def settings_from_row(row: tuple[Any, ...]) -> tuple[str, QueueSettings]:
    """Decode a row of ``queue_state``, after `batch.SETTINGS_COLUMNS`: the queue and its settings.

    A rate limit that has expired meanwhile is still there: that is for the caller, who has the time.
    """
    name, paused, limit, concurrency, window, expires_at, *policy = row
    rate = None
    if limit is not None:
        expires = None if expires_at is None else time_stamp(expires_at, 0.0)
        rate = RateLimit(_at_least(0, limit, 0), _at_least(1, window, DEFAULT_RATE_WINDOW_MS), expires)
    stall = DEFAULT_SETTINGS.stall
    if None not in policy:
        enabled, interval, max_stalls, grace = policy
        stall = StallPolicy(
            bool(enabled),
            _at_least(1, interval, stall.stall_interval),
            _at_least(0, max_stalls, stall.max_stalls),
            _at_least(0, grace, stall.grace_period),
        )
    return text(name), QueueSettings(bool(paused), rate, number_or_none(concurrency), stall)


def policy_from_blob(blob: bytes) -> DlqPolicy:
    """The policy of ``bqt_queues.dlq_config``; the default one where it cannot be read, or could not be kept to."""
    try:
        policy = _policy.decode(blob)
    except UNREADABLE:
        return DEFAULT_SETTINGS.dlq
    numbers = (policy.auto_retry_interval, policy.max_auto_retries, policy.max_age or 0, policy.max_entries - 1)
    return policy if all(0 <= value <= _LARGEST_EXACT for value in numbers) else DEFAULT_SETTINGS.dlq


def group_settings_from_blob(blob: bytes) -> GroupSettings | None:
    """The settings of ``bqt_groups.settings``; None where they cannot be read."""
    try:
        return _group_settings.decode(blob)
    except UNREADABLE:
        return None


def timeline_from(blob: bytes) -> tuple[TimelineEntry, ...]:
    """Decode a timeline in any spelling: "undefined" values, counts as floats, keys we do not know.

    Raises:
        ValueError, TypeError, msgspec.MsgspecError, RecursionError: it is none.
    """
    try:
        return _timeline.decode(blob)
    except MsgspecError:
        steps = _anything.decode(blob)
    if not isinstance(steps, list):
        raise ValueError("not a list")
    return tuple(_timeline_entry(step) for step in steps)


def _timeline_entry(step: Any) -> TimelineEntry:
    if not isinstance(step, dict):
        raise ValueError("not a map")
    state, error, attempt = step.get("state"), step.get("error"), step.get("attempt")
    return TimelineEntry(
        state if isinstance(state, str) else "unknown",
        time_stamp(step.get("timestamp"), 0.0),
        error if isinstance(error, str) else UNSET,
        whole(attempt, 0) if isinstance(attempt, int | float) else UNSET,
    )


def _timeline_from(blob: bytes, damage: list[str]) -> tuple[TimelineEntry, ...]:
    try:
        return timeline_from(blob)
    except UNREADABLE:
        damage.append("timeline")
        return ()


def _texts_from(column: str, blob: bytes, damage: list[str]) -> tuple[str, ...]:
    try:
        return _texts.decode(blob)
    except UNREADABLE:
        damage.append(column)
        return ()


def _extra_from(blob: bytes, damage: list[str]) -> JobExtra:
    try:
        return _extra.decode(blob)
    except UNREADABLE:
        damage.append("extra")
        return NO_EXTRA


def time_stamp(value: Any, default: float) -> float:
    """A time as the float that it is on the wire."""
    return float(value) if _is_number(value) else default


def whole(value: Any, default: int) -> int:
    """A count; a cell may hold it as REAL. What is beyond 31 bits is the nearest that is not: one may be added."""
    if not _is_number(value):
        return default
    return int(max(_SMALLEST, min(value, _COUNT_MAX)))


def number(value: Any, default: float | int) -> float | int:
    """A number in the form that travels: beyond 32 bits a float."""
    if type(value) is int:
        return value if _SMALLEST <= value <= _LARGEST else float(value)
    return value if isinstance(value, float) and math.isfinite(value) else default


def _at_least(low: int, value: Any, default: float | int) -> float | int:
    found = number(value, default)
    return found if low <= found <= _LARGEST_EXACT else default


def number_or_none(value: Any) -> float | int | None:
    """The same for a column that may be null."""
    return number(value, 0) if _is_number(value) else None


def text(value: Any) -> str:
    """A text cell; SQLite hands out bytes where somebody stored a blob."""
    return value if type(value) is str else _as_text(value)


def text_or_none(value: Any) -> str | None:
    """The same for a column that may be null."""
    return value if value is None or type(value) is str else _as_text(value)


def _numeric(default: float | int | None) -> Callable[[Any], Any]:
    return lambda value: value if _is_number(value) else default


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _blob(value: Any) -> Any:
    return value


def _as_text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


_REPAIR: Final[dict[str, Callable[[Any], Any]]] = {
    **dict.fromkeys(_CELLS, _blob),
    **dict.fromkeys(("id", "queue", "state"), text),
    **dict.fromkeys(("unique_key", "custom_id", "parent_id", "group_id"), text_or_none),
    **dict.fromkeys(
        ("started_at", "completed_at", "last_heartbeat", "ttl", "timeout", "stall_timeout"), _numeric(None)
    ),
    **dict.fromkeys(("created_at", "run_at", "progress"), _numeric(0)),
    **dict.fromkeys(("priority", "attempts", "stall_count", "lifo"), lambda value: whole(value, 0)),
    "max_attempts": lambda value: whole(value, DEFAULT_MAX_ATTEMPTS),
    "backoff": _numeric(DEFAULT_BACKOFF_MS),
}
