"""PUSH and PUSHB: who gets in, under which id, and where it goes.

In this order: dependencies must exist; a live job of the same custom id wins; then the holder of the unique key; only
then something changes. A durable push is reserved at once, so that its id and key answer for it, but no client sees the
job before its transaction has committed.

Source: protocol, "PUSH and PUSHB"; scheduling and flows, "Deduplication".
"""

from collections.abc import Sequence
from heapq import heappush
from typing import Any

from bunqueue_trio.engine import happenings
from bunqueue_trio.engine.adoption import Adoption, has_link
from bunqueue_trio.engine.births import Births
from bunqueue_trio.engine.catalog import FULL
from bunqueue_trio.engine.dedup import EXISTING, Dedup
from bunqueue_trio.engine.entry_checks import EntryChecks
from bunqueue_trio.engine.foresight import key_holder
from bunqueue_trio.engine.queue_state import QueueState
from bunqueue_trio.engine.state import State
from bunqueue_trio.model.changes import Dirty
from bunqueue_trio.model.commands import ABSENT, FlowInput, Push, PushBatch, PushOptions
from bunqueue_trio.model.grouping import takes_turns
from bunqueue_trio.model.instant import Now
from bunqueue_trio.model.job import Job, JobRecord, JobState
from bunqueue_trio.model.naming import check_name, named
from bunqueue_trio.model.replies import IdReply, IdsReply
from bunqueue_trio.model.transitions import Transition, TransitionKind

CREATED, REPLACED = "created", "replaced"
_READY = JobState.READY  # as a global, see `engine.finishing`
NO_ONE: frozenset[str] = frozenset()


