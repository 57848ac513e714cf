"""Cron expressions: each form of the dialect, and each refusal."""

import pytest

from bunqueue_trio.engine.cron.days import DayRule, MonthDays, Weekdays
from bunqueue_trio.engine.cron.dialect import MACROS, MAX_LENGTH, PREFIX, parse
from bunqueue_trio.errors import ValidationError


def minutes(text: str) -> list[int]:
    return sorted(parse(f"{text} * * * *").minutes)


def month_days(text: str) -> MonthDays | None:
    return parse(f"0 0 {text} * *").days.month_days


def weekdays(text: str) -> Weekdays | None:
    return parse(f"0 0 * * {text}").days.weekdays


# layout


def test_five_fields_mean_second_zero_of_any_year():
    found = parse("1 2 3 4 5")

    assert (found.seconds, found.minutes, found.hours, found.months) == ({0}, {1}, {2}, {4})
    assert found.days == DayRule(MonthDays(frozenset({3})), Weekdays(frozenset({5})))
    assert found.years is None


def test_six_fields_begin_with_the_second():
    found = parse("6 1 2 3 4 5")

    assert (found.seconds, found.minutes, found.hours, found.months) == ({6}, {1}, {2}, {4})
    assert found.years is None


def test_seven_fields_end_with_the_year():
    found = parse("6 1 2 3 4 5 2027,2030-2031")

    assert (found.seconds, found.minutes) == ({6}, {1})
    assert found.years == {2027, 2030, 2031}


@pytest.mark.parametrize("year", ["*", "?"])
def test_a_free_year_is_any_year(year):
    assert parse(f"* * * * * * {year}").years is None


def test_any_white_space_parts_fields():
    assert parse("\t1  2\n3 4\u00a05 ") == parse("1 2 3 4 5")


@pytest.mark.parametrize("text", ["", " ", "*", "* * * *", "* * * * * * * *", "2026-01-15T10:30:00", "@", "@every 5s"])
def test_another_number_of_fields_is_refused(text):
    with pytest.raises(ValidationError, match=rf"^{PREFIX}5, 6 or 7 fields are needed, not {len(text.split())}$"):
        parse(text)


def test_letters_may_have_any_case():
    assert parse("0 0 l jan,Feb fri#l") == parse("0 0 L JAN,FEB FRI#L")


def test_the_longest_expression_is_bounded():
    text = "0," * MAX_LENGTH
    longest = f"{text[: MAX_LENGTH - 9]}0 * * * *"

    assert len(longest) == MAX_LENGTH
    assert parse(longest).minutes == {0}
    with pytest.raises(ValidationError, match=f"^{PREFIX}longer than 4096 characters$"):
        parse(longest + " ")


# macros


@pytest.mark.parametrize(("name", "meaning"), MACROS.items())
def test_macros_stand_for_expressions(name, meaning):
    assert parse(name) == parse(f"  {name.upper()} ") == parse(meaning)


def test_all_promised_macros_are_there():
    assert set(MACROS) == {"@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly"}


@pytest.mark.parametrize("text", ["@reboot", "@Reboot", "@minutely", "@dailyx"])
def test_other_macros_are_refused(text):
    with pytest.raises(ValidationError, match=f"^{PREFIX}5, 6 or 7 fields are needed, not 1$"):
        parse(text)


# items


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("*", list(range(60))),
        ("?", list(range(60))),
        ("7", [7]),
        ("07", [7]),
        ("0000059", [59]),
        ("5-8", [5, 6, 7, 8]),
        ("8-8", [8]),
        ("5-10/2", [5, 7, 9]),
        ("3-59/15", [3, 18, 33, 48]),
        ("*/20", [0, 20, 40]),
        ("?/20", [0, 20, 40]),
        ("*/07", [0, 7, 14, 21, 28, 35, 42, 49, 56]),
        ("*/60", [0]),
        ("0-59/60", [0]),
        ("1,2-4,*/30", [0, 1, 2, 3, 4, 30]),
        ("5,5", [5]),
    ],
)
def test_items_name_values(text, values):
    assert minutes(text) == values


