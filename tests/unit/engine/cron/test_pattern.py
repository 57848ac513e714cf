"""Patterns in zones: what happens around the changes of daylight saving, and at the ends of time."""

from datetime import UTC, datetime

import pytest

from bunqueue_trio.engine.cron.dialect import parse
from bunqueue_trio.engine.cron.pattern import Pattern
from bunqueue_trio.engine.cron.zones import find_zone

NEW_YORK = "America/New_York"
BERLIN = "Europe/Berlin"
SYDNEY = "Australia/Sydney"
LORD_HOWE = "Australia/Lord_Howe"  # its daylight saving is half an hour
APIA = "Pacific/Apia"  # had no 30 December 2011


def ms(local: str, zone: str) -> float:
    """The instant of a local time that says its offset where it would be ambiguous."""
    moment = datetime.fromisoformat(local)
    return (moment if moment.tzinfo else moment.replace(tzinfo=find_zone(zone))).timestamp() * 1_000


def runs(text: str, zone: str, after: str, count: int) -> list[str]:
    """The next runs as local times, each found from the one before."""
    pattern = Pattern(parse(text), find_zone(zone))
    at: float | None = ms(after, zone)
    found = []
    for _ in range(count):
        assert at is not None
        at = pattern.next_run(at)
        found.append("never" if at is None else datetime.fromtimestamp(at / 1_000, find_zone(zone)).isoformat())
    return found


def test_the_next_run_is_strictly_later_and_a_whole_second():
    pattern = Pattern(parse("* * * * * *"), find_zone("UTC"))

    assert pattern.next_run(1_768_473_015_000) == 1_768_473_016_000
    assert pattern.next_run(1_768_473_015_999) == 1_768_473_016_000
    assert pattern.next_run(1_768_473_014_999.5) == 1_768_473_015_000


# gaps


@pytest.mark.parametrize(
    ("zone", "after", "days"),
    [
        (
            NEW_YORK,
            "2026-03-07T00:00",
            ["2026-03-07T02:30:00-05:00", "2026-03-08T03:30:00-04:00", "2026-03-09T02:30:00-04:00"],
        ),
        (
            BERLIN,
            "2026-03-28T00:00",
            ["2026-03-28T02:30:00+01:00", "2026-03-29T03:30:00+02:00", "2026-03-30T02:30:00+02:00"],
        ),
        (
            SYDNEY,
            "2026-10-03T00:00",
            ["2026-10-03T02:30:00+10:00", "2026-10-04T03:30:00+11:00", "2026-10-05T02:30:00+11:00"],
        ),
    ],
)
def test_a_time_that_does_not_exist_runs_once_moved_by_the_gap(zone, after, days):
    assert runs("30 2 * * *", zone, after, 3) == days


def test_of_several_times_in_a_gap_only_the_first_is_made_up_for():
    assert runs("*/15 2 * * *", NEW_YORK, "2026-03-08T00:00", 2) == [
        "2026-03-08T03:00:00-04:00",
        "2026-03-09T02:00:00-04:00",
    ]


def test_a_moved_run_that_meets_another_is_the_same_run():
    assert runs("30 2,3 * * *", NEW_YORK, "2026-03-08T00:00", 2) == [
        "2026-03-08T03:30:00-04:00",
        "2026-03-09T02:30:00-04:00",
    ]


@pytest.mark.parametrize("after", ["03:00:00", "03:10:00", "03:29:59"])
def test_a_moved_run_is_still_to_come_for_a_cron_made_behind_the_gap(after):
    assert runs("30 2 * * *", NEW_YORK, f"2026-03-08T{after}-04:00", 2) == [
        "2026-03-08T03:30:00-04:00",
        "2026-03-09T02:30:00-04:00",
    ]


@pytest.mark.parametrize("after", ["03:30:00", "03:59:59", "04:00:00", "12:00:00"])
def test_a_moved_run_is_not_repeated(after):
    assert runs("30 2 * * *", NEW_YORK, f"2026-03-08T{after}-04:00", 1) == ["2026-03-09T02:30:00-04:00"]


def test_the_times_behind_a_short_gap_keep_their_order():
    # 02:00 to 02:30 do not exist; 02:25 is moved to 02:55, and 02:35 comes before that.
    assert runs("25,35 2 * * *", LORD_HOWE, "2026-10-04T00:00", 3) == [
        "2026-10-04T02:35:00+11:00",
        "2026-10-04T02:55:00+11:00",
        "2026-10-05T02:25:00+11:00",
    ]


def test_a_year_that_ends_in_a_gap_ends_with_the_moved_run():
    assert runs("0 30 2 8 3 * 2026", NEW_YORK, "2026-01-01T00:00", 2) == ["2026-03-08T03:30:00-04:00", "never"]


