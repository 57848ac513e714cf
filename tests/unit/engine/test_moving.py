"""Job management and the way back from the dead letters: from every state, and only at the commit."""

import pytest

from bunqueue_trio.engine.state import PendingChangeError
from tests.engine_harness import EngineHarness

MANAGE = {
    "Update": ({"data": {"new": True}}, "Job not found or cannot be updated"),
    "ChangePriority": ({"priority": 5}, "Job not found or not in queue"),
    "Promote": ({}, "Job not found or not delayed"),
    "ChangeDelay": ({"delay": 60_000}, "Job not found or cannot change delay"),
    "Discard": ({}, "Job not found"),
}
ALLOWED = {
    "Update": {"waiting", "delayed", "parked", "active"},
    "ChangePriority": {"waiting", "delayed"},
    "Promote": {"delayed"},
    "ChangeDelay": {"waiting", "delayed", "active"},
    "Discard": {"waiting", "delayed", "active"},
}
PLACES = ("waiting", "delayed", "parked", "active", "completed", "failed", "unknown")


@pytest.fixture
def harness() -> EngineHarness:
    return EngineHarness()


def put(harness: EngineHarness, place: str) -> str:
    """A job "j" in that place."""
    if place == "unknown":
        return "j"
    if place == "parked":
        harness.push(jobId="first")
        return harness.push("other", jobId="j", dependsOn=["first"])
    harness.push(jobId="j", delay=30_000 if place == "delayed" else 0, maxAttempts=1)
    if place in ("active", "completed", "failed"):
        pulled = harness.pull()
        assert pulled is not None
        if place == "completed":
            harness.ack(*pulled)
        elif place == "failed":
            harness.fail(*pulled)
    return "j"


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("cmd", MANAGE)
def test_a_command_is_taken_in_its_states_and_refused_in_the_others(
    harness: EngineHarness, cmd: str, place: str
) -> None:
    fields, refusal = MANAGE[cmd]
    job_id = put(harness, place)

    if place in ALLOWED[cmd]:
        harness.send(cmd, id=job_id, **fields)
    else:
        assert harness.refusal(cmd, id=job_id, **fields) == refusal


@pytest.mark.parametrize(
    ("place", "refusal"),
    [
        ("parked", "Job is not active (current state: waiting-children)"),
        ("completed", "Job is not active (current state: completed)"),
        ("failed", "Job is not active (current state: failed)"),
        ("unknown", "Job not found"),
    ],
)
def test_what_cannot_be_delayed_says_why(harness: EngineHarness, place: str, refusal: str) -> None:
    assert harness.refusal("MoveToDelayed", id=put(harness, place), delay=1) == refusal


@pytest.mark.parametrize(
    ("place", "shown"), [("parked", "waiting-children"), ("completed", "completed"), ("unknown", "unknown")]
)
def test_what_cannot_wait_says_why(harness: EngineHarness, place: str, shown: str) -> None:
    refusal = f"Cannot move job from state '{shown}' to waiting"

    assert harness.refusal("MoveToWait", id=put(harness, place)) == refusal


@pytest.mark.parametrize("place", ["waiting", "delayed", "active", "failed"])
def test_move_to_wait_makes_a_job_ready_from_anywhere(harness: EngineHarness, place: str) -> None:
    harness.send("MoveToWait", id=put(harness, place))

    assert harness.state("j") == "waiting"
    assert harness.pull_id() == "j"


def test_a_moved_job_is_charged_nothing_and_its_old_token_does_nothing(harness: EngineHarness) -> None:
    harness.push(jobId="j")
    pulled = harness.pull()
    assert pulled is not None

    harness.send("MoveToDelayed", id="j", delay=5_000)
    harness.ack(*pulled)

    assert harness.state("j") == "delayed"
    assert (harness.shown("j")["attempts"], harness.shown("j")["startedAt"]) == (0, None)
    harness.advance(5_000)
    assert harness.pull_id() == "j"


