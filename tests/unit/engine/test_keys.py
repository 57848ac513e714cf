"""GetDeduplicationJobId, RemoveDeduplicationKey, RemoveJobDeduplicationKey: who holds a key, and taking it away."""

import pytest

from bunqueue_trio.engine.state import PendingChangeError
from tests.engine_harness import EngineHarness
from tests.stored_engine import Stored


@pytest.fixture
def harness() -> EngineHarness:
    """Job a holds the key u of queue q."""
    harness = EngineHarness()
    harness.push(jobId="a", uniqueKey="u")
    harness.commit()
    return harness


def holder(harness: EngineHarness, key: object = "u", queue: str = "q") -> str | None:
    return harness.ask("GetDeduplicationJobId", queue=queue, deduplicationId=key)["data"]["jobId"]


def remove(harness: EngineHarness, key: object = "u", queue: str = "q") -> int:
    return harness.ask("RemoveDeduplicationKey", queue=queue, deduplicationId=key)["data"]["count"]


def remove_of(harness: EngineHarness, job_id: object) -> bool:
    return harness.ask("RemoveJobDeduplicationKey", id=job_id)["data"]["removed"]


def test_the_holder_is_shown_also_while_it_runs(harness):
    assert holder(harness) == "a"
    harness.pull()
    assert holder(harness) == "a"


@pytest.mark.parametrize(("key", "queue"), [("other", "q"), ("u", "r"), ("u", "none"), (5, "q"), (None, "q")])
def test_what_nobody_holds(harness, key, queue):
    harness.push("r", jobId="b", uniqueKey="v")

    assert holder(harness, key, queue) is None
    assert remove(harness, key, queue) == 0
    assert "none" not in harness.engine.state.queues
    assert holder(harness) == "a"


def test_a_key_whose_time_is_over_has_no_holder(harness):
    harness.push(jobId="b", uniqueKey="t", dedup={"ttl": 100})
    assert holder(harness, "t") == "b"
    harness.clock.advance(100)

    assert holder(harness, "t") is None
    assert remove(harness, "t") == 0
    assert remove_of(harness, "b") is False


def test_a_key_that_was_taken_away_is_free_and_its_job_stays(harness):
    assert remove(harness) == 1
    assert remove(harness) == 0
    assert holder(harness) is None
    assert (harness.state("a"), harness.shown("a")["uniqueKey"]) == ("waiting", "u")
    assert harness.push(jobId="b", uniqueKey="u") == "b"
    assert holder(harness) == "b"
    assert harness.counts() == {"waiting": 2}


@pytest.mark.parametrize("options", [{}, {"delay": 1_000}, {"priority": 3}, {"dependsOn": ["x"]}, {"groupId": "g"}])
def test_a_job_keeps_its_place(harness, options):
    harness.push(jobId="x", delay=5_000)
    harness.push(jobId="j", uniqueKey="k", **options)
    before = harness.shown("j")
    assert remove(harness, "k") == 1

    assert harness.shown("j") == before
    assert harness.pull_id() == ("j" if "priority" in options else "a")


def test_only_its_holder_gives_a_key_up(harness):
    remove(harness)
    harness.push(jobId="b", uniqueKey="u")

    assert remove_of(harness, "a") is False
    assert holder(harness) == "b"
    assert remove_of(harness, "b") is True
    assert remove_of(harness, "b") is False
    assert holder(harness) is None


@pytest.mark.parametrize("job_id", ["none", 5, None, "plain"])
def test_who_holds_none(harness, job_id):
    harness.push(jobId="plain")

    assert remove_of(harness, job_id) is False


def test_the_key_of_a_running_job(harness):
    """Given that its worker goes on, and may finish it."""
    pulled = harness.pull()
    assert remove_of(harness, "a") is True
    assert harness.push(jobId="b", uniqueKey="u") == "b"
    harness.ack(*pulled)

    assert (harness.state("a"), holder(harness)) == ("completed", "b")


def test_a_worker_that_is_gone_when_the_key_is_free(harness):
    harness.pull()
    with harness.pending():
        remove(harness)
        harness.disconnect(1)
        harness.commit()

    assert harness.state("a") == "waiting"


@pytest.mark.parametrize("success", [True, False])
def test_until_the_commit_the_key_is_held(harness, success):
    with harness.pending():
        remove(harness)
        flight = harness.take()
        with pytest.raises(PendingChangeError):
            holder(harness)
        with pytest.raises(PendingChangeError):
            harness.push(jobId="b", uniqueKey="u")
        assert harness.state("a") == "waiting"
        if success:
            harness.land(flight)
        else:
            harness.crash(flight)

    assert holder(harness) == (None if success else "a")
    assert harness.counts() == {"waiting": 1}


def test_who_is_about_to_hold_it_is_waited_for(harness):
    with harness.pending():
        harness.push(jobId="b", uniqueKey="k", durable=True)
        with pytest.raises(PendingChangeError):
            holder(harness, "k")
        harness.commit()

    assert holder(harness, "k") == "b"


def test_a_key_that_goes_with_its_queue(harness):
    with harness.pending():
        remove(harness)
        harness.send("Drain", queue="q")
        harness.commit()
        harness.commit()

    assert harness.counts() == {}
    assert harness.state("a") == "unknown"


@pytest.mark.parametrize("how", ["waiting", "active", "delayed", "unwritten"])
def test_it_is_free_on_disk_too(how):
    stored = Stored()
    stored.push(jobId="a", uniqueKey="u", **({"delay": 1_000} if how == "delayed" else {}))
    if how != "unwritten":
        stored.commit()
    if how == "active":
        stored.pull()
    assert remove(stored) == 1
    stored.restart()

    assert holder(stored) is None
    assert stored.shown("a")["uniqueKey"] == "u"
    assert stored.push(jobId="b", uniqueKey="u") == "b"
    stored.commit()
    stored.restart()
    assert holder(stored) == "b"


def test_a_retried_attempt_does_not_get_it_back():
    stored = Stored()
    stored.push(jobId="a", uniqueKey="u")
    remove(stored)
    stored.fail_next()
    stored.restart()

    assert (holder(stored), stored.state("a")) == (None, "delayed")


def test_a_new_life_holds_it_again():
    """Given that the dead letters give up every key, and a retry asks for it as a push does (CD-13)."""
    stored = Stored()
    stored.push(jobId="a", uniqueKey="u", maxAttempts=1)
    remove(stored)
    stored.fail_next()
    assert stored.send("RetryDlq", queue="q", jobId="a").count == 1

    assert holder(stored) == "a"
    stored.restart()
    assert holder(stored) == "a"


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("how", ["active", "parked"])
def test_who_was_replaced_while_it_ran_does_not_get_it_back(durable, how):
    """Given that the job that has replaced it has ended when the server is killed."""
    stored = Stored()
    stored.push(jobId="x", delay=1)
    stored.push(jobId="a", uniqueKey="u", **({"dependsOn": ["x"]} if how == "parked" else {}))
    if how == "active":
        stored.pull()
    stored.push(jobId="b", uniqueKey="u", dedup={"replace": True}, durable=durable)
    assert holder(stored) == "b"
    stored.ack(*stored.pull())
    stored.commit()
    assert holder(stored) is None

    stored.restart()

    assert holder(stored) is None
    assert stored.push(jobId="c", uniqueKey="u") == "c"
