"""What listeners are told: a function for each thing that can happen, which appends to the list of `State.events`.

That list exists only while somebody listens; whoever brings a thing about asks ``state.events is not None`` first, so
that a server without listeners pays one comparison. A thing has happened when it takes effect: at the commit, where a
commit is promised. So nobody hears of a change that failed.

Source: scheduling and flows, "Job events"; HTTP, system events.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec import UNSET, Raw

from bunqueue_trio.model.commands import ABSENT
from bunqueue_trio.model.cron_job import CronJob
from bunqueue_trio.model.events import Event, JobEvent, NewerJobEvent, SystemEvent
from bunqueue_trio.model.instant import Now
from bunqueue_trio.model.job import Job, JobRecord
from bunqueue_trio.model.naming import NO_DATA
from bunqueue_trio.model.transitions import CronChange, CronNews, Transition

RETRY, TO_DEAD_LETTERS = "retry", "move_to_dlq"
"""What becomes of a stalled job."""

# Wire: in place of an error that nobody named.
UNKNOWN_ERROR = "unknown error"
UNNAMED_BY_WORKER = "Max attempts exceeded"

_NO_DATA = (ABSENT, NO_DATA)

# in general


def tell(events: list[Event], event: str, now: Now, **data: Any) -> None:
    """Something has happened that has no shape of its own; *data* in the order of the wire."""
    events.append(SystemEvent(event, now.wall_ms, data))


# coming and going


def pushed(events: list[Event], job: Job, now: Now) -> None:
    """A new job is there; if it waits for others, that is told first."""
    record = job.record
    if job.missing:
        parked(events, record, now)
    events.append(JobEvent("pushed", record.queue, record.id, now.wall_ms))


def parked(events: list[Event], record: JobRecord, now: Now) -> None:
    """The job waits for others."""
    data = {"jobId": record.id, "queue": record.queue, "dependsOn": list(record.depends_on)}
    events.append(SystemEvent("job:waiting-children", now.wall_ms, data))


def pushed_plain(events: list[Event], queue: str, ids: Iterable[str], now: Now) -> None:
    """New jobs are there that wait for nothing."""
    events.extend(JobEvent("pushed", queue, job_id, now.wall_ms) for job_id in ids)


def duplicated(events: list[Event], holder: JobRecord, now: Now, *, is_extended: bool) -> None:
    """A push has met the *holder* of its unique key, and may have prolonged its hold."""
    if not is_extended:
        events.append(JobEvent("duplicated", holder.queue, holder.id, now.wall_ms))
    strategy = "extend" if is_extended else "default"
    data = {"queue": holder.queue, "jobId": holder.id, "strategy": strategy}
    events.append(SystemEvent("job:deduplicated", now.wall_ms, data))


def pulled(events: list[Event], record: JobRecord, now: Now) -> None:
    """A worker has got the job."""
    events.append(JobEvent("pulled", record.queue, record.id, now.wall_ms))


def completed(events: list[Event], record: JobRecord, result: Raw | None, now: Now) -> None:
    """The job is done; *result* None: it has none."""
    data = UNSET if result is None else result
    events.append(JobEvent("completed", record.queue, record.id, now.wall_ms, data))


def cancelled(events: list[Event], record: JobRecord, now: Now) -> None:
    """Somebody has withdrawn the job."""
    events.append(JobEvent("removed", record.queue, record.id, now.wall_ms, prev="waiting"))


# attempts


def attempt_failed(
    events: list[Event],
    record: JobRecord,
    error: str | None,
    now: Now,
    *,
    is_retried: bool,
    is_by_child: bool = False,
    letter_reason: str | None = None,
) -> None:
    """An attempt has ended without success.

    Args:
        is_retried: there will be another.
        is_by_child: it is the failure of a parent.
        letter_reason: why the job has become a dead letter, if it has; that is told first.
    """
    if letter_reason is not None:
        dead_letter_added(events, record, letter_reason, now)
    events.append(
        JobEvent(
            "failed",
            record.queue,
            record.id,
            now.wall_ms,
            UNSET if record.data in _NO_DATA else record.data,
            UNSET if error is None else error,
            terminal=UNSET if is_by_child else not is_retried,
        )
    )
    if is_retried:
        events.append(JobEvent("retried", record.queue, record.id, now.wall_ms, prev="failed"))


def buried(events: list[Event], change: Transition, now: Now) -> None:
    """A job has failed for good, by its holder or by its child."""
    record = change.record
    entry = change.entry
    error = change.error if entry is None else entry.error
    reason = None if entry is None else entry.reason
    is_by_child = change.failed_child is not None
    attempt_failed(events, record, error, now, is_retried=False, is_by_child=is_by_child, letter_reason=reason)
    if change.failed_child is not None:
        parent_failed(events, record, change.failed_child, change.error, now)
    child_failed(events, record, error or UNNAMED_BY_WORKER, now)


def dead_letter_added(events: list[Event], record: JobRecord, reason: str, now: Now) -> None:
    """A job has become a dead letter."""
    tell(events, "dlq:added", now, queue=record.queue, jobId=record.id, reason=reason)


def timed_out(events: list[Event], record: JobRecord, now: Now) -> None:
    """The job has run for longer than it may."""
    tell(events, "job:timeout", now, jobId=record.id, queue=record.queue, timeout=record.timeout)


def expired(events: list[Event], record: JobRecord, now: Now) -> None:
    """The job has waited for longer than it is of use."""
    age = now.wall_ms - record.created_at
    tell(events, "job:expired", now, queue=record.queue, jobId=record.id, ttl=record.ttl, age=age)


def lock_expired(events: list[Event], record: JobRecord, renewal_count: int, now: Now) -> None:
    """The holder has let its lock end."""
    tell(events, "job:lock-expired", now, jobId=record.id, queue=record.queue, renewalCount=renewal_count)


def lock_lost(events: list[Event], record: JobRecord, error: str, letter_reason: str, now: Now) -> None:
    """The job has become a dead letter, because its holder has let its lock end once too often."""
    events.append(NewerJobEvent("stalled", record.queue, record.id, now.wall_ms, _stall(record, TO_DEAD_LETTERS)))
    dead_letter_added(events, record, letter_reason, now)
    events.append(JobEvent("failed", record.queue, record.id, now.wall_ms, error=error))  # Wire: without its data


def _stall(record: JobRecord, action: str) -> Raw:
    return Raw(msgspec.msgpack.encode({"stallCount": record.stall_count, "action": action}))


def stalled(events: list[Event], record: JobRecord, action: str | None, now: Now) -> None:
    """The holder of the job has fallen silent (*action*: what follows), or has let its lock end (None)."""
    data = UNSET if action is None else _stall(record, action)
    events.append(JobEvent("stalled", record.queue, record.id, now.wall_ms, data))
    if action is not None:  # Wire: twice under one name, the second time with what it means
        about = {"jobId": record.id, "queue": record.queue, "stallCount": record.stall_count, "action": action}
        tell(events, "job:stalled", now, **about)


def progressed(events: list[Event], record: JobRecord, message: Raw, now: Now) -> None:
    """The holder has told how far the job is; *message* is empty where none was sent."""
    told = {"progress": record.progress, "message": message or None}
    data = Raw(msgspec.msgpack.encode(told))
    events.append(JobEvent("progress", record.queue, record.id, now.wall_ms, data, progress=record.progress))


def taken_back(events: list[Event], record: JobRecord, delay_ms: float | None, now: Now) -> None:
    """An active job has been moved back into its queue, to run after a pause or (None) at once."""
    if delay_ms is None:
        events.append(JobEvent("waiting", record.queue, record.id, now.wall_ms, prev="active"))
    else:
        events.append(JobEvent("delayed", record.queue, record.id, now.wall_ms, delay=delay_ms))


# families


def parked_again(events: list[Event], record: JobRecord, now: Now) -> None:
    """An active job has been moved to wait for its children."""
    events.append(JobEvent("waiting-children", record.queue, record.id, now.wall_ms, prev="active"))


def let_go(events: list[Event], record: JobRecord, now: Now) -> None:
    """A parked job runs although not all it waited for has completed."""
    events.append(JobEvent("waiting", record.queue, record.id, now.wall_ms, prev="waiting-children"))


def dependencies_resolved(events: list[Event], record: JobRecord, now: Now) -> None:
    """All that a parked job waited for has completed."""
    data = {"jobId": record.id, "queue": record.queue}
    events.append(SystemEvent("job:dependencies-resolved", now.wall_ms, data))


def flow_completed(events: list[Event], parent: JobRecord, now: Now) -> None:
    """The last of a parent's children has completed."""
    data = {"parentJobId": parent.id, "queue": parent.queue, "childrenCount": len(parent.children_ids)}
    events.append(SystemEvent("flow:completed", now.wall_ms, data))


