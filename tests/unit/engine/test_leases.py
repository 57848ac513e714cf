"""Leases: granted, ended, stalled, timed out, dropped with a connection; and what clock jumps do not do to them."""

import pytest

from bunqueue_trio.engine import leases
from tests.engine_harness import EngineHarness

TTL = 30_000
GRACE = 2_000


@pytest.fixture
def harness() -> EngineHarness:
    harness = EngineHarness()
    harness.connect(2)
    return harness


def entry(harness, job_id):
    return harness.engine.state.queues["q"].letters[job_id]


# granting


def test_a_pull_marks_the_job_as_running(harness):
    job_id = harness.push()
    harness.clock.advance(5)
    harness.pull()

    shown = harness.shown(job_id)
    assert (shown["state"], shown["startedAt"], shown["lastHeartbeat"]) == ("active", *[harness.now.wall_ms] * 2)
    assert [e["state"] for e in shown["timeline"]] == ["waiting", "active"]
    assert shown["attempts"] == 0


def test_an_owner_gets_a_token_shaped_like_a_uuid(harness):
    harness.push()

    token = harness.pull()[1]

    assert len(token) == 36
    assert token[14] == "4"


def test_without_owner_there_is_no_token(harness):
    harness.push()

    reply = harness.ask("PULL", queue="q")

    assert "token" not in reply


def test_every_delivery_has_a_token_of_its_own(harness):
    """Also within one millisecond, where an orderly release charges nothing."""
    harness.push()
    tokens = []
    for _ in range(4):
        harness.send("RegisterWorker", 2, name="w", workerId="w")
        tokens.append(harness.pull(connection=2)[1])
        harness.send("UnregisterWorker", 2, workerId="w")
        harness.disconnect(2)
        harness.connect(2)

    assert len(set(tokens)) == 4


def test_tokens_differ_after_the_wall_clock_went_back(harness):
    harness.push(backoff=0)
    first = harness.pull()
    harness.fail(*first)
    harness.clock.skew(-10_000)
    harness.clock.advance(10_000)

    assert harness.pull()[1] != first[1]


def test_a_paused_queue_gives_nothing(harness):
    harness.push()
    harness.send("Pause", queue="q")

    assert harness.pull() is None
    harness.send("Resume", queue="q")
    assert harness.pull() is not None


def test_a_stopping_engine_gives_nothing_but_still_takes_acks(harness):
    harness.push()
    harness.push()
    pulled = harness.pull()

    harness.engine.stop_handing_out()

    assert harness.pull() is None
    assert harness.send("PULLB", queue="q", count=3) is None
    harness.ack(*pulled)
    assert harness.engine.active_count == 0


def test_a_pull_of_an_unknown_queue_finds_nothing_and_makes_none(harness):
    assert harness.pull("nowhere") is None
    assert harness.send("PULLB", queue="nowhere") is None
    assert harness.engine.state.queues == {}


def test_a_batch_pull_pairs_jobs_and_tokens(harness):
    ids = harness.push_many("q", [{}] * 5)

    reply = harness.send("PULLB", queue="q", count=3, owner="w")

    assert [job.id for job in reply.jobs] == ids[:3]
    assert reply.tokens == [harness.job(i).lease.token for i in ids[:3]]


def test_a_batch_pull_without_owner_has_no_tokens(harness):
    harness.push()

    assert "tokens" not in harness.ask("PULLB", queue="q", count=3)


def test_concurrency_ends_the_search(harness):
    harness.set(concurrency_limit=2)
    harness.push_many("q", [{}] * 3)
    first = harness.pull()
    harness.pull()
    harness.wakes()

    assert harness.pull() is None
    harness.ack(*first)
    assert harness.wakes() == {"q": 1}
    assert harness.pull() is not None


def test_a_batch_pull_stops_at_the_concurrency_limit(harness):
    harness.set(concurrency_limit=2)
    harness.push_many("q", [{}] * 3)

    assert len(harness.send("PULLB", queue="q", count=10).jobs) == 2


# expiry


@pytest.mark.parametrize("ttl", [1, 1_000, TTL])
def test_a_lease_is_taken_back_a_grace_after_its_end(harness, ttl):
    job_id = harness.push()
    harness.pull(lockTtl=ttl)

    harness.advance(ttl + GRACE - 1)
    assert harness.state(job_id) == "active"
    harness.advance(1)

    shown = harness.shown(job_id)
    assert (shown["state"], shown["attempts"], shown["stallCount"], shown["startedAt"]) == ("waiting", 1, 1, None)
    assert shown["lastHeartbeat"] == harness.now.wall_ms
    assert [e["state"] for e in shown["timeline"]] == ["waiting", "active"]  # no entry (P-8)


