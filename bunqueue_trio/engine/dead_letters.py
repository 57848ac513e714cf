"""Dead letters: how a job becomes one, which of them go, and when one comes back by itself.

`State.letters_due` says when to look at an entry: at the end of its age and, where the queue's policy asks for it, at
its next retry. Stale entries of that heap are dropped as they surface or, before they outnumber the others, swept out.
Both times are on the wall clock and were fixed when the entry was made; a clock that jumps forward makes them due at
once, a few at each tick, and one that goes back makes nothing early.

Source: commands, "Dead letter queue"; CD-15 to CD-17.
"""

from collections import Counter
from heapq import heapify, heappop, heappush

from bunqueue_trio.engine import happenings
from bunqueue_trio.engine.letter_filter import has_expired, is_retry_due
from bunqueue_trio.engine.state import State
from bunqueue_trio.model.changes import Dirty
from bunqueue_trio.model.entries import AttemptRecord, DlqEntry, DlqPolicy
from bunqueue_trio.model.instant import Now
from bunqueue_trio.model.job import (
    Job,
    JobRecord,
    JobState,
    Past,
    TimelineEntry,
    extended_timeline,
    queued_state,
    replace,
)
from bunqueue_trio.model.transitions import Transition, TransitionKind

LOOKS_PER_TICK = 100  # some 10 µs each; a tick that finds more goes on in the next one
LOOK_AGAIN_MS = 60_000  # what could not be done now is tried again as often as the reference looks at all
MAX_DOUBLINGS = 64  # beyond any cap; keeps the arithmetic in floats
PAUSE_CAP_MS = 31_536_000_000


# in


def dead_letter(state: State, job: Job, record: JobRecord, reason: str, error: str | None, now: Now) -> DlqEntry:
    """The entry for *job* if it ends as *record* shows it. Nothing changes yet.

    How often the job was brought back without anybody asking goes on from its earlier lives (CD-17).
    """
    started_at = record.started_at
    attempt = AttemptRecord(
        attempt=record.attempts,
        started_at=record.created_at if started_at is None else started_at,
        failed_at=now.wall_ms,
        reason=reason,
        error=error,
        duration=0 if started_at is None else max(0.0, now.wall_ms - started_at),
    )
    policy = state.queue(record.queue).settings.dlq
    past = Past() if job.past is None else job.past
    return DlqEntry(
        job=record,
        entered_at=now.wall_ms,
        reason=reason,
        error=error,
        attempts=[attempt],
        retry_count=past.auto_retries,
        last_retry_at=past.auto_retried_at,
        next_retry_at=_next_retry_at(policy, past.auto_retries, now),
        expires_at=now.wall_ms + policy.max_age if policy.max_age else None,
    )


def _next_retry_at(policy: DlqPolicy, retry_count: int, now: Now) -> float | None:
    """The pause is the interval, twice that after the second retry, and so on; None when there is to be no retry."""
    if not policy.auto_retry or retry_count >= policy.max_auto_retries:
        return None
    pause = policy.auto_retry_interval * 2.0 ** min(max(0, retry_count - 1), MAX_DOUBLINGS)
    return now.wall_ms + min(pause, PAUSE_CAP_MS)


def bury(state: State, job: Job, reason: str, error: str | None, now: Now) -> None:
    """Move *job*, as its record stands, to the dead letters at once; written with the next flush.

    For failures that nobody asked for and nobody waits for: lost workers, lost locks, stalls, timeouts.
    """
    state.leave_place(job)
    entry = dead_letter(state, job, job.record, reason, error, now)
    state.changes.letters[entry.job.id] = entry
    state.unlist(job)
    job.state = JobState.GONE
    state.changes.touch(job, Dirty.STATE)
    enter(state, job, entry)


def enter(state: State, job: Job, entry: DlqEntry) -> Job:
    """Show *entry* among the dead letters of its queue, and see to its times. Its rows are the caller's business.

    The oldest entries beyond the queue's bound go for good, row and all (CD-15).

    Returns:
        The job that stands for it from now on.
    """
    state.free_key(job)
    state.forget_waiting(job)  # a dead letter waits for nothing
    letter = show(state, entry)
    letter.lease = job.lease
    state.note_end(entry.job.id)
    _make_room(state, entry)
    return letter


def show(state: State, entry: DlqEntry) -> Job:
    """Put *entry* last among the dead letters of its queue. For recovery, which makes room afterwards."""
    exchange(state, entry)
    return state.letter_job(entry)


def exchange(state: State, entry: DlqEntry) -> None:
    """*entry* takes the place of the one that its id has; an id without one comes last."""
    state.queues[entry.job.queue].letters[entry.job.id] = entry
    watch(state, entry, min(_times(entry), default=None))


def _make_room(state: State, newest: DlqEntry) -> None:
    queue = state.queues[newest.job.queue]
    while len(queue.letters) > queue.settings.dlq.max_entries:
        oldest = next(iter(queue.letters))
        evicted = state.jobs[oldest]
        heir = None if evicted.state is JobState.FAILED else evicted.staged
        letter = evicted if heir is None else heir.former
        assert letter is not None
        if letter.staged is not None:
            return  # it is about to leave; should its commit fail, the next arrival makes room
        if heir is None:
            state.drop(letter)
            state.forget_logs(oldest)
        else:
            # A durable push has reserved the id and waits for its commit: should that fail, nothing comes back.
            del queue.letters[oldest]
            state.letter_gone(oldest)
            queue.hide_letter(letter)
            state.unlist(letter)
            heir.former = None
        state.totals.letters_evicted += 1


