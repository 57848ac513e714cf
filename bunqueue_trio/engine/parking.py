"""MoveToWaitingChildren: a job that runs gives up its place and waits for its children.

It waits for those of its dependencies that are still open, but for no one who waits for it (SD-19). When there are none
it waits for the first that it is going to have, for a worker adds children to a job only after that job has parked: a
running one cannot be linked to. Whatever it had done with before is kept in its side row (`Past.met`), so that a
restart does not make it wait for that anew.

    active --MoveToWaitingChildren--> parked --last open child completes, or lets go--> ready
                                         ^-------- linked to a child --------|

Source: newer clients, "Moves of an active job"; D-110.
"""

from bunqueue_trio.engine import happenings
from bunqueue_trio.engine.circles import waiters
from bunqueue_trio.engine.state import State
from bunqueue_trio.model.changes import Dirty
from bunqueue_trio.model.instant import Now
from bunqueue_trio.model.job import (
    KEY_GIVEN_UP,
    Job,
    JobState,
    Past,
    TimelineEntry,
    extended_timeline,
    replace,
    shown_state,
)
from bunqueue_trio.model.leases import TakenBack
from bunqueue_trio.model.transitions import Transition, TransitionKind

NOTHING: frozenset[str] = frozenset()
OVER = ("failed", "completed", "unknown")


def parked(state: State, job: Job, now: Now) -> Transition:
    """The change by which the active *job* parks. Cost: O(its dependencies), and that of `waiters` if one is open."""
    record = job.record
    still_open = [dependency for dependency in record.depends_on if _is_open(state, dependency, now)]
    waited_for = set(still_open).difference(waiters(state, record.id)) if still_open else NOTHING
    for dependency in waited_for:
        _make_known(state, record.id, dependency)
    met = tuple(dependency for dependency in record.depends_on if dependency not in waited_for)
    timeline = extended_timeline(record, TimelineEntry("waiting-children", now.wall_ms))
    changed = replace(record, started_at=None, timeline=timeline)
    past = replace(job.past or Past(), met=met, is_parked_again=True)
    return Transition(TransitionKind.PARK, job, changed, JobState.PARKED, dirty=Dirty.EXTRA, past=past)


def apply(state: State, change: Transition, now: Now) -> None:
    """It has committed: lock, slot, group and unique key are free."""
    job, record = change.job, change.record
    queue = state.queues[record.queue]
    state.deactivate(job)
    if job.lease is not None:
        job.lease.taken_back = TakenBack.MOVED
    if record.unique_key is not None:
        state.free_key(job)
        job.key_expires_at = KEY_GIVEN_UP
    assert isinstance(change.past, Past)
    job.record, job.past = record, change.past
    if state.events is not None:
        happenings.parked_again(state.events, record, now)
    waited_for = set(record.depends_on).difference(job.past.met)
    job.missing = {dependency for dependency in waited_for if not state.is_met(dependency)}
    if job.missing or not waited_for:
        queue.park(job)
    else:  # the last of them has completed while this was on its way into the file
        job.missing = None
        state.release(queue, job, now)


def _make_known(state: State, job_id: str, dependency: str) -> None:
    """Who has been a dead letter is not among those that wait for it any more; and the file has to remember its end."""
    state.dependents.setdefault(dependency, set()).add(job_id)
    change = state.jobs[dependency].staged
    if change is not None and change.kind is TransitionKind.COMPLETE:
        change.keeps_id = True


def _is_open(state: State, dependency: str, now: Now) -> bool:
    job = state.jobs.get(dependency)
    return job is not None and shown_state(job, now.wall_ms) not in OVER