def test_expiry_keeps_the_run_time_and_wakes_a_pull(harness):
    job_id = harness.push()
    run_at = harness.shown(job_id)["runAt"]
    harness.pull()
    harness.wakes()
    harness.advance(TTL + GRACE)

    assert harness.shown(job_id)["runAt"] == run_at
    assert harness.wakes()["q"] >= 1


def test_expiry_is_written_with_the_next_flush(harness):
    job_id = harness.push()
    harness.pull()
    harness.commit()
    harness.advance(TTL + GRACE)

    [row] = harness.commit().states
    assert (row[0], row[1], row[5], row[8]) == (job_id, "waiting", 1, 1)


def test_expiry_at_the_last_attempt_is_a_dead_letter(harness):
    job_id = harness.push(maxAttempts=1)
    harness.pull()
    harness.advance(TTL + GRACE)

    assert harness.dead_letters() == [(job_id, "max_attempts_exceeded", "Lock expired at max attempts (1)")]
    assert harness.state(job_id) == "failed"
    assert harness.shown(job_id)["attempts"] == 1


def test_too_many_expiries_are_a_stall(harness):
    job_id = harness.push(maxAttempts=10)
    for _ in range(3):
        harness.pull()
        harness.advance(TTL + GRACE)

    assert harness.dead_letters() == [(job_id, "stalled", "Lock expired after 0 renewals")]
    assert entry(harness, job_id).job.stall_count == 3


def test_the_text_counts_the_renewals(harness):
    harness.send("SetStallConfig", queue="q", config={"maxStalls": 1})
    job_id = harness.push(maxAttempts=10)
    _, token = harness.pull()
    for _ in range(2):
        harness.send("ExtendLock", id=job_id, token=token)
    harness.send("JobHeartbeat", id=job_id, token=token)
    harness.advance(TTL + GRACE)

    assert harness.dead_letters() == [(job_id, "stalled", "Lock expired after 3 renewals")]


def test_the_attempts_bound_is_looked_at_before_the_stall_bound(harness):
    harness.send("SetStallConfig", queue="q", config={"maxStalls": 1})
    harness.push(maxAttempts=1)
    harness.pull()
    harness.advance(TTL + GRACE)

    assert harness.dead_letters()[0][1] == "max_attempts_exceeded"


def test_max_stalls_zero_means_no_limit_for_expiry(harness):
    harness.send("SetStallConfig", queue="q", config={"maxStalls": 0})
    job_id = harness.push(maxAttempts=10)
    for _ in range(5):
        harness.pull()
        harness.advance(TTL + GRACE)

    assert harness.state(job_id) == "waiting"


def test_remove_on_fail_keeps_the_only_trace_of_a_lost_lock(harness):
    job_id = harness.push(maxAttempts=1, removeOnFail=True)
    harness.pull()
    harness.advance(TTL + GRACE)

    assert [letter[0] for letter in harness.dead_letters()] == [job_id]  # P-22


def test_the_key_stays_with_a_job_taken_back(harness):
    job_id = harness.push(uniqueKey="k")
    harness.pull()
    harness.advance(TTL + GRACE)

    assert harness.push(uniqueKey="k") == job_id  # P-14


def test_a_dead_letter_frees_the_key(harness):
    job_id = harness.push(uniqueKey="k", maxAttempts=1)
    harness.pull()
    harness.advance(TTL + GRACE)

    assert harness.push(uniqueKey="k") != job_id


def test_a_job_without_owner_has_no_lock_to_expire(harness):
    harness.send("SetStallConfig", queue="q", config={"enabled": False})
    job_id = harness.push()
    harness.send("PULL", queue="q")
    harness.advance(100_000_000)

    assert harness.state(job_id) == "active"


def test_the_grace_can_be_chosen():
    harness = EngineHarness(lease_grace_ms=0)
    job_id = harness.push()
    harness.pull(lockTtl=100)
    harness.advance(100)

    assert harness.state(job_id) == "waiting"


