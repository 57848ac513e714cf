"""Drain and Obliterate: what goes, what stays, what happens between the command and its commit."""

import pytest
from msgspec import UNSET

from bunqueue_trio.engine.history import History
from bunqueue_trio.engine.state import PendingChangeError
from tests.engine_harness import EngineHarness

EVERY_STATE = ("waiting", "prioritized", "delayed", "parked", "active", "completed", "failed")


@pytest.fixture
def harness() -> EngineHarness:
    """A queue "q" with a job in every state, named by it, and a job of another queue."""
    harness = EngineHarness()
    for job_id, options in (("failed", {"maxAttempts": 1}), ("completed", {}), ("active", {"uniqueKey": "a"})):
        harness.push(jobId=job_id, **options)
        pulled = harness.pull()
        assert pulled is not None
        if job_id == "failed":
            harness.fail(*pulled)
        elif job_id == "completed":
            harness.ack(*pulled, result=1)
    harness.push(jobId="waiting", uniqueKey="k", dedup={"ttl": 60_000, "extend": True})
    harness.push(jobId="prioritized", priority=3)
    harness.push(jobId="delayed", delay=60_000)
    harness.push(jobId="parked", dependsOn=["active"])
    harness.push("other", jobId="other")
    harness.commit()
    return harness


def states(harness: EngineHarness) -> list[str]:
    return [harness.state(job_id) for job_id in EVERY_STATE]


# drain


def test_drain_removes_what_is_queued_and_nothing_else(harness):
    harness.send("Pause", queue="q")

    assert harness.send("Drain", queue="q").count == 3

    assert states(harness) == ["unknown"] * 3 + ["waiting-children", "active", "completed", "failed"]
    assert harness.counts() == {"active": 1, "completed": 1, "failed": 1, "waiting-children": 1}
    assert sorted(harness.batches[-1].deleted) == ["delayed", "prioritized", "waiting"]
    assert harness.send("IsPaused", queue="q").paused
    assert harness.state("other") == "waiting"


def test_drain_frees_keys_and_ids(harness):
    harness.send("Drain", queue="q")

    assert harness.push(uniqueKey="k", dedup={"ttl": 60_000, "extend": True}) != "waiting"
    assert harness.push(jobId="waiting") == "waiting"
    assert harness.counts()["waiting"] == 2


@pytest.mark.parametrize("queue", ["ghost", "other", "q"])
def test_draining_nothing_counts_nothing(harness, queue):
    harness.send("Drain", queue="q")
    harness.send("Drain", queue="other")

    with harness.pending():
        assert harness.send("Drain", queue=queue).count == 0
    assert not harness.engine.state.changes.staged


def test_drain_takes_members_that_a_busy_group_has_set_aside():
    harness = EngineHarness()
    for _ in range(3):
        harness.push(groupId="g")
    job_id, token = harness.pull()
    assert harness.pull() is None  # the other two step aside

    assert harness.send("Drain", queue="q").count == 2
    harness.ack(job_id, token)
    harness.push(groupId="g")
    assert harness.pull_id() is not None


def test_until_the_commit_a_drained_job_is_seen_but_not_to_be_had(harness):
    with harness.pending():
        harness.send("Drain", queue="q")

        assert harness.state("waiting") == "waiting"
        assert harness.pull() is None
        for cmd, fields in (
            ("Cancel", {"id": "waiting"}),
            ("Promote", {"id": "delayed"}),
            ("PUSH", {"queue": "q", "data": 1, "jobId": "waiting"}),
            ("Drain", {"queue": "q"}),
            ("Obliterate", {"queue": "q"}),
        ):
            with pytest.raises(PendingChangeError):
                harness.send(cmd, **fields)


def test_a_push_between_drain_and_commit_stays(harness):
    with harness.pending():
        harness.send("Drain", queue="q")
        early = harness.push()
        flight = harness.take()
        late = harness.push()
        harness.land(flight)

    assert early not in flight.batch.deleted
    assert harness.counts()["waiting"] == 2
    assert {harness.pull_id(), harness.pull_id()} == {early, late}


