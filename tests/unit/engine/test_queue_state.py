"""One queue: delays, groups, clock jumps, counters."""

import pytest

from tests.engine_harness import EngineHarness


@pytest.fixture
def harness() -> EngineHarness:
    return EngineHarness()


# delays


def test_a_delayed_job_is_not_handed_out_early(harness):
    harness.push(delay=1_000)
    harness.clock.advance(999)

    assert harness.pull() is None
    assert harness.counts() == {"delayed": 1}


@pytest.mark.parametrize("ticks", [False, True])
def test_a_delayed_job_is_ready_at_its_moment(harness, ticks):
    job_id = harness.push(delay=1_000)
    harness.clock.advance(1_000)
    if ticks:
        harness.tick()

    assert harness.state(job_id) == "waiting"
    assert harness.pull_id() == job_id


def test_counts_show_a_job_ready_the_moment_it_is_due(harness):
    harness.push(delay=1_000, priority=3)
    harness.clock.advance(1_000)

    assert harness.counts() == {"prioritized": 1}


def test_a_maturing_job_wakes_a_pull(harness):
    harness.push(delay=1_000)
    harness.wakes()

    harness.advance(1_000)

    assert harness.wakes() == {"q": 1}


@pytest.mark.parametrize("cmd", ["GetJobCounts", "PULL"])
def test_jobs_that_mature_under_a_query_still_wake_pulls(harness, cmd):
    """The tick that follows finds them ready already, and must not have been the only one to tell."""
    harness.push(delay=1_000)
    harness.push(delay=1_000)
    harness.wakes()
    harness.clock.advance(1_000)

    harness.send(cmd, queue="q")
    harness.tick()

    assert harness.wakes()["q"] >= 1


def test_the_deadline_is_that_of_the_earliest_delayed_job(harness):
    harness.push(delay=5_000)
    harness.push(delay=1_000)
    harness.push("other", delay=3_000)

    assert harness.engine.next_deadline_mono_ms(harness.now) == harness.now.mono_ms + 1_000


def test_after_the_earliest_the_next_delayed_job_is_seen_to(harness):
    harness.push(delay=1_000)
    harness.push(delay=3_000)

    harness.advance(1_000)

    assert harness.engine.next_deadline_mono_ms(harness.now) == harness.now.mono_ms + 2_000
    harness.advance(2_000)
    assert len(harness.pull_all()) == 2


def test_a_cancelled_delayed_job_leaves_the_next_one_due(harness):
    first, second = harness.push(delay=1_000), harness.push(delay=2_000)
    harness.send("Cancel", id=first)

    harness.advance(2_000)

    assert harness.pull_all() == [second]


# the wall clock goes back


def test_a_job_that_is_ready_is_put_back_when_a_pull_meets_it_early(harness):
    job_id = harness.push(delay=1_000)
    harness.clock.advance(1_000)
    harness.send("GetJobCounts", queue="q")
    harness.clock.skew(-500)

    assert harness.pull() is None
    assert harness.counts() == {"delayed": 1}
    harness.clock.advance(500)
    assert harness.pull_id() == job_id


def test_a_tick_after_a_backward_jump_puts_ready_jobs_back(harness):
    ids = [harness.push(delay=d, priority=p) for d, p in ((1_000, 0), (1_000, 5), (0, 0))]
    harness.advance(1_000)
    assert harness.counts() == {"waiting": 2, "prioritized": 1}

    harness.skew(-3_600_000)

    assert harness.counts() == {"delayed": 3}
    assert harness.state(ids[0]) == "delayed"
    harness.advance(3_600_000)
    assert set(harness.pull_all()) == set(ids)


def test_after_a_backward_jump_the_deadline_is_the_new_one(harness):
    harness.push(delay=1_000)
    harness.advance(1_000)

    harness.skew(-60_000)

    assert harness.engine.next_deadline_mono_ms(harness.now) == harness.now.mono_ms + 60_000


def test_a_forward_jump_makes_delayed_jobs_ready(harness):
    harness.push(delay=3_600_000)

    harness.skew(3_600_000)

    assert harness.counts() == {"waiting": 1}


