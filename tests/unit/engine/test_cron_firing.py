"""Crons that are due: jobs, skips, limits, clocks that jump, commits that fail."""

import msgpack
import pytest

from bunqueue_trio.engine.cron_firing import FIRINGS_PER_TICK, RETRY_PAUSE_MS
from tests.engine_harness import EngineHarness

MINUTE = 60_000
HOUR = 3_600_000


@pytest.fixture
def harness() -> EngineHarness:
    return EngineHarness()


def put(harness: EngineHarness, name: str = "c", /, **fields):
    defaults = {} if "schedule" in fields else {"repeatEvery": MINUTE}
    return harness.ask("Cron", **{"name": name, "queue": "q", "data": {"n": 1}, **defaults, **fields})["cron"]


def shown(harness: EngineHarness, name: str = "c"):
    return harness.ask("CronGet", name=name)["cron"]


def jobs(harness: EngineHarness, queue: str = "q"):
    return harness.ask("GetJobs", queue=queue)["jobs"]


def finish(harness: EngineHarness, queue: str = "q") -> int:
    """Work off whatever waits; how many there were."""
    pulled = list(iter(lambda: harness.pull(queue), None))
    for job_id, token in pulled:
        harness.ack(job_id, token)
    return len(pulled)


# the job


def test_a_job_is_made_at_its_time_and_not_before(harness):
    put(harness, repeatEvery=5_000)
    harness.advance(4_999)
    assert harness.counts() == {}

    harness.advance(1)

    [job] = jobs(harness)
    assert (job["data"], job["priority"], job["createdAt"]) == ({"n": 1}, 0, harness.now.wall_ms)
    assert (job["uniqueKey"], job["customId"], job["attempts"], job["maxAttempts"]) == ("cron:c", None, 0, 3)
    assert shown(harness)["executions"] == 1
    assert shown(harness)["nextRun"] == harness.now.wall_ms + 5_000


@pytest.mark.parametrize(
    ("fields", "name", "data"),
    [
        ({"data": {"name": "own"}}, "tick", {"name": "own"}),
        ({"data": None}, "tick", None),
        ({"data": msgpack.ExtType(0, b"\0")}, "tick", "none"),
    ],
)
def test_a_job_is_named_as_its_cron_says(harness, fields, name, data):
    put(harness, jobName="tick", immediately=True, **fields)
    harness.advance(0)

    [job] = jobs(harness)
    assert (job["name"], job.get("data", "none")) == (name, data)


def test_an_unnamed_cron_without_data_makes_unnamed_jobs_with_null(harness):
    put(harness, immediately=True, data=msgpack.ExtType(0, b"\0"))
    harness.advance(0)

    [job] = jobs(harness)
    assert ("name" in job, job["data"]) == (False, None)


def test_immediately_means_now(harness):
    put(harness, immediately=True)
    harness.advance(0)

    assert harness.counts() == {"waiting": 1}
    assert shown(harness)["nextRun"] == harness.now.wall_ms + MINUTE


def test_a_job_carries_priority_and_options(harness):
    options = {
        "maxAttempts": 7,
        "backoff": {"type": "fixed", "delay": 50},
        "timeout": 1_234,
        "delay": 60_000,
        "stallTimeout": 77,
        "removeOnComplete": True,
        "removeOnFail": True,
        "tags": ["x"],
        "lifo": True,
        "ttl": 5,
        "priority": 9,
    }
    put(harness, jobOptions=options, priority=4, immediately=True)
    harness.advance(0)

    [job] = jobs(harness)
    found = {name: job[name] for name in ("maxAttempts", "backoff", "timeout", "stallTimeout", "priority")}
    assert found == {"maxAttempts": 7, "backoff": 50, "timeout": 1_234, "stallTimeout": 77, "priority": 4}
    assert (job["removeOnComplete"], job["removeOnFail"]) == (True, True)
    assert (job["tags"], job["lifo"], job["ttl"]) == ([], False, None)
    assert job["runAt"] == harness.now.wall_ms + 60_000


