"""A server without a process: a store in memory that fails or blocks when told to, clients without a socket, and the
keepers over both.

Time is Trio's: with ``autojump_clock`` a test of half a minute takes a millisecond. Threads and that clock do not mix,
so the store here has none.
"""

from __future__ import annotations

import random
import socket
import struct
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import apsw
import msgpack
import msgspec
import trio
import trio.testing

from bunqueue_trio.backup.making import Made
from bunqueue_trio.clock import TrioClock
from bunqueue_trio.config import Config
from bunqueue_trio.engine.core import Engine
from bunqueue_trio.engine.history import History
from bunqueue_trio.errors import DiskFullError, StorageError
from bunqueue_trio.ids import Ids
from bunqueue_trio.model.backup import BackupStatus
from bunqueue_trio.model.entries import CompletedJob
from bunqueue_trio.model.job import Job
from bunqueue_trio.model.replies import Reply
from bunqueue_trio.server.answering import Request
from bunqueue_trio.server.broker import Broker
from bunqueue_trio.server.connection import serve_connection
from bunqueue_trio.server.flusher import Flusher
from bunqueue_trio.server.session import Hold, Session
from bunqueue_trio.server.storage_health import StorageHealth
from bunqueue_trio.server.stream import TcpStream
from bunqueue_trio.storage import reads, writes
from bunqueue_trio.storage.batch import Batch, CommitReport
from bunqueue_trio.storage.connection import MEMORY, open_writer

T = TypeVar("T")
SECRET = b"x" * 32
QUEUE = "q"
FULL = "database or disk is full"


class FakeCall:
    """A commit that has been handed over: over at once, or when the gate of its store opens."""

    def __init__(self, store: FakeStore, batch: Batch) -> None:
        self._store = store
        self._batch = batch
        self._gate = store.gate
        store.attempts_s.append(trio.current_time())

    def is_over_within(self, patience_s: float) -> bool:
        return self._gate is None

    def result(self) -> CommitReport:
        return self._store.write(self._batch)

    async def wait(self) -> CommitReport:
        with trio.CancelScope(shield=True):
            if self._gate is None:
                await trio.lowlevel.checkpoint()
            else:
                await self._gate.wait()
        return self.result()


