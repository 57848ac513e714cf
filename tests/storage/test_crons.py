"""Crons in the file: rows, kills on either side of each commit, what a start makes of missed runs."""

import math
import random
from datetime import timedelta, timezone
from typing import Any

import msgpack
import pytest

from bunqueue_trio.clock import ManualClock
from bunqueue_trio.ids import Ids
from bunqueue_trio.model.cron_job import CronOptions
from bunqueue_trio.model.job import BackoffConfig, Dedup
from bunqueue_trio.server.startup import load_engine
from bunqueue_trio.storage import writes
from bunqueue_trio.storage.batch import CRON_COLUMNS, Batch
from bunqueue_trio.storage.crons import cron_from_row, cron_row
from bunqueue_trio.storage.repairs import sweep_side_rows
from tests.engine_harness import SECRET, EngineHarness, Flight

MINUTE = 60_000
HOUR = 3_600_000
T0 = ManualClock().now().wall_ms


class FiledHarness(EngineHarness):
    """A harness whose commits go into a file, and whose process can be killed."""

    def __init__(self, connection, path) -> None:
        self.connection, self.path = connection, path
        super().__init__()

    def land(self, flight: Flight, **report: Any) -> None:
        if not report:
            writes.apply_batch(self.connection, flight.batch, self.path)
        super().land(flight, **report)

    def kill(self, *, down_ms: float = 0, jump_ms: float = 0, **options: Any) -> None:
        """End the process and start the next one on the file."""
        now = self.clock.advance(down_ms)
        self.clock = ManualClock(now.wall_ms + jump_ms, 5_000)
        self.engine = load_engine(
            self.connection, Ids(SECRET, random.Random(7)), self.clock, lease_grace_ms=2_000, **options
        )
        self.connect(1)
        if self.engine.state.changes:
            self.commit()


@pytest.fixture
def harness(writer, path) -> FiledHarness:
    return FiledHarness(writer, path)


def put(harness, name: str = "c", /, **fields):
    defaults = {} if "schedule" in fields else {"repeatEvery": MINUTE}
    return harness.ask("Cron", **{"name": name, "queue": "q", "data": {"n": 1}, **defaults, **fields})["cron"]


def shown(harness, name: str = "c"):
    return harness.ask("CronGet", name=name)["cron"]


def row_of(harness, name: str = "c") -> dict[str, Any]:
    [row] = harness.connection.execute(f"SELECT {', '.join(CRON_COLUMNS)} FROM cron_jobs WHERE name = ?", (name,))
    return dict(zip(CRON_COLUMNS, row, strict=True))


# rows


def test_a_row_holds_what_the_reference_would_write(harness):
    put(
        harness,
        schedule="@daily",
        repeatEvery=5_000,
        timezone="Europe/Rome",
        priority=4,
        maxLimit=9,
        uniqueKey="u",
        dedup={"ttl": 9},
        skipMissedOnRestart=False,
        skipIfNoWorker=True,
        preventOverlap=False,
        jobOptions={"maxAttempts": 2, "backoff": {"type": "fixed", "delay": 50}, "removeOnFail": False},
    )

    row = row_of(harness)
    assert msgpack.unpackb(row.pop("data")) == {"n": 1}
    assert msgpack.unpackb(row.pop("dedup"))["ttl"] == 9
    options = {"maxAttempts": 2, "backoff": {"type": "fixed", "delay": 50}, "removeOnFail": False}
    assert msgpack.unpackb(row.pop("job_options")) == options
    assert row == {
        "name": "c",
        "queue": "q",
        "schedule": "@daily",
        "repeat_every": 5_000,
        "priority": 4,
        "next_run": T0 + 15 * HOUR,
        "executions": 0,
        "max_limit": 9,
        "timezone": "Europe/Rome",
        "unique_key": "u",
        "skip_missed_on_restart": 0,
        "skip_if_no_worker": 1,
        "prevent_overlap": 0,
    }
    assert type(row["next_run"]) is int


def job_names(harness) -> dict[str, str]:
    return dict(harness.connection.execute("SELECT name, job_name FROM bqt_crons"))


