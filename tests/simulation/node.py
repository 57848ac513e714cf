"""One run of the server on a simulated disk: the real broker, engine, flusher and storage, without Trio and threads.

A flush is the flusher's own coroutine, driven by hand: it stops where the writer's thread would begin its transaction,
so that commands can come while it is under way.
"""

from __future__ import annotations

import random
import tempfile
import types
from collections.abc import Coroutine, Generator
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import apsw
import msgpack

from bunqueue_trio.clock import ManualClock
from bunqueue_trio.engine.reading import ReadNeededError
from bunqueue_trio.engine.state import FactsNeededError
from bunqueue_trio.errors import StorageError
from bunqueue_trio.ids import Ids
from bunqueue_trio.model.replies import Reply
from bunqueue_trio.protocol.codec import decode_command
from bunqueue_trio.server.broker import Broker
from bunqueue_trio.server.flusher import Flusher
from bunqueue_trio.server.startup import load_engine
from bunqueue_trio.server.storage_health import StorageHealth
from bunqueue_trio.storage import connection as db
from bunqueue_trio.storage import lists, reads, writes
from bunqueue_trio.storage.batch import Batch, CommitReport
from tests.simulation.disk import VFS_NAME
from tests.simulation.model import Violation

PATH = str(Path(tempfile.gettempdir()) / "bunqueue-simulation.db")
"""No such file is ever made: the name only has to lie in a folder that could hold it."""
TRIES = 4
TICKS_MAX = 1_000


class Observer(Protocol):
    """Who is told when a flush has taken the changes."""

    def flush_begun(self, batch: Batch) -> None: ...


@types.coroutine
def _until_resumed() -> Generator[None, None, None]:
    yield


class _Store:
    """What broker and flusher use of `Store`."""

    path = PATH
    is_in_memory = False

    def __init__(self, observer: Observer, connection: Any) -> None:
        self._observer = observer
        self._connection = connection

    async def commit(self, batch: Batch) -> CommitReport:
        self._observer.flush_begun(batch)
        await _until_resumed()
        return writes.apply_batch(self._connection, batch, PATH)

    async def find_completed(self, ids: list[str]) -> Any:
        raise NotImplementedError

    read_completed = read_pinned = find_completed


class _FreeTurn:
    """The lock around a flush, where nothing else can want it."""

    def locked(self) -> bool:
        return False

    def acquire_nowait(self) -> None:
        pass

    def release(self) -> None:
        pass


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
        store: Any = _Store(observer, self.connection)
        self.health = StorageHealth(max_backlog_jobs=10_000, max_backlog_bytes=1 << 26)
        self.broker = Broker(self.engine, clock, store.find_completed, self.health, store)
        self.broker.flush_turn = _FreeTurn()  # type: ignore[assignment]
        self.flusher = Flusher(self.broker, store)
        self._flush: Coroutine[None, None, bool] | None = None

    def close(self) -> None:
        """The process is no more."""
        if self._flush is not None:
            self._flush.close()
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

    def after_turn(self) -> None:
        self.broker.after_turn(self.clock.now())

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
        return self._flush is not None

    def flush_begin(self) -> None:
        """The flusher takes what has changed."""
        assert self._flush is None
        self._flush = self.flusher.flush()
        self._flush.send(None)

    def flush_end(self) -> bool:
        """The transaction is carried out. Returns whether it has committed."""
        flush, self._flush = self._flush, None
        assert flush is not None
        try:
            flush.send(None)
        except StopIteration as end:
            return bool(end.value)
        raise Violation("a flush waits twice")

    def checkpoint(self, mode: db.CheckpointMode) -> bool:
        """Returns whether all of the WAL is in the file, and so on the disk."""
        try:
            result = db.checkpoint(self.connection, mode, wait_ms=0)
        except StorageError:
            return False
        return not result.busy and result.moved >= result.wal_frames
