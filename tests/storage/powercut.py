"""A disk that can lose its power: records every write and sync of SQLite, then shows what a cut could have left.

What the model grants: a sync makes all earlier writes to that file durable; a sector of 512 bytes is written whole or
not at all; bytes outside a write are never touched. What it does not grant: that unsynced writes reach the disk in
order, or at all, or whole. Truncating a file is such a write. Deleting one is a write to its folder, which SQLite syncs
on some deletions and with the first sync of each journal or WAL that it has opened.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

import apsw

SECTOR = 512


@dataclass(frozen=True)
class Write:
    file: str
    offset: int
    data: bytes


@dataclass(frozen=True)
class Truncate:
    file: str
    size: int


@dataclass(frozen=True)
class Delete:
    file: str
    syncs_folder: bool


@dataclass(frozen=True)
class Sync:
    file: str
    syncs_folder: bool = False


@dataclass(frozen=True)
class Note:
    """Something the test wants to know the place of among the events."""

    text: str


Event = Write | Truncate | Delete | Sync | Note


class Loss(Enum):
    """Which of the unsynced writes are lost."""

    ALL = "all"
    NONE = "none"
    TAIL = "tail"  # the writes arrived in order up to some point, where one is torn
    ANY = "any"  # each arrived, was lost or was torn, independently of the others


@dataclass
class Recorder:
    """The events of one run, in their order."""

    events: list[Event] = field(default_factory=list)

    def note(self, text: str) -> None:
        self.events.append(Note(text))

    def after_cut(self, position: int, loss: Loss, seed: int) -> dict[str, bytes]:
        """The files as they may be found when the power went during event number *position*.

        The same position, loss and seed give the same files. A file of which nothing survived is left out.
        """
        return after_cut({}, self.events[: position + 1], loss, seed)


def after_cut(base: Mapping[str, bytes], events: Sequence[Event], loss: Loss, seed: int) -> dict[str, bytes]:
    """The files as they may be found when the power went with the last of *events*, which began upon *base*.

    The same seed gives the same files. A file of which nothing survived is left out.
    """
    chance = random.Random(seed)
    durable = {name: bytearray(content) for name, content in base.items()}
    pending: dict[str, list[Event]] = {}
    for event in events:
        if isinstance(event, Sync):
            for earlier in pending.pop(event.file, []):
                apply(durable, earlier)
        elif not isinstance(event, Note):
            pending.setdefault(event.file, []).append(event)
        if isinstance(event, Sync | Delete) and event.syncs_folder:
            _sync_folder(durable, pending)
    for unsynced in pending.values():
        for event in _survivors(unsynced, loss, chance):
            apply(durable, event)
    return {name: bytes(content) for name, content in durable.items() if content}


def _sync_folder(durable: dict[str, bytearray], pending: dict[str, list[Event]]) -> None:
    """Deletions so far are final; what was written to a new file of the same name stays unsynced."""
    for name, events in pending.items():
        deletions = [place for place, event in enumerate(events) if isinstance(event, Delete)]
        if deletions:
            durable.pop(name, None)
            pending[name] = events[deletions[-1] + 1 :]


def _survivors(events: list[Event], loss: Loss, chance: random.Random) -> list[Event]:
    if loss is Loss.ALL:
        return []
    if loss is Loss.NONE:
        return events
    if loss is Loss.TAIL:
        end = chance.randrange(len(events) + 1)
        return events[:end] + _torn(events[end : end + 1], chance)
    kept: list[Event] = []
    for event in events:
        fate = chance.random()
        if fate < 0.5:
            kept.append(event)
        elif fate < 0.7:
            kept += _torn([event], chance)
    return kept


def _torn(events: list[Event], chance: random.Random) -> list[Event]:
    """The sectors of a write that made it to the disk; what is no write is lost whole."""
    parts: list[Event] = []
    for event in events:
        if isinstance(event, Write):
            position, end = event.offset, event.offset + len(event.data)
            while position < end:
                border = min((position // SECTOR + 1) * SECTOR, end)
                if chance.random() < 0.5:
                    start = position - event.offset
                    parts.append(Write(event.file, position, event.data[start : border - event.offset]))
                position = border
    return parts


def apply(files: dict[str, bytearray], event: Event) -> None:
    """Let a write, a truncation or a deletion happen to *files*."""
    if isinstance(event, Write):
        content = files.setdefault(event.file, bytearray())
        if len(content) < event.offset:
            content.extend(bytes(event.offset - len(content)))
        content[event.offset : event.offset + len(event.data)] = event.data
    elif isinstance(event, Truncate):
        content = files.setdefault(event.file, bytearray())
        del content[event.size :]
        content.extend(bytes(event.size - len(content)))
    elif isinstance(event, Delete):
        files.pop(event.file, None)


class _RecordingFile(apsw.VFSFile):
    def __init__(self, recorder: Recorder, name: str | apsw.URIFilename | None, flags: list[int]) -> None:
        text = name.filename() if isinstance(name, apsw.URIFilename) else name
        # As SQLite's own file layer does it: with the first sync of a journal or WAL that was opened to be made
        # goes one of its folder, also when it was there.
        is_log = bool(flags[0] & (apsw.SQLITE_OPEN_WAL | apsw.SQLITE_OPEN_MAIN_JOURNAL))
        self._owes_folder_sync = is_log and bool(flags[0] & apsw.SQLITE_OPEN_CREATE)
        super().__init__("", name, flags)
        self._name = Path(text or "temporary").name
        self._events = recorder.events

    def xWrite(self, data: bytes, offset: int) -> None:
        self._events.append(Write(self._name, offset, bytes(data)))
        super().xWrite(data, offset)

    def xTruncate(self, newsize: int) -> None:
        self._events.append(Truncate(self._name, newsize))
        super().xTruncate(newsize)

    def xSync(self, flags: int) -> None:
        # The real sync is left out: nobody cuts the power of the machine that runs the test.
        self._events.append(Sync(self._name, self._owes_folder_sync))
        self._owes_folder_sync = False


class _RecordingVFS(apsw.VFS):
    def __init__(self, name: str, recorder: Recorder) -> None:
        super().__init__(name, "")
        self._recorder = recorder

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> _RecordingFile:
        return _RecordingFile(self._recorder, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:
        self._recorder.events.append(Delete(Path(filename).name, syncdir))
        super().xDelete(filename, syncdir)


@contextmanager
def recording_vfs(name: str = "powercut") -> Iterator[Recorder]:
    """A file system of that name for `open_writer`, and what happens on it."""
    recorder = Recorder()
    vfs = _RecordingVFS(name, recorder)
    try:
        yield recorder
    finally:
        vfs.unregister()
