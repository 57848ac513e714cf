"""The file, seen from the event loop: one writer thread, one reader thread, nothing blocks the loop.

SQLite has one writer; so have we. A commit that has begun is never abandoned.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Protocol, TypeVar

import apsw
import trio

from bunqueue_trio.errors import CorruptDatabaseError, StartError, StorageError
from bunqueue_trio.logs import get_logger
from bunqueue_trio.model.entries import CompletedJob
from bunqueue_trio.server.facts import FileFacts
from bunqueue_trio.server.wal_sync import WalSync
from bunqueue_trio.server.writer import Call, WorkThread
from bunqueue_trio.storage import connection as db
from bunqueue_trio.storage import reads, writes
from bunqueue_trio.storage.batch import Batch, CommitReport

log = get_logger("Storage")

T = TypeVar("T")
PASSIVE_ABOVE_FRAMES = 1_024  # pages of 4 KB: 4 MB not yet folded in
MAX_UNSYNCED_FRAMES = 2 * PASSIVE_ABOVE_FRAMES  # so long a checkpoint waits for a sync that is under way
SYNC_S = 0.05  # what a slow disk takes for a portion
LOOK_PERIOD_S = 1.0
PAUSE_S = 1.0  # a reader that pins the WAL, or a sick disk, will not be gone with the next flush
TRUNCATE_ABOVE_BYTES = 64 * 1024 * 1024


class Follower(Protocol):
    """Wants to see all frames of the WAL. Called in the writer thread; raises nothing."""

    def note(self, end_frame: int) -> None:
        """A commit has ended with that frame."""
        ...

    def catch_up(self) -> None:
        """A checkpoint comes, after which frames may be overwritten."""
        ...


class Store:
    """One open data file. Made by `open_store`."""

    def __init__(self, path: str, opened: db.DataFile, lease_secret: bytes) -> None:
        self.path = path
        self._opened = opened
        self._writer = opened.writer
        self._reader = opened.reader
        self.lease_secret = lease_secret
        self._write = WorkThread("bunqueue-writer")
        # In memory both are one connection, so they must share the thread as well.
        self._read = self._write if self._reader is self._writer else WorkThread("bunqueue-reader")
        self._list: WorkThread | None = None
        self._lister: apsw.Connection | None = None
        self.wal_bytes = 0
        """Size of the WAL file, which SQLite reuses from its start after a checkpoint rather than shrinking it."""
        self._wal_frames = 0
        self._wal_sync = None if self.is_in_memory else WalSync(path)
        self._has_warned = False
        self.follower: Follower | None = None
        """Set in the writer thread only (`in_writer`)."""
        self._identity = _identity(path)
        self._next_look_s = 0.0
        self._retry_checkpoint_s = 0.0
        self.is_checkpointing = False
        """While it is True commits wait longer than usual."""
        self._writer.set_wal_hook(self._note_frames)
        self.checkpointed_mono_s = trio.current_time()

    @property
    def is_in_memory(self) -> bool:
        """True when nothing survives the process."""
        return self.path == ":memory:"

    async def commit(self, batch: Batch) -> CommitReport:
        """Write *batch* in one transaction.

        Cancel: before it starts, or not at all; the batch is committed or untouched.

        Raises:
            StorageError: nothing of it was stored.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        return await self.begin_commit(batch).wait()

    def begin_commit(self, batch: Batch) -> Call[CommitReport]:
        """The same, begun and handed to whoever waits for it.

        Raises:
            StorageError: as `commit` does, or from the result.
        """
        self._check_identity()

        def write() -> CommitReport:
            report = writes.apply_batch(self._writer, batch, self.path)
            self.wal_bytes = report.wal_bytes
            return report

        return self._write.hand_over(write)

    def _check_identity(self) -> None:
        """SQLite goes on writing into a file that was deleted or moved away: once a second somebody has to look.

        Raises:
            StorageError: the path names another file by now, or none.
        """
        if self.is_in_memory or trio.current_time() < self._next_look_s:
            return
        self.check_identity()
        self._next_look_s = trio.current_time() + LOOK_PERIOD_S

    def check_identity(self) -> None:
        """The same, now.

        Raises:
            StorageError: as above.
        """
        if self.is_in_memory:
            return
        if _identity(self.path) != self._identity:
            raise StorageError(f"the data file {self.path} was removed or replaced while the server runs")

    @property
    def is_checkpoint_due(self) -> bool:
        """Whether `tend_wal` has something to do."""
        return self.checkpoint_due_in_s <= 0

    @property
    def checkpoint_due_in_s(self) -> float:
        """How long it is until then, should nothing more be committed; infinity while the WAL is small."""
        if self._wal_frames <= PASSIVE_ABOVE_FRAMES:
            return float("inf")
        left_s = self._retry_checkpoint_s - trio.current_time()
        # While a portion is synced a checkpoint would wait for the disk too, and everybody's commit for the checkpoint.
        is_syncing = self._wal_sync is not None and self._wal_sync.is_running
        return max(left_s, SYNC_S) if is_syncing and self._wal_frames < MAX_UNSYNCED_FRAMES else left_s

    async def tend_wal(self) -> None:
        """Fold the WAL into the file when it has grown: as far as readers allow above 4 MB, fully above 64 MB."""
        if self.is_checkpoint_due:
            await self.checkpoint("TRUNCATE" if self.wal_bytes > TRUNCATE_ABOVE_BYTES else "PASSIVE")
            self._warn_of_growth()

    async def checkpoint(self, mode: db.CheckpointMode) -> None:
        """Run a WAL checkpoint of that mode now; it does not wait for readers.

        Raises:
            StorageError: disk full or an I/O error. Nothing is lost: the WAL stays.
        """
        self._retry_checkpoint_s = trio.current_time() + PAUSE_S
        self.is_checkpointing = True
        try:
            result = await self._write.run(lambda: self._checkpoint(mode))
        finally:
            self.is_checkpointing = False
        if not result.busy and result.moved >= result.wal_frames:
            self.checkpointed_mono_s = trio.current_time()
            self._wal_frames = 0
            self._retry_checkpoint_s = 0.0
            self.wal_bytes = db.wal_bytes(self.path)

    def _checkpoint(self, mode: db.CheckpointMode) -> db.CheckpointResult:
        if self.follower is not None:
            self.follower.catch_up()
        return db.checkpoint(self._writer, mode, wait_ms=0)

    async def in_writer(self, function: Callable[[apsw.Connection], T]) -> T:
        """Call *function* with the writing connection, in its thread, between two commits.

        Cancel: before it starts, or not at all.
        """
        return await self._write.run(lambda: function(self._writer))

    def follow(self, follower: Follower | None) -> None:
        """Tell *follower* of commits and checkpoints from now on; None: nobody. In the writer thread."""
        self.follower = follower

    def free_bytes(self) -> int:
        """Space left on the file system of the data file; 0 where that cannot be told."""
        try:
            return shutil.disk_usage(os.path.dirname(os.path.abspath(self.path))).free
        except OSError:
            return 0

    def facts(self) -> FileFacts | None:
        """Sizes for the metrics; None in memory. Cost: one system call."""
        if self.is_in_memory:
            return None
        try:
            data_bytes = os.stat(self.path).st_size
        except OSError:  # `commit` will say so
            data_bytes = 0
        age_s = trio.current_time() - self.checkpointed_mono_s
        return FileFacts(data_bytes=data_bytes, wal_bytes=self.wal_bytes, checkpoint_age_s=age_s)

    async def find_completed(self, ids: list[str]) -> dict[str, CompletedJob | None]:
        """Those of *ids* that completed and whose row is still in the file; None for the others."""
        return await self._read.run(lambda: {job_id: reads.find_completed(self._reader, job_id) for job_id in ids})

    async def read_completed(self, queue: str, after_seq: int, limit: int) -> list[tuple[int, CompletedJob]]:
        """A page of the completed jobs of a queue, with their sequence numbers, which order them.

        Raises:
            StorageError: the file cannot be read.
        """
        return await self._read.run(lambda: reads.completed_page(self._reader, queue, after_seq, limit))

    async def read(self, function: Callable[[apsw.Connection], T]) -> T:
        """Call *function* with the reading connection, off the loop."""
        return await self._read.run(lambda: function(self._reader))

    async def recover(self, function: Callable[[apsw.Connection], T]) -> T:
        """Call *function*, which reads the file for the start and repairs it on the way, with the writing connection.

        Raises:
            StartError: the file is damaged, or cannot be repaired; one line says which, why and what to do.
        """
        try:
            return await self.in_writer(function)
        except CorruptDatabaseError as error:
            raise db.malformed(self.path, str(error)) from error
        except StorageError as error:
            raise _not_prepared(self.path, error) from error

    async def read_pinned(self, function: Callable[[apsw.Connection], None], pinned: Callable[[], None]) -> None:
        """Call *function* with a connection that sees the file as it is now, whatever is committed meanwhile.

        One call at a time. *pinned* is called as soon as commits may go on: in memory, where there is one connection
        for all, after the read.

        Cancel: before it starts, or not at all.
        Raises:
            StorageError: the file cannot be read.
        """
        if self._reader is self._writer:
            await self._write.run(lambda: function(self._writer))
            pinned()
            return
        if self._list is None:
            self._list = WorkThread("bunqueue-lists")
        if self._lister is None:
            self._lister = await self._list.run(self._open_lister)
        lister = self._lister
        await self._list.run(lambda: db.begin_snapshot(lister))
        pinned()
        with trio.CancelScope(shield=True):  # bounded by the read, which is bounded by what a reply can hold
            await self._list.run(lambda: _read_and_end(lister, function))

    def _open_lister(self) -> apsw.Connection:
        """Open the file once more while the server runs, when its path may name another by now, or none.

        Raises:
            StorageError: it cannot be opened. The next list tries again.
        """
        self.check_identity()
        try:
            return db.open_reader(self.path)
        except StartError as error:
            raise StorageError(str(error)) from error

    def _warn_of_growth(self) -> None:
        """One line when the WAL grows because a reader pins it, and one more when it is small again (K1)."""
        is_large = self.wal_bytes > TRUNCATE_ABOVE_BYTES
        if is_large and not self._has_warned:
            log.warning("The WAL cannot be folded in: another program holds a read transaction", bytes=self.wal_bytes)
        elif self._has_warned and not is_large:
            log.info("The WAL is small again", bytes=self.wal_bytes)
        self._has_warned = is_large

    def _note_frames(self, _connection: apsw.Connection, _name: str, frames: int) -> int:
        """Called by SQLite in the writer thread after each commit: how many pages the WAL holds now."""
        self._wal_frames = frames
        if self._wal_sync is not None:
            self._wal_sync.keep_up(frames)
        if self.follower is not None:
            self.follower.note(frames)
        return apsw.SQLITE_OK

    async def close(self) -> None:
        """Fold the WAL in, close both connections, let go of the file. A WAL that cannot be folded in stays."""
        if self._list is not None:
            if (lister := self._lister) is not None:
                await self._list.run(lambda: lister.close(True))
            self._list.stop()
        try:
            await self._write.run(lambda: db.close_data_file(self._opened))
        except StorageError as error:
            log.warning("The WAL could not be folded into the data file; the next start replays it", error=str(error))
        finally:
            if self._wal_sync is not None:
                self._wal_sync.stop()
            for thread in {self._write, self._read}:
                thread.stop()


