"""Records to rows: what the flusher binds. `decoding` goes the other way.

Runs on the loop thread, once per job and flush: no query, no copy of a payload.

Source: persistence, "Tables", "BLOB encoding", PD-1.
"""

from typing import Final

import msgspec
from msgspec import Raw, Struct

from bunqueue_trio.model.entries import DlqEntry, DlqPolicy, QueueSettings
from bunqueue_trio.model.grouping import GroupSettings
from bunqueue_trio.model.job import (
    DEFAULT_STACK_TRACE_LIMIT,
    BackoffConfig,
    ChildFailures,
    JobRecord,
    Past,
    RepeatConfig,
    TimelineEntry,
)
from bunqueue_trio.storage.batch import Row
from bunqueue_trio.storage.payloads import without_wide_integers

NO_MESSAGE: Final = Raw(b"")
DEFAULT_RATE_WINDOW_MS: Final = 1_000

MINUTE_MS: Final = 60_000
SERIES_SLOTS: Final = 20_160
TOTAL_SLOT: Final = -1

_encode = msgspec.msgpack.Encoder().encode


class JobExtra(Struct, rename="camel", omit_defaults=True, gc=False):
    """What the columns of ``jobs`` cannot hold; the blob of ``bqt_jobs``. Keys at their default are left out.

    ``progress_message`` is msgpack of any value, kept as it came, and empty when there is none, because msgspec
    decodes no ``Raw | None``; ``key_expires_at`` is epoch ms. ``auto_retries`` to ``has_result``, ``met`` and
    ``is_parked_again`` are a `Past`. ``name`` is that of a job that was pushed with one beside its data.
    """

    backoff_config: BackoffConfig | None = None
    repeat: RepeatConfig | None = None
    fail_parent_on_failure: bool = False
    remove_dependency_on_failure: bool = False
    continue_parent_on_failure: bool = False
    ignore_dependency_on_failure: bool = False
    stack_trace_limit: float | int = DEFAULT_STACK_TRACE_LIMIT
    keep_logs: float | int | None = None
    size_limit: float | int | None = None
    deduplication_ttl: float | int | None = None
    deduplication_extend: bool = False
    deduplication_replace: bool = False
    debounce_id: str | None = None
    debounce_ttl: float | int | None = None
    progress_message: Raw = NO_MESSAGE
    key_expires_at: float | None = None
    is_from_cron: bool = False
    auto_retries: int = 0
    auto_retried_at: float | None = None
    has_result: bool = False
    failed_children: dict[str, str] = {}
    ignored_children: dict[str, str] = {}
    met: tuple[str, ...] = ()
    name: str | None = None
    is_parked_again: bool = False


NO_EXTRA: Final = JobExtra()
NAME_ALONE: Final = b"\x81\xa4name"
"""How the blob of a job begins that has a name and nothing else."""


