"""From rows to a running engine, in the order of the requirement: active, pending, dead letters, settings, completed.

Every active row counts as one attempt and one stall: its worker is gone. What changed by that is dirty afterwards and
goes to the file with the first flush, before any port opens; so a second crash right after the start charges nothing
twice.

Source: persistence, "Recovery at start"; R55 to R69.
"""

from collections.abc import Iterable
from heapq import heappush
from typing import Protocol

from bunqueue_trio.engine import dead_letters, policies, retries
from bunqueue_trio.engine.core import Engine
from bunqueue_trio.engine.limits import TokenBucket
from bunqueue_trio.engine.queue_state import QueueState
from bunqueue_trio.errors import CorruptDatabaseError, ValidationError
from bunqueue_trio.model.changes import Dirty
from bunqueue_trio.model.cron_job import CronJob
from bunqueue_trio.model.entries import DlqEntry, QueueSettings
from bunqueue_trio.model.grouping import GroupSettings
from bunqueue_trio.model.instant import Now
from bunqueue_trio.model.job import (
    KEY_GIVEN_UP,
    ChildFailures,
    Job,
    JobRecord,
    JobState,
    Past,
    replace,
)
from bunqueue_trio.model.leases import Lease, TakenBack

CORRUPT_DEPENDENCIES = "corrupt-dependency-metadata"


class StoredRow(Protocol):
    """A job as the file holds it."""

    record: JobRecord
    seq: int
    key_expires_at: float | None
    is_from_cron: bool
    past: Past | None
    child_failures: ChildFailures | None
    damage: tuple[str, ...]
    """Names of columns that could not be read."""


