"""The part of the change log that is still on this machine: frames go into a file beside the data file, which is sealed
into a segment every few seconds and deleted once that is uploaded.

A chain has no gap. Where one would be, or where the files would take too much of the disk, the chain ends: what is
uploaded of it stays good, what is not is dropped, and a new chain begins with a new backup.

Source: point-in-time recovery; D-150 to D-152.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from glob import escape, glob
from typing import BinaryIO

import apsw
from msgspec import Struct

from bunqueue_trio.backup.segments import SegmentHead, SegmentWriter
from bunqueue_trio.errors import StorageError, TailLostError
from bunqueue_trio.storage.wal_tail import WalTail


class Sealed(Struct, frozen=True, gc=False):
    """A segment that is ready to be uploaded. Moments are epoch ms, as in its name; ``checksum`` is that at its end."""

    path: str
    checksum: str
    number: int
    last_commit: int
    first_at: float
    until: float
    size_bytes: int


class Position(Struct, frozen=True, gc=False):
    """A moment: the segment that is being written, how many commits there have been, and when the last of them was."""

    segment: int
    commit: int
    at: float


class Chain:
    """One generation of the change log. All methods may be called from any thread, but for `begin` and `check_owner`.

    Args:
        max_bytes: how large the files may become.
    """

    def __init__(self, database: str, generation: str, wall_ms: Callable[[], float], *, max_bytes: int) -> None:
        self.generation = generation
        self._database = database
        self._wall_ms = wall_ms
        self._max_bytes = max_bytes
        self._tail = WalTail(database, wall_ms)
        self._lock = threading.Lock()  # held while frames are copied, and never while anything is uploaded
        self._file: BinaryIO | None = None
        self._writer: SegmentWriter | None = None
        self._sealed: deque[Sealed] = deque()
        self._number = 0
        self._previous = ""
        self._next_commit = 1
        self.broken: str | None = None
        """Why the chain has ended; None: it has not."""

    def begin(self, connection: apsw.Connection) -> None:
        """Follow the WAL from the next commit on. In the thread of the writing *connection*, between two commits.

        Raises:
            StorageError: the file cannot be read.
        """
        self._tail.arm(connection)

    def note(self, end_frame: int) -> None:
        """A commit has ended there. In the thread of the writer. Cost: under 2 µs."""
        if self.broken is None:
            self._tail.note(end_frame)

    def catch_up(self) -> None:
        """Copy all committed frames. Before each checkpoint, in the thread of the writer; and when there is time."""
        while self.broken is None:
            with self._lock:
                if self.broken is not None or not self._copy_next():
                    return

    def check_owner(self, connection: apsw.Connection) -> None:
        """End the chain if somebody else has written to the file. In the thread of the writer.

        Before each seal: so no segment is uploaded that comes after frames that nobody has copied.
        """
        try:
            self._tail.check_owner(connection)
        except StorageError as error:
            self.give_up(str(error))

    def position(self) -> Position:
        """Where the chain is now: at least there, and in the thread of the writer exactly there.

        SQLite shows a commit to others a moment before it tells the writer of it.
        """
        with self._lock:
            return Position(self._number, self._tail.noted_count, self._tail.noted_at)

    def seal(self, until: float) -> None:
        """End the present segment, if it has commits; it has all of them up to *until*, epoch ms."""
        with self._lock:
            if self.broken is None and self._writer is not None and self._writer.commit_count:
                try:
                    self._seal(self._writer, until)
                except OSError as error:
                    self._give_up(_words(error))

    def next_sealed(self) -> Sealed | None:
        """The oldest segment that is not uploaded yet."""
        with self._lock:
            return self._sealed[0] if self._sealed else None

    def uploaded(self, sealed: Sealed) -> None:
        """It is in the bucket; its file goes."""
        with self._lock:
            if self._sealed and self._sealed[0] is sealed:
                self._sealed.popleft()
        _remove(sealed.path)

    @property
    def sealed_count(self) -> int:
        """How many segments wait to be uploaded."""
        return len(self._sealed)

    @property
    def held_bytes(self) -> int:
        """How much of the disk the files take."""
        writer = self._writer
        return sum(sealed.size_bytes for sealed in tuple(self._sealed)) + (0 if writer is None else writer.size_bytes)

    @property
    def unshipped_at(self) -> float | None:
        """When the first commit was that is not in the bucket yet, epoch ms; None: all are."""
        writer = self._writer  # without the lock, which may be held while a large commit is copied
        with suppress(IndexError):
            return self._sealed[0].first_at
        if writer is not None and writer.commit_count:
            return writer.first_at
        return self._tail.oldest_waiting_at

    def give_up(self, reason: str) -> None:
        """End the chain, and drop what is not uploaded."""
        with self._lock:
            self._give_up(reason)

    def _copy_next(self) -> bool:
        try:
            if self._writer is None:
                self._writer = self._open()
            if not self._tail.copy_next(self._writer):
                return False
            self._next_commit += 1
            if self.held_bytes > self._max_bytes:
                raise TailLostError(f"more than {self._max_bytes} bytes of changes wait to be uploaded")
            return True
        except StorageError as error:
            self._give_up(str(error))
        except OSError as error:
            self._give_up(_words(error))
        return False

    def _open(self) -> SegmentWriter:
        name = f"{self._database}.log-{self.generation}-{self._number}.tmp"
        self._file = open(name, "xb", opener=_private)  # noqa: SIM115  closed when it is sealed
        return SegmentWriter(self._file, SegmentHead(self.generation, self._number, self._previous, self._next_commit))

    def _seal(self, writer: SegmentWriter, until: float) -> None:
        assert self._file is not None
        self._previous = writer.end()
        self._file.close()
        self._sealed.append(
            Sealed(
                path=self._file.name,
                checksum=self._previous,
                number=self._number,
                last_commit=self._next_commit - 1,
                first_at=writer.first_at,
                until=max(until, writer.last_at),
                size_bytes=writer.size_bytes,
            )
        )
        self._file = self._writer = None
        self._number += 1

    def _give_up(self, reason: str) -> None:
        if self.broken is not None:
            return
        self.broken = reason
        self._tail.close()
        paths = [sealed.path for sealed in self._sealed]
        self._sealed.clear()
        if self._file is not None:
            paths.append(self._file.name)
            with suppress(OSError):
                self._file.close()
            self._file = self._writer = None
        for path in paths:
            _remove(path)


def sweep_log(database: str) -> None:
    """Remove what a killed server has left. Only by whoever has the lock of the data file."""
    for path in glob(f"{escape(database)}.log-*.tmp"):
        _remove(path)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _remove(path: str) -> None:
    with suppress(OSError):
        os.unlink(path)


def _words(error: OSError) -> str:
    return f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror or error)
