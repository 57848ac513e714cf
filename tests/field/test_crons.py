"""Crons, time zones and clocks: C1, C3, C5 and the crons of D1 and T3 of the field reports.

Where the clock is stepped, the server is the engine over a real file; kills throw the engine away.
"""

from __future__ import annotations

import signal
import time
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from bunqueue_trio.clock import ManualClock
from bunqueue_trio.storage.connection import open_writer
from tests.engine_harness import EngineHarness
from tests.field.closing import check_closing
from tests.process import Client, StartServer
from tests.storage.test_crons import FiledHarness

MINUTE = 60_000
HOUR = 3_600_000
CHANGES = {
    "Europe/Rome": (datetime(2026, 3, 29, 1, tzinfo=UTC), datetime(2026, 10, 25, 1, tzinfo=UTC)),
    "Europe/London": (datetime(2026, 3, 29, 1, tzinfo=UTC), datetime(2026, 10, 25, 1, tzinfo=UTC)),
    "America/New_York": (datetime(2026, 3, 8, 7, tzinfo=UTC), datetime(2026, 11, 1, 6, tzinfo=UTC)),
    "Asia/Tokyo": (datetime(2026, 3, 29, 1, tzinfo=UTC), datetime(2026, 10, 25, 1, tzinfo=UTC)),
}
CASES = [
    (zone, schedule, change)
    for zone, schedules in {
        "Europe/Rome": ("0 9 * * *", "30 2 * * *"),
        "America/New_York": ("0 9 * * *", "30 2 * * *"),
        "Europe/London": ("30 1 * * *",),
        "Asia/Tokyo": ("30 2 * * *",),
    }.items()
    for schedule in schedules
    for change in CHANGES[zone]
]


@pytest.fixture
def harness(tmp_path):
    path = str(tmp_path / "jobs.db")
    connection = open_writer(path)
    yield FiledHarness(connection, path)
    connection.close()


def finish(harness: EngineHarness) -> int:
    pulled = list(iter(harness.pull, None))
    for job_id, token in pulled:
        harness.ack(job_id, token)
    return len(pulled)


@pytest.mark.parametrize(("zone", "schedule", "change"), CASES)
def test_c1_a_daily_job_runs_once_a_day_when_the_clocks_change(zone, schedule, change):
    """celery #9653, django-celery-beat #134, bull #2207: an hour off, or twice an hour apart."""
    start = change - timedelta(hours=36)
    harness = EngineHarness(clock=ManualClock(start.timestamp() * 1_000))
    harness.send("Cron", name="c", queue="q", schedule=schedule, timezone=zone)

    fired: list[datetime] = []
    while len(fired) < 4:
        due = harness.ask("CronGet", name="c")["cron"]["nextRun"]
        harness.clock.advance(due - MINUTE - harness.now.wall_ms)
        harness.tick()
        assert finish(harness) == 0
        harness.clock.advance(MINUTE)
        harness.tick()
        assert finish(harness) == 1
        fired.append(datetime.fromtimestamp(due / 1_000, UTC).astimezone(ZoneInfo(zone)))

    days = [moment.date() for moment in fired]
    assert days == [days[0] + timedelta(days=n) for n in range(4)]
    minute, hour = map(int, schedule.split()[:2])
    is_gap_day = zone != "Asia/Tokyo" and change.month == 3
    for moment in fired:
        in_gap = is_gap_day and moment.date() == change.astimezone(ZoneInfo(zone)).date() and hour in (1, 2)
        assert (moment.hour, moment.minute) == (hour + 1 if in_gap else hour, minute)


def test_c1_an_unknown_zone_is_refused():
    assert "Mars/Base" in EngineHarness().refusal(
        "Cron", name="c", queue="q", schedule="0 9 * * *", timezone="Mars/Base"
    )


WAYS_DOWN = ("terminated", "killed", "socket", "lease")