def test_a_lost_job_from_a_schedule_is_dropped(harness):
    for end in (lambda: harness.advance(TTL + GRACE), lambda: harness.disconnect(1)):
        job_id = harness.push()
        harness.job(job_id).is_from_cron = True
        harness.commit()
        harness.pull()
        end()

        assert harness.state(job_id) == "unknown"
        assert job_id in harness.commit().deleted


# stalls


def stall_clock(harness, **config):
    """Leases so long that only silence can end them."""
    harness.send("SetStallConfig", queue="q", config={"stallInterval": 1_000, "gracePeriod": 0, **config})


def silent(harness, **options):
    job_id = harness.push(**options)
    harness.pull(lockTtl=86_400_000)
    return job_id


def test_silence_must_be_seen_twice(harness):
    stall_clock(harness)
    job_id = silent(harness)

    harness.advance(1_001)
    harness.advance(leases.STALL_RECHECK_MS - 1)
    assert harness.state(job_id) == "active"
    harness.advance(1)

    shown = harness.shown(job_id)
    assert (shown["state"], shown["attempts"], shown["stallCount"], shown["startedAt"]) == ("delayed", 1, 1, None)
    assert harness.now.wall_ms + 1_000 <= shown["runAt"] <= harness.now.wall_ms + 3_000
    failed, again = shown["timeline"][-2:]
    assert (failed["state"], failed["error"], failed["attempt"]) == ("failed", "stalled", 1)
    assert (again["state"], again["attempt"]) == ("waiting", 2)


def test_a_sign_of_life_between_the_two_looks_counts(harness):
    stall_clock(harness)
    job_id = silent(harness)
    harness.advance(1_001)
    harness.advance(4_500)
    harness.send("JobHeartbeat", id=job_id)

    harness.advance(501)
    assert harness.state(job_id) == "active"
    harness.advance(501)  # silent again: seen once
    harness.advance(4_998)
    assert harness.state(job_id) == "active"
    harness.advance(2)
    assert harness.state(job_id) == "delayed"


def test_regular_heartbeats_keep_a_job(harness):
    stall_clock(harness)
    job_id = silent(harness)
    for _ in range(50):
        harness.advance(900)
        harness.send("JobHeartbeat", id=job_id)

    assert harness.state(job_id) == "active"


def test_progress_is_a_sign_of_life(harness):
    stall_clock(harness)
    job_id = silent(harness)
    for step in range(20):
        harness.advance(900)
        harness.send("Progress", id=job_id, progress=step)

    assert harness.state(job_id) == "active"


def test_the_grace_period_protects_young_jobs(harness):
    stall_clock(harness, gracePeriod=20_000)
    job_id = silent(harness)

    harness.advance(20_000)
    harness.advance(4_999)
    assert harness.state(job_id) == "active"
    harness.advance(1)
    assert harness.state(job_id) == "delayed"


def test_the_job_may_have_a_stall_timeout_of_its_own(harness):
    stall_clock(harness, stallInterval=1_000_000)
    job_id = silent(harness, stallTimeout=500)

    harness.advance(501 + leases.STALL_RECHECK_MS)

    assert harness.state(job_id) == "delayed"


def test_a_stalled_job_at_its_last_attempt_is_a_dead_letter(harness):
    stall_clock(harness)
    job_id = silent(harness, maxAttempts=1)
    harness.advance(6_001)

    assert harness.dead_letters() == [(job_id, "max_attempts_exceeded", "Job stalled at max attempts (1)")]


@pytest.mark.parametrize("max_stalls", [1, 2])
def test_a_job_that_stalls_too_often_is_a_dead_letter(harness, max_stalls):
    stall_clock(harness, maxStalls=max_stalls)
    job_id = silent(harness, maxAttempts=10, backoff=0)
    for _ in range(max_stalls):
        harness.advance(6_001)
        harness.pull(lockTtl=86_400_000)

    assert harness.dead_letters() == [(job_id, "stalled", f"Job stalled {max_stalls} times")]


def test_max_stalls_zero_means_no_limit_for_stalls(harness):
    stall_clock(harness, maxStalls=0)
    job_id = silent(harness, maxAttempts=10, backoff=0)
    for _ in range(5):
        harness.advance(6_001)
        harness.pull(lockTtl=86_400_000)

    assert harness.state(job_id) == "active"


def test_checks_can_be_switched_off(harness):
    stall_clock(harness, enabled=False)
    job_id = silent(harness)
    harness.advance(1_000_000)

    assert harness.state(job_id) == "active"