def child_failed(events: list[Event], child: JobRecord, error: str | None, now: Now) -> None:
    """A job has failed for good: tell it of its flow, if it is part of one."""
    if child.parent_id is not None:
        _flow_failed(events, child.parent_id, child.id, child.queue, error or UNKNOWN_ERROR, now)


def parent_failed(events: list[Event], parent: JobRecord, child_id: str, error: str | None, now: Now) -> None:
    """A job has failed because its child has."""
    _flow_failed(events, parent.id, child_id, parent.queue, error or UNKNOWN_ERROR, now)


def _flow_failed(events: list[Event], parent_id: str, child_id: str, queue: str, error: str, now: Now) -> None:
    data = {"parentJobId": parent_id, "failedChildId": child_id, "queue": queue, "error": error}
    events.append(SystemEvent("flow:failed", now.wall_ms, data))


# crons


def cron_changed(events: list[Event], change: CronChange, former: CronJob | None, now: Now) -> None:
    """A cron has been made or replaced, has had its turn, or (perhaps after its last turn) has gone."""
    job = change.job or former
    assert job is not None
    news = change.news
    if news is CronNews.CREATED or news is CronNews.UPDATED:
        _about_cron(events, news, job, now, **_definition(job))
    elif news is CronNews.SKIPPED:
        _about_cron(events, news, job, now, queue=job.queue, reason=change.detail)
    elif news is CronNews.MISSED:
        cron_missed(events, job, change.detail, now)
    elif news is CronNews.FIRED:
        _about_cron(events, news, job, now, queue=job.queue)
    if change.job is None:
        _about_cron(events, "deleted", job, now)