def test_a_drain_that_cannot_be_stored_has_not_happened(harness):
    before = harness.counts()
    with harness.pending():
        harness.send("Drain", queue="q")
        harness.reject()

    assert harness.counts() == before
    assert harness.send("Drain", queue="q").count == 3


def test_a_pushed_job_that_was_never_written_is_drained_without_a_row():
    harness = EngineHarness()
    harness.push()
    harness.send("Drain", queue="q")

    batch = harness.batches[-1]
    assert (batch.plain, batch.deleted) == ([], [])


def test_drain_takes_along_a_job_that_is_being_moved(harness):
    with harness.pending():
        harness.send("ChangePriority", id="waiting", priority=5)
        assert harness.send("Drain", queue="q").count == 3
        batch = harness.commit()

    assert "waiting" in batch.deleted
    assert batch.full == []
    assert harness.state("waiting") == "unknown"


def test_drain_takes_along_a_job_whose_move_is_on_its_way_into_the_file(harness):
    with harness.pending():
        harness.send("ChangePriority", id="waiting", priority=5)
        first = harness.take()
        harness.send("Drain", queue="q")
        harness.land(first)
        assert harness.pull() is None
        batch = harness.commit()

    assert "waiting" in batch.deleted
    assert harness.state("waiting") == "unknown"


def test_a_refused_drain_leaves_a_move_on_its_way_alone(harness):
    with harness.pending():
        harness.send("ChangePriority", id="waiting", priority=5)
        first = harness.take()
        harness.send("Drain", queue="q")
        staged, harness.engine.state.changes.staged = harness.engine.state.changes.staged, []
        harness.engine.drop_staged(staged, harness.now)
        harness.land(first)

    assert harness.pull_id() == "waiting"


# obliterate


def test_obliterate_leaves_nothing(harness):
    for cmd, fields in (
        ("Pause", {}),
        ("SetConcurrency", {"limit": 1}),
        ("RateLimit", {"limit": 1}),
        ("SetStallConfig", {"config": {"maxStalls": 9}}),
        ("SetDlqConfig", {"config": {"maxEntries": 7}}),
    ):
        harness.send(cmd, queue="q", **fields)

    harness.send("Obliterate", queue="q")

    assert states(harness) == ["unknown"] * 7
    assert harness.counts() == {}
    assert harness.ask("ListQueues")["queues"] == ["other"]
    assert not harness.send("IsPaused", queue="q").paused
    assert harness.send("GetStallConfig", queue="q").config.max_stalls == 3
    assert harness.send("GetDlqConfig", queue="q").config.max_entries == 10_000
    assert harness.send("GetResult", id="completed").result is UNSET
    batch = harness.batches[-1]
    assert sorted(batch.deleted) == ["active", "delayed", "parked", "prioritized", "waiting"]
    assert [name for name, _ in batch.emptied] == batch.settings_gone == batch.policies_gone == ["q"]
    assert harness.state("other") == "waiting"


def test_the_holder_of_an_obliterated_job_is_let_down_gently(harness):
    token = harness.job("active").lease.token

    harness.send("Obliterate", queue="q")

    assert harness.ack("active", token).ok
    assert harness.fail("active", token).ok
    assert harness.refusal("ACK", id="active") == "Job not found or not in processing state: active"
    assert harness.state("active") == "unknown"
    assert harness.engine.active_count == 0


def test_an_obliterated_queue_starts_anew(harness):
    harness.send("Obliterate", queue="q")

    again = [harness.push(uniqueKey="a"), harness.push(jobId="waiting"), harness.push(jobId="completed")]

    assert harness.pull_all() == again
    assert harness.ask("ListQueues")["queues"] == ["other", "q"]


