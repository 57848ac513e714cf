"""GetJobs and GetCountsPerPriority, as far as memory answers; what is asked of the file, and what is made of it."""

import msgpack
import pytest

from bunqueue_trio.engine import lists as lists_module
from bunqueue_trio.errors import LimitError
from bunqueue_trio.model.commands import ABSENT
from bunqueue_trio.model.job import JobRecord
from bunqueue_trio.protocol.wire import checked
from tests.engine_harness import EngineHarness, decoded, raw

T = 1_700_000_000_000


@pytest.fixture
def harness() -> EngineHarness:
    return EngineHarness()


def ids(harness: EngineHarness, /, **fields) -> list[str]:
    return [job["id"] for job in harness.ask("GetJobs", **{"queue": "q", **fields})["jobs"]]


def states(harness: EngineHarness, /, **fields) -> dict[str, str]:
    return {job["id"]: job["state"] for job in harness.ask("GetJobs", **{"queue": "q", **fields})["jobs"]}


def live_ones(harness: EngineHarness) -> None:
    """One job in each state that memory lists."""
    harness.push(jobId="dead", maxAttempts=1)
    harness.fail(*harness.pull(), error="no")
    harness.push(jobId="running")
    harness.pull()
    harness.push(jobId="ready", timestamp=T + 3)
    harness.push(jobId="urgent", priority=1, timestamp=T + 2)
    harness.push(jobId="later", delay=10_000)
    harness.push(jobId="parked", dependsOn=["ready"])


STATES = {
    "dead": "failed", "running": "active", "ready": "waiting", "urgent": "prioritized", "later": "delayed",
    "parked": "waiting-children",
}  # fmt: skip


# states


@pytest.mark.parametrize(("job_id", "state"), STATES.items())
def test_each_state_has_its_list(harness, job_id, state):
    live_ones(harness)

    assert states(harness, state=state) == {job_id: state}


@pytest.mark.parametrize("asked", [None, "", []])
def test_without_a_state_every_job_is_listed_with_its_own(harness, asked):
    live_ones(harness)

    assert states(harness, state=asked) == STATES


def test_several_states_share_one_list(harness):
    live_ones(harness)

    assert states(harness, state=["waiting", "failed", "nonsense"]) == {"ready": "waiting", "dead": "failed"}


@pytest.mark.parametrize("asked", ["no-such-state", "wait", "unknown", [""], "paused", "completed"])
def test_other_names_select_nothing(harness, asked):
    live_ones(harness)

    assert ids(harness, state=asked) == []


def test_an_unknown_queue_is_empty_and_stays_unknown(harness):
    assert ids(harness, queue="ghost") == []
    assert "ghost" not in harness.engine.state.queues


def test_only_jobs_of_the_queue_are_listed(harness):
    harness.push("other", jobId="theirs")
    harness.push(jobId="ours")

    assert ids(harness) == ["ours"]


def test_a_delay_that_has_run_out_shows_without_a_tick(harness):
    harness.push(jobId="a", delay=300)
    harness.push(jobId="b", delay=300, priority=2)
    harness.clock.advance(300)

    assert ids(harness, state="delayed") == []
    assert states(harness, state="waiting") == {"a": "waiting"}
    assert states(harness, state="prioritized") == {"b": "prioritized"}


def test_negative_priorities_wait(harness):
    harness.push(jobId="low", priority=-3)

    assert states(harness, state="waiting") == {"low": "waiting"}


def test_the_record_is_that_of_get_job_and_nothing_of_it_is_changed(harness):
    harness.push(jobId="a", priority=2, data={"x": 1}, tags=["t"])
    harness.pull()
    harness.send("Progress", id="a", progress=40, message="on")

    [listed] = harness.ask("GetJobs", queue="q", state="active")["jobs"]

    assert listed == harness.shown("a")
    assert listed["progress"] == 40
    assert "state" not in harness.ask("GetJobByCustomId", customId="a")["job"]


# paused queues


def test_on_a_paused_queue_the_ready_jobs_are_paused(harness):
    live_ones(harness)
    harness.send("Pause", queue="q")

    assert states(harness, state="paused") == {"ready": "paused", "urgent": "paused"}
    assert ids(harness, state="waiting") == ids(harness, state="prioritized") == []
    assert states(harness, state=["paused", "waiting"]) == {"ready": "waiting", "urgent": "prioritized"}
    assert states(harness) == STATES


