"""PUSH and PUSHB: who gets in, under which id, and where it goes.

In this order: dependencies must exist; a live job of the same custom id wins; then the holder of the unique key; only
then something changes. A durable push is reserved at once, so that its id and key answer for it, but no client sees the
job before its transaction has committed.

Source: protocol, "PUSH and PUSHB"; scheduling and flows, "Deduplication".
"""

from collections.abc import Iterable
from typing import Any

from bunqueue_trio.engine.queue_state import QueueState
from bunqueue_trio.engine.state import FactsNeededError, PendingChangeError, State
from bunqueue_trio.errors import NotFoundError, StateError, ValidationError
from bunqueue_trio.model.changes import Dirty
from bunqueue_trio.model.commands import Push, PushBatch, PushEntry, PushOptions
from bunqueue_trio.model.instant import Now
from bunqueue_trio.model.job import (
    DEFAULT_BACKOFF_MS,
    DEFAULT_MAX_ATTEMPTS,
    DEFAULT_STACK_TRACE_LIMIT,
    BackoffConfig,
    Job,
    JobRecord,
    JobState,
    TimelineEntry,
)
from bunqueue_trio.model.replies import IdReply, IdsReply
from bunqueue_trio.model.transitions import Transition, TransitionKind

CREATED, EXISTING, REPLACED = "created", "existing", "replaced"
NO_ONE: frozenset[str] = frozenset()


