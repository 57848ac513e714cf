"""What each dashboard event says, and its place among the events of jobs.

Source: HTTP, "Dashboard events".
"""

import pytest

from bunqueue_trio.engine.core import IDLE_QUEUE_SWEEP_MS
from bunqueue_trio.model.events import JobEvent
from tests.engine_harness import EngineHarness


class Listening(EngineHarness):
    """An engine with a listener."""

    def __init__(self):
        super().__init__()
        self.engine.listen(True)

    def told(self, *kinds):
        """Name and data of everything since the last call, or of the kinds asked for; of jobs their ids alone."""
        state = self.engine.state
        events, state.events = state.events, []
        found = [(e.event_type, e.job_id) if isinstance(e, JobEvent) else (e.event, e.data) for e in events]
        return [event for event in found if not kinds or event[0] in kinds]

    def done(self, cmd, /, **fields):
        """What a command alone is told as."""
        self.told()
        self.send(cmd, **fields)
        return self.told()


@pytest.fixture
def harness() -> Listening:
    return Listening()


# queues


@pytest.mark.parametrize("options", [{}, {"priority": 1}, {"durable": True}, {"jobId": "a"}])
def test_a_queue_is_there_with_its_first_job_and_before_it(harness, options):
    job_id = harness.push("mail", **options)
    other_id = harness.push("mail", **{**options, "jobId": "b"})

    assert harness.told() == [("queue:created", {"queue": "mail"}), ("pushed", job_id), ("pushed", other_id)]


def test_the_queue_of_a_parent_is_told_before_what_it_waits_for(harness):
    child = harness.push()
    harness.told()
    harness.push("p", jobId="p", dependsOn=[child])

    assert [event for event, _ in harness.told()] == ["queue:created", "job:waiting-children", "pushed"]


def test_a_name_that_was_only_paused_or_limited_is_no_queue(harness):
    harness.send("Pause", queue="q")
    harness.send("SetConcurrency", queue="q", limit=1)

    assert harness.told("queue:created") == []


def test_a_durable_push_that_fails_makes_no_queue(harness):
    with harness.pending():
        harness.push(durable=True)
        harness.reject()
    assert harness.told() == []
    assert harness.send("ListQueues").queues == []

    job_id = harness.push()

    assert harness.told() == [("queue:created", {"queue": "q"}), ("pushed", job_id)]


def test_a_push_that_a_job_elsewhere_stands_for_makes_its_queue_known(harness):
    harness.push(jobId="a")
    harness.told()
    harness.push("elsewhere", jobId="a")

    assert harness.told() == [("queue:created", {"queue": "elsewhere"})]


def test_a_queue_that_nobody_heard_of_is_not_told_later(harness):
    harness.engine.listen(False)
    harness.push()
    harness.engine.listen(True)
    harness.push()

    assert harness.told("queue:created") == []


def test_an_idle_queue_that_is_forgotten_is_told(harness):
    harness.push()
    harness.push("once", removeOnComplete=True)
    harness.ack(*harness.pull("once"))
    harness.send("Pause", queue="paused")
    harness.send("Resume", queue="paused")
    harness.told()

    harness.clock.advance(IDLE_QUEUE_SWEEP_MS)
    harness.tick()

    assert harness.told() == [("queue:removed", {"queue": "once"})]


def test_pause_and_resume_are_told_before_their_job_events(harness):
    assert harness.done("Pause", queue="q") == [("queue:paused", {"queue": "q"}), ("paused", "")]
    assert harness.done("Resume", queue="q") == [("queue:resumed", {"queue": "q"}), ("resumed", "")]


def test_draining_tells_how_many_and_nothing_when_there_was_nothing(harness):
    harness.push_many("q", [{}, {"delay": 1_000}, {"priority": 3}])

    assert harness.done("Drain", queue="q") == [("queue:drained", {"queue": "q", "count": 3})]
    assert harness.done("Drain", queue="q") == []


def test_an_obliterated_queue_is_removed(harness):
    harness.push()

    told = harness.done("Obliterate", queue="q")

    assert told == [("queue:obliterated", {"queue": "q"}), ("queue:removed", {"queue": "q"})]
    assert harness.done("Obliterate", queue="q") == []


