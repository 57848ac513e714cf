"""Crons by command: made, replaced, shown, removed; nothing before its commit."""

import gc

import pytest

from bunqueue_trio.engine import crons
from bunqueue_trio.engine.state import PendingChangeError
from bunqueue_trio.errors import ValidationError
from tests.engine_harness import EngineHarness

HOUR = 3_600_000
NOT_FOUND = "Cron job not found"


@pytest.fixture
def harness() -> EngineHarness:
    return EngineHarness()


def put(harness: EngineHarness, name: str = "c", /, **fields):
    defaults = {} if "schedule" in fields else {"repeatEvery": HOUR}
    return harness.ask("Cron", **{"name": name, "queue": "q", "data": {"n": 1}, **defaults, **fields})["cron"]


def shown(harness: EngineHarness, name: str = "c"):
    return harness.ask("CronGet", name=name)["cron"]


def names(harness: EngineHarness) -> list[str]:
    return [cron["name"] for cron in harness.ask("CronList")["crons"]]


def test_a_new_cron_is_answered_and_shown(harness):
    made = put(harness, schedule="0 9 * * *", timezone="Europe/Rome", priority=5, maxLimit=3)

    next_run = harness.now.wall_ms + 24 * HOUR  # the clock stands at 09:00 in Rome
    assert made == {
        "name": "c",
        "queue": "q",
        "schedule": "0 9 * * *",
        "repeatEvery": None,
        "nextRun": next_run,
        "timezone": "Europe/Rome",
        "priority": 5,
    }
    assert shown(harness) == {
        "name": "c",
        "queue": "q",
        "schedule": "0 9 * * *",
        "repeatEvery": None,
        "nextRun": next_run,
        "executions": 0,
        "maxLimit": 3,
        "timezone": "Europe/Rome",
    }


def test_only_a_cron_that_names_its_jobs_shows_a_job_name(harness):
    named = put(harness, "a", jobName="tick", priority=2)
    put(harness, "b", jobName=None)

    assert named["jobName"] == "tick"
    assert [(cron.get("jobName"), cron.get("priority")) for cron in harness.ask("CronList")["crons"]] == [
        ("tick", 2),
        (None, None),
    ]
    assert shown(harness, "a")["jobName"] == "tick"
    assert "jobName" not in put(harness, "a")
    assert "jobName" not in shown(harness, "a")


@pytest.mark.parametrize("name", ["", 4, True, {}, "x" * 257])
def test_what_is_no_name_of_jobs_is_refused(harness, name):
    with pytest.raises(ValidationError) as refused:
        put(harness, jobName=name)

    assert str(refused.value) == "Job name must be a non-empty string of at most 256 characters"


def test_an_interval_begins_now(harness):
    assert put(harness, repeatEvery=5_000)["nextRun"] == harness.now.wall_ms + 5_000


def test_a_schedule_wins_over_an_interval_that_is_shown_all_the_same(harness):
    made = put(harness, schedule="0 0 1 1 *", repeatEvery=5_000)

    assert (made["repeatEvery"], made["nextRun"] > harness.now.wall_ms + 5_000) == (5_000, True)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"schedule": "bad"}, "Invalid cron expression: "),
        ({"schedule": "0 0 30 2 *"}, "Invalid cron expression: Cron expression has no future occurrences"),
        ({"schedule": "0 0 * * *", "timezone": "Foo/Bar"}, "Invalid timezone: 'Foo/Bar'"),
    ],
)
def test_what_never_fires_is_refused_and_what_was_there_stays(harness, fields, text):
    put(harness, schedule="0 1 * * *", immediately=True)
    harness.advance(20)
    before = shown(harness)

    refusal = harness.refusal("Cron", name="c", queue="q", preventOverlap=True, **fields)

    assert refusal.startswith(text)
    assert shown(harness) == before
    assert harness.counts() == {"waiting": 1}


def test_a_zone_without_a_schedule_is_not_looked_at(harness):
    assert put(harness, timezone="Foo/Bar")["timezone"] == "Foo/Bar"


def test_a_new_definition_keeps_executions_and_place(harness):
    for name in ("a", "b", "c"):
        put(harness, name, immediately=name == "b")
    harness.advance(20)
    assert shown(harness, "b")["executions"] == 1

    made = put(harness, "b", queue="other", repeatEvery=5_000, immediately=True, maxLimit=9)

    assert made["nextRun"] == harness.now.wall_ms + 5_000
    assert (shown(harness, "b")["executions"], shown(harness, "b")["maxLimit"]) == (1, 9)
    assert names(harness) == ["a", "b", "c"]
    harness.advance(4_999)
    assert harness.counts("other") == {}


@pytest.mark.parametrize(("explicit", "left"), [({"preventOverlap": True}, {}), ({}, {"waiting": 1})])
def test_only_an_explicit_prevent_overlap_removes_the_job_that_waits(harness, explicit, left):
    put(harness, immediately=True)
    harness.advance(20)
    assert harness.counts() == {"waiting": 1}

    put(harness, **explicit)

    assert harness.counts() == left
    assert bool(harness.engine.state.queues["q"].keys) == bool(left)


def test_the_job_that_waits_goes_in_the_transaction_of_the_definition(harness):
    put(harness, immediately=True)
    harness.advance(20)
    harness.commit()

    with harness.pending():
        harness.send("Cron", name="c", queue="q", repeatEvery=5, preventOverlap=True)
        batch = harness.take().batch
        assert (len(batch.deleted), len(batch.crons)) == (1, 1)


