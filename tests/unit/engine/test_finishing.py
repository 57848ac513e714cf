"""ACK, ACKB and FAIL: the token tables of the spec, row by row, and what an end leaves behind.

Each place builds a job in one situation and returns its id and the last token that was given out for it, if any.
"""

from collections.abc import Callable

import pytest

from bunqueue_trio.engine import leases
from tests.engine_harness import EngineHarness, decoded

OTHER = "00000000-0000-4000-a000-000000000000"
TTL = 30_000
GRACE = 2_000

Place = Callable[[EngineHarness], tuple[str, str | None]]


@pytest.fixture
def harness() -> EngineHarness:
    harness = EngineHarness()
    harness.connect(2)
    return harness


def error_a(job_id: str) -> str:
    return f"Job not found or not in processing state: {job_id}"


def invalid(job_id: str) -> str:
    return f"Invalid or expired lock token for job {job_id}"


def required(job_id: str) -> str:
    return f"Lock token required for job {job_id}"


# places


def locked(harness):
    harness.push(jobId="j", backoff=0)
    return harness.pull()


def unlocked(harness):
    harness.push(jobId="j", backoff=0)
    harness.send("PULL", queue="q")
    return "j", None


def in_grace(harness):
    pulled = locked(harness)
    harness.advance(TTL + GRACE - 1)
    return pulled


def released(harness):
    harness.push(jobId="j")
    pulled = harness.pull(connection=2)
    harness.disconnect(2)
    return pulled


def expired(harness):
    pulled = locked(harness)
    harness.advance(TTL + GRACE)
    return pulled


def stalled(harness):
    harness.send("SetStallConfig", queue="q", config={"stallInterval": 1_000, "gracePeriod": 0})
    harness.push(jobId="j")
    pulled = harness.pull(lockTtl=86_400_000)
    harness.advance(1_001 + leases.STALL_RECHECK_MS)
    return pulled


def failed_once(harness):
    pulled = locked(harness)
    harness.fail(*pulled)
    return pulled


def timed_out(harness):
    harness.push(jobId="j", timeout=1_000)
    pulled = harness.pull()
    harness.advance(1_000)
    return pulled


def never_pulled(harness):
    return harness.push(jobId="j"), None


def parked(harness):
    harness.push(jobId="dep")
    return harness.push(jobId="j", dependsOn=["dep"]), None


def completed(harness):
    pulled = locked(harness)
    harness.ack(*pulled)
    return pulled


def removed(harness):
    harness.push(jobId="j", removeOnComplete=True)
    pulled = harness.pull()
    harness.ack(*pulled)
    return pulled


def dead(harness):
    harness.push(jobId="j", maxAttempts=1)
    pulled = harness.pull()
    harness.fail(*pulled)
    return pulled


def unknown(_harness):
    return "j", None


OK = "ok"
NOTHING = "nothing happens"

ACK_TABLE: list[tuple[Place, object, object, object]] = [
    # place, without token, with the last token, with another token
    (locked, required, OK, invalid),
    (unlocked, OK, None, OK),
    (in_grace, required, OK, invalid),
    (released, error_a, OK, NOTHING),
    (expired, error_a, OK, NOTHING),
    (stalled, error_a, OK, NOTHING),
    (failed_once, error_a, NOTHING, NOTHING),
    (timed_out, NOTHING, NOTHING, NOTHING),
    (never_pulled, error_a, None, NOTHING),
    (parked, error_a, None, NOTHING),
    (completed, error_a, NOTHING, NOTHING),
    (removed, error_a, NOTHING, NOTHING),
    (dead, error_a, NOTHING, NOTHING),
    (unknown, error_a, None, NOTHING),
]

FAIL_TABLE: list[tuple[Place, object, object, object]] = [
    (locked, required, OK, invalid),
    (unlocked, OK, None, OK),
    (in_grace, required, invalid, invalid),
    (released, error_a, NOTHING, NOTHING),
    (expired, error_a, NOTHING, NOTHING),
    (stalled, error_a, NOTHING, NOTHING),
    (failed_once, error_a, NOTHING, NOTHING),
    (timed_out, error_a, NOTHING, NOTHING),
    (never_pulled, error_a, None, NOTHING),
    (parked, error_a, None, NOTHING),
    (completed, error_a, NOTHING, NOTHING),
    (removed, error_a, NOTHING, NOTHING),
    (dead, error_a, NOTHING, NOTHING),
    (unknown, error_a, None, NOTHING),
]