@pytest.mark.parametrize("by_tick", [False, True])
def test_a_member_put_back_by_a_clock_jump_does_not_hold_up_its_group(harness, by_tick):
    """Two members wait aside; the one that comes out next turns out to be early."""
    holder = harness.push(jobId="holder", groupId="g")
    pulled = harness.pull()
    assert pulled[0] == holder
    harness.push(jobId="early", groupId="g", priority=5, delay=2_000)
    harness.push(jobId="free", groupId="g", timestamp=harness.now.wall_ms - 10_000)
    harness.clock.advance(2_000)
    assert harness.pull() is None  # both are set aside now
    harness.ack(*pulled)
    harness.clock.skew(-5_000)
    if by_tick:
        harness.tick()

    assert harness.pull_all() == ["free"]


# groups


def test_one_job_of_a_group_runs_at_a_time(harness):
    first, second = harness.push(groupId="g"), harness.push(groupId="g")
    pulled = harness.pull()

    assert pulled[0] == first
    assert harness.pull() is None
    harness.ack(*pulled)
    assert harness.pull_id() == second


def test_a_blocked_job_is_passed_over(harness):
    harness.push(jobId="g1", groupId="g")
    harness.push(jobId="g2", groupId="g")
    harness.push(jobId="free")
    harness.push(jobId="h1", groupId="h")

    assert harness.pull_all() == ["g1", "free", "h1"]
    assert harness.counts() == {"active": 3, "waiting": 1}


def test_a_batch_pull_takes_one_job_per_group(harness):
    for name in ("g1", "g2", "h1"):
        harness.push(jobId=name, groupId=name[0])

    jobs = harness.send("PULLB", queue="q", count=10).jobs

    assert [job.id for job in jobs] == ["g1", "h1"]


def test_the_same_group_in_another_queue_is_another(harness):
    harness.push("a", groupId="g")
    harness.push("b", groupId="g")

    assert harness.pull("a") is not None
    assert harness.pull("b") is not None


def test_priority_decides_inside_a_group(harness):
    harness.push(jobId="first", groupId="g")
    pulled = harness.pull()
    harness.push(jobId="low", groupId="g")
    harness.push(jobId="high", groupId="g", priority=3)
    assert harness.pull() is None

    harness.ack(*pulled)

    assert harness.pull_id() == "high"


def test_a_delayed_job_does_not_block_its_group(harness):
    harness.push(jobId="later", groupId="g", delay=1_000)
    harness.push(jobId="now", groupId="g")

    assert harness.pull_id() == "now"


def end_by_ack(harness, pulled):
    harness.ack(*pulled)


def end_by_retry(harness, pulled):
    harness.fail(*pulled)


def end_by_failure(harness, pulled):
    harness.fail(*pulled, unrecoverable=True)


def end_by_disconnect(harness, _pulled):
    harness.disconnect(1)


def end_by_expiry(harness, _pulled):
    harness.advance(32_000)


@pytest.mark.parametrize("end", [end_by_ack, end_by_retry, end_by_failure, end_by_disconnect, end_by_expiry])
def test_whatever_ends_a_job_frees_its_group_and_wakes_a_pull(harness, end):
    harness.push(jobId="a", groupId="g", timestamp=harness.now.wall_ms + 1)
    harness.clock.advance(1)
    pulled = harness.pull()
    harness.push(jobId="b", groupId="g", timestamp=1)
    assert harness.pull() is None
    harness.wakes()

    end(harness, pulled)

    assert harness.wakes()["q"] >= 1
    harness.connect(1)
    assert harness.pull_id() == "b"


def test_a_cancelled_member_lets_the_next_one_come_up(harness):
    for name in "abc":
        harness.push(jobId=name, groupId="g")
    pulled = harness.pull()
    assert harness.pull() is None
    harness.ack(*pulled)

    harness.send("Cancel", id="b")

    assert harness.pull_id() == "c"


def test_a_cancelled_member_aside_is_gone(harness):
    for name in "abc":
        harness.push(jobId=name, groupId="g")
    pulled = harness.pull()
    assert harness.pull() is None

    harness.send("Cancel", id="b")
    harness.ack(*pulled)

    assert harness.pull_all() == ["c"]


