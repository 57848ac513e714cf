"""The right to run a job for a time: grant, renew, fence by token, take back.

All deadlines of a lease run on the monotonic clock: a jump of the wall clock neither ends nor prolongs one. Per active
job the timer heap holds one entry, for the earliest thing that may happen to it; a renewal only moves the deadline in
the lease, and the entry finds out when it surfaces. So a heartbeat costs no heap operation.

    granted --ACK, FAIL--> finished
       |--end of lock + grace (P-27)--> taken back at once, one attempt and one stall charged
       |--timeout of the job---------> as a FAIL
       |--silent, seen twice---------> stalled: taken back with backoff
       |--connection closed----------> taken back at once, one attempt charged (P-26), unless it was ever renewed

Source: protocol, sections 5 to 7.
"""

from bunqueue_trio.engine import happenings, policies, retries, workers
from bunqueue_trio.engine.queue_state import QueueState
from bunqueue_trio.engine.state import State, is_live
from bunqueue_trio.errors import LeaseLostError
from bunqueue_trio.model.changes import Dirty
from bunqueue_trio.model.grouping import PullGroup, takes_turns
from bunqueue_trio.model.instant import Now
from bunqueue_trio.model.job import Job, JobRecord, JobState, TimelineEntry, extended_timeline
from bunqueue_trio.model.leases import Lease, TakenBack

STALL_RECHECK_MS = 5_000  # a job must be found stalled twice, this far apart
SAME_MOMENT_MS = 1_000  # a wall clock that is further behind the last lease than this was put back
UNLIMITED_LOOK_MS = 60_000  # how often to look at a job that nothing can end, for settings may change
PARENT_BUSY_MS = 20  # a commit or two: how long a job that may not fail yet is left alone
NEVER = float("inf")


# granting


def grant(
    state: State,
    queue: QueueState,
    job: Job,
    owner: str | None,
    ttl_ms: float,
    connection_id: int | None,
    now: Now,
    asked: PullGroup | None = None,
) -> Lease:
    """Hand *job*, as `choosing.next_ready` gave it for the same *asked*, to a connection."""
    record = job.record
    if record.group_id is None:
        queue.pop_ready(job)
    elif takes_turns(record):
        queue.hand_out(job, asked, now.mono_ms)
    else:
        queue.pop_ready(job)
        queue.group(record.group_id).active = job
    started_at = now.wall_ms
    last = job.lease
    if last is not None and 0 <= last.started_wall_ms - started_at < SAME_MOMENT_MS:
        started_at = last.started_wall_ms + 1  # leases of one millisecond must not share a token
    token = None
    expires = NEVER
    if owner is not None:
        token = state.ids.lease_token(record.id, job.seq, started_at, record.attempts)
        expires = now.mono_ms + ttl_ms
    job.lease = lease = Lease(
        token=token,
        owner=owner,
        connection_id=connection_id,
        ttl_ms=ttl_ms,
        started_wall_ms=started_at,
        started_mono_ms=now.mono_ms,
        expires_mono_ms=expires,
        heartbeat_mono_ms=now.mono_ms,
    )
    queue.activate(job)
    state.active_count += 1
    record.started_at = started_at
    record.last_heartbeat = now.wall_ms
    record.timeline = state.activation.after(record, now.wall_ms)
    if connection_id is not None:
        state.held.setdefault(connection_id, {})[record.id] = job
    state.changes.touch(job, Dirty.STATE)
    state.totals.pulled += 1
    if state.events is not None and state.hears(record.queue):
        happenings.pulled(state.events, record, now)
    _arm(state, job, lease, _next_look_at(state, queue, record, lease, now))
    return lease


# renewing and fencing


def is_valid(lease: Lease | None, token: str | None, now: Now) -> bool:
    """True when *token* is that of the lease and the lease has not ended."""
    if lease is None or lease.token is None or lease.token != token:
        return False
    return now.mono_ms < lease.expires_mono_ms


