"""Changes that wait for their commit: unseen before it, whole after it, without a trace when it fails."""

import pytest

from bunqueue_trio.engine.state import PendingChangeError
from bunqueue_trio.model.changes import Changes
from tests.engine_harness import EngineHarness, snapshot_of


@pytest.fixture
def harness() -> EngineHarness:
    return EngineHarness()


def job_waiting(harness):
    harness.push(jobId="j", backoff=0, uniqueKey="k")


def job_running(harness):
    job_waiting(harness)
    harness.pull()


def push_durably(harness):
    harness.push(jobId="new", durable=True, uniqueKey="fresh")


def push_batch(harness):
    harness.push_many("q", [{"customId": "a", "durable": True}, {"customId": "b", "dependsOn": ["a"]}, {}])


def replace_holder(harness):
    harness.push(jobId="new", durable=True, uniqueKey="k", dedup={"replace": True})


def replace_twice(harness):
    entry = {"durable": True, "uniqueKey": "k", "dedup": {"replace": True}}
    harness.push_many("q", [entry, entry])


def replace_and_reuse(harness):
    entry = {"durable": True, "uniqueKey": "k", "dedup": {"replace": True}}
    harness.push_many("q", [entry, {"customId": "j", "durable": True}])


def cancel(harness):
    harness.send("Cancel", id="j")


def ack(harness):
    harness.ack("j", harness.job("j").lease.token, result=1)


def fail(harness):
    harness.fail("j", harness.job("j").lease.token, error="e")


def bury(harness):
    harness.fail("j", harness.job("j").lease.token, unrecoverable=True)


def pause(harness):
    harness.send("Pause", queue="q")


def stall_config(harness):
    harness.send("SetStallConfig", queue="q", config={"maxStalls": 9})


def dead_letter(harness):
    harness.push(jobId="j", maxAttempts=1)
    harness.fail(*harness.pull())


def push_dead_id(harness):
    harness.push(jobId="j", durable=True)


def push_dead_id_and_replace_it(harness):
    harness.push_many(
        "q",
        [{"customId": "j", "uniqueKey": "k", "durable": True}, {"uniqueKey": "k", "dedup": {"replace": True}}],
    )


def completed(harness):
    job_running(harness)
    ack(harness)


def parked(harness):
    harness.push("deps", jobId="dep")
    harness.push(jobId="j", dependsOn=["dep"])


CASES = [
    (lambda _: None, push_durably),
    (lambda _: None, push_batch),
    (job_waiting, replace_holder),
    (job_running, replace_holder),
    (job_waiting, replace_twice),
    (job_running, replace_twice),
    (job_waiting, replace_and_reuse),
    (job_waiting, cancel),
    (parked, cancel),
    (job_running, ack),
    (job_running, fail),
    (job_running, bury),
    (job_waiting, pause),
    (job_waiting, stall_config),
    (dead_letter, push_dead_id),
    (dead_letter, push_dead_id_and_replace_it),
    (completed, push_dead_id),
]
cases = pytest.mark.parametrize(
    ("given", "change"), CASES, ids=lambda f: f.__name__ if f.__name__ != "<lambda>" else "nothing"
)


def seen(harness) -> dict:
    """All that shows, apart from what a reservation or a taken place hides."""
    return snapshot_of(harness.engine)


@cases
def test_a_rejected_commit_leaves_no_trace(harness, given, change):
    given(harness)
    harness.commit()
    before, results = seen(harness), harness.ask("GetResult", id="j")
    counters = [getattr(harness.engine.state.totals, n) for n in ("pushed", "completed", "failed")]

    with harness.pending():
        change(harness)
        assert harness.engine.state.waits_for_commit
        harness.reject()

    assert seen(harness) == before
    assert harness.ask("GetResult", id="j") == results
    assert [getattr(harness.engine.state.totals, n) for n in ("pushed", "completed", "failed")] == counters
    assert harness.engine.state.dependents.keys() <= {"dep"}
    batch = harness.commit()
    assert (batch.deleted, batch.letters, batch.results, batch.settings, batch.reborn) == ([], [], [], [], [])
    assert {row[1] for row in batch.plain + batch.full} <= set(harness.engine.state.jobs)


