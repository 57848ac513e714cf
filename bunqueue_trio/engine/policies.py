"""What the final failure of a child does to its parent: the four options that a child carries.

    failParentOnFailure         the parent becomes a dead letter: a final failure of its own, which goes on upwards
    continueParentOnFailure     the parent runs at once, whatever else it waits for; the failure is noted
    ignoreDependencyOnFailure   the parent no longer waits for this child; the failure is noted
    removeDependencyOnFailure   the same, and nothing is noted

The first of them that is set decides. They act on a parent that is queued or parked; an active or finished one is left
alone. A failure is final however it came about: FAIL, stall, timeout, lost lock or connection, expired ttl, Discard,
the recovery at start. Parent and child change in one transaction, so a child whose parent has a change under way has to
wait with its end: commands come again after the commit, timers a moment later (`must_wait`).

Source: scheduling and flows, "Failure policies"; SD-18, SD-20, SD-21, CD-20.
"""

from bunqueue_trio.engine import dead_letters, happenings, retries
from bunqueue_trio.engine.state import PendingChangeError, State
from bunqueue_trio.model.changes import Dirty
from bunqueue_trio.model.instant import Now
from bunqueue_trio.model.job import (
    ChildFailures,
    Job,
    JobRecord,
    JobState,
    TimelineEntry,
    extended_timeline,
    queued_state,
    replace,
)
from bunqueue_trio.model.transitions import Transition, TransitionKind

WAITING = frozenset({JobState.READY, JobState.DELAYED, JobState.PARKED})
CASCADE_MAX = 1_000  # ancestors that one failure may end; a text grows with each, and so does the transaction
ERROR_MAX = 2_000  # characters of an error that its parent remembers, or names in its own
FAILURES_MAX = 1_000  # children of one job whose failures are remembered: its row is rewritten with each


# deciding


def consequences(state: State, child: JobRecord, error: str | None, now: Now) -> list[Transition]:
    """What the final failure of *child* does to its parent and, as far as that one fails too, to those above.

    Raises:
        PendingChangeError: one of them has a change that waits for its commit. Nothing has changed.

    Cost: constant for a job without a parent; else O(dependencies of the parent). A circle of parents ends at the job
    where it began.
    """
    found: list[Transition] = []
    if child.parent_id is None:
        return found
    met = {child.id}
    text = _text(error)
    while len(found) < CASCADE_MAX and _has_policy(child) and child.parent_id not in met:
        parent = state.jobs.get(child.parent_id or "")
        if parent is None or state.settled(parent).state not in WAITING:
            break
        change = _consequence(state, parent, child, text, now)
        if change is None:
            break
        found.append(change)
        if change.entry is None:
            break
        met.add(parent.record.id)
        child, text = change.record, _text(change.entry.error)
    return found


def must_wait(state: State, child: JobRecord, now: Now) -> bool:
    """True when *child* may not fail for good right now, because a parent has a change under way."""
    if child.parent_id is None:
        return False
    try:
        consequences(state, child, None, now)
    except PendingChangeError:
        return True
    return False


def loosened(
    parent: Job,
    gone: frozenset[str],
    now: Now,
    *,
    failures: ChildFailures | None,
    runs_anyway: bool = False,
) -> Transition | None:
    """The change of *parent* by which it no longer waits for *gone*; None when it changes nothing.

    Args:
        failures: what it then knows of its children.
        runs_anyway: release it although it waits for others.
    """
    record = parent.record
    depends_on = tuple(job_id for job_id in record.depends_on if job_id not in gone)
    missing = parent.missing or set()
    is_released = parent.state is JobState.PARKED and (runs_anyway or (bool(missing) and missing <= gone))
    if len(depends_on) == len(record.depends_on) and not is_released and failures is parent.child_failures:
        return None
    changed = replace(record, depends_on=depends_on)
    if is_released:
        changed.run_at = now.wall_ms
        entry = TimelineEntry(queued_state(changed, now.wall_ms), now.wall_ms)
        changed.timeline = extended_timeline(record, entry)
    state_after = JobState.READY if is_released else parent.state
    change = Transition(TransitionKind.LOOSEN, parent, changed, state_after, dirty=Dirty.FULL)
    change.child_failures = failures
    if is_released and parent.past is not None and parent.past.is_parked_again:
        change.past = parent.past.released()
        change.dirty |= Dirty.EXTRA
    return change


