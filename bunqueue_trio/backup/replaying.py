"""Back to a moment: a backup, and the change log from there on. Blocks.

Which backup and which segments is decided by their names alone; then each segment is checked against the one before
while its pages are written into the unpacked backup, and SQLite judges the result before it takes the place of the data
file.

Source: point-in-time recovery; D-150 to D-153.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from bunqueue_trio.backup.checking import check_database
from bunqueue_trio.backup.log_naming import Base, SegmentName, sort_out
from bunqueue_trio.backup.naming import believed_at, iso, made_at, newest_first
from bunqueue_trio.backup.object_store import ObjectStore, StoredObject
from bunqueue_trio.backup.packing import unpacked
from bunqueue_trio.backup.patience import Patience
from bunqueue_trio.backup.restoring import Restored, rehearse, restore
from bunqueue_trio.backup.segments import PageWriter, SegmentReader
from bunqueue_trio.backup.shipping import get_base
from bunqueue_trio.errors import BackupError, DamagedBackupError, ObjectStoreError

if TYPE_CHECKING:
    from bunqueue_trio.clock import Clock

Tell = Callable[[str], None]
NOTHING: Final = "There is no change log to restore from"


def _to_nobody(_text: str) -> None:
    pass


class Span(Struct, frozen=True, gc=False):
    """Any moment from ``start`` to ``end``, epoch ms, can be restored. ``gap`` says what is missing behind; None: it is
    simply the end of what was uploaded."""

    generation: str
    start: float
    end: float
    gap: str | None = None


class Plan(Struct, frozen=True, gc=False):
    """A backup, and what to replay over it: all commits up to ``at``, epoch ms; None: all there are."""

    snapshot: str
    base: Base | None = None
    segments: tuple[SegmentName, ...] = ()
    at: float | None = None
    fallback: Plan | None = None
    """The same from an older backup of the same chain, should this one be damaged."""


class Reached(Struct, frozen=True, gc=False):
    """How far a restore has come. ``at`` is when the last commit was that it holds; ``restored`` is None where it was
    a rehearsal."""

    snapshot: str
    at: float
    commit_count: int
    size_bytes: int
    restored: Restored | None = None


class _Stretch(Struct, frozen=True, gc=False):
    """A backup with the segments that follow it without gap. ``begun_at``: when its base was made, as far as the clock
    that says so can be believed."""

    base: Base
    segments: tuple[SegmentName, ...]
    gap: str | None
    begun_at: float

    @property
    def end(self) -> float:
        return max([self.base.at, *(name.until for name in self.segments[-1:])])

    @property
    def is_complete(self) -> bool:
        """Whether the segments come as far as the backup may: to stop before would mix two moments."""
        last = self.segments[-1].last_commit if self.segments else self.base.holds
        return max(last, self.base.holds) >= self.base.reaches


def spans(store: ObjectStore, prefix: str, *, tell: Tell = _to_nobody) -> list[Span]:
    """What can be restored, newest first. *tell* hears of what is damaged and therefore left out.

    Raises:
        BackupError: the bucket fails.
    """
    found: dict[tuple[str, float], Span] = {}
    stretches, damaged = _stretches(store, prefix)
    for text in damaged.values():
        tell(text)
    for stretch in stretches:
        if not stretch.is_complete:
            continue
        key = (stretch.base.generation, stretch.end)
        former = found.get(key)
        start = stretch.base.at if former is None else min(stretch.base.at, former.start)
        found[key] = Span(stretch.base.generation, start, stretch.end, stretch.gap)
    return sorted(found.values(), key=lambda span: span.end, reverse=True)


def plan(store: ObjectStore, prefix: str, at: float | None) -> Plan:
    """How to come to the moment *at*, epoch ms; None: to the newest state that there is.

    Raises:
        BackupError: it cannot be reached; the text says what is missing.
    """
    stretches, damaged = _stretches(store, prefix)
    if at is None:
        return _newest(store, prefix, stretches, damaged)
    try:
        return _at(stretches, at)
    except BackupError as error:
        raise BackupError("; ".join([str(error), *damaged.values()])) from error


def _at(stretches: list[_Stretch], at: float) -> Plan:
    begun = sorted((stretch for stretch in stretches if stretch.base.at <= at), key=lambda stretch: stretch.base.at)
    # One that does not come as far as its backup is of use only to say which segment is missing.
    usable = [stretch for stretch in begun if stretch.is_complete or stretch.gap is not None]
    if not usable:
        first = min((stretch.base.at for stretch in stretches), default=None)
        raise BackupError(NOTHING if first is None else f"The change log begins only at {iso(first)}")
    stretch = usable[-1]
    if at > stretch.end or not stretch.is_complete:
        raise BackupError(stretch.gap or f"The change log ends at {iso(stretch.end)}")
    return _chained([other for other in usable if other.is_complete and at <= other.end], stretch, at)


def _chained(stretches: Iterable[_Stretch], chosen: _Stretch, at: float | None) -> Plan:
    """*chosen*, and behind it what else of its chain leads there."""
    of_its_chain = [stretch for stretch in stretches if stretch.base.generation == chosen.base.generation]
    plan = None
    for stretch in sorted(of_its_chain, key=lambda stretch: (stretch is chosen, stretch.base.at)):
        segments = tuple(name for name in stretch.segments if at is None or name.first_at <= at)
        plan = Plan(stretch.base.snapshot, stretch.base, segments, at, plan)
    assert plan is not None
    return plan


def restore_to(
    store: ObjectStore,
    prefix: str,
    at: float | None,
    database: str,
    patience: Patience,
    clock: Clock,
    *,
    tell: Tell = _to_nobody,
) -> Reached:
    """Replace the data file *database* by what it was at the moment *at*, epoch ms, or leave everything as it is.

    Every commit up to and including that moment is in it, and none after. None: the newest state that there is. *tell*
    hears of a damaged backup that an older one has stood in for.

    Raises:
        BackupError: it cannot be reached, something is damaged, a server uses the file, or the disk is full.
    """

    def reach(chosen: Plan) -> Reached:
        replay = _Replayed(store, prefix, chosen, patience)
        restored = restore(store, chosen.snapshot, database, patience, clock, build=replay.build)
        return Reached(chosen.snapshot, replay.reached_at, replay.count, restored.size_bytes, restored)

    return _first_sound(plan(store, prefix, at), reach, tell)


def rehearse_to(
    store: ObjectStore,
    prefix: str,
    at: float | None,
    database: str,
    patience: Patience,
    clock: Clock,
    *,
    tell: Tell = _to_nobody,
) -> Reached:
    """Everything that `restore_to` does, but for the swap: the data file may be in use, and is not touched.

    Raises:
        BackupError: a restore would fail with the same text.
    """

    def reach(chosen: Plan) -> Reached:
        replay = _Replayed(store, prefix, chosen, patience)
        rehearse(store, chosen.snapshot, database, patience, clock, build=replay.build)
        return Reached(chosen.snapshot, replay.reached_at, replay.count, replay.size_bytes)

    return _first_sound(plan(store, prefix, at), reach, tell)


def _first_sound(chosen: Plan, reach: Callable[[Plan], Reached], tell: Tell) -> Reached:
    try:
        return reach(chosen)
    except DamagedBackupError as error:
        while (fallback := chosen.fallback) is not None:
            chosen = fallback
            with suppress(DamagedBackupError):
                reached = reach(chosen)
                tell(f"{error}; an older backup has taken its place")
                return reached
        raise


class _Replayed:
    """Carries out a plan on the unpacked backup, and knows how far that has come."""

    def __init__(self, store: ObjectStore, prefix: str, chosen: Plan, patience: Patience) -> None:
        self._store = store
        self._chosen = chosen
        self._patience = patience
        snapshot_at = made_at(prefix, chosen.snapshot) if chosen.base is None else chosen.base.at
        self.reached_at, self.count, self.size_bytes = snapshot_at or 0.0, 0, 0

    def build(self, path: str) -> None:
        """Replay over the file *path*."""
        chosen = self._chosen
        if chosen.base is not None and chosen.segments:
            self.reached_at, self.count = _replay(self._store, chosen.base, chosen, path, self._patience)
            check_database(path, self._patience)
        self.size_bytes = os.stat(path).st_size


def _newest(store: ObjectStore, prefix: str, stretches: list[_Stretch], damaged: dict[str, str]) -> Plan:
    newest = next(iter(newest_first(prefix, store.list(prefix))), None)
    stretch = max(stretches, key=lambda stretch: stretch.begun_at, default=None)
    if later := [
        text for generation, text in damaged.items() if stretch is None or generation > stretch.base.generation
    ]:
        raise BackupError("; ".join(later))  # it may be the newest state that there is
    if stretch is None:
        if newest is None:
            raise BackupError("No backups found")
        return Plan(newest.key)
    if not stretch.is_complete and stretch.gap is None:
        # The machine was lost before the log had come as far as the backup.
        return Plan(stretch.base.snapshot, stretch.base)
    if newest is not None and newest.key != stretch.base.snapshot and _is_behind(prefix, stretch, newest):
        return Plan(newest.key)
    if stretch.gap is not None:
        raise BackupError(stretch.gap)
    return _chained([other for other in stretches if other.is_complete and other.end == stretch.end], stretch, None)


def _is_behind(prefix: str, stretch: _Stretch, newest: StoredObject) -> bool:
    """Whether the backup *newest*, which belongs to no chain that goes on, was made after the end of *stretch*."""
    at = believed_at(made_at(prefix, newest.key) or 0.0, newest)
    end = stretch.end if stretch.begun_at == stretch.base.at else stretch.begun_at
    return at > end


def _stretches(store: ObjectStore, prefix: str) -> tuple[list[_Stretch], dict[str, str]]:
    """And by generation, what is wrong with bases that cannot be used."""
    objects = store.list(prefix)
    keys = {item.key for item in objects}
    listing = sort_out(prefix, objects)
    found: list[_Stretch] = []
    damaged: dict[str, str] = {}
    for generation, bases in listing.bases.items():
        for item in bases:
            try:
                base = get_base(store, item.key)
            except DamagedBackupError as error:  # one of them must not keep the others from being of use
                damaged[generation] = str(error)
                continue
            except ObjectStoreError as error:
                if error.status != 404:
                    raise
                continue  # the retention has taken it since
            if base.snapshot in keys and base.generation == generation:
                found.append(_stretch(base, listing.segments.get(generation, []), believed_at(base.at, item)))
    return found, damaged


def _stretch(base: Base, names: list[SegmentName], begun_at: float) -> _Stretch:
    wanted = [name for name in names if name.number >= base.segment]
    segments: list[SegmentName] = []
    for name in wanted:
        number = base.segment + len(segments)
        if name.number < number:
            return _Stretch(base, tuple(segments), f"The change log has segment {name.key} twice", begun_at)
        if name.number > number:
            before = segments[-1].until if segments else base.at
            gap = (
                f"The change log has a gap: segment {number} of {base.generation}, between {iso(before)} and"
                f" {iso(name.first_at)}, is missing"
            )
            return _Stretch(base, tuple(segments), gap, begun_at)
        segments.append(name)
    return _Stretch(base, tuple(segments), None, begun_at)


def _replay(store: ObjectStore, base: Base, chosen: Plan, path: str, patience: Patience) -> tuple[float, int]:
    """Write the commits into the file; when the last one was, and how many were written."""
    try:
        writer = PageWriter(path)
        try:
            replay = _Replay(base, chosen.at, writer)
            for name in chosen.segments:
                patience.breathe()
                replay.add(name, store, patience)
            replay.end()
            writer.finish()
        finally:
            writer.close()
    except OSError as error:
        raise BackupError(f"{path}: {error.strerror}") from error
    return replay.reached_at, replay.count


class _Replay:
    """Takes segments in their order, checks the chain, applies what is wanted."""

    def __init__(self, base: Base, at: float | None, writer: PageWriter) -> None:
        self._base = base
        self._at = at
        self._writer = writer
        self._previous: str | None = None
        self._last: int | None = None
        self.reached_at = base.at
        self.count = 0

    def add(self, name: SegmentName, store: ObjectStore, patience: Patience) -> None:
        reader = SegmentReader(unpacked(store.get(name.key), is_compressed=True), name.key)
        head = reader.head
        if (head.generation, head.number) != (self._base.generation, name.number):
            raise DamagedBackupError(f"Change log segment {name.key} belongs elsewhere")
        if self._previous is not None and head.previous != self._previous:
            raise DamagedBackupError(f"Change log segment {name.key} does not follow the one before")
        if self._last is None and head.first > self._base.holds + 1:
            raise DamagedBackupError(f"Change log segment {name.key} begins after the backup {self._base.snapshot}")
        expected = head.first if self._last is None else self._last + 1
        for commit in reader.commits():
            patience.breathe()
            if commit.number != expected:
                raise DamagedBackupError(f"Change log segment {name.key} lacks commit {expected}")
            self._last, expected = commit.number, expected + 1
            is_wanted = self._at is None or commit.wall_ms <= self._at
            if is_wanted and commit.number > self._base.holds:
                self._writer.apply(reader, commit)
                self.reached_at = max(self.reached_at, commit.wall_ms)
                self.count += 1
        self._previous = reader.checksum

    def end(self) -> None:
        """All segments have been added: what their names have promised must have been in them."""
        if (self._last or 0) < self._base.reaches:
            raise DamagedBackupError(f"The change log lacks commit {(self._last or 0) + 1} of {self._base.generation}")