@cases
def test_what_was_rejected_can_be_done_again(harness, given, change):
    """The client's retry has the same effect as if nothing had failed."""
    given(harness)
    harness.commit()
    with harness.pending():
        change(harness)
        harness.reject()

    change(harness)
    once = {name: harness.state(name) for name in ("j", "new", "a", "b")}

    other = EngineHarness()
    given(other)
    other.commit()
    change(other)
    assert once == {name: other.state(name) for name in ("j", "new", "a", "b")}
    assert harness.counts() == other.counts()


@cases
def test_a_withdrawn_flush_goes_on_with_the_next(harness, given, change):
    given(harness)
    harness.commit()
    other = EngineHarness()
    given(other)
    other.commit()
    change(other)

    with harness.pending():
        change(harness)
        harness.withdraw(harness.take())
        harness.commit()

    assert harness.counts() == other.counts()
    names = ("j", "new", "a", "b")
    assert {n: harness.state(n) for n in names} == {n: other.state(n) for n in names}


@cases
def test_dropping_what_was_staged_a_moment_ago(harness, given, change):
    """What the server does with it while the file is known to refuse."""
    given(harness)
    harness.commit()
    before = seen(harness)

    with harness.pending():
        change(harness)
        state = harness.engine.state
        staged, state.changes.staged = state.changes.staged, []
        harness.engine.drop_staged(staged, harness.now)

    assert seen(harness) == before


# unseen before the commit


def test_an_uncommitted_push_is_unseen(harness):
    with harness.pending():
        harness.push(jobId="j", durable=True, priority=4)

        assert harness.state("j") == "unknown"
        assert harness.refusal("GetJob", id="j") == "Job not found"
        assert harness.refusal("GetJobByCustomId", customId="j") == "Job not found"
        assert (harness.counts(), harness.send("Count", queue="q").count) == ({}, 0)
        assert harness.pull() is None
        assert harness.wakes() == {}
        harness.commit()

    assert (harness.state("j"), harness.wakes()) == ("prioritized", {"q": 1})


def test_an_uncommitted_ack_is_unseen(harness):
    job_running(harness)
    with harness.pending():
        ack(harness)

        assert (harness.state("j"), harness.counts()) == ("active", {"active": 1})
        assert "result" not in harness.ask("GetResult", id="j")
        harness.commit()

    assert (harness.state("j"), harness.counts()) == ("completed", {"completed": 1})


def test_an_uncommitted_fail_is_unseen(harness):
    job_running(harness)
    with harness.pending():
        fail(harness)
        assert (harness.state("j"), harness.shown("j")["attempts"]) == ("active", 0)
        harness.commit()

    assert (harness.state("j"), harness.shown("j")["attempts"]) == ("waiting", 1)


def test_an_uncommitted_pause_does_not_stop_pulls(harness):
    job_waiting(harness)
    with harness.pending():
        pause(harness)
        assert not harness.send("IsPaused", queue="q").paused
        assert harness.pull_id() == "j"
        harness.commit()

    assert harness.send("IsPaused", queue="q").paused


def test_a_job_being_cancelled_cannot_be_pulled(harness):
    job_waiting(harness)
    with harness.pending():
        cancel(harness)
        assert harness.pull() is None
        harness.commit()

    assert harness.state("j") == "unknown"


def test_a_job_completed_late_cannot_be_pulled_meanwhile(harness):
    job_waiting(harness)
    pulled = harness.pull()
    harness.disconnect(1)
    with harness.pending():
        harness.ack(*pulled)
        assert harness.pull() is None
        harness.commit()

    assert harness.state("j") == "completed"


def test_a_late_ack_that_is_rejected_puts_the_job_back(harness):
    job_waiting(harness)
    pulled = harness.pull()
    harness.disconnect(1)
    harness.connect(1)
    harness.wakes()
    with harness.pending():
        harness.ack(*pulled)
        harness.reject()

    assert harness.wakes() == {"q": 1}
    assert harness.pull_id() == "j"


# meeting a pending change

MEETING = [
    ("ACK", {"id": "j"}),
    ("ACKB", {"ids": ["other", "j"]}),
    ("FAIL", {"id": "j"}),
    ("JobHeartbeat", {"id": "j"}),
    ("JobHeartbeatB", {"ids": ["j"]}),
    ("ExtendLock", {"id": "j"}),
    ("ExtendLocks", {"ids": ["j"], "tokens": [], "durations": []}),
    ("Progress", {"id": "j", "progress": 1}),
    ("Cancel", {"id": "j"}),
    ("PUSH", {"queue": "q", "data": 1, "jobId": "j"}),
    ("PUSH", {"queue": "q", "data": 1, "uniqueKey": "k", "dedup": {"replace": True}}),
]


