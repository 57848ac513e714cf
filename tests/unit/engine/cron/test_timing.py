"""From definitions to runs: intervals, what a definition may be, and restarts."""

from datetime import UTC, timedelta, timezone

import pytest

from bunqueue_trio.engine.cron.pattern import Pattern
from bunqueue_trio.engine.cron.timing import Interval, first_run, open_timing, run_at_start
from bunqueue_trio.errors import ValidationError

NOW = 1_768_473_015_500.0  # 2026-01-15 10:30:15.5 UTC
MINUTE = 60_000.0
HOUR = 60 * MINUTE


# intervals


def test_an_interval_begins_one_interval_from_now():
    assert Interval(250).first_run(NOW) == NOW + 250


def test_an_interval_keeps_its_phase_over_a_thousand_late_runs():
    interval = Interval(7_001)
    start = due = interval.first_run(NOW)

    for number in range(1, 1_001):
        lateness = (number * 37) % 7_001  # up to a whole interval
        due = interval.run_after(due, due + lateness)
        assert due == start + number * 7_001


@pytest.mark.parametrize(
    ("now", "due"),
    [(0, 250), (249, 250), (250, 500), (251, 500), (1_000_000_000 * 250.0, 1_000_000_001 * 250.0), (-10_000, 250)],
)
def test_missed_runs_of_an_interval_are_passed_over(now, due):
    assert Interval(250).run_after(NOW, NOW + now) == NOW + due


@pytest.mark.parametrize(
    ("now", "due"),
    [(-1, 0), (-250, 0), (-251, -250), (-500, -250), (-12 * HOUR, -12 * HOUR + 250), (0, 0), (6 * HOUR, 0)],
)
def test_a_clock_set_back_brings_an_interval_nearer_on_its_grid(now, due):
    assert Interval(250).rearmed(NOW, NOW + now) == NOW + due


def test_the_longest_interval_is_exact():
    longest = 2.0**53 - 1

    assert Interval(longest).run_after(5, 6) == 5 + 2**53 - 1


# definitions


@pytest.mark.parametrize("schedule", [None, ""])
@pytest.mark.parametrize("every", [None, 0])
def test_a_cron_needs_a_schedule_or_an_interval(schedule, every):
    with pytest.raises(ValidationError, match=r"^Cron job must have either schedule or repeatEvery$"):
        open_timing(schedule, every, "Mars/Phobos", local_zone=UTC)


def test_a_schedule_goes_before_an_interval():
    assert isinstance(open_timing("* * * * *", 250, None, local_zone=UTC), Pattern)


def test_an_interval_does_not_look_at_the_zone():
    assert open_timing(None, 250, "Mars/Phobos", local_zone=UTC).first_run(NOW) == NOW + 250
    assert open_timing("", 250, "Mars/Phobos", local_zone=UTC).first_run(NOW) == NOW + 250


@pytest.mark.parametrize("timezone_name", [None, ""])
def test_without_a_zone_the_local_one_applies(timezone_name):
    local = timezone(timedelta(hours=2))
    ten = NOW - 30 * MINUTE - 15_500

    assert open_timing("0 14 * * *", None, timezone_name, local_zone=local).first_run(NOW) == ten + 2 * HOUR
    assert open_timing("0 14 * * *", None, "+03:00", local_zone=local).first_run(NOW) == ten + HOUR


def test_an_expression_is_looked_at_before_its_zone():
    with pytest.raises(ValidationError, match=r"^Invalid cron expression: 5, 6 or 7 fields"):
        open_timing("nonsense", None, "Mars/Phobos", local_zone=UTC)
    with pytest.raises(ValidationError, match=r"^Invalid timezone: 'Mars/Phobos'"):
        open_timing("0 0 30 2 *", None, "Mars/Phobos", local_zone=UTC)


@pytest.mark.parametrize("schedule", ["0 0 30 2 *", "0 0 0 1 1 * 2025", "0 0 0 1 1 * 3000"])
def test_a_new_cron_that_never_fires_is_refused(schedule):
    timing = open_timing(schedule, None, None, local_zone=UTC)

    with pytest.raises(ValidationError, match=r"^Invalid cron expression: Cron expression has no future occurrences$"):
        first_run(timing, NOW)


def test_a_new_cron_has_a_first_run():
    assert first_run(open_timing("* * * * *", None, None, local_zone=UTC), NOW) == NOW + 44_500
    assert first_run(Interval(250), NOW) == NOW + 250


# restarts

MINUTELY = open_timing("* * * * *", None, None, local_zone=UTC)
TIMINGS = [MINUTELY, Interval(MINUTE)]


@pytest.mark.parametrize("timing", TIMINGS)
@pytest.mark.parametrize("skips_missed", [True, False])
def test_a_run_ahead_survives_a_restart(timing, skips_missed):
    assert run_at_start(timing, NOW + 1, NOW, skips_missed=skips_missed) == NOW + 1


@pytest.mark.parametrize("timing", TIMINGS)
@pytest.mark.parametrize("late", [0, 1, 6 * HOUR, 10_000 * HOUR])
def test_of_missed_runs_at_most_one_is_made_up_for(timing, late):
    due = timing.first_run(NOW)
    now = due + late

    fired = []
    at = run_at_start(timing, due, now, skips_missed=False)
    while at <= now:
        fired.append(at)
        at = timing.run_after(at, now)

    assert fired == [due]
    assert now < at <= now + MINUTE
    assert (at - due) % MINUTE == 0


def test_none_is_made_up_for_where_missed_runs_are_skipped():
    due = NOW - 6 * HOUR

    assert run_at_start(MINUTELY, due, NOW, skips_missed=True) == NOW + 44_500
    assert run_at_start(Interval(MINUTE), due, NOW, skips_missed=True) == NOW + MINUTE
    assert run_at_start(MINUTELY, NOW, NOW, skips_missed=True) == NOW + 44_500


def test_a_pattern_that_ended_while_the_server_was_down_never_runs_again():
    ended = open_timing("0 0 0 1 1 * 2026", None, None, local_zone=UTC)

    assert run_at_start(ended, NOW - 14 * 24 * HOUR, NOW, skips_missed=True) is None


@pytest.mark.parametrize("every_ms", [2**53 - 1, 2**53 - 2, 2**53 - 2_000_000_000_000])
def test_an_interval_without_end_begins_far_away_and_stays_there(every_ms):
    now_ms = 1_800_000_000_000.0
    timing = open_timing(None, every_ms, None, local_zone=UTC)
    due_ms = timing.first_run(now_ms)

    assert due_ms == min(now_ms + every_ms, 2**53 - 1)
    assert timing.rearmed(due_ms, now_ms + 1) == due_ms