def test_obliterating_an_unknown_queue_is_a_plain_ok(harness):
    """Given that the file may still know what has once ended in it, so it is asked to forget that."""
    harness.engine.listen(True)
    assert harness.send("Obliterate", queue="ghost").ok

    assert [queue for queue, _ in harness.batches[-1].emptied] == ["ghost"]
    assert "ghost" not in harness.engine.state.queues
    assert harness.engine.state.events == []
    assert not harness.engine.state.changes.staged


def test_those_who_listen_hear_of_a_queue_that_had_only_settings(harness):
    harness.send("Pause", queue="ghost")
    harness.engine.listen(True)
    harness.send("Obliterate", queue="ghost")

    told = [event.event for event in harness.engine.state.events]
    assert told == ["queue:obliterated", "queue:removed"]


def test_an_empty_queue_survives_the_sweep_until_it_is_obliterated():
    harness = EngineHarness()
    harness.push(removeOnComplete=True)
    harness.ack(*harness.pull())
    with harness.pending():
        harness.send("Obliterate", queue="q")
        harness.advance(20_000)
        harness.commit()

    assert harness.ask("ListQueues")["queues"] == []


def test_pushes_between_obliterate_and_commit_stay_and_nobody_loses_the_name(harness):
    with harness.pending():
        harness.send("Obliterate", queue="q")
        early = harness.push()
        flight = harness.take()
        late = harness.push(durable=True)
        harness.land(flight)
        assert harness.state("waiting") == "unknown"
        harness.commit()

    assert harness.counts() == {"waiting": 2}
    assert harness.pull_all() == [early, late]
    assert "q" in harness.ask("ListQueues")["queues"]


def test_a_job_that_comes_and_completes_meanwhile_is_counted(harness):
    harness.send("Cancel", id="prioritized")
    with harness.pending():
        harness.send("Obliterate", queue="q")
        harness.push(jobId="new")
        harness.ack(*harness.pull())
        harness.commit()

    assert harness.counts() == {"completed": 1}


def test_obliterate_waits_for_no_change_of_others(harness):
    """Each change that waits for its commit in the same flush is not written any more, and its job goes."""
    token = harness.job("active").lease.token
    with harness.pending():
        harness.send("PUSH", queue="q", data=1, jobId="durable", durable=True)
        harness.ack("active", token, result=1)
        harness.send("Cancel", id="waiting")
        harness.send("ChangePriority", id="prioritized", priority=9)
        harness.send("RetryDlq", queue="q", jobId="failed")
        harness.send("RetryCompleted", queue="q", id="completed")
        harness.send("Pause", queue="q")

        harness.send("Obliterate", queue="q")
        batch = harness.commit()

    written = (batch.plain, batch.full, batch.states, batch.reruns, batch.results, batch.letters, batch.settings)
    assert not any(written)
    assert {"active", "waiting", "prioritized"} <= set(batch.deleted)
    assert [*states(harness), harness.state("durable")] == ["unknown"] * 8
    assert harness.counts() == {}
    assert harness.ask("ListQueues")["queues"] == ["other"]
    assert harness.engine.state.totals.completed == 2  # the ACK was confirmed


@pytest.mark.parametrize("how", ["land", "crash", "withdraw"])
def test_obliterate_takes_along_changes_on_their_way_into_the_file(harness, how):
    token = harness.job("active").lease.token
    before = states(harness)
    with harness.pending():
        harness.send("PUSH", queue="q", data=1, jobId="durable", durable=True)
        harness.ack("active", token, result=1)
        harness.send("ChangePriority", id="prioritized", priority=9)
        harness.send("RetryDlq", queue="q", jobId="failed")
        first = harness.take()
        harness.send("Obliterate", queue="q")
        getattr(harness, how)(first)
        harness.commit()

    if how == "crash":
        assert states(harness) == before
        assert harness.state("durable") == "unknown"
        harness.send("Obliterate", queue="q")
    assert [*states(harness), harness.state("durable")] == ["unknown"] * 8
    assert harness.counts() == {}


