"""Names of backups in the bucket: making them, recognising our own, and which ones are too many.

Source: S3 backup and restore, "Object layout", "Retention", BD-4, BD-5; R72.
"""

import re
from collections.abc import Container, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from bunqueue_trio.backup.object_store import StoredObject

SIDECAR_SUFFIX: Final = ".meta.json"
MAX_SKEW_MS: Final = 3_600_000.0
"""Clocks of honest machines differ by less."""

_NAME: Final = re.compile(r"bunqueue-(\d{4}-\d\d-\d\d)T(\d\d)-(\d\d)-(\d\d)-(\d{3})Z(-[0-9A-Za-z-]+)?\.db", re.ASCII)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_MS: Final = -62_135_596_800_000.0
_LAST_MS: Final = 253_402_300_799_999.0


def iso(wall_ms: float) -> str:
    """A moment as the wire and the sidecar spell it: UTC with milliseconds.

    Some moments are read from a bucket, where anything may stand: beyond the years 1 to 9999 it is the nearest of them.
    """
    moment = _EPOCH + timedelta(milliseconds=min(max(wall_ms, _FIRST_MS), _LAST_MS))
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def parse_moment(text: str) -> float:
    """Epoch ms of a time as people give it: ISO 8601, in UTC unless it says otherwise, or epoch ms.

    Raises:
        ValueError: it is neither.
    """
    if re.fullmatch(r"\d{11,15}", text, re.ASCII):
        return float(text)
    moment = datetime.fromisoformat(text)
    return ((moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - _EPOCH) / timedelta(milliseconds=1)


def key_of(prefix: str, wall_ms: float) -> str:
    """The key of a backup made at that moment. The prefix stands before the name as it is, with or without a slash."""
    return f"{prefix}bunqueue-{iso(wall_ms).replace(':', '-').replace('.', '-')}.db"


def made_at(prefix: str, key: str) -> float | None:
    """When the backup under *key* was made, epoch ms; None for what is no backup under *prefix*.

    The newer line of the reference puts random characters behind the time; those are backups too.
    """
    if not key.startswith(prefix):
        return None
    match = _NAME.fullmatch(key[len(prefix) :])
    if match is None:
        return None
    day, hour, minute, second, millisecond, _ = match.groups()
    try:
        moment = datetime.fromisoformat(f"{day}T{hour}:{minute}:{second}.{millisecond}+00:00")
    except ValueError:
        return None
    return (moment - _EPOCH) / timedelta(milliseconds=1)


def believed_at(at: float, item: StoredObject) -> float:
    """*at*, which *item* says of itself, or when it was uploaded, if that was so long before that the clock must have
    been wrong: backups of a wrong future must not outlive all that come after them."""
    modified_at = item.modified_at
    return modified_at if modified_at is not None and at > modified_at + MAX_SKEW_MS else at


def newest_first(prefix: str, objects: Iterable[StoredObject]) -> list[StoredObject]:
    """The backups among *objects*, by the time in the name; the time of the upload has whole seconds only."""
    dated = [
        (believed_at(at, item), item.modified_at or 0.0, item.key, item)
        for item in objects
        if (at := made_at(prefix, item.key)) is not None
    ]
    return [entry[3] for entry in sorted(dated, key=lambda entry: entry[:3], reverse=True)]


def surplus(
    prefix: str, objects: Sequence[StoredObject], retention: int, *, spared: Container[str | None] = ()
) -> list[str]:
    """Keys to delete so that the newest *retention* backups are left, oldest first; those of *spared* stay as well.

    Each data file comes before its sidecar: what is cut short leaves a sidecar without data, which nobody lists.
    """
    keys = {item.key for item in objects}
    doomed = [item.key for item in newest_first(prefix, objects)[retention:] if item.key not in spared]
    pairs = [(key, key + SIDECAR_SUFFIX) for key in reversed(doomed)]
    return [key for pair in pairs for key in pair if key in keys]
