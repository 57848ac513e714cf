"""Patterns of the option repeat: refused like those of crons, and kept to over clocks, zones and restarts."""

from datetime import UTC, datetime

import pytest

from bunqueue_trio.clock import ManualClock
from bunqueue_trio.engine import repeat_patterns
from bunqueue_trio.engine.core import Engine
from bunqueue_trio.engine.cron.dialect import parse
from bunqueue_trio.engine.cron.zones import find_zone
from bunqueue_trio.ids import Ids
from tests.engine_harness import SECRET, EngineHarness
from tests.stored_engine import Stored

MINUTE, HOUR = 60_000, 3_600_000
NO_ZONE = "Invalid timezone: 'Mars/Base' is no IANA name and no offset like +05:30"
NEVER = "Invalid cron expression: Cron expression has no future occurrences"


def ms(text: str) -> float:
    """Epoch ms of a moment in UTC."""
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1_000


def at(text: str, **engine_options) -> EngineHarness:
    """A harness whose clock stands at that moment in UTC."""
    clock = ManualClock(ms(text))
    if not engine_options:
        return EngineHarness(clock=clock)
    return EngineHarness(clock=clock, engine=Engine(Ids(SECRET), **engine_options))


def waiting(harness: EngineHarness) -> list[str]:
    """When the jobs that have not begun are to run, UTC."""
    due = sorted(job.record.run_at for job in harness.engine.state.jobs.values())
    return [
        datetime.fromtimestamp(moment / 1_000, UTC).replace(tzinfo=None).isoformat(" ", "minutes") for moment in due
    ]


def complete(harness: EngineHarness) -> None:
    harness.ack(*harness.pull())


def runs(harness: EngineHarness, count: int, **repeat) -> list[str]:
    """Run a chain, each job at its time; when the successors ran."""
    harness.push(repeat=repeat)
    found: list[str] = []
    for _ in range(count):
        complete(harness)
        due = waiting(harness)
        if not due:
            break
        found += due
        [job] = harness.engine.state.jobs.values()
        harness.advance(job.record.run_at - harness.now.wall_ms)
    return found


# refusals


@pytest.mark.parametrize(
    ("repeat", "text"),
    [
        ({"pattern": "x"}, "Invalid cron expression: 5, 6 or 7 fields are needed, not 1"),
        ({"pattern": "60 * * * *"}, "Invalid cron expression: minute: '60' is not in 0-59"),
        ({"pattern": "* " * 3_000}, "Invalid cron expression: longer than 4096 characters"),
        ({"pattern": "0 0 30 2 *"}, NEVER),
        ({"pattern": "0 0 0 1 1 * 2020"}, NEVER),
        ({"pattern": "@daily", "tz": "Mars/Base"}, NO_ZONE),
    ],
)
def test_what_a_cron_would_refuse_is_refused(repeat, text):
    harness = EngineHarness()

    assert harness.refusal("PUSH", queue="q", data=1, repeat=repeat) == text
    assert harness.refusal("Cron", name="c", queue="q", schedule=repeat["pattern"], timezone=repeat.get("tz")) == text
    assert harness.refusal("PUSHB", queue="q", jobs=[{"data": 1}, {"data": 1, "repeat": repeat}]) == f"jobs[1]: {text}"
    assert harness.counts() == {}


def test_the_first_fault_of_a_batch_is_told():
    harness = EngineHarness()
    entries = [{"data": 1, "dependsOn": ["nobody"]}, {"data": 1, "repeat": {"pattern": "x"}}]

    assert harness.refusal("PUSHB", queue="q", jobs=entries) == "jobs[0]: Dependency job not found: nobody"
    assert harness.refusal("PUSHB", queue="q", jobs=entries[::-1]).startswith("jobs[0]: Invalid cron expression: ")


@pytest.mark.parametrize("repeat", [{"pattern": "", "tz": "Mars/Base"}, {"every": 5, "tz": "Mars/Base"}])
def test_without_a_pattern_the_zone_is_not_looked_at(repeat):
    harness = EngineHarness()
    harness.push(repeat=repeat)
    complete(harness)

    assert harness.counts() == {"completed": 1, "delayed": 1}