def test_a_final_failure_on_its_way_is_taken_along(harness):
    token = harness.job("active").lease.token
    with harness.pending():
        harness.fail("active", token, unrecoverable=True)
        first = harness.take()
        harness.send("Obliterate", queue="q")
        harness.land(first)
        assert harness.state("active") == "failed"
        with pytest.raises(PendingChangeError):
            harness.send("RetryDlq", queue="q", jobId="active")
        harness.commit()

    assert harness.dead_letters() == []
    assert harness.state("active") == "unknown"


def test_an_obliterate_that_cannot_be_stored_has_not_happened(harness):
    before, counts = states(harness), harness.counts()
    with harness.pending():
        harness.send("Obliterate", queue="q")
        harness.reject()

    assert (states(harness), harness.counts()) == (before, counts)
    assert harness.ack("active", harness.job("active").lease.token).ok
    assert harness.state("parked") == "waiting"


def test_a_holder_that_left_while_a_refused_obliterate_was_pending_has_lost_its_job(harness):
    with harness.pending():
        harness.send("Obliterate", queue="q")
        harness.disconnect()
        harness.reject()

    assert harness.state("active") == "waiting"
    assert harness.job("active").record.attempts == 1


def test_settings_made_after_obliterate_start_from_the_defaults(harness):
    harness.send("Pause", queue="q")
    with harness.pending():
        harness.send("Obliterate", queue="q")
        harness.send("SetConcurrency", queue="q", limit=4)
        harness.commit()

    settings = harness.engine.state.queues["q"].settings
    assert (settings.paused, settings.concurrency_limit) == (False, 4)
    assert [row[0] for row in harness.batches[-1].settings] == ["q"]


def test_settings_wait_for_an_obliterate_that_is_being_written(harness):
    with harness.pending():
        harness.send("Obliterate", queue="q")
        flight = harness.take()
        with pytest.raises(PendingChangeError):
            harness.send("Pause", queue="q")
        harness.land(flight)
        harness.send("Pause", queue="q")


def test_a_letter_that_was_never_written_leaves_no_row(harness):
    harness.push(jobId="lost", maxAttempts=1, priority=9)
    harness.pull()
    with harness.pending():
        harness.disconnect()
        harness.send("Obliterate", queue="q")
        batch = harness.commit()

    assert batch.letters == []


def test_jobs_of_other_queues_stay_parked_for_what_will_never_complete(harness):
    harness.push("other", jobId="heir", dependsOn=["waiting"])

    harness.send("Obliterate", queue="q")

    assert harness.state("heir") == "waiting-children"


def test_what_has_completed_is_remembered_for_those_who_name_it(harness):
    harness.push("other", jobId="heir", dependsOn=["completed", "other"])

    with harness.pending():
        harness.send("Obliterate", queue="q")
        flight = harness.take()
        harness.land(flight, kept=["completed"])

    [(_, named)] = flight.batch.emptied
    assert "completed" in named
    assert harness.engine.state.kept_finished == {"completed"}
    harness.send("Cancel", id="heir")
    assert harness.commit().finished_gone == ["completed"]


def test_what_is_named_anew_before_the_next_commit_stays_remembered(harness):
    harness.push("other", jobId="heir", dependsOn=["completed", "other"])
    with harness.pending():
        clean, question = harness.question("Clean", queue="q", grace=0, state="completed")
        question.ids = ["completed"]
        harness.answered(clean, question)
        harness.send("Obliterate", queue="q")
        harness.send("Cancel", id="heir")
        harness.land(harness.take(), kept=["completed"])

        harness.push("other", jobId="heir", dependsOn=["completed", "other"])

    batch = harness.commit()
    assert (batch.finished, batch.finished_gone) == (["completed"], [])
    assert harness.engine.state.kept_finished == {"completed"}


def test_what_nobody_names_any_more_when_the_commit_comes_is_not_remembered(harness):
    with harness.pending():
        harness.send("Obliterate", queue="q")
        harness.land(harness.take(), kept=["completed"])  # whoever named it has ended since

    assert harness.engine.state.kept_finished == set()
    assert harness.commit().finished_gone == ["completed"]


