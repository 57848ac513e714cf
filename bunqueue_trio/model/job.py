"""A job: what clients see of it (`JobRecord`) and what the server knows about it beyond that (`Job`)."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

if TYPE_CHECKING:
    from bunqueue_trio.model.leases import Lease
    from bunqueue_trio.model.transitions import Transition

TIMELINE_MAX = 20  # Wire: further entries are not appended
DEFAULT_MAX_ATTEMPTS = 3
DEFAULT_BACKOFF_MS = 1000
DEFAULT_STACK_TRACE_LIMIT = 10
KEY_GIVEN_UP = 0.0  # as the time at which a unique key stops holding: its job shows it, but anybody may have it


class JobState(IntEnum):
    """Where a job is. READY is shown as waiting or prioritized, by its priority.

    STAGED: a durable push whose transaction has not committed; no client sees it.
    """

    STAGED = 0
    READY = 1
    DELAYED = 2
    PARKED = 3
    ACTIVE = 4
    COMPLETED = 5
    FAILED = 6
    GONE = 7


class TimelineEntry(Struct, frozen=True, gc=False, omit_defaults=True):
    """One step of a job's life. Shape: ``{"state": str, "timestamp": epoch ms, "error"?: str, "attempt"?: int}``."""

    state: str
    timestamp: float
    error: str | UnsetType = UNSET
    attempt: int | UnsetType = UNSET


