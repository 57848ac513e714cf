"""Dead letters: their bound, their age, their automatic retry, and the policy behind all three."""

import pytest

from bunqueue_trio.engine import dead_letters
from bunqueue_trio.engine.state import PendingChangeError
from tests.engine_harness import EngineHarness

DAY = 86_400_000
HOUR = 3_600_000


def bury(harness: EngineHarness, *names: str, **options: object) -> None:
    for name in names:
        harness.push(jobId=name, maxAttempts=1, **options)
        fail(harness)


def fail(harness: EngineHarness) -> None:
    pulled = harness.pull()
    assert pulled is not None
    harness.fail(*pulled)


def entry(harness: EngineHarness, name: str):
    return harness.engine.state.queues["q"].letters[name]


def with_policy(**config: object) -> EngineHarness:
    harness = EngineHarness()
    harness.send("SetDlqConfig", queue="q", config=config)
    return harness


def test_the_oldest_dead_letters_go_when_there_are_too_many():
    harness = with_policy(maxEntries=2)
    for name in "abcd":
        bury(harness, name)

    assert [letter[0] for letter in harness.dead_letters()] == ["c", "d"]
    assert (harness.state("a"), harness.counts()) == ("unknown", {"failed": 2})
    assert harness.commit().letters_gone == ["b"]
    assert harness.batches[-2].letters_gone == ["a"]


def test_an_evicted_letter_that_was_never_written_is_not_written():
    harness = with_policy(maxEntries=1)
    for name in "ab":
        harness.push(jobId=name, maxAttempts=1)
        harness.pull()
    harness.advance(32_000)

    assert [row[0] for row in harness.commit().letters] == ["b"]


@pytest.mark.parametrize("success", [True, False])
def test_an_evicted_letter_whose_id_is_being_pushed_again(success):
    harness = with_policy(maxEntries=1)
    bury(harness, "a")
    harness.push(jobId="b", maxAttempts=1)
    pulled = harness.pull()
    with harness.pending():
        harness.fail(*pulled)
        first = harness.take()
        harness.push(jobId="a", durable=True)
        harness.land(first)
        if success:
            harness.commit()
        else:
            harness.reject()

    assert harness.state("a") == ("waiting" if success else "unknown")
    assert [letter[0] for letter in harness.dead_letters()] == ["b"]


@pytest.mark.parametrize("success", [True, False])
def test_a_letter_that_goes_with_its_queue_is_not_evicted(success):
    """Given its id is being pushed to another queue, so that two changes already know what becomes of it."""
    harness = with_policy(maxEntries=1)
    bury(harness, "a")
    harness.push(jobId="b", maxAttempts=1)
    pulled = harness.pull()
    with harness.pending():
        harness.fail(*pulled)
        flight = harness.take()
        harness.push("other", jobId="a", durable=True)
        harness.send("Obliterate", queue="q")

        harness.land(flight)
        harness.commit() if success else harness.reject()

    if success:
        assert (harness.state("a"), harness.state("b"), harness.counts()) == ("waiting", "unknown", {})
    else:
        assert (harness.state("a"), harness.counts()) == ("failed", {"failed": 2})


def test_of_many_jobs_that_die_at_once_only_those_that_stay_are_written():
    harness = with_policy(maxEntries=50)
    ids = harness.push_many("q", [{"maxAttempts": 1}] * 120)
    harness.send("PULLB", queue="q", count=120, owner="w")

    harness.disconnect()

    assert list(harness.engine.state.changes.letters) == ids[-50:]  # by id: each of the 70 is found without a search
    assert [row[0] for row in harness.commit().letters] == ids[-50:]


def test_evictions_are_counted():
    harness = with_policy(maxEntries=1)
    bury(harness, *"abc")

    assert harness.engine.state.totals.letters_evicted == 2


def test_lowering_the_bound_trims_when_the_next_one_arrives():
    harness = EngineHarness()
    bury(harness, *"abc")
    harness.send("SetDlqConfig", queue="q", config={"maxEntries": 1})
    assert [letter[0] for letter in harness.dead_letters()] == ["a", "b", "c"]

    bury(harness, "d")

    assert [letter[0] for letter in harness.dead_letters()] == ["d"]
    assert harness.state("c") == "unknown"


@pytest.mark.parametrize("max_entries", [0, -5, None, float("-inf")])
def test_a_bound_below_one_is_one(max_entries):
    harness = with_policy(maxEntries=max_entries)
    bury(harness, *"ab")

    assert [letter[0] for letter in harness.dead_letters()] == ["b"]


