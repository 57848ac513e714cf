"""From an object in the bucket to a database file that is known to be sound: the part that restore and proof share.

Source: S3 backup and restore, "Restore", BD-10, BD-13; R212, R357 to R364, K6.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from typing import Final

from msgspec import Struct

from bunqueue_trio.backup.naming import SIDECAR_SUFFIX
from bunqueue_trio.backup.object_store import ObjectStore, StoredObject
from bunqueue_trio.backup.packing import Digest, unpacked
from bunqueue_trio.backup.patience import Patience
from bunqueue_trio.backup.sidecar import MAX_SIDECAR_BYTES, Sidecar, from_object_metadata, read_sidecar
from bunqueue_trio.errors import BackupError, CorruptDatabaseError, DamagedBackupError
from bunqueue_trio.storage.copying import check_integrity

MAGIC: Final = b"SQLite format 3"
MISMATCH: Final = "Backup checksum mismatch - file may be corrupted"
WRONG_SIZE: Final = "Backup size mismatch - file may be corrupted"
NO_DATABASE: Final = "Restored data is not a valid SQLite database"
SPARE_BYTES: Final = 1 << 20
DAMAGED: Final = "Database integrity check failed"


class Fetched(Struct, frozen=True, gc=False):
    """A database file that has passed. ``is_verified``: there was a checksum to compare with."""

    digest: Digest
    is_verified: bool


def fetch(store: ObjectStore, key: str, target: str, patience: Patience) -> Fetched:
    """Download the backup *key*, unpack it to the file *target*, and check it there; *target* is on disk afterwards.

    Raises:
        DamagedBackupError: any check fails.
        BackupError: there is no such object, the bucket fails, or *target* cannot be written.

    Cost: memory does not depend on the size.
    """
    found = store.look(key)
    if found is None:
        raise BackupError(f"Backup not found: {key}")
    sidecar = _sidecar_of(store, key)
    expected = sidecar if sidecar is not None and sidecar.checksum else _own_words(found)
    size = expected.size if expected is not None else None if sidecar is None else sidecar.size
    is_compressed = None if sidecar is None else sidecar.compressed
    _check_space(target, size)
    digest, head = _unpack(store, key, target, patience, is_compressed, size)
    if expected is not None and expected.checksum and expected.checksum.lower() != digest.checksum:
        raise DamagedBackupError(MISMATCH)
    if not head.startswith(MAGIC):
        raise DamagedBackupError(NO_DATABASE)
    if size is not None and size != digest.size_bytes:
        raise DamagedBackupError(WRONG_SIZE)
    check_database(target, patience)
    return Fetched(digest, is_verified=expected is not None and bool(expected.checksum))


def _check_space(target: str, size: int | None) -> None:
    """Before the work, and before the disk is full for the server as well."""
    free = shutil.disk_usage(os.path.dirname(target) or ".").free
    if size is not None and free < size + SPARE_BYTES:
        raise BackupError(f"Not enough disk space to unpack the backup: {size} bytes needed, {free} free")


def check_database(path: str, patience: Patience) -> None:
    """Let SQLite judge.

    Raises:
        DamagedBackupError: not sound.
    """
    try:
        check_integrity(path, check=patience.breathe)
    except CorruptDatabaseError as error:
        raise DamagedBackupError(f"{DAMAGED}: {error}") from error


def _own_words(found: StoredObject) -> Sidecar | None:
    return from_object_metadata(found.metadata)


def _sidecar_of(store: ObjectStore, key: str) -> Sidecar | None:
    name = key + SIDECAR_SUFFIX
    found = store.look(name)
    if found is None:
        return None
    if found.size_bytes > MAX_SIDECAR_BYTES:
        raise DamagedBackupError("Backup metadata is not valid JSON")
    data = b""
    for block in store.get(name):
        data += block
        if len(data) > MAX_SIDECAR_BYTES:
            break
    return read_sidecar(data)


def _unpack(
    store: ObjectStore, key: str, target: str, patience: Patience, is_compressed: bool | None, size_bytes: int | None
) -> tuple[Digest, bytes]:
    """Into the file *target*; no more than *size_bytes*, where those are known: a little gzip may hold very much, and
    the disk is the server's."""
    digest, size, head = hashlib.sha256(), 0, b""
    try:
        with open(target, "wb") as file:
            for block in unpacked(store.get(key), is_compressed=is_compressed):
                patience.breathe()
                digest.update(block)
                file.write(block)
                size += len(block)
                if size_bytes is not None and size > size_bytes:
                    raise DamagedBackupError(WRONG_SIZE)
                if len(head) < len(MAGIC):
                    head += block[: len(MAGIC)]
            file.flush()
            os.fsync(file.fileno())  # Durability: the data before the name (BD-11)
    except OSError as error:
        raise BackupError(f"{target}: {error.strerror}") from error
    return Digest(digest.hexdigest(), size), head