class _TimelineCache:
    """The timeline encoded last. Jobs pushed in one millisecond share one tuple, so identity is test enough."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last: tuple[tuple[TimelineEntry, ...], bytes] = ((), b"")

    def blob(self, timeline: tuple[TimelineEntry, ...]) -> bytes | None:
        """The timeline as msgpack, None when it is empty."""
        last, blob = self._last
        if timeline is last:
            return blob or None
        if not timeline:
            return None
        blob = _encode(timeline)
        self._last = (timeline, blob)  # one store, so that two threads can at worst encode twice
        return blob


_timeline_blob = _TimelineCache().blob


def plain_row(record: JobRecord, seq: int, state_name: str) -> Row:
    """The row of a job whose options are all defaults, after `batch.PLAIN_COLUMNS`.

    Args:
        state_name: ``waiting`` or ``delayed``, as it is at this moment.
    """
    return (
        seq,
        record.id,
        record.queue,
        record.data,
        record.priority,
        record.created_at,
        record.run_at,
        record.custom_id,
        state_name,
        _timeline_blob(record.timeline),
    )


def full_row(record: JobRecord, seq: int, state_name: str) -> Row:
    """Every column of a job, after `batch.FULL_COLUMNS`.

    Args:
        state_name: ``waiting``, ``delayed``, ``active`` or ``completed``. A parked job is waiting or delayed.
    """
    return (
        seq,
        record.id,
        record.queue,
        record.data,
        record.priority,
        record.created_at,
        record.run_at,
        record.started_at,
        record.completed_at,
        record.attempts,
        record.max_attempts,
        record.backoff,
        record.ttl,
        record.timeout,
        record.unique_key,
        record.custom_id,
        _encode(record.depends_on) if record.depends_on else None,
        record.parent_id,
        _encode(record.children_ids) if record.children_ids else None,
        _encode(record.tags) if record.tags else None,
        state_name,
        record.lifo,
        record.group_id,
        record.progress,
        record.remove_on_complete,
        record.remove_on_fail,
        record.stall_timeout,
        record.last_heartbeat if record.last_heartbeat != record.created_at else None,
        record.stall_count,
        _timeline_blob(record.timeline),
        _encode(record.stacktrace) if record.stacktrace is not None else None,
    )


def link_row(record: JobRecord) -> Row:
    """What a new parent or child changes in a completed job, after `batch.LINK_COLUMNS`."""
    children = _encode(record.children_ids) if record.children_ids else None
    return record.id, record.data, record.parent_id, children


def state_row(record: JobRecord, state_name: str) -> Row:
    """The execution columns of a job, after `batch.STATE_COLUMNS`."""
    return (
        record.id,
        state_name,
        record.run_at,
        record.started_at,
        record.completed_at,
        record.attempts,
        record.progress,
        record.last_heartbeat if record.last_heartbeat != record.created_at else None,
        record.stall_count,
        _timeline_blob(record.timeline),
        _encode(record.stacktrace) if record.stacktrace is not None else None,
    )


def extra_blob(
    record: JobRecord,
    *,
    key_expires_at: float | None,
    is_from_cron: bool,
    past: Past | None = None,
    child_failures: ChildFailures | None = None,
) -> bytes | None:
    """The blob of the job's side row: a `JobExtra` map; None when there is nothing to keep.

    A row that exists already and has nothing to keep any more gets `payloads.EMPTY_MAP`.
    """
    extra = JobExtra(
        record.backoff_config,
        record.repeat,
        record.fail_parent_on_failure,
        record.remove_dependency_on_failure,
        record.continue_parent_on_failure,
        record.ignore_dependency_on_failure,
        record.stack_trace_limit,
        record.keep_logs,
        record.size_limit,
        record.deduplication_ttl,
        record.deduplication_extend,
        record.deduplication_replace,
        record.debounce_id,
        record.debounce_ttl,
        NO_MESSAGE if record.progress_message is None else record.progress_message,
        key_expires_at,
        is_from_cron,
    )
    extra.name = record.name
    if past is not None:
        extra.auto_retries, extra.auto_retried_at = past.auto_retries, past.auto_retried_at
        extra.has_result, extra.met, extra.is_parked_again = past.has_result, past.met, past.is_parked_again
    if child_failures is not None:
        extra.failed_children, extra.ignored_children = child_failures.failed, child_failures.ignored
    return None if extra == NO_EXTRA else _encode(extra)


def name_blob(name: str) -> bytes:
    """The same blob for a job that has a name and no options."""
    return NAME_ALONE + _encode(name)


def entry_blob(entry: DlqEntry) -> bytes:
    """The cell ``dlq.entry``: the same map as on the wire, no number as a 64-bit integer.

    The reference would decode such a one as a big integer and fail on it.
    """
    return without_wide_integers(_encode(entry))


def policy_blob(policy: DlqPolicy) -> bytes:
    """The cell ``bqt_queues.dlq_config``: the map of GetDlqConfig, whole."""
    return _encode(policy)


def group_blob(settings: GroupSettings) -> bytes:
    """The cell ``bqt_groups.settings``."""
    return _encode(settings)


def settings_row(queue: str, settings: QueueSettings) -> Row:
    """The row of ``queue_state``, after `batch.SETTINGS_COLUMNS`. The stall policy is written whole, default or not.

    The policy about dead letters is not part of it.
    """
    rate, stall = settings.rate_limit, settings.stall
    window = None if rate is None or rate.duration_ms == DEFAULT_RATE_WINDOW_MS else rate.duration_ms
    return (
        queue,
        settings.paused,
        None if rate is None else rate.limit,
        settings.concurrency_limit,
        window,
        None if rate is None else rate.expires_at,
        stall.enabled,
        stall.stall_interval,
        stall.max_stalls,
        stall.grace_period,
    )


def series_rows(queue: str, completed: int, failed: int, wall_ms: float) -> tuple[Row, Row]:
    """The rows by which what ended in a queue at that time is counted, after `batch.SERIES_COLUMNS`.

    The slots of the minutes are used in turn: so there are never more of them than are kept.
    """
    minute = int(wall_ms // MINUTE_MS)
    completed_at = wall_ms if completed else None
    failed_at = wall_ms if failed else None
    in_all = (queue, TOTAL_SLOT, 0, completed, failed, completed_at, failed_at)
    return in_all, (queue, minute % SERIES_SLOTS, minute, completed, failed, None, None)