@pytest.mark.parametrize("success", [True, False])
def test_a_letter_that_is_about_to_come_back_is_not_evicted(success):
    harness = with_policy(maxEntries=1)
    bury(harness, "a")
    harness.push(jobId="b", maxAttempts=1)
    pulled = harness.pull()
    with harness.pending():
        harness.fail(*pulled)
        first = harness.take()
        harness.send("RetryDlq", queue="q", jobId="a")
        harness.land(first)
        harness.commit() if success else harness.reject()

    assert harness.state("a") == ("waiting" if success else "failed")
    bury(harness, "c", priority=1)
    assert [letter[0] for letter in harness.dead_letters()] == ["c"]


@pytest.mark.parametrize("cmd", ["RetryDlq", "PurgeDlq"])
def test_a_push_waits_for_what_is_happening_to_the_letter_of_its_id(cmd):
    harness = EngineHarness()
    bury(harness, "a")
    with harness.pending():
        harness.send(cmd, queue="q")
        with pytest.raises(PendingChangeError):
            harness.send("PUSH", queue="q", data=1, jobId="a")
        with pytest.raises(PendingChangeError):
            harness.send("PUSH", queue="q", data=1, jobId="a", durable=True)
        harness.commit()

    assert harness.push(jobId="a") == "a"
    assert harness.counts() == {"waiting": 1}


# the policy


def test_the_policy_is_merged_and_stored():
    harness = with_policy(autoRetry=True, autoRetryInterval=1_000, maxEntries="20")
    harness.send("SetDlqConfig", queue="q", config={"maxAge": None, "maxAutoRetries": "x", "other": 1})

    config = harness.ask("GetDlqConfig", queue="q")["config"]

    assert config == {
        "autoRetry": True, "autoRetryInterval": 1000, "maxAutoRetries": 3, "maxAge": None, "maxEntries": 20,
    }  # fmt: skip
    assert [row[0] for row in harness.batches[-1].policies] == ["q"]
    assert harness.batches[-1].settings_gone == ["q"]


def test_a_queue_nobody_knows_has_the_default_policy():
    assert EngineHarness().ask("GetDlqConfig", queue="ghost")["config"] == {
        "autoRetry": False, "autoRetryInterval": HOUR, "maxAutoRetries": 3, "maxAge": 7 * DAY, "maxEntries": 10_000,
    }  # fmt: skip


def test_the_policy_back_at_its_default_leaves_no_row():
    harness = with_policy(maxEntries=5)
    harness.send("SetDlqConfig", queue="q", config={"maxEntries": 10_000})

    assert harness.batches[-1].policies == []
    assert harness.batches[-1].policies_gone == ["q"]


def test_a_policy_is_not_in_force_before_its_commit():
    harness = EngineHarness()
    with harness.pending():
        harness.send("SetDlqConfig", queue="q", config={"maxEntries": 5})
        assert harness.send("GetDlqConfig", queue="q").config.max_entries == 10_000
        harness.reject()

    assert harness.send("GetDlqConfig", queue="q").config.max_entries == 10_000


# age


def test_a_letter_goes_at_the_end_of_its_age_with_its_row():
    harness = with_policy(maxAge=60_000)
    bury(harness, "a")
    assert entry(harness, "a").expires_at == harness.now.wall_ms + 60_000

    harness.advance(59_999)
    assert harness.state("a") == "failed"
    harness.advance(1)

    assert harness.state("a") == "unknown"
    assert harness.commit().letters_gone == ["a"]
    assert harness.engine.state.totals.letters_expired == 1


@pytest.mark.parametrize("max_age", [None, 0])
def test_a_letter_without_an_age_stays(max_age):
    harness = with_policy(maxAge=max_age)
    bury(harness, "a")

    assert entry(harness, "a").expires_at is None
    harness.clock.skew(100 * DAY)
    harness.tick()
    assert harness.state("a") == "failed"


def test_a_later_policy_does_not_touch_the_age_of_a_letter():
    harness = EngineHarness()
    bury(harness, "a")
    harness.send("SetDlqConfig", queue="q", config={"maxAge": 1_000})

    harness.advance(10_000)

    assert harness.state("a") == "failed"