class Admission:
    """Lets jobs in."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._birth: tuple[float, str, tuple[TimelineEntry, ...]] = (0.0, "", ())

    def push(self, command: Push, now: Now) -> IdReply:
        """Queue one job, or find the one that stands for it already.

        Raises:
            NotFoundError: a dependency is unknown. Nothing has changed.
            StateError: the key is held by a running job and the push asked to extend it.
        """
        if not command.is_plain and command.depends_on:
            self._check_dependencies(command.depends_on, NO_ONE)
        job_id, outcome = self._admit(command.queue, command, command.job_id, now, is_durable=bool(command.durable))
        reply = IdReply(id=job_id)
        if command.receipt:
            reply.durability = self._durability(command.durable)
            reply.outcome = outcome
        return reply

    def push_batch(self, command: PushBatch, now: Now) -> IdsReply:
        """Queue several jobs, all or none; they share one transaction if any of them is durable.

        Raises:
            ValidationError: ``jobs[<i>]: ...`` for the first entry that cannot be let in. Nothing has changed.
        """
        entries = command.jobs
        assert entries is not None
        is_durable = any(not entry.is_plain and entry.durable for entry in entries)
        self._check_batch(command.queue, entries)
        ids: list[str] = []
        outcomes: list[str] = []
        mine: set[str] = set()
        for entry in entries:
            job_id, outcome = self._admit(
                command.queue, entry, entry.custom_id, now, is_durable=is_durable, mine=mine, in_batch=True
            )
            mine.add(job_id)
            ids.append(job_id)
            outcomes.append(outcome)
        if not entries:
            self._state.queue(command.queue).is_known = True
        reply = IdsReply(ids=ids)
        if command.receipt:
            level = "fsync" if any(entry.durable == "fsync" for entry in entries) else is_durable
            reply.durability = self._durability(level)
            reply.outcomes = outcomes
        return reply

    def check_entries(self, command: PushBatch, count: int) -> None:
        """Check the dependencies of the first *count* entries only: a later one is known to be malformed.

        Raises:
            ValidationError: one of them is the first fault of the batch.
        """
        entries = [entry for entry in command.jobs or () if isinstance(entry, PushEntry)]
        self._check_batch_dependencies(entries[:count], _custom_ids(entries))

    # checks

    def _check_batch(self, queue_name: str, entries: list[PushEntry]) -> None:
        """Everything that could refuse the batch, before anything changes (P-12)."""
        state = self._state
        queue = state.queue(queue_name)
        if all(entry.is_plain and entry.custom_id is None for entry in entries):
            return
        self._check_batch_dependencies(entries, _custom_ids(entries))
        for entry in entries:
            if entry.custom_id is not None and (job := state.jobs.get(entry.custom_id)) is not None:
                state.settled(job)
            if not entry.is_plain and entry.unique_key and (holder := queue.keys.get(entry.unique_key)) is not None:
                state.settled(holder)

    def _check_batch_dependencies(self, entries: list[PushEntry], batch_ids: frozenset[str]) -> None:
        for index, entry in enumerate(entries):
            if entry.is_plain or not entry.depends_on:
                continue
            if entry.custom_id in entry.depends_on:
                raise ValidationError(f"jobs[{index}]: Job cannot depend on itself: {entry.custom_id}")
            try:
                self._check_dependencies(entry.depends_on, batch_ids)
            except NotFoundError as error:
                raise ValidationError(f"jobs[{index}]: {error}") from error
        circle = _first_in_circle(entries)
        if circle is not None:
            raise ValidationError(f"jobs[{circle}]: Circular dependency")

    def _check_dependencies(self, ids: Iterable[str], batch_ids: frozenset[str]) -> None:
        """Each id must be a job that is queued, parked, active, failed or has completed."""
        state = self._state
        unknown: list[str] = []
        for job_id in ids:
            job = state.jobs.get(job_id)
            if job is not None:
                if job.state is JobState.STAGED:
                    raise PendingChangeError(job_id)
            elif job_id not in batch_ids and not state.history.is_finished(job_id):
                unknown.append(job_id)
        if not unknown:
            return
        if state.history.has_evicted and any(job_id not in state.facts for job_id in unknown):
            raise FactsNeededError(unknown)
        for job_id in unknown:
            if state.facts.get(job_id) is None:
                raise NotFoundError(f"Dependency job not found: {job_id}")

    # letting in

    def _admit(
        self,
        queue_name: str,
        options: PushOptions,
        custom_id: str | None,
        now: Now,
        *,
        is_durable: bool,
        mine: set[str] | frozenset[str] = NO_ONE,
        in_batch: bool = False,
    ) -> tuple[str, str]:
        """Returns the id that stands for the push, and whether it was created, existing or replaced another."""
        state = self._state
        queue = state.queue(queue_name)
        queue.is_known = True
        if custom_id is not None and (job := state.jobs.get(custom_id)) is not None:
            if job.state is not JobState.FAILED:
                return self._existing(job, is_durable, mine)
            state.settled(job)
        outcome = CREATED
        expires_at: float | None = None
        holder: Job | None = None  # of the unique key
        if not options.is_plain and options.unique_key is not None:
            holder = self._holder(queue, options.unique_key, now)
            if options.dedup is not None and options.dedup.ttl is not None:
                expires_at = now.wall_ms + options.dedup.ttl
            if holder is not None:
                if not (options.dedup is not None and options.dedup.replace):
                    return self._meet_holder(holder, options, expires_at, is_durable, mine, in_batch)
                self._replace(holder, is_durable, mine)
                outcome = REPLACED
        record = self._record(queue_name, options, custom_id, now)
        job = Job(record=record, state=JobState.STAGED, seq=state.next_seq, key_expires_at=expires_at)
        state.next_seq += 1
        if is_durable:
            self._reserve(job, options, holder)
        else:
            if custom_id is not None:
                self._end_former_life(custom_id)
            state.changes.touch(job, Dirty.PLAIN if options.is_plain else Dirty.FULL)
        state.jobs[record.id] = job
        if record.unique_key is not None:
            queue.keys[record.unique_key] = job
        if not is_durable:
            self.publish(job, now)
        return record.id, outcome

    def _reserve(self, job: Job, options: PushOptions, holder: Job | None) -> None:
        """Hold a durable push back until its commit; should that fail, nothing of it may remain (PD-3)."""
        state = self._state
        custom_id = job.record.custom_id
        transition = Transition(TransitionKind.PUBLISH, job, job.record, JobState.READY, displaced=holder)
        if custom_id is not None:
            transition.former = state.jobs.get(custom_id)
            transition.renews_id = (
                transition.former is not None
                or state.history.has_evicted
                or state.history.get(custom_id) is not None
            )
        job.staged = transition
        job.dirty = Dirty.PLAIN if options.is_plain else Dirty.FULL
        state.stage(transition)
        if options.durable == "fsync":
            state.changes.needs_sync = True

    def publish(self, job: Job, now: Now) -> None:
        """Make a job visible: queue it, or park it while it waits for others."""
        state = self._state
        record = job.record
        queue = state.queues[record.queue]
        state.totals.pushed += 1
        if record.depends_on:
            self._watch_dependencies(job)
        if job.missing:
            job.state = JobState.PARKED
            queue.parked_count += 1
        else:
            state.enqueue(queue, job, now)

    def _watch_dependencies(self, job: Job) -> None:
        """Find out what *job* still waits for, and be told when it completes."""
        state = self._state
        missing = set()
        for dependency in job.record.depends_on:
            state.dependents.setdefault(dependency, set()).add(job.record.id)
            if state.history.get(dependency) is not None or state.facts.get(dependency) is not None:
                continue
            if dependency not in state.jobs and state.history.is_finished(dependency):
                state.keep_finished(dependency)
                continue
            missing.add(dependency)
        job.missing = missing or None

    def _existing(self, job: Job, is_durable: bool, mine: set[str] | frozenset[str]) -> tuple[str, str]:
        """A live job stands for the push. Who asked for durability is answered when that job is in the file."""
        if job.record.id not in mine:
            self._state.settled(job)
        if is_durable and job.dirty:
            self._state.waits_for_commit = True
        return job.record.id, EXISTING

    def _holder(self, queue: QueueState, key: str, now: Now) -> Job | None:
        """Who holds the key now; an entry whose time is over counts as absent."""
        holder = queue.keys.get(key)
        if holder is not None and holder.key_expires_at is not None and now.wall_ms >= holder.key_expires_at:
            return None
        return holder

    def _meet_holder(
        self,
        holder: Job,
        options: PushOptions,
        expires_at: float | None,
        is_durable: bool,
        mine: set[str] | frozenset[str],
        in_batch: bool,
    ) -> tuple[str, str]:
        """The key is held and stays so; ``dedup.extend`` restarts its time."""
        answer = self._existing(holder, is_durable, mine)
        dedup = options.dedup
        if dedup is not None and dedup.extend and dedup.ttl:
            holder.key_expires_at = expires_at
            if holder.state is not JobState.STAGED:
                self._state.changes.touch(holder, Dirty.EXTRA)
            is_queued = holder.state in (JobState.READY, JobState.DELAYED, JobState.STAGED)
            if not is_queued and not in_batch:  # SD-24: inside a batch the holder's id is the answer
                raise StateError("Duplicate unique_key (extended TTL)")
        return answer

    def _replace(self, holder: Job, is_durable: bool, mine: set[str] | frozenset[str]) -> None:
        """``dedup.replace``: a queued holder makes room, a running or parked one is left alone (SD-22)."""
        state = self._state
        if holder.record.id not in mine:
            state.settled(holder)
        elif holder.state is JobState.STAGED:  # replaced by a later entry of its own batch: it never was
            state.changes.staged.remove(_staged_of(holder))
            holder.staged = None
            holder.state = JobState.GONE
            del state.jobs[holder.record.id]
            return
        if holder.state not in (JobState.READY, JobState.DELAYED):
            return
        if is_durable:
            state.stage_end(Transition(TransitionKind.REMOVE, holder, holder.record, JobState.GONE))
        else:
            state.drop(holder)

    def _end_former_life(self, custom_id: str) -> None:
        """A custom id whose job has ended starts a new life: nothing of the old one may show."""
        state = self._state
        former = state.jobs.get(custom_id)
        if former is not None:  # a dead letter
            state.drop(former)
        if state.forget_completed(custom_id) or state.history.has_evicted or former is not None:
            state.changes.reborn.append(custom_id)

    # records

    def _record(self, queue_name: str, options: PushOptions, custom_id: str | None, now: Now) -> JobRecord:
        job_id = self._state.ids.job_id(now.wall_ms) if custom_id is None else custom_id
        wall_ms = now.wall_ms
        if options.is_plain:
            timeline = self._first_timeline("waiting", wall_ms)
            record = JobRecord(job_id, queue_name, options.data, wall_ms, wall_ms, wall_ms, timeline)
            record.custom_id = custom_id
            return record
        return self._full_record(job_id, queue_name, options, custom_id, wall_ms)

    def _full_record(
        self, job_id: str, queue_name: str, options: PushOptions, custom_id: str | None, wall_ms: float
    ) -> JobRecord:
        created_at = wall_ms if options.timestamp is None else float(options.timestamp)
        run_at = float(-(-(created_at + (options.delay or 0)) // 1))
        priority = options.priority or 0
        depends_on = tuple(options.depends_on or ())
        first = "delayed" if run_at > wall_ms else "prioritized" if priority > 0 else "waiting"
        backoff, backoff_config = _backoff(options.backoff)
        dedup = options.dedup
        return JobRecord(
            id=job_id,
            queue=queue_name,
            data=options.data,
            created_at=created_at,
            run_at=run_at,
            last_heartbeat=created_at,
            timeline=self._first_timeline("waiting-children" if self._parks(depends_on) else first, wall_ms),
            backoff=backoff,
            backoff_config=backoff_config,
            depends_on=depends_on,
            children_ids=tuple(options.children_ids or ()),
            tags=tuple(options.tags or ()),
            repeat=options.repeat,
            priority=priority,
            lifo=bool(options.lifo),
            max_attempts=_or(options.max_attempts, DEFAULT_MAX_ATTEMPTS),
            remove_on_complete=bool(options.remove_on_complete),
            remove_on_fail=bool(options.remove_on_fail),
            ttl=options.ttl,
            timeout=options.timeout,
            unique_key=options.unique_key,
            custom_id=custom_id,
            parent_id=options.parent_id,
            group_id=options.group_id,
            stall_timeout=options.stall_timeout,
            stack_trace_limit=_or(options.stack_trace_limit, DEFAULT_STACK_TRACE_LIMIT),
            keep_logs=options.keep_logs,
            size_limit=options.size_limit,
            fail_parent_on_failure=bool(options.fail_parent_on_failure),
            remove_dependency_on_failure=bool(options.remove_dependency_on_failure),
            continue_parent_on_failure=bool(options.continue_parent_on_failure),
            ignore_dependency_on_failure=bool(options.ignore_dependency_on_failure),
            deduplication_ttl=None if dedup is None else dedup.ttl,
            deduplication_extend=dedup is not None and dedup.extend,
            deduplication_replace=dedup is not None and dedup.replace,
            debounce_id=options.debounce_id,
            debounce_ttl=options.debounce_ttl,
        )

    def _parks(self, depends_on: tuple[str, ...]) -> bool:
        """True when any of these has not completed."""
        state = self._state
        return any(
            not (state.history.is_finished(dependency) and dependency not in state.jobs)
            and state.facts.get(dependency) is None
            for dependency in depends_on
        )

    def _first_timeline(self, shown: str, wall_ms: float) -> tuple[TimelineEntry, ...]:
        """Jobs of one millisecond share their first entry: it is a tenth of a plain job's memory."""
        if self._birth[0] != wall_ms or self._birth[1] != shown:
            self._birth = (wall_ms, shown, (TimelineEntry(shown, wall_ms),))
        return self._birth[2]

    @staticmethod
    def _durability(asked: Any) -> str:
        if asked == "fsync":
            return "synced"
        return "committed" if asked else "buffered"


