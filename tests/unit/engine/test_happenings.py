"""What listeners are told of, and when: each row of the table of job events."""

import msgspec
import pytest
from msgspec import UNSET

from bunqueue_trio.model.events import JobEvent, SystemEvent
from tests.engine_harness import EngineHarness

DATA = {"n": 1}


class Listening(EngineHarness):
    """An engine with a listener, and short names for what it hears."""

    def __init__(self, **options):
        super().__init__(**options)
        self.engine.listen(True)

    def heard(self):
        """Everything since the last call."""
        state = self.engine.state
        events, state.events = state.events, []
        assert all(event_time(event) <= self.now.wall_ms for event in events)
        return events

    def told(self, *types):
        """Job events since the last call, of these types or all, as plain tuples (type, id, what else they say)."""
        events = [event for event in self.heard() if isinstance(event, JobEvent)]
        return [(e.event_type, e.job_id, extras(e)) for e in events if not types or e.event_type in types]

    def announced(self):
        """System events since the last call."""
        return [(event.event, event.data) for event in self.heard() if isinstance(event, SystemEvent)]

    def active(self, **options):
        """A job in the hands of a worker, and its token; what happened until then is forgotten."""
        self.push(**options)
        pulled = self.pull()
        self.heard()
        return pulled


def event_time(event):
    return event.timestamp if isinstance(event, JobEvent) else event.ts


def extras(event):
    """What an event says beside type, queue, id and time."""
    names = ("data", "error", "progress", "prev", "delay")
    found = {name: getattr(event, name) for name in names if getattr(event, name) is not UNSET}
    if "data" in found:
        found["data"] = msgspec.msgpack.decode(found["data"])
    return found


@pytest.fixture
def harness() -> Listening:
    return Listening()


# listening


def test_without_a_listener_nothing_is_collected():
    harness = EngineHarness()

    harness.ack(*(harness.push() and harness.pull()))

    assert harness.engine.state.events is None


def test_who_stops_listening_is_told_nothing_more(harness):
    harness.push()

    harness.engine.listen(False)
    harness.push()

    assert harness.engine.state.events is None


def test_an_event_names_queue_job_and_time(harness):
    harness.clock.advance(7)
    job_id = harness.push("mail")

    assert harness.heard()[1:] == [JobEvent("pushed", "mail", job_id, harness.now.wall_ms)]


# coming


@pytest.mark.parametrize("options", [{}, {"priority": 2}, {"delay": 50}, {"jobId": "c"}, {"durable": True}])
def test_a_new_job_is_told_once(harness, options):
    job_id = harness.push(**options)

    assert harness.told() == [("pushed", job_id, {})]


@pytest.mark.parametrize("option", [{}, {"priority": 2}, {"durable": True}])
def test_each_job_of_a_batch_is_told(harness, option):
    ids = harness.push_many("q", [option] * 3)

    assert harness.told() == [("pushed", job_id, {}) for job_id in ids]


def test_a_durable_job_is_told_at_its_commit_and_not_when_that_fails(harness):
    with harness.pending():
        job_id = harness.push(durable=True)
        assert harness.told() == []
        harness.commit()
        assert harness.told() == [("pushed", job_id, {})]
        harness.push(durable=True)
        harness.reject()

    assert harness.told() == []


def test_an_existing_custom_id_is_no_event(harness):
    harness.push(jobId="c")
    harness.heard()

    harness.push(jobId="c")

    assert harness.heard() == []


def test_a_duplicate_names_the_holder_of_the_key(harness):
    holder = harness.push(uniqueKey="k")
    harness.heard()

    harness.push(uniqueKey="k")

    assert [type(event) for event in harness.engine.state.events] == [JobEvent, SystemEvent]
    events = harness.heard()
    assert events[0] == JobEvent("duplicated", "q", holder, harness.now.wall_ms)
    assert events[1].event == "job:deduplicated"
    assert events[1].data == {"queue": "q", "jobId": holder, "strategy": "default"}


def test_an_extension_is_no_duplicate(harness):
    dedup = {"ttl": 1_000, "extend": True}
    holder = harness.push(uniqueKey="k", dedup=dedup)
    harness.heard()

    harness.push(uniqueKey="k", dedup=dedup)

    events = harness.heard()
    assert [event.event for event in events] == ["job:deduplicated"]
    assert events[0].data == {"queue": "q", "jobId": holder, "strategy": "extend"}