def test_without_data_the_job_has_null(harness):
    harness.send("Cron", name="c", queue="q", repeatEvery=1_000)
    harness.advance(1_000)

    assert jobs(harness)[0]["data"] is None


def test_job_and_cron_are_one_transaction(harness):
    put(harness, repeatEvery=1_000)
    harness.auto_commit = False
    harness.advance(1_000)

    batch = harness.take().batch

    assert [row[:2] for row in batch.crons] == [("c", "q")]
    assert [row[6:8] for row in batch.crons] == [(harness.now.wall_ms + 1_000, 1)]
    assert len(batch.full) == 1
    [(_, extra)] = batch.extras
    assert msgpack.unpackb(extra)["isFromCron"] is True


def test_nobody_gets_the_job_before_its_commit(harness):
    put(harness, repeatEvery=1_000)
    with harness.pending():
        harness.advance(1_000)
        assert harness.pull() is None
        assert shown(harness)["executions"] == 0
        harness.commit()
    assert harness.pull() is not None
    assert shown(harness)["executions"] == 1


def test_a_run_that_cannot_be_stored_is_neither_counted_nor_lost_nor_doubled(harness):
    put(harness, repeatEvery=MINUTE)
    with harness.pending():
        harness.advance(MINUTE)
        harness.reject()
        assert (shown(harness)["executions"], harness.counts()) == (0, {})
        due = shown(harness)["nextRun"]
        harness.advance(RETRY_PAUSE_MS - 1)
        assert not harness.engine.state.changes.staged
        harness.advance(1)
        harness.commit()

    assert harness.counts() == {"waiting": 1}
    assert (shown(harness)["executions"], shown(harness)["nextRun"]) == (1, due + MINUTE)


def test_while_a_run_is_on_its_way_into_the_file_there_is_no_other(harness):
    put(harness, repeatEvery=100, preventOverlap=False)
    with harness.pending():
        harness.advance(100)
        flight = harness.take()
        harness.advance(1_000)
        assert not harness.engine.state.changes
        harness.land(flight)
    harness.advance(0)

    assert shown(harness)["executions"] == 2


# keys


def test_with_a_job_in_the_queue_runs_count_and_make_no_other(harness):
    put(harness, repeatEvery=1_000)
    harness.advance(5_000)

    assert shown(harness)["executions"] == 5
    assert harness.counts() == {"waiting": 1}
    assert finish(harness) == 1
    harness.advance(1_000)
    assert harness.counts() == {"waiting": 1, "completed": 1}


@pytest.mark.parametrize(("fields", "key"), [({"preventOverlap": False}, None), ({"uniqueKey": "u"}, "u")])
def test_whose_key_the_jobs_have(harness, fields, key):
    put(harness, repeatEvery=1_000, **fields)
    harness.advance(2_000)

    found = jobs(harness)
    assert [job["uniqueKey"] for job in found] == ([None, None] if key is None else [key])


def test_dedup_is_passed_on(harness):
    put(harness, repeatEvery=1_000, uniqueKey="u", dedup={"ttl": 1_500})
    harness.advance(2_000)
    assert len(jobs(harness)) == 1
    harness.advance(1_000)

    assert len(jobs(harness)) == 2


def test_dedup_replace_exchanges_the_job(harness):
    put(harness, repeatEvery=1_000, uniqueKey="u", dedup={"replace": True})
    harness.advance(1_000)
    [first] = jobs(harness)
    harness.advance(1_000)

    [second] = jobs(harness)
    assert second["id"] != first["id"]


def test_a_run_that_the_holder_of_the_key_refuses_counts_and_makes_no_job(harness):
    put(harness, repeatEvery=1_000, uniqueKey="u", dedup={"ttl": HOUR, "extend": True})
    harness.advance(1_000)
    harness.pull()

    harness.advance(1_000)

    assert shown(harness)["executions"] == 2
    assert harness.counts() == {"active": 1}


