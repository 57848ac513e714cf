"""Clean: which jobs go, which stay, and when. Source: commands, 6; CD-11, CD-12."""

import pytest
from msgspec import UNSET

from bunqueue_trio.engine.history import History
from bunqueue_trio.engine.reading import ReadNeededError
from bunqueue_trio.engine.state import PendingChangeError
from tests.engine_harness import EngineHarness


@pytest.fixture
def harness() -> EngineHarness:
    return EngineHarness()


def clean(harness: EngineHarness, **fields) -> list[str]:
    reply = harness.ask("Clean", **{"queue": "q", "grace": 0, **fields})
    assert reply["count"] == len(reply["ids"])
    return reply["ids"]


def one_of_each(harness: EngineHarness) -> None:
    harness.push(jobId="dead", maxAttempts=1)
    harness.fail(*harness.pull())
    harness.push(jobId="running")
    harness.pull()
    harness.push(jobId="ready")
    harness.push(jobId="urgent", priority=1)
    harness.push(jobId="later", delay=60_000)
    harness.push(jobId="parked", dependsOn=["ready"])


# states


@pytest.mark.parametrize(
    ("state", "gone"),
    [
        (None, {"ready", "urgent", "later"}),
        ("waiting", {"ready"}),
        ("wait", {"ready"}),
        ("prioritized", {"urgent"}),
        ("delayed", {"later"}),
        ("failed", {"dead"}),
        ("completed", set()),
        ("active", set()),
        ("waiting-children", set()),
        ("paused", set()),
        ("bogus", set()),
        ("", set()),
    ],
)
def test_only_jobs_of_the_state_go(harness, state, gone):
    one_of_each(harness)

    assert set(clean(harness, state=state)) == gone

    left = {"dead", "running", "ready", "urgent", "later", "parked"} - gone
    assert {job["id"] for job in harness.ask("GetJobs", queue="q")["jobs"]} == left
    assert all(harness.state(job_id) == "unknown" for job_id in gone)


def test_paused_means_the_ready_jobs_of_a_paused_queue(harness):
    one_of_each(harness)
    harness.send("Pause", queue="q")

    assert set(clean(harness, state="paused")) == {"ready", "urgent"}


def test_waiting_jobs_of_a_paused_queue_go_as_ever(harness):
    harness.push(jobId="a")
    harness.send("Pause", queue="q")

    assert clean(harness, state="waiting") == ["a"]


def test_a_delay_that_has_run_out_makes_a_job_waiting(harness):
    harness.push(jobId="a", delay=100)
    harness.clock.advance(100)

    assert clean(harness, state="delayed") == []
    assert clean(harness, state="waiting") == ["a"]


def test_other_queues_are_left_alone(harness):
    harness.push("other", jobId="a")

    assert clean(harness) == []
    assert clean(harness, queue="ghost") == []
    assert "ghost" not in harness.engine.state.queues
    assert clean(harness, queue="other") == ["a"]


# age and number


def test_queued_jobs_are_as_old_as_their_creation(harness):
    at = harness.now.wall_ms
    harness.push(jobId="young", timestamp=at - 999)
    harness.push(jobId="old", timestamp=at - 1_000, delay=5_000)
    harness.push(jobId="older", timestamp=at - 5_000)

    assert clean(harness, grace=1_000) == ["older", "old"]
    assert harness.state("young") == "waiting"


def test_failed_jobs_are_as_old_as_their_failure(harness):
    harness.push(jobId="first", maxAttempts=1, timestamp=1)
    harness.push(jobId="second", maxAttempts=1, timestamp=2)
    harness.fail(*harness.pull())
    harness.advance(1_000)
    harness.fail(*harness.pull())

    assert clean(harness, state="failed", grace=1_000) == ["first"]
    assert clean(harness, state="failed", grace=1_000) == []
    harness.advance(1_000)
    assert clean(harness, state="failed", grace=1_000) == ["second"]


@pytest.mark.parametrize("state", ["waiting", "failed"])
def test_the_limit_counts_what_goes_and_the_oldest_go_first(harness, state):
    for name in "cab":
        harness.push(jobId=name, timestamp=ord(name), maxAttempts=1)
    expected = ["a", "b", "c"]
    if state == "failed":
        expected = [harness.pull_id() for _ in range(3)]
        for job_id in expected:
            harness.fail(job_id, harness.job(job_id).lease.token)

    assert clean(harness, state=state, limit=0) == []
    assert clean(harness, state=state, limit=2) == expected[:2]
    assert clean(harness, state=state, limit=2) == expected[2:]


def test_a_thousand_go_unless_more_are_asked_for(harness):
    pushed = harness.push_many("q", [{}] * 1_000)
    pushed += harness.push_many("q", [{}] * 500)

    assert clean(harness) == pushed[:1_000]
    assert clean(harness, limit=5_000) == pushed[1_000:]