def _read_and_end(lister: apsw.Connection, function: Callable[[apsw.Connection], None]) -> None:
    try:
        function(lister)
    finally:
        if lister.in_transaction:  # some errors have ended it by themselves
            lister.execute("COMMIT")  # or the WAL could never be folded in again


def _open(path: str, synchronous: db.Synchronous) -> tuple[db.DataFile, bytes]:
    opened = db.open_data_file(path, synchronous=synchronous)
    try:
        return opened, db.lease_secret(opened.writer)
    except StorageError as error:
        with suppress(StorageError):
            db.close_data_file(opened)
        raise _not_prepared(path, error) from error


def _not_prepared(path: str, error: StorageError) -> StartError:
    return StartError(f"{path}: {error}; free some space or mend the file system and start again")


def _identity(path: str) -> tuple[int, int] | None:
    """Which file *path* names; None when it names none."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


@asynccontextmanager
async def open_store(path: str, *, synchronous: db.Synchronous) -> AsyncIterator[Store]:
    """Open the data file, or a new one; ``:memory:`` keeps nothing.

    On the way out the WAL is folded into the file, shielded and bounded, so that a clean stop leaves one file.

    Raises:
        StartError: the file cannot be opened; one line says which, why and what to do.
    """
    opened, secret = await trio.to_thread.run_sync(lambda: _open(path, synchronous))
    store = Store(path, opened, secret)
    for warning in opened.warnings:
        log.warning(warning)
    try:
        yield store
    finally:
        with trio.CancelScope(shield=True):  # bounded by SQLite's own waits, 5 s for a reader that pins the WAL
            await store.close()
