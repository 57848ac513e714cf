"""One run of the server on a simulated disk: the real broker, engine, flusher and storage, without Trio and threads.

The flusher is its own coroutine, driven by hand: it stops where the writer's thread would begin a transaction, so that
commands can come while one is under way, and where it would sleep. What it does next is decided by nobody else.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol

import apsw
import msgpack

from bunqueue_trio.clock import ManualClock
from bunqueue_trio.engine.reading import ReadNeededError
from bunqueue_trio.engine.state import FactsNeededError
from bunqueue_trio.errors import StorageError
from bunqueue_trio.ids import Ids
from bunqueue_trio.model.instant import Now
from bunqueue_trio.model.replies import Reply
from bunqueue_trio.protocol.codec import decode_command
from bunqueue_trio.server import store as store_module
from bunqueue_trio.server.broker import Broker
from bunqueue_trio.server.flusher import MAX_RETRY_S, Flusher
from bunqueue_trio.server.startup import load_engine
from bunqueue_trio.server.storage_health import StorageHealth
from bunqueue_trio.server.store import Store
from bunqueue_trio.storage import connection as db
from bunqueue_trio.storage import lists, reads
from bunqueue_trio.storage.batch import Batch
from tests.simulation.disk import VFS_NAME
from tests.simulation.model import Violation
from tests.simulation.virtual import VIRTUAL, Call, Event, Nap, Stop, Turn

PATH = str(Path(tempfile.gettempdir()) / "bunqueue-simulation.db")
"""No such file is ever made: the name only has to lie in a folder that could hold it."""
TRIES = 4
TICKS_MAX = 3_000  # a cron whose last run waits for its commit is looked at every 20 ms
TURNS_MAX = 50
PAUSES_MAX = 3
QUICK_SHARE = 0.7
CHECKPOINT_ABOVE_FRAMES = (4, 30, 1_000)


class Observer(Protocol):
    """Who is told when a flush has taken the changes, how it has ended, and what was folded in; and knows the disk."""

    def flush_begun(self, batch: Batch) -> None: ...

    def flush_over(self, *, has_committed: bool) -> None: ...

    def checkpointed(self, mode: db.CheckpointMode, result: db.CheckpointResult) -> None: ...

    def free_bytes(self) -> int: ...


class SimulatedStore(Store):
    """The server's own, but for its threads and for what it asks the operating system."""

    def __init__(self, observer: Observer, connection: apsw.Connection, chance: random.Random) -> None:
        opened: Any = SimpleNamespace(writer=connection, reader=connection)
        store_module.PASSIVE_ABOVE_FRAMES = chance.choice(CHECKPOINT_ABOVE_FRAMES)
        super().__init__(PATH, opened, b"")
        thread: Any = self._write
        thread.is_quick = lambda: chance.random() < QUICK_SHARE
        self._observer = observer

    def begin_commit(self, batch: Batch) -> Any:
        self._observer.flush_begun(batch)
        return super().begin_commit(batch)

    def _checkpoint(self, mode: db.CheckpointMode) -> db.CheckpointResult:
        result = super()._checkpoint(mode)
        self._observer.checkpointed(mode, result)
        return result

    def free_bytes(self) -> int:
        return self._observer.free_bytes()


class Connection:
    """A client of the broker; it never parks a command."""

    is_waiting = False

    def __init__(self, number: int) -> None:
        self.id: int | None = number

    def answer(self, waiter: Any, reply: Reply) -> None:
        raise Violation("a command was parked that asked for no waiting")


