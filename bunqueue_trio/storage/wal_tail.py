"""Following the committed end of the write-ahead log, and copying its frames before a checkpoint lets them go.

A frame holds a page as it is after a commit, so a copy of the database together with all frames from a moment before
the copy on, up to the end of any later commit, gives the database of that commit.

SQLite tells the writer of each commit (`WalTail.note`); everything else is read from the file. A new WAL begins only
after a checkpoint, before which its owner copies what is left; whatever else might have let frames go unseen is found
out, and ends the tail.

Source: the file format of SQLite, "The Write-Ahead Log".
"""

from __future__ import annotations

import os
import struct
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NamedTuple, Protocol

import apsw

from bunqueue_trio.errors import StorageError, TailLostError
from bunqueue_trio.storage import faults
from bunqueue_trio.storage.connection import checkpoint
from bunqueue_trio.storage.wal import wal_path

HEAD_BYTES: Final = 32
FRAME_HEAD: Final = struct.Struct(">6I")  # page number, pages after the commit or 0, salt 1 and 2, sums
COPY_BYTES: Final = 1 << 20


class Commit(NamedTuple):
    """A commit: the how manieth since the tail was armed, when (epoch ms), and where in the WAL it ends, in frames."""

    number: int
    wall_ms: float
    end_frame: int


class FrameSink(Protocol):
    """Where frames go."""

    def begin_commit(self, commit: Commit, page_bytes: int, frame_count: int) -> None:
        """That many frames follow."""
        ...

    def write(self, data: bytes) -> None:
        """Frames as they are in the WAL, headers included; a piece may end anywhere."""
        ...


class WalTail:
    """The committed frames of one WAL since `arm`. Not for more than one thread at a time, but for `note`.

    Args:
        wall_ms: tells the time.
    """

    def __init__(self, path: str, wall_ms: Callable[[], float]) -> None:
        self._wal = wal_path(path)
        self._wall_ms = wall_ms
        self._file: int | None = None
        self._head = b""
        self._position = 0  # frames of the present WAL that are copied, or older than the tail
        self._data_version = 0
        self._waiting: deque[Commit] = deque()
        self.noted_count = 0
        """How many commits there have been since `arm`."""
        self.noted_at = 0.0
        """When the last of them was; when the tail was armed, if there was none."""

    def arm(self, connection: apsw.Connection) -> None:
        """Begin: with the next commit. In the thread of the writing *connection*, between two commits.

        Raises:
            StorageError: the file cannot be read, or not be checkpointed.
        """
        # Tells the end of the WAL as SQLite sees it: frames beyond that a crash has left look no different.
        self._position = checkpoint(connection, "PASSIVE", wait_ms=0).wal_frames
        self._data_version = _data_version(connection)
        try:
            self._head = self._read(0, HEAD_BYTES) if self._position else b""
        except OSError as error:
            raise StorageError(f"{self._wal}: {error.strerror}") from error
        self.noted_at = self._wall_ms()

    def note(self, end_frame: int) -> None:
        """A commit has ended with that frame. In the thread of the writer. Cost: under 2 µs."""
        # A clock that is put back must not bring the commits out of order.
        self.noted_at = max(self._wall_ms(), self.noted_at)
        self.noted_count += 1
        self._waiting.append(Commit(self.noted_count, self.noted_at, end_frame))

    @property
    def oldest_waiting_at(self) -> float | None:
        """When the first commit was that is not copied yet."""
        try:
            return self._waiting[0].wall_ms
        except IndexError:
            return None

    def copy_next(self, sink: FrameSink) -> bool:
        """Copy the frames of the next commit; False: there is none.

        Raises:
            TailLostError: frames are gone. The tail is of no more use.
            OSError: the WAL cannot be read.
        """
        if not self._waiting:
            return False
        commit = self._waiting[0]
        head = self._read(0, HEAD_BYTES)
        if head != self._head:
            # A new WAL; all commits of the one before are copied, since commits are copied in their order and those
            # that are not must end at a frame of this one.
            self._head, self._position = head, 0
        if commit.end_frame <= self._position:
            raise TailLostError("the write-ahead log has begun anew before all of it was copied")
        self._copy(commit, sink)
        if self._read(0, HEAD_BYTES) != head:
            raise TailLostError("the write-ahead log has begun anew while it was copied")
        self._position = commit.end_frame
        self._waiting.popleft()
        return True

    def check_owner(self, connection: apsw.Connection) -> None:
        """Make sure that nobody else has written to the file. In the thread of the writer.

        Raises:
            TailLostError: somebody has: what it wrote may have been folded in unseen.
            StorageError: the file cannot be read.
        """
        if _data_version(connection) != self._data_version:
            raise TailLostError("another program has written to the data file")

    def close(self) -> None:
        """Let go of the WAL."""
        if self._file is not None:
            with suppress(OSError):
                os.close(self._file)
            self._file = None

    def _copy(self, commit: Commit, sink: FrameSink) -> None:
        if len(self._head) < HEAD_BYTES:
            raise TailLostError("the write-ahead log is not there")
        page_bytes = int.from_bytes(self._head[8:12], "big")
        frame_bytes = page_bytes + FRAME_HEAD.size
        offset = HEAD_BYTES + self._position * frame_bytes
        left = (commit.end_frame - self._position) * frame_bytes
        last = FRAME_HEAD.unpack(self._read_all(offset + left - frame_bytes, FRAME_HEAD.size))
        if last[1] == 0 or last[2:4] != struct.unpack(">2I", self._head[16:24]):
            raise TailLostError("the write-ahead log has begun anew before all of it was copied")
        sink.begin_commit(commit, page_bytes, commit.end_frame - self._position)
        while left:
            data = self._read_all(offset, min(left, COPY_BYTES))
            sink.write(data)
            offset += len(data)
            left -= len(data)

    def _read_all(self, offset: int, size: int) -> bytes:
        data = self._read(offset, size)
        if len(data) < size:
            raise TailLostError("the write-ahead log is shorter than it was")
        return data

    def _read(self, offset: int, size: int) -> bytes:
        # Closing a descriptor of the WAL drops no lock of SQLite: those are on the other two files.
        if self._file is None:
            self._file = os.open(self._wal, os.O_RDONLY)
        return os.pread(self._file, size, offset)


def _data_version(connection: apsw.Connection) -> int:
    try:
        rows = connection.execute("PRAGMA data_version").fetchall()
    except apsw.Error as error:
        raise faults.from_apsw(error) from error
    (version,) = rows[0]
    assert isinstance(version, int)
    return version