class FakeStore:
    """What the keepers use of `Store`, over a real SQLite database in memory, without a thread.

    ``fail_always`` is raised by every commit that writes, ``fail_next`` holds errors for the next ones, ``fail_reads``
    is raised by every read. While ``gate`` is set a commit that has begun waits for it, as in the writer's thread:
    whoever is cancelled meanwhile waits on. While ``door`` is set a commit waits before it begins; cancelling leaves it
    undone.
    """

    def __init__(self, path: str = MEMORY) -> None:
        self.path = path
        self.connection = open_writer(MEMORY)
        self.fail_next: deque[StorageError] = deque()
        self.fail_always: StorageError | None = None
        self.fail_reads: StorageError | None = None
        self.fail_checkpoints: StorageError | None = None
        self.gate: trio.Event | None = None
        self.door: trio.Event | None = None
        self.free = 0
        self.batches: list[Batch] = []
        self.attempts_s: list[float] = []
        self.checkpoints: list[str] = []
        self.read_count = 0
        self.tended_count = 0
        self.checkpointed_mono_s = 0.0
        self.wal_bytes = 0

    # the surface of Store

    async def in_writer(self, function: Callable[[Any], Any]) -> Any:
        await trio.lowlevel.checkpoint()
        return function(self.connection)

    def follow(self, follower: Any) -> None:
        self.follower = follower

    def check_identity(self) -> None:
        """It is the file that it was."""

    @property
    def is_in_memory(self) -> bool:
        return self.path == MEMORY

    async def commit(self, batch: Batch) -> CommitReport:
        await trio.lowlevel.checkpoint_if_cancelled()
        if self.door is not None:
            await self.door.wait()
        self.attempts_s.append(trio.current_time())
        with trio.CancelScope(shield=True):
            if self.gate is None:
                await trio.lowlevel.checkpoint()
            else:
                await self.gate.wait()
        return self.write(batch)

    def write(self, batch: Batch) -> CommitReport:
        if self.fail_next:
            raise self.fail_next.popleft()
        if self.fail_always is not None and writes_something(batch):
            raise self.fail_always  # an empty transaction needs no space
        report = writes.apply_batch(self.connection, batch, MEMORY)
        self.batches.append(batch)
        return report

    def begin_commit(self, batch: Batch) -> FakeCall:
        """As `Store` does for whoever is alone; with a gate set it takes longer than anybody's patience."""
        return FakeCall(self, batch)

    is_checkpoint_due = False
    checkpoint_due_in_s = float("inf")
    is_checkpointing = False

    async def tend_wal(self) -> None:
        self.tended_count += 1
        self.is_checkpoint_due = False  # or not for a while
        if self.fail_checkpoints is not None:
            raise self.fail_checkpoints

    async def checkpoint(self, mode: str) -> None:
        await trio.lowlevel.checkpoint()
        if self.fail_checkpoints is not None:
            raise self.fail_checkpoints
        self.checkpoints.append(mode)

    def free_bytes(self) -> int:
        return self.free

    async def find_completed(self, ids: list[str]) -> dict[str, CompletedJob | None]:
        return await self.read(lambda connection: {job_id: reads.find_completed(connection, job_id) for job_id in ids})

    async def read_completed(self, queue: str, after_seq: int, limit: int) -> list[tuple[int, CompletedJob]]:
        return await self.read(lambda connection: reads.completed_page(connection, queue, after_seq, limit))

    async def read(self, function: Callable[[apsw.Connection], T]) -> T:
        await trio.lowlevel.checkpoint()
        self.read_count += 1
        if self.fail_reads is not None:
            raise self.fail_reads
        return function(self.connection)

    async def read_pinned(self, function: Callable[[apsw.Connection], None], pinned: Callable[[], None]) -> None:
        await self.read(function)
        pinned()

    # for tests

    @property
    def commit_count(self) -> int:
        """How many transactions have been committed."""
        return len(self.batches)

    @property
    def ids(self) -> list[str]:
        """Ids of the stored jobs, in the order of their pushes."""
        return [row[0] for row in self.connection.execute("SELECT id FROM jobs ORDER BY rowid")]

    @property
    def states(self) -> dict[str, str]:
        """The stored state of each stored job."""
        return dict(self.connection.execute("SELECT id, state FROM jobs ORDER BY rowid").fetchall())

    def fill_disk(self) -> None:
        """From now on there is no space."""
        self.fail_always = DiskFullError(FULL)

    def heal(self) -> None:
        """From now on everything can be stored again."""
        self.fail_always = None

    def close_gate(self) -> None:
        """Commits that begin from now on last until `open_gate`."""
        self.gate = trio.Event()

    def open_gate(self) -> None:
        """The commit under way and those to come end at once."""
        if self.gate is not None:
            self.gate.set()
            self.gate = None


