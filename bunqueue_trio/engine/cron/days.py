"""Which days a pattern names: days of the month, days of the week, and how the two combine.

Weekdays count from Sunday = 0, as in expressions.
"""

from calendar import isleap
from datetime import date

import msgspec

SUNDAY = 0
MONDAY = 1
FRIDAY = 5
SATURDAY = 6
MONTH_LENGTHS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


def weekday_of(day: date) -> int:
    """0 (Sunday) to 6 (Saturday)."""
    return day.isoweekday() % 7


def month_length(day: date) -> int:
    """How many days the month of *day* has."""
    return 29 if day.month == 2 and isleap(day.year) else MONTH_LENGTHS[day.month - 1]


class MonthDays(msgspec.Struct, frozen=True):
    """A restricted day-of-month field: a day matches if any of these names it.

    ``workdays_near`` holds the n of each ``nW``: the Monday to Friday nearest to day n, inside the month.
    """

    numbers: frozenset[int] = frozenset()
    has_last: bool = False
    has_last_workday: bool = False
    workdays_near: frozenset[int] = frozenset()

    @property
    def has_numbers_only(self) -> bool:
        return not (self.has_last or self.has_last_workday or self.workdays_near)

    def matches(self, day: date) -> bool:
        if day.day in self.numbers:
            return True
        last = month_length(day)
        if self.has_last and day.day == last:
            return True
        if not self.workdays_near and not self.has_last_workday:
            return False
        weekday = weekday_of(day)
        if weekday in (SUNDAY, SATURDAY):
            return False
        if self.has_last_workday and (day.day == last or (weekday == FRIDAY and day.day >= last - 2)):
            return True
        return not self.workdays_near.isdisjoint(_stood_for(day.day, weekday, last))


def _stood_for(number: int, weekday: int, last: int) -> list[int]:
    """The days of a month for which ``nW`` names its workday *number*: itself, and weekends next to it.

    Source: scheduling, "Expression dialect": ``nW``.
    """
    days = [number]
    if weekday == MONDAY:
        days.append(number - 1)  # Sunday; 0 is the last day of the month before, which nobody can name
        if number == 3:
            days.append(1)  # a Saturday that has no Friday before it in its month
    elif weekday == FRIDAY:
        if number < last:
            days.append(number + 1)
        if number == last - 2:
            days.append(last)  # a Sunday that has no Monday behind it in its month
    return days


class Weekdays(msgspec.Struct, frozen=True):
    """A restricted day-of-week field: a day matches if any of these names it.

    Shape: nth = {(weekday, n)}, the n-th such weekday of a month.
    """

    every: frozenset[int] = frozenset()
    nth: frozenset[tuple[int, int]] = frozenset()
    last: frozenset[int] = frozenset()

    @property
    def has_plain_days_only(self) -> bool:
        return not (self.nth or self.last)

    def matches(self, day: date) -> bool:
        weekday = weekday_of(day)
        return (
            weekday in self.every
            or (weekday, (day.day + 6) // 7) in self.nth
            or (weekday in self.last and day.day > month_length(day) - 7)
        )


class DayRule(msgspec.Struct, frozen=True):
    """The two day fields of a pattern. None is a free field, written ``*`` or ``?``.

    Both free: every day. One free: the other decides. Both restricted: either of them, or with ``both_needed`` (the
    prefix ``+``) both.

    Source: scheduling, "Day rule"; SD-4.
    """

    month_days: MonthDays | None
    weekdays: Weekdays | None
    both_needed: bool = False

    def matches(self, day: date) -> bool:
        if self.month_days is None:
            return self.weekdays is None or self.weekdays.matches(day)
        if self.weekdays is None:
            return self.month_days.matches(day)
        if self.both_needed:
            return self.month_days.matches(day) and self.weekdays.matches(day)
        return self.month_days.matches(day) or self.weekdays.matches(day)