def test_a_duplicate_within_a_durable_batch_is_told_after_its_holder(harness):
    entries = [{"uniqueKey": "k", "durable": True}] * 2
    with harness.pending():
        [holder, _] = harness.push_many("q", entries)
        assert harness.told() == []
        harness.commit()
        assert harness.told() == [("pushed", holder, {}), ("duplicated", holder, {})]
        harness.push_many("r", entries)
        harness.reject()

    assert harness.told() == []


def test_a_replacing_push_is_a_new_job(harness):
    harness.push(uniqueKey="k")
    harness.heard()

    job_id = harness.push(uniqueKey="k", dedup={"replace": True})

    assert harness.told() == [("pushed", job_id, {})]


# running


@pytest.mark.parametrize("fields", [{}, {"owner": None}])
def test_each_delivery_is_told(harness, fields):
    job_id = harness.push()
    harness.heard()

    harness.pull(**fields)

    assert harness.told() == [("pulled", job_id, {})]


def test_each_job_of_a_delivered_batch_is_told(harness):
    ids = harness.push_many("q", [{}] * 2)
    harness.heard()

    harness.send("PULLB", queue="q", count=2, owner="w")

    assert harness.told() == [("pulled", job_id, {}) for job_id in ids]


@pytest.mark.parametrize(
    ("fields", "data"),
    [
        ({"progress": 40}, {"progress": 40, "message": None}),
        ({"progress": 40, "message": "m"}, {"progress": 40, "message": "m"}),
        ({"progress": 140, "message": [1]}, {"progress": 100, "message": [1]}),
    ],
)
def test_progress_is_told_with_its_message(harness, fields, data):
    job_id, _ = harness.active()

    harness.send("Progress", id=job_id, **fields)

    assert harness.told() == [("progress", job_id, {"progress": data["progress"], "data": data})]


@pytest.mark.parametrize("options", [{}, {"removeOnComplete": True}])
@pytest.mark.parametrize(
    ("given", "shown"), [({}, {}), ({"result": [1]}, {"data": [1]}), ({"result": None}, {"data": None})]
)
def test_a_completion_is_told_with_its_result(harness, options, given, shown):
    job_id, token = harness.active(**options)

    harness.ack(job_id, token, **given)

    assert harness.told() == [("completed", job_id, shown)]


def test_a_completion_is_told_at_its_commit_and_not_when_that_fails(harness):
    job_id, token = harness.active()
    with harness.pending():
        harness.ack(job_id, token)
        harness.reject()
        assert harness.told() == []
        harness.ack(job_id, token)
        assert harness.told() == []
        harness.commit()

    assert harness.told() == [("completed", job_id, {})]


def test_each_completion_of_a_batch_is_told(harness):
    pulled = [harness.active() for _ in range(2)]
    ids, tokens = zip(*pulled, strict=True)

    harness.send("ACKB", ids=list(ids), tokens=list(tokens), results=["a", "b"])

    assert harness.told() == [("completed", ids[0], {"data": "a"}), ("completed", ids[1], {"data": "b"})]


def test_a_late_ack_of_a_stalled_job_is_told(harness):
    job_id, token = harness.active()
    harness.advance(60_000)
    harness.heard()

    harness.ack(job_id, token)

    assert harness.told() == [("completed", job_id, {})]


# failing


def test_a_failed_attempt_that_is_retried_is_told_twice(harness):
    job_id, token = harness.active()

    harness.fail(job_id, token, error="boom")

    assert harness.told() == [
        ("failed", job_id, {"data": DATA, "error": "boom"}),
        ("retried", job_id, {"prev": "failed"}),
    ]


@pytest.mark.parametrize("options", [{"maxAttempts": 1}, {"maxAttempts": 1, "removeOnFail": True}])
@pytest.mark.parametrize(("fields", "shown"), [({"error": "boom"}, {"error": "boom"}), ({}, {})])
def test_a_final_failure_is_told_once(harness, options, fields, shown):
    job_id, token = harness.active(**options)

    harness.fail(job_id, token, **fields)

    assert harness.told() == [("failed", job_id, {"data": DATA, **shown})]