def test_the_name_of_its_jobs_is_kept_beside_the_row(harness):
    put(harness, jobName="tick")
    put(harness, "d")
    harness.advance(MINUTE)  # both fire, which writes their rows anew
    before = job_names(harness)

    harness.kill()

    assert before == job_names(harness) == {"c": "tick"}
    assert (shown(harness)["jobName"], shown(harness, "d").get("jobName")) == ("tick", None)
    assert shown(harness)["executions"] == 1


def test_the_name_of_its_jobs_goes_with_the_cron_or_with_its_next_definition(harness):
    put(harness, jobName="tick")
    put(harness, jobName="tock")
    assert job_names(harness) == {"c": "tock"}
    put(harness)
    assert job_names(harness) == {}
    put(harness, jobName="tick")
    harness.send("CronDelete", name="c")
    assert job_names(harness) == {}


def test_names_of_jobs_of_crons_that_another_server_has_deleted_are_swept_out(harness):
    put(harness, jobName="tick")
    put(harness, "d", jobName="tock")
    harness.connection.execute("DELETE FROM cron_jobs WHERE name = 'c'")

    assert sweep_side_rows(harness.connection) == 1
    assert job_names(harness) == {"d": "tock"}


def test_defaults_and_a_cron_without_data(harness):
    harness.send("Cron", name="c", queue="q", repeatEvery=5_000)

    row = row_of(harness)
    assert bytes(row["data"]) == b"\xd4\x00\x00"
    assert [row[name] for name in ("schedule", "max_limit", "timezone", "unique_key", "dedup", "job_options")] == [
        None
    ] * 6
    assert (row["skip_missed_on_restart"], row["skip_if_no_worker"], row["prevent_overlap"]) == (1, 0, 1)


def test_every_field_comes_back(harness):
    put(
        harness,
        schedule="30 4 1 1 *",
        repeatEvery=5_000,
        timezone="Europe/Rome",
        priority=4,
        maxLimit=9,
        uniqueKey="u",
        dedup={"ttl": 9, "extend": True, "replace": True},
        skipMissedOnRestart=False,
        skipIfNoWorker=True,
        preventOverlap=False,
        jobOptions={
            "maxAttempts": 2,
            "backoff": {"type": "exponential", "delay": 50, "maxDelay": 70},
            "timeout": 1,
            "delay": 2,
            "stallTimeout": 3,
            "removeOnComplete": True,
            "removeOnFail": False,
        },
    )
    before = harness.engine.state.crons.by_name["c"].job

    harness.kill()

    assert harness.engine.state.crons.by_name["c"].job == before
    assert not harness.engine.state.changes


def test_order_survives_replacement_and_kill(harness):
    for name in ("b", "a", "c"):
        put(harness, name)
    put(harness, "b", repeatEvery=7_000)
    harness.kill()

    assert [cron["name"] for cron in harness.ask("CronList")["crons"]] == ["b", "a", "c"]


def test_a_removed_one_stays_removed(harness):
    put(harness)
    harness.send("CronDelete", name="c")
    harness.kill()

    assert harness.ask("CronList")["crons"] == []


@pytest.mark.parametrize(
    ("cells", "name", "value"),
    [
        ({"repeat_every": -5}, "repeat_every", None),
        ({"repeat_every": 1e12}, "repeat_every", 1e12),
        ({"max_limit": 0}, "max_limit", None),
        ({"executions": 3.0}, "executions", 3),
        ({"data": b"\xc1"}, "data", b""),
        ({"dedup": msgpack.packb({"ttl": "odd", "extend": 1})}, "dedup", Dedup(None, True, False)),
        ({"dedup": b"\xc1"}, "dedup", None),
        ({"job_options": msgpack.packb([1])}, "options", None),
        (
            {"job_options": msgpack.packb({"maxAttempts": 0, "backoff": "x", "timeout": -1, "delay": 5.0, "tags": 1})},
            "options",
            CronOptions(delay=5.0),
        ),
        (
            {"job_options": msgpack.packb({"backoff": {"type": "odd", "delay": 5}, "removeOnFail": 1})},
            "options",
            CronOptions(remove_on_fail=True),
        ),
        (
            {"job_options": msgpack.packb({"backoff": {"type": "fixed", "delay": 5}})},
            "options",
            CronOptions(backoff=BackoffConfig("fixed", 5)),
        ),
        ({"timezone": "", "unique_key": "", "schedule": ""}, "timezone", None),
        ({"repeat_every": math.inf}, "repeat_every", None),
        ({"max_limit": math.inf}, "max_limit", None),
        ({"next_run": math.inf}, "next_run", 0.0),
        ({"next_run": -math.inf}, "next_run", 0.0),
        ({"dedup": msgpack.packb({"ttl": math.inf})}, "dedup", Dedup(None, False, False)),
        ({"job_options": msgpack.packb({"timeout": math.inf, "delay": 5.0})}, "options", CronOptions(delay=5.0)),
    ],
)
def test_odd_cells_of_another_server(harness, cells, name, value):
    put(harness)
    row = row_of(harness) | cells

    found = getattr(cron_from_row(tuple(row.values())), name)

    assert (bytes(found) if name == "data" else found) == value


