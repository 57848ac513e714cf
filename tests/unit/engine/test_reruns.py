"""RetryCompleted: completed jobs run again, from memory, from the facts of a command, from pages of the file."""

import pytest
from msgspec import UNSET

from bunqueue_trio.engine.history import History
from bunqueue_trio.engine.reruns import PagesNeededError
from bunqueue_trio.engine.state import FactsNeededError, PendingChangeError
from bunqueue_trio.model.entries import CompletedJob
from bunqueue_trio.model.job import JobState
from tests.engine_harness import EngineHarness, completed, needs_facts, raw


@pytest.fixture
def harness() -> EngineHarness:
    return EngineHarness()


def complete(harness: EngineHarness, job_id: str = "a", queue: str = "q", **options: object) -> None:
    harness.push(queue, jobId=job_id, **options)
    pulled = harness.pull(queue)
    assert pulled is not None
    harness.send("Progress", id=job_id, progress=30)
    harness.ack(*pulled, result="old")


def test_a_completed_job_runs_again_from_the_start(harness):
    complete(harness, data={"n": 5}, priority=2)
    harness.clock.advance(1_000)

    assert harness.send("RetryCompleted", queue="q", id="a").count == 1

    job = harness.shown("a")
    shown = [job[name] for name in ("state", "attempts", "stallCount", "progress", "startedAt", "completedAt", "data")]
    assert shown == ["prioritized", 0, 0, 0, None, None, {"n": 5}]
    assert job["runAt"] == job["lastHeartbeat"] == harness.now.wall_ms
    assert harness.timeline("a")[-2:] == ["completed", "prioritized"]
    assert harness.counts() == {"prioritized": 1}
    assert harness.engine.state.totals.completed == 1
    assert harness.pull_id() == "a"


def test_it_wakes_a_pull_and_stands_behind_what_was_there_before(harness):
    complete(harness)
    before = harness.push()
    harness.wakes()

    harness.send("RetryCompleted", queue="q", id="a")

    assert harness.wakes() == {"q": 1}
    assert harness.pull_all() == [before, "a"]


def test_the_row_is_exchanged_for_a_waiting_one_and_its_result_stays(harness):
    complete(harness)
    seq = harness.engine.state.next_seq

    harness.send("RetryCompleted", queue="q", id="a")

    batch = harness.batches[-1]
    [row] = batch.reruns
    assert (row[0], row[1], row[20], row[8]) == (seq, "a", "waiting", None)
    assert (batch.deleted, batch.results_gone) == ([], [])
    assert len(batch.extras) == 1


@pytest.mark.parametrize("queue", ["other", "ghost"])
def test_it_must_be_of_that_queue(harness, queue):
    complete(harness)

    assert harness.send("RetryCompleted", queue=queue, id="a").count == 0
    assert harness.counts() == {"completed": 1}


def test_one_that_is_not_completed_counts_nothing(harness):
    harness.push(jobId="waiting")

    assert harness.send("RetryCompleted", queue="q", id="waiting").count == 0
    assert harness.send("RetryCompleted", queue="q", id="nope").count == 0


def test_one_that_runs_already_is_not_run_twice(harness):
    complete(harness)
    with harness.pending():
        harness.send("RetryCompleted", queue="q", id="a")
        assert harness.state("a") == "completed"
        assert harness.send("GetResult", id="a").result == raw("old")
        with pytest.raises(PendingChangeError):
            harness.send("RetryCompleted", queue="q", id="a")
        with pytest.raises(PendingChangeError):
            harness.send("PUSH", queue="q", data=1, jobId="a")
        harness.commit()

    assert harness.send("RetryCompleted", queue="q", id="a").count == 0


def test_a_rejected_rerun_leaves_the_job_completed_and_its_key_free(harness):
    complete(harness, uniqueKey="u")
    with harness.pending():
        harness.send("RetryCompleted", queue="q", id="a")
        harness.reject()

    assert harness.state("a") == "completed"
    assert harness.counts() == {"completed": 1}
    assert harness.push(uniqueKey="u") != "a"


def test_unique_key_and_custom_id_are_registered_again(harness):
    complete(harness, uniqueKey="u")

    harness.send("RetryCompleted", queue="q", id="a")

    assert harness.push(uniqueKey="u") == "a"
    assert harness.push(jobId="a") == "a"
    assert harness.ask("GetJobByCustomId", customId="a")["job"]["id"] == "a"


def test_a_key_that_another_job_holds_prevents_it(harness):
    complete(harness, uniqueKey="u")
    holder = harness.push(uniqueKey="u")

    assert harness.send("RetryCompleted", queue="q", id="a").count == 0
    assert harness.state("a") == "completed"
    assert harness.push(uniqueKey="u") == holder


def test_a_key_whose_time_is_over_does_not(harness):
    complete(harness, uniqueKey="u")
    harness.push(uniqueKey="u", dedup={"ttl": 1_000})
    harness.clock.advance(1_000)

    assert harness.send("RetryCompleted", queue="q", id="a").count == 1


def test_the_old_result_is_asked_of_the_file_until_the_next_completion(harness):
    complete(harness)
    harness.send("RetryCompleted", queue="q", id="a")

    assert needs_facts(harness, "GetResult", id="a") == ["a"]
    record = harness.job("a").record
    harness.engine.find_facts({"a": CompletedJob(record, raw("old"))})
    assert harness.send("GetResult", id="a").result == raw("old")
    harness.engine.clear_facts()
    harness.ack(*harness.pull(), result="new")
    assert harness.send("GetResult", id="a").result == raw("new")
    assert harness.engine.state.old_results == {}