def test_each_field_has_its_own_bounds():
    highest = parse("59 59 23 31 12 7 9999")
    lowest = parse("0 0 0 1 1 0 1")

    assert (highest.seconds, highest.minutes, highest.hours, highest.months) == ({59}, {59}, {23}, {12})
    assert highest.years == {9999}
    assert (lowest.seconds, lowest.minutes, lowest.hours, lowest.months, lowest.years) == ({0}, {0}, {0}, {1}, {1})
    assert (highest.days.month_days, lowest.days.month_days) == (MonthDays(frozenset({31})), MonthDays(frozenset({1})))
    assert highest.days.weekdays == lowest.days.weekdays == Weekdays(frozenset({0}))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("60 * * * * *", "second: '60' is not in 0-59"),
        ("60 * * * *", "minute: '60' is not in 0-59"),
        ("* 24 * * *", "hour: '24' is not in 0-23"),
        ("* * 0 * *", "day of month: '0' is not in 1-31"),
        ("* * 32 * *", "day of month: '32' is not in 1-31"),
        ("* * * 0 *", "month: '0' is not in 1-12"),
        ("* * * 13 *", "month: '13' is not in 1-12"),
        ("* * * * 8", "day of week: '8' is not in 0-7"),
        ("* * * * * * 0", "year: '0' is not in 1-9999"),
        ("* * * * * * 10000", "year: '10000' is not understood"),
        ("* * * * * * */2", "year: the step of '*/2' needs a range before it"),
        ("*/61 * * * * *", "second: the step of '*/61' must be 1 to 60"),
        ("*/61 * * * *", "minute: the step of '*/61' must be 1 to 60"),
        ("* */25 * * *", "hour: the step of '*/25' must be 1 to 24"),
        ("* * */32 * *", "day of month: the step of '*/32' must be 1 to 31"),
        ("* * * */13 *", "month: the step of '*/13' must be 1 to 12"),
        ("* * * * */8", "day of week: the step of '*/8' must be 1 to 7"),
        ("*/0 * * * *", "minute: the step of '*/0' must be 1 to 60"),
        ("1-5/ * * * *", "minute: the step of '1-5/' must be 1 to 60"),
        ("1-5/2/2 * * * *", "minute: the step of '1-5/2/2' must be 1 to 60"),
        ("5/10 * * * *", "minute: the step of '5/10' needs a star or a range before it"),
        ("/5 * * * *", "minute: '' is not understood"),
        ("* 22-2 * * *", "hour: the range '22-2' runs backwards"),
        ("* * * * FRI-MON", "day of week: the range 'FRI-MON' runs backwards"),
        ("1, * * * *", "minute: '' is not understood"),
        ("1- * * * *", "minute: '' is not understood"),
        ("-5 * * * *", "minute: '' is not understood"),
        ("+5 * * * *", "minute: '+5' is not understood"),
        ("*-5 * * * *", "minute: '*' is not understood"),
        ("** * * * *", "minute: '**' is not understood"),
        ("1-2-3 * * * *", "minute: '2-3' is not understood"),
        ("JAN * * * *", "minute: 'JAN' is not understood"),
        ("0x5 * * * *", "minute: '0X5' is not understood"),
        ("99999 * * * *", "minute: '99999' is not understood"),
        ("1.5 * * * *", "'1.5' has characters that no field may have"),
        ("0:5 * * * *", "'0:5' has characters that no field may have"),
        ("٣ * * * *", "'٣' has characters that no field may have"),
        ("* * * ſEP *", "'ſEP' has characters that no field may have"),
        ("* * * * Friday", "day of week: 'FRIDAY' is not understood"),
        ("* * * janfeb *", "month: 'JANFEB' is not understood"),
        ("* * * +1 *", "month: '+1' is not understood"),
        ("* * * L *", "month: 'L' is not understood"),
        ("5W * * * *", "minute: '5W' is not understood"),
    ],
)
def test_what_is_no_value_is_refused_with_its_reason(text, reason):
    with pytest.raises(ValidationError) as caught:
        parse(text)

    assert str(caught.value) == PREFIX + reason


def test_a_refusal_repeats_only_the_beginning_of_long_text():
    with pytest.raises(ValidationError) as caught:
        parse(f"{'X' * 2_000} * * * *")

    assert str(caught.value) == f"{PREFIX}minute: '{'X' * 40}' is not understood"


@pytest.mark.parametrize(
    ("text", "months"),
    [
        ("JAN", {1}),
        ("dec", {12}),
        ("jan,JUL", {1, 7}),
        ("JAN-DEC/3", {1, 4, 7, 10}),
        ("*/4", {1, 5, 9}),
        ("feb-3", {2, 3}),
    ],
)
def test_months_have_names(text, months):
    assert parse(f"0 0 1 {text} *").months == months


@pytest.mark.parametrize(
    ("text", "every"), [("*", True), ("*/1", True), ("0-23", True), ("1-23", False), ("*/2", False)]
)
def test_an_hour_field_that_leaves_out_no_hour_is_every_hour(text, every):
    assert parse(f"0 {text} * * *").has_every_hour is every


# day of month


@pytest.mark.parametrize("text", ["*", "?"])
def test_a_day_field_is_free_when_it_is_written_as_a_star(text):
    assert month_days(text) is None
    assert weekdays(text) is None
    assert weekdays(f"+{text}") is None


