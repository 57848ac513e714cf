"""What the final failure of a child does to its parent.

1. Whatever ends the child, the effect is that of a last FAIL, in the same transaction as the end of the child.
2. A retry is no failure.
3. Only a queued or parked parent is touched.
4. A change of the parent that is under way delays the end of the child; nothing is half done.
"""

import random

import pytest

from bunqueue_trio.engine import policies
from bunqueue_trio.engine.leases import PARENT_BUSY_MS
from bunqueue_trio.engine.state import PendingChangeError
from bunqueue_trio.model.job import JobState
from tests.engine_harness import EngineHarness
from tests.flows import (
    CHILD,
    CONTINUE,
    FAIL_PARENT,
    IGNORE,
    PARENT,
    POLICIES,
    REMOVE,
    fail_child,
    failed_values,
    ignored_values,
    push_family,
)


@pytest.fixture
def harness() -> EngineHarness:
    return EngineHarness()


def depends_on(harness, job_id="dad"):
    return list(harness.job(job_id).record.depends_on)


# ways to end a child for good; each returns the error that its parent hears of


def last_fail(harness):
    fail_child(harness)
    return "boom"


def fail_without_a_text(harness):
    fail_child(harness, None)
    return "unknown error"


def discard(harness):
    harness.send("Discard", id="kid")
    return "unknown error"


def discard_while_active(harness):
    harness.pull(CHILD)
    harness.send("Discard", id="kid")
    return "unknown error"


def lost_lock(harness):
    harness.pull(CHILD, lockTtl=1_000)
    harness.advance(4_000)
    return "Lock expired at max attempts (1)"


def job_timeout(harness):
    harness.pull(CHILD, lockTtl=600_000)
    harness.advance(20_001)
    return "Job timeout exceeded"


def stall(harness):
    harness.send("SetStallConfig", queue=CHILD, config={"stallInterval": 1_000, "gracePeriod": 0})
    harness.pull(CHILD, lockTtl=600_000)
    harness.advance(15_000)
    return "Job stalled at max attempts (1)"


def lost_connection(harness):
    harness.connect(2)
    harness.pull(CHILD, connection=2)
    harness.disconnect(2)
    return "Connection lost while the job was active"


def expired_ttl(harness):
    harness.advance(70_001)
    assert harness.pull(CHILD) is None
    return "Job ttl expired"


ENDS = [last_fail, fail_without_a_text, discard, discard_while_active, lost_lock, job_timeout, stall]
ENDS += [lost_connection, expired_ttl]


def family(harness, *flags, **fields):
    push_family(harness, *flags, timeout=20_000, ttl=70_000, **fields)


@pytest.mark.parametrize("end", ENDS)
def test_a_parent_fails_with_its_child(harness, end):
    family(harness, FAIL_PARENT, others=("s",))

    error = end(harness)

    assert harness.state("dad") == "failed"
    assert harness.dead_letters(PARENT) == [("dad", "unknown", f"Child job kid failed: {error}")]
    assert harness.job("dad").record.attempts == 0
    assert harness.state("s") == "waiting"


@pytest.mark.parametrize("end", ENDS)
def test_a_parent_goes_on_at_once_and_remembers_the_failure(harness, end):
    family(harness, CONTINUE, others=("s",))

    error = end(harness)

    assert harness.state("dad") == "waiting"
    assert failed_values(harness) == {"c:kid": error}
    assert ignored_values(harness) == {}
    assert depends_on(harness) == ["kid", "s"]
    assert harness.pull_id(PARENT) == "dad"


@pytest.mark.parametrize("end", ENDS)
def test_a_parent_ignores_the_failure_and_remembers_it(harness, end):
    family(harness, IGNORE)

    error = end(harness)

    assert harness.state("dad") == "waiting"
    assert ignored_values(harness) == {"c:kid": error}
    assert failed_values(harness) == {}
    assert depends_on(harness) == []


@pytest.mark.parametrize("end", ENDS)
def test_a_parent_no_longer_waits_for_the_child(harness, end):
    family(harness, REMOVE)

    end(harness)

    assert harness.state("dad") == "waiting"
    assert (failed_values(harness), ignored_values(harness)) == ({}, {})
    assert depends_on(harness) == []
    assert list(harness.job("dad").record.children_ids) == ["kid"]


@pytest.mark.parametrize("end", ENDS)
def test_without_a_policy_the_parent_stays_parked(harness, end):
    family(harness)

    end(harness)

    assert harness.state("dad") == "waiting-children"