def test_letters_of_different_ages_go_in_the_order_of_their_ends():
    harness = with_policy(maxAge=60_000)
    bury(harness, "long")
    harness.send("SetDlqConfig", queue="q", config={"maxAge": 1_000})
    bury(harness, "short")

    harness.advance(1_000)

    assert [letter[0] for letter in harness.dead_letters()] == ["long"]


def test_a_clock_that_goes_back_makes_no_letter_old_and_one_that_returns_no_older():
    harness = with_policy(maxAge=60_000)
    bury(harness, "a")

    harness.skew(-HOUR)
    harness.advance(60_000)
    assert harness.state("a") == "failed"
    harness.skew(HOUR)
    assert harness.state("a") == "unknown"


def test_a_hundred_at_a_time_go_after_a_jump_of_the_clock():
    harness = EngineHarness(checks=False)
    for job_id in harness.push_many("q", [{"maxAttempts": 1}] * (2 * dead_letters.LOOKS_PER_TICK + 1)):
        del job_id
        fail(harness)

    harness.skew(8 * DAY)
    assert harness.counts() == {"failed": dead_letters.LOOKS_PER_TICK + 1}
    assert harness.engine.next_deadline_mono_ms(harness.now) <= harness.now.mono_ms
    harness.tick()
    harness.tick()
    assert harness.counts() == {}


@pytest.mark.parametrize("success", [True, False])
def test_a_letter_whose_time_ends_while_it_comes_back(success):
    harness = with_policy(maxAge=60_000)
    bury(harness, "a")
    with harness.pending():
        harness.send("RetryDlq", queue="q")
        harness.advance(60_000)
        harness.commit() if success else harness.reject()

    assert harness.state("a") == ("waiting" if success else "failed")
    harness.advance(dead_letters.LOOK_AGAIN_MS)
    assert harness.state("a") == ("waiting" if success else "unknown")


@pytest.mark.parametrize("success", [True, False])
def test_a_letter_whose_time_ends_while_its_id_is_pushed_again(success):
    harness = with_policy(maxAge=60_000)
    bury(harness, "a")
    with harness.pending():
        harness.push(jobId="a", durable=True)
        harness.advance(60_000)
        harness.commit() if success else harness.reject()

    assert harness.state("a") == ("waiting" if success else "failed")


def test_letters_that_went_before_their_time_leave_a_bounded_trace():
    harness = EngineHarness(checks=False)
    for _ in range(3):
        for _ in harness.push_many("q", [{"maxAttempts": 1}] * 900):
            fail(harness)
        harness.send("PurgeDlq", queue="q")
    bury(harness, "stays")

    assert len(harness.engine.state.letters_due) <= 1_001
    harness.skew(7 * DAY)
    for _ in range(10):
        harness.tick()
    assert harness.state("stays") == "unknown"


# automatic retry


RETRYING = {"autoRetry": True, "autoRetryInterval": 10_000, "maxAge": None}


def test_a_letter_comes_back_by_itself():
    harness = with_policy(**RETRYING)
    bury(harness, "a", data={"n": 7})
    assert entry(harness, "a").next_retry_at == harness.now.wall_ms + 10_000

    harness.advance(10_000)

    shown = harness.shown("a")
    assert (shown["state"], shown["attempts"], shown["stallCount"], shown["data"]) == ("waiting", 0, 0, {"n": 7})
    assert harness.dead_letters() == []
    assert harness.engine.state.totals.letters_retried == 1
    batch = harness.batches[-1]
    assert (batch.letters_gone, [row[1] for row in batch.full]) == (["a"], ["a"])  # one transaction (CD-17)


def test_without_the_policy_nothing_comes_back():
    harness = EngineHarness()
    bury(harness, "a")

    assert entry(harness, "a").next_retry_at is None
    harness.advance(2 * HOUR)
    assert harness.state("a") == "failed"


def test_pauses_grow_and_retries_end():
    """The retry count goes on over the next failure: interval, interval, twice that, and no more after three."""
    harness = with_policy(**RETRYING)
    bury(harness, "a")
    pauses = []
    for count in range(4):
        assert entry(harness, "a").retry_count == count
        at = entry(harness, "a").next_retry_at
        if at is None:
            break
        pauses.append(at - harness.now.wall_ms)
        harness.advance(pauses[-1])
        assert entry_gone(harness)
        retried_at = harness.now.wall_ms
        fail(harness)
        assert entry(harness, "a").last_retry_at == retried_at

    assert pauses == [10_000, 10_000, 20_000]
    harness.advance(HOUR)
    assert harness.state("a") == "failed"