def test_an_obliterated_queue_that_was_pushed_to_meanwhile_lives_on(harness):
    harness.push()
    harness.told()
    with harness.pending():
        harness.send("Obliterate", queue="q")
        job_id = harness.push()
        harness.commit()

    assert harness.told() == [("pushed", job_id), ("queue:obliterated", {"queue": "q"})]


@pytest.mark.parametrize("state", [None, "waiting", "failed", "delayed"])
def test_cleaning_tells_the_state_that_was_asked_for(harness, state):
    options = {"delay": 60_000} if state == "delayed" else {}
    for _ in range(2):
        job_id = harness.push(**options)
        if state == "failed":
            harness.send("Discard", id=job_id)
    asked = {} if state is None else {"state": state}

    told = harness.done("Clean", queue="q", grace=0, **asked)

    assert told == [("queue:cleaned", {"queue": "q", **asked, "count": 2})]
    assert list(told[0][1]) == ["queue", *asked, "count"]
    assert harness.done("Clean", queue="q", grace=0, **asked) == []


def test_cleaning_completed_jobs_is_told_at_its_commit(harness):
    job_id = harness.push()
    harness.ack(*harness.pull())
    command, question = harness.question("Clean", queue="q", grace=0, state="completed")
    question.ids = [job_id]
    harness.told()
    with harness.pending():
        harness.answered(command, question)
        assert harness.told() == []
        harness.commit()

    assert harness.told() == [("queue:cleaned", {"queue": "q", "state": "completed", "count": 1})]


# jobs


def test_changes_of_a_job_say_what_has_changed(harness):
    job_id = harness.push(delay=60_000)

    assert harness.done("Update", id=job_id, data=2) == [("job:data-updated", {"jobId": job_id})]
    told = harness.done("ChangePriority", id=job_id, priority=7)
    assert told == [("job:priority-changed", {"jobId": job_id, "newPriority": 7})]
    told = harness.done("ChangeDelay", id=job_id, delay=5_000)
    assert told == [("job:delay-changed", {"jobId": job_id, "newDelay": 5_000})]
    told = harness.done("MoveToDelayed", id=job_id, delay=4_000)
    assert told == [("job:moved-to-delayed", {"jobId": job_id, "delay": 4_000})]
    assert harness.done("Promote", id=job_id) == [("job:promoted", {"jobId": job_id})]


def test_an_update_of_a_successor_names_the_successor(harness):
    first = harness.push(repeat={"every": 60_000})
    harness.ack(*harness.pull())
    told = harness.done("Update", id=first, data=2)

    [(event, data)] = told
    assert event == "job:data-updated"
    assert data["jobId"] != first


def test_an_active_job_that_is_moved_is_told_as_delayed_first(harness):
    job_id = harness.push()
    harness.pull()

    told = harness.done("MoveToDelayed", id=job_id, delay=4_000)

    assert told == [("delayed", job_id), ("job:moved-to-delayed", {"jobId": job_id, "delay": 4_000})]


def test_each_promoted_job_is_told(harness):
    ids = harness.push_many("q", [{"delay": 1_000}] * 3)

    assert harness.done("PromoteJobs", queue="q", count=2) == [
        ("job:promoted", {"jobId": job_id}) for job_id in ids[:2]
    ]


def test_a_discarded_job_is_a_dead_letter_first(harness):
    job_id = harness.push()

    assert harness.done("Discard", id=job_id) == [
        ("dlq:added", {"queue": "q", "jobId": job_id, "reason": "unknown"}),
        ("job:discarded", {"jobId": job_id}),
    ]


def test_a_timeout_is_told_before_the_failure(harness):
    job_id = harness.push(timeout=100, maxAttempts=1)
    harness.pull()
    harness.told()

    harness.advance(100)

    assert harness.told() == [
        ("job:timeout", {"jobId": job_id, "queue": "q", "timeout": 100}),
        ("dlq:added", {"queue": "q", "jobId": job_id, "reason": "max_attempts_exceeded"}),
        ("failed", job_id),
    ]


def test_a_timeout_that_removes_the_job_makes_no_dead_letter(harness):
    job_id = harness.push(timeout=100, maxAttempts=1, removeOnFail=True)
    harness.pull()
    harness.told()

    harness.advance(100)

    assert harness.told() == [
        ("job:timeout", {"jobId": job_id, "queue": "q", "timeout": 100}),
        ("failed", job_id),
        ("queue:removed", {"queue": "q"}),  # it was its only job
    ]