@pytest.mark.parametrize("cmd", ["Update", "ChangePriority", "ChangeDelay", "Discard", "MoveToDelayed"])
def test_a_rejected_change_leaves_the_job_as_it_was(harness: EngineHarness, cmd: str) -> None:
    harness.push(jobId="j", data={"old": True})
    before = harness.shown("j")
    fields = {**MANAGE.get(cmd, ({},))[0], **({"delay": 5} if cmd == "MoveToDelayed" else {})}

    with harness.pending():
        harness.send(cmd, id="j", **fields)
        assert harness.pull_id() is None  # in neither form while nobody knows which it will be
        harness.reject()

    assert harness.shown("j") == before
    assert harness.pull_id() == "j"


def test_an_active_job_keeps_its_holder_while_its_data_changes(harness: EngineHarness) -> None:
    harness.push(jobId="j", data=1)
    pulled = harness.pull()
    assert pulled is not None

    with harness.pending():
        harness.send("Update", id="j", data=2)
        with pytest.raises(PendingChangeError):
            harness.send("JobHeartbeat", id="j", token=pulled[1])
        harness.commit()

    assert harness.shown("j")["data"] == 2
    harness.ack(*pulled)
    assert harness.state("j") == "completed"


def test_priority_reorders_and_a_job_that_comes_back_keeps_its_turn(harness: EngineHarness) -> None:
    for job_id in ("a", "b", "c"):
        harness.push(jobId=job_id)

    harness.send("ChangePriority", id="c", priority=9)
    harness.send("ChangePriority", id="a", priority=9)
    harness.send("ChangePriority", id="a", priority=0)

    assert harness.pull_all() == ["c", "a", "b"]


def test_promote_jobs_takes_the_oldest_and_count_caps_it(harness: EngineHarness) -> None:
    for n in range(4):
        harness.push(jobId=f"d{n}", delay=60_000 - n)
        harness.advance(1)

    assert [harness.ask("PromoteJobs", queue="q", count=n)["count"] for n in (0, -1, None, 2.9)] == [0, 0, 0, 2]
    assert [harness.state(f"d{n}") for n in range(4)] == ["waiting", "waiting", "delayed", "delayed"]
    assert harness.ask("PromoteJobs", queue="q")["count"] == 2
    assert harness.ask("PromoteJobs", queue="nobody")["count"] == 0


def test_a_shortened_delay_wakes_who_waits(harness: EngineHarness) -> None:
    harness.push(jobId="j", delay=60_000)
    harness.wakes()

    harness.send("Promote", id="j")

    assert harness.wakes() == {"q": 1}


def test_discard_keeps_attempts_frees_the_key_and_counts_no_failure(harness: EngineHarness) -> None:
    harness.push(jobId="j", uniqueKey="k")

    harness.send("Discard", id="j")

    assert harness.dead_letters() == [("j", "unknown", None)]
    assert harness.shown("j")["attempts"] == 0
    assert harness.engine.state.totals.failed == 0
    assert harness.push(uniqueKey="k") != "j"


def dead(harness: EngineHarness, *ids: str, **options: object) -> None:
    for job_id in ids:
        harness.push(jobId=job_id, maxAttempts=1, **options)
        pulled = harness.pull()
        assert pulled is not None
        harness.fail(*pulled)


def test_retry_dlq_gives_a_job_new_attempts_and_its_old_data(harness: EngineHarness) -> None:
    dead(harness, "a", data={"n": 1}, uniqueKey="k")

    assert harness.ask("RetryDlq", queue="q", jobId="a")["count"] == 1

    job = harness.shown("a")
    assert (job["state"], job["attempts"], job["stallCount"], job["data"]) == ("waiting", 0, 0, {"n": 1})
    assert harness.dead_letters() == []
    assert harness.push(uniqueKey="k") == "a"  # the key is its own again (CD-13)