def cron_missed(events: list[Event], job: CronJob, error: str | None, now: Now) -> None:
    """A run of a cron has come to nothing, or has to be tried again."""
    _about_cron(events, CronNews.MISSED, job, now, queue=job.queue, error=error or UNKNOWN_ERROR)


def _about_cron(events: list[Event], news: str, job: CronJob, now: Now, **data: Any) -> None:
    events.append(SystemEvent(f"cron:{news}", now.wall_ms, {"name": job.name, **data}))


def _definition(job: CronJob) -> dict[str, Any]:
    timing = {"pattern": job.schedule, "every": job.repeat_every}
    given = {name: value for name, value in timing.items() if value is not None}
    return {"queue": job.queue, **given, "nextRun": job.next_run}


# queues and workers


def paused(events: list[Event], queue: str, now: Now, *, is_paused: bool) -> None:
    """A queue hands out no more jobs, or does again."""
    what = "paused" if is_paused else "resumed"
    tell(events, f"queue:{what}", now, queue=queue)
    events.append(JobEvent(what, queue, "", now.wall_ms))


def about_worker(events: list[Event], what: str, now: Now, **data: Any) -> None:
    """``connected``, ``heartbeat``, ``disconnected`` or ``removed-stale``."""
    events.append(SystemEvent(f"worker:{what}", now.wall_ms, data))