@pytest.mark.parametrize("attempts", [1, 2])
def test_a_failure_is_told_at_its_commit_and_not_when_that_fails(harness, attempts):
    job_id, token = harness.active(maxAttempts=attempts)
    with harness.pending():
        harness.fail(job_id, token, error="boom")
        harness.reject()
        assert harness.told() == []
        harness.fail(job_id, token, error="boom")
        assert harness.told() == []
        harness.commit()

    assert harness.told("failed") == [("failed", job_id, {"data": DATA, "error": "boom"})]


@pytest.mark.parametrize("options", [{"maxAttempts": 2}, {"maxAttempts": 1}, {"maxAttempts": 1, "removeOnFail": True}])
def test_a_timeout_is_a_failure(harness, options):
    job_id, _ = harness.active(timeout=500, **options)

    harness.advance(500)

    error = {"data": DATA, "error": "Job timeout exceeded"}
    retried = [("retried", job_id, {"prev": "failed"})] if options["maxAttempts"] == 2 else []
    assert harness.told() == [("failed", job_id, error), *retried]


def test_a_lock_that_ends_is_a_stall_without_details(harness):
    harness.push()
    job_id, _ = harness.pull(lockTtl=1_000)
    harness.heard()

    harness.advance(3_001)

    assert harness.told() == [("stalled", job_id, {})]


def test_a_lock_that_ends_too_often_is_a_failure_without_the_data(harness):
    harness.push(maxAttempts=1)
    job_id, _ = harness.pull(lockTtl=1_000)
    harness.heard()

    harness.advance(3_001)

    assert harness.told() == [
        ("stalled", job_id, {"data": {"stallCount": 1, "action": "move_to_dlq"}}),  # for subscribers over TCP
        ("failed", job_id, {"error": "Lock expired at max attempts (1)"}),
    ]


def test_a_silent_holder_is_a_stall(harness):
    harness.send("SetStallConfig", queue="q", config={"stallInterval": 1_000, "gracePeriod": 0})
    job_id, _ = harness.active()

    harness.advance(8_000)

    assert harness.told() == [("stalled", job_id, {"data": {"stallCount": 1, "action": "retry"}})]


@pytest.mark.parametrize(
    ("options", "error"),
    [({"maxAttempts": 1}, "Job stalled at max attempts (1)"), ({}, "Job stalled 1 times")],
)
def test_a_holder_that_is_silent_too_often_is_a_stall_and_a_failure(harness, options, error):
    harness.send("SetStallConfig", queue="q", config={"stallInterval": 1_000, "gracePeriod": 0, "maxStalls": 1})
    job_id, _ = harness.active(**options)

    harness.advance(8_000)

    assert harness.told() == [
        ("stalled", job_id, {"data": {"stallCount": 1, "action": "move_to_dlq"}}),
        ("failed", job_id, {"data": DATA, "error": error}),
    ]


@pytest.mark.parametrize(("attempts", "is_final"), [(2, False), (1, True)])
def test_a_lost_connection_is_told_only_when_it_ends_the_job(harness, attempts, is_final):
    job_id, _ = harness.active(maxAttempts=attempts)

    harness.disconnect()

    failure = ("failed", job_id, {"data": DATA, "error": "Connection lost while the job was active"})
    assert harness.told() == ([failure] if is_final else [])


# moving


@pytest.mark.parametrize("command", ["MoveToDelayed", "ChangeDelay"])
@pytest.mark.parametrize("delay", [0, 2_000])
def test_an_active_job_that_is_delayed_is_told(harness, command, delay):
    job_id, _ = harness.active()

    harness.send(command, id=job_id, delay=delay)

    assert harness.told() == [("delayed", job_id, {"delay": delay})]


def test_an_active_job_that_is_moved_to_wait_is_told(harness):
    job_id, _ = harness.active()

    harness.send("MoveToWait", id=job_id)

    assert harness.told() == [("waiting", job_id, {"prev": "active"})]