class Admission:
    """Lets jobs in."""

    def __init__(self, state: State, checks: EntryChecks) -> None:
        self._state = state
        self._checks = checks
        self._births = Births(state)
        self._dedup = Dedup(state)
        self._adoption = Adoption(state)

    def push(self, command: Push, now: Now) -> IdReply:
        """Queue one job, or find the one that stands for it already.

        Raises:
            ValidationError: the pattern of ``repeat`` is none, or the name. Nothing has changed.
            NotFoundError: a dependency is unknown. Nothing has changed.
            StateError: the key is held by a running job and the push asked to extend it; its parent takes no child; its
                group is full.
        """
        if command.is_plain and command.job_id is None and not command.durable:
            if command.name is not ABSENT:
                check_name(command.name)
            reply = IdReply(id=self._admit_plain(command.queue, (command,), now)[0])
            if command.receipt:
                reply.durability, reply.outcome = self._durability(None), CREATED
            return reply
        self._checks.check_push(command, now)
        if command.name is not ABSENT:
            check_name(command.name)
        level = command.durable
        is_child = has_link(command)
        if is_child:
            self._adoption.check(command.queue, [(command.job_id, command)], now)
            level = level or True
        if command.group_max_size is not None and command.name is not ABSENT:
            self._checks.check_sizes(command.queue, [(command.job_id, command)], now)
        job_id, outcome = self._admit(command.queue, command, command.job_id, now, is_durable=bool(level))
        if is_child and outcome is not EXISTING:
            self._adoption.adopt([(job_id, command)], now)
        reply = IdReply(id=job_id)
        if command.receipt:
            reply.durability = self._durability(level)
            reply.outcome = outcome
        return reply

    def push_batch(self, command: PushBatch, now: Now) -> IdsReply:
        """Queue several jobs, all or none; they share one transaction if any of them is durable.

        Raises:
            ValidationError: ``jobs[<i>]: ...`` for the first entry that cannot be let in. Nothing has changed.
        """
        entries = command.jobs
        assert entries is not None
        if all(entry.is_plain and entry.custom_id is None and not entry.durable for entry in entries):
            reply = IdsReply(ids=self._admit_plain(command.queue, entries, now))
            if self._state.events is not None:
                self._tell_of_batch(command.queue, len(entries), 0, now)
            if command.receipt:
                reply.durability, reply.outcomes = self._durability(None), [CREATED] * len(entries)
            return reply
        brings_children = any(map(has_link, entries))
        is_durable = brings_children or any(entry.durable for entry in entries)
        self._checks.check_batch(command.queue, entries, is_durable, now)
        if brings_children:
            self._adoption.check(command.queue, [(entry.custom_id, entry) for entry in entries], now)
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
        if brings_children:
            new = [(i, e) for i, e, outcome in zip(ids, entries, outcomes, strict=True) if outcome is not EXISTING]
            self._adoption.adopt(new, now)
        if self._state.events is not None:
            self._tell_of_batch(command.queue, len(ids), outcomes.count(EXISTING), now)
        reply = IdsReply(ids=ids)
        if command.receipt:
            level = "fsync" if any(entry.durable == "fsync" for entry in entries) else is_durable
            reply.durability = self._durability(level)
            reply.outcomes = outcomes
        return reply

    def _tell_of_batch(self, queue_name: str, total: int, duplicate_count: int, now: Now) -> None:
        state = self._state
        if total < 2 or state.heard is not None:
            return
        inserted = total - duplicate_count
        data = {"queue": queue_name, "total": total, "inserted": inserted, "duplicates": duplicate_count}
        if state.waits_for_commit:
            state.announce("batch:pushed", **data)
        elif state.events is not None:
            happenings.tell(state.events, "batch:pushed", now, **data)

    # letting in

    def _admit_plain(self, queue_name: str, entries: Sequence[PushOptions], now: Now) -> list[str]:
        """The short way for buffered jobs without any option, most of all: nothing can refuse or replace them.

        What `_admit` and `publish` do for them, in one loop; half of a push's time was spent between those calls.
        """
        state = self._state
        queue = state.queues.get(queue_name) or state.queue(queue_name)
        if not queue.is_known:
            self._make_known(queue, now)
        wall_ms = now.wall_ms
        timeline = self._births.first_timeline("waiting", wall_ms)
        jobs, dirty, ready, new_id = state.jobs, state.changes.jobs, queue.ready, state.ids.job_id
        seq = state.next_seq
        ids = []
        catalog = queue.catalog
        block = catalog.tail
        has_room = wall_ms > block.first[0] and len(block.jobs) < FULL
        for entry in entries:
            job_id = new_id(wall_ms)
            if not has_room:
                block = catalog.room_at_end(wall_ms, job_id) or catalog.aside
                has_room = True
            record = JobRecord(job_id, queue_name, entry.data, wall_ms, wall_ms, wall_ms, timeline)
            if entry.name is not ABSENT:
                record = named(record, entry.name)
            job = Job(record, _READY, seq)
            job.dirty = Dirty.PLAIN
            jobs[job_id] = job
            dirty.append(job)
            job.place = place = (0, 0, wall_ms, seq, job)  # as `ready_entry` makes it
            heappush(ready, place)
            job.block = block
            block.jobs.append(job)
            ids.append(job_id)
            seq += 1
        state.next_seq = seq
        queue.waiting_count += len(ids)
        state.gauges.waiting += len(ids)
        if block is catalog.aside:
            catalog.sort_in()
        state.totals.pushed += len(ids)
        state.changes.new_count += len(ids)
        state.wake(queue, len(ids))
        if state.events is not None and state.hears(queue_name):
            happenings.pushed_plain(state.events, queue_name, ids, now)
        return ids

    def _make_known(self, queue: QueueState, now: Now) -> None:
        """The first job of a name: from now on lists show it."""
        queue.is_known = True
        if self._state.events is not None:
            happenings.tell(self._state.events, "queue:created", now, queue=queue.name)

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
        if custom_id is not None:
            state.not_removing(custom_id)
        queue = state.queue(queue_name)
        job = None if custom_id is None else state.jobs.get(custom_id)
        if job is not None and job.state is not JobState.FAILED and not (in_batch and _is_being_removed(job)):
            answer = self._dedup.existing(job, is_durable, mine)
            if not queue.is_known and job.state is not JobState.STAGED:  # one elsewhere stands for the first push here
                self._make_known(queue, now)
            return answer
        if job is not None and job.state is JobState.FAILED:
            state.settled(job)  # it may be about to come back, or to go
        outcome = CREATED
        expires_at: float | None = None
        holder: Job | None = None  # of the unique key
        if not options.is_plain and options.unique_key is not None:
            holder = key_holder(queue, options.unique_key, now)
            if options.dedup is not None and options.dedup.ttl is not None:
                expires_at = now.wall_ms + options.dedup.ttl
            if holder is not None:
                if not (options.dedup is not None and options.dedup.replace):
                    return self._dedup.meet_holder(holder, options, expires_at, is_durable, mine, in_batch, now)
                holder = self._dedup.replace(holder, is_durable, mine)
                outcome = REPLACED
        record = self._births.record(queue_name, options, custom_id, now)
        job = Job(record=record, state=JobState.STAGED, seq=state.next_seq, key_expires_at=expires_at)
        if custom_id is not None:
            state.note_met(custom_id)
        state.next_seq += 1
        if is_durable:
            self._reserve(job, options, holder)
        else:
            if custom_id is not None:
                self._dedup.end_former_life(custom_id)
            state.changes.touch(job, Dirty.PLAIN if options.is_plain else Dirty.FULL)
        state.jobs[record.id] = job
        if record.unique_key is not None:
            queue.keys[record.unique_key] = job
            if holder is not None and not is_durable:
                state.displace(holder)
        if record.depends_on:
            self._watch_dependencies(job)
        if not is_durable:
            self.publish(job, now)
        return record.id, outcome

    def reserve(self, queue_name: str, options: FlowInput, job_id: str, now: Now) -> JobRecord:
        """Let a job of a flow in with the next commit, under an id that the caller knows to be free."""
        state = self._state
        state.queue(queue_name)
        state.forget_logs(job_id)  # those of one that was withdrawn long ago
        record = self._births.record(queue_name, options, options.custom_id, now, job_id=job_id)
        job = Job(record=record, state=JobState.STAGED, seq=state.next_seq)
        state.next_seq += 1
        self._reserve(job, options, None)
        state.jobs[job_id] = job
        if record.depends_on:
            self._watch_dependencies(job)
        return record

    def _reserve(self, job: Job, options: PushOptions, holder: Job | None) -> None:
        """Hold a durable push back until its commit; should that fail, nothing of it may remain (PD-3)."""
        state = self._state
        custom_id = job.record.custom_id
        transition = Transition(TransitionKind.PUBLISH, job, job.record, JobState.READY, displaced=holder)
        if custom_id is not None:
            transition.former = state.jobs.get(custom_id)
            transition.renews_id = (
                transition.former is not None or state.history.has_evicted or state.history.get(custom_id) is not None
            )
            transition.forgets_end = custom_id in state.kept_finished
        job.staged = transition
        job.dirty = Dirty.PLAIN if options.is_plain else Dirty.FULL
        if takes_turns(job.record):
            state.queues[job.record.queue].with_groups().reserve(job)
        state.stage(transition)
        if options.durable == "fsync":
            state.changes.needs_sync = True

    def publish(self, job: Job, now: Now) -> None:
        """Make a job visible: queue it, or park it while it waits for others."""
        state = self._state
        record = job.record
        queue = state.queues[record.queue]
        state.totals.pushed += 1
        if not queue.is_known:
            self._make_known(queue, now)
        if state.events is not None and state.hears(record.queue):
            happenings.pushed(state.events, job, now)
        if job.missing:
            queue.park(job)
        elif record.depends_on:
            state.release(queue, job, now)
        else:
            state.enqueue(queue, job, now)

    def _watch_dependencies(self, job: Job) -> None:
        """Find out what *job* still waits for, and be told when it completes."""
        state = self._state
        missing = set()
        for dependency in job.record.depends_on:
            state.dependents.setdefault(dependency, set()).add(job.record.id)
            if state.is_met(dependency):
                if state.history.get(dependency) is None and state.facts.get(dependency) is None:
                    state.keep_finished(dependency)
                continue
            other = state.jobs.get(dependency)
            if other is not None and other.staged is not None and other.staged.kind is TransitionKind.COMPLETE:
                other.staged.keeps_id = True
            missing.add(dependency)
        job.missing = missing or None

    def _durability(self, asked: Any) -> str:
        """The level that the reply vouches for."""
        if not asked:
            return "buffered"
        return "synced" if asked == "fsync" or self._state.syncs_commits else "committed"


def _is_being_removed(job: Job) -> bool:
    """True for a job that an earlier entry of the same batch has replaced; others would have refused the batch."""
    return job.staged is not None and job.staged.kind is TransitionKind.REMOVE