def cases(table):
    return [
        pytest.param(place, kind, expected, id=f"{place.__name__}-{kind}")
        for place, *expectations in table
        for kind, expected in zip(("none", "last", "other"), expectations, strict=True)
        if expected is not None
    ]


def token_of(kind: str, last: str | None) -> str | None:
    return {"none": None, "last": last, "other": OTHER}[kind]


@pytest.mark.parametrize(("place", "kind", "expected"), cases(ACK_TABLE))
def test_who_may_ack(harness, place, kind, expected):
    job_id, last = place(harness)
    before = harness.state(job_id)
    token = token_of(kind, last)

    if callable(expected):
        assert harness.refusal("ACK", id=job_id, token=token) == expected(job_id)
    else:
        assert decoded(harness.ack(job_id, token)) == {"ok": True}

    assert harness.state(job_id) == ("completed" if expected is OK else before)


@pytest.mark.parametrize(("place", "kind", "expected"), cases(ACK_TABLE))
def test_the_same_rules_hold_in_a_batch(harness, place, kind, expected):
    """P-20: a conflict refuses all, an error A comes after the good ones."""
    job_id, last = place(harness)
    before = harness.state(job_id)
    good = harness.push("other")
    _, good_token = harness.pull("other")
    token = token_of(kind, last)
    fields = {"ids": [job_id, good], "tokens": [token, good_token]}

    if expected in (required, invalid):
        assert harness.refusal("ACKB", **fields) == expected(job_id)
        assert harness.state(good) == "active"
    else:
        reply = harness.ask("ACKB", **fields)
        assert reply == ({"ok": False, "error": error_a(job_id)} if expected is error_a else {"ok": True})
        assert harness.state(good) == "completed"

    assert harness.state(job_id) == ("completed" if expected is OK else before)


@pytest.mark.parametrize(("place", "kind", "expected"), cases(FAIL_TABLE))
def test_who_may_fail(harness, place, kind, expected):
    job_id, last = place(harness)
    before = harness.state(job_id)
    token = token_of(kind, last)

    if callable(expected):
        assert harness.refusal("FAIL", id=job_id, token=token) == expected(job_id)
    else:
        assert decoded(harness.fail(job_id, token)) == {"ok": True}

    if expected is OK:
        assert (harness.state(job_id), harness.shown(job_id)["attempts"]) == ("waiting", 1)
    else:
        assert harness.state(job_id) == before


@pytest.mark.parametrize("place", [released, expired])
def test_the_last_token_counts_only_until_the_next_lease(harness, place):
    job_id, old = place(harness)
    _, new = harness.pull()

    assert harness.refusal("ACK", id=job_id, token=old) == invalid(job_id)
    assert harness.refusal("FAIL", id=job_id, token=old) == invalid(job_id)
    harness.ack(job_id, new)
    assert harness.state(job_id) == "completed"


@pytest.mark.parametrize("place", [released, expired, stalled])
def test_a_late_ack_has_all_the_effects_of_an_ack(harness, place):
    job_id, token = place(harness)

    harness.ack(job_id, token, result={"late": True})

    shown = harness.shown(job_id)
    assert (shown["completedAt"], shown["progress"]) == (harness.now.wall_ms, 100)
    assert harness.ask("GetResult", id=job_id)["result"] == {"late": True}
    assert harness.counts() == {"completed": 1}
    assert harness.pull() is None


def test_an_ack_of_somebody_elses_connection_counts(harness):
    job_id, token = locked(harness)

    harness.send("ACK", 2, id=job_id, token=token)

    assert harness.state(job_id) == "completed"


@pytest.mark.parametrize("token", ["", None])
def test_an_empty_token_is_none(harness, token):
    job_id, _ = locked(harness)

    assert harness.refusal("ACK", id=job_id, token=token) == required(job_id)


