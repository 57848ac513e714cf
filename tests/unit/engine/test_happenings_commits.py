"""Whatever a client is told of after a commit, listeners hear of after that commit: in order, once, and not at all when
it fails.

Source: scheduling and flows, "Job events"; D-002, D-045.
"""

import pytest

from bunqueue_trio.model.events import JobEvent
from tests.engine_harness import EngineHarness


class Listening(EngineHarness):
    def __init__(self):
        super().__init__()
        self.engine.listen(True)

    def heard(self):
        """Names of the events since the last call, with the job or queue that each is about."""
        state = self.engine.state
        events, state.events = state.events, []
        return [(e.event_type, e.job_id) if isinstance(e, JobEvent) else (e.event, about(e.data)) for e in events]


CREATED = ("queue:created", None)


def about(data):
    return data.get("jobId") or data.get("parentJobId")


@pytest.fixture
def harness() -> Listening:
    return Listening()


def active(harness, **options):
    harness.push(**options)
    pulled = harness.pull()
    harness.heard()
    return pulled


def push(harness):
    return ("PUSH", {"queue": "q", "data": 1, "jobId": "a", "durable": True}), [CREATED, ("pushed", "a")]


def push_of_a_parent(harness):
    harness.push(jobId="c")
    fields = {"queue": "q", "data": 1, "jobId": "a", "durable": True, "dependsOn": ["c"]}
    return ("PUSH", fields), [("job:waiting-children", "a"), ("pushed", "a")]


def push_batch(harness):
    jobs = [{"data": 1, "customId": name, "durable": True} for name in "ab"]
    told = [CREATED, ("pushed", "a"), ("pushed", "b"), ("batch:pushed", None)]
    return ("PUSHB", {"queue": "q", "jobs": jobs}), told


def push_batch_with_its_own_duplicate(harness):
    jobs = [{"data": 1, "customId": name, "durable": True, "uniqueKey": "k"} for name in "ab"]
    jobs.append({"data": 1, "customId": "c", "durable": True})
    told = [CREATED, ("pushed", "a"), ("duplicated", "a"), ("job:deduplicated", "a"), ("pushed", "c")]
    told.append(("batch:pushed", None))
    return ("PUSHB", {"queue": "q", "jobs": jobs}), told


def ack(harness):
    job_id, token = active(harness, jobId="a")
    return ("ACK", {"id": job_id, "token": token}), [("completed", "a")]


def ack_of_the_last_child(harness):
    job_id, token = active(harness, jobId="a", parentId="p")
    harness.push("p", jobId="p", dependsOn=["a"], childrenIds=["a"])
    told = [("completed", "a"), ("job:dependencies-resolved", "p"), ("flow:completed", "p")]
    return ("ACK", {"id": job_id, "token": token}), told


def ack_of_a_job_that_repeats(harness):
    job_id, token = active(harness, jobId="a", repeat={"every": 1_000})
    return ("ACK", {"id": job_id, "token": token}), [("completed", "a"), ("pushed", None)]


def ack_batch(harness):
    pulled = [active(harness, jobId=name) for name in "ab"]
    fields = {"ids": [job_id for job_id, _ in pulled], "tokens": [token for _, token in pulled]}
    return ("ACKB", fields), [("completed", "a"), ("completed", "b")]


def fail(harness):
    job_id, token = active(harness, jobId="a")
    return ("FAIL", {"id": job_id, "token": token}), [("failed", "a"), ("retried", "a")]


def last_fail(harness):
    job_id, token = active(harness, jobId="a", maxAttempts=1)
    return ("FAIL", {"id": job_id, "token": token}), [("dlq:added", "a"), ("failed", "a")]


def last_fail_of_a_child(harness):
    harness.push("p", jobId="p")
    job_id, token = active(harness, jobId="a", maxAttempts=1, parentId="p", failParentOnFailure=True)
    told = [("dlq:added", "a"), ("failed", "a"), ("flow:failed", "p")]
    told += [("dlq:added", "p"), ("failed", "p"), ("flow:failed", "p")]
    return ("FAIL", {"id": job_id, "token": token}), told


