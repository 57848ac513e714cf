"""Gzip and SHA-256 as streams: bytes in, bytes out, in memory that does not depend on their number.

Source: S3 backup and restore, "Taking a backup", "Restore", BD-9, BD-13; K1, K3, R357, R358.
"""

import hashlib
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import BinaryIO, Final

from msgspec import Struct

from bunqueue_trio.errors import DamagedBackupError

BLOCK_BYTES: Final = 1 << 18
LEVEL: Final = 1
"""The default of 6 takes three times as long for a tenth less: the server's processor is worth more than that."""
GZIP_MAGIC: Final = b"\x1f\x8b"
NOT_GZIP: Final = "Backup data is not a valid gzip stream"

_GZIP_FORMAT: Final = 31  # zlib's number for "with the header and the trailer of gzip"

StopCheck = Callable[[], None]
"""Called for every block; raises to end the work."""


class Digest(Struct, frozen=True, gc=False):
    """SHA-256, lower-case hex, and size of some bytes."""

    checksum: str
    size_bytes: int


def digest_of(source: BinaryIO, check: StopCheck) -> Digest:
    """Read *source* to its end."""
    digest, size = hashlib.sha256(), 0
    while block := source.read(BLOCK_BYTES):
        check()
        digest.update(block)
        size += len(block)
    return Digest(digest.hexdigest(), size)


class GzipReader:
    """Reads *source* as gzip.

    Args:
        ended: called once, before the last bytes are handed out, with the size of all of them. So what describes the
            data can be in place before the data are complete.
    """

    def __init__(self, source: BinaryIO, *, check: StopCheck, ended: Callable[[int], None]) -> None:
        self._source = source
        self._check = check
        self._ended = ended
        self._packer = zlib.compressobj(LEVEL, zlib.DEFLATED, _GZIP_FORMAT)
        self._blocks: deque[bytes] = deque()
        self._held = 0
        self._has_ended = False
        self.packed_bytes = 0
        """How many bytes of gzip there are so far."""

    def read(self, size: int) -> bytes:
        """The next *size* bytes, fewer only at the end."""
        while self._held < size and not self._has_ended:
            self._check()
            block = self._source.read(BLOCK_BYTES)
            self._keep(self._packer.compress(block) if block else self._packer.flush())
            if not block:
                self._has_ended = True
                self._ended(self.packed_bytes)
        return self._take(min(size, self._held))

    def _take(self, size: int) -> bytes:
        taken: list[bytes] = []
        self._held -= size
        while size > 0:
            block = self._blocks.popleft()
            if len(block) > size:
                self._blocks.appendleft(block[size:])
                block = block[:size]
            taken.append(block)
            size -= len(block)
        return b"".join(taken)

    def _keep(self, packed: bytes) -> None:
        self._blocks.append(packed)
        self._held += len(packed)
        self.packed_bytes += len(packed)


def unpacked(chunks: Iterable[bytes], *, is_compressed: bool | None) -> Iterator[bytes]:
    """What *chunks* hold, in blocks of bounded size.

    Args:
        is_compressed: whether it is gzip; None: look at the first bytes.

    Raises:
        DamagedBackupError: it should be gzip and is not, or is cut short.
    """
    source = iter(chunks)
    head = b""
    while is_compressed is None and len(head) < len(GZIP_MAGIC) and (chunk := next(source, b"")):
        head += chunk
    if is_compressed is None:
        is_compressed = head.startswith(GZIP_MAGIC)
    whole = _chain(head, source)
    return _gunzip(whole) if is_compressed else whole


def _chain(head: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    if head:
        yield head
    yield from rest


def _gunzip(chunks: Iterator[bytes]) -> Iterator[bytes]:
    unpacker = zlib.decompressobj(_GZIP_FORMAT)
    has_begun = False
    for chunk in chunks:
        data = chunk
        while data:
            if unpacker.eof:
                if not data.strip(b"\0"):
                    break  # padding, as tapes and some tools leave it
                unpacker = zlib.decompressobj(_GZIP_FORMAT)  # members of gzip may follow each other
            has_begun = True
            try:
                # Bounded: some kilobytes of gzip may hold gigabytes.
                block = unpacker.decompress(data, BLOCK_BYTES)
            except zlib.error as error:
                raise DamagedBackupError(NOT_GZIP) from error
            data = unpacker.unused_data if unpacker.eof else unpacker.unconsumed_tail
            if block:
                yield block
    if not (has_begun and unpacker.eof):
        raise DamagedBackupError(NOT_GZIP)