class Rig:
    """Engine, broker, flusher and store, under Trio's clock. ``alarms`` is what the critical hook was told."""

    def __init__(
        self,
        *,
        store: FakeStore | None = None,
        history: History | None = None,
        max_backlog_jobs: int = 10_000,
        max_backlog_bytes: int = 1 << 26,
        lease_grace_ms: float = 2_000,
    ) -> None:
        self.clock = TrioClock()
        self.store = FakeStore() if store is None else store
        self.engine = Engine(Ids(SECRET, random.Random(1)), lease_grace_ms=lease_grace_ms, history=history)
        self.health = StorageHealth(max_backlog_jobs=max_backlog_jobs, max_backlog_bytes=max_backlog_bytes)
        self.broker = Broker(self.engine, self.clock, self.store.find_completed, self.health, self.store)
        self.alarms: list[tuple[list[str], str, int]] = []
        self.flusher = Flusher(self.broker, self.store, self._alarm)  # type: ignore[arg-type]

    def _alarm(self, jobs: list[Job], error: StorageError, attempts: int) -> None:
        self.alarms.append(([job.record.id for job in jobs], str(error), attempts))

    def talker(self, config: Config | None = None) -> Talker:
        """A new client without a socket."""
        return Talker(self, config)

    def call(self, cmd: str, /, **fields: Any) -> dict[str, Any]:
        """One command from a client of its own that stays connected; its reply must not have to wait."""
        talker = self.talker()
        talker.say(cmd, **fields)
        [reply] = talker.replies
        return reply

    async def answer(self, command: Any) -> Reply:
        """One command from somebody without a connection, who is there to take the reply unless cancelled."""
        request = Request(self.broker, command)
        try:
            return await request.carry_out()
        except trio.Cancelled:
            request.give_back()
            raise
        finally:
            request.keep()

    def push(self, job_id: str, /, **options: Any) -> None:
        """A buffered push that must be taken."""
        reply = self.call("PUSH", **{"queue": QUEUE, "data": 1, "jobId": job_id, **options})
        assert reply == {"ok": True, "id": job_id}

    def state(self, job_id: str) -> str:
        """GetState."""
        return self.call("GetState", id=job_id)["state"]

    def check(self) -> None:
        """Recount everything."""
        self.engine.check_invariants()


class Talker:
    """A client: a `Session` without a socket. ``replies`` are what it was sent, decoded, without their ids."""

    def __init__(self, rig: Rig, config: Config | None = None) -> None:
        self._rig = rig
        self.replies: list[dict[str, Any]] = []
        self.sends: list[int] = []
        """How many replies each call of ``send`` brought."""
        self.slot_count = 0
        self.session = Session(rig.broker, config or Config(), self._take, self._note_slot)
        self.session.open()

    def _take(self, data: bytes) -> None:
        found = unframe(data)
        self.replies += found
        self.sends.append(len(found))

    def _note_slot(self) -> None:
        self.slot_count += 1

    def say(self, cmd: str, /, **fields: Any) -> Hold | None:
        """One command in a segment of its own."""
        return self.segment({"cmd": cmd, **fields})

    def segment(self, *commands: dict[str, Any]) -> Hold | None:
        """Several commands in one segment; what the session holds for, if it does."""
        return self.bodies(*(msgpack.packb(command) for command in commands))

    def bodies(self, *bodies: bytes) -> Hold | None:
        """The same as bodies of frames."""
        now = self._rig.clock.now()
        self.session.receive(list(bodies), now)
        return self.session.run(now)

    def go_on(self) -> Hold | None:
        """What its connection does when the wait is over."""
        return self.session.run(self._rig.clock.now())

    def take(self) -> list[dict[str, Any]]:
        """The replies since the last call."""
        replies, self.replies = self.replies, []
        return replies


def header(length: int) -> bytes:
    """The start of a frame that announces so many bytes."""
    return struct.pack(">I", length)