@pytest.mark.parametrize(
    ("command", "fields"),
    [("MoveToDelayed", {"delay": 9}), ("ChangeDelay", {"delay": 9}), ("MoveToWait", {}), ("Promote", {}),
     ("ChangePriority", {"priority": 3}), ("Update", {"data": 2}), ("Discard", {})],
)  # fmt: skip
def test_moving_a_queued_job_is_no_event(harness, command, fields):
    job_id = harness.push(delay=5_000)
    harness.heard()

    harness.send(command, id=job_id, **fields)

    assert harness.told() == []


@pytest.mark.parametrize("options", [{}, {"delay": 500}])
def test_a_cancelled_job_is_told(harness, options):
    job_id = harness.push(**options)
    harness.heard()

    harness.send("Cancel", id=job_id)

    assert harness.told() == [("removed", job_id, {"prev": "waiting"})]


def test_a_cancelled_child_is_told(harness):
    child = harness.push()
    parent = harness.push(childrenIds=[child])
    harness.heard()

    harness.send("RemoveUnprocessedChildren", id=parent)

    assert harness.told() == [("removed", child, {"prev": "waiting"})]


@pytest.mark.parametrize("command", ["Drain", "Obliterate", "Clean"])
def test_what_empties_a_queue_tells_of_no_single_job(harness, command):
    harness.push()
    harness.clock.advance(10)
    harness.heard()

    harness.send(command, queue="q", **({"grace": 0} if command == "Clean" else {}))

    assert harness.told() == []


def test_pause_and_resume_are_told_of_the_queue(harness):
    for command in ("Pause", "Pause", "Resume", "Resume"):
        harness.send(command, queue="q")

    at = harness.now.wall_ms
    paused = [SystemEvent("queue:paused", at, {"queue": "q"}), JobEvent("paused", "q", "", at)]
    resumed = [SystemEvent("queue:resumed", at, {"queue": "q"}), JobEvent("resumed", "q", "", at)]
    assert harness.heard() == paused * 2 + resumed * 2


def test_other_settings_are_no_pause(harness):
    harness.send("Pause", queue="q")
    harness.heard()

    harness.send("SetConcurrency", queue="q", limit=3)

    assert harness.told() == []


# families


def test_a_parent_that_waits_is_told_with_what_it_waits_for(harness):
    child = harness.push()
    harness.heard()

    parent = harness.push(dependsOn=[child])

    [waits, pushed] = harness.heard()
    data = {"jobId": parent, "queue": "q", "dependsOn": [child]}
    assert waits == SystemEvent("job:waiting-children", harness.now.wall_ms, data)
    assert pushed.job_id == parent


def test_a_parent_whose_children_are_done_is_told(harness):
    child, token = harness.active()
    parent = harness.push("p", dependsOn=[child], childrenIds=[child])
    harness.send("UpdateParent", childId=child, parentId=parent)
    harness.heard()

    harness.ack(child, token)

    at = harness.now.wall_ms
    assert harness.heard() == [
        JobEvent("completed", "q", child, at),
        SystemEvent("job:dependencies-resolved", at, {"jobId": parent, "queue": "p"}),
        SystemEvent("flow:completed", at, {"parentJobId": parent, "queue": "p", "childrenCount": 1}),
    ]


@pytest.mark.parametrize("options", [{}, {"removeOnComplete": True}])
@pytest.mark.parametrize("depends", [True, False])
def test_a_flow_is_complete_with_its_last_child(harness, options, depends):
    children = [harness.push(parentId="p", **options) for _ in range(2)]
    harness.push("p", jobId="p", childrenIds=children, **({"dependsOn": children} if depends else {}))
    harness.heard()
    seen = []

    for _ in children:
        harness.ack(*harness.pull())
        seen.append([name for name, _ in harness.announced() if name == "flow:completed"])

    assert seen == [[], ["flow:completed"]]


def test_a_final_failure_is_told_of_the_flow_in_the_queue_of_the_child(harness):
    child, token = harness.active(parentId="p", maxAttempts=1)

    harness.fail(child, token, error="boom")

    data = {"parentJobId": "p", "failedChildId": child, "queue": "q", "error": "boom"}
    assert harness.announced()[1:] == [("flow:failed", data)]


def test_a_failure_that_is_retried_is_none_of_the_flow(harness):
    child, token = harness.active(parentId="p")

    harness.fail(child, token, error="boom")

    assert harness.announced() == []


