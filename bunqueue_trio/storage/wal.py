"""Looking at a write-ahead log from outside, before SQLite opens it and silently drops what it cannot read.

Source: persistence, PD-21 and "Damaged WAL".
"""

import os
import shutil
import struct
from typing import Final

_HEADER_BYTES: Final = 32
_FRAME_HEADER_BYTES: Final = 24
_MAGICS: Final = (0x377F0682, 0x377F0683)  # the last bit: check sums are over big-endian words
_FORMAT: Final = 3_007_000
_MASK: Final = 0xFFFFFFFF


def wal_path(path: str) -> str:
    """Where SQLite keeps the WAL of *path*: beside the real file, not beside a symbolic link to it."""
    return (os.path.realpath(path) if os.path.islink(path) else path) + "-wal"


def wal_bytes(path: str) -> int:
    """Size of the WAL of *path*; 0 when there is none, or none to be found: its folder may have been moved away."""
    try:
        return os.stat(path + "-wal").st_size
    except OSError:
        pass
    if not os.path.islink(path):
        return 0
    try:
        return os.stat(wal_path(path)).st_size
    except OSError:
        return 0


def keep_damaged_wal(path: str) -> str | None:
    """Copy a WAL that SQLite will ignore as a whole to ``<wal>.damaged-N``, before it is overwritten.

    Returns:
        One line for the operator, or None when there is nothing to tell: no WAL, or one that SQLite will replay.

    Raises:
        OSError: the copy could not be made. Nothing has been changed.
    """
    wal = wal_path(path)
    try:
        with open(wal, "rb") as file:
            head = file.read(_HEADER_BYTES + _FRAME_HEADER_BYTES)
            size = os.fstat(file.fileno()).st_size
    except FileNotFoundError:
        return None
    if not head or contributes(head):
        return None
    copy = _copy_beside(wal)
    return (
        f"The write-ahead log {wal} ({size} bytes) is damaged and contributes nothing: changes since the last WAL"
        f" checkpoint are lost; a copy is kept as {copy}"
    )


def contributes(head: bytes) -> bool:
    """Whether SQLite will accept a WAL that begins with *head*, its header and the header of its first frame.

    A header without a first frame, or followed by frames of the generation before, is what a process killed while
    it began to write leaves behind: nothing had been committed under that header, so nothing is lost.
    """
    if len(head) < _HEADER_BYTES:
        return False
    magic, version, _page, _number, salt1, salt2, sum1, sum2 = struct.unpack(">8I", head[:_HEADER_BYTES])
    if magic not in _MAGICS or version != _FORMAT or (sum1, sum2) != _check_sums(head[:24], magic):
        return False
    if len(head) < _HEADER_BYTES + _FRAME_HEADER_BYTES:
        return True
    frame1, frame2 = struct.unpack(">2I", head[_HEADER_BYTES + 8 : _HEADER_BYTES + 16])
    return (frame1, frame2) == (salt1, salt2) or frame1 == (salt1 - 1) & _MASK


def _check_sums(data: bytes, magic: int) -> tuple[int, int]:
    words = struct.unpack((">" if magic & 1 else "<") + f"{len(data) // 4}I", data)
    first = second = 0
    for even, odd in zip(words[::2], words[1::2], strict=True):
        first = (first + even + second) & _MASK
        second = (second + odd + first) & _MASK
    return first, second


def _copy_beside(wal: str) -> str:
    number = 1
    while True:
        name = f"{wal}.damaged-{number}"
        try:
            target = open(name, "xb")  # noqa: SIM115  closed below; "x" never overwrites an older copy
        except FileExistsError:
            number += 1
            continue
        try:
            with target, open(wal, "rb") as source:
                shutil.copyfileobj(source, target, 1 << 20)
        except OSError:
            os.unlink(name)
            raise
        return name