def test_jobs_that_are_pulled_do_not_use_up_the_limit(harness):
    harness.push_many("q", [{"customId": f"j{n}"} for n in range(4)])
    harness.pull()

    assert clean(harness, limit=2) == ["j1", "j2"]


# what goes with a job


@pytest.mark.parametrize("options", [{"uniqueKey": "k"}, {"uniqueKey": "k", "dedup": {"ttl": 60_000, "extend": True}}])
def test_unique_key_and_custom_id_are_free_again(harness, options):
    harness.push(jobId="a", **options)
    clean(harness)

    assert harness.push(jobId="a") == "a"
    assert harness.push(jobId="b", **options) == "b"


def test_jobs_that_depend_on_it_stay_parked(harness):
    one_of_each(harness)
    clean(harness, state="waiting")

    assert harness.state("parked") == "waiting-children"


def test_rows_go_in_one_transaction(harness):
    one_of_each(harness)
    harness.commit()
    clean(harness)
    clean(harness, state="failed")

    queued, failed = harness.batches[-2:]
    assert sorted(queued.deleted) == ["later", "ready", "urgent"]
    assert failed.letters_gone == ["dead"]


# staged


@pytest.mark.parametrize("state", [None, "failed"])
@pytest.mark.parametrize("how", ["land", "crash"])
def test_nothing_goes_before_the_commit(harness, state, how):
    one_of_each(harness)
    before = {job_id: harness.state(job_id) for job_id in ("ready", "urgent", "later", "dead")}
    with harness.pending():
        harness.send("Clean", queue="q", grace=0, state=state)
        assert harness.engine.state.waits_for_commit
        flight = harness.take()
        assert {job_id: harness.state(job_id) for job_id in before} == before
        assert state == "failed" or harness.pull() is None
        getattr(harness, how)(flight)

    after = {job_id: harness.state(job_id) for job_id in before}
    gone = {"dead"} if state == "failed" else {"ready", "urgent", "later"}
    assert after == (before if how == "crash" else {i: "unknown" if i in gone else s for i, s in before.items()})


def test_a_job_with_a_change_under_way_is_waited_for_and_nothing_has_changed(harness):
    harness.push(jobId="first")
    harness.push(jobId="second")
    with harness.pending():
        harness.send("Cancel", id="second")
        with pytest.raises(PendingChangeError):
            harness.send("Clean", queue="q", grace=0)
        assert harness.state("first") == "waiting"
        assert len(harness.engine.state.changes.staged) == 1


# completed jobs


def complete(harness: EngineHarness, *names: str) -> None:
    for name in names:
        harness.push(jobId=name)
        harness.ack(*harness.pull(), result=name)


def ask(harness: EngineHarness, **fields):
    return harness.question("Clean", **{"queue": "q", "grace": 0, "state": "completed", **fields})


def test_the_file_is_asked_for_the_oldest(harness):
    complete(harness, "a")

    command, question = ask(harness, grace=500, limit=7)

    assert question.command is command
    assert (question.queue, question.limit, question.over) == ("q", 7, [])
    assert question.until == harness.now.wall_ms - 500


def test_without_completed_jobs_or_a_limit_the_file_is_not_asked(harness):
    assert clean(harness, state="completed") == []
    complete(harness, "a")
    assert clean(harness, state="completed", limit=0) == []


@pytest.mark.parametrize("how", ["land", "crash"])
def test_completed_jobs_go_with_row_and_result_at_the_commit(harness, how):
    complete(harness, "a", "b", "c")
    forgotten = []
    harness.engine.state.forget_logs = forgotten.append
    with harness.pending():
        command, question = ask(harness)
        question.ids = ["a", "b"]

        reply = harness.answered(command, question)

        assert (reply.count, reply.ids) == (2, ["a", "b"])
        assert harness.counts() == {"completed": 3}
        flight = harness.take()
        assert flight.batch.deleted == ["a", "b"]
        assert flight.batch.finished == []
        getattr(harness, how)(flight)

    gone = how == "land"
    assert harness.counts() == {"completed": 1 if gone else 3}
    assert harness.state("a") == ("unknown" if gone else "completed")
    assert forgotten == (["a", "b"] if gone else [])
    assert harness.engine.state.removing == set()
    assert harness.send("GetResult", id="a").result is UNSET or not gone


def test_dead_letters_lose_their_logs(harness):
    forgotten = []
    one_of_each(harness)
    harness.engine.state.forget_logs = forgotten.append
    clean(harness)
    assert forgotten == []
    clean(harness, state="failed")

    assert forgotten == ["dead"]