@pytest.mark.parametrize("way", WAYS_DOWN)
@pytest.mark.parametrize("skips_missed", [True, False])
def test_c3_after_a_restart_the_job_comes_at_its_next_time(harness: FiledHarness, way, skips_missed):
    """bunqueue #73, #65, #67, #72: after a restart the cron fired at once."""
    definition = {
        "name": "c",
        "queue": "q",
        "schedule": "* * * * *",
        "preventOverlap": True,
        "skipMissedOnRestart": skips_missed,
        "skipIfNoWorker": skips_missed,
        "maxLimit": 50,
    }
    harness.send("RegisterWorker", name="w1", queues=["q"], workerId="w1")
    harness.send("Cron", **definition)
    beat(harness, MINUTE)
    held, token = harness.pull(lockTtl=30_000)
    for _ in range(18):  # a minute and a half, to second :30
        beat(harness, 5_000)
        harness.send("JobHeartbeat", id=held, token=token)
    executions = harness.ask("CronGet", name="c")["cron"]["executions"]

    if way in ("terminated", "killed"):
        if way == "terminated":
            harness.commit()
        harness.kill(down_ms=10_000)
    elif way == "socket":
        harness.disconnect(1)
        harness.advance(10_000)
        harness.connect(1)
    else:
        harness.advance(10_000)
    harness.send("RegisterWorker", name="w1", queues=["q"], workerId="w1")
    harness.send("Cron", **definition, immediately=True)

    beat(harness, 19_000)
    assert harness.pull() is None
    assert harness.ask("CronGet", name="c")["cron"]["executions"] == executions
    # A lease that was renewed outlives its socket: it ends two seconds after that minute, so the next one is the first.
    beat(harness, 1_000 if way in ("terminated", "killed") else 1_000 + MINUTE)
    assert harness.pull() is not None
    assert harness.pull() is None


def beat(harness: EngineHarness, ms: float) -> None:
    """Let time pass while the worker shows that it lives."""
    left = ms
    while left > 0:
        step = min(left, 10_000)
        harness.advance(step)
        harness.send("Heartbeat", id="w1")
        left -= step


def test_c3_a_lost_lease_makes_room_for_the_next_run_and_for_no_other(harness: FiledHarness):
    harness.send("Cron", name="c", queue="q", schedule="* * * * *")
    harness.advance(MINUTE)
    harness.pull(lockTtl=20_000)
    harness.advance(30_000)
    assert harness.counts() == {}

    harness.advance(29_999)
    assert harness.counts() == {}
    harness.advance(1)

    assert harness.counts() == {"waiting": 1}


def test_c3_without_the_switch_there_is_one_catch_up(harness: FiledHarness):
    harness.send("Cron", name="c", queue="q", schedule="* * * * *", skipMissedOnRestart=False)
    harness.advance(30_000)
    harness.kill(down_ms=5 * MINUTE)

    harness.advance(0)
    assert finish(harness) == 1
    harness.advance(29_999)
    assert finish(harness) == 0
    harness.advance(1)

    assert finish(harness) == 1