@pytest.mark.parametrize("renewals", [0, 2])
def test_a_lock_that_ends_says_how_often_it_was_renewed(harness, renewals):
    job_id = harness.push()
    _, token = harness.pull(lockTtl=1_000)
    for _ in range(renewals):
        harness.send("ExtendLock", id=job_id, token=token, duration=1_000)
    harness.told()

    harness.advance(4_000)

    assert harness.told() == [
        ("job:lock-expired", {"jobId": job_id, "queue": "q", "renewalCount": renewals}),
        ("stalled", job_id),
    ]


def test_a_lock_that_ends_the_last_attempt_makes_a_dead_letter(harness):
    job_id = harness.push(maxAttempts=1)
    harness.pull(lockTtl=1_000)
    harness.told()

    harness.advance(4_000)

    told = harness.told()
    assert [event for event, _ in told] == ["job:lock-expired", "stalled", "dlq:added", "failed"]
    assert told[2][1]["jobId"] == job_id


@pytest.mark.parametrize(("attempts", "action"), [(3, "retry"), (1, "move_to_dlq")])
def test_a_stall_is_told_twice(harness, attempts, action):
    job_id = harness.push(stallTimeout=1_000, maxAttempts=attempts)
    harness.pull(owner=None)
    harness.told()

    harness.advance(30_000)

    data = {"jobId": job_id, "queue": "q", "stallCount": 1, "action": action}
    told = harness.told()
    assert told[:2] == [("stalled", job_id), ("job:stalled", data)]
    assert [event for event, _ in told[2:]] == ([] if action == "retry" else ["dlq:added", "failed"])


def test_a_job_that_a_pull_finds_expired_is_told(harness):
    job_id = harness.push(ttl=100)
    harness.clock.advance(150)
    harness.told()

    assert harness.pull() is None

    assert harness.told() == [("job:expired", {"queue": "q", "jobId": job_id, "ttl": 100, "age": 150})]


# batches


@pytest.mark.parametrize("options", [{}, {"priority": 1}, {"durable": True}])
def test_a_batch_is_told_after_its_jobs(harness, options):
    ids = harness.push_many("q", [options] * 3)

    assert harness.told() == [
        ("queue:created", {"queue": "q"}),
        *(("pushed", job_id) for job_id in ids),
        ("batch:pushed", {"queue": "q", "total": 3, "inserted": 3, "duplicates": 0}),
    ]


def test_duplicates_of_a_batch_are_counted(harness):
    harness.push(jobId="a")
    harness.push_many("q", [{"customId": "a"}, {"uniqueKey": "k"}, {"uniqueKey": "k"}])

    data = {"queue": "q", "total": 3, "inserted": 1, "duplicates": 2}
    assert harness.told("batch:pushed") == [("batch:pushed", data)]


def test_a_durable_batch_of_known_jobs_is_told_at_once(harness):
    for name in "ab":
        harness.push(jobId=name, durable=True)
    harness.told()

    harness.push_many("q", [{"customId": name, "durable": True} for name in "ab"])

    data = {"queue": "q", "total": 2, "inserted": 0, "duplicates": 2}
    assert harness.told() == [("batch:pushed", data)]


@pytest.mark.parametrize("options", [{}, {"durable": True}])
def test_one_job_is_no_batch(harness, options):
    harness.push_many("q", [options])
    harness.send("PULLB", queue="q", count=5)

    assert [event for event, _ in harness.told()] == ["queue:created", "pushed", "pulled"]


def test_a_delivered_batch_is_told_after_its_jobs(harness):
    ids = harness.push_many("q", [{}] * 3)

    told = harness.done("PULLB", queue="q", count=10)

    assert told == [*(("pulled", job_id) for job_id in ids), ("batch:pulled", {"queue": "q", "count": 3})]


# dead letters


def test_a_final_failure_is_a_dead_letter_first(harness):
    job_id = harness.push(maxAttempts=1)
    pulled = harness.pull()
    harness.told()

    harness.fail(*pulled)

    data = {"queue": "q", "jobId": job_id, "reason": "max_attempts_exceeded"}
    assert harness.told() == [("dlq:added", data), ("failed", job_id)]


def test_a_failure_that_is_retried_or_removed_makes_no_dead_letter(harness):
    for options in ({}, {"maxAttempts": 1, "removeOnFail": True}):
        harness.push(**options)
        harness.fail(*harness.pull())

    assert harness.told("dlq:added") == []


