"""Explain: why is this job not running? Everything that holds it, each with what one has to know to let it go.

Changes nothing. Shape of the reply: ``{"ok", "id", "state", "reasons": [{"reason": <name>, ...}]}``, of these reasons:

| reason | of jobs that are | further keys |
|---|---|---|
| ``commit`` | any | none: a change of the job waits for the file |
| ``paused`` | queued, parked | ``queue`` |
| ``delayed`` | queued, parked | ``until`` |
| ``expired`` | queued | ``since``: its ttl is over, the next pull deletes it |
| ``dependencies`` | parked | ``total``; ``dependencies``: ``[{"id", "state"}]``, the first 100 |
| ``group`` | queued | ``groupId``, ``active``: the id of the job that runs in its group, null when several do |
| ``group-paused`` | queued in a named group | ``groupId`` |
| ``group-resting`` | queued in a named group | ``groupId``, ``until``: the end of its rest (RateLimitGroup) |
| ``group-concurrency`` | queued in a named group | ``groupId``, ``limit``, ``active``: for pulls with such a limit |
| ``group-rate-limit`` | queued in a named group | ``groupId``, ``limit``, ``until``: for pulls with such a limit |
| ``concurrency`` | queued | ``limit``, ``active`` |
| ``rate-limit`` | queued | ``limit``, ``until``: when the next token is due, null: never |
| ``jobs-ahead`` | ready | ``count``; ``atLeast``: true when there are more |
| ``no-worker`` | queued | ``queue``: no pull waits and no registered worker serves it |
| ``stopping`` | queued | none: the server hands out no more jobs |
| ``ready`` | ready | none: nothing holds it, the next pull gets it |
| ``leased`` | active | ``owner``, ``until`` (null: no lock), ``heartbeatAge`` |
| ``failed`` | failed | ``cause``, ``error``, ``since`` |
| ``completed`` | completed | ``since`` |

``until`` and ``since`` are epoch ms, ``heartbeatAge`` is ms. A dependency of state ``removed`` was cancelled, say: it
will never complete, and RemoveChildDependency with its id lets the job go (SD-17). In a named group the jobs ahead are
those of the same group and all that are in no named group; other groups take turns with it, so there may be more.
"""

from typing import Any

from bunqueue_trio.engine.group_lines import NamedGroup
from bunqueue_trio.engine.heaps import Entry, ready_entry
from bunqueue_trio.engine.queries import Queries
from bunqueue_trio.engine.queue_state import QueueState
from bunqueue_trio.engine.state import State
from bunqueue_trio.errors import NotFoundError
from bunqueue_trio.model.commands import Explain
from bunqueue_trio.model.flow_replies import ExplainReply
from bunqueue_trio.model.grouping import takes_turns
from bunqueue_trio.model.instant import Now
from bunqueue_trio.model.job import Job, JobRecord, JobState, shown_state

AHEAD_MAX = 1_000  # jobs in front that are counted exactly
LOOKED_AT_MAX = 4 * AHEAD_MAX  # heap entries looked at for that; some are stale
DEPENDENCIES_MAX = 100
NEVER = float("inf")

Reason = dict[str, Any]


class Explaining:
    """Says what holds a job."""

    def __init__(self, state: State, queries: Queries) -> None:
        self._state = state
        self._queries = queries

    def explain(self, command: Explain, now: Now) -> ExplainReply:
        """Everything that keeps a job from running, as the table above lists it.

        Raises:
            NotFoundError: no such job.
            FactsNeededError: only the file can tell.

        Cost: bounded, whatever the queue holds: 4,000 entries of its order and 100 dependencies are looked at.
        """
        job = self._queries.visible(command.id)
        if job is None:
            return self._absent(command.id)
        staged = job.staged
        place = job.state if staged is None or staged.held_from is None else staged.held_from
        reasons = [] if staged is None else [_reason("commit")]
        reasons += self._reasons(job, place, now)
        return ExplainReply(id=command.id, state=shown_state(job, now.wall_ms), reasons=reasons or [_reason("ready")])

    def _absent(self, job_id: Any) -> ExplainReply:
        completed = self._state.completed(job_id)
        if completed is not None:
            reason = _reason("completed", since=completed.record.completed_at)
            return ExplainReply(id=job_id, state="completed", reasons=[reason])
        if self._state.find(job_id) is not None:  # a durable push: its id is known, itself is not there yet
            return ExplainReply(id=job_id, state="unknown", reasons=[_reason("commit")])
        raise NotFoundError("Job not found")

    def _reasons(self, job: Job, place: JobState, now: Now) -> list[Reason]:
        queue = self._state.queues[job.record.queue]
        if place is JobState.ACTIVE:
            return [_leased(job, now)]
        if place is JobState.FAILED:
            entry = queue.letters[job.record.id]
            return [_reason("failed", cause=entry.reason, error=entry.error, since=entry.entered_at)]
        reasons = []
        if queue.settings.paused:
            reasons.append(_reason("paused", queue=queue.name))
        if job.record.run_at > now.wall_ms:
            reasons.append(_reason("delayed", until=job.record.run_at))
        if place is JobState.PARKED:
            reasons.append(self._dependencies(job, now))
        else:
            reasons += self._in_queue(job, queue, now)
        return reasons

    def _dependencies(self, job: Job, now: Now) -> Reason:
        missing = job.missing or ()
        shown: list[dict[str, str]] = []
        for job_id in job.record.depends_on:
            if len(shown) == DEPENDENCIES_MAX:
                break
            if job_id in missing:
                other = self._state.jobs.get(job_id)
                shown.append({"id": job_id, "state": "removed" if other is None else shown_state(other, now.wall_ms)})
        return _reason("dependencies", total=len(missing), dependencies=shown)

    def _in_queue(self, job: Job, queue: QueueState, now: Now) -> list[Reason]:
        state, record, settings = self._state, job.record, queue.settings
        reasons = []
        if record.ttl is not None and now.wall_ms > record.created_at + record.ttl:
            reasons.append(_reason("expired", since=record.created_at + record.ttl))
        if record.group_id is not None:
            reasons += _alone_in_group(queue, record)
            if takes_turns(record) and queue.named_groups is not None:
                reasons += _in_named_group(queue.named_groups.get(record.group_id), now)
        limit = settings.concurrency_limit
        if limit is not None and queue.active_count >= limit:
            reasons.append(_reason("concurrency", limit=limit, active=queue.active_count))
        reasons += _rate(queue, now)
        if record.run_at <= now.wall_ms:
            reasons += _ahead_in_turn(queue, job) if takes_turns(record) else _ahead(queue, job)
        if not state.hands_out:
            reasons.append(_reason("stopping"))
        elif not self._has_worker(queue.name):
            reasons.append(_reason("no-worker", queue=queue.name))
        return reasons

    def _has_worker(self, queue_name: str) -> bool:
        state = self._state
        return state.has_parked_pull(queue_name) or any(queue_name in w.queues for w in state.workers.values())


