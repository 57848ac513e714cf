"""Cron expressions: text in, sets of values out. Knows neither dates nor zones.

The dialect is that of the reference server: seconds and years are optional, ranges do not wrap around, a step needs a
star or a range, and the day fields know ``L``, ``W``, ``#`` and a leading ``+``.
"""

import re
from typing import Final, NoReturn

import msgspec

from bunqueue_trio.engine.cron.days import DayRule, MonthDays, Weekdays
from bunqueue_trio.errors import ValidationError

PREFIX: Final = "Invalid cron expression: "
MAX_LENGTH: Final = 4_096  # lists of every second, minute, hour and day, and of 700 years
SHOWN_LENGTH: Final = 40  # of a client's text inside an error

MACROS: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
MONTH_NAMES: Final = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
WEEKDAY_NAMES: Final = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
LAST: Final = 0  # the place in the month that L stands for

NUMBER: Final = re.compile(r"0*[0-9]{1,4}")
NEAR: Final = re.compile(r"([0-9]+)W")
LETTERS: Final = re.compile(r"[0-9A-Z*,/#+-]+")


class Field(msgspec.Struct, frozen=True):
    """One field of an expression: its bounds, and how many values it has for steps."""

    name: str
    lowest: int
    highest: int
    max_step: int
    names: dict[str, int] = {}


SECOND: Final = Field("second", 0, 59, 60)
MINUTE: Final = Field("minute", 0, 59, 60)
HOUR: Final = Field("hour", 0, 23, 24)
DAY: Final = Field("day of month", 1, 31, 31)
MONTH: Final = Field("month", 1, 12, 12, {name: number for number, name in enumerate(MONTH_NAMES, 1)})
WEEKDAY: Final = Field("day of week", 0, 7, 7, {name: number for number, name in enumerate(WEEKDAY_NAMES)})
YEAR: Final = Field("year", 1, 9_999, 9_999)


class Expression(msgspec.Struct, frozen=True):
    """What an expression names: a second matches if each field holds its part. ``years`` is None for any year."""

    seconds: frozenset[int]
    minutes: frozenset[int]
    hours: frozenset[int]
    days: DayRule
    months: frozenset[int]
    years: frozenset[int] | None

    @property
    def has_every_hour(self) -> bool:
        """True if the hour field leaves out no hour: such a pattern means a rhythm, not a time of day (SD-5)."""
        return len(self.hours) == 24


def parse(text: str) -> Expression:
    """Read an expression of 5, 6 or 7 fields, or a macro.

    Raises:
        ValidationError: the text is no expression: ``Invalid cron expression: `` and the reason.

    Cost: linear in the text, which is bounded.
    Source: scheduling, "Expression dialect"; SD-3, SD-4.
    """
    if len(text) > MAX_LENGTH:
        _refuse(f"longer than {MAX_LENGTH} characters")
    parts = MACROS.get(text.strip().lower(), text).split()
    if not 5 <= len(parts) <= 7:
        _refuse(f"5, 6 or 7 fields are needed, not {len(parts)}")
    if len(parts) == 5:
        parts.insert(0, "0")
    second, minute, hour, day, month, weekday, year = [_normal(part) for part in [*parts, "*"][:7]]
    both_needed = weekday.startswith("+")
    return Expression(
        seconds=_values(SECOND, second),
        minutes=_values(MINUTE, minute),
        hours=_values(HOUR, hour),
        months=_values(MONTH, month),
        days=DayRule(_month_days(day), _weekdays(weekday.removeprefix("+")), both_needed),
        years=None if year == "*" else _values(YEAR, year),
    )


def _normal(part: str) -> str:
    # "?" is another spelling of "*" wherever that may stand, and so it frees a day field (SD-4).
    normal = part.replace("?", "*").upper()
    if not part.isascii() or not LETTERS.fullmatch(normal):
        _refuse(f"{_shown(part)} has characters that no field may have")
    return normal