@pytest.mark.parametrize("owner", [{"owner": "w", "lockTtl": 86_400_000}, {}])
def test_checks_switched_on_later_find_jobs_that_run_already(harness, owner):
    stall_clock(harness, enabled=False)
    job_id = harness.push()
    harness.send("PULL", queue="q", **owner)
    harness.advance(60_000)

    harness.send("SetStallConfig", queue="q", config={"enabled": True})
    harness.advance(leases.STALL_RECHECK_MS + 1)

    assert harness.state(job_id) == "delayed"


def test_a_shorter_interval_holds_for_jobs_that_run_already(harness):
    stall_clock(harness, stallInterval=10_000_000)
    job_id = silent(harness)
    harness.advance(60_000)

    harness.send("SetStallConfig", queue="q", config={"stallInterval": 1_000})
    harness.advance(leases.STALL_RECHECK_MS + 1)

    assert harness.state(job_id) == "delayed"


def test_the_token_of_a_stalled_job_does_not_work_under_the_new_holder(harness):
    stall_clock(harness)
    job_id = harness.push(backoff=0)
    old = harness.pull(lockTtl=86_400_000)[1]
    harness.advance(6_001)
    new = harness.pull()[1]

    assert new not in (None, old)
    assert harness.refusal("ACK", id=job_id, token=old) == f"Invalid or expired lock token for job {job_id}"


def test_stalls_also_find_jobs_without_owner(harness):
    stall_clock(harness)
    job_id = harness.push()
    harness.send("PULL", queue="q", detach=True)
    harness.advance(6_001)

    assert harness.state(job_id) == "delayed"


# job timeout


def test_a_job_times_out_as_by_fail(harness):
    job_id = harness.push(timeout=5_000)
    harness.pull()

    harness.advance(4_999)
    assert harness.state(job_id) == "active"
    harness.advance(1)

    shown = harness.shown(job_id)
    assert (shown["state"], shown["attempts"], shown["stallCount"]) == ("delayed", 1, 0)
    failed, again = shown["timeline"][-2:]
    assert (failed["state"], failed["error"], failed["attempt"]) == ("failed", "Job timeout exceeded", 1)
    assert (again["state"], again["attempt"]) == ("waiting", 2)


def test_a_timeout_at_the_last_attempt_is_a_dead_letter(harness):
    job_id = harness.push(timeout=5_000, maxAttempts=1)
    harness.pull()
    harness.advance(5_000)

    assert harness.dead_letters() == [(job_id, "max_attempts_exceeded", "Job timeout exceeded")]
    assert harness.engine.state.totals.failed == 1


def test_remove_on_fail_holds_for_a_timeout(harness):
    job_id = harness.push(timeout=5_000, maxAttempts=1, removeOnFail=True)
    harness.pull()
    harness.advance(5_000)

    assert harness.state(job_id) == "unknown"
    assert harness.dead_letters() == []


def test_heartbeats_do_not_prolong_a_timeout(harness):
    job_id = harness.push(timeout=5_000)
    _, token = harness.pull()
    for _ in range(5):
        harness.advance(1_000)
        if harness.state(job_id) == "active":
            harness.send("JobHeartbeat", id=job_id, token=token)

    assert harness.state(job_id) == "delayed"


def test_a_timeout_of_zero_is_none(harness):
    job_id = harness.push(timeout=0)
    harness.pull()
    harness.advance(20_000)

    assert harness.state(job_id) == "active"


# disconnects


def test_a_lost_connection_charges_an_attempt_and_nothing_else(harness):
    job_id = harness.push()
    before = harness.shown(job_id)
    harness.pull(connection=2)
    harness.clock.advance(7)

    harness.disconnect(2)

    shown = harness.shown(job_id)
    assert (shown["state"], shown["attempts"], shown["stallCount"], shown["startedAt"]) == ("waiting", 1, 0, None)
    assert (shown["runAt"], shown["lastHeartbeat"]) == (before["runAt"], harness.now.wall_ms)
    assert [e["state"] for e in shown["timeline"]] == ["waiting", "active"]


def test_a_job_that_kills_its_worker_ends_among_the_dead_letters(harness):
    job_id = harness.push(maxAttempts=2)
    for _ in range(2):
        harness.pull(connection=2)
        harness.disconnect(2)
        harness.connect(2)

    assert [(i, reason) for i, reason, _ in harness.dead_letters()] == [(job_id, "worker_lost")]
    assert entry(harness, job_id).job.attempts == 2


