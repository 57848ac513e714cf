"""Which days match: the special forms at the edges of months, and how the two fields combine."""

from calendar import monthrange
from datetime import date

import pytest

from bunqueue_trio.engine.cron.days import DayRule, MonthDays, Weekdays

JUNE_2026 = (2026, 6)  # begins on a Monday, 30 days: the last is a Tuesday
AUGUST_2026 = (2026, 8)  # begins on a Saturday, 31 days: the last is a Monday
MAY_2026 = (2026, 5)  # begins on a Friday, 31 days: the last is a Sunday
NOVEMBER_2025 = (2025, 11)  # begins on a Saturday, 30 days: the last is a Sunday
APRIL_2027 = (2027, 4)  # 30 days: the last is a Friday
FEBRUARY_2026 = (2026, 2)  # begins on a Sunday, 28 days: the last is a Saturday
FEBRUARY_2028 = (2028, 2)  # begins on a Tuesday, 29 days


def matching(rule: MonthDays | Weekdays | DayRule, month: tuple[int, int]) -> list[int]:
    days = (date(*month, number) for number in range(1, monthrange(*month)[1] + 1))
    return [day.day for day in days if rule.matches(day)]


def near(*numbers: int) -> MonthDays:
    return MonthDays(workdays_near=frozenset(numbers))


@pytest.mark.parametrize(
    ("month", "last", "last_workday"),
    [
        (JUNE_2026, 30, 30),
        (MAY_2026, 31, 29),
        (NOVEMBER_2025, 30, 28),
        (FEBRUARY_2026, 28, 27),
        (FEBRUARY_2028, 29, 29),
        (AUGUST_2026, 31, 31),
    ],
)
def test_the_last_day_and_the_last_workday(month, last, last_workday):
    assert matching(MonthDays(has_last=True), month) == [last]
    assert matching(MonthDays(has_last_workday=True), month) == [last_workday]


@pytest.mark.parametrize(
    ("number", "month", "workday"),
    [
        (10, JUNE_2026, 10),
        (13, JUNE_2026, 12),  # a Saturday: the Friday before
        (14, JUNE_2026, 15),  # a Sunday: the Monday after
        (1, AUGUST_2026, 3),  # a Saturday without a Friday before it
        (2, AUGUST_2026, 3),
        (1, FEBRUARY_2026, 2),
        (31, MAY_2026, 29),  # a Sunday without a Monday behind it
        (30, MAY_2026, 29),
        (30, NOVEMBER_2025, 28),
        (30, APRIL_2027, 30),
        (28, FEBRUARY_2026, 27),
        (29, FEBRUARY_2028, 29),
    ],
)
def test_the_workday_nearest_to_a_day(number, month, workday):
    assert matching(near(number), month) == [workday]


@pytest.mark.parametrize(
    ("number", "month"),
    [(29, FEBRUARY_2026), (30, FEBRUARY_2028), (31, JUNE_2026), (31, NOVEMBER_2025), (31, APRIL_2027)],
)
def test_a_month_without_the_day_has_no_workday_near_it(number, month):
    assert matching(near(number), month) == []


def test_items_of_a_day_field_are_alternatives():
    days = MonthDays(frozenset({1, 31}), has_last=True, workdays_near=frozenset({13, 20}))

    assert matching(days, JUNE_2026) == [1, 12, 19, 30]


def test_a_weekday_may_have_a_place_in_the_month():
    assert matching(Weekdays(every=frozenset({1})), JUNE_2026) == [1, 8, 15, 22, 29]
    assert matching(Weekdays(nth=frozenset({(1, 1), (1, 5)})), JUNE_2026) == [1, 29]
    assert matching(Weekdays(nth=frozenset({(3, 5)})), JUNE_2026) == []
    assert matching(Weekdays(last=frozenset({1, 3})), JUNE_2026) == [24, 29]


def test_both_fields_free_match_every_day():
    assert len(matching(DayRule(None, None), JUNE_2026)) == 30


def test_a_free_field_leaves_the_other_to_decide():
    assert matching(DayRule(MonthDays(frozenset({13})), None), JUNE_2026) == [13]
    assert matching(DayRule(None, Weekdays(frozenset({5}))), JUNE_2026) == [5, 12, 19, 26]


def test_two_restricted_fields_are_alternatives():
    assert matching(DayRule(MonthDays(frozenset({13})), Weekdays(frozenset({5}))), JUNE_2026) == [5, 12, 13, 19, 26]


def test_both_may_be_asked_for():
    rule = DayRule(MonthDays(frozenset(range(8, 20))), Weekdays(frozenset({5})), both_needed=True)

    assert matching(rule, JUNE_2026) == [12, 19]


def test_plain_fields_are_told_from_special_ones():
    assert MonthDays(frozenset({1})).has_numbers_only
    assert not any(
        one.has_numbers_only for one in (MonthDays(has_last=True), MonthDays(has_last_workday=True), near(1))
    )
    assert Weekdays(frozenset({1})).has_plain_days_only
    assert not Weekdays(nth=frozenset({(1, 1)})).has_plain_days_only
    assert not Weekdays(last=frozenset({1})).has_plain_days_only