def _consequence(state: State, parent: Job, child: JobRecord, text: str, now: Now) -> Transition | None:
    if child.fail_parent_on_failure:
        error = f"Child job {child.id} failed: {text}"
        entry = dead_letters.dead_letter(state, parent, parent.record, retries.UNKNOWN, error, now)
        return Transition(
            TransitionKind.BURY, parent, parent.record, JobState.GONE, entry=entry, error=text, failed_child=child.id
        )
    known = parent.child_failures or ChildFailures()
    key = f"{child.queue}:{child.id}"
    if child.continue_parent_on_failure:
        failures = _noted(known, "failed", key, text, parent)
        return loosened(parent, frozenset(), now, failures=failures, runs_anyway=True)
    failures = parent.child_failures
    if child.ignore_dependency_on_failure:
        failures = _noted(known, "ignored", key, text, parent)
    return loosened(parent, frozenset({child.id}), now, failures=failures)


def _noted(known: ChildFailures, name: str, key: str, text: str, parent: Job) -> ChildFailures | None:
    """What *parent* knows with one failure more; the same object when there is no room or it is no news."""
    noted: dict[str, str] = getattr(known, name)
    if noted.get(key) == text or (key not in noted and len(known.failed) + len(known.ignored) >= FAILURES_MAX):
        return parent.child_failures
    return replace(known, **{name: {**noted, key: text}})


def _has_policy(child: JobRecord) -> bool:
    return (
        child.fail_parent_on_failure
        or child.continue_parent_on_failure
        or child.ignore_dependency_on_failure
        or child.remove_dependency_on_failure
    )


def _text(error: str | None) -> str:
    return (error or happenings.UNKNOWN_ERROR)[:ERROR_MAX]


# carrying out


def stage_failure(state: State, transition: Transition, error: str | None, now: Now) -> None:
    """Hold back the final failure of a job, and what it does to its parents, until both have committed.

    Raises:
        PendingChangeError: as `consequences`.
    """
    parents = consequences(state, transition.record, error, now)
    state.stage_end(transition)
    for change in parents:
        state.stage_end(change)


def bury(state: State, job: Job, reason: str, error: str | None, now: Now) -> None:
    """Move *job* to the dead letters at once, as `dead_letters.bury` does, and see to its parents.

    For failures that nobody asked for. The caller has made sure that it need not wait.
    """
    dead_letters.bury(state, job, reason, error, now)
    fail_parents(state, job.record, error, now)


def drop(state: State, job: Job, error: str, now: Now) -> None:
    """*job* has failed for good and leaves no dead letter: remove it and see to its parents."""
    state.end(job)
    state.changes.touch(job, Dirty.STATE)
    fail_parents(state, job.record, error, now)
    state.note_removed(job.record.id)


def fail_parents(state: State, child: JobRecord, error: str | None, now: Now) -> None:
    """*child* has just failed for good, at once: so change its parents. Written with the same flush."""
    changes = consequences(state, child, error, now)
    if state.events is not None:
        happenings.child_failed(state.events, child, error, now)
    for change in changes:
        parent = change.job
        if change.entry is not None:
            state.note_failure(parent.record.queue)
            dead_letters.bury(state, parent, retries.UNKNOWN, change.entry.error, now)
            if state.events is not None:
                happenings.buried(state.events, change, now)
        else:
            change.held_from = parent.state
            state.leave_place(parent)
            loosen(state, change, now)
            state.changes.touch(parent, Dirty.FULL)


def loosen(state: State, change: Transition, now: Now) -> None:
    """Let a LOOSEN take effect on its job, which has left its place."""
    job = change.job
    for dependency in set(job.record.depends_on).difference(change.record.depends_on):
        state.forget_dependency(job.record.id, dependency)
        if job.missing is not None:
            job.missing.discard(dependency)
    if change.state is JobState.READY:
        job.missing = None
    job.record = change.record
    job.child_failures = change.child_failures
    if state.events is not None and change.held_from is JobState.PARKED and change.state is JobState.READY:
        happenings.let_go(state.events, job.record, now)
    state.resume(job, change.held_from, now)
