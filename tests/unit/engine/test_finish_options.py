"""What protocol 3 adds to ACK, ACKB and FAIL: removal of the job at hand, and word of a report that came too late.

Source: newer clients, "Finishing"; NC-6.
"""

import pytest

from tests.engine_harness import EngineHarness, decoded
from tests.flows import CHILD, fail_child, push_family

NEWER = {"(newer)": True}
TOO_LATE = {"ok": True, "data": {"applied": False, "reason": "already-finalized"}}
NOT_TRUE = [False, None, 1, "true", {}]


@pytest.fixture
def harness() -> EngineHarness:
    return EngineHarness()


def run(harness: EngineHarness, *ids: str, **options: object) -> list[str]:
    """Jobs that are active; their tokens."""
    tokens = []
    for job_id in ids:
        harness.push(jobId=job_id, **options)
        pulled = harness.pull()
        assert pulled is not None
        tokens.append(pulled[1] or "")
    return tokens


# removal


def test_an_ack_may_remove_its_job(harness):
    [token] = run(harness, "j")
    harness.commit()

    harness.ack("j", token, result=1, removeOnComplete=True)

    assert harness.state("j") == "unknown"
    assert "result" not in harness.ask("GetResult", id="j")
    assert harness.counts() == {}
    assert harness.batches[-1].deleted == ["j"]
    assert harness.batches[-1].results == []
    assert harness.engine.state.totals.completed == 1


@pytest.mark.parametrize("removal", NOT_TRUE)
def test_only_true_removes(harness, removal):
    tokens = run(harness, "a", "b")
    [failing] = run(harness, "f", maxAttempts=1)

    harness.ack("a", tokens[0], removeOnComplete=removal)
    harness.send("ACKB", ids=["b"], tokens=tokens[1:], removeOnCompletes=[removal])
    harness.fail("f", failing, removeOnFail=removal)

    assert harness.counts() == {"completed": 2, "failed": 1}


@pytest.mark.parametrize("removal", NOT_TRUE)
def test_nothing_switches_the_own_flag_of_a_job_off(harness, removal):
    tokens = run(harness, "a", "b", removeOnComplete=True)
    [failing] = run(harness, "f", removeOnFail=True, maxAttempts=1)

    harness.ack("a", tokens[0], removeOnComplete=removal)
    harness.send("ACKB", ids=["b"], tokens=tokens[1:], removeOnCompletes=[removal])
    harness.fail("f", failing, removeOnFail=removal)

    assert harness.counts() == {}
    assert harness.dead_letters() == []


@pytest.mark.parametrize("results", [{}, {"results": [1, 2, 3]}])
def test_removals_of_a_batch_pair_up_with_its_ids(harness, results):
    tokens = run(harness, "a", "b", "c")

    harness.send("ACKB", ids=["a", "b", "c"], tokens=tokens, removeOnCompletes=[True, None, True], **results)

    assert [harness.state(job_id) for job_id in "abc"] == ["unknown", "completed", "unknown"]


def test_removals_stay_with_their_ids_where_others_are_left_out(harness):
    """A repeat and a stale id before them must not shift them."""
    tokens = run(harness, "a", "b")
    ids, removals = ["gone", "a", "a", "b"], [True, None, True, True]

    harness.send("ACKB", ids=ids, tokens=["t", tokens[0], tokens[0], tokens[1]], removeOnCompletes=removals)

    assert [harness.state(job_id) for job_id in "ab"] == ["completed", "unknown"]


def test_who_depends_on_a_removed_job_gets_its_result(harness):
    harness.push("kids", jobId="kid")
    harness.push(jobId="dad", dependsOn=["kid"], childrenIds=["kid"])
    kid = harness.pull("kids")
    assert kid is not None

    harness.ack(*kid, result=7, removeOnComplete=True)

    assert harness.state("dad") == "waiting"
    assert harness.ask("GetChildrenValues", id="dad")["data"] == {"values": {"kid": 7}}


def test_a_removed_job_of_a_late_ack_is_gone_from_the_queue(harness):
    [token] = run(harness, "j")
    harness.disconnect()

    harness.ack("j", token, removeOnComplete=True)

    assert (harness.state("j"), harness.counts()) == ("unknown", {})


def test_a_failure_that_is_tried_again_removes_nothing(harness):
    [token] = run(harness, "j", maxAttempts=2, backoff=0)

    harness.fail("j", token, removeOnFail=True)
    assert harness.state("j") == "waiting"
    harness.fail(*harness.pull(), removeOnFail=False)

    assert harness.state("j") == "failed"  # what the attempt before asked for is forgotten


@pytest.mark.parametrize("final", [{"maxAttempts": 1}, {"unrecoverable": True}])
def test_a_final_failure_may_remove_its_job(harness, final):
    unrecoverable = {"unrecoverable": True} if "unrecoverable" in final else {}
    [token] = run(harness, "j", **{key: value for key, value in final.items() if key == "maxAttempts"})
    harness.commit()

    harness.fail("j", token, error="x", removeOnFail=True, **unrecoverable)

    assert (harness.state("j"), harness.dead_letters()) == ("unknown", [])
    assert harness.batches[-1].deleted == ["j"]
    assert harness.engine.state.totals.failed == 1


