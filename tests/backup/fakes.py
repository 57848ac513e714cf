"""A bucket in memory, and data files to back up."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import apsw

from bunqueue_trio.backup.object_store import Readable, StoredObject, Unfinished
from bunqueue_trio.backup.patience import Patience
from bunqueue_trio.backup.settings import BackupSettings
from bunqueue_trio.clock import ManualClock, SystemClock
from bunqueue_trio.errors import ObjectStoreError
from bunqueue_trio.storage.connection import open_writer

BUCKET = "the-bucket"
GONE = ObjectStoreError("connection refused: nowhere:1 (PutObject)")


class FakeObjectStore:
    """What `S3Store` does, in memory. Passes the same suite.

    ``before`` is called with the method's name and the key before each call, and may raise; ``history`` holds the
    calls.
    """

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.types: dict[str, str] = {}
        self.metadata: dict[str, dict[str, str]] = {}
        self.modified: dict[str, float] = {}
        self.now_ms = 1_800_000_000_000.0
        self.history: list[tuple[str, str]] = []
        self.before: Callable[[str, str], None] = lambda name, key: None
        self.largest_part = 0
        self.uploads: list[Unfinished] = []
        self.patience: Patience | None = None

    def belong_to(self, patience: Patience) -> FakeObjectStore:
        """Note for whose work it is opened."""
        self.patience = patience
        return self

    def put(self, key: str, data: bytes, *, content_type: str) -> None:
        self._called("put", key)
        self.keep(key, data, content_type, {})

    def put_stream(
        self, key: str, source: Readable, *, content_type: str, metadata: dict[str, str], part_bytes: int
    ) -> None:
        self._called("put_stream", key)
        parts = []
        while part := source.read(part_bytes):
            self._called("part", key)
            parts.append(part)
            self.largest_part = max(self.largest_part, len(part))
        self._called("complete", key)
        self.keep(key, b"".join(parts), content_type, metadata)

    def look(self, key: str) -> StoredObject | None:
        self._called("look", key)
        return self._shown(key, self.metadata[key]) if key in self.objects else None

    def get(self, key: str) -> Iterator[bytes]:
        self._called("get", key)
        if key not in self.objects:
            raise ObjectStoreError("The specified key does not exist. (GetObject, HTTP 404)", status=404)
        data = self.objects[key]
        for start in range(0, len(data), 1000):
            self._called("block", key)
            yield data[start : start + 1000]

    def list(self, prefix: str) -> list[StoredObject]:
        self._called("list", prefix)
        return [self._shown(key, {}) for key in sorted(self.objects) if key.startswith(prefix)]

    def delete(self, key: str) -> None:
        self._called("delete", key)
        self.objects.pop(key, None)

    def unfinished(self, prefix: str) -> Sequence[Unfinished]:
        self._called("unfinished", prefix)
        return [upload for upload in self.uploads if upload.key.startswith(prefix)]

    def abandon(self, upload: Unfinished) -> None:
        self._called("abandon", upload.key)
        self.uploads.remove(upload)

    # for tests

    def keep(self, key: str, data: bytes, content_type: str, metadata: dict[str, str]) -> None:
        """What every upload comes to; a test may exchange it."""
        self.objects[key] = data
        self.types[key] = content_type
        self.metadata[key] = metadata
        self.modified.setdefault(key, self.now_ms)

    def fail(self, error: Exception, *names: str, key: str = "", times: int = 1_000_000) -> None:
        """Calls of these methods fail, for keys that contain *key*."""
        left = times

        def before(name: str, called_key: str) -> None:
            nonlocal left
            if name in names and key in called_key and left:
                left -= 1
                raise error

        self.before = before

    @property
    def backups(self) -> list[str]:
        """Keys of data."""
        return sorted(key for key in self.objects if key.endswith(".db"))

    def _called(self, name: str, key: str) -> None:
        self.history.append((name, key))
        self.before(name, key)

    def _shown(self, key: str, metadata: dict[str, str]) -> StoredObject:
        return StoredObject(key, len(self.objects[key]), self.modified[key], metadata)


def settings(database: Path | str, **changes: Any) -> BackupSettings:
    """Settings that pass."""
    values: dict[str, Any] = {
        "database": str(database),
        "bucket": BUCKET,
        "access_key_id": "some-key",
        "secret_access_key": "a-secret",
        "endpoint": "http://127.0.0.1:1",
    }
    return BackupSettings(**{**values, **changes})


def patience(**options: Any) -> Patience:
    """One that never waits between tries."""
    return Patience(SystemClock(), **{"retry_pauses_s": (0.0, 0.0, 0.0), **options})


def make_database(path: Path, rows: int = 3) -> Path:
    """A data file of ours with some rows, closed."""
    connection = open_writer(str(path))
    add_rows(connection, rows)
    connection.close(True)
    return path


def add_rows(connection: apsw.Connection, number: int, *, first: int = 0) -> None:
    """Rows that tests can count."""
    with connection:
        for index in range(first, first + number):
            connection.execute("INSERT INTO bqt_meta(key, value) VALUES (?, ?)", (f"row-{index}", b"v" * 50))


def rows(path: Path) -> int:
    """How many there are; the file is checked too."""
    connection = apsw.Connection(str(path))
    try:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        return int(connection.execute("SELECT count(*) FROM bqt_meta WHERE key LIKE 'row-%'").fetchone()[0])
    finally:
        connection.close(True)


def sha(path: Path) -> str:
    """Of the bytes as they are on disk."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def names_beside(path: Path) -> set[str]:
    """What lies in the folder of *path*, but for the lock and the record of backups, without the name in front."""
    names = {entry.name for entry in path.parent.iterdir()}
    kept = {f"{path.name}.backup-lock", f"{path.name}.backup-state.json"}
    return {name.removeprefix(path.name) for name in names - kept}


def clock() -> ManualClock:
    """30 November 2026, 12:00 UTC."""
    return ManualClock(wall_ms=1_796_040_000_000)