def fence(job: Job, token: str | None, now: Now, *, grace: bool) -> None:
    """Let pass only who may finish the active *job*.

    A job that was pulled without an owner has no lock and needs no token. With *grace*, the right token still counts
    after the end of the lease, as long as the job has not been taken back.

    Raises:
        LeaseLostError: the token is missing, wrong or too late. Nothing has changed.
    """
    lease = job.lease
    if lease is None or lease.token is None:
        return
    if token is None:
        raise LeaseLostError(f"Lock token required for job {job.record.id}")
    if lease.token != token or not (grace or now.mono_ms < lease.expires_mono_ms):
        raise LeaseLostError(f"Invalid or expired lock token for job {job.record.id}")


def renew(state: State, job: Job, duration_ms: float | None, now: Now) -> None:
    """Let the lease of *job* end *duration_ms* from now, or its own length when None. Counts as a renewal."""
    lease = job.lease
    assert lease is not None
    lease.expires_mono_ms = now.mono_ms + (lease.ttl_ms if duration_ms is None else duration_ms)
    lease.renewal_count += 1
    beat(state, job, now)
    _rearm(state, job, lease, now)


def beat(state: State, job: Job, now: Now) -> None:
    """Note a sign of life. Written with the next flush."""
    assert job.lease is not None
    job.lease.heartbeat_mono_ms = now.mono_ms
    job.record.last_heartbeat = now.wall_ms
    state.changes.touch(job, Dirty.STATE)


# taking back


def disconnect(state: State, connection_id: int, now: Now) -> None:
    """A connection has closed: release what it leased and never renewed; its workers are gone.

    A close after UnregisterWorker is orderly and charges nothing; otherwise one attempt is charged, so that a job which
    kills its worker is not delivered for ever (P-26, K50).
    """
    state.connections.discard(connection_id)
    is_orderly = connection_id in state.orderly
    state.orderly.discard(connection_id)
    workers.disconnect(state, connection_id, now)
    for job in list(state.held.pop(connection_id, {}).values()):
        lease = job.lease
        assert lease is not None
        if lease.renewal_count:
            lease.connection_id = None
        elif job.staged is None:  # else its commit, or the end of it, decides
            release(state, job, now, is_orderly=is_orderly)


def release(state: State, job: Job, now: Now, *, is_orderly: bool) -> None:
    """Give an active job back whose connection is gone."""
    record = job.record
    if job.is_from_cron:
        state.drop(job)
    elif not is_orderly and record.attempts + 1 >= record.max_attempts:
        assert job.lease is not None
        if policies.must_wait(state, record, now):
            job.lease.connection_id, job.lease.is_lost = None, True
            _arm(state, job, job.lease, now.mono_ms + PARENT_BUSY_MS)
            return
        record.attempts += 1
        error = "Connection lost while the job was active"
        _tell_failure(state, record, error, now, letter_reason=retries.WORKER_LOST)
        policies.bury(state, job, retries.WORKER_LOST, error, now)
    else:
        charge = 0 if is_orderly else 1
        run_at = min(record.run_at, now.wall_ms)  # its time has come once, also when the clock was set back since
        retries.take_back(state, job, TakenBack.DISCONNECT, now, attempts=charge, stalls=0, run_at=run_at)


def let_go(state: State, connection_id: int) -> None:
    """The jobs leased under this id belong to no connection from now on: only their leases can end."""
    state.connections.discard(connection_id)
    for job in state.held.pop(connection_id, {}).values():
        assert job.lease is not None
        job.lease.connection_id = None


def take_undelivered(state: State, connection_id: int, now: Now) -> None:
    """The jobs leased under this id have never reached a worker: back they go, and nothing is charged.

    One that somebody else has finished or moved meanwhile, by its id, is left to that change.
    """
    state.connections.discard(connection_id)
    for job in list(state.held.pop(connection_id, {}).values()):
        assert job.lease is not None
        job.lease.connection_id = None
        if job.staged is None:
            retries.take_back(state, job, TakenBack.DISCONNECT, now, attempts=0, stalls=0, run_at=job.record.run_at)


