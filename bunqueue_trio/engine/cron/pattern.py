"""A cron expression in a zone: the instants at which it fires.

The instants of a pattern are
- those of every matching wall clock time, in the first pass where an overlap has two;
- of every gap, the first matching wall clock time in it, moved forward by the length of the gap: a run that daylight
  saving takes away is made up for, once;
- for patterns of every hour also the second pass of an overlap: a rhythm must not pause for an hour (SD-5).
The next run is the earliest of them that lies strictly later. Since it is defined by a set of instants and not by a
walk along the wall clock, asking again, from anywhere, skips and doubles nothing (D-026).
"""

from datetime import datetime, tzinfo
from typing import Final

from bunqueue_trio.engine.cron.dialect import Expression
from bunqueue_trio.engine.cron.search import WallSearch
from bunqueue_trio.engine.cron.zones import (
    DAY_S,
    OffsetChange,
    change_around,
    change_between,
    instant_of,
    wall_at,
)

END_S: Final = 32_503_680_000  # 3000-01-01: nothing fires from here on


class Pattern:
    """An expression in a zone.

    Source: scheduling, "Next firing, zones, daylight saving"; SD-5; R150, R151.
    """

    def __init__(self, expression: Expression, zone: tzinfo) -> None:
        self._zone = zone
        self._search = WallSearch(expression)
        self._has_every_hour = expression.has_every_hour
        # The last question and its answer, which holds for every moment between the two: crons that share a pattern
        # come due together, and each asks the same.
        self._asked_s, self._found_s = END_S, END_S

    def next_run(self, after_ms: float) -> float | None:
        """The first instant strictly later than *after_ms*, epoch ms, a whole second; None if there is none.

        Moments before 1970 count as 1970.

        Cost: 0.1 ms, next to nothing when asked again; at most some 15 ms for what fires rarely or never.
        """
        start_s = max(0, int(after_ms // 1_000)) + 1
        if start_s >= END_S:
            return None
        if not self._asked_s <= start_s <= self._found_s:
            found = _earliest(self._from_gap_behind(start_s), self._from(start_s))
            self._asked_s, self._found_s = start_s, END_S if found is None else found
        return None if self._found_s >= END_S else self._found_s * 1_000.0

    def first_run(self, now_ms: float) -> float | None:
        """When a cron that is made at *now_ms* fires first."""
        return self.next_run(now_ms)

    def run_after(self, due_ms: float, now_ms: float) -> float | None:
        """The run that follows the one due at *due_ms*, decided at *now_ms*: later than both."""
        return self.next_run(max(due_ms, now_ms))

    def rearmed(self, due_ms: float, now_ms: float) -> float | None:
        """The run to wait for after the wall clock was set to *now_ms*: as due, or sooner if it was set back."""
        return _earliest_ms(due_ms, self.next_run(now_ms))

    def _from(self, start_s: int) -> int | None:
        wall = wall_at(self._zone, start_s)
        overlap = change_around(self._zone, wall)  # no gap: this wall comes from an instant
        if overlap is None:
            return self._from_wall(wall)
        if wall.fold == 0:
            return self._from_first_pass(wall, overlap)
        return self._from_second_pass(wall.replace(fold=0), overlap)

    def _from_wall(self, start: datetime) -> int | None:
        """The instant of the first match at or after *start*, which lies in no second pass."""
        match = self._search.first(start)
        if match is None:
            return None
        instant_s = instant_of(self._zone, match)
        change = change_around(self._zone, match)
        if change is None or not change.is_gap:
            return instant_s
        # Where a gap is shorter than an hour, a match behind it may come before the one that was moved.
        return _earliest(instant_s, self._from_wall(change.end_wall))

    def _from_first_pass(self, wall: datetime, overlap: OffsetChange) -> int | None:
        ahead_s = self._from_wall(wall)
        return _earliest(ahead_s, self._second_pass_match(overlap.first_wall, overlap))

    def _from_second_pass(self, wall: datetime, overlap: OffsetChange) -> int | None:
        repeated_s = self._second_pass_match(wall, overlap)
        return self._from_wall(overlap.end_wall) if repeated_s is None else repeated_s

    def _second_pass_match(self, start: datetime, overlap: OffsetChange) -> int | None:
        if not self._has_every_hour:
            return None
        match = self._search.first(start)
        if match is None or match >= overlap.end_wall:
            return None
        return instant_of(self._zone, match, second_pass=True)

    def _from_gap_behind(self, start_s: int) -> int | None:
        """The run moved out of a gap that the clock has passed, if it is still to come."""
        gap = change_between(self._zone, start_s - DAY_S, start_s)  # no zone ever skipped more than a day
        if gap is None or not gap.is_gap or start_s >= gap.at_s + gap.length_s:
            return None
        match = self._search.first(gap.first_wall)
        if match is None or match >= gap.end_wall:
            return None
        moved_s = instant_of(self._zone, match)
        return moved_s if moved_s >= start_s else None


def _earliest(one_s: int | None, other_s: int | None) -> int | None:
    if one_s is None or other_s is None:
        return other_s if one_s is None else one_s
    return min(one_s, other_s)


def _earliest_ms(due_ms: float, next_ms: float | None) -> float:
    return due_ms if next_ms is None else min(due_ms, next_ms)