class Node:
    """A server that has recovered from the disk; `flush_begin` and `flush_end` are to follow before anybody is served.

    Raises:
        StartError, StorageError: the disk does not let it start.
    """

    def __init__(self, observer: Observer, clock: ManualClock, synchronous: db.Synchronous, seed: object) -> None:
        self.clock = clock
        self.connection = db.open_writer(PATH, synchronous=synchronous, vfs=VFS_NAME)
        try:
            ids = Ids(db.lease_secret(self.connection), random.Random(f"ids {seed}"))
            self.engine = load_engine(
                self.connection, ids, clock, lease_grace_ms=2_000, syncs_commits=synchronous == "FULL"
            )
        except StorageError:
            self.connection.close(True)
            raise
        VIRTUAL.clock, VIRTUAL.ahead_s = clock, 0.0
        self.store = store = SimulatedStore(observer, self.connection, random.Random(f"store {seed}"))
        self.health = StorageHealth(max_backlog_jobs=10_000, max_backlog_bytes=1 << 26)
        self.broker = Broker(self.engine, clock, store.find_completed, self.health, store)
        broker: Any = self.broker
        broker.flush_turn, broker.flush_wanted = Turn(), Event()
        self.flusher = Flusher(self.broker, store)
        self._observer, self._tell_waiters = observer, broker.flush_ended
        broker.flush_ended = self._flush_ended
        self._flush_count = 0
        self._run: Coroutine[Stop, None, None] = self.flusher.run()
        self._stop = self._run.send(None)

    def close(self) -> None:
        """The process is no more."""
        self._run.close()
        with suppress(apsw.Error):  # its last writes go to a disk that nobody will see
            self.connection.close(True)

    # commands

    def execute(self, connection: Connection | None, cmd: str, **fields: Any) -> Any:
        """The reply to a command; the file is asked where the engine wants that.

        Raises:
            CommandError, PendingChangeError: as the broker.
        """
        command = decode_command(msgpack.packb({"cmd": cmd, **fields}))
        state = self.engine.state
        try:
            for _ in range(TRIES):
                try:
                    state.holds_file = not self.is_flushing and state.answer is None
                    return self.broker.execute(command, connection, self.clock.now())
                except FactsNeededError as needed:
                    found = {job_id: reads.find_completed(self.connection, job_id) for job_id in needed.ids}
                    self.engine.find_facts(found)
                except ReadNeededError as needed:
                    if needed.question is not None:
                        lists.answer(self.connection, needed.question)
                        state.answer = needed.question
                finally:
                    state.holds_file = False
        finally:
            self.engine.clear_facts()
        raise Violation(f"{cmd} asks the file the same again and again")

    def after_turn(self, *, notes_changes: bool = True) -> None:
        self.broker.after_turn(self.clock.now(), notes_changes=notes_changes)

    @property
    def can_commit_here(self) -> bool:
        """As `Broker.is_alone` sees it, for the connection that is busy alone."""
        return not self.is_flushing and self.health.error is None

    def commit_here(self, *, is_small: bool) -> bool:
        """At the end of the turn of somebody who is alone."""
        if self.broker.commit_here(is_small=is_small):
            return True
        self.broker.note_changes(self.clock.now())
        return False

    # time

    def advance(self, ms: float) -> None:
        """Let time pass, with a tick at every deadline on the way, as the reaper does it."""
        end = self.clock.now().mono_ms + ms
        for _ in range(TICKS_MAX):
            now = self.clock.now()
            deadline = self.broker.next_deadline_mono_ms(now)
            self.clock.advance(max(0.0, min(deadline, end) - now.mono_ms))
            self.broker.tick(self.clock.now())
            if self.clock.now().mono_ms >= end:
                return
            if deadline <= now.mono_ms:
                self.clock.advance(min(1.0, end - now.mono_ms))  # as real time would pass
        raise Violation("the engine keeps naming a deadline that it does nothing about")

    def skew(self, ms: float) -> None:
        """The wall clock jumps."""
        self.clock.skew(ms)
        self.broker.tick(self.clock.now())

    # flushes

    @property
    def is_flushing(self) -> bool:
        return self.broker.is_flushing

    @property
    def is_clean(self) -> bool:
        """Whether memory holds nothing that the file does not, and nothing is wrong with it."""
        return not self.is_flushing and not self.engine.state.changes and self.health.error is None

    def flush_begin(self) -> None:
        """Somebody waits for the next commit. Pauses are over at once."""
        if self.engine.state.changes:
            self.broker.ticket.is_awaited = True
        self.broker.flush_wanted.set()
        for _ in range(PAUSES_MAX):
            self.go_on()
            if self.is_flushing or self.is_clean:
                return
            VIRTUAL.ahead_s += MAX_RETRY_S
        raise Violation("somebody waits for a commit, and the flusher does not flush")

    def go_on(self) -> None:
        """Let the flusher do what it would, until time has to pass or a transaction is about to begin."""
        for _ in range(TURNS_MAX):
            is_call = isinstance(self._stop, Call)
            if (is_call and self.is_flushing) or not self.step():
                return
        raise Violation("the flusher has something to do all the time, and does not do it")

    def step(self) -> bool:
        """Let it go on behind what it waits for, which is a call of the writer's thread or over. False: it is not."""
        if isinstance(self._stop, Call):
            self._stop.make()
        elif not self._stop.is_over:
            return False
        self._stop = self._run.send(None)
        return True

    @property
    def pause_ms(self) -> float:
        """For how long the flusher sleeps if nobody wakes it."""
        left_s = self._stop.until_s - VIRTUAL.current_time() if isinstance(self._stop, Nap) else 0.0
        return max(left_s * 1000, 0.0)

    def _flush_ended(self, now: Now) -> None:
        self._tell_waiters(now)
        has_committed, self._flush_count = self.flusher.flush_count > self._flush_count, self.flusher.flush_count
        self._observer.flush_over(has_committed=has_committed)

    def checkpoint(self, mode: db.CheckpointMode) -> None:
        """One that is not the flusher's."""
        with suppress(StorageError):
            self.store._checkpoint(mode)