def test_a_running_job_is_never_touched(harness):
    put(harness, immediately=True)
    harness.advance(20)
    job_id, _token = harness.pull()

    put(harness, preventOverlap=True)

    assert harness.state(job_id) == "active"


def test_a_definition_waits_for_a_change_of_the_job_it_removes(harness):
    put(harness, immediately=True)
    harness.advance(20)
    [job_id] = [job["id"] for job in harness.ask("GetJobs", queue="q")["jobs"]]

    with harness.pending():
        harness.send("Cancel", id=job_id)
        with pytest.raises(PendingChangeError):
            harness.send("Cron", name="c", queue="q", repeatEvery=5, preventOverlap=True)
        harness.commit()


def test_a_removed_cron_fires_no_more_and_its_jobs_stay(harness):
    put(harness, immediately=True)
    harness.advance(20)

    harness.send("CronDelete", name="c")

    assert harness.refusal("CronGet", name="c") == NOT_FOUND
    assert harness.refusal("CronDelete", name="c") == NOT_FOUND
    assert names(harness) == []
    harness.pull_all()
    harness.advance(10 * HOUR)
    assert harness.counts().get("waiting") is None


@pytest.mark.parametrize("name", [None, 5, "nobody"])
def test_a_name_that_nobody_has(harness, name):
    assert harness.refusal("CronGet", name=name) == NOT_FOUND
    assert harness.refusal("CronDelete", name=name) == NOT_FOUND


def test_nobody_sees_a_cron_before_its_commit_nor_when_that_fails(harness):
    with harness.pending():
        harness.send("Cron", name="c", queue="q", repeatEvery=1)
        assert names(harness) == []
        harness.advance(100)
        harness.reject()
    assert names(harness) == []
    harness.advance(100)
    assert harness.counts() == {}


def test_a_replacement_or_removal_that_fails_leaves_the_old_one_at_work(harness):
    put(harness, repeatEvery=5_000)
    for cmd, fields in (("Cron", {"queue": "q", "repeatEvery": HOUR}), ("CronDelete", {})):
        with harness.pending():
            harness.send(cmd, name="c", **fields)
            harness.reject()
        assert shown(harness)["repeatEvery"] == 5_000

    harness.advance(5_000)

    assert harness.counts() == {"waiting": 1}


@pytest.mark.parametrize("cmd", ["Cron", "CronDelete"])
def test_two_changes_of_one_cron_never_share_a_transaction(harness, cmd):
    with harness.pending():
        harness.send("Cron", name="c", queue="q", repeatEvery=1_000)
        with pytest.raises(PendingChangeError):
            harness.send(cmd, name="c", queue="q", repeatEvery=2_000)
        harness.commit()


def test_there_is_a_greatest_number_of_crons(harness, monkeypatch):
    monkeypatch.setattr(crons, "MAX_CRONS", 3)
    for name in ("a", "b", "c"):
        put(harness, name)

    assert harness.refusal("Cron", name="d", queue="q", repeatEvery=1) == "Too many cron jobs (max 3)"
    put(harness, "b", repeatEvery=7)
    harness.send("CronDelete", name="a")
    put(harness, "d")
    assert names(harness) == ["b", "c", "d"]


def test_definitions_on_their_way_count_too(harness, monkeypatch):
    monkeypatch.setattr(crons, "MAX_CRONS", 2)
    with harness.pending():
        for name in ("a", "b"):
            harness.send("Cron", name=name, queue="q", repeatEvery=1_000)
        assert harness.refusal("Cron", name="c", queue="q", repeatEvery=1_000) == "Too many cron jobs (max 2)"
        harness.commit()


def test_runs_on_their_way_into_the_file_take_no_place(harness, monkeypatch):
    monkeypatch.setattr(crons, "MAX_CRONS", 3)
    for name in ("a", "b"):
        put(harness, name, repeatEvery=1_000)
    with harness.pending():
        harness.advance(1_000)
        assert len(harness.engine.state.crons.pending) == 2
        harness.send("Cron", name="c", queue="q", repeatEvery=1_000)
        assert harness.refusal("Cron", name="d", queue="q", repeatEvery=1_000) == "Too many cron jobs (max 3)"
        harness.commit()

    assert names(harness) == ["a", "b", "c"]


def test_crons_of_one_schedule_and_zone_share_their_arithmetic_while_there_are_any(harness):
    for name, zone in (("a", "UTC"), ("b", "UTC"), ("c", "Asia/Tokyo"), ("d", None)):
        put(harness, name, schedule="0 0 29 2 *", timezone=zone)

    a, b, c, d = (cron.timing for cron in harness.engine.state.crons.by_name.values())
    assert a is b
    assert len({id(a), id(c), id(d)}) == 3
    assert len(harness.engine.crons._patterns) == 3
    del a, b, c, d
    for name in "abcd":
        harness.send("CronDelete", name=name)
    harness.advance(0)  # what was due is let go
    harness.batches.clear()
    gc.collect()
    assert len(harness.engine.crons._patterns) == 0


def test_a_definition_that_is_replaced_again_and_again_leaves_nothing_behind(harness):
    harness.checks = False
    for _ in range(3_000):
        put(harness)

    assert len(harness.engine.state.crons.due) <= 1_001
