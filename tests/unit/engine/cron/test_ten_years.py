"""Ten years of runs in six zones: nothing is skipped, doubled or late.

Hourly runs of ten years and minutely runs of days are marked slow; of both, those around each change are looked at
every time.
"""

from bisect import bisect_right
from datetime import UTC, date, datetime, time, timedelta, tzinfo

import pytest

from bunqueue_trio.engine.cron.dialect import parse
from bunqueue_trio.engine.cron.pattern import Pattern
from bunqueue_trio.engine.cron.zones import find_zone

ZONES = [
    "America/New_York",
    "Europe/Berlin",
    "Europe/London",
    "Australia/Sydney",
    "Australia/Lord_Howe",  # half an hour
    "Asia/Kolkata",  # none
]
FIRST_DAY = date(2026, 1, 1)
DAYS = [FIRST_DAY + timedelta(days=number) for number in range(3_652)]
SPAN = datetime(2026, 1, 1, tzinfo=UTC), datetime(2036, 1, 1, tzinfo=UTC)


def runs(text: str, zone: str, start: datetime, end: datetime) -> list[datetime]:
    """All runs after *start* and until *end*, each found from the one before."""
    pattern = Pattern(parse(text), find_zone(zone))
    found = []
    at = pattern.next_run(start.timestamp() * 1_000)
    while at is not None and at <= end.timestamp() * 1_000:
        found.append(datetime.fromtimestamp(at / 1_000, UTC))
        at = pattern.next_run(at)
    return found


def steps(start: datetime, end: datetime, minutes: int = 0, *, seconds: int = 0) -> list[datetime]:
    step = timedelta(minutes=minutes, seconds=seconds)
    return [start + step * number for number in range(1, (end - start) // step + 1)]


def full_hours(zone: str, start: datetime, end: datetime) -> list[datetime]:
    """Every instant at which the minute hand is up, and the one that a gap of half an hour moves."""
    local = find_zone(zone)
    found = [moment for moment in steps(start, end, 30) if moment.astimezone(local).minute == 0]
    short_gaps = [
        before + timedelta(minutes=30)
        for before in changes(zone, start, end)
        if offset(local, before + timedelta(minutes=30)) - offset(local, before) == timedelta(minutes=30)
    ]
    return sorted({*found, *short_gaps})


def offset(local: tzinfo, moment: datetime) -> timedelta:
    found = moment.astimezone(local).utcoffset()
    assert found is not None
    return found


def changes(zone: str, start: datetime, end: datetime) -> list[datetime]:
    """The last half hour before each change of the zone's offset."""
    local = find_zone(zone)
    days = [day for day in steps(start, end, 1_440) if offset(local, day) != offset(local, day + timedelta(days=1))]
    return [
        moment
        for day in days
        for moment in [day, *steps(day, day + timedelta(days=1), 30)]
        if offset(local, moment) != offset(local, moment + timedelta(minutes=30))
    ]


@pytest.mark.parametrize("zone", ZONES)
def test_the_zones_change_as_often_as_they_should(zone):
    assert len(changes(zone, *SPAN)) == (0 if zone == "Asia/Kolkata" else 20)


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("at", [time(1, 30), time(2, 15)])
def test_a_daily_run_comes_once_a_day(zone, at):
    local = find_zone(zone)
    start = datetime.combine(FIRST_DAY, time(), local)

    found = runs(f"{at.minute} {at.hour} * * *", zone, start, datetime.combine(DAYS[-1], time(23), local))

    # By the rules of Python a wall time that does not exist is moved by the gap, one that exists twice comes first.
    assert found == [datetime.combine(day, at, local).astimezone(UTC) for day in DAYS]
    assert [moment.astimezone(local).date() for moment in found] == DAYS


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("at", [time(1, 30), time(2, 15)])
def test_around_a_change_a_daily_run_is_found_from_every_moment(zone, at):
    local = find_zone(zone)
    expression = parse(f"{at.minute} {at.hour} * * *")
    daily = [datetime.combine(day, at, local).astimezone(UTC) for day in DAYS]
    for change in changes(zone, *SPAN):
        for moment in steps(change - timedelta(hours=2), change + timedelta(hours=3), 10):
            expected = daily[bisect_right(daily, moment)]

            # One that has been asked before would remember its answer.
            assert Pattern(expression, local).next_run(moment.timestamp() * 1_000) == expected.timestamp() * 1_000


@pytest.mark.parametrize("zone", ZONES)
def test_an_hourly_run_comes_every_hour_of_the_days_around_a_change(zone):
    for change in changes(zone, *SPAN):
        start, end = change - timedelta(days=2), change + timedelta(days=2)

        assert runs("0 * * * *", zone, start, end) == full_hours(zone, start, end)


@pytest.mark.slow
@pytest.mark.parametrize("zone", ZONES)
def test_an_hourly_run_comes_every_hour(zone):
    assert runs("0 * * * *", zone, *SPAN) == full_hours(zone, *SPAN)


@pytest.mark.parametrize("zone", ZONES)
def test_a_minutely_run_comes_every_minute_of_the_hours_around_a_change(zone):
    for change in changes(zone, *SPAN):
        start, end = change - timedelta(hours=1), change + timedelta(hours=3)

        assert runs("* * * * *", zone, start, end) == steps(start, end, 1)


@pytest.mark.parametrize("zone", ZONES)
def test_a_run_every_second_comes_every_second_of_the_minute_around_a_change(zone):
    for change in changes(zone, *SPAN):
        at = change + timedelta(minutes=30)
        start, end = at - timedelta(seconds=30), at + timedelta(seconds=30)

        assert runs("* * * * * *", zone, start, end) == steps(start, end, seconds=1)


@pytest.mark.parametrize("zone", ZONES)
def test_a_run_at_a_second_comes_at_that_second_of_each_minute_around_a_change(zone):
    for change in changes(zone, *SPAN):
        at = change + timedelta(minutes=30)
        start, end = at - timedelta(minutes=10), at + timedelta(minutes=10)

        seventeenth = [moment for moment in steps(start, end, seconds=1) if moment.second == 17]
        assert runs("17 * * * * *", zone, start, end) == seventeenth


@pytest.mark.slow
@pytest.mark.parametrize("zone", ZONES)
def test_a_minutely_run_comes_every_minute_of_the_days_around_a_change(zone):
    for change in changes(zone, *SPAN):
        start, end = change - timedelta(days=1), change + timedelta(days=1)

        assert runs("* * * * *", zone, start, end) == steps(start, end, 1)
