"""The engine: one object that owns every queue rule.

    reply = engine.execute(command, now, connection_id)      raises CommandError: refused, nothing changed
    engine.tick(now); engine.next_deadline(now)              what time alone brings about
    changes = engine.take_changes()                          what a flush has to write
    engine.committed(changes, now) / engine.rejected(...)    and what became of it

The same commands, moments and ids give the same state, bit for bit.
"""

from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from datetime import UTC, tzinfo
from heapq import heappop
from typing import Any

from bunqueue_trio.engine import dead_letters, happenings, leases
from bunqueue_trio.engine.admission import Admission
from bunqueue_trio.engine.cron_firing import CronFiring
from bunqueue_trio.engine.crons import Crons
from bunqueue_trio.engine.dispatch import Handler, group_handlers, job_handlers, queue_handlers, server_handlers
from bunqueue_trio.engine.emptying import Emptying
from bunqueue_trio.engine.entry_checks import EntryChecks
from bunqueue_trio.engine.history import History
from bunqueue_trio.engine.id_source import IdSource
from bunqueue_trio.engine.invariants import check_invariants
from bunqueue_trio.engine.maturing import mature_due, see_to_next
from bunqueue_trio.engine.queries import Queries
from bunqueue_trio.engine.repeat_patterns import RepeatPatterns
from bunqueue_trio.engine.reruns import Reruns
from bunqueue_trio.engine.running import Running
from bunqueue_trio.engine.series import count_ends
from bunqueue_trio.engine.settling import Settling
from bunqueue_trio.engine.state import State, is_live
from bunqueue_trio.engine.workers import Workers
from bunqueue_trio.model import commands as c
from bunqueue_trio.model.changes import Changes
from bunqueue_trio.model.entries import CompletedJob
from bunqueue_trio.model.instant import Now
from bunqueue_trio.model.job import Job
from bunqueue_trio.model.replies import Reply
from bunqueue_trio.model.transitions import Removal, SettingsChange, Staged, Transition

TIMERS_PER_TICK = 1_000  # a tick that finds more goes on in the next one, so that commands get their turn
STALE_TIMER_NEAR_MS = 1_000  # those further away are mostly swept out before, at a fifth of the cost
CLOCK_SLACK_MS = 1_000  # smaller steps back are left to the pulls that meet them
IDLE_QUEUE_SWEEP_MS = 10_000
NOT_TRIED = "Storage refuses writes"