def look_at(state: State, job: Job, armed_for_mono_ms: float, now: Now) -> None:
    """A timer of *job* has surfaced: do what is due, or set the next one."""
    lease = job.lease
    if job.state is not JobState.ACTIVE or lease is None or lease.armed_mono_ms != armed_for_mono_ms:
        return
    if job.staged is not None:  # its holder has just finished it; look again should that fail
        _arm(state, job, lease, now.mono_ms + STALL_RECHECK_MS)
        return
    if lease.is_lost:
        release(state, job, now, is_orderly=False)
        return
    if policies.must_wait(state, job.record, now):
        _arm(state, job, lease, now.mono_ms + PARENT_BUSY_MS)
        return
    timeout = job.record.timeout
    if timeout and now.mono_ms >= lease.started_mono_ms + timeout:
        _time_out(state, job, now)
    elif now.mono_ms >= lease.expires_mono_ms + state.lease_grace_ms:
        _expire(state, job, lease, now)
    elif _is_stalled(state, job, lease, now):
        if lease.stall_seen_mono_ms is not None and now.mono_ms >= lease.stall_seen_mono_ms + STALL_RECHECK_MS:
            _stall(state, job, now)
        else:
            if lease.stall_seen_mono_ms is None:
                lease.stall_seen_mono_ms = now.mono_ms
            _rearm(state, job, lease, now)
    else:
        lease.stall_seen_mono_ms = None
        _rearm(state, job, lease, now)


def stall_policy_changed(state: State, queue_name: str, now: Now) -> None:
    """Let the new policy hold for jobs that run already. O(active jobs): each of them has a live timer."""
    for timer in list(state.timers):
        target = timer[2]
        if isinstance(target, Job) and target.record.queue == queue_name and is_live(timer):
            assert target.lease is not None
            _rearm(state, target, target.lease, now)


def _time_out(state: State, job: Job, now: Now) -> None:
    """As a FAIL without a token, whose late ACK is swallowed: the retry wins (protocol 7.3)."""
    record = job.record
    error = "Job timeout exceeded"
    record.attempts += 1
    if state.events is not None:
        happenings.timed_out(state.events, record, now)
    failed = TimelineEntry("failed", now.wall_ms, error=error, attempt=record.attempts)
    if record.attempts < record.max_attempts:
        again = TimelineEntry("waiting", now.wall_ms, attempt=record.attempts + 1)
        record.timeline = extended_timeline(record, failed, again)
        run_at = retries.retry_at(record, record.attempts, now, state.ids.jitter())
        _tell_failure(state, record, error, now, is_retried=True)
        retries.take_back(state, job, TakenBack.TIMEOUT, now, attempts=0, stalls=0, run_at=run_at)
        return
    reason = None if record.remove_on_fail else retries.MAX_ATTEMPTS_EXCEEDED
    _tell_failure(state, record, error, now, letter_reason=reason)
    record.timeline = extended_timeline(record, failed)
    state.note_failure(record.queue)
    if reason is None:
        policies.drop(state, job, error, now)
    else:
        policies.bury(state, job, reason, error, now)


def _expire(state: State, job: Job, lease: Lease, now: Now) -> None:
    """The lock has ended and its grace too: straight back into the queue, or to the dead letters (protocol 7.4)."""
    record = job.record
    if job.is_from_cron:
        state.drop(job)
        return
    reason = retries.verdict(state, record, record.attempts + 1, record.stall_count + 1)
    if state.events is not None:
        happenings.lock_expired(state.events, record, lease.renewal_count, now)
    if reason is None:
        if state.events is not None:
            happenings.stalled(state.events, record, None, now)
        run_at = min(record.run_at, now.wall_ms)
        retries.take_back(state, job, TakenBack.EXPIRY, now, attempts=1, stalls=1, run_at=run_at)
        return
    record.attempts += 1
    record.stall_count += 1
    if reason == retries.STALLED:
        error = f"Lock expired after {lease.renewal_count} renewals"
    else:
        error = f"Lock expired at max attempts ({record.max_attempts})"
    if state.events is not None:
        happenings.lock_lost(state.events, record, error, reason, now)
    policies.bury(state, job, reason, error, now)