@pytest.mark.parametrize("column", ["repeat_every", "next_run", "max_limit"])
@pytest.mark.parametrize("value", ["9e999", "-9e999"])
@pytest.mark.parametrize("skips", [0, 1])
def test_an_infinite_cell_keeps_nobody_from_starting(harness, column, value, skips):
    put(harness)
    put(harness, "d")
    harness.connection.execute(
        f"UPDATE cron_jobs SET {column} = {value}, skip_missed_on_restart = {skips} WHERE name = 'c'"
    )

    harness.kill()

    harness.clock.advance(10 * MINUTE)
    harness.tick()
    assert "d" in [cron["name"] for cron in harness.ask("CronList")["crons"]]


def test_a_cron_that_cannot_be_understood_stays_in_the_file(harness):
    put(harness)
    put(harness, "d")
    harness.connection.execute("UPDATE cron_jobs SET schedule = 'odd' WHERE name = 'c'")
    harness.kill()

    assert [cron["name"] for cron in harness.ask("CronList")["crons"]] == ["d"]
    assert row_of(harness)["schedule"] == "odd"
    put(harness, "c", schedule="@daily")
    assert row_of(harness)["schedule"] == "@daily"


# kills


def test_a_kill_before_the_commit_of_a_run_loses_and_doubles_nothing(harness):
    put(harness, skipMissedOnRestart=False, preventOverlap=False)
    harness.auto_commit = False
    harness.advance(MINUTE)
    assert harness.engine.state.changes.staged
    harness.auto_commit = True

    harness.kill()
    assert (shown(harness)["executions"], harness.counts()) == (0, {})
    harness.advance(0)

    assert (shown(harness)["executions"], harness.counts()) == (1, {"waiting": 1})


def test_a_kill_between_commit_and_effect_loses_and_doubles_nothing(harness):
    put(harness, skipMissedOnRestart=False, preventOverlap=False)
    harness.auto_commit = False
    harness.advance(MINUTE)
    writes.apply_batch(harness.connection, harness.take().batch, harness.path)
    harness.auto_commit = True

    harness.kill()
    harness.advance(0)

    assert (shown(harness)["executions"], harness.counts()) == (1, {"waiting": 1})


@pytest.mark.parametrize("is_written", [False, True])
@pytest.mark.parametrize("cmd", ["Cron", "CronDelete"])
def test_a_kill_on_either_side_of_the_commit_of_a_command(harness, cmd, is_written):
    put(harness, repeatEvery=HOUR)
    harness.auto_commit = False
    harness.send(cmd, name="c", queue="q", repeatEvery=5_000)
    flight = harness.take()
    if is_written:
        writes.apply_batch(harness.connection, flight.batch, harness.path)
    harness.auto_commit = True

    harness.kill()

    intervals = [cron["repeatEvery"] for cron in harness.ask("CronList")["crons"]]
    assert intervals == ([HOUR] if not is_written else [5_000] if cmd == "Cron" else [])


def test_a_running_job_with_overlap_protection_is_dropped_and_made_anew_at_the_next_run(harness):
    put(harness, immediately=True)
    harness.advance(0)
    job_id, _token = harness.pull()
    harness.commit()

    harness.kill(down_ms=100)

    assert (harness.state(job_id), harness.counts(), harness.dead_letters()) == ("unknown", {}, [])
    harness.advance(MINUTE - 101)
    assert harness.counts() == {}
    harness.advance(1)
    assert harness.counts() == {"waiting": 1}