def _custom_ids(entries: list[PushEntry]) -> frozenset[str]:
    return frozenset(entry.custom_id for entry in entries if entry.custom_id is not None)


def _first_in_circle(entries: list[PushEntry]) -> int | None:
    """The index of the first entry that, over custom ids of the batch, depends on itself (SD-19)."""
    index_of = {entry.custom_id: i for i, entry in enumerate(entries) if entry.custom_id is not None}
    needs = [[index_of[d] for d in entry.depends_on or () if d in index_of] for entry in entries]
    blocked_by = [len(n) for n in needs]
    needed_by: dict[int, list[int]] = {}
    for index, wanted in enumerate(needs):
        for other in wanted:
            needed_by.setdefault(other, []).append(index)
    free = [i for i, count in enumerate(blocked_by) if not count]
    while free:
        for index in needed_by.get(free.pop(), ()):
            blocked_by[index] -= 1
            if not blocked_by[index]:
                free.append(index)
    return next((i for i, count in enumerate(blocked_by) if count), None)


def _staged_of(job: Job) -> Transition:
    assert job.staged is not None
    return job.staged


def _backoff(asked: Any) -> tuple[float | int, BackoffConfig | None]:
    if asked is None:
        return DEFAULT_BACKOFF_MS, None
    if isinstance(asked, BackoffConfig):
        return asked.delay, asked
    return asked, None


def _or(value: Any, default: int) -> Any:
    return default if value is None else value