# what a completion leaves


def test_a_completion(harness):
    job_id, token = locked(harness)
    harness.clock.advance(10)
    harness.ack(job_id, token, result=[1, "x"])

    shown = harness.shown(job_id)
    assert (shown["state"], shown["completedAt"], shown["progress"]) == ("completed", harness.now.wall_ms, 100)
    assert harness.timeline(job_id) == ["waiting", "active", "completed"]
    assert harness.ask("GetResult", id=job_id) == {"ok": True, "id": job_id, "result": [1, "x"]}
    assert harness.engine.state.totals.completed == 1


@pytest.mark.parametrize(("fields", "stored"), [({}, []), ({"result": None}, [b"\xc0"]), ({"result": 0}, [b"\x00"])])
def test_a_result_is_stored_if_it_was_sent_null_included(harness, fields, stored):
    job_id, token = locked(harness)
    harness.ack(job_id, token, **fields)

    assert [row[1] for row in harness.batches[-1].results] == stored


def test_remove_on_complete_leaves_nothing(harness):
    harness.push(jobId="j", removeOnComplete=True)
    harness.commit()
    pulled = harness.pull()
    harness.ack(*pulled, result="gone")

    assert harness.state("j") == "unknown"
    assert "result" not in harness.ask("GetResult", id="j")
    assert harness.counts() == {}
    assert harness.batches[-1].deleted == ["j"]
    assert harness.batches[-1].results == []


def test_a_job_that_is_done_within_one_flush_window_is_written_once(harness):
    job_id, token = locked(harness)
    harness.ack(job_id, token)

    batch = harness.batches[-1]
    assert (len(batch.full), batch.plain, batch.states) == (1, [], [])


def test_a_completion_frees_key_group_and_slot(harness):
    harness.set(concurrency_limit=1)
    harness.push(jobId="a", uniqueKey="k", groupId="g")
    harness.push(jobId="b", groupId="g")
    pulled = harness.pull()
    harness.ack(*pulled)

    assert harness.push(jobId="c", uniqueKey="k") == "c"
    assert harness.pull_id() == "b"


# batches


def test_an_empty_batch_is_ok(harness):
    assert harness.ask("ACKB", ids=[]) == {"ok": True}


@pytest.mark.parametrize("count", [3, 7])
def test_one_rule_for_every_size(harness, count):
    ids = harness.push_many("q", [{}] * count)
    tokens = harness.send("PULLB", queue="q", count=count, owner="w").tokens

    reply = harness.ask("ACKB", ids=[*ids[:2], "nobody", *ids[2:]], tokens=[*tokens[:2], None, *tokens[2:]])

    assert reply == {"ok": False, "error": error_a("nobody")}
    assert harness.counts() == {"completed": count}


def test_a_conflict_refuses_the_whole_batch_up_front(harness):
    ids = harness.push_many("q", [{}] * 3)
    tokens = harness.send("PULLB", queue="q", count=3, owner="w").tokens

    assert harness.refusal("ACKB", ids=ids, tokens=[tokens[0], OTHER, tokens[2]]) == invalid(ids[1])
    assert harness.counts() == {"active": 3}


def test_a_conflict_behind_an_unknown_id_refuses_too(harness):
    ids = harness.push_many("q", [{}] * 2)
    tokens = harness.send("PULLB", queue="q", count=2, owner="w").tokens

    assert harness.refusal("ACKB", ids=["nobody", *ids], tokens=[None, tokens[0], OTHER]) == invalid(ids[1])
    assert harness.counts() == {"active": 2}


def test_results_pair_up_with_ids(harness):
    ids = harness.push_many("q", [{}] * 3)
    tokens = harness.send("PULLB", queue="q", count=3, owner="w").tokens
    harness.send("ACKB", ids=ids, tokens=tokens, results=["a", None, {"c": 1}])

    assert [harness.ask("GetResult", id=i).get("result") for i in ids] == ["a", None, {"c": 1}]


def test_an_id_named_twice_completes_once(harness):
    job_id, token = locked(harness)

    assert harness.ask("ACKB", ids=[job_id, job_id], tokens=[token, token]) == {"ok": True}
    assert harness.counts() == {"completed": 1}