def test_an_expired_member_lets_the_next_one_come_up(harness):
    harness.push(jobId="a", groupId="g")
    harness.push(jobId="short", groupId="g", ttl=50)
    harness.push(jobId="b", groupId="g")
    pulled = harness.pull()
    assert harness.pull() is None
    harness.ack(*pulled)
    harness.clock.advance(51)

    assert harness.pull_all() == ["b"]


def test_empty_groups_are_forgotten(harness):
    harness.push(jobId="a", groupId="g")
    harness.ack(*harness.pull())

    assert harness.engine.state.queues["q"].groups == {}


def test_a_member_aside_still_counts_as_waiting(harness):
    harness.push(groupId="g")
    harness.push(groupId="g", priority=2)
    harness.pull()
    harness.pull()

    assert harness.counts() == {"active": 1, "waiting": 1}


# ttl


def test_an_expired_job_goes_when_a_pull_meets_it(harness):
    job_id = harness.push(ttl=1_000)
    harness.clock.advance(1_001)
    assert harness.state(job_id) == "waiting"

    assert harness.pull() is None

    assert harness.state(job_id) == "unknown"
    assert harness.counts() == {}


def test_a_job_lives_to_the_end_of_its_ttl(harness):
    job_id = harness.push(ttl=1_000)
    harness.clock.advance(1_000)

    assert harness.pull_id() == job_id


def test_a_ttl_of_zero_ends_after_a_millisecond(harness):
    harness.push(ttl=0)
    harness.clock.advance(1)

    assert harness.pull() is None


def test_an_expired_job_frees_its_key_and_its_row(harness):
    job_id = harness.push(ttl=10, uniqueKey="k")
    harness.commit()
    harness.clock.advance(11)
    harness.pull()

    assert harness.push(uniqueKey="k") != job_id
    assert harness.commit().deleted == [job_id]


def test_a_ttl_also_ends_a_retry(harness):
    job_id = harness.push(ttl=1_000, backoff=0)
    harness.fail(*harness.pull())
    harness.clock.advance(1_001)

    assert harness.pull() is None
    assert harness.state(job_id) == "unknown"


def test_a_running_job_never_expires(harness):
    job_id = harness.push(ttl=10)
    pulled = harness.pull()
    harness.clock.advance(1_000)
    harness.tick()

    harness.ack(*pulled)

    assert harness.state(job_id) == "completed"


def test_expired_jobs_cost_no_token(harness):
    from bunqueue_trio.model.entries import RateLimit

    harness.set(rate_limit=RateLimit(1))
    harness.push(ttl=10)
    harness.push(jobId="good")
    harness.clock.advance(11)

    assert harness.pull_id() == "good"


# idle queues


def test_an_idle_queue_is_forgotten(harness):
    harness.push(removeOnComplete=True)
    harness.ack(*harness.pull())

    harness.advance(10_000)

    assert harness.send("ListQueues").queues == []
    assert harness.engine.state.queues == {}


def queued(harness):
    harness.push()


def delayed(harness):
    harness.push(delay=60_000_000)


def parked(harness):
    harness.push("other", jobId="dep", delay=60_000_000)
    harness.push(dependsOn=["dep"])


def running(harness):
    harness.push()
    harness.pull(lockTtl=86_400_000)


def completed(harness):
    harness.push()
    harness.ack(*harness.pull())


def failed(harness):
    harness.push(maxAttempts=1)
    harness.fail(*harness.pull())


def paused(harness):
    harness.push(removeOnComplete=True)
    harness.ack(*harness.pull())
    harness.send("Pause", queue="q")


@pytest.mark.parametrize("occupy", [queued, delayed, parked, running, completed, failed, paused])
def test_a_queue_with_anything_worth_remembering_stays(harness, occupy):
    occupy(harness)

    harness.advance(20_000)

    assert "q" in harness.send("ListQueues").queues


def test_a_queue_whose_first_durable_push_is_still_uncommitted_stays(harness):
    with harness.pending():
        job_id = harness.push(durable=True)
        harness.advance(20_000)
        harness.commit()

    assert harness.state(job_id) == "waiting"


def test_a_queue_whose_last_job_is_being_cancelled_stays_until_that_is_decided(harness):
    job_id = harness.push()
    with harness.pending():
        harness.send("Cancel", id=job_id)
        harness.advance(20_000)
        harness.reject()

    assert harness.pull_id() == job_id
