"""The next wall-clock second that an expression names: the only user of croniter. Knows no zones.

croniter walks the calendar: months, days of the month, weekdays. What its dialect lacks (``LW``, ``W`` in a list, ``#``
beside other days, either of two full lists) it is not asked for; the day rule sifts what it finds (D-026).
"""

from bisect import bisect_left
from calendar import isleap
from collections.abc import Sequence
from datetime import date, datetime, time, timedelta
from functools import cached_property
from typing import Final

from croniter import CroniterBadDateError, croniter

from bunqueue_trio.engine.cron.days import DayRule
from bunqueue_trio.engine.cron.dialect import Expression

POSSIBLE_YEARS: Final = range(1_970, 3_000)
ONE_DAY: Final = timedelta(days=1)
MIDNIGHT: Final = time()
# Any start does; it is given anew for each search, so that croniter never reads the clock.
NO_TIME: Final = datetime.combine(date(2000, 1, 1), MIDNIGHT)


class WallSearch:
    """Finds what an expression names on the wall clock.

    A year's calendar depends only on the weekday of its first day and on its length. A kind of year without a match is
    remembered, so that at most 14 whole years are searched in vain, however far away the next match is.
    """

    def __init__(self, expression: Expression) -> None:
        self._times = _TimesOfDay(expression)
        self._days = expression.days
        self._months = expression.months
        self._years = None if expression.years is None else sorted(expression.years.intersection(POSSIBLE_YEARS))
        self._barren: set[tuple[int, bool]] = set()
        self._expression = expression

    @cached_property
    def _calendar(self) -> croniter:
        # Three times as dear as all the rest, and not even looked at by what runs every day.
        return _plain_calendar(self._expression)

    def first(self, start: datetime) -> datetime | None:
        """The earliest match at or after *start*, a whole second without zone. None if there is none before 3000.

        Cost: 5 µs if *start*'s day has one, 0.1 ms otherwise; at worst a look at each day of 14 years.
        """
        for year in self._years_from(start.year):
            new_year = datetime.combine(date(year, 1, 1), MIDNIGHT)
            kind = (new_year.weekday(), isleap(year))
            if kind in self._barren:
                continue
            found = self._first_within_year(max(start, new_year))
            if found is not None:
                return found
            if start <= new_year:
                self._barren.add(kind)
        return None

    def _years_from(self, first: int) -> Sequence[int]:
        if self._years is None:
            return range(first, POSSIBLE_YEARS.stop)
        return self._years[bisect_left(self._years, first) :]

    def _first_within_year(self, start: datetime) -> datetime | None:
        today = start.date()
        if self._names(today):
            found = self._times.first_from(start.time())
            if found is not None:
                return datetime.combine(today, found)
        day = self._later_day(today)
        return None if day is None else datetime.combine(day, self._times.earliest)

    def _names(self, day: date) -> bool:
        return day.month in self._months and self._days.matches(day)

    def _later_day(self, today: date) -> date | None:
        """The next day of this year that the expression names."""
        tomorrow = today + ONE_DAY
        if tomorrow.year == today.year and self._names(tomorrow):
            return tomorrow  # as it is with most patterns; croniter takes 30 times as long to say so
        try:
            found: datetime = self._calendar.get_next(datetime, datetime.combine(today, MIDNIGHT), update_current=False)
        except CroniterBadDateError:
            return None
        day = found.date()
        while day.year == today.year:
            if self._names(day):
                return day
            day += ONE_DAY
        return None


class _TimesOfDay:
    """The seconds of a day that an expression names."""

    def __init__(self, expression: Expression) -> None:
        self._hours = sorted(expression.hours)
        self._minutes = sorted(expression.minutes)
        self._seconds = sorted(expression.seconds)
        self.earliest = time(self._hours[0], self._minutes[0], self._seconds[0])

    def first_from(self, start: time) -> time | None:
        """The earliest one at or after *start*."""
        hour = _at_least(self._hours, start.hour)
        if hour == start.hour:
            minute = _at_least(self._minutes, start.minute)
            if minute == start.minute:
                second = _at_least(self._seconds, start.second)
                if second is not None:
                    return time(hour, minute, second)
                minute = _at_least(self._minutes, start.minute + 1)
            if minute is not None:
                return time(hour, minute, self._seconds[0])
            hour = _at_least(self._hours, start.hour + 1)
        return None if hour is None else self.earliest.replace(hour=hour)


def _at_least(values: list[int], low: int) -> int | None:
    index = bisect_left(values, low)
    return values[index] if index < len(values) else None


def _plain_calendar(expression: Expression) -> croniter:
    """The midnights of at least those days that the expression names, any year."""
    numbers, weekdays = _plain_days(expression.days)
    text = f"0 0 {numbers} {_listed(expression.months)} {weekdays}"
    # Farther than a year it need not look: the years are counted here.
    return croniter(text, NO_TIME, datetime, max_years_between_matches=1)


def _plain_days(rule: DayRule) -> tuple[str, str]:
    if rule.month_days is not None and rule.weekdays is None and rule.month_days.has_numbers_only:
        return _listed(rule.month_days.numbers), "*"
    if rule.weekdays is not None and rule.month_days is None and rule.weekdays.has_plain_days_only:
        return "*", _listed(rule.weekdays.every)
    return "*", "*"


def _listed(numbers: frozenset[int]) -> str:
    return ",".join(map(str, sorted(numbers)))
