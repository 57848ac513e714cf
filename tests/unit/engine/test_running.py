"""Heartbeats, lock extension and progress: the token tables, and what a renewal is worth."""

import pytest

from bunqueue_trio.engine import running
from tests.engine_harness import EngineHarness, decoded

OTHER = "00000000-0000-4000-a000-000000000000"
BEAT_REFUSED = "Job not found or not active (or invalid token)"
EXTEND_REFUSED = "Lock not found or invalid token"
TTL = 30_000
GRACE = 2_000


@pytest.fixture
def harness() -> EngineHarness:
    return EngineHarness()


def locked(harness):
    harness.push(jobId="j")
    return harness.pull()


def unlocked(harness):
    harness.push(jobId="j")
    harness.send("PULL", queue="q")
    return "j", None


def ended(harness):
    pulled = locked(harness)
    harness.advance(TTL)
    return pulled


def waiting(harness):
    return harness.push(jobId="j"), None


def taken_back(harness):
    pulled = locked(harness)
    harness.advance(TTL + GRACE)
    return pulled


def completed(harness):
    pulled = locked(harness)
    harness.ack(*pulled)
    return pulled


def dead(harness):
    pulled = locked(harness)
    harness.fail(*pulled, unrecoverable=True)
    return pulled


def unknown(_harness):
    return "j", None


# place; is a heartbeat accepted without, with the last, with another token; and the same for ExtendLock
TABLE = [
    (locked, (True, True, False), (True, True, False)),
    (unlocked, (True, None, False), (False, None, False)),
    (ended, (True, False, False), (False, False, False)),
    (waiting, (False, None, False), (False, None, False)),
    (taken_back, (False, False, False), (False, False, False)),
    (completed, (False, False, False), (False, False, False)),
    (dead, (False, False, False), (False, False, False)),
    (unknown, (False, None, False), (False, None, False)),
]


def cases(column):
    return [
        pytest.param(place, kind, accepted, id=f"{place.__name__}-{kind}")
        for place, *columns in TABLE
        for kind, accepted in zip(("none", "last", "other"), columns[column], strict=True)
        if accepted is not None
    ]


def token_of(kind, last):
    return {"none": None, "last": last, "other": OTHER}[kind]


@pytest.mark.parametrize(("place", "kind", "accepted"), cases(0))
def test_who_may_send_a_heartbeat(harness, place, kind, accepted):
    job_id, last = place(harness)
    token = token_of(kind, last)

    if accepted:
        assert harness.ask("JobHeartbeat", id=job_id, token=token) == {"ok": True, "data": {"ok": True}}
    else:
        assert harness.refusal("JobHeartbeat", id=job_id, token=token) == BEAT_REFUSED


@pytest.mark.parametrize(("place", "kind", "accepted"), cases(1))
def test_who_may_extend_a_lock(harness, place, kind, accepted):
    job_id, last = place(harness)
    token = token_of(kind, last)

    if accepted:
        assert harness.ask("ExtendLock", id=job_id, token=token) == {"ok": True}
    else:
        assert harness.refusal("ExtendLock", id=job_id, token=token) == EXTEND_REFUSED


@pytest.mark.parametrize(("place", "kind", "accepted"), cases(0))
def test_the_batch_counts_the_heartbeats_that_were_accepted(harness, place, kind, accepted):
    job_id, last = place(harness)

    reply = harness.ask("JobHeartbeatB", ids=[job_id, "nobody"], tokens=[token_of(kind, last)])

    assert reply == {"ok": True, "data": {"ok": True, "count": int(accepted)}}


@pytest.mark.parametrize(("place", "kind", "accepted"), cases(1))
def test_the_batch_counts_the_locks_that_were_extended(harness, place, kind, accepted):
    job_id, last = place(harness)

    reply = harness.ask("ExtendLocks", ids=["nobody", job_id], tokens=[None, token_of(kind, last)], durations=[])

    assert reply == {"ok": True, "count": int(accepted)}