def entry_gone(harness: EngineHarness) -> bool:
    return harness.dead_letters() == []


@pytest.mark.parametrize("max_auto_retries", [0, 1])
def test_max_auto_retries_is_the_number_of_retries(max_auto_retries):
    harness = with_policy(**RETRYING, maxAutoRetries=max_auto_retries)
    bury(harness, "a")
    for _ in range(max_auto_retries):
        harness.advance(10_000)
        fail(harness)

    harness.advance(HOUR)
    assert harness.state("a") == "failed"
    assert harness.engine.state.totals.letters_retried == max_auto_retries


def test_the_longest_pause_is_a_year():
    harness = with_policy(autoRetry=True, autoRetryInterval=365 * DAY, maxAutoRetries=1_000_000)
    bury(harness, "a")
    letter = entry(harness, "a")
    job = harness.job("a")
    job.past = dead_letters.Past(900_000, 1.0)

    again = dead_letters.dead_letter(harness.engine.state, job, letter.job, "unknown", None, harness.now)

    assert again.next_retry_at == harness.now.wall_ms + 365 * DAY


def test_switched_off_at_the_time_it_does_not_come_back_and_switched_on_again_it_does():
    harness = with_policy(**RETRYING)
    bury(harness, "a")
    harness.send("SetDlqConfig", queue="q", config={"autoRetry": False})
    harness.advance(30_000)
    assert harness.state("a") == "failed"

    harness.send("SetDlqConfig", queue="q", config={"autoRetry": True})
    harness.advance(0)

    assert harness.state("a") == "waiting"


def test_a_retry_comes_before_the_end_of_the_age():
    harness = with_policy(autoRetry=True, autoRetryInterval=10_000, maxAge=10_000)
    bury(harness, "a")

    harness.advance(10_000)

    assert harness.state("a") == "waiting"


def test_the_age_ends_a_letter_that_waits_for_a_later_retry():
    harness = with_policy(autoRetry=True, autoRetryInterval=10_000, maxAge=5_000)
    bury(harness, "a")

    harness.advance(5_000)

    assert harness.state("a") == "unknown"


def test_a_letter_that_may_not_be_retried_any_more_still_grows_old():
    harness = with_policy(autoRetry=True, autoRetryInterval=1_000, maxAge=60_000)
    bury(harness, "a")
    harness.send("SetDlqConfig", queue="q", config={"autoRetry": False})

    harness.advance(60_000)

    assert harness.state("a") == "unknown"


def test_a_taken_key_puts_the_retry_off():
    harness = with_policy(**RETRYING)
    bury(harness, "a", uniqueKey="u")
    harness.push(jobId="holder", uniqueKey="u", delay=HOUR)

    harness.advance(10_000)
    assert harness.state("a") == "failed"
    harness.send("Cancel", id="holder")
    harness.advance(dead_letters.LOOK_AGAIN_MS)

    assert harness.state("a") == "waiting"


def test_a_retry_that_cannot_be_stored_is_tried_again():
    harness = with_policy(**RETRYING)
    bury(harness, "a")
    with harness.pending():
        harness.advance(10_000)
        harness.reject()
    assert harness.state("a") == "failed"
    assert entry(harness, "a").retry_count == 0

    harness.advance(dead_letters.LOOK_AGAIN_MS)

    assert harness.state("a") == "waiting"
    fail(harness)
    assert entry(harness, "a").retry_count == 1


def test_somebodys_own_retry_starts_the_count_anew():
    harness = with_policy(**RETRYING)
    bury(harness, "a")
    harness.advance(10_000)
    fail(harness)
    assert entry(harness, "a").retry_count == 1

    harness.send("RetryDlq", queue="q", jobId="a")
    fail(harness)

    assert (entry(harness, "a").retry_count, entry(harness, "a").last_retry_at) == (0, None)


def test_the_count_is_kept_over_other_kinds_of_failure():
    harness = with_policy(**RETRYING)
    bury(harness, "a")
    harness.advance(10_000)
    harness.pull()

    harness.disconnect()

    assert harness.dead_letters()[0][1] == "worker_lost"
    assert entry(harness, "a").retry_count == 1


def test_discarded_jobs_have_the_policy_of_their_queue_too():
    harness = with_policy(**RETRYING)
    harness.push(jobId="a")

    harness.send("Discard", id="a")

    assert entry(harness, "a").next_retry_at == harness.now.wall_ms + 10_000
