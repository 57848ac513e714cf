"""AddLog, GetLogs, ClearLogs: on which jobs, which lines, and when a log ends."""

import msgpack
import pytest

from bunqueue_trio.engine.history import History
from tests.engine_harness import EngineHarness, completed, needs_facts


@pytest.fixture
def harness() -> EngineHarness:
    return EngineHarness()


def add(harness, job_id, *messages):
    for message in messages:
        assert harness.ask("AddLog", id=job_id, message=message) == {"ok": True, "data": {"added": True}}


def lines(harness, job_id, **fields):
    data = harness.ask("GetLogs", id=job_id, **fields)["data"]
    return [entry["message"] for entry in data["logs"]], data["count"]


def test_a_line_has_its_time_its_level_and_its_message(harness):
    job_id = harness.push()
    harness.send("AddLog", id=job_id, message="one")
    harness.clock.advance(5)
    harness.send("AddLog", id=job_id, message="two", level="warn")

    now = harness.now.wall_ms
    assert harness.ask("GetLogs", id=job_id) == {
        "ok": True,
        "data": {
            "logs": [
                {"timestamp": now - 5, "level": "info", "message": "one"},
                {"timestamp": now, "level": "warn", "message": "two"},
            ],
            "count": 2,
        },
    }


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        ({"message": {"a": [1, None]}}, {"level": "info", "message": {"a": [1, None]}}),
        ({"message": 5, "level": 7}, {"level": 7, "message": 5}),
        ({"message": "x", "level": None}, {"level": "info", "message": "x"}),
        ({"message": "x", "level": ""}, {"level": "", "message": "x"}),
        ({"message": None}, {"level": "info", "message": None}),
        ({}, {"level": "info", "message": None}),
        ({"message": 2**40, "level": {1: 2**40}}, {"level": {"1": 2.0**40}, "message": 2.0**40}),
        (
            {"message": msgpack.ExtType(0, b"\0"), "level": msgpack.ExtType(0, b"\0")},
            {"level": "info", "message": None},
        ),
    ],
)
def test_message_and_level_may_be_anything_and_come_back_fit_to_be_sent(harness, sent, kept):
    job_id = harness.push()
    harness.send("AddLog", id=job_id, **sent)

    [entry] = harness.ask("GetLogs", id=job_id)["data"]["logs"]
    del entry["timestamp"]
    assert entry == kept
    assert {type(entry[name]) for name in kept} == {type(value) for value in kept.values()}


def test_jobs_in_every_state_take_logs(harness):
    harness.push(jobId="done")
    harness.ack(*harness.pull())
    harness.push(jobId="dead", maxAttempts=1)
    harness.fail(*harness.pull())
    harness.push(jobId="running")
    harness.pull()
    harness.push(jobId="ready")
    harness.push(jobId="later", delay=5_000)
    harness.push(jobId="parked", dependsOn=["later"])

    for job_id in ("done", "dead", "running", "ready", "later", "parked"):
        add(harness, job_id, "x")
        assert lines(harness, job_id) == (["x"], 1)


@pytest.mark.parametrize("job_id", ["nobody", None, 5, ["x"]])
def test_unknown_jobs(harness, job_id):
    assert harness.refusal("AddLog", id=job_id, message="x") == "Job not found"
    assert lines(harness, job_id) == ([], 0)
    assert harness.ask("ClearLogs", id=job_id) == {"ok": True}
    assert len(harness.engine.state.logs) == 0


def test_a_completed_job_that_memory_has_let_go_of_is_looked_up():
    harness = EngineHarness(history=History(max_jobs=1))
    for name in ("old", "new"):
        harness.push(jobId=name)
        harness.ack(*harness.pull())

    assert needs_facts(harness, "AddLog", id="old", message="x") == ["old"]
    harness.engine.find_facts({"old": completed("old"), "never": None})
    add(harness, "old", "x")
    assert harness.refusal("AddLog", id="never", message="x") == "Job not found"
    harness.engine.clear_facts()
    assert lines(harness, "old") == (["x"], 1)


def test_a_durable_push_takes_no_log_before_its_commit(harness):
    with harness.pending():
        harness.push(jobId="j", durable=True)
        assert harness.refusal("AddLog", id="j", message="x") == "Job not found"
        harness.commit()
    add(harness, "j", "x")