@pytest.mark.parametrize("text", ["*/1", "1-31", "*,5", "*,*"])
def test_a_day_of_month_that_names_every_day_is_restricted_all_the_same(text):
    assert month_days(text) == MonthDays(frozenset(range(1, 32)))


@pytest.mark.parametrize(
    ("text", "days"),
    [
        ("*/7", MonthDays(frozenset({1, 8, 15, 22, 29}))),
        ("10-12,20", MonthDays(frozenset({10, 11, 12, 20}))),
        ("L", MonthDays(has_last=True)),
        ("15,L", MonthDays(frozenset({15}), has_last=True)),
        ("L,L", MonthDays(has_last=True)),
        ("LW", MonthDays(has_last_workday=True)),
        ("15W", MonthDays(workdays_near=frozenset({15}))),
        ("01w", MonthDays(workdays_near=frozenset({1}))),
        ("1,15W,20W,L", MonthDays(frozenset({1}), has_last=True, workdays_near=frozenset({15, 20}))),
    ],
)
def test_days_of_the_month(text, days):
    assert month_days(text) == days


@pytest.mark.parametrize(
    "text", ["W", "LW,1", "1,LW", "0W", "32W", "5W-10", "5-10W", "5W/2", "*W", "L-3", "L/2", "1-L", "1#1"]
)
def test_w_and_l_stand_alone(text):
    with pytest.raises(ValidationError, match=f"^{PREFIX}day of month: "):
        month_days(text)


# day of week


@pytest.mark.parametrize(
    ("text", "days"),
    [
        ("0", {0}),
        ("7", {0}),
        ("sun", {0}),
        ("1-5", {1, 2, 3, 4, 5}),
        ("MON-FRI/2", {1, 3, 5}),
        ("mon,Wed,5", {1, 3, 5}),
        ("SAT-SUN", {6, 0}),
        ("FRI-SUN", {5, 6, 0}),
        ("SUN-TUE", {0, 1, 2}),
        ("SUN-SUN", set(range(7))),
        ("6-7", {6, 0}),
        ("0-7", set(range(7))),
        ("0-7/3", {0, 3, 6}),
        ("0-SUN/7", {0}),
        ("*/2", {0, 2, 4, 6}),
        ("*/7", {0}),
        ("*,1", set(range(7))),
    ],
)
def test_days_of_the_week(text, days):
    assert weekdays(text) == Weekdays(frozenset(days))


@pytest.mark.parametrize(
    ("text", "days"),
    [
        ("FRI#2", Weekdays(nth=frozenset({(5, 2)}))),
        ("7#1", Weekdays(nth=frozenset({(0, 1)}))),
        ("1#01", Weekdays(nth=frozenset({(1, 1)}))),
        ("1-3#5", Weekdays(nth=frozenset({(1, 5), (2, 5), (3, 5)}))),
        ("*/3#1", Weekdays(nth=frozenset({(0, 1), (3, 1), (6, 1)}))),
        ("5L", Weekdays(last=frozenset({5}))),
        ("FRIL", Weekdays(last=frozenset({5}))),
        ("fri#l", Weekdays(last=frozenset({5}))),
        ("5-7#L", Weekdays(last=frozenset({5, 6, 0}))),
        ("FRI-SUNL", Weekdays(last=frozenset({5, 0, 6}))),
        ("MON#L,WED,2#1", Weekdays(frozenset({3}), frozenset({(2, 1)}), frozenset({1}))),
    ],
)
def test_places_in_the_month(text, days):
    assert weekdays(text) == days


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("L", "'L' needs a day"),
        ("*L", "'*L' needs a day"),
        ("*#1", "'*#1' needs a day"),
        ("#1", "'#1' needs a day"),
        ("1#0", "the place in '1#0' must be 1 to 5 or L"),
        ("1#6", "the place in '1#6' must be 1 to 5 or L"),
        ("1#", "the place in '1#' must be 1 to 5 or L"),
        ("1#1#2", "the place in '1#1#2' must be 1 to 5 or L"),
        ("1#1-3", "the place in '1#1-3' must be 1 to 5 or L"),
        ("8#1", "'8' is not in 0-7"),
        ("L5", "'L5' is not understood"),
        ("1W", "'1W' is not understood"),
        ("+", "'' is not understood"),
        ("1,+5", "'+5' is not understood"),
        ("++5", "'+5' is not understood"),
    ],
)
def test_what_is_no_day_of_the_week_is_refused(text, reason):
    with pytest.raises(ValidationError) as caught:
        weekdays(text)

    assert str(caught.value) == f"{PREFIX}day of week: {reason}"


def test_a_plus_before_the_day_of_week_asks_for_both():
    assert parse("0 0 13 * +FRI").days == DayRule(
        MonthDays(frozenset({13})), Weekdays(frozenset({5})), both_needed=True
    )
    assert not parse("0 0 13 * FRI").days.both_needed
