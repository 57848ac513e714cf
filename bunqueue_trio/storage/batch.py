"""What one flush writes: rows, ready to be bound. Built on the loop thread, applied by the writer thread.

A batch holds nothing but immutable rows, so the two threads share no mutable state.
"""

from typing import Any

from msgspec import Struct, field

Row = tuple[Any, ...]

PROBE_ID = "(probe)"
"""Remembered and forgotten in one transaction: what changes nothing, and is written all the same."""

PLAIN_COLUMNS = (
    "rowid", "id", "queue", "data", "priority", "created_at", "run_at", "custom_id", "state", "timeline",
)  # fmt: skip
"""A new job whose options are all defaults needs only these; the schema's defaults give the rest."""

FULL_COLUMNS = (
    "rowid", "id", "queue", "data", "priority", "created_at", "run_at", "started_at", "completed_at", "attempts",
    "max_attempts", "backoff", "ttl", "timeout", "unique_key", "custom_id", "depends_on", "parent_id", "children_ids",
    "tags", "state", "lifo", "group_id", "progress", "remove_on_complete", "remove_on_fail", "stall_timeout",
    "last_heartbeat", "stall_count", "timeline", "stacktrace",
)  # fmt: skip
"""Every column we write (``progress_msg`` stays null: a message may be any value, so it lives in the side table)."""

STATE_COLUMNS = (
    "id", "state", "run_at", "started_at", "completed_at", "attempts", "progress", "last_heartbeat", "stall_count",
    "timeline", "stacktrace",
)  # fmt: skip
"""What an execution changes: ``UPDATE ... WHERE id``."""

LINK_COLUMNS = ("id", "data", "parent_id", "children_ids")
"""What a new parent or a new child changes in a completed job: ``UPDATE ... WHERE id``."""

SETTINGS_COLUMNS = (
    "name", "paused", "rate_limit", "concurrency_limit", "rate_limit_duration", "rate_limit_expires_at",
    "stall_enabled", "stall_interval", "max_stalls", "stall_grace_period",
)  # fmt: skip


CRON_COLUMNS = (
    "name", "queue", "data", "schedule", "repeat_every", "priority", "next_run", "executions", "max_limit", "timezone",
    "unique_key", "dedup", "skip_missed_on_restart", "skip_if_no_worker", "prevent_overlap", "job_options",
)  # fmt: skip


SERIES_COLUMNS = ("queue", "slot", "minute", "completed", "failed", "completed_at", "failed_at")
"""What has ended in a queue: in all, in slot -1 and minute 0, and by the minute, in as many slots as are kept."""


class Batch(Struct, gc=False):
    """One transaction. Applied in the order of the fields: everything that deletes comes first.

    Attributes:
        emptied: (queue, ids that unfinished jobs name): every completed job and every dead letter of that queue goes,
            results and side rows included, and the settings of its groups; those that are named are remembered in
            ``bqt_finished`` and reported.
        reborn: ids whose finished row, result, side row and dead letters must go before they are inserted anew.
            The rows found tell the caller which completed jobs ended (`CommitReport.forgotten`).
        deleted: ids whose row, result and side row are deleted.
        letters_gone: job ids whose dead letters are deleted.
        links: rows of `LINK_COLUMNS`, for completed jobs only; one that is gone meanwhile is passed over.
        plain, full, states: rows in the order of the column tuples above. ``full`` is an UPSERT that keeps the rowid.
        reruns: full rows of completed jobs that run again: the old row goes, its result stays. A row that is no longer
            there is not brought back, but reported.
        results_gone: ids whose results go although their rows stay.
        results: (job_id, result blob, completed_at).
        letters: (job_id, queue, entry blob, entered_at).
        extras: (job_id, blob) of our side table; upsert.
        settings: rows of ``queue_state``; replace.  settings_gone: names back at their defaults.
        policies: (queue, blob) of our side table; upsert.  policies_gone: names back at their defaults.
        series: rows of `SERIES_COLUMNS` that are added to those of the same minute and replace those of another.
        groups: (queue, group, blob) of our side table; upsert.  groups_gone: (queue, group) back at their defaults.
        crons: rows of ``cron_jobs``; upsert that keeps the rowid, which is their order.  crons_gone: names.
        job_names: (cron, name of its jobs) of our side table; upsert.  job_names_gone: crons that name them no longer.
        finished: ids to remember as completed although their row is gone; finished_gone: the reverse.
        needs_sync: this commit must reach the disk (fsync) before it counts.
        row_count: how many jobs it touches, for metrics and logs.
    """

    emptied: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    reborn: list[str] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    letters_gone: list[str] = field(default_factory=list)
    results_gone: list[str] = field(default_factory=list)
    reruns: list[Row] = field(default_factory=list)
    links: list[Row] = field(default_factory=list)
    plain: list[Row] = field(default_factory=list)
    full: list[Row] = field(default_factory=list)
    states: list[Row] = field(default_factory=list)
    results: list[Row] = field(default_factory=list)
    letters: list[Row] = field(default_factory=list)
    extras: list[Row] = field(default_factory=list)
    settings: list[Row] = field(default_factory=list)
    settings_gone: list[str] = field(default_factory=list)
    policies: list[Row] = field(default_factory=list)
    policies_gone: list[str] = field(default_factory=list)
    series: list[Row] = field(default_factory=list)
    groups: list[Row] = field(default_factory=list)
    groups_gone: list[Row] = field(default_factory=list)
    crons: list[Row] = field(default_factory=list)
    crons_gone: list[str] = field(default_factory=list)
    job_names: list[Row] = field(default_factory=list)
    job_names_gone: list[str] = field(default_factory=list)
    finished: list[str] = field(default_factory=list)
    finished_gone: list[str] = field(default_factory=list)
    needs_sync: bool = False
    row_count: int = 0


class CommitReport(Struct, frozen=True, gc=False):
    """What the writer found out while committing.

    ``forgotten`` names the queue of each completed job that a rebirth deleted, ``kept`` the jobs of an emptied queue
    that are remembered as completed, ``missing`` the jobs that were to run again but had gone. ``wal_bytes`` is the
    size of the WAL file after the commit, ``duration_ms`` how long it took. ``has_mended``: indexes were
    found damaged, and have been built anew.
    """

    forgotten: list[str]
    wal_bytes: int
    duration_ms: float
    kept: list[str] = []
    missing: list[str] = []
    has_mended: bool = False