def test_a_job_that_is_being_cancelled_takes_a_log_until_it_is_gone(harness):
    harness.push(jobId="j")
    with harness.pending():
        harness.send("Cancel", id="j")
        add(harness, "j", "x")
        harness.commit()

    assert harness.refusal("AddLog", id="j", message="x") == "Job not found"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, "abcd"),
        ({"start": None, "end": None}, "abcd"),
        ({"start": 1}, "bcd"),
        ({"start": 1, "end": 2}, "bc"),
        ({"end": 0}, "a"),
        ({"start": 9}, ""),
        ({"start": 2, "end": 50}, "cd"),
        ({"start": 2, "end": 1}, ""),
        ({"start": -2}, "cd"),
        ({"start": -9}, "abcd"),
        ({"end": -1}, ""),
        ({"end": -2}, "abc"),
        ({"start": 1.7, "end": 2.2}, "bc"),
        ({"start": "1", "end": "2"}, "bc"),
        ({"start": 1e300}, ""),
        ({"end": 1e300}, "abcd"),
        ({"start": -1e300}, "abcd"),
    ],
)
def test_which_lines_are_shown(harness, fields, expected):
    job_id = harness.push()
    add(harness, job_id, *"abcd")

    assert lines(harness, job_id, **fields) == (list(expected), 4)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, ""),
        ({"keepLogs": None}, ""),
        ({"keepLogs": 0}, ""),
        ({"keepLogs": -3}, ""),
        ({"keepLogs": 2}, "cd"),
        ({"keepLogs": 2.9}, "cd"),
        ({"keepLogs": "2"}, "cd"),
        ({"keepLogs": 50}, "abcd"),
    ],
)
def test_which_lines_are_cleared(harness, fields, expected):
    job_id = harness.push()
    add(harness, job_id, *"abcd")

    assert harness.ask("ClearLogs", id=job_id, **fields) == {"ok": True}

    assert lines(harness, job_id) == (list(expected), len(expected))


def test_logs_of_other_jobs_are_left_alone(harness):
    one, other = harness.push(), harness.push()
    add(harness, one, "x")
    add(harness, other, "y")
    harness.send("ClearLogs", id=one)

    assert lines(harness, other) == (["y"], 1)


def test_a_hundred_lines_are_kept(harness):
    job_id = harness.push()
    add(harness, job_id, *range(103))

    assert lines(harness, job_id, end=1) == ([3, 4], 100)


def test_the_job_option_keep_logs_is_for_clients(harness):
    job_id = harness.push(keepLogs=1)
    add(harness, job_id, "a", "b")

    assert lines(harness, job_id) == (["a", "b"], 2)


def test_logs_are_answered_at_once_and_write_nothing(harness):
    job_id = harness.push()
    harness.commit()
    add(harness, job_id, "x")
    harness.send("ClearLogs", id=job_id)

    assert not harness.engine.state.waits_for_commit
    assert not harness.engine.state.changes


# how a log ends


def test_a_cancelled_job_leaves_its_log(harness):
    job_id = harness.push()
    add(harness, job_id, "x")
    harness.send("Cancel", id=job_id)

    assert lines(harness, job_id) == (["x"], 1)


def dead_with_log(harness, job_id="dead"):
    harness.push(jobId=job_id, maxAttempts=1)
    harness.fail(*harness.pull())
    add(harness, job_id, "x")


def test_purged_dead_letters_take_their_logs_along_once_that_has_committed(harness):
    dead_with_log(harness)
    with harness.pending():
        harness.send("PurgeDlq", queue="q")
        harness.reject()
        assert lines(harness, "dead") == (["x"], 1)
        harness.send("PurgeDlq", queue="q")
        assert lines(harness, "dead") == (["x"], 1)
        harness.commit()

    assert lines(harness, "dead") == ([], 0)


def test_dead_letters_beyond_the_bound_take_their_logs_along(harness):
    harness.send("SetDlqConfig", queue="q", config={"maxEntries": 1})
    dead_with_log(harness, "first")
    dead_with_log(harness, "second")

    assert lines(harness, "first") == ([], 0)
    assert lines(harness, "second") == (["x"], 1)


def test_a_retried_dead_letter_keeps_its_log(harness):
    dead_with_log(harness)
    harness.send("RetryDlq", queue="q")

    assert lines(harness, "dead") == (["x"], 1)


def test_an_expired_completed_job_takes_its_log_along(harness):
    harness.push(jobId="done")
    harness.ack(*harness.pull())
    add(harness, "done", "x")
    harness.engine.expire_completed([("done", "q")], harness.now.wall_ms)

    assert lines(harness, "done") == ([], 0)


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("end", ["completed", "failed", "cancelled"])
def test_a_new_life_of_the_id_starts_with_an_empty_log(harness, durable, end):
    harness.push(jobId="j", maxAttempts=1)
    if end == "completed":
        harness.ack(*harness.pull())
    elif end == "failed":
        harness.fail(*harness.pull())
    add(harness, "j", "x")
    if end == "cancelled":
        harness.send("Cancel", id="j")

    harness.push(jobId="j", durable=durable)

    assert lines(harness, "j") == ([], 0)


def test_a_new_life_that_does_not_commit_leaves_the_log(harness):
    dead_with_log(harness, "j")
    with harness.pending():
        harness.push(jobId="j", durable=True)
        harness.reject()

    assert lines(harness, "j") == (["x"], 1)