# missed runs


@pytest.mark.parametrize("switches", [{}, {"skipIfNoWorker": True, "skipMissedOnRestart": False}])
@pytest.mark.parametrize(
    ("fields", "next_in"), [({"repeatEvery": MINUTE}, MINUTE), ({"schedule": "* * * * *"}, MINUTE - 500)]
)
def test_missed_runs_are_skipped_and_that_is_stored(harness, switches, fields, next_in):
    put(harness, **switches, **fields)

    harness.kill(down_ms=3 * MINUTE + 500)

    next_run = harness.now.wall_ms + next_in
    assert (shown(harness)["nextRun"], row_of(harness)["next_run"]) == (next_run, next_run)
    harness.advance(0)
    assert (shown(harness)["executions"], harness.counts()) == (0, {})


@pytest.mark.parametrize("fields", [{"repeatEvery": MINUTE}, {"schedule": "* * * * *"}])
def test_without_the_switches_there_is_one_run_for_all_that_was_missed(harness, fields):
    put(harness, skipMissedOnRestart=False, preventOverlap=False, **fields)

    harness.kill(down_ms=6 * HOUR + 500)
    harness.advance(0)

    assert (shown(harness)["executions"], harness.counts()) == (1, {"waiting": 1})
    assert shown(harness)["nextRun"] == harness.now.wall_ms - 500 + MINUTE


def test_executions_and_the_rest_of_the_limit_continue(harness):
    put(harness, repeatEvery=1_000, maxLimit=3, preventOverlap=False)
    harness.advance(2_000)
    harness.kill()
    harness.advance(1_000)
    assert shown(harness)["executions"] == 3

    harness.advance(1_000)

    assert harness.refusal("CronGet", name="c") == "Cron job not found"
    harness.kill()
    assert harness.ask("CronList")["crons"] == []


def test_a_pattern_that_has_ended_is_removed(harness):
    put(harness, schedule="5 0 8 15 1 * 2027")
    harness.kill(down_ms=MINUTE)

    assert harness.ask("CronList")["crons"] == []
    assert harness.connection.execute("SELECT count(*) FROM cron_jobs").fetchall() == [(0,)]


@pytest.mark.parametrize("fields", [{"repeatEvery": MINUTE}, {"schedule": "* * * * *"}])
def test_a_clock_that_went_back_while_nobody_ran_silences_nothing(harness, fields):
    put(harness, preventOverlap=False, **fields)
    harness.kill(jump_ms=-12 * HOUR)

    harness.advance(MINUTE)

    assert shown(harness)["executions"] == 1


def test_a_move_that_cannot_be_stored_at_start_is_not_made_up_for(harness):
    put(harness)
    harness.clock.advance(5 * MINUTE)
    harness.engine = load_engine(harness.connection, Ids(SECRET, random.Random(7)), harness.clock, lease_grace_ms=2_000)
    harness.reject()

    harness.advance(MINUTE - 1)

    assert (shown(harness)["executions"], harness.counts()) == (0, {})
    harness.advance(1)
    assert harness.counts() == {"waiting": 1}


def test_expressions_without_a_zone_are_read_in_the_local_one(harness):
    put(harness, schedule="0 12 * * *")
    assert shown(harness)["nextRun"] == T0 + 4 * HOUR

    harness.kill(down_ms=5 * HOUR, local_zone=timezone(timedelta(hours=-2)))

    assert shown(harness)["nextRun"] == T0 + 6 * HOUR


def test_ten_thousand_rows_are_few_statements(writer, path):
    harness = FiledHarness(writer, path)
    put(harness)
    row = row_of(harness)
    rows = [tuple((row | {"name": f"n{n}"}).values()) for n in range(10_000)]
    report = writes.apply_batch(writer, Batch(crons=rows), path)
    assert report.duration_ms < 5_000

    harness.kill()

    assert len(harness.engine.state.crons) == 10_001


def test_row_and_record_agree(harness):
    put(harness)
    job = harness.engine.state.crons.by_name["c"].job

    assert cron_from_row(cron_row(job)) == job