def test_a_removed_failure_reaches_its_parent(harness):
    push_family(harness, "failParentOnFailure")

    harness.fail(*harness.pull(CHILD), error="boom", removeOnFail=True)

    assert (harness.state("kid"), harness.state("dad")) == ("unknown", "failed")


def test_a_removal_that_cannot_be_stored_leaves_the_job_active(harness):
    [token] = run(harness, "j")
    harness.commit()
    with harness.pending():
        harness.ack("j", token, removeOnComplete=True)
        harness.reject()

    assert harness.state("j") == "active"


# too late


def timed_out(harness: EngineHarness) -> str:
    [token] = run(harness, "j", timeout=1_000, backoff=0)
    harness.advance(1_001)
    assert harness.state("j") == "waiting"
    return token


def done(harness: EngineHarness) -> str:
    [token] = run(harness, "j")
    harness.ack("j", token)
    return token


def dead(harness: EngineHarness) -> str:
    [token] = run(harness, "j", maxAttempts=1)
    harness.fail("j", token)
    return token


def removed(harness: EngineHarness) -> str:
    [token] = run(harness, "j", removeOnComplete=True)
    harness.ack("j", token)
    return token


def retried(harness: EngineHarness) -> str:
    [token] = run(harness, "j", backoff=0)
    harness.fail("j", token)
    return token


def moved(harness: EngineHarness) -> str:
    [token] = run(harness, "j")
    harness.send("MoveToWaitingChildren", id="j", token=token)
    return token


@pytest.mark.parametrize("place", [timed_out, done, dead, removed, retried, moved])
@pytest.mark.parametrize("cmd", ["ACK", "FAIL"])
def test_who_speaks_protocol_3_hears_of_a_report_that_came_too_late(harness, place, cmd):
    token = place(harness)
    before = harness.state("j")

    assert harness.ask(cmd, id="j", token=token) == {"ok": True}
    assert harness.ask(cmd, id="j", token=token, **NEWER) == TOO_LATE

    assert harness.state("j") == before


def test_a_failed_child_that_was_reported_late_changes_no_parent(harness):
    push_family(harness, "failParentOnFailure", maxAttempts=2, backoff=0)
    _, token = harness.pull(CHILD)
    harness.fail("kid", token)

    assert harness.ask("FAIL", id="kid", token=token, **NEWER) == TOO_LATE

    assert harness.state("dad") == "waiting-children"
    fail_child(harness)
    assert harness.state("dad") == "failed"


@pytest.mark.parametrize("cmd", ["ACK", "FAIL"])
def test_a_report_in_time_is_plain_ok_for_everybody(harness, cmd):
    [token] = run(harness, "j")

    assert harness.ask(cmd, id="j", token=token, **NEWER) == {"ok": True}


@pytest.mark.parametrize("cmd", ["ACK", "FAIL"])
def test_without_a_token_a_late_report_stays_an_error(harness, cmd):
    done(harness)

    assert harness.refusal(cmd, id="j", **NEWER) == "Job not found or not in processing state: j"


def test_a_batch_names_what_came_too_late_by_position_and_id(harness):
    stale = done(harness)
    tokens = run(harness, "a", "b")
    ids, given = ["j", "a", "nobody", "b"], [stale, tokens[0], stale, tokens[1]]

    reply = harness.ask("ACKB", ids=ids, tokens=given, **NEWER)

    assert reply == {"ok": True, "data": {"ignoredIndices": [0, 2], "ignoredIds": ["j", "nobody"]}}
    assert [harness.state(job_id) for job_id in "ab"] == ["completed", "completed"]


def test_a_batch_in_time_has_no_data(harness):
    """Not even null: the client takes that for a refusal."""
    tokens = run(harness, "a", "b")

    assert harness.ask("ACKB", ids=["a", "b"], tokens=tokens, **NEWER) == {"ok": True}


def test_a_repeat_within_a_batch_is_not_too_late(harness):
    [token] = run(harness, "a")

    assert harness.ask("ACKB", ids=["a", "a"], tokens=[token, token], **NEWER) == {"ok": True}


def test_others_are_told_nothing_of_late_jobs_of_a_batch(harness):
    stale = done(harness)
    [token] = run(harness, "a")

    assert harness.ask("ACKB", ids=["j", "a"], tokens=[stale, token]) == {"ok": True}


def test_an_error_of_a_batch_goes_first(harness):
    stale = done(harness)
    [token] = run(harness, "a")

    reply = decoded(harness.send("ACKB", ids=["j", "nobody", "a"], tokens=[stale, None, token], **NEWER))

    assert reply == {"ok": False, "error": "Job not found or not in processing state: nobody"}
    assert harness.state("a") == "completed"