def _stall(state: State, job: Job, now: Now) -> None:
    """No sign of life for too long, seen twice: back with backoff, or to the dead letters (protocol 7.5)."""
    record = job.record
    if job.is_from_cron:
        state.drop(job)
        return
    record.attempts += 1
    record.stall_count += 1
    reason = retries.verdict(state, record, record.attempts, record.stall_count)
    if state.events is not None:
        action = happenings.RETRY if reason is None else happenings.TO_DEAD_LETTERS
        happenings.stalled(state.events, record, action, now)
    if reason is None:
        failed = TimelineEntry("failed", now.wall_ms, error="stalled", attempt=record.attempts)
        again = TimelineEntry("waiting", now.wall_ms, attempt=record.attempts + 1)
        record.timeline = extended_timeline(record, failed, again)
        run_at = retries.retry_at(record, record.attempts, now, state.ids.jitter())
        retries.take_back(state, job, TakenBack.STALL, now, attempts=0, stalls=0, run_at=run_at)
        return
    if reason == retries.STALLED:
        error = f"Job stalled {record.stall_count} times"
    else:
        error = f"Job stalled at max attempts ({record.max_attempts})"
    _tell_failure(state, record, error, now, letter_reason=reason)
    policies.bury(state, job, reason, error, now)


def _tell_failure(
    state: State,
    record: JobRecord,
    error: str,
    now: Now,
    *,
    is_retried: bool = False,
    letter_reason: str | None = None,
) -> None:
    if state.events is not None:
        happenings.attempt_failed(state.events, record, error, now, is_retried=is_retried, letter_reason=letter_reason)


def _is_stalled(state: State, job: Job, lease: Lease, now: Now) -> bool:
    return now.mono_ms >= _stalls_at(state.queues[job.record.queue], job.record, lease)


def _stalls_at(queue: QueueState, record: JobRecord, lease: Lease) -> float:
    """When silence counts as a stall; never while checks are off."""
    policy = queue.settings.stall
    if not policy.enabled:
        return NEVER
    silence = policy.stall_interval if record.stall_timeout is None else record.stall_timeout
    silent_at = lease.heartbeat_mono_ms + silence + 1
    spared_until = lease.started_mono_ms + policy.grace_period
    return silent_at if silent_at > spared_until else spared_until


def _next_look_at(state: State, queue: QueueState, record: JobRecord, lease: Lease, now: Now) -> float:
    """The earliest moment at which time alone may end *lease*; in a minute if nothing can."""
    deadline = lease.expires_mono_ms + state.lease_grace_ms
    stalls_at = _stalls_at(queue, record, lease)
    if lease.stall_seen_mono_ms is not None:
        stalls_at = max(stalls_at, lease.stall_seen_mono_ms + STALL_RECHECK_MS)
    if stalls_at < deadline:
        deadline = stalls_at
    if record.timeout:
        deadline = min(deadline, lease.started_mono_ms + record.timeout)
    return deadline if deadline != NEVER else now.mono_ms + UNLIMITED_LOOK_MS


def _rearm(state: State, job: Job, lease: Lease, now: Now) -> None:
    """Make sure a timer surfaces no later than the next thing that may happen to *job*."""
    deadline = _next_look_at(state, state.queues[job.record.queue], job.record, lease, now)
    if now.mono_ms < lease.armed_mono_ms <= deadline:
        return  # an earlier entry is on its way and will look again
    _arm(state, job, lease, max(deadline, now.mono_ms))


def _arm(state: State, job: Job, lease: Lease, mono_ms: float) -> None:
    lease.armed_mono_ms = mono_ms
    state.arm(mono_ms, job)