def test_a_day_that_does_not_exist_runs_on_the_next():
    assert runs("0 12 * * *", APIA, "2011-12-29T00:00", 3) == [
        "2011-12-29T12:00:00-10:00",
        "2011-12-31T12:00:00+14:00",
        "2012-01-01T12:00:00+14:00",
    ]
    assert runs("0 12 * * FRI", APIA, "2011-12-29T00:00", 2) == [
        "2011-12-31T12:00:00+14:00",
        "2012-01-06T12:00:00+14:00",
    ]


def test_a_run_of_a_lost_day_is_still_to_come_long_behind_the_gap():
    assert runs("0 12 30 12 *", APIA, "2011-12-31T11:00", 2) == [
        "2011-12-31T12:00:00+14:00",
        "2012-12-30T12:00:00+14:00",
    ]


@pytest.mark.parametrize("text", ["0 * * * *", "0 0-23 * * *", "0 */1 * * *"])
def test_every_hour_passes_over_a_gap_without_a_pause(text):
    assert runs(text, NEW_YORK, "2026-03-08T01:00", 2) == ["2026-03-08T03:00:00-04:00", "2026-03-08T04:00:00-04:00"]


# overlaps


@pytest.mark.parametrize(
    ("text", "zone", "after", "days"),
    [
        (
            "30 1 * * *",
            NEW_YORK,
            "2026-10-31T12:00",
            ["2026-11-01T01:30:00-04:00", "2026-11-02T01:30:00-05:00"],
        ),
        (
            "30 2 * * *",
            BERLIN,
            "2026-10-24T12:00",
            ["2026-10-25T02:30:00+02:00", "2026-10-26T02:30:00+01:00"],
        ),
        (
            "30 2 * * *",
            SYDNEY,
            "2026-04-04T12:00",
            ["2026-04-05T02:30:00+11:00", "2026-04-06T02:30:00+10:00"],
        ),
        (
            "45 1 * * *",
            LORD_HOWE,
            "2026-04-04T12:00",
            ["2026-04-05T01:45:00+11:00", "2026-04-06T01:45:00+10:30"],
        ),
    ],
)
def test_a_time_that_exists_twice_runs_in_the_first_pass(text, zone, after, days):
    assert runs(text, zone, after, 2) == days


@pytest.mark.parametrize("after", ["01:00:00", "01:29:59", "01:30:00", "01:59:59"])
def test_nothing_of_a_fixed_hour_runs_in_the_second_pass(after):
    assert runs("*/10 1 * * *", NEW_YORK, f"2026-11-01T{after}-05:00", 1) == ["2026-11-02T01:00:00-05:00"]


def test_the_hour_behind_an_overlap_is_reached_from_its_second_pass():
    assert runs("*/30 1,2 * * *", NEW_YORK, "2026-11-01T01:30-05:00", 1) == ["2026-11-01T02:00:00-05:00"]


def test_a_pattern_that_ends_in_an_overlap_ends_with_the_first_pass():
    assert runs("0 30 1 1 11 * 2026", NEW_YORK, "2026-11-01T01:30-04:00", 1) == ["never"]
    assert runs("0 30 1 1 11 * 2026", NEW_YORK, "2026-11-01T01:10-05:00", 1) == ["never"]


@pytest.mark.parametrize("text", ["*/30 * * * *", "*/30 0-23 * * *", "*/30 */1 * * *", "*/30 ? * * *"])
def test_every_hour_runs_in_both_passes(text):
    assert runs(text, NEW_YORK, "2026-11-01T00:30-04:00", 6) == [
        "2026-11-01T01:00:00-04:00",
        "2026-11-01T01:30:00-04:00",
        "2026-11-01T01:00:00-05:00",
        "2026-11-01T01:30:00-05:00",
        "2026-11-01T02:00:00-05:00",
        "2026-11-01T02:30:00-05:00",
    ]


def test_every_hour_that_misses_the_repeated_half_hour_runs_once():
    # 01:30 to 02:00 exist twice, and 20 past does not lie there.
    assert runs("20 * * * *", LORD_HOWE, "2026-04-05T01:00", 3) == [
        "2026-04-05T01:20:00+11:00",
        "2026-04-05T02:20:00+10:30",
        "2026-04-05T03:20:00+10:30",
    ]


def test_a_pattern_of_every_hour_may_end_in_the_second_pass():
    assert runs("0 45 * 1 11 * 2026", NEW_YORK, "2026-11-01T01:44-05:00", 1) == ["2026-11-01T01:45:00-05:00"]
    last = "2026-11-01T23:45:00-05:00"
    assert runs("0 45 * 1 11 * 2026", NEW_YORK, "2026-11-01T23:00-05:00", 2) == [last, "never"]


