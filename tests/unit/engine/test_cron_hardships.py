"""Crons and what happens around them: queues that stand still or vanish, keys that are held, clocks gone mad."""

import pytest

from bunqueue_trio.engine.state import PendingChangeError
from tests.stored_engine import Stored

MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000
YEAR = 365 * DAY


@pytest.fixture
def harness() -> Stored:
    return Stored()


def put(harness: Stored, name: str = "c", /, **fields):
    defaults = {} if "schedule" in fields else {"repeatEvery": MINUTE}
    return harness.ask("Cron", **{"name": name, "queue": "q", "data": name, **defaults, **fields})["cron"]


def shown(harness: Stored, name: str = "c"):
    return harness.ask("CronGet", name=name)["cron"]


# queues


def test_on_a_paused_queue_runs_go_on_and_wait(harness):
    put(harness, preventOverlap=False)
    harness.send("Pause", queue="q")
    harness.advance(3 * MINUTE)
    assert harness.pull() is None
    harness.restart()
    harness.send("Resume", queue="q")

    assert len(harness.pull_all()) == 3
    assert shown(harness)["executions"] == 3


def test_on_a_queue_at_its_limits_runs_go_on_and_wait(harness):
    put(harness, preventOverlap=False)
    harness.send("SetConcurrency", queue="q", limit=1)
    harness.send("RateLimit", queue="q", limit=2, duration=HOUR)
    harness.advance(3 * MINUTE)
    held = harness.pull(lockTtl=HOUR)
    assert harness.pull() is None
    harness.ack(*held)
    harness.ack(*harness.pull())

    assert harness.pull() is None
    assert (shown(harness)["executions"], harness.counts()) == (3, {"waiting": 1, "completed": 2})


def test_a_run_and_the_obliteration_of_its_queue_in_one_commit(harness):
    put(harness, preventOverlap=False)
    with harness.pending():
        harness.advance(MINUTE)
        harness.send("Obliterate", queue="q")
        harness.commit()
    assert (harness.counts(), harness.rows("jobs", "id"), shown(harness)["executions"]) == ({}, [], 1)

    harness.advance(MINUTE)
    harness.commit()

    assert (harness.counts(), len(harness.rows("jobs", "id"))) == ({"waiting": 1}, 1)


@pytest.mark.parametrize("cmd", ["Obliterate", "Drain"])
def test_a_run_behind_the_removal_of_its_queues_jobs_is_there_afterwards(harness, cmd):
    harness.push()
    harness.commit()
    put(harness)
    with harness.pending():
        harness.send(cmd, queue="q")
        harness.advance(MINUTE)
        harness.commit()
    harness.advance(100)
    harness.commit()

    assert (harness.counts(), shown(harness)["executions"]) == ({"waiting": 1}, 1)
    harness.restart()
    assert (harness.counts(), shown(harness)["executions"]) == ({"waiting": 1}, 1)


def test_a_queue_whose_name_was_forgotten_is_there_again_for_the_next_run(harness):
    put(harness, repeatEvery=HOUR, jobOptions={"removeOnComplete": True})
    harness.advance(HOUR)
    harness.ack(*harness.pull())
    harness.advance(HOUR - 1)
    assert "q" not in harness.engine.state.queues

    harness.advance(1)

    assert harness.counts() == {"waiting": 1}


# keys


@pytest.mark.parametrize("state", ["waiting", "delayed", "active", "parked"])
def test_a_key_that_a_job_of_a_client_holds_counts_runs_and_makes_no_job(harness, state):
    harness.push("other", jobId="needed")
    options = {"delayed": {"delay": DAY}, "parked": {"dependsOn": ["needed"]}}.get(state, {})
    held = harness.push(uniqueKey="u", **options)
    if state == "active":
        harness.pull(lockTtl=HOUR)
    put(harness, uniqueKey="u")

    harness.advance(2 * MINUTE)

    assert shown(harness)["executions"] == 2
    assert [job.record.id for job in harness.engine.state.jobs.values() if job.record.queue == "q"] == [held]


def test_a_running_job_of_a_client_under_the_key_of_a_cron_is_not_lost_in_a_restart(harness):
    held = harness.push(uniqueKey="cron:c")
    harness.pull(lockTtl=HOUR)
    harness.commit()
    put(harness, "other")
    harness.restart()
    harness.advance(10_000)

    assert harness.state(held) == "waiting"


# commands in between


@pytest.mark.parametrize("cmd", ["CronDelete", "Cron"])
@pytest.mark.parametrize("success", [True, False])
def test_a_command_that_meets_a_run_on_its_way_into_the_file_waits_for_it(harness, cmd, success):
    put(harness, preventOverlap=False)
    with harness.pending():
        harness.advance(MINUTE)
        flight = harness.take()
        with pytest.raises(PendingChangeError):
            harness.send(cmd, name="c", queue="q", repeatEvery=HOUR)
        if success:
            harness.land(flight)
        else:
            harness.crash(flight)
        harness.send(cmd, name="c", queue="q", repeatEvery=HOUR)
        harness.commit()
    harness.advance(30 * MINUTE)

    assert harness.counts() == ({"waiting": 1} if success else {})
    left = harness.ask("CronList")["crons"]
    assert [cron["executions"] for cron in left] == ([] if cmd == "CronDelete" else [int(success)])


def test_a_removal_on_its_way_into_the_file_keeps_the_cron_from_firing(harness):
    put(harness)
    with harness.pending():
        harness.send("CronDelete", name="c")
        harness.advance(2 * MINUTE)
        assert harness.counts() == {}
        harness.reject()
        harness.advance(1_000)
        harness.commit()

    assert (harness.counts(), shown(harness)["executions"]) == ({"waiting": 1}, 1)


# clocks


@pytest.mark.parametrize("fields", [{"repeatEvery": MINUTE}, {"schedule": "* * * * *"}])
@pytest.mark.parametrize("years", [1, 10, 900])
def test_a_clock_that_jumps_by_years_and_back_makes_up_for_one_run_and_silences_nothing(harness, fields, years):
    put(harness, preventOverlap=False, **fields)
    executions = 0
    for jump in (years, -years, -40, 40):
        harness.advance(MINUTE - 1_000)
        before = shown(harness)["executions"]
        harness.skew(jump * YEAR + 500)
        harness.advance(1)
        assert shown(harness)["executions"] - before == (1 if jump > 0 else 0)
        assert harness.now.wall_ms < shown(harness)["nextRun"] <= harness.now.wall_ms + MINUTE
        before = shown(harness)["executions"]
        harness.advance(2 * MINUTE)
        executions = shown(harness)["executions"]
        assert 1 <= executions - before <= 2

    harness.restart()
    harness.commit()
    harness.advance(MINUTE)
    assert shown(harness)["executions"] == executions + 1


def test_an_interval_of_ages_does_not_fire_after_a_restart(harness):
    due = put(harness, repeatEvery=2**53 - 1)["nextRun"]
    for _ in range(2):
        harness.restart()
        harness.advance(DAY)
        harness.skew(-DAY - HOUR)
        harness.commit()

    assert (shown(harness)["executions"], harness.counts(), shown(harness)["nextRun"]) == (0, {}, due)