def test_a_token_for_a_job_without_lock_is_ignored(harness):
    job_id, _ = unlocked(harness)

    assert harness.ask("ACKB", ids=[job_id], tokens=[OTHER]) == {"ok": True}
    assert harness.state(job_id) == "completed"


def test_the_first_of_several_errors_is_the_reply(harness):
    assert harness.ask("ACKB", ids=["x", "y"])["error"] == error_a("x")


# what a failure leaves


def test_a_retry(harness):
    harness.push(jobId="j", backoff={"type": "fixed", "delay": 1_000})
    pulled = harness.pull()
    harness.clock.advance(10)
    harness.fail(*pulled, error="boom", stack=["Error: boom", "  at x  ", " "])

    shown = harness.shown("j")
    assert (shown["state"], shown["attempts"], shown["startedAt"]) == ("delayed", 1, None)  # PD-19
    assert harness.now.wall_ms + 800 <= shown["runAt"] <= harness.now.wall_ms + 1_200
    assert shown["runAt"] == int(shown["runAt"])
    assert shown["stacktrace"] == ["Error: boom", "at x"]
    failed, again = shown["timeline"][-2:]
    assert failed == {"state": "failed", "timestamp": harness.now.wall_ms, "error": "boom", "attempt": 1}
    assert again == {"state": "waiting", "timestamp": harness.now.wall_ms, "attempt": 2}


def test_a_retry_keeps_progress(harness):
    job_id, token = locked(harness)
    harness.send("Progress", id=job_id, progress=40, message={"at": 4})
    harness.fail(job_id, token)

    shown = harness.shown(job_id)
    assert (shown["progress"], shown["progressMessage"]) == (40, {"at": 4})


def test_the_last_failure_is_a_dead_letter(harness):
    harness.push(jobId="j", maxAttempts=2, backoff=0)
    harness.fail(*harness.pull(), error="one")
    harness.fail(*harness.pull(), error="two")

    assert harness.dead_letters() == [("j", "max_attempts_exceeded", "two")]
    assert harness.timeline("j") == ["waiting", "active", "failed", "waiting", "active", "failed"]
    assert harness.counts() == {"failed": 1}
    assert harness.engine.state.totals.failed == 1


def test_a_dead_letter_tells_of_its_last_attempt(harness):
    harness.push(jobId="j", maxAttempts=1)
    harness.clock.advance(5)
    pulled = harness.pull()
    started = harness.now.wall_ms
    harness.clock.advance(250)
    harness.fail(*pulled, error="no")

    entry = harness.engine.state.queues["q"].letters["j"]
    [attempt] = entry.attempts
    assert (attempt.attempt, attempt.duration) == (1, 250)
    assert (attempt.started_at, attempt.failed_at) == (started, started + 250)
    assert (attempt.reason, attempt.error) == ("max_attempts_exceeded", "no")
    assert (entry.entered_at, entry.retry_count, entry.expires_at) == (started + 250, 0, started + 250 + 604_800_000)


def test_an_unrecoverable_failure_is_final(harness):
    job_id, token = locked(harness)
    harness.fail(job_id, token, unrecoverable=True, error="no way")

    assert harness.dead_letters() == [(job_id, "max_attempts_exceeded", "no way")]


@pytest.mark.parametrize("unrecoverable", [False, True])
def test_remove_on_fail_leaves_nothing(harness, unrecoverable):
    harness.push(jobId="j", removeOnFail=True, maxAttempts=5 if unrecoverable else 1, uniqueKey="k")
    harness.commit()
    harness.fail(*harness.pull(), unrecoverable=unrecoverable)

    assert harness.state("j") == "unknown"
    assert harness.dead_letters() == []
    assert (harness.batches[-1].deleted, harness.batches[-1].letters) == (["j"], [])
    assert harness.push(jobId="n", uniqueKey="k") == "n"


def test_remove_on_fail_does_not_touch_retries(harness):
    harness.push(jobId="j", removeOnFail=True, backoff=0)
    harness.fail(*harness.pull())

    assert harness.state("j") == "waiting"