class Wire:
    """The far end of a connection that a real `serve_connection` serves, over a socket pair.

    Args:
        buffer_bytes: how much the kernel holds in either direction, about; None leaves it at its default.
    """

    def __init__(self, rig: Rig, config: Config | None = None, *, buffer_bytes: int | None = None) -> None:
        near, far = socket.socketpair()
        if buffer_bytes is not None:
            for end in (near, far):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer_bytes)
        self._rig = rig
        self._config = config or Config()
        self.server_stream = TcpStream(far)
        self._raw = near
        self.socket = trio.socket.from_stdlib_socket(near)
        self._buffer = b""
        self.has_ended = trio.Event()

    async def serve(self) -> None:
        """The server's side; returns when the connection is over."""
        try:
            await serve_connection(self.server_stream, self._rig.broker, self._config)
        finally:
            self.has_ended.set()

    async def send(self, *commands: dict[str, Any]) -> None:
        """Commands in one segment."""
        await self.send_bytes(b"".join(map(frame, commands)))

    async def send_bytes(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[await self.socket.send(view) :]

    async def reply(self) -> dict[str, Any]:
        """The next reply, whenever it comes."""
        while True:
            if len(self._buffer) >= 4:
                (length,) = struct.unpack(">I", self._buffer[:4])
                if len(self._buffer) >= 4 + length:
                    body, self._buffer = self._buffer[4 : 4 + length], self._buffer[4 + length :]
                    return decode(body)
            data = await self.socket.recv(65_536)
            if not data:
                raise EOFError("the server has closed the connection")
            self._buffer += data

    async def call(self, cmd: str, /, **fields: Any) -> dict[str, Any]:
        """One command and the next reply."""
        await self.send({"cmd": cmd, **fields})
        return await self.reply()

    async def replies(self, count: int) -> list[dict[str, Any]]:
        return [await self.reply() for _ in range(count)]

    async def silence(self) -> None:
        """Let everybody run; nothing may have been sent to us."""
        await settle_down()
        assert not self._buffer
        try:
            data = self._raw.recv(65_536, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        raise AssertionError(f"unexpected: {unframe(data) if data else 'the end of the stream'}")

    def close(self) -> None:
        self.socket.close()


class FakeBackups:
    """Backups that went as told; `make_on_request` gives what ``made`` holds, or raises it."""

    def __init__(self, **status: Any) -> None:
        self.shown = BackupStatus(bucket="the-bucket", interval=60_000, **status)
        self.made: Made | Exception = Made(key="k", made_at=0, size_bytes=7, packed_bytes=5, is_proven=True)

    def status(self) -> BackupStatus:
        return self.shown

    async def make_on_request(self) -> Made:
        await trio.lowlevel.checkpoint()
        if isinstance(self.made, Exception):
            raise self.made
        return self.made


def writes_something(batch: Batch) -> bool:
    """Whether the transaction would change the file."""
    return any(isinstance(value, list) and value for value in msgspec.structs.astuple(batch))


def frame(command: dict[str, Any]) -> bytes:
    """A command as it goes over the wire."""
    body = msgpack.packb(command)
    return struct.pack(">I", len(body)) + body


def unframe(data: bytes) -> list[dict[str, Any]]:
    """Complete frames, decoded."""
    found = []
    while data:
        (length,) = struct.unpack(">I", data[:4])
        found.append(decode(data[4 : 4 + length]))
        data = data[4 + length :]
    return found


def decode(body: bytes) -> dict[str, Any]:
    """A reply as a client decodes it."""
    decoded: dict[str, Any] = msgpack.unpackb(body)
    return decoded


def pushes(ids: Iterable[str], **options: Any) -> list[dict[str, Any]]:
    """A PUSH per id."""
    return [{"cmd": "PUSH", "queue": QUEUE, "data": 1, "jobId": job_id, **options} for job_id in ids]


def pull(**fields: Any) -> dict[str, Any]:
    """PULL of our queue with an owner."""
    return {"cmd": "PULL", "queue": QUEUE, "owner": "w", **fields}


async def wait_for(condition: Callable[[], Any], step_s: float = 0.001, timeout_s: float = 10) -> None:
    """Let time pass until *condition* holds; more than *timeout_s* of it is too much."""
    with trio.fail_after(timeout_s):
        while not condition():  # noqa: ASYNC110  (what other threads do sets no event of ours)
            await trio.sleep(step_s)


async def settle_down() -> None:
    """Let everybody run until nobody can without time passing."""
    await trio.testing.wait_all_tasks_blocked()


async def is_cut(wire: Wire) -> bool:
    """Whether the server has ended the connection, without another word."""
    try:
        return await wire.socket.recv(100) == b""
    except ConnectionResetError:
        return True
