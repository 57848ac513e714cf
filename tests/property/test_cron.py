"""Cron arithmetic against plain walks over days and instants, for any pattern, zone and moment."""

from bisect import bisect_right
from calendar import Calendar, monthrange
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, time, timedelta, tzinfo

from hypothesis import given
from hypothesis import strategies as st

from bunqueue_trio.engine.cron.dialect import parse
from bunqueue_trio.engine.cron.pattern import Pattern
from bunqueue_trio.engine.cron.search import WallSearch
from bunqueue_trio.engine.cron.timing import Interval
from bunqueue_trio.engine.cron.zones import find_zone, official_names
from bunqueue_trio.errors import ValidationError

DAY_MS = 86_400_000
Days = Callable[[date], bool]

zones = st.sampled_from(sorted(set(official_names().values())))
moments = st.integers(0, 4_000_000_000_000)

# Zones and days on which their offset changes.
CHANGES = [
    ("America/New_York", "2026-03-08"),
    ("America/New_York", "2026-11-01"),
    ("Europe/Berlin", "2026-03-29"),
    ("Europe/Berlin", "2026-10-25"),
    ("Australia/Sydney", "2026-04-05"),
    ("Australia/Lord_Howe", "2026-04-05"),
    ("Australia/Lord_Howe", "2026-10-04"),
    ("America/Havana", "2025-03-09"),
    ("America/Havana", "2025-11-02"),
    ("Asia/Beirut", "2026-10-25"),
    ("Antarctica/Troll", "2026-03-29"),
    ("Antarctica/Troll", "2026-10-25"),
    ("Pacific/Apia", "2011-12-31"),
]


def weekday(day: date) -> int:
    return (day.weekday() + 1) % 7


def places(day: date) -> list[date]:
    """All days of *day*'s month that share its weekday."""
    month = Calendar().itermonthdates(day.year, day.month)
    return [one for one in month if one.month == day.month and one.weekday() == day.weekday()]


def workdays(day: date) -> list[date]:
    month = Calendar().itermonthdates(day.year, day.month)
    return [one for one in month if one.month == day.month and one.weekday() < 5]


def is_near(number: int) -> Days:
    def matches(day: date) -> bool:
        if number > monthrange(day.year, day.month)[1]:
            return False
        wanted = day.replace(day=number)
        # The nearer one; there is no tie, since a weekend has two days.
        return day == min(workdays(day), key=lambda one: abs((one - wanted).days))

    return matches


numbers = st.integers(1, 31)
month_items: st.SearchStrategy[tuple[str, Days]] = st.one_of(
    numbers.map(lambda n: (str(n), lambda day: day.day == n)),
    numbers.map(lambda n: (f"{n}W", is_near(n))),
    st.tuples(numbers, numbers, st.integers(1, 9)).map(
        lambda r: (
            f"{min(r[:2])}-{max(r[:2])}/{r[2]}",
            lambda day: day.day in range(min(r[:2]), max(r[:2]) + 1, r[2]),
        )
    ),
    st.just(("L", lambda day: (day + timedelta(days=1)).day == 1)),
)
names = ["SUN", "mon", "2", "Wed", "4", "FRI", "6"]
week_items: st.SearchStrategy[tuple[str, Days]] = st.one_of(
    st.integers(0, 6).map(lambda w: (names[w], lambda day: weekday(day) == w)),
    st.tuples(st.integers(0, 6), st.integers(1, 5)).map(
        lambda p: (f"{names[p[0]]}#{p[1]}", lambda day: weekday(day) == p[0] and places(day)[p[1] - 1 : p[1]] == [day])
    ),
    st.integers(0, 6).map(lambda w: (f"{names[w]}L", lambda day: weekday(day) == w and places(day)[-1] == day)),
    st.tuples(st.integers(0, 6), st.integers(0, 6)).map(
        lambda r: (f"{min(r)}-{max(r)}", lambda day: min(r) <= weekday(day) <= max(r))
    ),
)