def last_fail_of_a_child_that_lets_its_parent_go(harness):
    job_id, token = active(harness, jobId="a", maxAttempts=1, parentId="p", continueParentOnFailure=True)
    harness.push("p", jobId="p", dependsOn=["a"])
    told = [("dlq:added", "a"), ("failed", "a"), ("flow:failed", "p"), ("waiting", "p")]
    return ("FAIL", {"id": job_id, "token": token}), told


def cancel(harness):
    harness.push(jobId="a")
    return ("Cancel", {"id": "a"}), [("removed", "a")]


def cancel_children(harness):
    for name in "ab":
        harness.push(jobId=name)
    harness.push("p", jobId="p", dependsOn=["a", "b"], childrenIds=["a", "b"])
    return ("RemoveUnprocessedChildren", {"id": "p"}), [("removed", "a"), ("removed", "b")]


def discard_of_a_child(harness):
    harness.push(jobId="a", parentId="p")
    return ("Discard", {"id": "a"}), [("dlq:added", "a"), ("job:discarded", "a"), ("flow:failed", "p")]


def move_to_delayed(harness):
    active(harness, jobId="a")
    return ("MoveToDelayed", {"id": "a", "delay": 500}), [("delayed", "a"), ("job:moved-to-delayed", "a")]


def move_to_wait(harness):
    active(harness, jobId="a")
    return ("MoveToWait", {"id": "a"}), [("waiting", "a")]


def remove_dependency(harness):
    harness.push(jobId="a", parentId="p")
    harness.push("p", jobId="p", dependsOn=["a"])
    return ("RemoveChildDependency", {"id": "a"}), [("waiting", "p")]


def pause(harness):
    return ("Pause", {"queue": "q"}), [("queue:paused", None), ("paused", "")]


def resume(harness):
    return ("Resume", {"queue": "q"}), [("queue:resumed", None), ("resumed", "")]


def drain(harness):
    harness.push()
    return ("Drain", {"queue": "q"}), [("queue:drained", None)]


def obliterate(harness):
    harness.push()
    return ("Obliterate", {"queue": "q"}), [("queue:obliterated", None), ("queue:removed", None)]


def clean(harness):
    harness.push()
    return ("Clean", {"queue": "q", "grace": 0}), [("queue:cleaned", None)]


def clean_failed(harness):
    harness.push(jobId="a")
    harness.send("Discard", id="a")
    return ("Clean", {"queue": "q", "grace": 0, "state": "failed"}), [("queue:cleaned", None)]


def purge(harness):
    harness.push(jobId="a")
    harness.send("Discard", id="a")
    return ("PurgeDlq", {"queue": "q"}), [("dlq:purged", None)]


def retry_one(harness):
    harness.push(jobId="a")
    harness.send("Discard", id="a")
    return ("RetryDlq", {"queue": "q", "jobId": "a"}), [("dlq:retried", "a")]


def retry_all(harness):
    harness.push(jobId="a")
    harness.send("Discard", id="a")
    return ("RetryDlq", {"queue": "q"}), [("dlq:retry-all", None)]


def promote(harness):
    harness.push(jobId="a", delay=500)
    return ("Promote", {"id": "a"}), [("job:promoted", "a")]


def promote_jobs(harness):
    for name in "ab":
        harness.push(jobId=name, delay=500)
    return ("PromoteJobs", {"queue": "q"}), [("job:promoted", "a"), ("job:promoted", "b")]


def update(harness):
    harness.push(jobId="a")
    return ("Update", {"id": "a", "data": 2}), [("job:data-updated", "a")]


def change_priority(harness):
    harness.push(jobId="a")
    return ("ChangePriority", {"id": "a", "priority": 2}), [("job:priority-changed", "a")]