class Engine:
    """A pure state machine. Not thread-safe, and needs not be.

    Args:
        ids: where ids, tokens and jitter come from.
        lease_grace_ms: how long after its end a lease still lets its holder's ACK in (P-27).
        syncs_commits: whether every commit reaches the disk; for what receipts say.
        worker_timeout_ms: a worker not heard of for so long counts as absent, for crons that need one.
        local_zone: the zone of cron expressions and patterns of ``repeat`` that name none.
    """

    def __init__(
        self,
        ids: IdSource,
        *,
        lease_grace_ms: float = 2_000,
        history: History | None = None,
        syncs_commits: bool = False,
        worker_timeout_ms: float = 30_000,
        local_zone: tzinfo = UTC,
    ) -> None:
        self.state = State(ids, lease_grace_ms=lease_grace_ms, history=history, syncs_commits=syncs_commits)
        patterns = RepeatPatterns(local_zone)
        self.state.next_match = patterns.next_match
        self.entry_checks = EntryChecks(self.state, patterns)
        self.admission = Admission(self.state, self.entry_checks)
        self.queries = Queries(self.state)
        self.workers = Workers(self.state)
        self.reruns = Reruns(self.state)
        self.crons = Crons(self.state, local_zone=local_zone)
        self._firing = CronFiring(self.state, self.admission, worker_timeout_ms=worker_timeout_ms)
        self._emptying = Emptying(self.state)
        self._settling = Settling(self.state, self.admission, self._emptying, self.reruns)
        self._running = Running(self.state, self.queries)
        self._next_sweep_mono_ms = 0.0
        self._handlers: dict[type, Handler] = {
            **job_handlers(self.state, self.admission, self.queries, self._running),
            **queue_handlers(self.state, self.queries, self._emptying, self.reruns),
            **group_handlers(self.state),
            **server_handlers(self.state, self.queries, self.crons, self.workers),
        }

    # commands

    def execute(self, command: Any, now: Now, connection_id: int | None = None) -> Reply | None:
        """Carry out one checked command.

        Returns:
            The reply; None for a pull that found nothing ready and for a WaitJob whose job goes on, which the caller
            may park.
            ``state.waits_for_commit`` says afterwards whether the reply must wait for the next flush.
        Raises:
            CommandError: refused; nothing has changed.
            PendingChangeError: meets an uncommitted change; execute it again after the next commit.
            FactsNeededError: look these ids up in the file, set ``state.facts``, execute again.
        """
        self.state.waits_for_commit = False
        handler = self._handlers.get(type(command))
        if handler is not None:
            return handler(command, now)
        match command:
            case c.Pull():
                return self._running.pull(command, connection_id, now)
            case c.PullBatch():
                return self._running.pull_batch(command, connection_id, now)
            case c.RegisterWorker():
                return self.workers.register(command, connection_id, now)
            case c.UnregisterWorker():
                return self.workers.unregister(command, connection_id, now)
        raise TypeError(f"no handler for {type(command).__name__}")

    def lend(self, handlers: Mapping[type, Handler]) -> None:
        """Have whoever runs the engine answer commands about the server itself; they must change nothing in here."""
        self._handlers.update(handlers)

    def knows(self, command: Any) -> bool:
        """True for commands the engine carries out."""
        return type(command) in self._handlers or isinstance(
            command, (c.Pull, c.PullBatch, c.RegisterWorker, c.UnregisterWorker)
        )

    def listen(self, is_listened_to: bool) -> None:
        """Collect events from now on in ``state.events``, for whoever takes them away every turn; or no longer."""
        self.state.events = [] if is_listened_to else None

    def hear(self, queues: Container[str] | None) -> None:
        """Of what happens to jobs, those who listen need only what concerns *queues*, which may change; None: all."""
        self.state.heard = queues

    def connect(self, connection_id: int) -> None:
        """A connection may hold leases from now on."""
        self.state.connections.add(connection_id)

    def disconnect(self, connection_id: int, now: Now) -> None:
        """A connection has closed: release its jobs and workers."""
        leases.disconnect(self.state, connection_id, now)

    def let_go(self, connection_id: int) -> None:
        """Who holds leases under this id has no connection: its jobs belong to nobody from now on."""
        leases.let_go(self.state, connection_id)

    def take_undelivered(self, connection_id: int, now: Now) -> None:
        """What was leased under this id has never reached anybody: back to the queue, no attempt counted."""
        leases.take_undelivered(self.state, connection_id, now)

    # time

    def tick(self, now: Now) -> None:
        """Do what has become due: delayed jobs, ended leases, stalls, timeouts, crons. At most 1,000 leases a call."""
        state = self.state
        if now.wall_ms < state.last_wall_ms - CLOCK_SLACK_MS:
            self._rewind(now)
        state.last_wall_ms = now.wall_ms
        mature_due(state, now)
        for _ in range(TIMERS_PER_TICK):
            if not state.timers or state.timers[0][0] > now.mono_ms:
                break
            mono_ms, _, target = heappop(state.timers)
            if isinstance(target, Job):
                leases.look_at(state, target, mono_ms, now)
            else:
                state.wake(target, target.waiting_count + target.prioritized_count)
        dead_letters.look_at_due(state, now)
        self._firing.fire_due(now)
        if now.mono_ms >= self._next_sweep_mono_ms:
            self._next_sweep_mono_ms = now.mono_ms + IDLE_QUEUE_SWEEP_MS
            self._forget_idle_queues(now)

    def next_deadline_mono_ms(self, now: Now) -> float:
        """When `tick` is due next, on the monotonic clock; infinity when nothing is.

        It may turn out to be for nothing, once a second at the most.
        """
        state = self.state
        near_mono_ms = now.mono_ms + STALE_TIMER_NEAR_MS
        while state.timers and state.timers[0][0] <= near_mono_ms and not is_live(state.timers[0]):
            heappop(state.timers)
        deadline = state.timers[0][0] if state.timers else float("inf")
        if state.due:
            deadline = min(deadline, now.mono_ms + state.due[0][0] - now.wall_ms)
        if state.letters_due:
            deadline = min(deadline, now.mono_ms + state.letters_due[0][0] - now.wall_ms)
        if state.crons.due and state.hands_out:
            deadline = min(deadline, now.mono_ms + state.crons.next_due_ms() - now.wall_ms)
        return deadline

    def _rewind(self, now: Now) -> None:
        """The wall clock has gone back: nothing may run early."""
        for queue in self.state.queues.values():
            queue.rewind(now.wall_ms)
            see_to_next(self.state, queue)
        self.state.crons.look_at_all(now.wall_ms)

    def _forget_idle_queues(self, now: Now) -> None:
        """Names of queues that hold nothing are not kept for ever (M1)."""
        for queue in self.state.queues.values():
            if queue.named_groups is not None:
                queue.forget_groups(now.mono_ms)
        idle = [name for name, queue in self.state.queues.items() if queue.is_idle]
        for name in idle:
            queue = self.state.queues.pop(name)
            if self.state.events is not None and queue.is_known:
                happenings.tell(self.state.events, "queue:removed", now, queue=name)

    # persistence

    def take_changes(self) -> Changes:
        """What the next flush has to carry. Follow up with `committed` or `rejected` before taking again."""
        changes, self.state.changes = self.state.changes, Changes()
        count_ends(changes)
        self.state.settings_in_flight = {
            s.queue
            for s in changes.staged
            if type(s) is not Transition and (isinstance(s, SettingsChange) or (isinstance(s, Removal) and s.is_whole))
        }
        self.state.set_in_flight(changes)
        return changes

    def committed(self, changes: Changes, now: Now, *, missing: Sequence[str] = (), kept: Sequence[str] = ()) -> None:
        """These changes are in the file: let what waited for that take effect.

        Args:
            missing: ids of jobs that were to run again but had no completed row any more.
            kept: ids of jobs that went with their queue and that the file remembers as completed.
        """
        self.state.settings_in_flight = set()
        self.state.set_in_flight(None)
        self._settling.apply(changes.staged, now, frozenset(missing))
        self._emptying.remember(kept)

    def rejected(self, changes: Changes, restore: Callable[[], None], now: Now, *, error: str | None = None) -> None:
        """These changes could not be stored: staged ones are dropped, the others go back in front of newer ones.

        Args:
            restore: puts the dirty marks of the failed batch back (the batch knows them).
            error: why, for those who listen.
        """
        staged = changes.staged + self.state.changes.staged
        self._merge_back(changes, restore)
        self.state.changes.staged = []
        self._settling.drop(staged, now, error)

    def eject(self, job_id: str) -> Job | None:
        """The row of this job can never be stored: stop trying, so that it does not keep the others out of the file.

        It stays in memory and can be worked. Returns it, or None when no such job was to be written.
        """
        jobs = self.state.changes.jobs
        for job in jobs:
            if job.record.id == job_id:
                jobs.remove(job)
                job.dirty = 0
                return job
        return None

    def put_back(self, changes: Changes, restore: Callable[[], None]) -> None:
        """These changes were not even tried: they go back in front of newer ones, staged ones included."""
        staged = changes.staged + self.state.changes.staged
        self._merge_back(changes, restore)
        self.state.changes.staged = staged

    def drop_staged(self, staged: list[Staged], now: Now) -> None:
        """Changes that were staged a moment ago will not be tried."""
        self._settling.drop(staged, now, NOT_TRIED)

    def _merge_back(self, changes: Changes, restore: Callable[[], None]) -> None:
        state = self.state
        state.settings_in_flight = set()
        state.set_in_flight(None)
        newer, state.changes = state.changes, Changes()
        restore()
        merged = state.changes
        known = {id(job) for job in merged.jobs}
        merged.jobs.extend(job for job in newer.jobs if job.dirty and id(job) not in known)
        # Deletions are the first thing in a batch, so what the newer changes delete must not be among the older ones.
        for job_id in newer.letters_gone:
            changes.letters.pop(job_id, None)
        for job_id in newer.finished:
            changes.finished_gone.pop(job_id, None)
        for name in ("letters", "finished", "finished_gone"):
            getattr(merged, name).update(getattr(changes, name))
            getattr(merged, name).update(getattr(newer, name))
        for name in ("reborn", "letters_gone"):
            getattr(merged, name).extend(getattr(changes, name))
            getattr(merged, name).extend(getattr(newer, name))
        merged.expired = changes.expired | newer.expired
        merged.failures = dict(Counter(changes.failures) + Counter(newer.failures))
        merged.needs_sync = newer.needs_sync or changes.needs_sync

    @property
    def completed_count(self) -> int:
        """How many completed jobs the file holds."""
        return self.state.gauges.completed

    def expire_completed(self, found: list[tuple[str, str]], completed_before_ms: float) -> None:
        """Let completed jobs go, rows and results, with the next flush.

        Args:
            found: (id, queue) as the file gave them a moment ago.
            completed_before_ms: an id that has completed anew since then stays.
        """
        state = self.state
        for job_id, queue_name in found:
            known = state.history.get(job_id)
            is_newer = known is not None and (known.record.completed_at or 0) > completed_before_ms
            if is_newer or job_id in state.jobs or job_id in state.removing or job_id in state.changes.expired:
                continue
            state.history.pop(job_id)
            state.forget_logs(job_id)
            queue = state.queues.get(queue_name)
            if queue is not None and queue.completed_count:
                queue.completed_count -= 1
            if job_id in state.dependents:
                state.history.remember_finished(job_id)
                state.keep_finished(job_id)  # else a restart would park those who wait for others as well
            state.changes.expired[job_id] = queue_name

    def forgotten(self, queue_names: list[str]) -> None:
        """Rebirths have deleted completed jobs in the file, one per name; what memory knew is counted out already."""
        counted_out = self.state.counted_out
        for name in queue_names:
            if counted_out.get(name):
                counted_out[name] -= 1
                if not counted_out[name]:
                    del counted_out[name]
                continue
            queue = self.state.queues.get(name)
            if queue is not None and queue.completed_count:
                queue.completed_count -= 1

    def find_facts(self, found: dict[str, CompletedJob | None]) -> None:
        """What the file says about ids a command asked for; forgotten by `clear_facts`."""
        for job_id, completed in found.items():
            if completed is not None and completed.record.completed_at is None:  # it runs again, beside its old result
                self.state.old_results[job_id] = completed.result
                completed = None
            self.state.facts[job_id] = completed

    def clear_facts(self) -> None:
        """The command that needed the facts is through."""
        if self.state.facts:
            self.state.facts, self.state.old_results = {}, {}
        self.state.answer = None

    # shutdown and self-check

    def stop_handing_out(self) -> None:
        """From now on every pull finds nothing; everything else goes on."""
        self.state.hands_out = False

    @property
    def active_count(self) -> int:
        """How many jobs are being run."""
        return self.state.active_count

    def check_invariants(self) -> None:
        """Recount everything. For tests, and after an unexpected error.

        Raises:
            InvariantError: a counter, an index or a lease is not what it should be.
        """
        check_invariants(self.state)
