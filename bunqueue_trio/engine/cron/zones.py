"""Time zones by name, and where their offsets change. Instants are whole seconds of the epoch; walls have no tzinfo.

The data are those of the installed tzdata package, the same on every machine (D-026). They are read as modules are:
once, at first use.
"""

import re
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from functools import cache
from importlib.resources import files
from typing import Final
from zoneinfo import ZoneInfo

import msgspec
import tzdata

from bunqueue_trio.errors import ValidationError

DAY_S: Final = 86_400
SHOWN_LENGTH: Final = 40
NO_ZONES: Final = frozenset({"Factory"})  # a placeholder for machines without a zone
FIXED: Final = re.compile(r"([+-])([01][0-9]|2[0-3])(?::?([0-5][0-9]))?")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC).replace(tzinfo=None)
_SECOND: Final = timedelta(seconds=1)


class OffsetChange(msgspec.Struct, frozen=True):
    """A moment at which a zone's offset from UTC changes.

    A larger offset makes a gap: walls that no instant has. A smaller one makes an overlap: walls of two instants.
    """

    at_s: int
    before_s: int
    after_s: int

    @property
    def is_gap(self) -> bool:
        return self.after_s > self.before_s

    @property
    def length_s(self) -> int:
        """How long the gap or the overlap is."""
        return abs(self.after_s - self.before_s)

    @property
    def first_wall(self) -> datetime:
        """Where the gap or the overlap begins on the wall clock."""
        return _EPOCH + _SECOND * (self.at_s + min(self.before_s, self.after_s))

    @property
    def end_wall(self) -> datetime:
        """The first wall behind it."""
        return _EPOCH + _SECOND * (self.at_s + max(self.before_s, self.after_s))


def find_zone(name: str) -> tzinfo:
    """The zone of that name, in any case, or of a fixed offset ``±HH:MM``.

    Raises:
        ValidationError: there is no such zone; the text names it.

    Cost: a dict lookup; a new name reads one small file.
    Source: scheduling, "Next firing, zones, daylight saving".
    """
    fixed = FIXED.fullmatch(name)
    if fixed is not None:
        sign, hours, minutes = fixed.groups("0")
        offset = timedelta(hours=int(hours), minutes=int(minutes))
        return timezone(-offset if sign == "-" else offset)
    official = official_names().get(name.lower()) if name.isascii() else None
    if official is None:
        raise ValidationError(f"Invalid timezone: '{name[:SHOWN_LENGTH]}' is no IANA name and no offset like +05:30")
    return _load(official)


@cache  # bounded by the file
def official_names() -> dict[str, str]:
    """The zones that `find_zone` knows, by their names in lower case. Cost: reads a file once."""
    names = files(tzdata).joinpath("zones").read_text(encoding="ascii").split()
    return {name.lower(): name for name in names if name not in NO_ZONES}


@cache  # bounded by the official names
def _load(official: str) -> ZoneInfo:
    with files(tzdata).joinpath("zoneinfo", *official.split("/")).open("rb") as data:
        return ZoneInfo.from_file(data, key=official)


def wall_at(zone: tzinfo, instant_s: int) -> datetime:
    """What the wall clock shows; ``fold`` is 1 in the second pass of an overlap."""
    return datetime.fromtimestamp(instant_s, zone).replace(tzinfo=None)


def instant_of(zone: tzinfo, wall: datetime, *, second_pass: bool = False) -> int:
    """The instant of a wall clock time.

    A wall in a gap is taken with the offset before it, that is, moved forward by the length of the gap.
    """
    return (wall - _EPOCH) // _SECOND - _offset_of(zone, wall, fold=int(second_pass))


def change_around(zone: tzinfo, wall: datetime) -> OffsetChange | None:
    """The gap or overlap that *wall* lies in, or None where walls and instants agree."""
    offsets = _offset_of(zone, wall, fold=0), _offset_of(zone, wall, fold=1)
    if offsets[0] == offsets[1]:
        return None
    naive_s = (wall - _EPOCH) // _SECOND
    return _find_change(zone, naive_s - max(offsets), naive_s - min(offsets))


def change_between(zone: tzinfo, since_s: int, until_s: int) -> OffsetChange | None:
    """The change after *since_s* and not after *until_s*, which lie less than two changes apart."""
    if _offset_at(zone, since_s) == _offset_at(zone, until_s):
        return None
    return _find_change(zone, since_s, until_s)


def _find_change(zone: tzinfo, low_s: int, high_s: int) -> OffsetChange:
    before_s, after_s = _offset_at(zone, low_s), _offset_at(zone, high_s)
    while high_s - low_s > 1:
        middle_s = (low_s + high_s) // 2
        if _offset_at(zone, middle_s) == before_s:
            low_s = middle_s
        else:
            high_s = middle_s
    return OffsetChange(high_s, before_s, after_s)


def _offset_at(zone: tzinfo, instant_s: int) -> int:
    return _seconds(datetime.fromtimestamp(instant_s, zone).utcoffset())


def _offset_of(zone: tzinfo, wall: datetime, *, fold: int) -> int:
    return _seconds(wall.replace(tzinfo=zone, fold=fold).utcoffset())


def _seconds(offset: timedelta | None) -> int:
    assert offset is not None  # both kinds of zone always have one
    return offset // _SECOND