@pytest.mark.parametrize("change", [ack, fail, bury])
@pytest.mark.parametrize(("cmd", "fields"), MEETING)
def test_a_second_command_on_a_job_being_finished_waits(harness, change, cmd, fields):
    job_running(harness)
    with harness.pending():
        change(harness)
        staged = len(harness.engine.state.changes.staged)
        with pytest.raises(PendingChangeError):
            harness.send(cmd, **fields)
        assert len(harness.engine.state.changes.staged) == staged
        harness.commit()
        harness.engine.check_invariants()


@pytest.mark.parametrize(("cmd", "fields"), [MEETING[0], MEETING[2], *MEETING[8:]])
def test_a_second_command_on_a_job_being_cancelled_waits(harness, cmd, fields):
    job_waiting(harness)
    with harness.pending():
        cancel(harness)
        with pytest.raises(PendingChangeError):
            harness.send(cmd, **fields)


def test_reads_never_wait(harness):
    job_running(harness)
    with harness.pending():
        ack(harness)
        for cmd in ("GetJob", "GetState", "GetResult", "GetProgress"):
            harness.send(cmd, id="j")
        harness.send("GetJobByCustomId", customId="j")


# settings


def test_settings_staged_one_after_the_other_add_up(harness):
    with harness.pending():
        harness.send("SetStallConfig", queue="q", config={"maxStalls": 7})
        harness.send("SetStallConfig", queue="q", config={"stallInterval": 900})
        harness.send("Pause", queue="q")
        batch = harness.commit()

    settings = harness.engine.state.queues["q"].settings
    assert (settings.paused, settings.stall.max_stalls, settings.stall.stall_interval) == (True, 7, 900)
    assert len(batch.settings) == 1


def test_settings_in_flight_must_land_before_the_next_change(harness):
    with harness.pending():
        harness.send("Pause", queue="q")
        flight = harness.take()
        with pytest.raises(PendingChangeError):
            harness.send("SetStallConfig", queue="q", config={"maxStalls": 7})
        harness.send("Pause", queue="other")
        harness.crash(flight)
        harness.send("SetStallConfig", queue="q", config={"maxStalls": 7})
        harness.commit()

    assert not harness.send("IsPaused", queue="q").paused
    assert not harness.send("IsPaused", queue="other").paused
    assert harness.engine.state.queues["q"].settings.stall.max_stalls == 7


def test_settings_back_at_their_defaults_leave_the_file(harness):
    harness.send("Pause", queue="q")
    harness.send("Resume", queue="q")

    assert (harness.batches[-1].settings, harness.batches[-1].settings_gone) == ([], ["q"])


# leases


def test_a_job_whose_ack_is_rejected_stays_leased(harness):
    job_running(harness)
    token = harness.job("j").lease.token
    with harness.pending():
        ack(harness)
        harness.reject()

    assert harness.state("j") == "active"
    harness.send("JobHeartbeat", id="j", token=token)
    harness.ack("j", token)
    assert harness.state("j") == "completed"


def test_a_connection_that_closes_before_its_ack_commits_loses_nothing(harness):
    job_running(harness)
    with harness.pending():
        ack(harness)
        harness.disconnect(1)
        assert harness.state("j") == "active"
        harness.commit()

    assert harness.state("j") == "completed"


def test_a_connection_that_closes_before_its_ack_is_rejected_gives_the_job_back(harness):
    job_running(harness)
    with harness.pending():
        ack(harness)
        harness.disconnect(1)
        harness.reject()

    assert (harness.state("j"), harness.shown("j")["attempts"]) == ("waiting", 1)