def _values(field: Field, text: str) -> frozenset[int]:
    return frozenset().union(*(_item(field, item) for item in text.split(",")))


def _item(field: Field, item: str) -> range:
    """The values of ``*``, ``N``, ``A-B``, ``A-B/S`` or ``*/S``."""
    span, has_step, step_text = item.partition("/")
    step = _step(field, item, step_text) if has_step else 1
    if span == "*":
        return _starred(field, item, step, has_step=bool(has_step))
    first, has_range, last = span.partition("-")
    low = _number(field, first)
    if not has_range:
        if has_step:
            _refuse(f"{field.name}: the step of {_shown(item)} needs a star or a range before it")
        return range(low, low + 1)
    # The week may end with its Sunday, although it also starts with it.
    high = 7 if field is WEEKDAY and last == WEEKDAY_NAMES[0] else _number(field, last)
    if low > high:
        _refuse(f"{field.name}: the range {_shown(item)} runs backwards")
    return range(low, high + 1, step)


def _starred(field: Field, item: str, step: int, *, has_step: bool) -> range:
    if field is YEAR and has_step:
        _refuse(f"{field.name}: the step of {_shown(item)} needs a range before it")
    return range(field.lowest, field.highest + 1, step)


def _step(field: Field, item: str, text: str) -> int:
    if not NUMBER.fullmatch(text) or not 1 <= int(text) <= field.max_step:
        _refuse(f"{field.name}: the step of {_shown(item)} must be 1 to {field.max_step}")
    return int(text)


def _number(field: Field, text: str) -> int:
    if text in field.names:
        return field.names[text]
    if not NUMBER.fullmatch(text):
        _refuse(f"{field.name}: {_shown(text)} is not understood")
    number = int(text)
    if not field.lowest <= number <= field.highest:
        _refuse(f"{field.name}: {_shown(text)} is not in {field.lowest}-{field.highest}")
    return number


def _month_days(text: str) -> MonthDays | None:
    if text == "*":
        return None
    if text == "LW":
        return MonthDays(has_last_workday=True)
    numbers: set[int] = set()
    near: set[int] = set()
    has_last = False
    for item in text.split(","):
        if item == "L":
            has_last = True
        elif workday := NEAR.fullmatch(item):
            near.add(_number(DAY, workday[1]))
        else:
            numbers.update(_item(DAY, item))
    return MonthDays(numbers=frozenset(numbers), has_last=has_last, workdays_near=frozenset(near))


def _weekdays(text: str) -> Weekdays | None:
    if text == "*":
        return None
    every: set[int] = set()
    nth: set[tuple[int, int]] = set()
    last: set[int] = set()
    for item in text.split(","):
        days, place = _place(item)
        named = {day % 7 for day in _item(WEEKDAY, days)}
        if place is None:
            every |= named
        elif place == LAST:
            last |= named
        else:
            nth |= {(day, place) for day in named}
    return Weekdays(frozenset(every), frozenset(nth), frozenset(last))


def _place(item: str) -> tuple[str, int | None]:
    """Split ``d#n``, ``d#L`` and ``dL`` into the days and their place in the month; None is every place."""
    if "#" not in item and not item.endswith("L"):
        return item, None
    days, _, place = item.partition("#") if "#" in item else (item[:-1], "", "L")
    if days in ("", "*"):
        _refuse(f"{WEEKDAY.name}: {_shown(item)} needs a day")
    if place == "L":
        return days, LAST
    if not NUMBER.fullmatch(place) or not 1 <= int(place) <= 5:
        _refuse(f"{WEEKDAY.name}: the place in {_shown(item)} must be 1 to 5 or L")
    return days, int(place)


def _shown(text: str) -> str:
    return f"'{text[:SHOWN_LENGTH]}'"


def _refuse(reason: str) -> NoReturn:
    raise ValidationError(PREFIX + reason)
