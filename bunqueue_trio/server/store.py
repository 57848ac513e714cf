"""The file, seen from the event loop: one writer thread, one reader thread, nothing blocks the loop.

SQLite has one writer; so have we: a limiter of one lets one call at a time reach the writing connection. A commit that
has begun is never abandoned.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import NamedTuple, TypeVar

import apsw
import trio

from bunqueue_trio.logs import get_logger
from bunqueue_trio.model.entries import CompletedJob
from bunqueue_trio.storage import connection as db
from bunqueue_trio.storage import reads, writes
from bunqueue_trio.storage.batch import Batch, CommitReport

log = get_logger("Storage")

T = TypeVar("T")
PASSIVE_ABOVE_BYTES = 4 * 1024 * 1024
TRUNCATE_ABOVE_BYTES = 64 * 1024 * 1024
CLOSE_GRACE_S = 10.0


class Store:
    """One open data file. Made by `open_store`."""

    def __init__(self, path: str, writer: apsw.Connection, reader: apsw.Connection, lease_secret: bytes) -> None:
        self.path = path
        self.lease_secret = lease_secret
        self._writer = writer
        self._reader = reader
        self._writing = trio.CapacityLimiter(1)
        # In memory both are one connection, so they must share the limiter as well.
        self._reading = self._writing if reader is writer else trio.CapacityLimiter(1)
        self.wal_bytes = 0
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
        report = await self._write(lambda: writes.apply_batch(self._writer, batch, self.path))
        self.wal_bytes = report.wal_bytes
        return report

    async def tend_wal(self) -> None:
        """Fold the WAL into the file when it has grown: as far as readers allow above 4 MB, fully above 64 MB."""
        if self.wal_bytes > PASSIVE_ABOVE_BYTES:
            await self.checkpoint("TRUNCATE" if self.wal_bytes > TRUNCATE_ABOVE_BYTES else "PASSIVE")

    async def checkpoint(self, mode: db.CheckpointMode) -> None:
        """Run a WAL checkpoint of that mode now."""
        result = await self._write(lambda: db.checkpoint(self._writer, mode))
        if not result.busy and result.moved >= result.wal_frames:
            self.checkpointed_mono_s = trio.current_time()
            self.wal_bytes = 0 if mode == "PASSIVE" else db.wal_bytes(self.path)

    def free_bytes(self) -> int:
        """Space left on the file system of the data file; 0 where that cannot be told."""
        try:
            return shutil.disk_usage(os.path.dirname(os.path.abspath(self.path))).free
        except OSError:
            return 0

    async def find_completed(self, ids: list[str]) -> dict[str, CompletedJob | None]:
        """Those of *ids* that completed and whose row is still in the file; None for the others."""
        return await trio.to_thread.run_sync(
            lambda: {job_id: reads.find_completed(self._reader, job_id) for job_id in ids}, limiter=self._reading
        )

    async def read(self, function: Callable[[apsw.Connection], T]) -> T:
        """Call *function* with the reading connection, off the loop."""
        return await trio.to_thread.run_sync(lambda: function(self._reader), limiter=self._reading)

    async def _write(self, function: Callable[[], T]) -> T:
        return await trio.to_thread.run_sync(function, limiter=self._writing)

    async def _close(self) -> None:
        if self._reader is not self._writer:
            await trio.to_thread.run_sync(self._reader.close, limiter=self._reading)
        await self._write(lambda: db.close_writer(self._writer))


@asynccontextmanager
async def open_store(path: str, *, synchronous: db.Synchronous) -> AsyncIterator[Store]:
    """Open the data file, or a new one; ``:memory:`` keeps nothing.

    On the way out the WAL is folded into the file, shielded and bounded, so that a clean stop leaves one file.

    Raises:
        StartError: the file cannot be opened; one line says which, why and what to do.
    """
    opened = await trio.to_thread.run_sync(lambda: _open(path, synchronous))
    store = Store(path, opened.writer, opened.reader, opened.secret)
    for warning in opened.warnings:
        log.warning(warning)
    try:
        yield store
    finally:
        with trio.move_on_after(CLOSE_GRACE_S, shield=True):
            await store._close()
        if opened.lock is not None:
            opened.lock.release()


class _Opened(NamedTuple):
    lock: db.FileLock | None
    writer: apsw.Connection
    reader: apsw.Connection
    secret: bytes
    warnings: list[str]


def _open(path: str, synchronous: db.Synchronous) -> _Opened:
    if path == db.MEMORY:
        writer = db.open_writer(path)
        return _Opened(None, writer, writer, db.lease_secret(writer), [])
    lock = db.FileLock.acquire(path)
    try:
        warnings: list[str] = []
        writer = db.open_writer(path, synchronous=synchronous, warnings=warnings)
        return _Opened(lock, writer, db.open_reader(path), db.lease_secret(writer), warnings)
    except BaseException:
        lock.release()
        raise