def field(items: st.SearchStrategy[tuple[str, Days]]) -> st.SearchStrategy[tuple[str, Days] | None]:
    lists = st.lists(items, min_size=1, max_size=3).map(
        lambda parts: (",".join(text for text, _ in parts), lambda day: any(matches(day) for _, matches in parts))
    )
    return st.one_of(st.none(), lists)


month_fields = st.one_of(field(month_items), st.just(("LW", lambda day: workdays(day)[-1] == day)))


@st.composite
def day_fields(draw: st.DrawFn) -> tuple[str, str, Days]:
    """Two day fields and the plain meaning of both."""
    month, week = draw(month_fields), draw(field(week_items))
    plus = draw(st.booleans())
    week_text = ("+" if plus else "") + (week[0] if week else "*")
    if month is None or week is None:
        one = month or week
        return month[0] if month else "?", week_text, one[1] if one else lambda _day: True
    if plus:
        return month[0], week_text, lambda day: month[1](day) and week[1](day)
    return month[0], week_text, lambda day: month[1](day) or week[1](day)


@given(day_fields(), st.dates(date(1990, 1, 1), date(2200, 1, 1)), st.sets(st.integers(1, 12), min_size=1))
def test_the_next_day_is_that_of_a_walk_over_the_days(fields, start, months):
    month_text, week_text, matches = fields
    expression = parse(f"0 12 {month_text} {','.join(map(str, months))} {week_text}")

    found = WallSearch(expression).first(datetime.combine(start, time()))

    walk = (start + timedelta(days=number) for number in range(800))
    expected = next((day for day in walk if day.month in months and matches(day)), None)
    if expected is None:
        assert found is None or found.date() >= start + timedelta(days=800)
    else:
        assert found == datetime.combine(expected, time(12))


plain_fields = st.sampled_from(["*", "*/7", "*/20", "0", "5,35", "25-55/10", "59"])
hour_fields = st.sampled_from(["*", "*/1", "0-23", "*/2", "0", "1", "2", "3", "1-3", "0,2", "23"])


STEP = timedelta(minutes=5)
coarse_fields = st.sampled_from(["*/5", "*/20", "0", "5,35", "25-55/10", "55"])