def test_a_run_waits_for_a_change_of_the_holder_under_way(harness):
    put(harness, repeatEvery=1_000)
    harness.advance(1_000)
    pulled = harness.pull()
    with harness.pending():
        harness.ack(*pulled)
        flight = harness.take()
        harness.advance(1_000)
        assert not harness.engine.state.changes.staged
        harness.land(flight)
    harness.advance(100)

    assert harness.counts() == {"waiting": 1, "completed": 1}
    assert shown(harness)["executions"] == 2


# limits, skips


def test_the_limit_ends_it_at_its_next_time(harness):
    put(harness, repeatEvery=1_000, maxLimit=2, preventOverlap=False)
    harness.advance(2_999)
    assert (shown(harness)["executions"], len(jobs(harness))) == (2, 2)

    harness.advance(1)

    assert harness.refusal("CronGet", name="c") == "Cron job not found"
    assert harness.batches[-1].crons_gone == ["c"]
    assert len(jobs(harness)) == 2


def test_a_pattern_that_ends_takes_the_cron_along(harness):
    put(harness, schedule="5 0 8 15 1 * 2027")  # the clock stands at 2027-01-15 08:00:00
    harness.advance(5_000)

    assert len(jobs(harness)) == 1
    assert harness.ask("CronList")["crons"] == []


def test_without_a_worker_of_its_queue_it_is_skipped_uncounted(harness):
    put(harness, repeatEvery=1_000, skipIfNoWorker=True, maxLimit=2, preventOverlap=False)
    harness.send("RegisterWorker", name="w", queues=["other"])
    harness.advance(3_000)
    assert (shown(harness)["executions"], harness.counts()) == (0, {})
    assert shown(harness)["nextRun"] == harness.now.wall_ms + 1_000

    harness.send("RegisterWorker", name="w2", queues=["x", "q"])
    harness.advance(1_000)

    assert (shown(harness)["executions"], harness.counts()) == (1, {"waiting": 1})


def test_a_worker_that_has_fallen_silent_does_not_count(harness):
    harness.send("RegisterWorker", name="w", queues=["q"])
    put(harness, repeatEvery=20_000, skipIfNoWorker=True, preventOverlap=False)
    harness.advance(20_000)
    assert shown(harness)["executions"] == 1

    harness.advance(20_000)

    assert shown(harness)["executions"] == 1


def test_an_interval_hardly_begun_is_skipped(harness):
    put(harness, repeatEvery=10_000, preventOverlap=False)
    harness.clock.advance(17_999)  # suspended: the first run is noticed late, the second comes on the grid
    harness.tick()
    assert shown(harness)["executions"] == 1
    harness.advance(2_001)

    assert shown(harness)["executions"] == 1
    harness.advance(10_000)
    assert shown(harness)["executions"] == 2


def test_a_new_definition_forgets_the_last_run(harness):
    put(harness, repeatEvery=10_000, preventOverlap=False, immediately=True)
    harness.advance(0)
    put(harness, repeatEvery=100, preventOverlap=False)

    harness.advance(100)

    assert shown(harness)["executions"] == 2


def test_a_new_definition_forgets_the_last_run_also_when_the_clock_jumps(harness):
    definition = {"repeatEvery": 10_000, "preventOverlap": False}
    put(harness, immediately=True, **definition)
    harness.advance(0)
    put(harness, **definition)

    harness.skew(10_000)
    assert shown(harness)["executions"] == 2
    harness.skew(10_000)

    assert shown(harness)["executions"] == 2


def test_a_schedule_knows_no_such_window(harness):
    put(harness, schedule="* * * * * *", preventOverlap=False)

    harness.advance(10_000)

    assert shown(harness)["executions"] == 10


# time


