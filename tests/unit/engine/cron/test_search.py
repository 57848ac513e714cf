"""The next second on the wall clock."""

from datetime import UTC, datetime

import pytest

from bunqueue_trio.engine.cron import search
from bunqueue_trio.engine.cron.dialect import parse
from bunqueue_trio.engine.cron.search import WallSearch


def wall(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).replace(tzinfo=None)


def first(text: str, start: str) -> str | None:
    found = WallSearch(parse(text)).first(wall(start))
    return None if found is None else found.isoformat(" ")


@pytest.mark.parametrize(
    ("text", "start", "found"),
    [
        ("* * * * * *", "2026-01-15 10:30:15", "2026-01-15 10:30:15"),
        ("15 30 10 * * *", "2026-01-15 10:30:15", "2026-01-15 10:30:15"),
        ("15 30 10 * * *", "2026-01-15 10:30:16", "2026-01-16 10:30:15"),
        ("10,40 * * * * *", "2026-01-15 10:30:15", "2026-01-15 10:30:40"),
        ("10 * * * * *", "2026-01-15 10:30:15", "2026-01-15 10:31:10"),
        ("10 5,50 * * * *", "2026-01-15 10:30:15", "2026-01-15 10:50:10"),
        ("10 30 * * * *", "2026-01-15 10:30:15", "2026-01-15 11:30:10"),
        ("10 5 9,12 * * *", "2026-01-15 10:30:15", "2026-01-15 12:05:10"),
        ("10 30 10,12 * * *", "2026-01-15 10:30:15", "2026-01-15 12:30:10"),
        ("10 5 9 * * *", "2026-01-15 10:30:15", "2026-01-16 09:05:10"),
        ("10 5 9 * * *", "2026-01-31 10:30:15", "2026-02-01 09:05:10"),
        ("10 5 9 * * *", "2026-12-31 10:30:15", "2027-01-01 09:05:10"),
        ("0 0 0 * * 1-5", "2026-01-16 00:00:01", "2026-01-19 00:00:00"),
        ("10 30 10 31 12 *", "2026-12-31 10:30:15", "2027-12-31 10:30:10"),
        ("0 0 29 2 *", "2026-01-15 00:00:00", "2028-02-29 00:00:00"),
        ("0 0 29 2 *", "2096-02-29 00:00:01", "2104-02-29 00:00:00"),
        ("0 0 29 2 +MON#5", "2026-01-15 00:00:00", "2044-02-29 00:00:00"),
        ("0 0 0 1 1 * 2030", "2026-01-15 00:00:00", "2030-01-01 00:00:00"),
        ("0 0 0 29 2 * 2027-2031", "2026-01-15 00:00:00", "2028-02-29 00:00:00"),
        ("0 0 0 1 1 * 2999", "2026-01-15 00:00:00", "2999-01-01 00:00:00"),
        ("0 0 30 2 SUN#5", "2026-01-15 00:00:00", "2032-02-29 00:00:00"),
    ],
)
def test_the_earliest_match_is_found(text, start, found):
    assert first(text, start) == found


@pytest.mark.parametrize(
    "text",
    [
        "0 0 30 2 *",
        "0 0 31 4,6,9,11 *",
        "0 0 31W 2 *",
        "0 0 LW * +SAT,SUN",
        "0 0 29 2 +MON#4",
        "0 0 0 1 1 * 2025",
        "0 0 0 29 2 * 2027,2029-2031",
        "0 0 0 29 2 +SUN 2100",
        "0 0 0 1 1 * 3000-9999",
    ],
)
def test_what_no_year_has_is_found_nowhere(text):
    assert first(text, "2026-01-15 10:30:15") is None


def test_what_lies_behind_the_start_is_gone():
    assert first("0 0 0 1 1 * 2026", "2026-01-01 00:00:00") == "2026-01-01 00:00:00"
    assert first("0 0 0 1 1 * 2026", "2026-01-01 00:00:01") is None
    assert first("0 0 0 * * * 2026", "2026-12-31 00:00:01") is None


def test_the_rest_of_a_year_says_nothing_about_years_of_its_kind():
    finder = WallSearch(parse("0 0 15 1 *"))

    # 2026 and 2037 begin on the same weekday; the first look is at the end of 2026.
    assert finder.first(wall("2026-12-24 00:00:00")) == wall("2027-01-15 00:00:00")
    assert finder.first(wall("2037-01-01 00:00:00")) == wall("2037-01-15 00:00:00")


@pytest.mark.parametrize("text", ["0 0 30 2 *", "0 0 LW * +SUN", "0 0 0 29W 2 +SAT 2026-2999", "0 0 1W,15W,31W * +SAT"])
def test_at_most_fourteen_years_are_searched_for_nothing(monkeypatch, text):
    searched = []
    within_year = search.WallSearch._first_within_year
    monkeypatch.setattr(
        search.WallSearch, "_first_within_year", lambda self, start: searched.append(start) or within_year(self, start)
    )
    finder = WallSearch(parse(text))

    # The first year is searched from its middle on, which does not count for its kind.
    assert finder.first(wall("2026-06-01 00:00:00")) is None
    assert len(searched) == 15

    searched.clear()
    assert finder.first(wall("2026-01-01 00:00:00")) is None
    assert searched == []