def test_a_lost_connection_makes_a_dead_letter(harness):
    job_id = harness.push(maxAttempts=1)
    harness.connect(7)
    harness.pull(connection=7)
    harness.told()

    harness.disconnect(7)

    data = {"queue": "q", "jobId": job_id, "reason": "worker_lost"}
    assert harness.told() == [("dlq:added", data), ("failed", job_id)]


def test_letters_brought_back_or_purged_are_told(harness):
    ids = harness.push_many("q", [{}] * 4)
    for job_id in ids:
        harness.send("Discard", id=job_id)

    told = harness.done("RetryDlq", queue="q", jobId=ids[0])
    assert told == [("dlq:retried", {"queue": "q", "count": 1, "jobId": ids[0]})]
    assert harness.done("RetryDlq", queue="q", count=2) == [("dlq:retry-all", {"queue": "q", "count": 2})]
    assert harness.done("PurgeDlq", queue="q") == [("dlq:purged", {"queue": "q", "count": 1})]
    for command in ("RetryDlq", "PurgeDlq"):
        assert harness.done(command, queue="q") == []


def test_letters_that_come_back_by_themselves_are_counted_by_queue(harness):
    policy = {"autoRetry": True, "autoRetryInterval": 1_000, "maxAutoRetries": 1}
    for queue, count in (("a", 2), ("b", 1)):
        harness.send("SetDlqConfig", queue=queue, config=policy)
        for job_id in harness.push_many(queue, [{}] * count):
            harness.send("Discard", id=job_id)
    harness.told()
    with harness.pending():
        harness.advance(1_000)
        assert harness.told() == []
        harness.commit()

    assert harness.told() == [
        ("dlq:auto-retried", {"queue": "a", "count": 2}),
        ("dlq:auto-retried", {"queue": "b", "count": 1}),
    ]


def test_letters_that_grow_too_old_are_counted(harness):
    harness.send("SetDlqConfig", queue="q", config={"maxAge": 1_000})
    for job_id in harness.push_many("q", [{}] * 2):
        harness.send("Discard", id=job_id)
    harness.told()

    harness.advance(1_000)

    assert harness.told() == [("dlq:expired", {"queue": "q", "count": 2})]


# settings


def test_limits_are_told_as_they_were_given(harness):
    told = harness.done("RateLimit", queue="q", limit=5)
    assert told == [("ratelimit:set", {"queue": "q", "max": 5})]
    told = harness.done("RateLimit", queue="q", limit=5, duration=100, ttl=200)
    assert told == [("ratelimit:set", {"queue": "q", "max": 5, "duration": 100, "ttl": 200})]
    assert harness.done("RateLimitClear", queue="q") == [("ratelimit:cleared", {"queue": "q"})]
    told = harness.done("SetConcurrency", queue="q", limit=5)
    assert told == [("concurrency:set", {"queue": "q", "concurrency": 5})]
    assert harness.done("ClearConcurrency", queue="q") == [("concurrency:cleared", {"queue": "q"})]


def test_policies_are_told_as_the_change_that_was_taken(harness):
    given = {"maxStalls": "7", "gracePeriod": "junk", "stallInterval": 1_000}
    told = harness.done("SetStallConfig", queue="q", config=given)
    assert told == [("config:stall-changed", {"queue": "q", "config": {"maxStalls": 7, "stallInterval": 1_000}})]
    told = harness.done("SetDlqConfig", queue="q", config={"maxAge": None, "autoRetry": True})
    assert told == [("config:dlq-changed", {"queue": "q", "config": {"maxAge": None, "autoRetry": True}})]


def test_a_pull_that_a_limit_refuses_is_told(harness):
    harness.push_many("q", [{}] * 3)
    harness.send("SetConcurrency", queue="q", limit=1)
    harness.pull()
    assert harness.done("PULL", queue="q") == [("concurrency:rejected", {"queue": "q"})]

    harness.send("ClearConcurrency", queue="q")
    harness.send("RateLimit", queue="q", limit=1, duration=60_000)
    harness.pull()
    assert harness.done("PULL", queue="q") == [("ratelimit:rejected", {"queue": "q"})]


def test_an_empty_queue_refuses_nothing(harness):
    harness.send("SetConcurrency", queue="q", limit=1)

    assert harness.done("PULL", queue="q") == []