def test_an_old_result_does_not_make_a_job_count_as_completed(harness):
    complete(harness)
    harness.send("RetryCompleted", queue="q", id="a")

    harness.engine.find_facts({"a": CompletedJob(harness.job("a").record, raw("old"))})

    assert harness.engine.state.facts == {"a": None}


def test_completing_again_without_a_result_ends_the_old_one(harness):
    complete(harness)
    harness.send("RetryCompleted", queue="q", id="a")

    harness.ack(*harness.pull())

    assert harness.batches[-1].results_gone == ["a"]
    assert harness.send("GetResult", id="a").result is UNSET


def test_one_that_only_the_file_knows_is_looked_up(harness):
    harness = EngineHarness(history=History(max_jobs=1))
    complete(harness, "a")
    complete(harness, "b")

    assert needs_facts(harness, "RetryCompleted", queue="q", id="a") == ["a"]
    harness.engine.find_facts({"a": completed("a")})
    assert harness.send("RetryCompleted", queue="q", id="a").count == 1
    assert harness.counts() == {"completed": 1, "waiting": 1}


def test_one_that_is_gone_when_the_transaction_comes_is_not_brought_back(harness):
    complete(harness, uniqueKey="u")
    with harness.pending():
        harness.send("RetryCompleted", queue="q", id="a")
        harness.land(harness.take(), missing=["a"])

    assert "a" not in harness.engine.state.jobs
    assert harness.pull() is None
    assert harness.push(uniqueKey="u") != "a"


@pytest.mark.parametrize("in_flight", [False, True])
def test_one_that_a_flush_is_about_to_delete_is_left_alone(harness, in_flight):
    complete(harness)
    found = harness.engine.state.history.get("a")
    with harness.pending():
        harness.engine.expire_completed([("a", "q")], harness.now.wall_ms + 1)
        flight = harness.take() if in_flight else None
        assert harness.engine.reruns.rerun("q", [found], harness.now) == 0
        if flight is not None:
            harness.land(flight)


def test_without_an_id_the_pages_of_the_file_are_asked_for(harness):
    with pytest.raises(PagesNeededError) as caught:
        harness.send("RetryCompleted", queue="q")

    assert caught.value.queue == "q"


def test_a_page_is_brought_back_as_far_as_it_can_be(harness):
    for job_id in ("a", "b"):
        complete(harness, job_id)
    harness.push(jobId="live")
    page = [harness.engine.state.history.get(job_id) for job_id in ("a", "b")]

    count = harness.engine.reruns.rerun("q", [*page, completed("live"), completed("c", "other")], harness.now)

    harness.commit()
    assert count == 2
    assert harness.pull_all() == ["live", "a", "b"]


def test_a_page_of_a_queue_that_is_being_obliterated_has_to_wait(harness):
    complete(harness)
    page = [harness.engine.state.history.get("a")]
    with harness.pending():
        harness.send("Obliterate", queue="q")
        with pytest.raises(PendingChangeError):
            harness.engine.reruns.rerun("q", page, harness.now)


def test_jobs_that_come_to_depend_on_a_rerun_wait_for_its_end(harness):
    complete(harness)
    harness.send("RetryCompleted", queue="q", id="a")

    harness.push(jobId="heir", dependsOn=["a"])

    assert harness.state("heir") == "waiting-children"
    harness.ack(*harness.pull())
    assert harness.state("heir") == "waiting"


def test_a_job_whose_own_dependencies_have_completed_is_not_parked_again(harness):
    complete(harness, "dep")
    complete(harness, "a", dependsOn=["dep"])

    harness.send("RetryCompleted", queue="q", id="a")

    assert harness.job("a").state is JobState.READY
    harness.ack(*harness.pull())
    assert harness.engine.state.dependents == {}


def test_a_job_that_only_memory_can_tell_of_needs_no_file(harness):
    complete(harness)

    try:
        harness.send("RetryCompleted", queue="q", id="a")
    except FactsNeededError:  # pragma: no cover
        pytest.fail("memory knew it")


# how many, and how old


@pytest.mark.parametrize("count", [0, None, -1])
def test_none_at_all_is_answered_at_once(harness, count):
    complete(harness)

    assert harness.send("RetryCompleted", queue="q", count=count).count == 0
    assert harness.state("a") == "completed"


def test_how_many_and_how_old_is_passed_on_to_whoever_reads_the_pages(harness):
    complete(harness)

    with pytest.raises(PagesNeededError) as needed:
        harness.send("RetryCompleted", queue="q", count=2, timestamp=5)
    assert (needed.value.queue, needed.value.count, needed.value.completed_by) == ("q", 2, 5)
    with pytest.raises(PagesNeededError) as needed:
        harness.send("RetryCompleted", queue="q")
    assert (needed.value.count, needed.value.completed_by) == (None, None)


@pytest.mark.parametrize(("later", "count"), [(-1, 0), (0, 1), (1, 1)])
def test_one_by_id_must_have_completed_by_then_too(harness, later, count):
    complete(harness)

    timestamp = harness.now.wall_ms + later
    assert harness.send("RetryCompleted", queue="q", id="a", timestamp=timestamp).count == count


def test_a_count_says_nothing_about_one_by_id(harness):
    complete(harness)

    assert harness.send("RetryCompleted", queue="q", id="a", count=0).count == 1