class BackoffConfig(Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """The object form of ``backoff``. Shape: ``{"type": "fixed" | "exponential", "delay": ms, "maxDelay"?: ms}``."""

    type: str
    delay: float | int
    max_delay: float | int | UnsetType = UNSET


class Dedup(Struct, frozen=True, gc=False):
    """The ``dedup`` option: ``ttl`` in ms (None: as long as the holder lives, 0: expires at once)."""

    ttl: float | None = None
    extend: bool = False
    replace: bool = False


class RepeatConfig(Struct, frozen=True, gc=False, rename="camel"):
    """The ``repeat`` option, as sent; keys that were not sent are left out. ``count`` counts the successors so far."""

    every: Any = UNSET
    limit: Any = UNSET
    pattern: Any = UNSET
    count: Any = 0
    start_date: Any = UNSET
    end_date: Any = UNSET
    tz: Any = UNSET
    immediately: Any = UNSET
    prev_millis: Any = UNSET
    offset: Any = UNSET
    job_id: Any = UNSET


class JobRecord(Struct, rename="camel", gc=False):
    """The job map of the wire: names and order of its keys are those of the protocol, so one call encodes it.

    Times are epoch ms as float, because whole numbers beyond 32 bits travel as float64. ``data`` and
    ``progress_message`` are msgpack bytes that the server never decodes. ``state`` is set on copies made for
    queries only. Never mutated once it has been handed to a flush as part of a `Transition`.

    Source: protocol, "The job map and states".
    """

    id: str
    queue: str
    data: Raw
    created_at: float
    run_at: float
    last_heartbeat: float
    timeline: tuple[TimelineEntry, ...] = ()
    started_at: float | None = None
    completed_at: float | None = None
    attempts: int = 0
    backoff: float | int = DEFAULT_BACKOFF_MS
    backoff_config: BackoffConfig | None = None
    depends_on: tuple[str, ...] = ()
    children_ids: tuple[str, ...] = ()
    children_completed: int = 0
    tags: tuple[str, ...] = ()
    progress: float | int = 0
    progress_message: Raw | None = None
    stacktrace: tuple[str, ...] | None = None
    repeat: RepeatConfig | None = None
    stall_count: int = 0
    priority: int = 0
    lifo: bool = False
    max_attempts: int = DEFAULT_MAX_ATTEMPTS
    remove_on_complete: bool = False
    remove_on_fail: bool = False
    ttl: float | int | None = None
    timeout: float | int | None = None
    unique_key: str | None = None
    custom_id: str | None = None
    parent_id: str | None = None
    group_id: str | None = None
    stall_timeout: float | int | None = None
    stack_trace_limit: float | int = DEFAULT_STACK_TRACE_LIMIT
    keep_logs: float | int | None = None
    size_limit: float | int | None = None
    fail_parent_on_failure: bool = False
    remove_dependency_on_failure: bool = False
    continue_parent_on_failure: bool = False
    ignore_dependency_on_failure: bool = False
    deduplication_ttl: float | int | None = None
    deduplication_extend: bool = False
    deduplication_replace: bool = False
    debounce_id: str | None = None
    debounce_ttl: float | int | None = None
    state: str | UnsetType = UNSET
    own_name: str | UnsetType = msgspec.field(name="name", default=UNSET)

    @property
    def name(self) -> str | None:
        """The name it was pushed with beside its data; None for an unnamed job."""
        return None if self.own_name is UNSET else self.own_name


class EnvelopeRecord(JobRecord, gc=False):
    """The record of a named job whose name older clients get inside its data: see `model.naming`."""


class ReadRecord(JobRecord, gc=False):
    """A copy for one reply to a query, with the result and the last error of the job."""

    returnvalue: Raw | UnsetType = UNSET
    failed_reason: str | UnsetType = UNSET


class Past(Struct, frozen=True, gc=False):
    """What earlier lives have left to a job: how often, and when last, it was brought back from the dead letters
    without anybody asking, and whether the file still has the result of its last completion.

    ``met`` are dependencies of a parked job for which it does not wait although they live, or may live again.
    ``is_parked_again``: it has run, and waits for those of its dependencies that are not among ``met``; or, while there
    is none of those, for the first.
    """

    auto_retries: int = 0
    auto_retried_at: float | None = None
    has_result: bool = False
    met: tuple[str, ...] = ()
    is_parked_again: bool = False

    def released(self) -> Past:
        """The same for a job that waits no longer."""
        return replace(self, met=(), is_parked_again=False)


class ChildFailures(Struct, frozen=True, gc=False):
    """Errors of children that failed and let their parent go on, by ``<queue>:<id>``.

    ``failed``: taken by ``continueParentOnFailure``; ``ignored``: by ``ignoreDependencyOnFailure``.
    """

    failed: dict[str, str] = {}
    ignored: dict[str, str] = {}


class Job(Struct, gc=False, eq=False):
    """A job the server holds in memory: its record and everything no client sees.

    ``seq`` is the order of pushes and breaks ties among equal jobs; it is renewed only by a new life of the id.
    ``dirty`` says what the file does not know yet (bits of `changes.Dirty`), ``is_stored`` whether a row exists.
    ``place`` is the heap entry that stands for it in its queue; other entries of it are stale. ``block`` is where its
    queue lists it, None when no list shows it.
    ``missing`` holds the ids of dependencies that have not completed; None when there were none, and an empty set for a
    job that waits for its first (`waits_for_first`).
    ``lease`` is the current lease of an active job, or the last one of a job that was taken back, so that its late
    ACK can be told from a stranger's. ``staged`` is a change that waits for its commit.
    """

    record: JobRecord
    state: JobState
    seq: int
    place: tuple[Any, ...] | None = None
    lease: Lease | None = None
    staged: Transition | None = None
    missing: set[str] | None = None
    dirty: int = 0
    is_stored: bool = False
    is_from_cron: bool = False
    block: Any = None
    key_expires_at: float | None = None
    """Wall ms at which its unique key stops holding; None: as long as the job lives; `KEY_GIVEN_UP`: since ever."""
    past: Past | None = None
    """None for a job that has had no earlier life, which is nearly every one."""
    child_failures: ChildFailures | None = None
    """What its children reported; ends with the job."""

    def __lt__(self, other: Job) -> bool:
        """Reached only by two heap entries of one job with equal keys, of which one is stale: any order will do."""
        return False


def extended_timeline(record: JobRecord, *entries: TimelineEntry) -> tuple[TimelineEntry, ...]:
    """The record's timeline with *entries* appended, as far as the cap of 20 allows."""
    return (record.timeline + entries)[:TIMELINE_MAX]


class SharedStep:
    """Appends one and the same step to the timelines of many jobs.

    Jobs pushed together share one tuple, and so they do here after the step: that saves memory, and whoever encodes
    timelines can tell by identity that it is the one he has encoded last.
    """

    __slots__ = ("_after", "_at", "_before", "_state")

    def __init__(self, state: str) -> None:
        self._state = state
        self._before: tuple[TimelineEntry, ...] | None = None
        self._after: tuple[TimelineEntry, ...] = ()
        self._at = 0.0

    def after(self, record: JobRecord, wall_ms: float) -> tuple[TimelineEntry, ...]:
        """The record's timeline with the step taken at *wall_ms*."""
        if record.timeline is not self._before or wall_ms != self._at:
            self._before, self._at = record.timeline, wall_ms
            self._after = extended_timeline(record, TimelineEntry(self._state, wall_ms))
        return self._after


def shown_state(job: Job, wall_ms: float) -> str:
    """The state as clients are told it: computed from run time and priority at the moment of asking."""
    state = job.state
    if state is JobState.STAGED and job.staged is not None and job.staged.held_from is not None:
        state = job.staged.held_from  # it has left its place for the time of a commit; nobody knows yet
    if state is JobState.READY or state is JobState.DELAYED:
        return queued_state(job.record, wall_ms)
    return _SHOWN[state]


def waits_for_first(job: Job) -> bool:
    """True for a job that has parked itself and that nobody has given anything to wait for yet.

    Cost: O(1) for nearly every job, O(its dependencies) for one that has parked itself.
    """
    past = job.past
    return past is not None and past.is_parked_again and set(past.met).issuperset(job.record.depends_on)


def queued_state(record: JobRecord, wall_ms: float) -> str:
    """delayed, prioritized or waiting, for a job that is in its queue."""
    if record.run_at > wall_ms:
        return "delayed"
    return "prioritized" if record.priority > 0 else "waiting"


_SHOWN = {
    JobState.STAGED: "unknown",
    JobState.PARKED: "waiting-children",
    JobState.ACTIVE: "active",
    JobState.COMPLETED: "completed",
    JobState.FAILED: "failed",
    JobState.GONE: "unknown",
}

replace = msgspec.structs.replace
