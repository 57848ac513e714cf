"""A cron as it is stored: its definition, and how far it has come."""

from __future__ import annotations

from msgspec import Raw, Struct

from bunqueue_trio.model.job import BackoffConfig, Dedup

OVERLAP_PREFIX = "cron:"


class CronOptions(Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """What ``jobOptions`` gives to the jobs of a cron; None is the default of a push. The map of the wire."""

    max_attempts: float | int | None = None
    backoff: float | int | BackoffConfig | None = None
    timeout: float | int | None = None
    delay: float | int | None = None
    stall_timeout: float | int | None = None
    remove_on_complete: bool | None = None
    remove_on_fail: bool | None = None


class CronJob(Struct, frozen=True, gc=False):
    """One row of ``cron_jobs``.

    ``data`` is empty when the cron has none. ``schedule`` stands as it was sent; with it ``repeat_every`` (ms) has no
    effect. ``next_run`` is epoch ms, ``max_limit`` None: no limit. Its jobs are named by
    ``job_name``, which no column of the reference holds; None: they are unnamed.
    """

    name: str
    queue: str
    data: Raw
    schedule: str | None
    repeat_every: float | int | None
    priority: int
    next_run: float
    executions: int
    max_limit: float | int | None
    timezone: str | None
    unique_key: str | None
    dedup: Dedup | None
    skip_missed_on_restart: bool
    skip_if_no_worker: bool
    prevent_overlap: bool
    options: CronOptions | None
    job_name: str | None = None

    @property
    def effective_key(self) -> str | None:
        """The unique key of its jobs."""
        if self.unique_key is not None:
            return self.unique_key
        return OVERLAP_PREFIX + self.name if self.prevent_overlap else None

    @property
    def is_exhausted(self) -> bool:
        """True when it has run as often as it may."""
        return self.max_limit is not None and self.executions >= self.max_limit