def test_a_disconnect_wakes_one_pull_per_job(harness):
    harness.push_many("q", [{}] * 3)
    harness.send("PULLB", 2, queue="q", count=3, owner="w")
    harness.wakes()

    harness.disconnect(2)

    assert harness.wakes()["q"] >= 3


def test_a_close_after_unregister_is_orderly(harness):
    job_id = harness.push(maxAttempts=1)
    harness.send("RegisterWorker", 2, name="w", workerId="w1")
    harness.pull(connection=2)
    harness.send("UnregisterWorker", 2, workerId="w1")

    harness.disconnect(2)

    assert (harness.state(job_id), harness.shown(job_id)["attempts"]) == ("waiting", 0)


def test_registering_again_ends_the_orderly_close(harness):
    job_id = harness.push()
    harness.send("RegisterWorker", 2, name="w", workerId="w1")
    harness.send("UnregisterWorker", 2, workerId="w1")
    harness.send("RegisterWorker", 2, name="w", workerId="w2")
    harness.pull(connection=2)

    harness.disconnect(2)

    assert harness.shown(job_id)["attempts"] == 1


def test_withdrawing_another_connections_worker_makes_no_close_orderly(harness):
    job_id = harness.push()
    harness.send("RegisterWorker", 1, name="w", workerId="w1")
    harness.send("UnregisterWorker", 2, workerId="w1")
    harness.pull(connection=2)

    harness.disconnect(2)

    assert harness.shown(job_id)["attempts"] == 1


def renew_by_heartbeat(harness, job_id, token):
    harness.send("JobHeartbeat", id=job_id, token=token)


def renew_by_extension(harness, job_id, token):
    harness.send("ExtendLock", id=job_id)


@pytest.mark.parametrize("renew", [renew_by_heartbeat, renew_by_extension])
def test_a_renewed_lease_outlives_its_connection(harness, renew):
    job_id = harness.push()
    pulled = harness.pull(connection=2)
    renew(harness, *pulled)

    harness.disconnect(2)

    assert harness.state(job_id) == "active"
    harness.advance(TTL + GRACE - 1)
    assert harness.state(job_id) == "active"
    harness.advance(1)
    assert harness.state(job_id) == "waiting"


def beat_without_token(harness, job_id):
    harness.send("JobHeartbeat", id=job_id)


def report_progress(harness, job_id):
    harness.send("Progress", id=job_id, progress=1)


@pytest.mark.parametrize("sign", [beat_without_token, report_progress])
def test_other_signs_of_life_are_no_renewals(harness, sign):
    job_id = harness.push()
    harness.pull(connection=2)
    sign(harness, job_id)

    harness.disconnect(2)

    assert harness.state(job_id) == "waiting"


@pytest.mark.parametrize(
    ("fields", "state"),
    [({"detach": True}, "active"), ({}, "waiting"), ({"owner": "w", "detach": True}, "waiting")],
)
def test_only_a_detached_pull_without_owner_outlives_its_connection(harness, fields, state):
    job_id = harness.push()
    harness.send("PULL", 2, queue="q", **fields)

    harness.disconnect(2)

    assert harness.state(job_id) == state


def test_a_job_finished_over_another_connection_is_tied_to_none(harness):
    """The id lives again under a new holder, which the first connection's close must not rob (P-19)."""
    job_id = harness.push(jobId="c")
    pulled = harness.pull(connection=2)
    harness.ack(*pulled)
    harness.push(jobId="c")
    harness.pull(connection=1)

    harness.disconnect(2)

    assert harness.state(job_id) == "active"


def test_a_job_leased_again_is_not_released_by_its_first_connection(harness):
    job_id = harness.push(backoff=0)
    harness.fail(*harness.pull(connection=2))
    harness.pull(connection=1)

    harness.disconnect(2)

    assert harness.state(job_id) == "active"


def test_a_close_drops_the_connections_workers(harness):
    harness.send("RegisterWorker", 1, name="a", workerId="a")
    harness.send("RegisterWorker", 2, name="b", workerId="b")

    harness.disconnect(2)

    assert list(harness.engine.state.workers) == ["a"]


def test_a_connection_without_jobs_closes_quietly(harness):
    harness.disconnect(2)
    harness.disconnect(99)

    assert harness.engine.state.connections == {1}


# clock jumps