def test_a_failure_that_nobody_named_is_told_in_words(harness):
    harness.push("p", jobId="p")
    child, token = harness.active(parentId="p", maxAttempts=1, failParentOnFailure=True)

    harness.fail(child, token)

    texts = [(data["queue"], data["error"]) for event, data in harness.announced() if event == "flow:failed"]
    assert texts == [("q", "Max attempts exceeded"), ("p", "unknown error")]


@pytest.mark.parametrize("how", ["FAIL", "timeout", "Discard"])
def test_a_parent_that_fails_by_its_child_is_told(harness, how):
    harness.push("p", jobId="p", data={"p": 1})
    child, token = harness.active(parentId="p", maxAttempts=1, failParentOnFailure=True, timeout=500)

    if how == "FAIL":
        harness.fail(child, token, error="Job timeout exceeded")
    elif how == "Discard":
        harness.send("Discard", id=child)
    else:
        harness.advance(500)

    events = harness.heard()
    error = "unknown error" if how == "Discard" else "Job timeout exceeded"
    text = f"Child job {child} failed: {error}"
    of_parent = [(e.queue, e.error, msgspec.msgpack.decode(e.data)) for e in events if getattr(e, "job_id", "") == "p"]
    flow = [event.data for event in events if isinstance(event, SystemEvent) and event.event == "flow:failed"]
    assert of_parent == [("p", text, {"p": 1})]
    assert flow == [
        {"parentJobId": "p", "failedChildId": child, "queue": "q", "error": error},
        {"parentJobId": "p", "failedChildId": child, "queue": "p", "error": error},
    ]


@pytest.mark.parametrize(
    "policy", ["continueParentOnFailure", "ignoreDependencyOnFailure", "removeDependencyOnFailure"]
)
@pytest.mark.parametrize("how", ["FAIL", "timeout"])
def test_a_parent_that_a_failure_lets_go_is_told(harness, policy, how):
    child, token = harness.active(parentId="p", jobId="c", maxAttempts=1, timeout=500, **{policy: True})
    harness.push("p", jobId="p", dependsOn=["c"])
    harness.heard()

    if how == "FAIL":
        harness.fail(child, token)
    else:
        harness.advance(500)

    assert harness.told("waiting") == [("waiting", "p", {"prev": "waiting-children"})]


def test_a_parent_whose_last_dependency_is_removed_is_told(harness):
    harness.push(jobId="c", parentId="p")
    harness.push("p", jobId="p", dependsOn=["c"])
    harness.heard()

    harness.send("RemoveChildDependency", id="c")

    assert harness.told() == [("waiting", "p", {"prev": "waiting-children"})]


def test_a_parent_that_still_waits_is_not_let_go(harness):
    harness.push(jobId="c", parentId="p")
    harness.push(jobId="d")
    harness.push("p", jobId="p", dependsOn=["c", "d"])
    harness.heard()

    harness.send("RemoveChildDependency", id="c")

    assert harness.told() == []


# workers


def register(harness, connection=1):
    fields = {"name": "n", "queues": ["a"], "hostname": "h", "pid": 7, "workerId": "w"}
    harness.send("RegisterWorker", connection, **fields)


def test_workers_are_told_of(harness):
    register(harness)
    harness.send("Heartbeat", id="w")
    harness.send("UnregisterWorker", workerId="w")

    assert harness.announced() == [
        ("worker:connected", {"workerId": "w", "name": "n", "queues": ["a"], "hostname": "h", "pid": 7}),
        ("worker:heartbeat", {"workerId": "w"}),
        ("worker:disconnected", {"workerId": "w"}),
    ]


def test_a_worker_that_goes_with_its_connection_is_told(harness):
    register(harness)
    harness.heard()

    harness.disconnect()

    assert harness.announced() == [("worker:disconnected", {"workerId": "w", "name": "n", "clientId": "1"})]


def test_a_worker_that_is_dropped_for_its_silence_is_told(harness):
    register(harness)
    harness.clock.advance(90_001)
    harness.heard()

    harness.engine.workers.forget_silent(harness.now)

    assert harness.announced() == [("worker:removed-stale", {"workerId": "w", "name": "n"})]