@pytest.mark.parametrize("fields", [{"repeatEvery": 1_000}, {"schedule": "* * * * * *"}])
def test_a_thousand_runs_without_drift(harness, fields):
    harness.checks = False
    start = harness.now.wall_ms
    put(harness, preventOverlap=False, jobOptions={"removeOnComplete": True}, **fields)
    for n in range(1, 1_001):
        harness.clock.advance(start + n * 1_000 + n % 7 - harness.now.wall_ms)  # noticed up to 6 ms late
        harness.tick()
        assert shown(harness)["nextRun"] == start + (n + 1) * 1_000

    assert shown(harness)["executions"] == 1_000


@pytest.mark.parametrize("fields", [{"repeatEvery": MINUTE}, {"schedule": "* * * * *"}])
def test_a_clock_that_jumps_ahead_makes_up_for_one_run(harness, fields):
    put(harness, preventOverlap=False, **fields)
    harness.skew(6 * HOUR + 500)
    harness.advance(0)

    assert shown(harness)["executions"] == 1
    assert shown(harness)["nextRun"] == harness.now.wall_ms - 500 + MINUTE


@pytest.mark.parametrize("fields", [{"repeatEvery": MINUTE}, {"schedule": "* * * * *"}])
def test_a_clock_that_is_set_back_far_does_not_silence_a_cron(harness, fields):
    put(harness, preventOverlap=False, **fields)
    harness.advance(MINUTE)
    harness.skew(-12 * HOUR)

    harness.advance(MINUTE)

    assert shown(harness)["executions"] == 2


def test_a_clock_that_is_set_back_a_little_repeats_nothing(harness):
    put(harness, schedule="* * * * *", preventOverlap=False)
    harness.advance(MINUTE)
    due = shown(harness)["nextRun"]
    harness.skew(-1_500)

    harness.advance(MINUTE)
    assert (shown(harness)["executions"], shown(harness)["nextRun"]) == (1, due)
    harness.advance(1_500)

    assert shown(harness)["executions"] == 2


def test_the_earliest_comes_first(harness):
    for name, every in (("b", 2_000), ("a", 1_000), ("c", 3_000)):
        put(harness, name, repeatEvery=every)
    harness.clock.advance(10_000)
    harness.tick()

    assert [job["uniqueKey"] for job in jobs(harness)] == ["cron:a", "cron:b", "cron:c"]


def test_a_tick_makes_so_many_and_the_next_one_goes_on(harness):
    harness.checks = False
    for n in range(FIRINGS_PER_TICK + 5):
        put(harness, f"c{n}", repeatEvery=1_000)
    harness.clock.advance(1_000)
    harness.tick()
    assert harness.counts() == {"waiting": FIRINGS_PER_TICK}
    assert harness.engine.next_deadline_mono_ms(harness.now) <= harness.now.mono_ms
    harness.tick()

    assert harness.counts() == {"waiting": FIRINGS_PER_TICK + 5}


def test_a_server_that_stops_makes_no_job_and_asks_for_no_tick(harness):
    put(harness, repeatEvery=1_000)
    harness.engine.stop_handing_out()

    harness.advance(5_000)

    assert harness.counts() == {}
    assert harness.engine.next_deadline_mono_ms(harness.now) == float("inf")


# its jobs when they are lost


def test_a_job_of_a_cron_whose_worker_is_gone_is_not_run_again(harness):
    put(harness, repeatEvery=HOUR, immediately=True)
    harness.advance(0)
    harness.connect(2)
    job_id, _token = harness.pull(connection=2)

    harness.disconnect(2)

    assert (harness.state(job_id), harness.counts()) == ("unknown", {})


def test_without_overlap_protection_it_is_run_again(harness):
    put(harness, repeatEvery=HOUR, immediately=True, preventOverlap=False)
    harness.advance(0)
    harness.connect(2)
    job_id, _token = harness.pull(connection=2)

    harness.disconnect(2)

    assert harness.state(job_id) in ("waiting", "delayed")