def test_a_completion_that_was_stored_stays_when_the_obliteration_behind_it_fails(harness):
    with harness.pending():
        harness.send("ACK", id="active", token=harness.job("active").lease.token, result=1)
        flight = harness.take()
        harness.send("Obliterate", queue="q")
        harness.land(flight)
        harness.reject()

    assert (harness.state("active"), harness.counts()["completed"]) == ("completed", 2)


def test_what_lives_again_when_the_commit_comes_is_not_remembered_as_completed(harness):
    harness.push("other", jobId="heir", dependsOn=["completed", "other"])
    with harness.pending():
        harness.send("Obliterate", queue="q")
        harness.push("other", jobId="completed")
        harness.land(harness.take(), kept=["completed"])

    assert harness.engine.state.kept_finished == set()
    assert "completed" in harness.commit().finished_gone


def test_a_completion_on_its_way_is_remembered_for_those_who_name_it(harness):
    harness.push("other", jobId="heir", dependsOn=["active", "other"])
    with harness.pending():
        harness.ack("active", harness.job("active").lease.token)
        harness.send("Obliterate", queue="q")
        batch = harness.commit()

    assert batch.finished == ["active"]
    assert "active" in harness.engine.state.kept_finished
    assert harness.job("heir").missing == {"other"}


def test_nobody_can_come_to_depend_on_a_completed_job_that_is_going(harness):
    with harness.pending():
        harness.send("Obliterate", queue="q")
        with pytest.raises(PendingChangeError):
            harness.send("PUSH", queue="other", data=1, dependsOn=["completed"])
        harness.commit()

    refusal = harness.refusal("PUSH", queue="other", data=1, dependsOn=["completed"])
    assert refusal == "Dependency job not found: completed"


def test_completed_jobs_beyond_the_window_are_counted_out_too():
    harness = EngineHarness(history=History(max_jobs=1))
    for _ in range(3):
        harness.push()
        harness.ack(*harness.pull())
    harness.send("Obliterate", queue="q")

    assert harness.counts() == {}


def test_an_expiry_that_waits_for_its_flush_does_not_outlive_the_queue(harness):
    with harness.pending():
        harness.engine.expire_completed([("completed", "q")], harness.now.wall_ms + 1)
        harness.send("Obliterate", queue="q")
        flight = harness.take()
        harness.engine.expire_completed([("completed", "q")], harness.now.wall_ms + 1)
        harness.land(flight)

    assert harness.counts() == {}
    assert harness.engine.state.changes.expired == {}


@pytest.mark.parametrize(
    ("cmd", "gone"),
    [
        ("Drain", []),
        ("PurgeDlq", ["failed"]),
        ("Obliterate", ["active", "completed", "delayed", "failed", "parked", "prioritized", "waiting"]),
    ],
)
def test_log_lines_go_with_jobs_that_are_deleted_with_all_they_have(harness, monkeypatch, cmd, gone):
    forgotten: list[str] = []
    monkeypatch.setattr(harness.engine.state, "forget_logs", forgotten.append)

    harness.send(cmd, queue="q")

    assert sorted(forgotten) == gone


@pytest.mark.parametrize("cmd", ["RetryDlq", "PurgeDlq"])
def test_a_queue_nobody_knows_has_no_dead_letters(harness, cmd):
    assert harness.send(cmd, queue="ghost").count == 0
    assert "ghost" not in harness.engine.state.queues


def test_a_hundred_thousand_jobs_take_one_record():
    harness = EngineHarness(checks=False, auto_commit=False)
    for _ in range(100):
        harness.push_many("q", [{}] * 1_000)

    assert harness.send("Drain", queue="q").count == 100_000
    assert len(harness.engine.state.changes.staged) == 1
    harness.commit()
    assert (harness.engine.state.jobs, harness.counts()) == ({}, {})