class Recovery:
    """Fills a fresh engine from rows, one kind after the other. `now` is fixed for the whole recovery."""

    def __init__(self, engine: Engine, now: Now, *, cron_keys: set[tuple[str, str]]) -> None:
        """
        Args:
            cron_keys: (queue, ``cron:<name>``) of every cron in the file: active jobs with such a key are dropped,
                for their schedule makes the next one.
        """
        self._engine = engine
        self._state = engine.state
        self._now = now
        self._cron_keys = cron_keys
        self._letter_ids: set[str] = set()
        self._buried: list[DlqEntry] = []
        self._rerun_ids: set[str] = set()
        """Jobs that run again: their old results do not mean that they are done."""
        self._doubtful: list[tuple[Job, Past, set[str]]] = []
        """Jobs that have parked themselves, and those they wait for that have completed in some life."""
        self.active_count = 0
        self.pending_count = 0

    def settings(self, rows: Iterable[tuple[str, QueueSettings]]) -> None:
        """Pause flags, limits and stall policies. Read first: the stall policies decide about active jobs."""
        for name, settings in rows:
            queue = self._state.queue(name)
            queue.is_known = True
            limit = settings.rate_limit
            if limit is not None and limit.expires_at is not None and limit.expires_at <= self._now.wall_ms:
                settings = replace(settings, rate_limit=None)
                limit = None
            queue.settings = settings
            queue.bucket = None if limit is None else TokenBucket(limit, self._now)

    def groups(self, rows: Iterable[tuple[str, str, GroupSettings]]) -> None:
        """Settings of named groups: queue, group, settings."""
        for queue_name, group_id, settings in rows:
            queue = self._state.queue(queue_name)
            queue.is_known = True
            queue.with_groups().set(group_id, settings)

    def letter_ids(self, ids: Iterable[str]) -> None:
        """Ids among the dead letters: a row beside an entry is left over from an interrupted move, and goes (PD-2)."""
        self._letter_ids = set(ids)

    def active(self, rows: Iterable[StoredRow]) -> None:
        """Jobs that were running when the process ended."""
        for row in rows:
            self.active_count += 1
            job = self._job(row)
            if self._is_dropped(row):
                self._discard(job)
            elif "depends_on" in row.damage:
                self._bury(job, "unknown", CORRUPT_DEPENDENCIES)
            else:
                self._charge(job)

    def pending(self, rows: Iterable[StoredRow], done: set[str]) -> None:
        """Waiting and delayed jobs, in push order.

        Args:
            done: those ids, among all that these rows depend on, which have completed.
        """
        for row in rows:
            self.pending_count += 1
            job = self._job(row)
            if row.record.id in self._letter_ids:
                self._discard(job)
            elif "depends_on" in row.damage:
                self._bury(job, "unknown", CORRUPT_DEPENDENCIES)
            else:
                self._queue(job, done)

    def letters(self, rows: Iterable[tuple[str, DlqEntry]]) -> None:
        """Dead letters by the time they entered; only the newest of a queue beyond its bound stay.

        Those that the recovery itself has made come last.
        """
        for queue_name, entry in rows:
            if entry.job.queue != queue_name:
                entry.job.queue = queue_name
            self._letter(entry)
        for entry in self._buried:
            self._letter(entry)
        for queue_name in list(self._state.queues):
            dead_letters.trim(self._state, queue_name)

    def _letter(self, entry: DlqEntry) -> None:
        queue = self._state.queue(entry.job.queue)
        queue.is_known = True
        if entry.job.id in queue.letters:  # two rows of one job: the later counts
            older = self._state.jobs[entry.job.id]
            queue.hide_letter(older)
            self._state.unlist(older)
        dead_letters.show(self._state, entry)

    def completed(self, counts: Iterable[tuple[str, int]]) -> None:
        """How many completed jobs the file holds per queue. Their records stay there until somebody asks."""
        for name, count in counts:
            queue = self._state.queue(name)
            queue.is_known = True
            queue.completed_count = count
            if count:
                self._state.history.has_evicted = True

    def crons(self, rows: Iterable[CronJob]) -> dict[str, str]:
        """Crons, in the order in which they were made.

        Returns:
            Those that cannot be understood, by name, with the reason; they stay in the file.
        """
        faulty: dict[str, str] = {}
        for job in rows:
            try:
                self._engine.crons.load(job, self._now)
            except ValidationError as error:
                faulty[job.name] = str(error)
        return faulty

    def finished(self, ids: Iterable[str], next_seq: int) -> None:
        """Close the recovery: ids completed and removed that jobs still name, and where push order goes on.

        Only now are all parents there to learn that a child has failed for good."""
        state = self._state
        for job_id in ids:
            if job_id in state.dependents:
                state.kept_finished.add(job_id)
                state.history.remember_finished(job_id)
            else:
                state.changes.finished_gone[job_id] = None
        for job, past, done in self._doubtful:
            self._release_again(job, past, done)
        for entry in self._buried:
            policies.fail_parents(state, entry.job, entry.error, self._now)
        state.next_seq = max(state.next_seq, next_seq)
        state.last_wall_ms = self._now.wall_ms
        state.wakes.clear()

    def _job(self, row: StoredRow) -> Job:
        if row.record.id in self._state.jobs:
            # An index that leads to a wrong row: this job would run twice, and another one never.
            raise CorruptDatabaseError(f"job {row.record.id} is listed twice: an index does not fit its table")
        return Job(
            record=row.record,
            state=JobState.STAGED,
            seq=row.seq,
            is_stored=True,
            is_from_cron=row.is_from_cron,
            key_expires_at=row.key_expires_at,
            past=row.past,
            child_failures=row.child_failures,
        )

    def _is_dropped(self, row: StoredRow) -> bool:
        record = row.record
        if record.id in self._letter_ids or row.is_from_cron:
            return True
        key = record.unique_key
        return key is not None and (record.queue, key) in self._cron_keys

    def _discard(self, job: Job) -> None:
        job.state = JobState.GONE
        self._state.changes.touch(job, Dirty.STATE)

    def _charge(self, job: Job) -> None:
        """One attempt and one stall; then back with backoff, or to the dead letters (PD-2: whatever results say)."""
        state, now, record = self._state, self._now, job.record
        started_at = record.started_at
        if started_at is not None:
            token = state.ids.lease_token(record.id, job.seq, started_at, record.attempts)
            job.lease = _ended_lease(token, started_at, now)
        record.attempts += 1
        record.stall_count += 1
        record.started_at = None
        record.last_heartbeat = now.wall_ms
        reason = retries.verdict(state, record, record.attempts, record.stall_count)
        if reason == retries.MAX_ATTEMPTS_EXCEEDED:
            self._bury(job, reason, f"Job reached max attempts ({record.max_attempts}) during startup recovery")
        elif reason == retries.STALLED:
            self._bury(job, reason, f"Job stalled {record.stall_count} times (recovered at startup)")
        else:
            record.run_at = retries.retry_at(record, record.attempts, now, state.ids.jitter())
            self._queue(job, set(record.depends_on))  # it has run, so it waits for nothing
            state.changes.touch(job, Dirty.STATE)

    def _queue(self, job: Job, done: set[str]) -> None:
        state, record = self._state, job.record
        queue = state.queue(record.queue)
        queue.is_known = True
        record.queue = queue.name  # one string for all its jobs
        if job.past is not None and job.past.has_result:
            self._rerun_ids.add(record.id)
        state.jobs[record.id] = job
        if record.unique_key is not None and job.key_expires_at != KEY_GIVEN_UP:
            holder = queue.keys.get(record.unique_key)
            if holder is None or holder.seq < job.seq:  # the newest has taken it from the others
                queue.keys[record.unique_key] = job
        for dependency in record.depends_on:
            state.dependents.setdefault(dependency, set()).add(record.id)
        if job.past is not None and job.past.is_parked_again:
            self._park_again(queue, job, job.past, done)
            return
        missing = set()
        met = () if job.past is None else job.past.met
        for dependency in record.depends_on:
            is_done = dependency in met or (dependency in done and dependency not in self._rerun_ids)
            if not is_done and not _was_released(record):
                missing.add(dependency)
        if missing:
            job.missing = missing
            queue.park(job)
        elif not queue.insert(job, self._now.wall_ms) and queue.delayed[0] is job.place:
            heappush(state.due, (record.run_at, queue.name))

    def _park_again(self, queue: QueueState, job: Job, past: Past, done: set[str]) -> None:
        """Unlike others it may wait for a job that is younger, and so for a new life of one that is *done*."""
        job.missing = set(job.record.depends_on).difference(past.met)
        queue.park(job)
        if doubtful := job.missing & done:
            self._doubtful.append((job, past, doubtful))

    def _release_again(self, job: Job, past: Past, done: set[str]) -> None:
        """All jobs are there: who is *done* and among them lives again. The others need not be waited for."""
        state = self._state
        assert job.missing is not None
        job.missing.difference_update([dependency for dependency in done if dependency not in state.jobs])
        if not job.missing:  # the last it waited for completed, and then the process ended
            job.missing = None
            queue = state.queues[job.record.queue]
            queue.unpark(job)
            job.past = past.released()
            state.changes.touch(job, Dirty.EXTRA)
            state.enqueue(queue, job, self._now)

    def _bury(self, job: Job, reason: str, error: str) -> None:
        entry = dead_letters.dead_letter(self._state, job, job.record, reason, error, self._now)
        self._state.changes.letters[entry.job.id] = entry
        self._discard(job)
        self._letter_ids.add(job.record.id)
        self._buried.append(entry)


def _was_released(record: JobRecord) -> bool:
    """True for a job that has been runnable before: it waits for nothing any more, whatever became of the others."""
    return any(entry.state in ("active", "waiting", "prioritized", "delayed") for entry in record.timeline)


def _ended_lease(token: str, started_at: float, now: Now) -> Lease:
    """What is known of a lease after a restart: whose late ACK still counts."""
    return Lease(
        token=token,
        owner=None,
        connection_id=None,
        ttl_ms=0,
        started_wall_ms=started_at,
        started_mono_ms=now.mono_ms,
        expires_mono_ms=now.mono_ms,
        heartbeat_mono_ms=now.mono_ms,
        taken_back=TakenBack.RESTART,
    )