# order and pages


def test_the_order_is_creation_then_id(harness):
    harness.push(jobId="c", timestamp=T)
    harness.push(jobId="b", timestamp=T + 1)
    harness.push(jobId="a", timestamp=T + 1, priority=5)
    harness.push(jobId="d", timestamp=T - 1, delay=10**10)

    assert ids(harness) == ["d", "c", "a", "b"]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, "abcde"),
        ({"limit": 2}, "ab"),
        ({"offset": 2, "limit": 2}, "cd"),
        ({"offset": 4, "limit": 10}, "e"),
        ({"offset": 5}, ""),
        ({"limit": 0}, ""),
        ({"limit": -1}, "abcde"),
        ({"limit": -1, "offset": 3}, "de"),
        ({"offset": -2, "limit": 1}, "a"),
        ({"offset": 1.9, "limit": 1.9}, "b"),
        ({"offset": "1", "limit": "2"}, "bc"),
    ],
)
def test_pages(harness, fields, expected):
    for name in "ebdac":
        harness.push(jobId=name, timestamp=T + ord(name))

    assert ids(harness, **fields) == list(expected)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, "edcba"),
        ({"limit": 2}, "ed"),
        ({"offset": 1, "limit": 2}, "dc"),
        ({"offset": 4}, "a"),
        ({"offset": 5}, ""),
        ({"limit": 0}, ""),
        ({"state": "waiting", "limit": 1}, "e"),
        ({"state": ["waiting", "delayed"]}, "edcba"),
    ],
)
@pytest.mark.parametrize("asc", [False, 0, 0.0])
def test_the_newest_come_first_when_asc_is_false_or_zero(harness, fields, expected, asc):
    for name in "ebdac":
        harness.push(jobId=name, timestamp=T + ord(name))

    assert ids(harness, asc=asc, **fields) == list(expected)


@pytest.mark.parametrize("asc", [None, True, 1, -1, "", "false", [], {}, msgpack.ExtType(0, b"\0"), b""])
def test_any_other_asc_lists_the_oldest_first(harness, asc):
    for name in "ba":
        harness.push(jobId=name, timestamp=T + ord(name))

    assert ids(harness, asc=asc) == ["a", "b"]


@pytest.mark.parametrize("asc", [None, True, False, msgpack.ExtType(0, b"\0")])
def test_who_sends_asc_is_shown_errors_of_unnamed_jobs_too(harness, asc):
    harness.push(maxAttempts=2, backoff=0)
    harness.fail(*harness.pull(), error="no")

    [shown] = harness.ask("GetJobs", queue="q", asc=asc)["jobs"]
    [usual] = harness.ask("GetJobs", queue="q")["jobs"]

    assert shown == {**usual, "failedReason": "no"}


def test_a_command_that_is_checked_again_keeps_its_asc(harness):
    commands = [harness.command("GetJobs", queue="q", **fields) for fields in ({}, {"asc": False}, {"asc": None})]

    for command in commands:
        checked(command)

    assert [command.asc for command in commands] == [ABSENT, False, True]


def test_the_usual_page_has_a_hundred(harness):
    pushed = harness.push_many("q", [{}] * 150)

    assert ids(harness) == pushed[:100]
    assert ids(harness, offset=100) == pushed[100:]


def test_a_page_that_no_reply_can_carry_is_refused(harness, monkeypatch):
    monkeypatch.setattr(lists_module, "PAGE_MAX_BYTES", 10_000)
    monkeypatch.setattr(lists_module, "PAGE_MAX_JOBS", 10)
    harness.push_many("q", [{"data": "x"}] * 9)

    assert len(ids(harness, limit=-1)) == 9
    harness.push(data="x" * 2_000)
    assert harness.refusal("GetJobs", queue="q", limit=-1) == "Too many jobs for one reply: use limit and offset"
    assert len(ids(harness, limit=9)) == 9


