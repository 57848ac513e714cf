"""Whether some other process has a database file open, whatever program it is. Knows no SQL."""

import fcntl
import os
import struct
import sys
from typing import Final

# SQLite, "os.h": whoever has a database open in WAL mode holds a shared lock on these bytes for as long.
_SHARED_FIRST: Final = 0x4000_0002
_SHARED_BYTES: Final = 510
_FLOCK: Final = "hhqqi4x"  # struct flock of 64-bit Linux: type, whence, start, length, process


def is_open_elsewhere(path: str) -> bool:
    """Whether another process has the database *path* open in WAL mode, or is in a transaction on it.

    It asks for locks, and takes none. Where that is not known how to, the answer is False.

    Invariant: closing any descriptor of a file drops the locks that this process holds on it, so no connection to it
    may be open here.
    """
    if sys.platform != "linux" or struct.calcsize("P") != 8:
        return False
    try:
        descriptor = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, _SHARED_FIRST, _SHARED_BYTES, 0)
        answer = struct.unpack(_FLOCK, fcntl.fcntl(descriptor, fcntl.F_GETLK, asked))
    finally:
        os.close(descriptor)
    return bool(answer[0] != fcntl.F_UNLCK)