def change_delay(harness):
    harness.push(jobId="a")
    return ("ChangeDelay", {"id": "a", "delay": 2}), [("job:delay-changed", "a")]


def limit_rate(harness):
    return ("RateLimit", {"queue": "q", "limit": 2}), [("ratelimit:set", None)]


def lift_rate(harness):
    return ("RateLimitClear", {"queue": "q"}), [("ratelimit:cleared", None)]


def limit_concurrency(harness):
    return ("SetConcurrency", {"queue": "q", "limit": 2}), [("concurrency:set", None)]


def lift_concurrency(harness):
    return ("ClearConcurrency", {"queue": "q"}), [("concurrency:cleared", None)]


def stall_config(harness):
    return ("SetStallConfig", {"queue": "q", "config": {"maxStalls": 2}}), [("config:stall-changed", None)]


def dlq_config(harness):
    return ("SetDlqConfig", {"queue": "q", "config": {"maxEntries": 2}}), [("config:dlq-changed", None)]


CASES = [
    push, push_of_a_parent, push_batch, push_batch_with_its_own_duplicate, ack, ack_of_the_last_child,
    ack_of_a_job_that_repeats, ack_batch, fail, last_fail, last_fail_of_a_child,
    last_fail_of_a_child_that_lets_its_parent_go, cancel, cancel_children, discard_of_a_child, move_to_delayed,
    move_to_wait, remove_dependency, pause, resume, drain, obliterate, clean, clean_failed, purge, retry_one, retry_all,
    promote, promote_jobs, update, change_priority, change_delay, limit_rate, lift_rate, limit_concurrency,
    lift_concurrency, stall_config, dlq_config,
]  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_listeners_hear_of_a_change_at_its_commit_and_not_when_that_fails(harness, case):
    (command, fields), expected = case(harness)
    harness.heard()
    with harness.pending():
        harness.send(command, **fields)
        harness.reject()
        assert harness.heard() == []

        harness.send(command, **fields)
        flight = harness.take()
        assert harness.heard() == []
        harness.withdraw(flight)  # it was not even tried, and goes into the next one
        assert harness.heard() == []
        harness.commit()

        heard = harness.heard()
        harness.commit()
    assert [kind for kind, _ in heard] == [kind for kind, _ in expected]
    named = [
        (kind, job_id if wanted is not None else None)
        for (kind, job_id), (_, wanted) in zip(heard, expected, strict=True)
    ]
    assert named == expected
    assert harness.heard() == []


def test_commits_are_told_in_their_order_whatever_the_order_of_the_commands(harness):
    leases = [active(harness, jobId=name) for name in "abc"]
    with harness.pending():
        for job_id, token in reversed(leases):
            harness.ack(job_id, token)
        harness.send("PUSH", queue="q", data=1, jobId="d", durable=True)
        harness.push("q", jobId="buffered")  # is there at once
        harness.send("Pause", queue="q")
        assert harness.heard() == [("pushed", "buffered")]
        harness.commit()

    assert harness.heard() == [
        *(("completed", name) for name in "cba"),
        ("pushed", "d"),
        ("queue:paused", None),
        ("paused", ""),
    ]


def test_whoever_comes_while_a_commit_is_under_way_hears_of_it(harness):
    """It takes effect afterwards, and that is what is told."""
    harness.engine.listen(False)
    with harness.pending():
        harness.send("PUSH", queue="q", data=1, jobId="a", durable=True)
        flight = harness.take()
        harness.engine.listen(True)
        harness.land(flight)

    assert harness.heard() == [CREATED, ("pushed", "a")]


def test_whoever_leaves_while_a_commit_is_under_way_costs_nothing_more(harness):
    with harness.pending():
        harness.send("PUSH", queue="q", data=1, jobId="a", durable=True)
        flight = harness.take()
        harness.engine.listen(False)
        harness.land(flight)

    assert harness.engine.state.events is None