@pytest.mark.parametrize("jump", [-86_400_000, 86_400_000])
def test_a_jump_of_the_wall_clock_moves_no_lease(harness, jump):
    job_id = harness.push(timeout=20_000)
    pulled = harness.pull()

    harness.skew(jump)
    harness.advance(19_000)

    assert harness.state(job_id) == "active"
    harness.send("JobHeartbeat", id=job_id, token=pulled[1])
    harness.ack(*pulled)
    assert harness.state(job_id) == "completed"


@pytest.mark.parametrize("jump", [-86_400_000, 86_400_000])
def test_a_jump_of_the_wall_clock_prolongs_no_lease(harness, jump):
    job_id = harness.push()
    harness.pull()
    harness.skew(jump)

    harness.advance(TTL + GRACE)

    assert harness.shown(job_id)["attempts"] == 1


def test_a_dead_letters_duration_is_never_negative(harness):
    job_id = harness.push(maxAttempts=1)
    harness.pull()
    harness.skew(-5_000)
    harness.advance(TTL + GRACE)
    harness.skew(-86_400_000)

    assert entry(harness, job_id).attempts[0].duration >= 0


# timers


def test_a_busy_server_does_not_carry_the_timers_of_finished_jobs(harness):
    harness.checks = False
    for _ in range(3_000):
        harness.push(removeOnComplete=True)
        harness.ack(*harness.pull())

    assert len(harness.engine.state.timers) <= 1_001


def test_the_deadline_passes_over_timers_of_finished_jobs(harness):
    harness.push()
    harness.ack(*harness.pull(lockTtl=500))
    harness.advance(GRACE)

    assert harness.engine.next_deadline_mono_ms(harness.now) == float("inf")


def test_a_far_timer_of_a_finished_job_costs_one_look_at_the_most(harness):
    harness.push()
    harness.ack(*harness.pull())

    far = harness.engine.next_deadline_mono_ms(harness.now)
    assert far > harness.now.mono_ms + 1_000
    harness.advance(far - harness.now.mono_ms)

    assert harness.engine.next_deadline_mono_ms(harness.now) == float("inf")


def test_a_renewal_costs_no_timer(harness):
    job_id = harness.push()
    _, token = harness.pull()
    for _ in range(20):
        harness.send("ExtendLock", id=job_id, token=token)

    assert len(harness.engine.state.timers) == 1


def test_a_shortened_lease_is_taken_back_in_time(harness):
    job_id = harness.push()
    _, token = harness.pull()
    harness.send("ExtendLock", id=job_id, token=token, duration=100)

    harness.advance(100 + GRACE)

    assert harness.state(job_id) == "waiting"


def test_a_tick_looks_at_a_thousand_timers_at_most(harness):
    harness.checks = False
    harness.push_many("q", [{"maxAttempts": 5} for _ in range(1_500)])
    harness.send("PULLB", queue="q", count=1_000, owner="w")
    harness.send("PULLB", queue="q", count=1_000, owner="w")
    harness.clock.advance(TTL + GRACE)

    harness.tick()
    assert harness.engine.active_count == 500
    harness.tick()
    assert harness.engine.active_count == 0


def test_a_lease_that_ends_while_its_ack_is_being_committed_is_left_alone(harness):
    job_id = harness.push()
    pulled = harness.pull()
    with harness.pending():
        harness.advance(TTL + GRACE - 1)
        harness.ack(*pulled)
        harness.advance(10_000)
        assert harness.job(job_id).record.attempts == 0
        harness.commit()

    assert harness.state(job_id) == "completed"


def test_a_lease_whose_ack_could_not_be_committed_ends_after_all(harness):
    job_id = harness.push()
    pulled = harness.pull()
    with harness.pending():
        harness.advance(TTL + GRACE - 1)
        harness.ack(*pulled)
        harness.advance(10)
        harness.reject()
        harness.advance(leases.STALL_RECHECK_MS)

    assert (harness.state(job_id), harness.shown(job_id)["attempts"]) == ("waiting", 1)


@pytest.mark.parametrize("loss", ["connection", "lease"])
def test_a_job_that_is_lost_after_the_clock_was_set_back_is_ready_at_once(loss):
    harness = EngineHarness()
    harness.connect(2)
    job_id = harness.push()
    harness.pull(connection=2, lockTtl=5_000)
    harness.skew(-12 * 3_600_000)

    if loss == "connection":
        harness.disconnect(2)
    else:
        harness.advance(8_000)

    assert harness.state(job_id) == "waiting"
    assert harness.pull_id() == job_id