def test_a_refused_heartbeat_opens_no_door_to_fail(harness):
    job_id, token = ended(harness)
    assert harness.refusal("JobHeartbeat", id=job_id, token=token) == BEAT_REFUSED

    assert harness.refusal("FAIL", id=job_id, token=token) == f"Invalid or expired lock token for job {job_id}"  # P-21
    harness.ack(job_id, token)
    assert harness.state(job_id) == "completed"


@pytest.mark.parametrize(
    ("cmd", "fields", "lasts"),
    [
        ("JobHeartbeat", {}, TTL),
        ("JobHeartbeat", {"duration": 100}, 100),
        ("JobHeartbeat", {"duration": 90_000}, 90_000),
        ("ExtendLock", {}, TTL),
        ("ExtendLock", {"duration": 77}, 77),
    ],
)
def test_a_renewal_lasts_its_duration_or_the_length_of_the_pull(harness, cmd, fields, lasts):
    harness.send("SetStallConfig", queue="q", config={"enabled": False})
    job_id, token = locked(harness)
    harness.advance(1_000)
    harness.send(cmd, id=job_id, token=token, **fields)

    harness.advance(lasts + GRACE - 1)
    assert harness.state(job_id) == "active"
    harness.advance(1)
    assert harness.state(job_id) == "waiting"


def test_a_duration_does_not_become_the_new_length(harness):
    job_id, token = locked(harness)
    harness.send("JobHeartbeat", id=job_id, token=token, duration=100)
    harness.send("JobHeartbeat", id=job_id, token=token)

    harness.advance(TTL - 1)

    assert harness.send("JobHeartbeat", id=job_id, token=token).ok


def test_a_heartbeat_without_token_does_not_touch_the_lock(harness):
    job_id, _ = locked(harness)
    harness.advance(TTL - 1)
    harness.send("JobHeartbeat", id=job_id, duration=90_000)

    harness.advance(GRACE + 1)

    assert harness.state(job_id) == "waiting"


@pytest.mark.parametrize("cmd", ["JobHeartbeat", "ExtendLock"])
def test_a_renewal_shows_as_a_heartbeat(harness, cmd):
    job_id, token = locked(harness)
    harness.clock.advance(500)
    harness.send(cmd, id=job_id, token=token)

    assert harness.shown(job_id)["lastHeartbeat"] == harness.now.wall_ms


def test_a_renewal_is_written_with_the_next_flush(harness):
    job_id, token = locked(harness)
    harness.commit()
    harness.clock.advance(500)
    harness.send("JobHeartbeat", id=job_id, token=token)

    [row] = harness.commit().states
    assert row[0] == job_id
    assert harness.now.wall_ms in row


def test_a_batch_pairs_tokens_by_index(harness):
    harness.push(jobId="a")
    harness.push(jobId="b")
    tokens = dict([harness.pull(), harness.pull()])

    reply = harness.ask("JobHeartbeatB", ids=["a", "b"], tokens=[tokens["b"], tokens["b"]])

    assert reply["data"]["count"] == 1
    assert (harness.job("a").lease.renewal_count, harness.job("b").lease.renewal_count) == (0, 1)


def test_missing_tokens_count_as_none(harness):
    harness.push(jobId="a")
    harness.push(jobId="b")
    tokens = dict([harness.pull(), harness.pull()])

    assert harness.ask("JobHeartbeatB", ids=["a", "b"], tokens=[tokens["a"]])["data"]["count"] == 2
    assert harness.job("b").lease.renewal_count == 0


def test_extend_locks_takes_a_duration_each(harness):
    harness.push(jobId="a")
    harness.push(jobId="b")
    tokens = dict([harness.pull(), harness.pull()])

    harness.send("ExtendLocks", ids=["a", "b"], tokens=[tokens["a"], tokens["b"]], durations=[100, None])

    harness.advance(100 + GRACE)
    assert (harness.state("a"), harness.state("b")) == ("waiting", "active")


# progress


