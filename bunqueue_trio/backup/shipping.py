"""What goes into the bucket for the change log, and what is taken out of it again. Blocks.

Source: point-in-time recovery; D-151, D-153.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final

from bunqueue_trio.backup.chain import Sealed
from bunqueue_trio.backup.log_naming import (
    SEGMENT_CONTENT_TYPE,
    Base,
    base_key,
    read_base,
    segment_key,
    shared_with,
    sort_out,
)
from bunqueue_trio.backup.making import PART_BYTES
from bunqueue_trio.backup.naming import SIDECAR_SUFFIX, made_at, newest_first
from bunqueue_trio.backup.object_store import ObjectStore, StoredObject
from bunqueue_trio.backup.packing import GzipReader, unpacked
from bunqueue_trio.backup.patience import Patience
from bunqueue_trio.backup.sidecar import CONTENT_TYPE
from bunqueue_trio.errors import DamagedBackupError

MAX_BASE_BYTES: Final = 1 << 16
STARTS_KEPT: Final = 2
"""The last run of the server, in whose first minute something may have happened, and the present one. Not more: a
server that starts and dies in a loop must not fill the bucket."""


def upload(store: ObjectStore, prefix: str, generation: str, sealed: Sealed, patience: Patience) -> str:
    """Put a segment into the bucket; its key. It is there as a whole or not at all.

    Raises:
        ObjectStoreError: it is not there.
        OSError: its file cannot be read.
    """
    key = segment_key(prefix, generation, sealed.number, sealed.last_commit, sealed.first_at, sealed.until)
    with open(sealed.path, "rb") as file:
        source = GzipReader(file, check=patience.check, ended=lambda _packed_bytes: None)
        store.put_stream(key, source, content_type=SEGMENT_CONTENT_TYPE, metadata={}, part_bytes=PART_BYTES)
    return key


def prove(store: ObjectStore, key: str, sealed: Sealed, patience: Patience) -> None:
    """Read the segment *key* back. One that is not what was uploaded is deleted again.

    Raises:
        DamagedBackupError: it is not.
        BackupError: it cannot be read.

    Cost: memory does not depend on the size; what is inside is not looked at, since its checksum says it all.
    """
    digest, tail = hashlib.sha256(), b""
    try:
        for block in unpacked(store.get(key), is_compressed=True):
            patience.check()
            tail += block
            digest.update(tail[: -digest.digest_size])
            tail = tail[-digest.digest_size :]
        if not digest.hexdigest() == tail.hex() == sealed.checksum:
            raise DamagedBackupError(f"Change log segment {key} is not what was uploaded")
    except DamagedBackupError:
        store.delete(key)
        raise


def put_base(store: ObjectStore, prefix: str, base: Base) -> None:
    """Say where a backup stands in a chain. Only once the backup is known to be sound."""
    store.put(base_key(prefix, base.generation, base.snapshot), base.to_json(), content_type=CONTENT_TYPE)


def get_base(store: ObjectStore, key: str) -> Base:
    """The reverse.

    Raises:
        DamagedBackupError: it cannot be understood.
        ObjectStoreError: the bucket fails.
    """
    data = b""
    for block in store.get(key):
        data += block
        if len(data) > MAX_BASE_BYTES:
            break
    return read_base(data, key)


def clean_log(
    store: ObjectStore,
    prefix: str,
    patience: Patience,
    *,
    current: str | None,
    retention: int | None = None,
    base: str = "",
    interval_ms: float = 0.0,
) -> int:
    """Delete what no kept backup can be continued with; how many objects that were.

    Args:
        current: the chain that goes on.
        retention: how many backups are continued; a proven one that is kept beyond that is not. None: all there are.
        base: the snapshot that the present chain can be restored from, whatever else holds.
        interval_ms: between two backups, to know servers that share the prefix by: then nothing is deleted.

    Of a chain with kept backups that is what comes before the first of them. The snapshots that chains begin with are
    kept of the newest `STARTS_KEPT` chains. A chain with neither goes once it ends before the oldest kept backup was
    made, since until then its first backup may just be under way, or once so many newer chains have begun. Bases of
    snapshots that are gone go first, so what is cut short leaves nothing that could be taken for restorable.

    Raises:
        BackupError: the bucket fails.
    """
    objects = store.list(prefix)
    if shared_with(prefix, objects, interval_ms):
        return 0
    doomed = _doomed(
        store, prefix, objects, current, {item.key for item in newest_first(prefix, objects)[:retention]} | {base}
    )
    for key in doomed:
        patience.check()
        store.delete(key)
    return len(doomed)


def _doomed(
    store: ObjectStore, prefix: str, objects: Sequence[StoredObject], current: str | None, kept: set[str]
) -> list[str]:
    listing = sort_out(prefix, objects)
    old_starts = {generation: listing.starts[generation] for generation in sorted(listing.starts)[:-STARTS_KEPT]}
    old_starts.pop(current or "", None)
    kept_keys = kept | set(listing.starts.values()) - set(old_starts.values())
    oldest_at = min((at for key in kept if (at := made_at(prefix, key)) is not None), default=None)
    doomed: list[str] = []
    first_needed: dict[str, int] = {}
    damaged: dict[str, list[str]] = {}  # of no use; they go with their chain
    for generation, bases in listing.bases.items():
        for item in bases:
            try:
                base = get_base(store, item.key)
            except DamagedBackupError:
                damaged.setdefault(generation, []).append(item.key)
                continue
            if base.snapshot in kept_keys:
                first_needed[generation] = min(base.segment, first_needed.get(generation, base.segment))
            else:
                doomed.append(item.key)
    for generation, names in listing.segments.items():
        is_past = generation in old_starts or (oldest_at is not None and names[-1].until < oldest_at)
        if (needed := first_needed.get(generation)) is not None:
            doomed += [name.key for name in names if name.number < needed]
        elif generation != current and is_past:
            doomed += [*damaged.get(generation, ()), *(name.key for name in names)]
    known = {item.key for item in objects}
    pairs = [key for start in old_starts.values() for key in (start, start + SIDECAR_SUFFIX)]
    return doomed + [key for key in pairs if key in known]