def test_a_push_that_is_refused_ends_no_former_life():
    harness = EngineHarness()
    harness.push(jobId="c")
    complete(harness)

    harness.refusal("PUSH", queue="q", data=1, jobId="c", repeat={"pattern": "x"})

    assert harness.state("c") == "completed"


def test_the_options_of_a_cron_know_no_repeat():
    harness = EngineHarness()
    options = {"repeat": {"pattern": "x"}}
    harness.send("Cron", name="c", queue="q", repeatEvery=1_000, immediately=True, jobOptions=options)
    harness.advance(0)

    [job] = harness.ask("GetJobs", queue="q")["jobs"]
    assert job["repeat"] is None


# when


def test_a_pattern_paces_the_chain_whatever_its_interval_and_however_late_a_job_completes():
    harness = at("2027-01-15 08:00:30")
    harness.push(repeat={"pattern": "*/10 * * * *", "every": 5})
    complete(harness)
    assert waiting(harness) == ["2027-01-15 08:10"]
    harness.advance(10 * MINUTE)
    pulled = harness.pull(lockTtl=HOUR)
    harness.advance(25 * MINUTE)

    harness.ack(*pulled)

    assert waiting(harness) == ["2027-01-15 08:40"]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"tz": "Asia/Tokyo"}, ["2027-01-15 18:00", "2027-01-16 18:00"]),
        ({"tz": "-05:00"}, ["2027-01-15 08:00", "2027-01-16 08:00"]),
        ({}, ["2027-01-15 02:00", "2027-01-16 02:00"]),  # that of the server
    ],
)
def test_a_pattern_is_read_in_its_zone_or_that_of_the_server(fields, expected):
    harness = at("2027-01-15 01:00:00", local_zone=find_zone("Europe/Rome"))

    assert runs(harness, 2, pattern="0 3 * * *", **fields) == expected


@pytest.mark.parametrize(
    ("start", "zone", "pattern", "expected"),
    [
        (
            "2026-03-27 12:00:00",
            "Europe/Rome",
            "30 2 * * *",
            ["2026-03-28 01:30", "2026-03-29 01:30", "2026-03-30 00:30"],  # the second at 03:30, in place of no 02:30
        ),
        (
            "2026-10-23 12:00:00",
            "Europe/Rome",
            "30 2 * * *",
            ["2026-10-24 00:30", "2026-10-25 00:30", "2026-10-26 01:30"],  # not again in the second pass
        ),
        (
            "2026-11-01 05:10:00",
            "America/New_York",
            "*/30 * * * *",
            ["2026-11-01 05:30", "2026-11-01 06:00", "2026-11-01 06:30", "2026-11-01 07:00"],  # through both passes
        ),
    ],
)
def test_a_change_of_the_clocks_skips_and_doubles_nothing(start, zone, pattern, expected):
    assert runs(at(start), len(expected), pattern=pattern, tz=zone) == expected


def test_a_limit_ends_the_chain():
    harness = at("2027-01-15 08:00:00")

    assert runs(harness, 9, pattern="0 * * * *", limit=2) == ["2027-01-15 09:00", "2027-01-15 10:00"]
    assert harness.counts() == {"completed": 3}


@pytest.mark.parametrize(("end", "count"), [("2027-01-15 10:00:00", 2), ("2027-01-15 09:59:59", 1)])
def test_nothing_runs_after_the_end_date(end, count):
    found = runs(at("2027-01-15 08:00:00"), 9, pattern="0 * * * *", endDate=ms(end))

    assert found == ["2027-01-15 09:00", "2027-01-15 10:00"][:count]


@pytest.mark.parametrize(
    ("start", "expected"), [("2027-02-01 09:00:00", "2027-02-01 09:00"), ("2027-02-01 09:00:01", "2027-02-01 10:00")]
)
def test_nothing_runs_before_the_start_date(start, expected):
    assert runs(at("2027-01-15 08:00:00"), 1, pattern="0 * * * *", startDate=ms(start)) == [expected]


def test_a_pattern_that_has_no_further_year_ends_the_chain():
    harness = at("2027-12-30 12:00:00")

    assert runs(harness, 9, pattern="0 0 12 * * * 2027") == ["2027-12-31 12:00"]
    assert harness.counts() == {"completed": 2}