def instants(zone: tzinfo, first: datetime, steps: int, text: str) -> Iterator[float]:
    """The runs of a pattern (second 0) in a span of time, found step by step."""
    expression = parse(text)

    def is_named(wall: datetime) -> bool:
        return (
            wall.minute in expression.minutes
            and wall.hour in expression.hours
            and wall.month in expression.months
            and expression.days.matches(wall.date())
        )

    previous = None
    for number in range(steps):
        moment = first + STEP * number
        local = moment.astimezone(zone)
        wall = local.replace(tzinfo=None, fold=0)
        if is_named(wall) and (local.fold == 0 or len(expression.hours) == 24):
            yield moment.timestamp() * 1_000
        if previous is not None:
            lost = (previous + STEP * step for step in range(1, (wall - previous) // STEP))
            moved = next((one for one in lost if is_named(one)), None)
            if moved is not None:
                yield (moment + (moved - previous) - STEP).timestamp() * 1_000
        previous = wall


@given(st.sampled_from(CHANGES), coarse_fields, hour_fields, st.sampled_from(["*", "0", "0,6"]), st.data())
def test_around_a_change_the_next_run_is_that_of_a_walk_over_the_instants(change, minute, hour, days, data):
    zone_name, day = change
    text = f"{minute} {hour} * * {days}"
    first = datetime.fromisoformat(day).replace(tzinfo=UTC) - timedelta(hours=20)
    start, end = first.timestamp() * 1_000, first.timestamp() * 1_000 + 2 * DAY_MS
    expected = sorted(set(instants(find_zone(zone_name), first, 2 * 288, text)))
    pattern = Pattern(parse(text), find_zone(zone_name))

    # Not from the first step: the walk does not see a gap that ended just before it.
    after = start + data.draw(st.integers(300_000, 2 * DAY_MS - 1))
    while after < end:
        later = expected[bisect_right(expected, after) :][:1]
        found = pattern.next_run(after)
        assert found is not None
        if not later:
            assert found >= end
            return
        assert found == later[0]
        # Where many lie close together, one in an hour is enough.
        after = max(found, after + 3_600_000 - 1)


second_fields = st.sampled_from(["*", "0", "17,50", "*/13"])


@given(second_fields, plain_fields, hour_fields, day_fields(), zones, moments)
def test_the_next_run_is_later_exists_and_is_named(second, minute, hour, fields, zone_name, after):
    month_text, week_text, _ = fields
    text = f"{second} {minute} {hour} {month_text} * {week_text}"
    expression = parse(text)

    found = Pattern(expression, find_zone(zone_name)).next_run(after)

    if found is None:  # e.g. the fifth Monday that is also the second day
        return
    assert found > after
    assert found % 1_000 == 0
    wall = datetime.fromtimestamp(found / 1_000, find_zone(zone_name)).replace(tzinfo=None)
    # A run moved out of a gap is named by the wall time without the move.
    moves = [timedelta(minutes=minutes) for minutes in (0, 20, 30, 40, 60, 90, 120, 1_440)]
    walls = [wall - move for move in moves]
    assert any(
        one.second in expression.seconds
        and one.minute in expression.minutes
        and one.hour in expression.hours
        and expression.days.matches(one.date())
        for one in walls
    )


@given(plain_fields, hour_fields, zones, moments, st.integers(0, 2 * DAY_MS))
def test_nothing_lies_between_a_moment_and_its_next_run(minute, hour, zone_name, after, step):
    pattern = Pattern(parse(f"{minute} {hour} * * *"), find_zone(zone_name))
    found = pattern.next_run(after)
    assert found is not None

    # Asked again on the way, the answer is the same, remembered or not; asked from behind, it is later.
    afresh = Pattern(parse(f"{minute} {hour} * * *"), find_zone(zone_name))
    assert afresh.next_run(min(after + step, found - 1)) == found
    assert pattern.next_run(min(after + step, found - 1)) == found
    assert pattern.next_run(after) == found
    assert pattern.next_run(found + step) > found + step


@given(zones, moments, st.lists(st.integers(-12 * 3_600_000, 12 * 3_600_000), max_size=10), plain_fields, hour_fields)
def test_whatever_the_clock_does_each_run_is_later_than_the_one_before(zone_name, start, jumps, minute, hour):
    for timing in (Pattern(parse(f"{minute} {hour} * * *"), find_zone(zone_name)), Interval(60_000)):
        now = float(start)
        due = timing.first_run(now)
        for jump in jumps:
            now += jump
            following = timing.run_after(due, now)
            assert following > max(due, now)
            assert now < timing.rearmed(following, now) <= following
            due = following


@given(st.integers(1, 2**53), moments, moments)
def test_an_interval_stays_on_its_grid(every, due, now):
    following = Interval(every).run_after(due, now)
    soonest = Interval(every).rearmed(due, now)

    assert following > max(due, now)
    if following < 2**53:  # beyond, a float is no whole millisecond
        assert following - max(due, now) <= every
        assert (int(following) - due) % every == 0
    assert (int(soonest) - due) % every == 0
    assert soonest == due or now < soonest < due


@given(st.text("0123456789*?/,-LW#+ @SUNMOJA:", max_size=30))
def test_any_text_is_an_expression_or_refused_as_one(text):
    try:
        expression = parse(text)
    except ValidationError as refusal:
        reason = str(refusal)
    else:
        reason = ""
        found = Pattern(expression, UTC).next_run(1_768_473_015_500)
        assert found is None or found > 1_768_473_015_500

    assert reason == "" or reason.startswith("Invalid cron expression: ")