# the days of C1


@pytest.mark.parametrize(
    ("zone", "eve", "days"),
    [
        ("Europe/Rome", "2026-03-27T12:00", ["2026-03-28T09:00:00+01:00", "2026-03-29T09:00:00+02:00"]),
        ("Europe/Rome", "2026-10-23T12:00", ["2026-10-24T09:00:00+02:00", "2026-10-25T09:00:00+01:00"]),
        (NEW_YORK, "2026-03-06T12:00", ["2026-03-07T09:00:00-05:00", "2026-03-08T09:00:00-04:00"]),
        (NEW_YORK, "2026-10-30T12:00", ["2026-10-31T09:00:00-04:00", "2026-11-01T09:00:00-05:00"]),
    ],
)
def test_nine_oclock_is_nine_oclock_on_the_days_of_a_change(zone, eve, days):
    assert runs("0 9 * * *", zone, eve, 2) == days


def test_half_past_one_in_london_runs_once_on_the_days_of_a_change():
    assert runs("30 1 * * *", "Europe/London", "2026-03-28T12:00", 2) == [
        "2026-03-29T02:30:00+01:00",
        "2026-03-30T01:30:00+01:00",
    ]
    assert runs("30 1 * * *", "Europe/London", "2026-10-24T12:00", 2) == [
        "2026-10-25T01:30:00+01:00",
        "2026-10-26T01:30:00+00:00",
    ]


# the ends of time


@pytest.mark.parametrize("text", ["0 0 30 2 *", "0 0 0 1 1 * 2025", "0 0 31W 2 *"])
def test_what_never_comes_is_none(text):
    assert runs(text, "UTC", "2026-01-15T00:00+00:00", 1) == ["never"]


def test_nothing_runs_from_the_year_3000_on():
    assert runs("* * * * * *", "UTC", "2999-12-31T23:59:58+00:00", 2) == ["2999-12-31T23:59:59+00:00", "never"]
    assert Pattern(parse("* * * * *"), find_zone("UTC")).next_run(1e17) is None


@pytest.mark.parametrize("zone", ["UTC", "Pacific/Honolulu", "Pacific/Auckland", "+14:00"])
def test_moments_before_1970_count_as_1970(zone):
    pattern = Pattern(parse("* * * * * *"), find_zone(zone))

    assert pattern.next_run(-1e15) == pattern.next_run(-1) == pattern.next_run(0) == 1_000


# as a timing


def test_the_run_after_one_is_later_than_it_and_than_now():
    pattern = Pattern(parse("0 * * * *"), find_zone("UTC"))
    noon = ms("2026-01-15T12:00+00:00", "UTC")
    hour = 3_600_000

    assert pattern.first_run(noon) == noon + hour
    assert pattern.run_after(noon, noon + 5) == noon + hour
    assert pattern.run_after(noon, noon + 6 * hour) == noon + 7 * hour
    assert pattern.run_after(noon, noon - 6 * hour) == noon + hour


def test_a_clock_set_back_brings_the_next_run_nearer():
    pattern = Pattern(parse("0 * * * *"), find_zone("UTC"))
    noon = ms("2026-01-15T12:00+00:00", "UTC")
    hour = 3_600_000

    assert pattern.rearmed(noon, noon - 12 * hour) == noon - 11 * hour
    assert pattern.rearmed(noon, noon - 5) == noon
    assert pattern.rearmed(noon, noon + 6 * hour) == noon


def test_a_pattern_that_has_ended_keeps_its_last_run():
    pattern = Pattern(parse("0 0 0 1 1 * 2026"), find_zone("UTC"))
    new_year = ms("2026-01-01T00:00+00:00", "UTC")

    assert pattern.rearmed(new_year, new_year + 1) == new_year
    assert pattern.run_after(new_year, new_year) is None


def test_a_question_between_the_last_one_and_its_answer_is_not_looked_up():
    pattern = Pattern(parse("0 9 * * *"), UTC)
    nine = pattern.next_run(0)
    pattern._search = None

    assert [pattern.next_run(after) for after in (0, 1, 5_000, nine - 1)] == [nine] * 4
    with pytest.raises(AttributeError):
        pattern.next_run(nine)


def test_that_there_is_none_is_remembered_too():
    pattern = Pattern(parse("0 0 30 2 *"), UTC)
    assert pattern.next_run(5_000) is None
    pattern._search = None

    assert [pattern.next_run(after) for after in (5_000, 1e12, 1e15)] == [None] * 3
    with pytest.raises(AttributeError):
        pattern.next_run(3_000)
