"""The machine of a simulation: the process on it, what its clients were promised, and the history of its commits."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgpack

from bunqueue_trio.clock import ManualClock
from bunqueue_trio.engine.state import PendingChangeError
from bunqueue_trio.errors import CommandError
from bunqueue_trio.model.job import JobRecord
from bunqueue_trio.model.replies import ErrorReply, Reply
from bunqueue_trio.model.transitions import CronChange, CronNews, Transition, TransitionKind
from bunqueue_trio.storage import connection as db
from bunqueue_trio.storage.batch import Batch
from tests.simulation.disk import Disk, SimulatedVFS, Trouble
from tests.simulation.model import ACTIVE, FAILED, STALL_INTERVAL_MS, Fact, Op, World, require
from tests.simulation.node import Connection, Node
from tests.simulation.witness import Memory

REFUSED, PENDING = "refused", "come again"
PARENT_BUSY_MS = 25
BOOKS = ("pushed", "acknowledged", "runs", "run again", "completed", "lost", "commits", "failed flushes")


@dataclass(eq=False)
class Promise:
    """A reply that waits for its commit, and what it confirms."""

    op: Op
    confirmed: Callable[[Promise], None]
    asks_sync: bool = False
    verdict: bool | None = None

    def confirm(self, replies: list[Reply]) -> None:
        """The ticket says how the commit has ended."""
        [reply] = replies
        self.verdict = not isinstance(reply, ErrorReply)
        if self.verdict:
            self.confirmed(self)


@dataclass(eq=False)
class Attempt:
    """A flush, and what the file says once it has committed."""

    world: World
    memory: Memory | None = None
    promises: list[Promise] = field(default_factory=list)
    own_ops: list[Op] = field(default_factory=list)
    is_kept: bool = False
    """A kill must not lose it."""
    is_synced: bool = False
    """Nor a power cut."""
    has_committed: bool = False
    """By what the flusher was told."""
    is_void: bool = False
    """It failed before its end was written: no recovery can bring it about."""

    @property
    def ops(self) -> list[Op]:
        return [promise.op for promise in self.promises] + self.own_ops


class Machine:
    """A clock, a disk and the process that runs. What ends it is `tests.simulation.simulation`."""

    def __init__(self, seed: int, vfs: SimulatedVFS, files: dict[str, bytes], *, is_verbose: bool) -> None:
        self.seed = seed
        self.chance = random.Random(seed)
        self.clock = ManualClock()
        self.synchronous: db.Synchronous = self.chance.choice(("NORMAL", "NORMAL", "FULL"))
        self.vfs = vfs
        self.vfs.disk = Disk(files)
        self.trace: list[str] = []
        self.books: Counter[str] = Counter(dict.fromkeys(BOOKS, 0))
        self.world = World()
        self.attempts = [Attempt(World(), is_kept=True, is_synced=True)]
        self.pending: list[Promise] = []
        self.flying: Attempt | None = None
        self.completed: dict[str, JobRecord] = {}
        """The records of the completed jobs in the file, as memory knew them."""
        self.connections: list[Connection] = []
        self.waits = False
        """Whether the reply to the last command waits for its commit."""
        self._next_connection = 1
        self._is_verbose = is_verbose
        self._node: Node | None = None

    @property
    def disk(self) -> Disk:
        return self.vfs.disk

    @property
    def node(self) -> Node:
        """The process that runs."""
        assert self._node is not None
        return self._node

    def say(self, text: str) -> None:
        """Go on with the story."""
        self.trace.append(text)
        if self._is_verbose:
            print(text)

    # commands

    def command(self, connection: Connection | None, cmd: str, op: Op | None = None, **fields: Any) -> Any:
        """The reply to a command, or `REFUSED` or `PENDING`: nothing has happened, and it may be sent again.

        What waits for its commit is promised with *op*; `promise` does it afterwards where the reply is needed first.
        """
        node = self.node
        try:
            reply = node.execute(connection, cmd, **fields)
        except PendingChangeError:
            reply = PENDING
        except CommandError as error:
            self.say(f"  {cmd} {fields}: {error}")
            is_unavailable = node.health.is_pausing and str(error) == str(node.health.error)
            reply = PENDING if is_unavailable else REFUSED
        self.waits = reply is not PENDING and reply is not REFUSED and node.broker.waits_for_commit
        if op is not None and self.waits:
            self.promise(op, reply)
        return reply

    def promise(self, op: Op, reply: Reply, *, asks_sync: bool = False) -> None:
        """The reply to the last command belongs to the next commit, which is to bring *op*."""
        promise = Promise(op, self._confirmed, asks_sync)
        self.pending.append(promise)
        self.node.broker.ticket.add(promise, reply)

    def _confirmed(self, promise: Promise) -> None:
        """The client knows; whether the commit has come or not."""
        self.books[promise.op.book] += promise.op.weight
        if self.flying is not None and promise in self.flying.promises:
            self.flying.is_kept = True

    def _open_ops(self) -> Iterable[Op]:
        promises = self.pending if self.flying is None else self.flying.promises + self.pending
        return (promise.op for promise in promises)

    @property
    def _asked(self) -> set[str]:
        """Those that somebody has asked for."""
        return {job_id for op in self._open_ops() for job_id in op.ids}

    @property
    def busy(self) -> set[str]:
        """Jobs of which a change waits for its commit."""
        busy = self._asked
        if self.flying is not None:
            busy.update(job_id for op in self.flying.own_ops for job_id in op.ids)
        staged = self.node.engine.state.changes.staged
        busy.update(change.record.id for change in staged if isinstance(change, Transition) and _is_own_retry(change))
        return busy

    @property
    def moving(self) -> set[str]:
        """Those of them that stay queued whatever comes of it."""
        return {job_id for op in self._open_ops() for job_id in op.moving}

    # connections and time

    def connect(self) -> Connection:
        """A client comes."""
        connection = Connection(self._next_connection)
        self._next_connection += 1
        self.connections.append(connection)
        self.node.broker.connect(connection)
        return connection

    def is_open(self, connection: int | None) -> bool:
        return any(c.id == connection for c in self.connections)

    def advance(self, ms: float) -> None:
        """Time passes."""
        self.world.look_for_silence(self.clock.now().mono_ms)
        self.node.advance(ms)
        now = self.clock.now()
        silent = [fact for fact in self.world.jobs.values() if fact.state == ACTIVE and fact.stalls_at <= now.mono_ms]
        self.books["stalls"] += sum(fact.stalls_at == fact.deadline for fact in silent)
        self.world.pass_time(now.mono_ms, now.wall_ms, self._asked, self._kept_letters())

    def skew(self, ms: float) -> None:
        """The wall clock jumps."""
        self.world.look_for_silence(self.clock.now().mono_ms)
        self.node.skew(ms)
        now = self.clock.now()
        self.world.pass_time(now.mono_ms, now.wall_ms, self._asked, self._kept_letters())

    def _kept_letters(self) -> set[str]:
        """Those whose retry is due: it comes before their end, which is then looked at again a minute later."""
        jobs, wall_ms = self.node.engine.state.jobs, self.clock.now().wall_ms
        due = {fact.id for fact in self.world.jobs.values() if fact.state == FAILED and fact.retry_at <= wall_ms}
        return due & jobs.keys()

    # flushes

    def flush_begin(self) -> None:
        """The flusher tries, if it does not already."""
        if self.flying is None:
            self.node.flush_begin()

    def commit_here(self) -> None:
        """The turn of somebody who is alone and waits for a commit ends: it is made, or begun, if that can be done."""
        if self.node.commit_here(is_small=len(self.pending) == 1):
            self.books["commits within a turn"] += self.flying is None
            self.books["commits begun within a turn"] += self.flying is not None

    def flush_begun(self, batch: Batch) -> None:
        """The flusher has taken all changes; its transaction is about to begin."""
        changes = self.node.engine.state.in_flight
        assert changes is not None
        promises, self.pending = self.pending, []
        gone = {*changes.reborn, *changes.expired}
        completed = {job_id: record for job_id, record in self.completed.items() if job_id not in gone}
        attempt = Attempt(self.world.copy(), Memory(self.node.engine, completed), promises, self._own_ops())
        for op in attempt.ops:
            op.apply(attempt.world)
        attempt.is_kept = any(promise.verdict for promise in promises)
        self.flying = attempt
        self.attempts.append(attempt)
        self.say(f"  flush {len(self.attempts) - 1} begins: {[op.what for op in attempt.ops]}")

    def flush_end(self) -> bool:
        """Returns whether no flush was under way, or it has committed."""
        attempt = self.flying
        while self.flying is attempt and attempt is not None:
            require(self.node.step(), "nobody ends the flush that was begun")
        return attempt is None or attempt.has_committed

    def flush_over(self, *, has_committed: bool) -> None:
        """The flusher has told everybody how it has ended."""
        attempt, self.flying = self.flying, None
        assert attempt is not None
        attempt.has_committed = has_committed
        error = self.node.health.error
        number = self.attempts.index(attempt)
        self.say(f"  flush {number} {'has committed' if has_committed else f'failed: {error}'}")
        self.books["commits" if has_committed else "failed flushes"] += 1
        if has_committed:
            self._note_success(attempt, number)
        else:
            require(error is not None and error.transient, f"flush {number} can never succeed: {error}")
            require(self.disk.trouble is not None, f"flush {number} fails on a healthy disk: {error}")
            self._note_failure(attempt, number)

    def _note_success(self, attempt: Attempt, number: int) -> None:
        require(all(p.verdict for p in attempt.promises), f"flush {number} has committed, and not everybody knows")
        attempt.is_kept = True
        attempt.is_synced = self.synchronous == "FULL" or any(promise.asks_sync for promise in attempt.promises)
        for op in attempt.ops:
            op.apply(self.world)
        assert attempt.memory is not None
        self.completed = attempt.memory.completed
        self._release({job_id for op in attempt.ops for job_id in op.ids} - self.busy)

    def _note_failure(self, attempt: Attempt, number: int) -> None:
        dropped, self.pending = attempt.promises + self.pending, []
        told = [promise.op.what for promise in dropped if promise.verdict is not False]
        require(not told, f"flush {number} has failed, and was not refused: {told}")
        attempt.is_void = self.disk.trouble is not Trouble.SYNC  # else all of it was written, and is not trusted
        self._release({job_id for promise in dropped for job_id in promise.op.ids})

    def _release(self, ids: set[str]) -> None:
        """No change of these jobs waits any more: whose holder has gone meanwhile is taken back now."""
        held = [fact for job_id in ids if (fact := self.world.jobs.get(job_id)) is not None and fact.state == ACTIVE]
        lost = [fact for fact in held if fact.connection is not None and not self.is_open(fact.connection)]
        for fact in lost:
            self.world.lose(fact.id, stalls=0, wall_ms=self.clock.now().wall_ms)
        if any(fact.parent in ids for fact in lost):
            self.advance(PARENT_BUSY_MS)  # the failure of a child has to wait for a change of its parent

    def _own_ops(self) -> list[Op]:
        """What the server has brought about by itself: it is seen when a flush takes it."""
        changes = self.node.engine.state.in_flight
        assert changes is not None
        ops: list[Op] = []
        for change in changes.staged:
            if isinstance(change, CronChange) and change.news not in (CronNews.CREATED, CronNews.UPDATED):
                if change.job is not None:
                    count = partial(World.count_cron, name=change.name, executions=change.job.executions)
                    ops.append(Op(f"run {change.job.executions} of {change.name}", count))
            elif isinstance(change, Transition) and _is_own_retry(change):
                ops.append(self._retry(change))
            elif isinstance(change, Transition) and _is_of_server(change) and not change.is_doomed:
                ops.append(Op(f"birth of {change.record.id}", partial(World.add, fact=_born(change))))
        return ops

    def _retry(self, change: Transition) -> Op:
        """A dead letter comes back by itself."""
        job_id, wall_ms = change.record.id, self.clock.now().wall_ms
        fact = self.world.jobs.get(job_id)
        is_due = fact is not None and fact.state == FAILED and fact.retry_at <= wall_ms
        require(is_due, f"{job_id} comes back by itself, but it is {fact}")
        assert fact is not None
        self.books["automatic retries"] += 1
        again = partial(World.start_over, job_id=job_id, run_at=change.record.run_at, retries=fact.retries + 1)
        return Op(f"retry of {job_id}", again, frozenset({job_id}))

    def settle(self) -> None:
        """No change waits any longer."""
        self.flush_end()
        if self.node.engine.state.changes or self.node.health.error is not None:
            self.flush_begin()  # unless the end of the other has begun the next
        while self.flying is not None:
            self.flush_end()

    def checkpointed(self, mode: db.CheckpointMode, result: db.CheckpointResult) -> None:
        """What was in the WAL is in the file as far as possible; when all of it is, it is on the disk."""
        is_complete = not result.busy and result.moved >= result.wal_frames
        self.say(f"  checkpoint {mode}: {'complete' if is_complete else 'not complete'}")
        self.books["checkpoints"] += 1
        if is_complete:
            last = max(number for number, attempt in enumerate(self.attempts) if attempt.is_kept)
            self.attempts[last].is_synced = self.attempts[last] is not self.flying

    def free_bytes(self) -> int:
        return self.disk.free_bytes()


def _is_own_retry(change: Transition) -> bool:
    return change.kind is TransitionKind.REVIVE and change.job.past is not None


def _is_of_server(change: Transition) -> bool:
    """True for the run of a cron, and for the successor of a job that repeats."""
    return change.kind is TransitionKind.PUBLISH and (change.job.is_from_cron or change.succeeds is not None)


def _born(change: Transition) -> Fact:
    record = change.record
    return Fact(
        record.id,
        record.queue,
        number=msgpack.unpackb(record.data)["n"],
        run_at=record.run_at,
        priority=record.priority,
        max_attempts=record.max_attempts,
        removes_completed=record.remove_on_complete,
        removes_failed=record.remove_on_fail,
        timeout=record.timeout,
        silence=STALL_INTERVAL_MS if record.stall_timeout is None else record.stall_timeout,
        key=record.unique_key,
        holds_key=record.unique_key is not None,
        is_from_cron=change.job.is_from_cron,
    )
