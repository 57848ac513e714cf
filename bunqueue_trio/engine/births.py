"""From a push to the record of a new job: defaults, run time, first timeline entry.

Source: protocol, "The job map and states", "PUSH and PUSHB".
"""

from typing import Any

from msgspec import UNSET

from bunqueue_trio.engine.state import State
from bunqueue_trio.model.commands import ABSENT, PushOptions
from bunqueue_trio.model.instant import Now
from bunqueue_trio.model.job import (
    DEFAULT_BACKOFF_MS,
    DEFAULT_MAX_ATTEMPTS,
    DEFAULT_STACK_TRACE_LIMIT,
    BackoffConfig,
    JobRecord,
    TimelineEntry,
)
from bunqueue_trio.model.naming import NO_DATA, named, record_class


class Births:
    """Makes records."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._birth: tuple[float, str, tuple[TimelineEntry, ...]] = (0.0, "", ())

    def record(
        self, queue_name: str, options: PushOptions, custom_id: str | None, now: Now, *, job_id: str | None = None
    ) -> JobRecord:
        """The record of a push that is let in, under *job_id*, its custom id or else a new one."""
        if job_id is None:
            job_id = self._state.ids.job_id(now.wall_ms) if custom_id is None else custom_id
        wall_ms = now.wall_ms
        if options.is_plain:
            timeline = self.first_timeline("waiting", wall_ms)
            record = JobRecord(job_id, queue_name, options.data, wall_ms, wall_ms, wall_ms, timeline)
            if options.name is not ABSENT:
                record = named(record, options.name)
            record.custom_id = custom_id
            return record
        return self._full_record(job_id, queue_name, options, custom_id, wall_ms)

    def _full_record(
        self, job_id: str, queue_name: str, options: PushOptions, custom_id: str | None, wall_ms: float
    ) -> JobRecord:
        created_at = wall_ms if options.timestamp is None else float(options.timestamp)
        run_at = float(-(-(created_at + (options.delay or 0)) // 1))
        priority = options.priority or 0
        depends_on = tuple(options.depends_on or ())
        first = "delayed" if run_at > wall_ms else "prioritized" if priority > 0 else "waiting"
        backoff, backoff_config = _backoff(options.backoff)
        dedup = options.dedup
        name = options.name or None
        data = options.data or NO_DATA
        kind = JobRecord if name is None else record_class(name, data)
        return kind(
            id=job_id,
            queue=queue_name,
            data=data,
            created_at=created_at,
            run_at=run_at,
            last_heartbeat=created_at,
            timeline=self.first_timeline("waiting-children" if self._parks(depends_on) else first, wall_ms),
            backoff=backoff,
            backoff_config=backoff_config,
            depends_on=depends_on,
            children_ids=tuple(options.children_ids or ()),
            tags=tuple(options.tags or ()),
            repeat=options.repeat,
            priority=priority,
            lifo=bool(options.lifo),
            max_attempts=_or(options.max_attempts, DEFAULT_MAX_ATTEMPTS),
            remove_on_complete=bool(options.remove_on_complete),
            remove_on_fail=bool(options.remove_on_fail),
            ttl=options.ttl,
            timeout=options.timeout,
            unique_key=options.unique_key,
            custom_id=custom_id,
            parent_id=options.parent_id,
            group_id=options.group_id,
            stall_timeout=options.stall_timeout,
            stack_trace_limit=_or(options.stack_trace_limit, DEFAULT_STACK_TRACE_LIMIT),
            keep_logs=options.keep_logs,
            size_limit=options.size_limit,
            fail_parent_on_failure=bool(options.fail_parent_on_failure),
            remove_dependency_on_failure=bool(options.remove_dependency_on_failure),
            continue_parent_on_failure=bool(options.continue_parent_on_failure),
            ignore_dependency_on_failure=bool(options.ignore_dependency_on_failure),
            deduplication_ttl=None if dedup is None else dedup.ttl,
            deduplication_extend=dedup is not None and dedup.extend,
            deduplication_replace=dedup is not None and dedup.replace,
            debounce_id=options.debounce_id,
            debounce_ttl=options.debounce_ttl,
            own_name=UNSET if name is None else name,
        )

    def _parks(self, depends_on: tuple[str, ...]) -> bool:
        """True when any of these has not completed."""
        return not all(self._state.is_met(dependency) for dependency in depends_on)

    def first_timeline(self, shown: str, wall_ms: float) -> tuple[TimelineEntry, ...]:
        """Jobs of one millisecond share their first entry: it is a tenth of a plain job's memory."""
        if self._birth[0] != wall_ms or self._birth[1] != shown:
            self._birth = (wall_ms, shown, (TimelineEntry(shown, wall_ms),))
        return self._birth[2]


def _backoff(asked: Any) -> tuple[float | int, BackoffConfig | None]:
    if asked is None:
        return DEFAULT_BACKOFF_MS, None
    if isinstance(asked, BackoffConfig):
        return asked.delay, asked
    return asked, None


def _or(value: Any, default: int) -> Any:
    return default if value is None else value