@pytest.mark.parametrize(("fields", "count"), [({"count": 2}, 2), ({"count": 0}, 0), ({"count": None}, 0), ({}, 3)])
def test_retry_dlq_takes_the_oldest(harness: EngineHarness, fields: dict[str, object], count: int) -> None:
    dead(harness, "a", "b", "c")

    assert harness.ask("RetryDlq", queue="q", **fields)["count"] == count
    assert [job_id for job_id, _, _ in harness.dead_letters()] == ["a", "b", "c"][count:]


def test_a_dead_letter_whose_key_is_taken_stays(harness: EngineHarness) -> None:
    dead(harness, "a", uniqueKey="u")
    holder = harness.push(uniqueKey="u")

    assert harness.ask("RetryDlq", queue="q", jobId="a")["count"] == 0
    assert harness.refusal("MoveToWait", id="a") == "Unique key of the job is held by another job"
    assert harness.push(uniqueKey="u") == holder


def test_a_rejected_return_leaves_the_letter_and_frees_the_key(harness: EngineHarness) -> None:
    dead(harness, "a", uniqueKey="u")

    with harness.pending():
        harness.send("RetryDlq", queue="q")
        harness.reject()

    assert [job_id for job_id, _, _ in harness.dead_letters()] == ["a"]
    assert harness.push(uniqueKey="u") != "a"


def test_a_letter_of_this_very_window_leaves_no_row_behind(harness: EngineHarness) -> None:
    harness.push(jobId="a", maxAttempts=1)
    harness.pull()
    with harness.pending():
        harness.disconnect()  # buried, not written yet
        harness.send("RetryDlq", queue="q", jobId="a")
        batch = harness.commit()

    assert batch.letters == []
    assert harness.state("a") == "waiting"


def test_purge_deletes_for_good(harness: EngineHarness) -> None:
    dead(harness, "a", "b")

    assert harness.ask("PurgeDlq", queue="q")["count"] == 2
    assert [harness.state(job_id) for job_id in ("a", "b")] == ["unknown", "unknown"]
    assert harness.ask("PurgeDlq", queue="q")["count"] == 0


def test_limits_hold_until_they_are_cleared_and_clearing_wakes_everybody(harness: EngineHarness) -> None:
    for _ in range(4):
        harness.push()
    harness.send("SetConcurrency", queue="q", limit="2")
    assert [harness.pull_id() is not None for _ in range(3)] == [True, True, False]
    harness.wakes()

    harness.send("ClearConcurrency", queue="q")

    assert harness.wakes() == {"q": 2}
    harness.send("RateLimit", queue="q", limit=1, duration=1_000, ttl="junk")
    assert [harness.pull_id() is not None for _ in range(2)] == [True, False]
    harness.send("RateLimitClear", queue="q")
    assert harness.pull_id() is not None


@pytest.mark.parametrize("limit", [None, "many", {}, float("nan"), float("inf")])
@pytest.mark.parametrize("cmd", ["RateLimit", "SetConcurrency"])
def test_a_limit_must_convert_to_a_finite_number(harness: EngineHarness, cmd: str, limit: object) -> None:
    assert harness.refusal(cmd, queue="q", limit=limit) == "limit must be a finite number"


@pytest.mark.parametrize(
    ("cmd", "fields", "refusal"),
    [
        ("ChangePriority", {}, "priority must be a number"),
        ("ChangePriority", {"priority": 1.5}, "priority must be an integer"),
        ("ChangePriority", {"priority": 1_000_001}, "priority must be at most 1000000"),
        ("ChangeDelay", {"delay": -1}, "delay must be at least 0"),
        ("MoveToDelayed", {"delay": "x"}, "delay must be a number"),
        ("Update", {}, "Job data is required"),
        ("RetryDlq", {"queue": "q", "jobId": 5}, "jobId must be a string"),
        ("RateLimit", {"limit": 1}, "Queue name is required"),
    ],
)
def test_bad_fields_are_refused_before_anything_changes(harness, cmd, fields, refusal) -> None:
    put(harness, "waiting")

    assert harness.refusal(cmd, id="j", **fields) == refusal