def trim(state: State, queue_name: str) -> None:
    """Make room in a queue whose entries have just been read from the file."""
    queue = state.queues.get(queue_name)
    if queue is not None and queue.letters:
        _make_room(state, next(reversed(queue.letters.values())))


# by time


def _times(entry: DlqEntry) -> list[float]:
    return [at for at in (entry.next_retry_at, entry.expires_at) if at is not None]


def watch(state: State, entry: DlqEntry, wall_ms: float | None) -> None:
    """Have `look_at_due` see *entry* at that time; None: never."""
    if wall_ms is None:
        return
    due = state.letters_due
    heappush(due, (wall_ms, state.next_tie(), entry))
    if len(due) > state.letters_due_swept_from:
        # Letters that were retried or purged long before they would have expired must not leave an entry each.
        live = {id(item[2]): item for item in sorted(due, reverse=True) if _is_live(state, item[2])}
        state.letters_due = list(live.values())
        heapify(state.letters_due)
        state.letters_due_swept_from = max(1_000, 2 * len(state.letters_due))


def _is_live(state: State, entry: DlqEntry) -> bool:
    queue = state.queues.get(entry.job.queue)
    return queue is not None and queue.letters.get(entry.job.id) is entry


def policy_changed(state: State, queue_name: str, now: Now) -> None:
    """Entries whose retry was due while retries were off are looked at now. O(dead letters of the queue)."""
    queue = state.queues[queue_name]
    if queue.settings.dlq.auto_retry:
        for entry in list(queue.letters.values()):
            if entry.next_retry_at is not None:
                watch(state, entry, max(entry.next_retry_at, now.wall_ms))


def look_at_due(state: State, now: Now) -> None:
    """Retry or remove the dead letters whose time has come, a hundred at the most; more wait for the next tick."""
    retried: Counter[str] = Counter()
    expired: Counter[str] = Counter()
    for _ in range(LOOKS_PER_TICK):
        if not state.letters_due or state.letters_due[0][0] > now.wall_ms:
            break
        _, _, entry = heappop(state.letters_due)
        if _is_live(state, entry):
            _look_at(state, entry, now, retried, expired)
    for queue_name, count in retried.items():
        state.announce("dlq:auto-retried", queue=queue_name, count=count)
    if state.events is not None:
        for queue_name, count in expired.items():
            happenings.tell(state.events, "dlq:expired", now, queue=queue_name, count=count)


def _look_at(state: State, entry: DlqEntry, now: Now, retried: Counter[str], expired: Counter[str]) -> None:
    job = state.jobs[entry.job.id]
    if job.state is not JobState.FAILED or job.staged is not None:
        watch(state, entry, now.wall_ms + LOOK_AGAIN_MS)  # somebody else is about to take it away
        return
    policy = state.queues[entry.job.queue].settings.dlq
    if _wants_retry(entry, policy, now):
        watch(state, entry, now.wall_ms + LOOK_AGAIN_MS)  # its key may be taken, its commit may fail
        past = Past(entry.retry_count + 1, now.wall_ms)
        if revive(state, job, now, past=past):
            retried[entry.job.queue] += 1
    elif has_expired(entry, now.wall_ms):
        state.drop(job)
        state.forget_logs(entry.job.id)
        state.totals.letters_expired += 1
        expired[entry.job.queue] += 1
    else:
        ahead = [at for at in _times(entry) if at > now.wall_ms]
        watch(state, entry, min(ahead, default=None))


def _wants_retry(entry: DlqEntry, policy: DlqPolicy, now: Now) -> bool:
    return policy.auto_retry and is_retry_due(entry, policy, now.wall_ms)


# out


def revive(state: State, job: Job, now: Now, *, past: Past | None = None) -> bool:
    """Stage the return of a dead letter into its queue. False, and nothing happens, when another job holds its key.

    Args:
        past: what the new life remembers; None: it starts over, because somebody asked for it.
    """
    old = job.record
    if not take_key(state, job, now):
        return False
    record = replace(
        old,
        attempts=0,
        stall_count=0,
        run_at=now.wall_ms,
        last_heartbeat=now.wall_ms,
        started_at=None,
        timeline=extended_timeline(old, TimelineEntry(queued_state(old, now.wall_ms), now.wall_ms)),
    )
    job.seq = state.next_seq
    state.next_seq += 1
    job.past = past
    job.staged = revival = Transition(TransitionKind.REVIVE, job, record, JobState.READY, dirty=Dirty.FULL)
    state.stage(revival)
    return True


def take_key(state: State, job: Job, now: Now) -> bool:
    """Register the unique key of a job that starts a new life (CD-13). False when a live job holds it."""
    key = job.record.unique_key
    if key is None:
        return True
    keys = state.queue(job.record.queue).keys
    holder = keys.get(key)
    if holder is not None and holder is not job and not has_lost_key(holder, now):
        return False
    keys[key] = job
    return True


def has_lost_key(holder: Job, now: Now) -> bool:
    """True for a holder of a unique key whose time with it is over."""
    return holder.key_expires_at is not None and now.wall_ms >= holder.key_expires_at