@pytest.mark.parametrize(
    ("back_ms", "expected"), [(400, "2027-01-15 08:02"), (MINUTE + 400, "2027-01-15 08:00"), (12 * HOUR, None)]
)
def test_a_clock_that_is_set_back_a_little_repeats_nothing_and_one_set_back_far_silences_nothing(back_ms, expected):
    harness = at("2027-01-15 08:00:30")
    harness.push(repeat={"pattern": "* * * * *"})
    complete(harness)
    harness.advance(30_000)
    pulled = harness.pull()
    harness.skew(-back_ms)

    harness.ack(*pulled)

    [job] = harness.engine.state.jobs.values()
    assert 0 < job.record.run_at - harness.now.wall_ms <= 2 * MINUTE
    if expected is not None:
        assert waiting(harness) == [expected]


def test_an_interval_does_not_care_for_a_clock_that_is_set_back():
    harness = at("2027-01-15 08:00:00")
    harness.push(delay=1_000, repeat={"every": 5_000})
    harness.advance(1_000)
    pulled = harness.pull()
    harness.skew(-400)

    harness.ack(*pulled)

    [job] = harness.engine.state.jobs.values()
    assert job.record.run_at == harness.now.wall_ms + 5_000


# restarts, bounds


def test_a_chain_goes_on_over_kills_at_its_own_times():
    harness = Stored()  # at 2027-01-15 08:00
    harness.push(repeat={"pattern": "0 3 * * *", "tz": "Asia/Tokyo", "limit": 3})
    harness.commit()
    found = []
    while True:
        harness.restart()
        complete(harness)
        harness.restart()
        due = waiting(harness)
        if not due:
            break
        found += due
        [job] = harness.engine.state.jobs.values()
        harness.clock.advance(job.record.run_at - harness.now.wall_ms)

    assert found == ["2027-01-15 18:00", "2027-01-16 18:00", "2027-01-17 18:00"]
    assert harness.rows("jobs", "state") == ["completed"] * 4


def test_a_run_that_came_due_while_nobody_ran_comes_once():
    harness = Stored()
    harness.push(repeat={"pattern": "0 * * * *"})
    complete(harness)
    harness.clock.advance(5 * HOUR + MINUTE)
    harness.restart()

    assert len(harness.pull_all()) == 1
    assert waiting(harness) == ["2027-01-15 09:00"]


def test_a_pattern_in_the_file_that_nobody_can_read_ends_the_chain_and_completes_the_job():
    harness = EngineHarness()
    job_id = harness.push(repeat={"pattern": "0 * * * *"})
    record = harness.job(job_id).record
    harness.job(job_id).record.repeat = type(record.repeat)(pattern="x", tz="Mars/Base")

    complete(harness)

    assert harness.counts() == {"completed": 1}


def test_the_patterns_that_are_remembered_are_bounded_and_the_newest(monkeypatch):
    monkeypatch.setattr(repeat_patterns, "MAX_KNOWN", 2)
    patterns = repeat_patterns.RepeatPatterns(UTC)
    later = ms("2027-01-15 08:00:00")

    for minute in (1, 2, 1, 3):
        assert patterns.next_match(f"{minute} * * * *", None, later) == later + minute * MINUTE

    assert len(patterns) == 2
    assert {pattern for pattern, _ in patterns._known} == {"1 * * * *", "3 * * * *"}


def test_a_push_reads_a_pattern_once_and_asks_it_anew(monkeypatch):
    read = []
    monkeypatch.setattr(repeat_patterns, "parse", lambda text: read.append(text) or parse(text))
    harness = at("2027-01-15 08:00:00")
    ending = {"pattern": "0 0 12 15 1 * 2027"}

    harness.push_many("q", [{"repeat": ending}] * 50)
    harness.push(repeat=ending)
    harness.advance(24 * 60 * MINUTE)
    refused = harness.refusal("PUSH", queue="q", data=1, repeat=ending)

    assert read == [ending["pattern"]]
    assert refused == NEVER


def test_a_batch_has_so_many_different_patterns():
    harness = EngineHarness()
    entries = [{"data": 1, "repeat": {"pattern": f"{n % 60} {n // 60} * * *"}} for n in range(101)]

    harness.push_many("q", entries[:100] + entries[:100])

    assert harness.refusal("PUSHB", queue="q", jobs=entries) == (
        "Too many different repeat patterns in one batch (max 100)"
    )
    assert harness.counts() == {"waiting": 200}