@pytest.mark.parametrize(
    ("sent", "kept"),
    [("text", "text"), ({"code": 5}, '{"code":5}'), (5, "5"), (None, None), ("", "")],
)
def test_errors_are_kept_as_text(harness, sent, kept):
    harness.push(jobId="j", maxAttempts=1)
    harness.fail(*harness.pull(), error=sent)

    assert harness.dead_letters()[0][2] == kept
    assert harness.shown("j")["timeline"][-1].get("error") == kept


@pytest.mark.parametrize(
    ("options", "stacks", "kept"),
    [
        ({}, [["a", "b"], None], ["a", "b"]),
        ({}, [["a"], []], ["a"]),
        ({}, [["a"], "text"], ["a"]),
        ({}, [["a"], ["b"]], ["b"]),
        ({}, [["a"], [" ", ""]], None),
        ({}, [["x", 5, None, "y"]], ["x", "y"]),
        ({"stackTraceLimit": 2}, [["a", "b", "c"]], ["a", "b"]),
        ({"stackTraceLimit": 0}, [["a"]], None),
        ({}, [[str(n) for n in range(50)]], [str(n) for n in range(10)]),
        ({"stackTraceLimit": 500}, [[str(n) for n in range(150)]], [str(n) for n in range(100)]),
    ],
)
def test_which_stack_is_kept(harness, options, stacks, kept):
    harness.push(jobId="j", backoff=0, maxAttempts=10, **options)
    for stack in stacks:
        harness.fail(*harness.pull(), stack=stack)

    assert harness.shown("j")["stacktrace"] == kept


def test_the_key_stays_during_the_retry_pause(harness):
    harness.push(jobId="j", uniqueKey="k")
    harness.fail(*harness.pull())

    assert harness.push(uniqueKey="k") == "j"  # P-14


def test_the_timeline_ends_at_twenty_entries_and_may_cut_a_pair(harness):
    harness.push(jobId="j", backoff=0, maxAttempts=100)
    for _ in range(10):
        harness.fail(*harness.pull())

    timeline = harness.timeline("j")
    assert len(timeline) == 20
    assert timeline == (["waiting", "active", "failed"] * 7)[:20]
    harness.ack(*harness.pull())
    assert len(harness.timeline("j")) == 20


def test_a_fail_wakes_a_pull_for_the_slot(harness):
    harness.set(concurrency_limit=1)
    pulled = locked(harness)
    harness.wakes()

    harness.fail(*pulled)

    assert harness.wakes()["q"] >= 1


# after a crash that erased the pull


def test_the_token_of_a_pull_that_a_crash_erased_completes_the_waiting_job(harness: EngineHarness) -> None:
    job_id = harness.push()
    job = harness.job(job_id)
    started_at = harness.now.wall_ms
    erased = harness.engine.state.ids.lease_token(job_id, job.seq, started_at, 0)

    harness.ack(job_id, erased, result=7)

    assert harness.state(job_id) == "completed"
    assert harness.ask("GetResult", id=job_id)["result"] == 7


@pytest.mark.parametrize("other", [OTHER, "x", "x" * 36])
def test_a_token_that_nobody_was_given_completes_no_waiting_job(harness: EngineHarness, other: str) -> None:
    job_id = harness.push()

    harness.ack(job_id, other)

    assert harness.state(job_id) == "waiting"


def test_an_erased_pull_of_an_earlier_attempt_counts_no_more(harness: EngineHarness) -> None:
    job_id = harness.push(backoff=0)
    erased = harness.engine.state.ids.lease_token(job_id, harness.job(job_id).seq, harness.now.wall_ms, 0)
    harness.job(job_id).record.attempts = 1

    harness.ack(job_id, erased)

    assert harness.state(job_id) == "waiting"


# what clients see of a job whose change waits for its commit


def test_a_job_whose_cancel_has_not_committed_still_shows_its_state(harness: EngineHarness) -> None:
    job_id = harness.push(priority=3)

    with harness.pending():
        harness.send("Cancel", id=job_id)
        assert harness.state(job_id) == "prioritized"

    harness.commit()
    assert harness.state(job_id) == "unknown"