def test_c5_a_clock_that_steps_makes_no_storm_and_no_silence(harness: FiledHarness):
    """sidekiq-scheduler #283, pg_cron #105, node-schedule #431."""
    harness.checks = False
    harness.send("Cron", name="c", queue="cron", schedule="* * * * *", preventOverlap=False)
    delayed = [harness.push("late", delay=HOUR + n * 7 * HOUR // 100) for n in range(100)]
    harness.push("held", jobId="held")
    _, token = harness.pull("held", lockTtl=30_000)

    def live(ms: float) -> None:
        for _ in range(int(ms // 5_000)):
            harness.advance(5_000)
            harness.send("JobHeartbeat", id="held", token=token)
            assert harness.pull("held") is None

    def executions() -> int:
        return harness.ask("CronGet", name="c")["cron"]["executions"]

    live(2 * MINUTE)
    assert executions() == 2
    harness.skew(6 * HOUR)
    live(5_000)
    assert executions() == 3
    live(2 * MINUTE - 5_000)
    assert executions() == 5
    pulled = list(iter(lambda: harness.pull("late"), None))
    ready = [job_id for job_id, _ in pulled]
    for job_id, late_token in pulled:  # else they would be lost and handed out again
        harness.ack(job_id, late_token)
    assert set(ready) <= set(delayed)
    assert len(ready) == len(set(ready)) > 60

    harness.skew(-12 * HOUR)
    live(60_000)
    assert executions() == 6
    assert harness.pull_all("late") == []

    harness.kill(down_ms=1_000)
    harness.advance(MINUTE)
    assert executions() == 7


def test_d1_a_cron_whose_last_job_died_fires_at_its_next_time(harness: FiledHarness):
    """asynq #1055: the key of an archived job blocked every later run."""
    definition = {"repeatEvery": MINUTE, "uniqueKey": "k", "jobOptions": {"maxAttempts": 1}}
    harness.send("Cron", name="c", queue="q", data={"v": 1}, **definition)
    harness.advance(MINUTE)
    harness.fail(*harness.pull())
    [(died, _, _)] = harness.dead_letters()

    harness.advance(MINUTE)

    [job] = [job for job in harness.ask("GetJobs", queue="q", state="waiting")["jobs"]]
    assert (job["id"] != died, job["attempts"], job["data"]) == (True, 0, {"v": 1})


@pytest.mark.parametrize("jump_ms", [6 * HOUR, -12 * HOUR])
def test_c5_a_lease_runs_on_real_time_whatever_the_wall_clock_does(harness: FiledHarness, jump_ms):
    harness.send("Cron", name="c", queue="q", schedule="* * * * *")
    harness.push("held", jobId="held")
    _, token = harness.pull("held", lockTtl=30_000)
    harness.advance(5_000)
    harness.send("JobHeartbeat", id="held", token=token)
    harness.skew(jump_ms)

    harness.advance(29_000)
    assert harness.pull("held") is None
    harness.advance(10_000)

    assert harness.pull_id("held") == "held"


@pytest.mark.slow
def test_t3_a_cron_that_needs_a_worker_fires_again_as_soon_as_one_is_back(start_server: StartServer) -> None:
    """celery #8030, bunqueue #94: after a restart or a hole in the network nothing moved any more."""
    server = start_server(WORKER_TIMEOUT_MS=2_000)
    with server.connect() as client:
        client.ok("Cron", name="c", queue="q", data=1, repeatEvery=500, skipIfNoWorker=True, maxLimit=1_000)

    done: list[str] = []
    for _ in range(3):
        server.restart()
        with server.connect() as client:
            before = executions(client)
            time.sleep(1.2)
            assert executions(client) == before
            done.append(work_one(client))
    with server.connect() as client:
        server.signal(signal.SIGSTOP)
        time.sleep(3)  # longer than a worker may be silent
        server.signal(signal.SIGCONT)
        done.append(work_one(client))
        assert executions(client) >= len(done)
        client.ok("CronDelete", name="c")
        while (pulled := client.ok("PULL", queue="q", owner="w")).get("job"):
            done.append(str(pulled["job"]["id"]))
            client.ok("ACK", id=done[-1], token=pulled["token"])

    assert len(set(done)) == len(done)
    check_closing(server, ["q"], done)


def executions(client: Client) -> int:
    return int(client.ok("CronGet", name="c")["cron"]["executions"])


def work_one(client: Client) -> str:
    """A worker comes back and gets a job of the cron."""
    client.ok("RegisterWorker", name="w", workerId="w", queues=["q"])
    pulled = client.ok("PULL", queue="q", owner="w", timeout=5_000)
    assert pulled.get("job"), "no job within five seconds"
    client.ok("ACK", id=pulled["job"]["id"], token=pulled["token"])
    return str(pulled["job"]["id"])