@pytest.mark.parametrize("policy", [IGNORE, REMOVE])
def test_with_a_sibling_to_wait_for_the_parent_stays_parked_until_that_completes(harness, policy):
    family(harness, policy, others=("s",))
    last_fail(harness)
    assert harness.state("dad") == "waiting-children"
    assert depends_on(harness) == ["s"]

    harness.ack(*harness.pull("others"))

    assert harness.state("dad") == "waiting"
    assert harness.timeline("dad") == ["waiting-children", "waiting"]


def test_a_sibling_that_was_removed_on_completion_counts_as_finished(harness):
    harness.push("others", jobId="s", removeOnComplete=True)
    push_family(harness, REMOVE)
    harness.push(PARENT, jobId="mum", dependsOn=["s", "kid"])
    harness.send("UpdateParent", childId="kid", parentId="mum")
    harness.ack(*harness.pull("others"))

    last_fail(harness)

    assert harness.state("mum") == "waiting"


def test_a_release_is_shown_in_the_timeline_and_runs_now(harness):
    harness.push(CHILD, jobId="kid", maxAttempts=1, parentId="dad", **{REMOVE: True})
    harness.push(PARENT, jobId="dad", dependsOn=["kid"], delay=60_000, priority=3)
    harness.advance(1_000)

    last_fail(harness)

    assert harness.timeline("dad") == ["waiting-children", "prioritized"]
    assert harness.job("dad").record.run_at == harness.now.wall_ms


@pytest.mark.parametrize(
    ("flags", "state", "failed", "ignored"),
    [
        (POLICIES, "failed", {}, {}),
        ((CONTINUE, IGNORE, REMOVE), "waiting", {"c:kid": "boom"}, {}),
        ((IGNORE, REMOVE), "waiting", {}, {"c:kid": "boom"}),
    ],
)
def test_the_first_of_several_policies_decides(harness, flags, state, failed, ignored):
    family(harness, *flags)

    last_fail(harness)

    assert harness.state("dad") == state
    assert (failed_values(harness), ignored_values(harness)) == (failed, ignored)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_retry_is_no_failure(harness, policy):
    family(harness, policy, maxAttempts=2, backoff=0)
    harness.fail(*harness.pull(CHILD))
    assert harness.state("dad") == "waiting-children"
    assert depends_on(harness) == ["kid"]

    harness.advance(1)
    harness.fail(*harness.pull(CHILD))

    assert harness.state("dad") != "waiting-children"


@pytest.mark.parametrize("policy", POLICIES)
def test_a_child_that_leaves_no_dead_letter_has_failed_all_the_same(harness, policy):
    family(harness, policy, removeOnFail=True)

    last_fail(harness)

    assert harness.state("kid") == "unknown"
    assert harness.state("dad") == ("failed" if policy == FAIL_PARENT else "waiting")


def test_a_child_that_times_out_and_leaves_no_dead_letter_has_failed_all_the_same(harness):
    family(harness, FAIL_PARENT, removeOnFail=True)

    job_timeout(harness)

    assert harness.state("kid") == "unknown"
    assert harness.state("dad") == "failed"


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("command", ["Cancel", "RemoveUnprocessedChildren"])
def test_removing_a_child_is_no_failure(harness, policy, command):
    family(harness, policy)

    harness.send(command, id="kid" if command == "Cancel" else "dad")

    assert harness.state("kid") == "unknown"
    assert harness.state("dad") == "waiting-children"


# which parents


def test_a_queued_parent_is_failed_as_well(harness):
    harness.push(PARENT, jobId="dad", delay=5_000, uniqueKey="k")
    harness.push(CHILD, jobId="kid", maxAttempts=1, parentId="dad", **{FAIL_PARENT: True})

    last_fail(harness)

    assert harness.counts(PARENT) == {"failed": 1}
    assert harness.push(PARENT, uniqueKey="k") != "dad"
    assert harness.engine.state.totals.failed == 2


def test_a_queued_parent_remembers_failures_and_keeps_its_place(harness):
    harness.push(PARENT, jobId="dad", delay=5_000)
    harness.push(CHILD, jobId="kid", maxAttempts=1, parentId="dad", **{CONTINUE: True})

    last_fail(harness)

    assert harness.state("dad") == "delayed"
    assert failed_values(harness) == {"c:kid": "boom"}


