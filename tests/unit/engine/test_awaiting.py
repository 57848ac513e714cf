"""WaitJob without the waiting: what is answered at once, and how the end of an awaited job is noticed."""

import pytest

from bunqueue_trio.engine.history import History
from tests.engine_harness import EngineHarness, completed, decoded, needs_facts
from tests.flows import FAIL_PARENT, fail_child, push_family


@pytest.fixture
def harness() -> EngineHarness:
    return EngineHarness()


def ended(harness, *, job_id="a", forget=True):
    """The answer to the end of the job, as the client decodes it; None while it goes on."""
    state = harness.engine.state
    reply = state.ended.pop(job_id, None) if forget else state.ended.get(job_id)
    assert (job_id in state.awaited) == (reply is None)
    return None if reply is None else decoded(reply)


def await_job(harness, job_id="a"):
    assert harness.send("WaitJob", id=job_id) is None
    harness.engine.state.awaited.add(job_id)


DONE = {"ok": True, "completed": True}
NOT_DONE = {"ok": True, "completed": False}


@pytest.mark.parametrize("result", [{"r": [1, 2]}, 0, False, "", None])
def test_a_completed_job_is_answered_at_once_with_its_result(harness, result):
    harness.push(jobId="a")
    harness.ack(*harness.pull(), result=result)

    assert harness.ask("WaitJob", id="a") == {**DONE, "result": result}


def test_a_completed_job_without_a_result_has_a_null_one(harness):
    harness.push(jobId="a")
    harness.ack(*harness.pull())

    assert harness.ask("WaitJob", id="a") == {**DONE, "result": None}


def test_a_dead_letter_is_answered_at_once(harness):
    harness.push(jobId="a")
    fail_child(harness, queue="q")

    assert harness.ask("WaitJob", id="a") == NOT_DONE


@pytest.mark.parametrize("job_id", ["nobody", None, 7])
def test_an_unknown_job_is_refused(harness, job_id):
    assert harness.refusal("WaitJob", id=job_id) == "Job not found"


def test_a_removed_job_is_unknown_afterwards(harness):
    harness.push(jobId="a", removeOnComplete=True)
    harness.ack(*harness.pull(), result=1)

    assert harness.refusal("WaitJob", id="a") == "Job not found"


def test_a_job_beyond_memory_is_looked_up():
    harness = EngineHarness(history=History(max_jobs=1))
    for name in ("a", "b"):
        harness.push(jobId=name)
        harness.ack(*harness.pull())

    assert needs_facts(harness, "WaitJob", id="a") == ["a"]

    harness.engine.find_facts({"a": completed("a")})
    assert harness.ask("WaitJob", id="a") == {**DONE, "result": "r"}


def test_a_durable_push_that_has_not_committed_is_unknown(harness):
    with harness.pending():
        harness.push(jobId="a", durable=True)
        assert harness.refusal("WaitJob", id="a") == "Job not found"
        harness.commit()

    await_job(harness)


@pytest.mark.parametrize("how", ["ACK", "ACKB"])
def test_the_end_comes_with_the_commit_and_brings_the_result(harness, how):
    harness.push(jobId="a")
    await_job(harness)
    job_id, token = harness.pull()
    with harness.pending():
        if how == "ACK":
            harness.ack(job_id, token, result=[1])
        else:
            harness.send("ACKB", ids=[job_id], tokens=[token], results=[[1]])
        assert ended(harness) is None
        harness.commit()

    assert ended(harness) == {**DONE, "result": [1]}


def test_a_failed_commit_is_no_end(harness):
    harness.push(jobId="a")
    await_job(harness)
    pulled = harness.pull()
    with harness.pending():
        harness.ack(*pulled)
        harness.reject()

    assert ended(harness) is None
    harness.ack(*pulled)
    assert ended(harness) == {**DONE, "result": None}


def test_a_job_removed_on_completion_has_completed_without_a_result(harness):
    harness.push(jobId="a", removeOnComplete=True)
    await_job(harness)
    harness.ack(*harness.pull(), result=1)

    assert ended(harness) == {**DONE, "result": None}


def test_the_answer_is_kept_although_memory_forgets_the_job_at_once():
    harness = EngineHarness(history=History(max_jobs=1))
    for name in ("a", "b"):
        harness.push(jobId=name)
        await_job(harness, name)
    first, second = harness.pull(), harness.pull()
    with harness.pending():
        harness.ack(*first, result=1)
        harness.ack(*second, result=2)
        harness.commit()

    assert ended(harness) == {**DONE, "result": 1}


# ends that are no completion


def fail_for_good(harness):
    fail_child(harness, queue="q")


def discard(harness):
    harness.send("Discard", id="a")


def cancel(harness):
    harness.send("Cancel", id="a")


def time_out(harness):
    harness.pull(lockTtl=600_000)
    harness.advance(1_001)


def lose_lock(harness):
    harness.pull(lockTtl=100)
    harness.advance(5_000)


def lose_connection(harness):
    harness.connect(2)
    harness.pull(connection=2)
    harness.disconnect(2)


def expire(harness):
    harness.advance(60_001)
    harness.pull()


def replace(harness):
    harness.push(jobId="b", uniqueKey="k", dedup={"replace": True})


def replace_durably(harness):
    harness.push(jobId="b", uniqueKey="k", dedup={"replace": True}, durable=True)


ENDS = [fail_for_good, discard, cancel, time_out, lose_lock, lose_connection, expire, replace, replace_durably]


@pytest.mark.parametrize("remove_on_fail", [False, True])
@pytest.mark.parametrize("end", ENDS)
def test_every_other_end_is_noticed(harness, end, remove_on_fail):
    harness.push(jobId="a", maxAttempts=1, ttl=60_000, uniqueKey="k", timeout=1_000, removeOnFail=remove_on_fail)
    await_job(harness)

    end(harness)

    assert ended(harness) == NOT_DONE


def test_the_end_of_a_parent_by_its_child_is_noticed(harness):
    push_family(harness, FAIL_PARENT)
    await_job(harness, "dad")

    fail_child(harness)

    assert ended(harness, job_id="dad") == NOT_DONE


def test_a_job_that_may_be_retried_is_waited_for(harness):
    harness.push(jobId="a", backoff=0)
    await_job(harness)
    harness.fail(*harness.pull())
    assert ended(harness) is None
    harness.advance(10)

    harness.ack(*harness.pull(), result=2)

    assert ended(harness) == {**DONE, "result": 2}


@pytest.mark.parametrize("command", ["Promote", "MoveToWait", "ChangeDelay"])
def test_a_job_that_is_moved_is_waited_for(harness, command):
    harness.push(jobId="a", delay=5_000)
    await_job(harness)

    harness.send(command, id="a", **({"delay": 1} if command == "ChangeDelay" else {}))

    assert ended(harness) is None


def test_the_first_end_counts(harness):
    harness.push(jobId="a", uniqueKey="k", data=1)
    await_job(harness)
    harness.push(jobId="b", uniqueKey="k", dedup={"replace": True})
    harness.push(jobId="a")
    harness.engine.state.awaited.add("a")
    harness.send("Cancel", id="b")
    harness.ack(*harness.pull(), result=1)

    assert ended(harness) == NOT_DONE


def test_without_anybody_who_waits_nothing_is_noted(harness):
    harness.push(jobId="a")
    harness.ack(*harness.pull())

    assert harness.engine.state.ended == {}
