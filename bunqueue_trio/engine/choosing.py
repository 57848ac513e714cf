"""Which job a pull gets: the best of those that are ready, or of the group whose turn it is, within the queue's limits.

Source: protocol, "Selection and order"; commands, "Queue control"; newer clients, 8.
"""

from bunqueue_trio.engine import happenings, policies
from bunqueue_trio.engine.heaps import first
from bunqueue_trio.engine.leases import NEVER, PARENT_BUSY_MS
from bunqueue_trio.engine.queue_state import QueueState
from bunqueue_trio.engine.state import State
from bunqueue_trio.model.grouping import PullGroup
from bunqueue_trio.model.instant import Now
from bunqueue_trio.model.job import Job


def next_ready(state: State, queue: QueueState, now: Now, asked: PullGroup | None = None) -> Job | None:
    """The job that may be handed out now, still in its place, or None. O(log n) in the queue's jobs.

    In this order: paused; expired ttl (deleted on sight); not yet due; group busy; concurrency; rate. A refusal by one
    of the last two ends the search, for no job may pass it. Members of named groups come behind all others.

    Args:
        asked: what the pull says about groups.
    """
    settings = queue.settings
    if settings.paused or not state.hands_out:
        return None
    if queue.delayed and queue.delayed[0][0] <= now.wall_ms and (moved := queue.mature(now.wall_ms)):
        state.wake(queue, moved)  # this pull takes one of them at most, and the tick will find them ready already
    if asked is not None and type(asked.affinity) is str:
        return _next_in_turn(state, queue, now, asked)
    while (job := first(queue.ready)) is not None:
        record = job.record
        if record.ttl is not None and now.wall_ms > record.created_at + record.ttl:
            if not _expires(state, queue, job, now):
                return None
        elif record.run_at > now.wall_ms:
            queue.put_back(job)
        elif record.group_id is not None and queue.is_busy(record.group_id):
            queue.set_aside(job, queue.group(record.group_id))
        elif _has_room(state, queue, now):
            return job
        else:
            return None
    return None if queue.named_groups is None else _next_in_turn(state, queue, now, asked)


def _next_in_turn(state: State, queue: QueueState, now: Now, asked: PullGroup | None) -> Job | None:
    """The same for members of named groups; where none may be served yet, pulls that wait are to try again in time."""
    groups = queue.named_groups
    if groups is None or (asked is not None and asked.affinity is None):
        return None
    while (job := groups.first(asked, queue.groups, now.mono_ms)) is not None:
        record = job.record
        if record.ttl is not None and now.wall_ms > record.created_at + record.ttl:
            if not _expires(state, queue, job, now):
                return None
        elif record.run_at > now.wall_ms:
            queue.put_back(job)
        elif _has_room(state, queue, now):
            return job
        else:
            return None
    due = groups.next_end_mono_ms()
    if due != NEVER:
        _look_again(state, queue, due, now)
    return None


def _expires(state: State, queue: QueueState, job: Job, now: Now) -> bool:
    """The ttl of *job*, which was to be next, is over: delete it. False when that has to wait for its parent."""
    if policies.must_wait(state, job.record, now):
        _look_again(state, queue, now.mono_ms + PARENT_BUSY_MS, now)
        return False
    if state.events is not None:
        happenings.expired(state.events, job.record, now)
    policies.drop(state, job, "Job ttl expired", now)
    return True


def _has_room(state: State, queue: QueueState, now: Now) -> bool:
    """Whether the queue's limits let one more job out; a rate token is spent only when the concurrency limit does."""
    limit = queue.settings.concurrency_limit
    if limit is not None and queue.active_count >= limit:
        refusal = "concurrency:rejected"
    elif queue.bucket is None or _spend_token(state, queue, now):
        return True
    else:
        refusal = "ratelimit:rejected"
    if state.events is not None:
        happenings.tell(state.events, refusal, now, queue=queue.name)
    return False


def _spend_token(state: State, queue: QueueState, now: Now) -> bool:
    bucket = queue.bucket
    assert bucket is not None
    if bucket.expires_at is not None and now.wall_ms >= bucket.expires_at:
        queue.bucket = None
        return True
    if bucket.take(now):
        return True
    moments = [bucket.next_token_mono_ms(now)]
    if bucket.expires_at is not None:
        moments.append(now.mono_ms + bucket.expires_at - now.wall_ms)  # too early if that clock goes back: asked again
    ahead = [moment for moment in moments if moment is not None]
    if ahead:
        _look_again(state, queue, min(ahead), now)
    return False


def _look_again(state: State, queue: QueueState, mono_ms: float, now: Now) -> None:
    """Have the pulls that wait for *queue* try again then; those that poll set no further timer."""
    if not now.mono_ms < queue.refill_mono_ms <= mono_ms:
        queue.refill_mono_ms = mono_ms
        state.arm(mono_ms, queue)