def test_an_active_parent_is_left_alone(harness):
    harness.push(PARENT, jobId="dad")
    harness.push(CHILD, jobId="kid", maxAttempts=1, parentId="dad", **{FAIL_PARENT: True})
    harness.pull(PARENT)

    last_fail(harness)

    assert harness.state("dad") == "active"


@pytest.mark.parametrize("policy", POLICIES)
def test_finished_and_unknown_parents_are_left_alone(harness, policy):
    harness.push(PARENT, jobId="done")
    harness.push(PARENT, jobId="dead", maxAttempts=1)
    harness.ack(*harness.pull(PARENT))
    harness.fail(*harness.pull(PARENT))
    for parent in ("done", "dead", "nobody", "pending"):
        harness.push(CHILD, maxAttempts=1, parentId=parent, **{policy: True})
        last_fail(harness)

    assert harness.counts(PARENT) == {"completed": 1, "failed": 1}
    assert harness.counts(CHILD) == {"failed": 4}


def test_a_parent_that_fails_fails_its_own_parent_and_so_on(harness):
    for level in range(4):
        harness.push(PARENT, jobId=f"a{level}", parentId=f"a{level + 1}", **{FAIL_PARENT: level < 3})
    harness.push(PARENT, jobId="a4")
    harness.push(CHILD, jobId="kid", maxAttempts=1, parentId="a0", **{FAIL_PARENT: True})

    last_fail(harness)

    texts = [error for _, _, error in harness.dead_letters(PARENT)]
    assert texts[:2] == ["Child job kid failed: boom", "Child job a0 failed: Child job kid failed: boom"]
    assert len(texts) == 4
    assert harness.state("a4") == "waiting"


def test_the_policy_of_each_parent_decides_about_the_next(harness):
    harness.push(PARENT, jobId="grandad", dependsOn=[harness.push("others", jobId="s")])
    push_family(harness, FAIL_PARENT)
    harness.send("UpdateParent", childId="dad", parentId="grandad")
    harness.job("dad").record.continue_parent_on_failure = True

    last_fail(harness)

    assert harness.state("dad") == "failed"
    assert harness.state("grandad") == "waiting"
    assert failed_values(harness, "grandad") == {"p:dad": "Child job kid failed: boom"}


def test_a_circle_of_parents_ends(harness):
    harness.push(PARENT, jobId="a", parentId="b", **{FAIL_PARENT: True})
    harness.push(PARENT, jobId="b", parentId="a", **{FAIL_PARENT: True})
    harness.push(CHILD, jobId="kid", maxAttempts=1, parentId="a", **{FAIL_PARENT: True})

    last_fail(harness)

    assert harness.counts(PARENT) == {"failed": 2}


def test_a_job_that_is_its_own_parent_fails_once(harness):
    harness.push(CHILD, jobId="kid", maxAttempts=1, parentId="kid", **{FAIL_PARENT: True})

    last_fail(harness)

    assert harness.counts(CHILD) == {"failed": 1}


def test_a_very_long_line_of_ancestors_is_followed_up_to_the_bound():
    harness = EngineHarness(checks=False)
    count = policies.CASCADE_MAX + 5
    for level in range(count):
        harness.push(PARENT, jobId=f"a{level}", parentId=f"a{level + 1}", **{FAIL_PARENT: True})
    harness.push(CHILD, jobId="kid", maxAttempts=1, parentId="a0", **{FAIL_PARENT: True})

    last_fail(harness)

    assert harness.counts(PARENT) == {"failed": policies.CASCADE_MAX, "waiting": 5}
    texts = [error for _, _, error in harness.dead_letters(PARENT)]
    assert max(map(len, texts)) <= policies.ERROR_MAX + 100
    harness.engine.check_invariants()


# what is remembered


@pytest.mark.parametrize("end", ["ack", "fail", "cancel"])
def test_remembered_failures_end_with_the_parent(harness, end):
    family(harness, CONTINUE)
    last_fail(harness)
    if end == "cancel":
        harness.send("Cancel", id="dad")
    else:
        (harness.ack if end == "ack" else lambda *p: harness.fail(*p, unrecoverable=True))(*harness.pull(PARENT))

    assert failed_values(harness) == {}


def test_remembered_failures_stay_while_the_parent_is_retried(harness):
    family(harness, IGNORE)
    last_fail(harness)
    harness.fail(*harness.pull(PARENT), error="again")

    assert ignored_values(harness) == {"c:kid": "boom"}


