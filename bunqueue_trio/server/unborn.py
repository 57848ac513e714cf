"""Pushes that come to nothing because the file refuses: neither it nor anybody else will ever know of their jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bunqueue_trio.model.job import Job, JobState

if TYPE_CHECKING:
    from bunqueue_trio.engine.core import Engine
    from bunqueue_trio.model.changes import Changes
    from bunqueue_trio.model.instant import Now


def unstage_all(engine: Engine, now: Now) -> None:
    """Storage is known to refuse: drop what the last command has staged."""
    staged = engine.state.changes.staged
    engine.state.changes.staged = []
    engine.drop_staged(staged, now)
    jobs = engine.state.changes.jobs
    while jobs and _is_unborn(jobs[-1]):
        jobs.pop().dirty = 0


def forget_unborn(changes: Changes) -> None:
    """A flush has failed: pushes that were refused with it leave nothing to write, and take no room.

    Cost: a look at each job that is to be written.
    """
    if any(map(_is_unborn, changes.jobs)):
        for job in filter(_is_unborn, changes.jobs):
            job.dirty = 0
        changes.jobs = [job for job in changes.jobs if job.dirty]


def _is_unborn(job: Job) -> bool:
    return job.state is JobState.GONE and not job.is_stored