@pytest.mark.parametrize("success", [True, False])
@pytest.mark.parametrize(
    ("cmd", "fields"),
    [("Update", {"id": "j", "data": 2}), ("UpdateParent", {"childId": "j", "parentId": "dad"})],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_connection_that_closes_before_a_change_of_its_job_commits_gives_the_job_back(harness, cmd, fields, success):
    harness.push(jobId="j", data={})
    harness.pull()
    with harness.pending():
        harness.send(cmd, **fields)
        harness.disconnect(1)
        harness.commit() if success else harness.reject()

    assert (harness.state("j"), harness.shown("j")["attempts"]) == ("waiting", 1)


def test_a_renewed_lease_survives_the_rejection_and_its_connection(harness):
    job_running(harness)
    harness.send("ExtendLock", id="j")
    with harness.pending():
        ack(harness)
        harness.disconnect(1)
        harness.reject()

    assert harness.state("j") == "active"


# keys


def test_a_replaced_holder_gets_its_key_back(harness):
    job_waiting(harness)
    with harness.pending():
        replace_holder(harness)
        harness.reject()

    assert harness.push(uniqueKey="k") == "j"
    assert harness.pull_id() == "j"


def test_a_running_holder_gets_its_key_back_only_if_it_still_runs(harness):
    job_running(harness)
    with harness.pending():
        replace_holder(harness)
        flight = harness.take()
        harness.crash(flight)
    assert harness.push(uniqueKey="k") == "j"

    with harness.pending():
        harness.ack("j", harness.job("j").lease.token)
        first = harness.take()
        harness.push(jobId="n2", uniqueKey="free", durable=True)
        harness.land(first)
        harness.reject()

    assert harness.push(uniqueKey="k") not in ("j", "new")


# parked jobs


def test_a_parked_job_whose_cancel_is_rejected_is_released_if_its_time_came_meanwhile(harness):
    parked(harness)
    pulled = harness.pull("deps")
    with harness.pending():
        cancel(harness)
        harness.ack(*pulled)
        flight = harness.take()
        harness.crash(flight)
        assert harness.state("j") == "waiting-children"
        harness.ack(*pulled)
        first = harness.take()
        cancel(harness)
        harness.land(first)
        harness.reject()

    assert harness.state("j") == "waiting"


# rows


def test_buffered_rows_of_a_failed_flush_come_in_the_next_in_their_order(harness):
    with harness.pending():
        first = [harness.push() for _ in range(3)]
        flight = harness.take()
        second = [harness.push() for _ in range(2)]
        harness.crash(flight)
        batch = harness.commit()

    assert [row[1] for row in batch.plain] == first + second


def test_a_job_touched_while_its_flush_failed_is_written_once_in_its_last_state(harness):
    job_id = harness.push()
    flight = harness.take()
    harness.pull()
    harness.crash(flight)

    batch = harness.commit()

    assert [row[1] for row in batch.plain + batch.full] == [job_id]
    assert batch.states == []
    assert "active" in batch.full[0]


def test_a_deletion_of_a_failed_flush_comes_again(harness):
    job_id = harness.push(ttl=1)
    harness.commit()
    harness.clock.advance(2)
    harness.pull()
    harness.reject()

    assert harness.commit().deleted == [job_id]


def test_a_job_that_came_and_went_between_flushes_is_never_written(harness):
    harness.push(ttl=1)
    harness.clock.advance(2)
    harness.pull()

    batch = harness.commit()

    assert (batch.plain, batch.full, batch.states, batch.deleted) == ([], [], [], [])


def test_dead_letters_of_a_failed_flush_come_again_unless_they_are_gone(harness):
    for name in ("a", "b"):
        harness.push(jobId=name, maxAttempts=1)
    harness.commit()
    harness.pull()
    harness.pull()
    harness.advance(32_000)
    flight = harness.take()
    assert [row[0] for row in flight.batch.letters] == ["a", "b"]
    harness.push(jobId="a")
    harness.crash(flight)

    batch = harness.commit()

    assert [row[0] for row in batch.letters] == ["b"]
    assert batch.deleted.count("b") == 1


def test_a_dead_letter_not_yet_written_whose_id_is_pushed_durably(harness):
    """In one transaction: the entry must not come in after its rebirth has deleted it; but it does if that fails."""
    harness.push(jobId="a", maxAttempts=1)
    harness.commit()
    harness.pull()
    harness.advance(32_000)
    with harness.pending():
        harness.push(jobId="a", durable=True)
        flight = harness.take()
        assert flight.batch.letters == []
        harness.crash(flight)
        assert harness.state("a") == "failed"
        assert [row[0] for row in harness.commit().letters] == ["a"]


def test_the_sync_of_a_withdrawn_flush_is_not_forgotten(harness):
    with harness.pending():
        harness.push(durable="fsync")
        harness.withdraw(harness.take())
        assert harness.commit().needs_sync


def test_nothing_dirty_is_false(harness):
    assert not Changes()
    harness.push()
    assert harness.engine.state.changes
    harness.commit()
    assert not harness.engine.state.changes