def test_more_jobs_than_a_reply_can_carry_are_not_even_collected(harness, monkeypatch):
    monkeypatch.setattr(lists_module, "PAGE_MAX_BYTES", 10_000)
    monkeypatch.setattr(lists_module, "PAGE_MAX_JOBS", 10)
    harness.push_many("q", [{"data": 1}] * 30)

    assert "Too many jobs" in harness.refusal("GetJobs", queue="q", limit=-1)


# what waits for its commit


def test_a_durable_push_is_listed_from_its_commit_on(harness):
    with harness.pending():
        harness.push(jobId="a", durable=True)
        assert ids(harness) == []
        harness.commit()
        assert ids(harness) == ["a"]


@pytest.mark.parametrize("how", ["land", "crash"])
def test_a_job_whose_end_waits_for_its_commit_is_listed_as_before(harness, how):
    harness.push(jobId="a", priority=3)
    with harness.pending():
        harness.send("Cancel", id="a")
        assert states(harness) == {"a": "prioritized"}
        flight = harness.take()
        assert states(harness, state="prioritized") == {"a": "prioritized"}
        getattr(harness, how)(flight)

        assert states(harness) == ({} if how == "land" else {"a": "prioritized"})


@pytest.mark.parametrize("how", ["land", "crash"])
def test_a_change_of_priority_shows_at_its_commit(harness, how):
    harness.push(jobId="a")
    with harness.pending():
        harness.send("ChangePriority", id="a", priority=4)
        assert states(harness) == {"a": "waiting"}
        getattr(harness, how)(harness.take())

        assert states(harness) == {"a": "prioritized" if how == "land" else "waiting"}


def test_a_dead_letter_is_listed_until_its_new_life_has_committed(harness):
    harness.push(jobId="a", maxAttempts=1)
    harness.fail(*harness.pull())
    with harness.pending():
        harness.push(jobId="a", durable=True)
        assert states(harness) == {"a": "failed"}
        harness.commit()
        assert states(harness) == {"a": "waiting"}


# asking the file


def with_completed(harness: EngineHarness, count: int = 1) -> None:
    for number in range(count):
        harness.push("q", jobId=f"done{number}", timestamp=T + 10 * number)
        harness.ack(*harness.pull())


@pytest.mark.parametrize("state", ["completed", None, ["failed", "completed"]])
def test_completed_jobs_are_asked_of_the_file(harness, state):
    with_completed(harness)

    command, question = harness.question("GetJobs", queue="q", state=state, offset=1, limit=7)

    assert question.command is command
    assert (question.queue, question.offset, question.limit, question.over) == ("q", 1, 7, [])


def test_the_file_is_left_alone_for_queues_without_completed_jobs(harness):
    with_completed(harness)
    harness.push("other", jobId="a")

    assert ids(harness, queue="other") == ["a"]
    assert ids(harness, queue="other", state="completed") == []


def test_an_empty_page_needs_no_file(harness):
    with_completed(harness)

    assert ids(harness, limit=0) == []


def test_live_jobs_are_taken_along_as_they_are_at_that_moment(harness):
    with_completed(harness)
    harness.push(jobId="ready", timestamp=T + 5)
    command, question = harness.question("GetJobs", queue="q")
    harness.pull()
    question.page = question.live

    reply = harness.answered(command, question)

    assert [(record.id, record.state) for record in reply.jobs] == [("ready", "waiting")]


def test_live_jobs_that_cannot_be_on_the_page_are_left_out(harness):
    with_completed(harness, 2)
    harness.push_many("q", [{"customId": f"j{n}", "timestamp": T + 100 + n} for n in range(9)])

    _, question = harness.question("GetJobs", queue="q", offset=5, limit=3)

    assert question.skipped == 3
    assert [record.id for record in question.live] == ["j3", "j4", "j5", "j6", "j7"]


def test_deep_in_a_long_list_only_the_page_is_copied(harness, monkeypatch):
    monkeypatch.setattr(lists_module, "COPIED_MAX", 2)
    with_completed(harness)
    harness.push_many("q", [{"customId": f"j{n}"} for n in range(3)])
    command, question = harness.question("GetJobs", queue="q")
    assert question.live[0] is harness.job("j0").record
    token = harness.pull()
    harness.send("Cancel", id="j1")
    harness.push("q", jobId="x")
    question.page = question.live

    reply = harness.answered(command, question)

    assert [(record.id, record.state) for record in reply.jobs] == [
        ("j0", "active"),
        ("j1", "unknown"),
        ("j2", "waiting"),
    ]
    assert token is not None
    assert harness.job("j2").record.state is not reply.jobs[2].state


