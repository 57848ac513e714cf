"""Names of the change log in the bucket, all under ``<prefix>log/<generation>/``; none looks like a backup.

    00000007-412-1796040000000-1796040005000.segment.gz   place in the chain, number of the last commit, time of the
                                                          first one, known until (epoch ms)
    bunqueue-2026-11-30T12-00-00-000Z.base.json           that this backup belongs to the chain, and where
    start.snapshot                                        what the chain begins with, where no backup was due; with its
                                                          own start.snapshot.meta.json and start.base.json

A generation is a chain without gap, made by one run of a server. Source: point-in-time recovery; D-151.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec
from msgspec import Struct

from bunqueue_trio.backup.json_texts import read_json
from bunqueue_trio.backup.naming import iso
from bunqueue_trio.backup.object_store import StoredObject
from bunqueue_trio.errors import DamagedBackupError

LOG_FOLDER: Final = "log/"
OVERLAP_MS: Final = 30_000.0
"""Stores tell whole seconds, and of an upload in parts some tell when it began."""
SEGMENT_CONTENT_TYPE: Final = "application/gzip"

_SEGMENT: Final = re.compile(r"([^/]+)/(\d{8,})-(\d+)-(\d+)-(\d+)\.segment\.gz", re.ASCII)
_BASE: Final = re.compile(r"([^/]+)/[^/]+\.base\.json", re.ASCII)
_START: Final = re.compile(r"([^/]+)/start\.snapshot", re.ASCII)


class SegmentName(Struct, frozen=True, gc=False):
    """What the key of a segment says: its place, the number of its last commit, when its first one was, and up to when
    it has every commit; epoch ms."""

    key: str
    generation: str
    number: int
    last_commit: int
    first_at: float
    until: float


class Base(Struct, frozen=True, kw_only=True, rename="camel", gc=False):
    """Where a backup stands in a chain.

    It holds all commits up to ``holds`` for sure, and none after ``reaches``, which was at ``at``, epoch ms; so with
    the segments from ``segment`` on any moment from ``at`` on can be restored.
    """

    snapshot: str
    generation: str
    segment: int
    holds: int
    reaches: int
    at: float

    def to_json(self) -> bytes:
        """As it is stored."""
        return msgspec.json.format(msgspec.json.encode(self), indent=2)


class LogListing(Struct, frozen=True, gc=False):
    """What there is of change logs, by generation: segments in their order, bases, and the key of the snapshot that a
    chain begins with, if it has one of its own."""

    segments: dict[str, list[SegmentName]]
    bases: dict[str, list[StoredObject]]
    starts: dict[str, str]


def new_generation(wall_ms: float, random: bytes) -> str:
    """The name of a chain that begins now; later ones sort behind."""
    return f"{iso(wall_ms).translate(str.maketrans('', '', '-:.'))}-{random.hex()}"


def segment_key(prefix: str, generation: str, number: int, last_commit: int, first_at: float, until: float) -> str:
    """The key of a segment; moments are whole milliseconds, the later one rounded down."""
    return f"{prefix}{LOG_FOLDER}{generation}/{number:08d}-{last_commit}-{int(first_at)}-{int(until)}.segment.gz"


def start_key(prefix: str, generation: str) -> str:
    """The key of the snapshot that a chain begins with."""
    return f"{prefix}{LOG_FOLDER}{generation}/start.snapshot"


def is_of_the_log(prefix: str, key: str) -> bool:
    """Whether *key* is one that we give to parts of the change log."""
    folder = prefix + LOG_FOLDER
    rest = key.removeprefix(folder)
    return key.startswith(folder) and any(form.fullmatch(rest) for form in (_SEGMENT, _BASE, _START))


def base_key(prefix: str, generation: str, snapshot: str) -> str:
    """The key of the base that belongs to *snapshot*."""
    name = snapshot.rpartition("/")[2] if snapshot == start_key(prefix, generation) else snapshot.removeprefix(prefix)
    name = name.removesuffix(".snapshot").removesuffix(".db")
    return f"{prefix}{LOG_FOLDER}{generation}/{name}.base.json"


def read_base(data: bytes, key: str) -> Base:
    """Parse a base.

    Raises:
        DamagedBackupError: it is none.
    """
    try:
        return read_json(data, Base)
    except ValueError as error:
        raise DamagedBackupError(f"{key} is damaged") from error


def shared_with(prefix: str, objects: Iterable[StoredObject], interval_ms: float) -> list[str]:
    """The generations of two servers or more that upload under one prefix; empty where there is one at the most.

    One server ends a generation before it begins the next, so of any two that go on at the same time, by the clock of
    the store, one is another's; and it still is while the last sign of it is younger than two backups.
    """
    times: dict[str, tuple[float, float]] = {}
    for item in objects:
        if item.modified_at is not None and is_of_the_log(prefix, item.key):
            generation = item.key.removeprefix(prefix + LOG_FOLDER).partition("/")[0]
            first, last = times.get(generation, (item.modified_at, item.modified_at))
            times[generation] = min(first, item.modified_at), max(last, item.modified_at)
    if not times:
        return []
    begun = max(first for first, _ in times.values()) + OVERLAP_MS
    recent = max(last for _, last in times.values()) - 2 * interval_ms
    newest = max(times, key=lambda generation: times[generation])
    others = [
        generation for generation, (_, last) in times.items() if generation != newest and last > max(begun, recent)
    ]
    return sorted([newest, *others]) if others else []


def shared_text(prefix: str, generations: Sequence[str]) -> str:
    """What is to be said of that."""
    return (
        f"Two servers upload under the prefix {prefix!r} (change logs {', '.join(generations)}): give each its own;"
        " until then nothing is deleted there, and what `--to` leads to may be the other's"
    )


def sort_out(prefix: str, objects: Iterable[StoredObject]) -> LogListing:
    """The change logs among *objects*."""
    folder = prefix + LOG_FOLDER
    segments: dict[str, list[SegmentName]] = {}
    bases: dict[str, list[StoredObject]] = {}
    starts: dict[str, str] = {}
    for item in objects:
        if not item.key.startswith(folder):
            continue
        rest = item.key[len(folder) :]
        if match := _SEGMENT.fullmatch(rest):
            generation, number, last_commit, first_at, until = match.groups()
            name = SegmentName(item.key, generation, int(number), int(last_commit), float(first_at), float(until))
            segments.setdefault(generation, []).append(name)
        elif match := _BASE.fullmatch(rest):
            bases.setdefault(match[1], []).append(item)
        elif match := _START.fullmatch(rest):
            starts[match[1]] = item.key
    for names in segments.values():
        names.sort(key=lambda name: name.number)
    return LogListing(segments, bases, starts)
