"""Zones by name, and their changes."""

from datetime import UTC, datetime, timedelta

import pytest

from bunqueue_trio.engine.cron.zones import (
    change_around,
    change_between,
    find_zone,
    instant_of,
    official_names,
    wall_at,
)
from bunqueue_trio.errors import ValidationError


def wall(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).replace(tzinfo=None)


def utc_s(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp())


JANUARY = datetime(2026, 1, 15, tzinfo=UTC)
NEW_YORK = find_zone("America/New_York")
LORD_HOWE = find_zone("Australia/Lord_Howe")
APIA = find_zone("Pacific/Apia")


@pytest.mark.parametrize(
    ("name", "hours"),
    [
        ("Europe/Rome", 1),
        ("europe/rome", 1),
        ("EUROPE/ROME", 1),
        ("UTC", 0),
        ("utc", 0),
        ("Zulu", 0),
        ("GMT0", 0),
        ("US/Eastern", -5),
        ("EST5EDT", -5),
        ("Etc/GMT+5", -5),
        ("America/Argentina/Ushuaia", -3),
        ("Asia/Kathmandu", 5.75),
        ("+05:30", 5.5),
        ("-05:30", -5.5),
        ("+0530", 5.5),
        ("+05", 5),
        ("-00:00", 0),
        ("+23:59", 24 - 1 / 60),
    ],
)
def test_zones_are_found_by_name_in_any_case_or_by_offset(name, hours):
    assert JANUARY.astimezone(find_zone(name)).utcoffset() == timedelta(hours=hours)


@pytest.mark.parametrize(
    "name",
    [
        "Mars/Phobos",
        "GMT+5",
        "UTC+5",
        "Z",
        "",
        " Europe/Rome",
        "Factory",
        "Europe",
        "../Europe/Rome",
        "Europe/Rome\0",
        "+5:30",
        "+24:00",
        "+05:60",
        "+05:3",
        "+",
        "05:30",
        "+٠٥:٣٠",
        "Asia/Bang\u212aok",
    ],
)
def test_an_unknown_zone_is_refused_by_name(name):
    with pytest.raises(ValidationError) as caught:
        find_zone(name)

    assert str(caught.value) == f"Invalid timezone: '{name}' is no IANA name and no offset like +05:30"


def test_a_refusal_repeats_only_the_beginning_of_a_long_name():
    with pytest.raises(ValidationError, match=rf"^Invalid timezone: '{'x' * 40}' is"):
        find_zone("x" * 1_000_000)


def test_a_zone_is_read_once():
    assert find_zone("europe/rome") is find_zone("Europe/Rome")


def test_every_listed_zone_can_be_read():
    names = official_names()

    assert len(names) > 500
    assert all(find_zone(name).utcoffset(JANUARY.replace(tzinfo=None)) is not None for name in names)


def test_an_overlap_has_two_instants():
    assert wall_at(NEW_YORK, utc_s("2026-11-01 05:30")) == wall("2026-11-01 01:30")
    assert wall_at(NEW_YORK, utc_s("2026-11-01 05:30")).fold == 0
    assert wall_at(NEW_YORK, utc_s("2026-11-01 06:30")).fold == 1

    assert instant_of(NEW_YORK, wall("2026-11-01 01:30")) == utc_s("2026-11-01 05:30")
    assert instant_of(NEW_YORK, wall("2026-11-01 01:30"), second_pass=True) == utc_s("2026-11-01 06:30")


def test_a_wall_in_a_gap_is_moved_forward_by_its_length():
    moved = instant_of(NEW_YORK, wall("2026-03-08 02:30"))

    assert wall_at(NEW_YORK, moved) == wall("2026-03-08 03:30")


@pytest.mark.parametrize(
    ("zone", "inside", "first", "end", "is_gap"),
    [
        (NEW_YORK, "2026-03-08 02:00", "2026-03-08 02:00", "2026-03-08 03:00", True),
        (NEW_YORK, "2026-03-08 02:59:59", "2026-03-08 02:00", "2026-03-08 03:00", True),
        (NEW_YORK, "2026-11-01 01:00", "2026-11-01 01:00", "2026-11-01 02:00", False),
        (NEW_YORK, "2026-11-01 01:59:59", "2026-11-01 01:00", "2026-11-01 02:00", False),
        (LORD_HOWE, "2026-10-04 02:10", "2026-10-04 02:00", "2026-10-04 02:30", True),
        (LORD_HOWE, "2026-04-05 01:45", "2026-04-05 01:30", "2026-04-05 02:00", False),
        (APIA, "2011-12-30 12:00", "2011-12-30 00:00", "2011-12-31 00:00", True),
    ],
)
def test_the_gap_or_overlap_around_a_wall_is_found(zone, inside, first, end, is_gap):
    change = change_around(zone, wall(inside))

    assert change is not None
    assert (change.first_wall, change.end_wall, change.is_gap) == (wall(first), wall(end), is_gap)
    assert change.length_s == (wall(end) - wall(first)).total_seconds()


@pytest.mark.parametrize(
    "outside", ["2026-03-08 01:59:59", "2026-03-08 03:00", "2026-11-01 00:59:59", "2026-11-01 02:00"]
)
def test_other_walls_lie_in_neither(outside):
    assert change_around(NEW_YORK, wall(outside)) is None


def test_a_change_between_two_instants_is_found():
    change_s = utc_s("2026-03-08 07:00")

    found = change_between(NEW_YORK, change_s - 1, change_s)
    assert found is not None
    assert (found.at_s, found.before_s, found.after_s) == (change_s, -5 * 3_600, -4 * 3_600)
    assert change_between(NEW_YORK, change_s - 86_400, change_s) == found
    assert change_between(NEW_YORK, change_s, change_s + 86_400) is None
    assert change_between(NEW_YORK, change_s - 86_400, change_s - 1) is None