def test_progress_is_shown_and_kept(harness):
    job_id, _ = locked(harness)
    harness.clock.advance(5)

    assert harness.ask("Progress", id=job_id, progress=42.5, message="half") == {"ok": True}

    assert harness.ask("GetProgress", id=job_id) == {"ok": True, "progress": 42.5, "message": "half"}
    assert harness.shown(job_id)["lastHeartbeat"] == harness.now.wall_ms
    assert len(harness.commit().extras) == 1


@pytest.mark.parametrize(("sent", "kept"), [(-5, 0), (250, 100), (0.5, 0.5), ("7", 7)])
def test_progress_is_clamped(harness, sent, kept):
    job_id, _ = locked(harness)
    harness.send("Progress", id=job_id, progress=sent)

    assert harness.ask("GetProgress", id=job_id)["progress"] == kept


def test_a_message_stays_until_it_is_replaced_or_cleared(harness):
    job_id, _ = locked(harness)
    harness.send("Progress", id=job_id, progress=1, message={"a": [1]})
    harness.send("Progress", id=job_id, progress=2)
    assert harness.ask("GetProgress", id=job_id)["message"] == {"a": [1]}

    harness.send("Progress", id=job_id, progress=3, message=None)

    assert harness.ask("GetProgress", id=job_id)["message"] is None


def test_a_cleared_message_is_cleared_in_the_file_too(harness):
    job_id, _ = locked(harness)
    harness.send("Progress", id=job_id, progress=1, message="m")
    harness.commit()
    harness.send("Progress", id=job_id, progress=1, message=None)

    [(row_id, blob)] = harness.commit().extras

    assert (row_id, blob) == (job_id, b"\x80")


@pytest.mark.parametrize("cmd", ["Progress", "GetProgress"])
@pytest.mark.parametrize(
    ("options", "state"),
    [({}, "waiting"), ({"priority": 1}, "prioritized"), ({"delay": 10_000}, "delayed"), (None, "unknown")],
)
def test_progress_is_for_active_jobs(harness, cmd, options, state):
    if options is not None:
        harness.push(jobId="j", **options)
    text = "Job not found" if options is None else f"Job is not active (current state: {state})"

    assert harness.refusal(cmd, id="j", progress=1) == text


@pytest.mark.parametrize(("end", "state"), [(completed, "completed"), (dead, "failed")])
@pytest.mark.parametrize("cmd", ["Progress", "GetProgress"])
def test_progress_of_a_finished_job(harness, cmd, end, state):
    end(harness)

    assert harness.refusal(cmd, id="j", progress=1) == f"Job is not active (current state: {state})"


def test_progress_of_a_parked_job(harness):
    harness.push(jobId="dep")
    harness.push(jobId="j", dependsOn=["dep"])

    assert harness.refusal("Progress", id="j", progress=1) == "Job is not active (current state: waiting-children)"


def test_progress_needs_no_token_and_no_connection(harness):
    job_id, _ = locked(harness)

    assert decoded(harness.send("Progress", None, id=job_id, progress=9)) == {"ok": True}


def test_progress_renews_no_lease(harness):
    job_id, _ = locked(harness)
    harness.advance(TTL - 1)
    harness.send("Progress", id=job_id, progress=9)

    harness.advance(GRACE + 1)

    assert harness.state(job_id) == "waiting"


def test_a_batch_that_no_reply_could_hold_is_leased_in_parts(harness: EngineHarness, monkeypatch) -> None:
    monkeypatch.setattr(running, "REPLY_MAX_BYTES", 3 * (running.RECORD_BYTES + 1_000))
    for _ in range(4):
        harness.push(data="x" * 900)

    taken = [len(harness.ask("PULLB", queue="q", count=10, owner="w")["jobs"]) for _ in range(2)]

    assert taken == [3, 1]


def test_a_job_larger_than_the_bound_of_a_reply_is_still_handed_out(harness: EngineHarness, monkeypatch) -> None:
    monkeypatch.setattr(running, "REPLY_MAX_BYTES", 10)
    harness.push()
    harness.push()

    assert len(harness.ask("PULLB", queue="q", count=10)["jobs"]) == 1
