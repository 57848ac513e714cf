"""A disk in memory for SQLite: it can fail, run full, tear a write, and lose its power or its process at any call.

A process sees what it has written; what a cut leaves is decided by `tests.storage.powercut`. After a planned end the
calls go on as if nothing had happened, so that whoever makes them need not know; but nothing of that is ever seen.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from pathlib import Path

import apsw

from tests.storage.powercut import Delete, Event, Loss, Sync, Truncate, Write, after_cut, apply

VFS_NAME = "simulated"
POWERSAFE_OVERWRITE = 0x1000  # bytes outside a write are never touched: what SQLite assumes of a unix disk as well
SECTOR_BYTES = 4096
PLENTY_BYTES = 1 << 30
EXTENDED = {"write": apsw.SQLITE_IOERR_WRITE, "sync": apsw.SQLITE_IOERR_FSYNC}


class Trouble(Enum):
    """What can be wrong with a disk for a while."""

    FULL = "no file grows"
    WRITE = "writes fail"
    TORN = "writes fail half done"
    SYNC = "syncs fail"


class Disk:
    """The files of one simulated machine.

    Args:
        files: what is on it, all of it durable.
    """

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self.base = dict(files)
        self.files = {name: bytearray(content) for name, content in files.items()}
        self.events: list[Event] = []
        self.trouble: Trouble | None = None
        self.trouble_count = 0
        """How many calls have failed."""
        self._calls_until_trouble = 0
        self._ends_at: int | None = None

    def free_bytes(self) -> int:
        """What the file system says is left."""
        is_full = self.trouble is Trouble.FULL and not self._calls_until_trouble
        return 0 if is_full else PLENTY_BYTES

    # what is planned

    def plan_trouble(self, trouble: Trouble, calls: int) -> None:
        """From that many calls on, until `recover`."""
        self.trouble, self._calls_until_trouble = trouble, calls

    def recover(self) -> None:
        """The trouble is over."""
        self.trouble = None

    def plan_end(self, calls: int) -> None:
        """The process ends, or the power is cut, with the call after that many more."""
        self._ends_at = len(self.events) + calls

    def forget_end(self) -> None:
        """What was planned will not come."""
        self._ends_at = None

    @property
    def has_ended(self) -> bool:
        """Whether what was planned has happened."""
        return self._ends_at is not None and len(self.events) > self._ends_at

    def after_kill(self) -> Disk:
        """What the next process finds: all that was written before the end, synced or not."""
        left = Disk(self.base)
        left.events = self._events_before_end()
        for event in left.events:
            apply(left.files, event)
        return left

    def after_power_cut(self, loss: Loss, seed: int) -> Disk:
        """What is left of the unsynced writes is a matter of chance."""
        return Disk(after_cut(self.base, self._events_before_end(), loss, seed))

    def _events_before_end(self) -> list[Event]:
        return self.events if self._ends_at is None else self.events[: self._ends_at + 1]

    # what SQLite calls

    def write(self, name: str, offset: int, data: bytes) -> None:
        if self._fails(Trouble.WRITE):
            raise _io_error("write")
        if self._fails(Trouble.TORN):
            self._happen(Write(name, offset, data[: len(data) // 2]))
            raise _io_error("write")
        if offset + len(data) > len(self.files.get(name, b"")) and self._fails(Trouble.FULL):
            raise apsw.FullError("no space left on the simulated disk")
        self._happen(Write(name, offset, data))

    def truncate(self, name: str, size: int) -> None:
        if self._fails(Trouble.WRITE):
            raise _io_error("write")
        self._happen(Truncate(name, size))

    def sync(self, name: str, *, syncs_folder: bool) -> None:
        if self._fails(Trouble.SYNC):
            raise _io_error("sync")
        self._happen(Sync(name, syncs_folder))

    def delete(self, name: str, *, syncs_folder: bool) -> None:
        self._happen(Delete(name, syncs_folder))

    def _fails(self, trouble: Trouble) -> bool:
        if self.trouble is not trouble:
            return False
        if self._calls_until_trouble:
            self._calls_until_trouble -= 1
            return False
        self.trouble_count += 1
        return True

    def _happen(self, event: Event) -> None:
        self.events.append(event)
        apply(self.files, event)


def _io_error(what: str) -> apsw.IOError:
    error = apsw.IOError(f"simulated {what} error")
    error.extendedresult = EXTENDED[what]
    return error


class _File:
    """One open file. Nothing else uses the disk, so there are no locks."""

    def __init__(self, disk: Disk, name: str, *, owes_folder_sync: bool) -> None:
        self._disk = disk
        self._name = name
        self._owes_folder_sync = owes_folder_sync

    def xRead(self, amount: int, offset: int) -> bytes:
        return bytes(self._disk.files.get(self._name, b"")[offset : offset + amount])

    def xWrite(self, data: bytes, offset: int) -> None:
        self._disk.write(self._name, offset, bytes(data))

    def xTruncate(self, size: int) -> None:
        self._disk.truncate(self._name, size)

    def xSync(self, flags: int) -> None:
        self._disk.sync(self._name, syncs_folder=self._owes_folder_sync)
        self._owes_folder_sync = False

    def xFileSize(self) -> int:
        return len(self._disk.files.get(self._name, b""))

    def xLock(self, level: int) -> None:
        pass

    def xUnlock(self, level: int) -> None:
        pass

    def xCheckReservedLock(self) -> bool:
        return False

    def xFileControl(self, operation: int, pointer: int) -> bool:
        return False

    def xSectorSize(self) -> int:
        return SECTOR_BYTES

    def xDeviceCharacteristics(self) -> int:
        return POWERSAFE_OVERWRITE

    def xClose(self) -> None:
        pass


class SimulatedVFS(apsw.VFS):
    """SQLite's way to the disk that is in use at the moment."""

    def __init__(self) -> None:
        super().__init__(VFS_NAME, "")
        self.disk = Disk({})
        self._temporary_count = 0

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> _File:
        text = name.filename() if isinstance(name, apsw.URIFilename) else name
        if text is None:
            self._temporary_count += 1
            return _File(Disk({}), f"temporary-{self._temporary_count}", owes_folder_sync=False)
        # As SQLite's own file layer does it: with the first sync of a journal or WAL that was opened to be made
        # goes one of its folder, also when it was there. Or nobody would ever sync what a killed process has made.
        is_log = bool(flags[0] & (apsw.SQLITE_OPEN_WAL | apsw.SQLITE_OPEN_MAIN_JOURNAL))
        base = Path(text).name
        self.disk.files.setdefault(base, bytearray())
        flags[1] = flags[0]
        return _File(self.disk, base, owes_folder_sync=is_log and bool(flags[0] & apsw.SQLITE_OPEN_CREATE))

    def xAccess(self, path: str, flags: int) -> bool:
        return Path(path).name in self.disk.files

    def xDelete(self, path: str, syncdir: bool) -> None:
        self.disk.delete(Path(path).name, syncs_folder=bool(syncdir))

    def xFullPathname(self, name: str) -> str:
        return name


@contextmanager
def simulated_vfs() -> Iterator[SimulatedVFS]:
    """A file system for `open_writer`, under `VFS_NAME`; its ``disk`` may be exchanged between two connections."""
    vfs = SimulatedVFS()
    try:
        yield vfs
    finally:
        vfs.unregister()
