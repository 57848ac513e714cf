"""What only subscribers over TCP are told of, and that nothing is made of queues that nobody listens to.

Source: newer clients, "Events".
"""

import pytest
from msgspec import UNSET, Raw

from bunqueue_trio.model.events import JobEvent, NewerJobEvent, SystemEvent
from tests.engine_harness import EngineHarness
from tests.unit.engine.test_happenings import Listening


@pytest.fixture
def harness() -> Listening:
    return Listening()


def terminal_of(harness, job_id):
    """What the failures of a job since the last call said about being the last."""
    events = [event for event in harness.heard() if isinstance(event, JobEvent)]
    return [e.terminal for e in events if e.event_type == "failed" and e.job_id == job_id]


# whether it was the last attempt


@pytest.mark.parametrize("removes", [False, True])
def test_a_failed_attempt_says_whether_it_was_the_last(harness, removes):
    job_id = harness.push(maxAttempts=2, backoff=0, removeOnFail=removes)
    for is_last in (False, True):
        _, token = harness.pull()
        harness.fail(job_id, token, error="x")

        assert terminal_of(harness, job_id) == [is_last]


def test_a_failure_that_no_attempt_can_mend_is_the_last(harness):
    job_id, token = harness.active(maxAttempts=5)

    harness.fail(job_id, token, error="x", unrecoverable=True)

    assert terminal_of(harness, job_id) == [True]


def test_a_timeout_says_whether_it_was_the_last_attempt(harness):
    job_id = harness.push(maxAttempts=2, backoff=0, timeout=100)
    for is_last in (False, True):
        assert harness.pull() is not None
        harness.advance(101)

        assert terminal_of(harness, job_id) == [is_last]


def test_a_final_stall_was_the_last_attempt(harness):
    harness.send("SetStallConfig", queue="q", config={"stallInterval": 1_000, "gracePeriod": 0, "maxStalls": 1})
    job_id, _ = harness.active()

    harness.advance(8_000)

    assert terminal_of(harness, job_id) == [True]


def test_a_lost_connection_that_ends_the_job_was_the_last_attempt(harness):
    job_id, _ = harness.active(maxAttempts=1)

    harness.disconnect()

    assert terminal_of(harness, job_id) == [True]


def test_the_failure_of_a_job_without_data_holds_none(harness):
    job_id = harness.send("PUSH", queue="q", name="send").id
    _, token = harness.pull()

    harness.fail(job_id, token, error="x")

    failed = next(event for event in harness.heard() if isinstance(event, JobEvent) and event.event_type == "failed")
    assert failed.data is UNSET


def test_a_lock_that_ended_and_a_parent_that_failed_say_nothing_of_it(harness):
    harness.push(jobId="child", maxAttempts=1, parentId="parent", failParentOnFailure=True)
    harness.push("p", jobId="parent", dependsOn=["child"], childrenIds=["child"])
    _, token = harness.pull()
    harness.fail("child", token, error="x")
    assert terminal_of(harness, "parent") == [UNSET]

    job_id = harness.push("other", maxAttempts=1)
    harness.pull("other", lockTtl=1_000)
    harness.advance(3_001)

    assert terminal_of(harness, job_id) == [UNSET]


# kinds of events


def test_a_lock_that_ends_for_the_last_time_is_a_stall_for_newer_clients_and_then_a_failure(harness):
    job_id = harness.push(maxAttempts=1)
    harness.pull(lockTtl=1_000)
    harness.heard()

    harness.advance(3_001)

    found = [(type(e), e.event_type) for e in harness.heard() if isinstance(e, JobEvent) and e.job_id == job_id]
    assert found == [(NewerJobEvent, "stalled"), (JobEvent, "failed")]


def test_a_failure_of_a_job_without_data_has_none(harness):
    job_id, token = harness.active(maxAttempts=1)
    harness.job(job_id).record.data = Raw(b"")

    harness.fail(job_id, token)

    [failed] = [e for e in harness.heard() if isinstance(e, JobEvent) and e.event_type == "failed"]
    assert (failed.data, failed.error) == (UNSET, UNSET)


# queues that nobody listens to


def live(harness: EngineHarness, queue: str, *, durable: bool) -> None:
    """Jobs come, one by one and together, and are done."""
    harness.push(queue, durable=durable)
    harness.push_many(queue, [{"durable": durable}, {"durable": durable}])
    for job in harness.ask("PULLB", queue=queue, count=3)["jobs"]:
        harness.ack(job["id"])


@pytest.mark.parametrize("durable", [False, True])
def test_of_a_queue_that_nobody_has_subscribed_to_no_event_is_made(harness, durable):
    harness.engine.hear({"heard"})
    live(harness, "unheard", durable=durable)

    assert [e for e in harness.heard() if isinstance(e, JobEvent)] == []

    live(harness, "heard", durable=durable)
    kinds = [e.event_type for e in harness.heard() if isinstance(e, JobEvent)]
    assert kinds == ["pushed"] * 3 + ["pulled"] * 3 + ["completed"] * 3


@pytest.mark.parametrize("durable", [False, True])
def test_of_batches_and_of_whole_queues_only_others_hear_so_nothing_is_made_or_staged(harness, durable):
    harness.push(jobId="dead", maxAttempts=1)
    harness.fail(*harness.pull())
    harness.engine.hear({"q"})
    harness.heard()
    with harness.pending():
        harness.push_many("q", [{"durable": durable}, {"durable": durable}])
        assert len(harness.engine.state.changes.staged) == (2 if durable else 0)
        harness.commit()
        harness.ask("PurgeDlq", queue="q")
        assert len(harness.engine.state.changes.staged) == 1
        harness.commit()

    assert not [e for e in harness.heard() if isinstance(e, SystemEvent)]


def test_of_flows_only_others_hear(harness):
    harness.engine.hear({"q"})
    harness.push(jobId="child", parentId="parent")
    harness.push("p", jobId="parent", childrenIds=["child"])
    pulled = harness.pull()
    harness.heard()

    harness.ack(*pulled)

    assert [getattr(event, "event_type", None) for event in harness.heard()] == ["completed"]


def test_who_hears_everything_hears_every_queue_again(harness):
    harness.engine.hear(set())
    harness.push("a")
    harness.engine.hear(None)
    harness.heard()

    job_id = harness.push("a")

    assert harness.told() == [("pushed", job_id, {})]