def test_two_cleans_do_not_remove_the_same_job(harness):
    complete(harness, "a")
    with harness.pending():
        first, second = ask(harness), ask(harness)
        first[1].ids = second[1].ids = ["a"]
        harness.answered(*first)

        with pytest.raises(PendingChangeError):
            harness.answered(*second)
        harness.commit()
        assert harness.engine.state.queues["q"].completed_count == 0


@pytest.mark.parametrize("is_flying", [False, True])
def test_a_job_that_lives_again_since_the_question_stays(harness, is_flying):
    complete(harness, "a")
    with harness.pending():
        command, question = ask(harness)
        question.ids = ["a"]
        harness.push(jobId="a")
        flight = harness.take() if is_flying else None
        with pytest.raises(ReadNeededError):
            harness.answered(command, question)
        if flight is not None:
            harness.land(flight)
        assert harness.state("a") == "waiting"


@pytest.mark.parametrize("is_flying", [False, True])
def test_a_job_that_has_expired_since_the_question_is_not_counted_out_twice(harness, is_flying):
    complete(harness, "a", "b")
    with harness.pending():
        command, question = ask(harness)
        question.ids = ["a"]
        harness.engine.expire_completed([("a", "q")], harness.now.wall_ms)
        flight = harness.take() if is_flying else None
        with pytest.raises(ReadNeededError):
            harness.answered(command, question)
        assert harness.engine.state.queues["q"].completed_count == 1
        if flight is not None:
            harness.land(flight)


def test_retention_leaves_alone_what_is_being_cleaned(harness):
    complete(harness, "a")
    with harness.pending():
        command, question = ask(harness)
        question.ids = ["a"]
        harness.answered(command, question)

        harness.engine.expire_completed([("a", "q")], harness.now.wall_ms)
        harness.commit()

    assert harness.engine.state.queues["q"].completed_count == 0


@pytest.mark.parametrize("batch", [False, True])
def test_an_id_that_is_about_to_go_lives_again_only_after_that(harness, batch):
    complete(harness, "a")
    with harness.pending():
        command, question = ask(harness)
        question.ids = ["a"]
        harness.answered(command, question)

        with pytest.raises(PendingChangeError):
            harness.push_many("q", [{"customId": "b"}, {"customId": "a"}]) if batch else harness.push(jobId="a")
        assert harness.state("b") == "unknown"
        harness.commit()
        assert harness.push(jobId="a") == "a"
        assert harness.counts() == {"waiting": 1}


# what others still depend on


def parked_on(harness: EngineHarness, *names: str) -> None:
    """A job that waits for ``open`` and for these."""
    harness.push(jobId="open", delay=60_000)
    harness.push(jobId="parked", dependsOn=["open", *names])


def test_the_id_of_a_dependency_outlives_its_row(harness):
    complete(harness, "a", "b")
    parked_on(harness, "a")
    command, question = ask(harness)
    question.ids = ["a", "b"]

    harness.answered(command, question)

    assert harness.batches[-1].finished == ["a"]
    assert harness.engine.state.kept_finished == {"a"}
    harness.send("Cancel", id="parked")
    assert harness.commit().finished_gone == ["a"]


def test_an_id_that_nobody_names_any_more_is_not_kept(harness):
    complete(harness, "a")
    parked_on(harness, "a")
    with harness.pending():
        command, question = ask(harness)
        question.ids = ["a"]
        harness.answered(command, question)
        harness.send("Cancel", id="parked")
        harness.commit()

        assert harness.commit().finished_gone == ["a"]
        assert harness.engine.state.kept_finished == set()


def test_an_id_that_somebody_names_meanwhile_is_kept(harness):
    complete(harness, "a")
    with harness.pending():
        command, question = ask(harness)
        question.ids = ["a"]
        harness.answered(command, question)
        flight = harness.take()
        parked_on(harness, "a")
        harness.land(flight)

        assert harness.commit().finished == ["a"]


def test_retention_counts_out_once_what_it_finds_again_before_the_flush(harness):
    complete(harness, "a", "b")

    harness.engine.expire_completed([("a", "q")], harness.now.wall_ms)
    harness.engine.expire_completed([("a", "q")], harness.now.wall_ms)

    assert harness.counts() == {"completed": 1}


def test_retention_keeps_the_ids_that_others_depend_on_too(harness):
    complete(harness, "a", "b")
    parked_on(harness, "a")

    harness.engine.expire_completed([("a", "q"), ("b", "q")], harness.now.wall_ms)

    batch = harness.commit()
    assert (batch.deleted, batch.finished) == (["a", "b"], ["a"])


def test_jobs_that_only_the_file_knows_are_removed_as_well():
    harness = EngineHarness(history=History(max_jobs=1))
    complete(harness, "a", "b")
    command, question = ask(harness)
    question.ids = ["a"]

    harness.answered(command, question)

    assert harness.batches[-1].deleted == ["a"]
    assert harness.counts() == {"completed": 1}