def test_only_so_many_failures_are_remembered_and_only_so_much_of_each():
    harness = EngineHarness(checks=False)
    harness.push(PARENT, jobId="dad", delay=5_000)
    for n in range(policies.FAILURES_MAX + 1):
        flag = CONTINUE if n % 2 else IGNORE
        harness.push(CHILD, jobId=f"k{n}", maxAttempts=1, parentId="dad", **{flag: True})
        fail_child(harness, "x" * 5_000)

    assert len(failed_values(harness)) + len(ignored_values(harness)) == policies.FAILURES_MAX
    assert {len(text) for text in failed_values(harness).values()} == {policies.ERROR_MAX}


def test_the_news_of_a_child_that_fails_again_replaces_the_old(harness):
    family(harness, CONTINUE, others=("s",))
    last_fail(harness)
    harness.send("RetryDlq", queue=CHILD, jobId="kid")
    fail_child(harness, "again")

    assert failed_values(harness) == {"c:kid": "again"}


# transactions


@pytest.mark.parametrize("end", [last_fail, discard, lost_lock, lost_connection, job_timeout, expired_ttl])
@pytest.mark.parametrize("policy", POLICIES)
def test_child_and_parent_change_in_one_transaction(harness, policy, end):
    family(harness, policy)
    harness.commit()
    harness.auto_commit = False

    end(harness)

    batch = harness.commit()
    assert "kid" in batch.deleted
    if policy == FAIL_PARENT:
        assert "dad" in batch.deleted
        assert "dad" in [row[0] for row in batch.letters]
    else:
        assert [row[1] for row in batch.full] == ["dad"]


@pytest.mark.parametrize("policy", POLICIES)
def test_until_the_commit_nothing_has_happened_and_a_failed_commit_leaves_no_trace(harness, policy):
    family(harness, policy, others=("s",))
    harness.commit()
    pulled = harness.pull(CHILD)
    with harness.pending():
        harness.fail(*pulled, error="boom", unrecoverable=True)
        assert harness.state("dad") == "waiting-children"
        assert harness.pull(PARENT) is None
        harness.reject()

    assert harness.state("kid") == "active"
    assert harness.state("dad") == "waiting-children"
    assert depends_on(harness) == ["kid", "s"]
    assert (failed_values(harness), ignored_values(harness)) == ({}, {})
    harness.fail(*pulled, error="boom", unrecoverable=True)
    assert depends_on(harness) != ["kid", "s"] or harness.state("dad") != "waiting-children"


@pytest.mark.parametrize("policy", [IGNORE, REMOVE])
def test_a_sibling_that_completes_while_the_failure_is_under_way_releases_the_parent(harness, policy):
    family(harness, policy, others=("s",))
    kid, sibling = harness.pull(CHILD), harness.pull("others")
    with harness.pending():
        harness.fail(*kid, unrecoverable=True)
        harness.ack(*sibling)
        harness.commit()

    assert harness.state("dad") == "waiting"
    assert harness.timeline("dad") == ["waiting-children", "waiting"]
    harness.commit()
    assert harness.wakes()[PARENT]


def test_the_parent_is_freed_even_if_the_childs_failure_could_not_be_stored_and_the_sibling_completed(harness):
    family(harness, CONTINUE, others=("s",))
    kid, sibling = harness.pull(CHILD), harness.pull("others")
    with harness.pending():
        harness.ack(*sibling)
        flight = harness.take()
        harness.fail(*kid, unrecoverable=True)
        harness.land(flight)
        harness.reject()

    assert harness.state("dad") == "waiting-children"
    harness.ack(*kid)
    assert harness.state("dad") == "waiting"
    assert harness.timeline("dad") == ["waiting-children", "waiting"]


@pytest.mark.parametrize(("command", "fields"), [("FAIL", {"unrecoverable": True}), ("Discard", {})])
def test_a_command_meets_a_change_of_the_parent_that_is_under_way(harness, command, fields):
    family(harness, FAIL_PARENT)
    _, token = harness.pull(CHILD)
    with harness.pending():
        harness.send("Cancel", id="dad")
        with pytest.raises(PendingChangeError):
            harness.send(command, id="kid", **{"token": token, **fields})
        assert harness.job("kid").staged is None
        harness.commit()


