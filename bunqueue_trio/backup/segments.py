"""A segment of the change log: the commits of some seconds, as the frames of the write-ahead log that they were.

    BQTLOG1\\n  a line of JSON  commit*  E  SHA-256 of everything before
    commit:  C  number u64  epoch ms f64  page size u32  frame count u32  frames, as in the WAL, headers included

Numbers are big-endian. The line names the chain that the segment belongs to, its place there, and the checksum of the
segment before. In the bucket it is packed with gzip. A segment without its end is none.

Source: point-in-time recovery; D-150, D-151.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Iterable, Iterator
from typing import BinaryIO, Final

import msgspec
from msgspec import Struct

from bunqueue_trio.backup.json_texts import read_json
from bunqueue_trio.errors import DamagedBackupError
from bunqueue_trio.storage.wal_tail import FRAME_HEAD, Commit

MAGIC: Final = b"BQTLOG1\n"
COMMIT: Final = struct.Struct(">cQdII")
MAX_LINE_BYTES: Final = 4_096
MAX_PAGE_BYTES: Final = 65_536


class SegmentHead(Struct, frozen=True, rename="camel", gc=False):
    """``previous`` is the checksum of the segment before, empty for the first; ``first`` the number of its first
    commit."""

    generation: str
    number: int
    previous: str
    first: int


class SegmentWriter:
    """Appends to a file; a `FrameSink`."""

    def __init__(self, file: BinaryIO, head: SegmentHead) -> None:
        self.head = head
        self._file = file
        self._hash = hashlib.sha256()
        self.size_bytes = 0
        self.commit_count = 0
        self.first_at = 0.0
        """When its first commit was, epoch ms."""
        self.last_at = 0.0
        self._append(MAGIC + msgspec.json.encode(head) + b"\n")

    def begin_commit(self, commit: Commit, page_bytes: int, frame_count: int) -> None:
        """See `FrameSink`."""
        if not self.commit_count:
            self.first_at = commit.wall_ms
        self.last_at = commit.wall_ms
        self.commit_count += 1
        self._append(COMMIT.pack(b"C", commit.number, commit.wall_ms, page_bytes, frame_count))

    def write(self, data: bytes) -> None:
        """See `FrameSink`."""
        self._append(data)

    def end(self) -> str:
        """Write the end; the checksum. The file is left open."""
        self._append(b"E")
        digest = self._hash.digest()
        self._file.write(digest)
        self._file.flush()
        return digest.hex()

    def _append(self, data: bytes) -> None:
        self._file.write(data)
        self._hash.update(data)
        self.size_bytes += len(data)


class LoggedCommit(Struct, frozen=True, gc=False):
    """A commit as it is read. Its frames have to be taken before the next one."""

    number: int
    wall_ms: float
    page_bytes: int
    frame_count: int


class SegmentReader:
    """Reads a segment from *blocks*, unpacked; *name* is for error texts.

    Raises:
        DamagedBackupError: in each method: it is no segment, cut short, or not what was written.
    """

    def __init__(self, blocks: Iterable[bytes], name: str) -> None:
        self._blocks = iter(blocks)
        self._name = name
        self._held = b""
        self._at = 0  # what of it is taken
        self._hash = hashlib.sha256()
        self._frames_left = 0
        self._page_bytes = 0
        self._salts: tuple[int, ...] = ()
        self.checksum: str | None = None
        """Known once `commits` has ended, and the whole segment is what was written."""
        self.head = self._read_head()

    def commits(self) -> Iterator[LoggedCommit]:
        """Its commits, in their order."""
        while True:
            for _ in self.frames():
                pass  # nobody wanted them
            if (kind := self._take(1)) == b"E":
                break
            if kind != b"C":
                raise self._damaged("holds what is no commit")
            rest = self._take(COMMIT.size - 1)
            _, number, wall_ms, page_bytes, frame_count = COMMIT.unpack(kind + rest)
            if not 512 <= page_bytes <= MAX_PAGE_BYTES or page_bytes & (page_bytes - 1):
                raise self._damaged("holds a commit with impossible pages")
            self._frames_left, self._page_bytes, self._salts = frame_count, page_bytes, ()
            yield LoggedCommit(number, wall_ms, page_bytes, frame_count)
        computed = self._hash.digest()
        if self._take(len(computed)) != computed or self._at < len(self._held) or next(self._blocks, b""):
            raise self._damaged("is not what was uploaded")
        self.checksum = computed.hex()

    def frames(self) -> Iterator[tuple[int, int, bytes]]:
        """Of the present commit: page number from 1, pages of the database after it or 0 within it, and the page."""
        while self._frames_left:
            self._frames_left -= 1
            page, page_count, salt1, salt2, _, _ = FRAME_HEAD.unpack(self._take(FRAME_HEAD.size))
            if page == 0 or (self._salts and self._salts != (salt1, salt2)):
                raise self._damaged("holds a frame of another log")
            self._salts = (salt1, salt2)
            if not self._frames_left and not page_count:
                raise self._damaged("holds a commit without an end")
            yield page, page_count, self._take(self._page_bytes)

    def _read_head(self) -> SegmentHead:
        if self._take(len(MAGIC)) != MAGIC:
            raise self._damaged("is no segment of a change log")
        line = b""
        while not line.endswith(b"\n"):
            line += self._take(1)
            if len(line) > MAX_LINE_BYTES:
                raise self._damaged("is no segment of a change log")
        try:
            return read_json(line, SegmentHead)
        except ValueError as error:
            raise self._damaged("is no segment of a change log") from error

    def _take(self, size: int) -> bytes:
        while len(self._held) - self._at < size:
            block = next(self._blocks, b"")
            if not block:
                raise self._damaged("is cut short")
            self._held, self._at = self._held[self._at :] + block, 0
        taken = self._held[self._at : self._at + size]
        self._at += size
        self._hash.update(taken)
        return taken

    def _damaged(self, what: str) -> DamagedBackupError:
        return DamagedBackupError(f"Change log segment {self._name} {what}")


class PageWriter:
    """Puts pages of commits into a database file that nobody uses."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_RDWR)
        self._page_bytes = _page_bytes(self._file)
        self._page_count: int | None = None

    def apply(self, reader: SegmentReader, commit: LoggedCommit) -> None:
        """Write the pages of *commit*.

        Raises:
            DamagedBackupError: its pages are not of the size of those of the database.
            OSError: they cannot be written.
        """
        if commit.page_bytes != self._page_bytes:
            raise DamagedBackupError(f"The change log has pages of {commit.page_bytes} bytes, not {self._page_bytes}")
        for page, page_count, data in reader.frames():
            _write_all(self._file, data, (page - 1) * self._page_bytes)
            self._page_count = page_count or self._page_count

    def finish(self) -> None:
        """Give the file its size, and wait until it is on disk."""
        if self._page_count is not None:
            os.ftruncate(self._file, self._page_count * self._page_bytes)
        os.fsync(self._file)  # Durability: the data before the name

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._file)


def _page_bytes(file: int) -> int:
    size = int.from_bytes(os.pread(file, 2, 16), "big")
    return 65_536 if size == 1 else size


def _write_all(file: int, data: bytes, offset: int) -> None:
    while data:
        written = os.pwrite(file, data, offset)
        data, offset = data[written:], offset + written
