"""What listeners are told of crons, and when: each row of the table of system events that begins with cron."""

import pytest

from tests.unit.engine.test_happenings import Listening

HOUR = 3_600_000


@pytest.fixture
def harness() -> Listening:
    return Listening()


def put(harness: Listening, name: str = "c", /, **fields) -> None:
    defaults = {} if "schedule" in fields else {"repeatEvery": 1_000}
    harness.send("Cron", **{"name": name, "queue": "q", "data": 1, **defaults, **fields})


def heard_of_crons(harness: Listening):
    """(name of the event, its data) since the last call."""
    return [(event, data) for event, data in harness.announced() if event.startswith("cron:")]


# commands


def test_a_new_cron_and_its_replacement_are_told_with_their_timing(harness):
    start = harness.now.wall_ms
    put(harness, schedule="0 9 * * *")
    put(harness, queue="r", repeatEvery=5_000)
    put(harness, "both", schedule="0 9 * * *", repeatEvery=7)

    assert heard_of_crons(harness) == [
        ("cron:created", {"name": "c", "queue": "q", "pattern": "0 9 * * *", "nextRun": start + HOUR}),
        ("cron:updated", {"name": "c", "queue": "r", "every": 5_000, "nextRun": start + 5_000}),
        ("cron:created", {"name": "both", "queue": "q", "pattern": "0 9 * * *", "every": 7, "nextRun": start + HOUR}),
    ]


def test_the_run_of_an_immediate_one_is_told_as_now(harness):
    put(harness, immediately=True)

    assert [data["nextRun"] for _, data in heard_of_crons(harness)] == [harness.now.wall_ms]


def test_a_removal_is_told(harness):
    put(harness)
    harness.send("CronDelete", name="c")

    assert heard_of_crons(harness)[1:] == [("cron:deleted", {"name": "c"})]


@pytest.mark.parametrize("cmd", ["Cron", "CronDelete"])
def test_a_command_is_told_at_its_commit_and_not_when_that_fails(harness, cmd):
    put(harness)
    harness.heard()
    with harness.pending():
        harness.send(cmd, name="c", queue="q", repeatEvery=5)
        assert harness.heard() == []
        harness.reject()
        assert harness.heard() == []
        harness.send(cmd, name="c", queue="q", repeatEvery=5)
        harness.commit()

    assert len(harness.heard()) == 1


def test_a_command_that_is_refused_is_not_told(harness):
    harness.refusal("Cron", name="c", queue="q", schedule="x")
    harness.refusal("CronDelete", name="c")

    assert harness.heard() == []


# runs


def test_a_run_is_told_after_its_job(harness):
    put(harness)
    harness.heard()
    harness.advance(1_000)

    told = [getattr(event, "event_type", None) or event.event for event in harness.heard()]
    assert told == ["queue:created", "pushed", "cron:fired"]
    harness.advance(1_000)
    assert heard_of_crons(harness) == [("cron:fired", {"name": "c", "queue": "q"})]  # its job is the one that waits


def test_a_run_is_told_at_its_commit(harness):
    put(harness)
    harness.heard()
    with harness.pending():
        harness.advance(1_000)
        assert harness.heard() == []
        harness.commit()
        assert heard_of_crons(harness) == [("cron:fired", {"name": "c", "queue": "q"})]


def test_a_run_that_cannot_be_stored_is_missed_and_fired_when_it_can(harness):
    put(harness)
    harness.heard()
    with harness.pending():
        harness.advance(1_000)
        flight = harness.take()
        restore = lambda: flight.snapshot.restore(harness.engine.state.changes)  # noqa: E731
        harness.engine.rejected(flight.changes, restore, harness.now, error="disk full")
        assert heard_of_crons(harness) == [("cron:missed", {"name": "c", "queue": "q", "error": "disk full"})]
        harness.advance(1_000)
        harness.commit()

    assert heard_of_crons(harness) == [("cron:fired", {"name": "c", "queue": "q"})]


def test_a_run_that_storage_would_refuse_anyway_is_missed(harness):
    put(harness)
    harness.heard()
    with harness.pending():
        harness.advance(1_000)
        staged, harness.engine.state.changes.staged = harness.engine.state.changes.staged, []
        harness.engine.drop_staged(staged, harness.now)

    assert [data["error"] for _, data in heard_of_crons(harness)] == ["Storage refuses writes"]


def test_a_run_that_the_holder_of_the_key_refuses_is_missed(harness):
    put(harness, uniqueKey="u", dedup={"ttl": HOUR, "extend": True})
    harness.advance(1_000)
    harness.pull()
    harness.heard()
    harness.advance(1_000)

    error = "Duplicate unique_key (extended TTL)"
    assert heard_of_crons(harness) == [("cron:missed", {"name": "c", "queue": "q", "error": error})]


def test_without_a_worker_a_run_is_skipped(harness):
    put(harness, skipIfNoWorker=True)
    harness.heard()
    harness.advance(1_000)

    assert heard_of_crons(harness) == [("cron:skipped", {"name": "c", "queue": "q", "reason": "no-worker"})]


def test_an_interval_hardly_begun_is_skipped(harness):
    put(harness)
    harness.clock.advance(1_900)
    harness.tick()
    harness.heard()
    harness.advance(100)

    assert heard_of_crons(harness) == [("cron:skipped", {"name": "c", "queue": "q", "reason": "overlap"})]


def test_a_skip_that_cannot_be_stored_is_not_told(harness):
    put(harness, skipIfNoWorker=True)
    harness.heard()
    with harness.pending():
        harness.advance(1_000)
        harness.reject()

    assert harness.heard() == []


def test_the_end_of_a_cron_is_told(harness):
    put(harness, "limited", maxLimit=1)
    put(harness, "dated", schedule="5 0 8 15 1 * 2027")  # the clock stands at 2027-01-15 08:00:00
    harness.advance(1_000)
    harness.heard()
    harness.advance(1_000)
    assert heard_of_crons(harness) == [("cron:deleted", {"name": "limited"})]

    harness.advance(3_000)

    assert heard_of_crons(harness) == [
        ("cron:fired", {"name": "dated", "queue": "q"}),
        ("cron:deleted", {"name": "dated"}),
    ]


def test_a_clock_that_is_set_back_is_no_news_of_a_cron(harness):
    put(harness, schedule="0 9 * * *")
    harness.advance(1_000)
    harness.heard()
    harness.skew(-48 * HOUR)

    assert harness.heard() == []
    assert harness.ask("CronGet", name="c")["cron"]["nextRun"] < harness.now.wall_ms + 24 * HOUR


def test_without_a_listener_nothing_is_collected(harness):
    harness.engine.listen(False)
    put(harness)
    harness.advance(3_000)
    with harness.pending():
        harness.advance(1_000)
        harness.reject()
    harness.send("CronDelete", name="c")

    assert harness.engine.state.events is None