def _leased(job: Job, now: Now) -> Reason:
    lease = job.lease
    assert lease is not None
    until = None if lease.expires_mono_ms == NEVER else now.wall_ms + lease.expires_mono_ms - now.mono_ms
    return _reason("leased", owner=lease.owner, until=until, heartbeatAge=now.mono_ms - lease.heartbeat_mono_ms)


def _rate(queue: QueueState, now: Now) -> list[Reason]:
    bucket, limit = queue.bucket, queue.settings.rate_limit
    if bucket is None or limit is None or (bucket.expires_at is not None and now.wall_ms >= bucket.expires_at):
        return []
    due = bucket.next_token_mono_ms(now)
    if due is not None and due <= now.mono_ms:
        return []
    until = None if due is None else now.wall_ms + due - now.mono_ms
    return [_reason("rate-limit", limit=limit.limit, until=until)]


def _alone_in_group(queue: QueueState, record: JobRecord) -> list[Reason]:
    """Members without a name of their own run alone: they wait for all others of their group, and those for them."""
    group_id = record.group_id
    assert group_id is not None
    group = queue.groups.get(group_id)
    if group is not None and group.active is not None:
        return [_reason("group", groupId=group_id, active=group.active.record.id)]
    if not takes_turns(record) and queue.is_busy(group_id):
        return [_reason("group", groupId=group_id, active=None)]
    return []


def _in_named_group(group: NamedGroup | None, now: Now) -> list[Reason]:
    if group is None:
        return []
    reasons, settings = [], group.settings
    if settings.paused:
        reasons.append(_reason("group-paused", groupId=group.group_id))
    if group.rests_until_mono_ms > now.mono_ms:
        until = now.wall_ms + group.rests_until_mono_ms - now.mono_ms
        reasons.append(_reason("group-resting", groupId=group.group_id, until=until))
    if settings.concurrency is not None and group.active_count >= settings.concurrency:
        limit, active = settings.concurrency, group.active_count
        reasons.append(_reason("group-concurrency", groupId=group.group_id, limit=limit, active=active))
    window = group.window_limit
    if window is not None and group.window_ends_mono_ms > now.mono_ms and group.window_count >= window.max:
        until = now.wall_ms + group.window_ends_mono_ms - now.mono_ms
        reasons.append(_reason("group-rate-limit", groupId=group.group_id, limit=window.max, until=until))
    return reasons


def _ahead_in_turn(queue: QueueState, job: Job) -> list[Reason]:
    groups = queue.named_groups
    group = None if groups is None else groups.get(job.record.group_id)
    if groups is None or group is None:
        return []
    count, is_cut = _count_before(group.ready, group.order(job)[:-1])
    count += queue.waiting_count + queue.prioritized_count - groups.ready_count
    may_be_more = is_cut or groups.ready_count > group.ready_count
    if not count and not may_be_more:
        return []
    return [_reason("jobs-ahead", count=min(count, AHEAD_MAX), atLeast=may_be_more or count > AHEAD_MAX)]


def _ahead(queue: QueueState, job: Job) -> list[Reason]:
    """How many ready jobs leave before *job*."""
    count, is_cut = _count_before(queue.ready, ready_entry(job)[:-1])
    if not count and not is_cut:
        return []
    return [_reason("jobs-ahead", count=min(count, AHEAD_MAX), atLeast=is_cut)]


def _count_before(heap: list[Entry], mine: Entry) -> tuple[int, bool]:
    """How many entries count that are less than *mine*, and whether there may be more. They form the top of the heap,
    so nothing else is looked at."""
    count = looked_at = 0
    open_nodes = [0]
    while open_nodes and count <= AHEAD_MAX and looked_at < LOOKED_AT_MAX:
        index = open_nodes.pop()
        if index >= len(heap) or heap[index][:-1] >= mine:
            continue
        looked_at += 1
        other = heap[index][-1]
        count += other.place is heap[index]
        open_nodes += (2 * index + 1, 2 * index + 2)
    return count, count > AHEAD_MAX or looked_at == LOOKED_AT_MAX


def _reason(name: str, **details: Any) -> Reason:
    return {"reason": name, **details}
