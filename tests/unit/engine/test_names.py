"""Jobs with a name beside their data: let in, kept through every life of theirs, and given back.

Source: newer clients, 3.
"""

import msgpack
import pytest

from bunqueue_trio.errors import ValidationError
from tests.engine_harness import EngineHarness

BAD_NAME = "Job name must be a non-empty string of at most 256 characters"
UNDEFINED = msgpack.ExtType(0, b"\0")
NO_NAMES = ["", None, 5, True, {"a": 1}, ["a"], "x" * 257, "😀" * 129]


@pytest.fixture
def harness():
    return EngineHarness()


def name_of(harness, job_id):
    return harness.job(job_id).record.name


# letting in


def test_a_push_with_a_name_makes_a_named_job(harness):
    [entry] = harness.push_many("q", [{"name": "bulk", "data": {"to": "x"}}])
    pushed = harness.push(name="send", data={"to": "x"})

    assert [name_of(harness, job_id) for job_id in (pushed, entry)] == ["send", "bulk"]
    assert bytes(harness.job(pushed).record.data) == msgpack.packb({"to": "x"})


@pytest.mark.parametrize("fields", [{}, {"name": UNDEFINED}])
def test_a_push_without_a_name_or_with_undefined_makes_an_unnamed_one(harness, fields):
    pushed = harness.push(data={"name": "inside"}, **fields)
    [entry] = harness.push_many("q", [{"data": {"name": "inside"}, **fields}])

    assert [name_of(harness, job_id) for job_id in (pushed, entry)] == [None, None]


@pytest.mark.parametrize("name", NO_NAMES)
def test_what_is_no_name_is_refused(harness, name):
    assert harness.refusal("PUSH", queue="q", data=1, name=name) == BAD_NAME
    with pytest.raises(ValidationError) as refused:
        harness.command("PUSHB", queue="q", jobs=[{"data": 1, "name": "ok"}, {"data": 1, "name": name}])
    assert str(refused.value) == f"jobs[1]: {BAD_NAME}"


def test_the_name_of_a_push_is_checked_last_of_all(harness):
    refused = {"queue": "q", "name": "", "data": 1}

    with pytest.raises(ValidationError, match=r"^priority must be a number$"):
        harness.command("PUSH", **refused, priority="x")
    with pytest.raises(ValidationError, match=r"^Queue name contains invalid characters$"):
        harness.command("PUSH", **{**refused, "queue": "b c"})
    with pytest.raises(ValidationError, match=r"^jobId must be a string$"):
        harness.command("PUSH", **refused, jobId=5)
    assert harness.refusal("PUSH", **refused, dependsOn=["nobody"]) == "Dependency job not found: nobody"
    assert harness.refusal("PUSH", **refused) == BAD_NAME


def test_the_name_of_an_entry_is_checked_first_of_all(harness):
    with pytest.raises(ValidationError) as refused:
        harness.command("PUSHB", queue="q", jobs=[{"name": "", "priority": "x"}])

    assert str(refused.value) == f"jobs[0]: {BAD_NAME}"


def test_only_a_named_push_may_come_without_data(harness):
    named = [harness.send("PUSH", queue="q", name="n").id, harness.send("PUSH", queue="q", name="n", data=UNDEFINED).id]
    named += harness.send("PUSHB", queue="q", jobs=[{"name": "n"}]).ids

    assert [name_of(harness, job_id) for job_id in named] == ["n"] * 3
    with pytest.raises(ValidationError, match=r"^Job data is required$"):
        harness.command("PUSH", queue="q")
    with pytest.raises(ValidationError, match=r"^jobs\[0\]: Job data is required$"):
        harness.command("PUSHB", queue="q", jobs=[{"name": UNDEFINED}])


def test_custom_ids_and_unique_keys_do_not_look_at_the_name(harness):
    first = harness.push(name="a", jobId="id", uniqueKey="k")

    assert harness.push(name="b", jobId="id") == first
    assert harness.push(name="b", uniqueKey="k") == first
    assert name_of(harness, first) == "a"


# keeping


def test_a_name_survives_retries_moves_and_the_dead_letters(harness):
    job_id = harness.push(name="send", data=[1], maxAttempts=2, backoff=0)
    _, token = harness.pull()

    harness.fail(job_id, token, error="e")
    harness.send("MoveToDelayed", id=job_id, delay=50)
    harness.send("Promote", id=job_id)
    assert name_of(harness, job_id) == "send"
    _, token = harness.pull()
    harness.fail(job_id, token, error="e")

    assert [entry.job.name for entry in harness.engine.state.queues["q"].letters.values()] == ["send"]
    harness.send("RetryDlq", queue="q")
    assert name_of(harness, job_id) == "send"


def test_a_successor_inherits_the_name(harness):
    job_id = harness.push(name="tick", data={"a": 1}, repeat={"every": 10})
    _, token = harness.pull()
    harness.ack(job_id, token)

    [successor] = [job.record for job in harness.engine.state.jobs.values() if job.record.id != job_id]

    assert successor.name == "tick"
    assert type(successor) is type(harness.engine.state.history.get(job_id).record)


def test_an_update_replaces_the_data_and_keeps_the_name(harness):
    job_id = harness.push(name="nn", data={"a": 1})

    harness.send("Update", id=job_id, data={"name": "zz"})

    record = harness.job(job_id).record
    assert (record.name, msgpack.unpackb(record.data)) == ("nn", {"name": "zz"})