def test_rows_that_are_over_are_named(harness):
    with_completed(harness, 2)
    with harness.pending():
        harness.push(jobId="done0")

        _, question = harness.question("GetJobs", queue="q", state="completed")

    assert question.over == ["done0"]


def test_an_answer_serves_only_the_command_that_asked(harness):
    with_completed(harness)
    _, question = harness.question("GetJobs", queue="q")
    question.page = [JobRecord("x", "q", raw(1), 1.0, 1.0, 1.0)]
    harness.engine.state.answer = question

    _, another = harness.question("GetJobs", queue="q")

    assert another is not question


def test_the_file_is_asked_for_the_newest_and_for_results(harness):
    with_completed(harness, 2)
    harness.push_many("q", [{"customId": f"j{n}", "timestamp": T + 100 + n} for n in range(4)])

    _, usual = harness.question("GetJobs", queue="q")
    _, newest = harness.question("GetJobs", queue="q", asc=False, offset=4, limit=1)

    assert (usual.newest_first, usual.wants_results, usual.wants_completed) == (False, False, True)
    assert (newest.newest_first, newest.wants_results, newest.skipped) == (True, True, 2)
    assert [record.id for record in newest.live] == ["j1", "j0"]


def test_results_count_into_the_size_of_a_reply(harness, monkeypatch):
    monkeypatch.setattr(lists_module, "PAGE_MAX_BYTES", 2_000)
    with_completed(harness)
    command, question = harness.question("GetJobs", queue="q", asc=True)
    question.page = [JobRecord("done0", "q", raw(1), 1.0, 1.0, 1.0, state="completed")]
    question.results = {"done0": raw("x" * 500)}
    [shown] = decoded(harness.answered(command, question))["jobs"]
    question.results = {"done0": raw("x" * 1_000)}

    assert shown["returnvalue"] == "x" * 500
    with pytest.raises(LimitError, match="Too many jobs"):
        harness.answered(command, question)


def test_an_answer_that_is_too_large_is_refused(harness):
    with_completed(harness)
    command, question = harness.question("GetJobs", queue="q")

    with pytest.raises(LimitError, match="Too many jobs"):
        harness.answered(command, question)


# priorities


def counts(harness: EngineHarness) -> dict[str, int]:
    reply = harness.ask("GetCountsPerPriority", queue="q")
    assert reply["queue"] == "q"
    return reply["counts"]


def test_queued_jobs_are_counted_by_priority(harness):
    live_ones(harness)
    harness.push(priority=-5)
    harness.push(priority=9, delay=1_000)
    harness.push(priority=9)

    assert counts(harness) == {"-5": 1, "0": 2, "1": 1, "9": 2}


def test_an_empty_or_unknown_queue_counts_nothing(harness):
    assert counts(harness) == {}
    harness.push(priority=2)
    harness.pull()
    assert counts(harness) == {}


def test_priorities_follow_every_change(harness):
    harness.push(jobId="a", priority=3)
    harness.push(jobId="b", delay=500, priority=3)
    assert counts(harness) == {"3": 2}
    harness.advance(600)
    assert counts(harness) == {"3": 2}
    harness.send("ChangePriority", id="a", priority=0)
    assert counts(harness) == {"0": 1, "3": 1}
    harness.fail(*harness.pull())
    assert counts(harness) == {"0": 1, "3": 1}
    harness.send("Cancel", id="b")
    harness.send("Discard", id="a")
    assert counts(harness) == {}


def test_pausing_changes_nothing(harness):
    harness.push(priority=1)
    harness.send("Pause", queue="q")

    assert counts(harness) == {"1": 1}


def test_priorities_that_nobody_uses_are_not_kept(harness):
    for priority in range(1, 50):
        harness.push(priority=priority)
        harness.ack(*harness.pull())

    assert harness.engine.state.queues["q"].priorities == {}
