"""The job option ``repeat``: a job that completes leaves a successor, which is pushed in the same transaction.

So a chain neither breaks nor forks in a crash. It ends with its ``limit`` or its ``endDate``, and with a job that ends
in any other way than by completing. What the successor takes over of its predecessor is listed in `_successor`.

Source: scheduling and flows, "Job option repeat"; SD-8 to SD-10.
"""

from collections.abc import Callable
from math import ceil, isfinite
from typing import Any

from bunqueue_trio.engine.cron.timing import SMALL_STEP_MS
from bunqueue_trio.engine.repeat_patterns import pattern_of
from bunqueue_trio.engine.state import State
from bunqueue_trio.model.changes import Dirty
from bunqueue_trio.model.instant import Now
from bunqueue_trio.model.job import Job, JobRecord, JobState, RepeatConfig, TimelineEntry, queued_state, replace
from bunqueue_trio.model.transitions import Transition, TransitionKind

NextMatch = Callable[[str, str | None, float], float | None]
"""The first moment after a given one (epoch ms) that a cron pattern names in a zone (None: that of the server); None:
there is none."""

UNPACED_MS = 1_000  # SD-8: what names neither an interval nor a pattern must not run without any pause
MAX_LINKS = 10_000  # Wire: so many finished jobs pass an Update on to their successor


def stage_successor(state: State, old: JobRecord, repeat: RepeatConfig, now: Now) -> None:
    """*old* is about to complete: have its successor pushed with the same commit, unless the chain ends here."""
    run_at = next_run_at(repeat, now.wall_ms, state.next_match, served_ms=old.run_at)
    if run_at is None:
        return
    record = _successor(state, old, repeat, run_at, now)
    job = Job(record=record, state=JobState.STAGED, seq=state.next_seq)
    state.next_seq += 1
    job.dirty = Dirty.FULL
    job.staged = push = Transition(TransitionKind.PUBLISH, job, record, JobState.READY, succeeds=old.id)
    state.jobs[record.id] = job
    state.stage(push)


def link(state: State, old_id: str, new_id: str) -> None:
    """From now on an Update of *old_id* is meant for *new_id*."""
    links = state.successors
    links.pop(old_id, None)
    links[old_id] = new_id
    if len(links) > MAX_LINKS:
        del links[next(iter(links))]


def next_run_at(
    repeat: RepeatConfig, wall_ms: float, next_match: NextMatch | None, *, served_ms: float = 0
) -> float | None:
    """When the successor of a job that completes now is to run, whole epoch ms; None: the chain ends.

    Not before ``startDate``, and not at all after ``endDate``.

    Args:
        next_match: the arithmetic of patterns; without it a pattern is passed over.
        served_ms: when the job that completes was to run.
    """
    count, limit = _number(repeat.count) or 0, _number(repeat.limit)
    if limit is not None and count >= limit:
        return None
    start, every = _number(repeat.start_date) or 0, _number(repeat.every)
    asked = pattern_of(repeat)
    if next_match is not None and asked is not None:
        # As with crons, a clock that is set back a little makes no moment of the pattern come twice.
        after_ms = served_ms if 0 < served_ms - wall_ms <= SMALL_STEP_MS else wall_ms
        # A match on the start itself counts.
        found = next_match(*asked, max(after_ms, start - 1))
        if found is None:
            return None
        run_at = found
    else:
        run_at = max(wall_ms + (every or UNPACED_MS), start)
    end = _number(repeat.end_date)
    return None if end is not None and run_at > end else float(ceil(run_at))


def _successor(state: State, old: JobRecord, repeat: RepeatConfig, run_at: float, now: Now) -> JobRecord:
    """A new job like *old*: of the same name and work, but with no custom id, no key, no family and no history."""
    wall_ms = now.wall_ms
    record = type(old)(
        id=state.ids.job_id(wall_ms),
        queue=old.queue,
        data=old.data,
        created_at=wall_ms,
        run_at=run_at,
        last_heartbeat=wall_ms,
        backoff=old.backoff,
        tags=old.tags,
        repeat=replace(repeat, count=(_number(repeat.count) or 0) + 1),
        priority=old.priority,
        lifo=old.lifo,
        max_attempts=old.max_attempts,
        remove_on_complete=old.remove_on_complete,
        remove_on_fail=old.remove_on_fail,
        ttl=old.ttl,
        timeout=old.timeout,
        group_id=old.group_id,
        own_name=old.own_name,
    )
    record.timeline = (TimelineEntry(queued_state(record, wall_ms), wall_ms),)
    return record


def _number(value: Any) -> float | None:
    return value if isinstance(value, int | float) and isfinite(value) else None
