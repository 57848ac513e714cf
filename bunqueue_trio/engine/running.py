"""Commands around a running job: pull, heartbeat, lock extension, progress.

Source: protocol, "PULL and PULLB", "JobHeartbeat", "ExtendLock", "Progress".
"""

from msgspec import UNSET

from bunqueue_trio.engine import choosing, happenings, job_forms, leases
from bunqueue_trio.engine.queries import Queries
from bunqueue_trio.engine.state import State
from bunqueue_trio.errors import LeaseLostError, StateError
from bunqueue_trio.model.changes import Dirty
from bunqueue_trio.model.commands import (
    ABSENT,
    ExtendLock,
    ExtendLocks,
    JobHeartbeat,
    JobHeartbeatBatch,
    Progress,
    Pull,
    PullBatch,
)
from bunqueue_trio.model.instant import Now
from bunqueue_trio.model.job import Job, JobRecord, JobState
from bunqueue_trio.model.replies import CountReply, DataReply, JobReply, JobsReply, Reply

REPLY_MAX_BYTES = 32 * 1024 * 1024  # half a frame: a batch that its client could not receive must not be leased
RECORD_BYTES = 4_096  # more than all of a record but its payload and its stack


def _size(record: JobRecord) -> int:
    """About how many bytes the record takes in a reply, and no less."""
    size = RECORD_BYTES + len(record.data)
    return size if record.stacktrace is None else size + sum([4 * len(line) for line in record.stacktrace])


class Running:
    """Hands jobs out and keeps them alive."""

    def __init__(self, state: State, queries: Queries) -> None:
        self._state = state
        self._queries = queries

    def pull(self, command: Pull, connection_id: int | None, now: Now) -> JobReply | None:
        """Lease the best ready job of a queue, or None when nothing is ready.

        With an owner the job gets a lock; without one it is only tied to the connection, unless it is detached.
        """
        state = self._state
        queue = state.queues.get(command.queue)
        if queue is None:
            return None
        asked = None if command.group is ABSENT else command.group
        job = choosing.next_ready(state, queue, now, asked)
        if job is None:
            return None
        holder = None if command.owner is None and command.detach else connection_id
        lease = leases.grant(state, queue, job, command.owner, command.lock_ttl, holder, now, asked)
        record = job.record
        if command.is_newer or record.own_name is not UNSET:
            record = job_forms.given(record, is_newer=command.is_newer)
        reply = JobReply(job=record)
        if command.owner is not None:
            reply.token = lease.token
        return reply

    def pull_batch(self, command: PullBatch, connection_id: int | None, now: Now) -> JobsReply | None:
        """Lease up to ``count`` ready jobs, as many as fit into a reply but at least one; None when there is none."""
        state = self._state
        queue = state.queues.get(command.queue)
        if queue is None:
            return None
        jobs: list[JobRecord] = []
        tokens: list[str] = []
        size = 0
        asked = None if command.group is ABSENT else command.group
        while len(jobs) < command.count and (job := choosing.next_ready(state, queue, now, asked)) is not None:
            size += _size(job.record)
            if jobs and size > REPLY_MAX_BYTES:
                break
            lease = leases.grant(state, queue, job, command.owner, command.lock_ttl, connection_id, now, asked)
            record = job.record
            if command.is_newer or record.own_name is not UNSET:
                record = job_forms.given(record, is_newer=command.is_newer)
            jobs.append(record)
            if lease.token is not None:
                tokens.append(lease.token)
        if not jobs:
            return None
        if len(jobs) > 1 and state.events is not None and state.heard is None:
            happenings.tell(state.events, "batch:pulled", now, queue=queue.name, count=len(jobs))
        return JobsReply(jobs=jobs) if command.owner is None else JobsReply(jobs=jobs, tokens=tokens)

    def heartbeat(self, command: JobHeartbeat, now: Now) -> DataReply:
        """Keep a job alive; with a token also its lease.

        Raises:
            StateError: not active, or not under this token.
        """
        if not self._beat(command.id, command.token, command.duration, now):
            raise StateError("Job not found or not active (or invalid token)")
        return DataReply(data={"ok": True})

    def heartbeat_batch(self, command: JobHeartbeatBatch, now: Now) -> DataReply:
        """The same for several jobs; the reply counts the successes."""
        tokens = command.tokens or []
        count = 0
        for index, job_id in enumerate(command.ids):
            count += self._beat(job_id, tokens[index] if index < len(tokens) else None, None, now)
        return DataReply(data={"ok": True, "count": count})

    def extend_lock(self, command: ExtendLock, now: Now) -> Reply:
        """Renew a lease; without a token, whoever asks.

        Raises:
            LeaseLostError: there is no such lock.
        """
        if not self._extend(command.id, command.token, command.duration, now):
            raise LeaseLostError("Lock not found or invalid token")
        return Reply()

    def extend_locks(self, command: ExtendLocks, now: Now) -> CountReply:
        """Renew several leases; the reply counts the successes."""
        tokens, durations = command.tokens, command.durations
        count = 0
        for index, job_id in enumerate(command.ids):
            token = tokens[index] if index < len(tokens) else None
            duration = durations[index] if index < len(durations) else None
            count += self._extend(job_id, token, duration, now)
        return CountReply(count=count)

    def progress(self, command: Progress, now: Now) -> Reply:
        """Note how far an active job is; shows that it is alive, but renews no lease.

        Raises:
            NotFoundError, StateError: unknown, or not active.
        """
        job = self._state.settled(self._queries.active(command.id, now))
        record = job.record
        record.progress = command.progress
        if command.message:
            record.progress_message = None if bytes(command.message) == b"\xc0" else command.message
            self._state.changes.touch(job, Dirty.EXTRA)
        leases.beat(self._state, job, now)
        if self._state.events is not None:
            happenings.progressed(self._state.events, record, command.message, now)
        return Reply()

    def _active(self, job_id: str) -> Job | None:
        job = self._state.find(job_id)
        if job is None or job.state is not JobState.ACTIVE:
            return None
        return self._state.settled(job)

    def _beat(self, job_id: str, token: str | None, duration_ms: float | None, now: Now) -> bool:
        job = self._active(job_id)
        if job is None:
            return False
        if token is None:
            leases.beat(self._state, job, now)
            return True
        if not leases.is_valid(job.lease, token, now):
            return False
        leases.renew(self._state, job, duration_ms, now)
        return True

    def _extend(self, job_id: str, token: str | None, duration_ms: float | None, now: Now) -> bool:
        job = self._active(job_id)
        if job is None or job.lease is None or job.lease.token is None:
            return False
        if not leases.is_valid(job.lease, job.lease.token if token is None else token, now):
            return False
        leases.renew(self._state, job, duration_ms, now)
        return True