@pytest.mark.parametrize("end", [lost_lock, job_timeout, stall, lost_connection])
@pytest.mark.parametrize("outcome", ["commit", "reject"])
def test_the_end_of_a_child_waits_for_a_change_of_its_parent(harness, end, outcome):
    family(harness, FAIL_PARENT)
    harness.commit()
    with harness.pending():
        harness.send("Update", id="dad", data=2)
        end(harness)
        assert harness.job("kid").state is JobState.ACTIVE
        assert harness.job("kid").staged is None

        (harness.commit if outcome == "commit" else harness.reject)()
        harness.advance(6_000)  # a stall has to be seen twice

        assert harness.state("kid") == "failed"
        assert harness.state("dad") == "failed"
        batch = harness.commit()
        assert [row[0] for row in batch.letters] == ["kid", "dad"]


def test_an_expired_child_waits_for_a_change_of_its_parent_and_pulls_are_told_to_come_again(harness):
    family(harness, FAIL_PARENT)
    harness.push(CHILD, jobId="next")
    harness.advance(70_001)
    with harness.pending():
        harness.send("Update", id="dad", data=2)
        harness.wakes()
        assert harness.pull(CHILD) is None
        assert harness.pull(CHILD) is None
        assert harness.state("kid") == "waiting"
        assert len(harness.engine.state.timers) == 1
        harness.commit()
    harness.advance(PARENT_BUSY_MS)

    assert harness.wakes()[CHILD]
    assert harness.pull_id(CHILD) == "next"
    assert harness.state("dad") == "failed"


def test_the_ack_of_a_lost_connection_still_counts_while_the_end_of_the_child_waits(harness):
    family(harness, FAIL_PARENT)
    harness.connect(2)
    pulled = harness.pull(CHILD, connection=2)
    with harness.pending():
        harness.send("Update", id="dad", data=2)
        harness.disconnect(2)
        harness.ack(*pulled)
        harness.commit()
    harness.advance(1_000)

    assert harness.state("kid") == "completed"
    assert harness.state("dad") == "waiting"


def test_a_failed_commit_of_a_child_whose_connection_is_gone_ends_both(harness):
    family(harness, FAIL_PARENT)
    harness.connect(2)
    pulled = harness.pull(CHILD, connection=2)
    with harness.pending():
        harness.fail(*pulled, connection=2, unrecoverable=True)
        harness.disconnect(2)
        harness.reject()
        harness.advance(1_000)

    assert harness.dead_letters(CHILD) == [("kid", "worker_lost", "Connection lost while the job was active")]
    assert harness.state("dad") == "failed"


def test_two_children_that_fail_one_after_the_other(harness):
    harness.push(CHILD, jobId="k1", maxAttempts=1, **{IGNORE: True}, parentId="dad")
    harness.push(CHILD, jobId="k2", maxAttempts=1, **{IGNORE: True}, parentId="dad")
    harness.push(PARENT, jobId="dad", dependsOn=["k1", "k2"])
    first, second = harness.pull(CHILD), harness.pull(CHILD)
    with harness.pending():
        harness.fail(*first, error="1")
        with pytest.raises(PendingChangeError):
            harness.fail(*second, error="2")
        harness.commit()
        harness.fail(*second, error="2")
        harness.commit()

    assert harness.state("dad") == "waiting"
    assert ignored_values(harness) == {"c:k1": "1", "c:k2": "2"}


def test_a_dead_letter_that_comes_back_and_completes_changes_nothing_for_a_parent_that_went_on(harness):
    family(harness, REMOVE)
    last_fail(harness)
    harness.pull(PARENT)
    harness.send("RetryDlq", queue=CHILD, jobId="kid")

    harness.ack(*harness.pull(CHILD))

    assert harness.state("dad") == "active"


def test_a_parent_that_comes_back_from_the_dead_letters_waits_for_nothing(harness):
    family(harness, FAIL_PARENT, others=("s",))
    last_fail(harness)

    harness.send("RetryDlq", queue=PARENT)

    assert harness.state("dad") == "waiting"


def test_random_families_never_leave_anything_half_done():
    chance = random.Random(7)
    for _ in range(60):
        harness = EngineHarness()
        flags = [policy for policy in POLICIES if chance.random() < 0.4]
        family(harness, *flags, others=tuple(f"s{n}" for n in range(chance.randrange(3))))

        chance.choice(ENDS)(harness)
        for _ in range(3):
            sibling = harness.pull("others")
            if sibling is not None:
                harness.ack(*sibling)

        assert harness.state("dad") == (
            "failed" if FAIL_PARENT in flags else "waiting" if flags else "waiting-children"
        )
