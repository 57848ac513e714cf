"""MoveToWaitingChildren: a running job parks, with or without children to wait for, and comes back when they are done.

Source: newer clients, "Moves of an active job".
"""

import pytest

from bunqueue_trio.engine.state import PendingChangeError
from tests.engine_harness import EngineHarness
from tests.flows import CHILD, CONTINUE, FAIL_PARENT, IGNORE, PARENT, REMOVE, fail_child, push_family
from tests.stored_engine import Stored

MOVE = "MoveToWaitingChildren"


@pytest.fixture
def harness() -> EngineHarness:
    return EngineHarness()


def park(harness: EngineHarness, job_id: str = "j", queue: str = "q", **options: object) -> str:
    """A job that has parked itself without children; the token it had."""
    harness.push(queue, jobId=job_id, **options)
    return park_next(harness, queue)


def park_next(harness: EngineHarness, queue: str = "q") -> str:
    pulled = harness.pull(queue)
    assert pulled is not None
    harness.send(MOVE, id=pulled[0], token=pulled[1])
    return pulled[1] or ""


def go_on_without(harness: EngineHarness, others: tuple[str, ...]) -> None:
    """The parent ``dad`` runs although it waited for others: one of its children has failed and let it go on."""
    push_family(harness, CONTINUE, others=others)
    fail_child(harness)


# parking


def test_a_running_job_parks_and_gives_everything_up(harness):
    harness.push(jobId="j", uniqueKey="k", groupId="g")
    harness.push(jobId="next", groupId="g")
    harness.send("SetConcurrency", queue="q", limit=1)
    _, token = harness.pull()
    assert harness.pull() is None

    assert harness.ask(MOVE, id="j", token=token) == {"ok": True, "data": {"moved": True}}

    shown = harness.shown("j")
    assert (shown["state"], shown["startedAt"], shown["attempts"], shown["stallCount"]) == (
        "waiting-children", None, 0, 0,
    )  # fmt: skip
    assert shown["uniqueKey"] == "k"
    assert harness.timeline("j") == ["waiting", "active", "waiting-children"]
    assert harness.counts() == {"waiting": 1, "waiting-children": 1}
    assert harness.push(jobId="again", uniqueKey="k") == "again"
    assert harness.pull_id() == "next"
    assert harness.engine.state.active_count == 1


def test_its_slot_wakes_a_waiting_pull(harness):
    harness.push(jobId="j")
    pulled = harness.pull()
    harness.wakes()

    harness.send(MOVE, id="j", token=pulled[1])

    assert harness.wakes() == {"q": 1}


def test_it_is_still_running_until_the_commit(harness):
    harness.push(jobId="j", uniqueKey="k")
    pulled = harness.pull()
    with harness.pending():
        harness.send(MOVE, id="j", token=pulled[1])
        assert harness.state("j") == "active"
        with pytest.raises(PendingChangeError):
            harness.ack(*pulled)
        harness.reject()

    assert harness.state("j") == "active"
    assert harness.push(jobId="again", uniqueKey="k") == "j"
    harness.ack(*pulled)
    assert harness.state("j") == "completed"


@pytest.mark.parametrize("job_id", ["nobody", None, 5])
def test_only_an_active_job_can_park(harness, job_id):
    assert harness.refusal(MOVE, id=job_id) == "Job is not active"


@pytest.mark.parametrize("place", ["waiting", "delayed", "completed", "failed", "parked"])
def test_a_job_that_does_not_run_cannot_park(harness, place):
    if place == "parked":
        park(harness)
    else:
        harness.push(jobId="j", delay=1_000 if place == "delayed" else 0, maxAttempts=1)
    if place in ("completed", "failed"):
        pulled = harness.pull()
        harness.ack(*pulled) if place == "completed" else harness.fail(*pulled)

    assert harness.refusal(MOVE, id="j") == "Job is not active"


def test_its_connection_and_its_lock_mean_nothing_any_more(harness):
    park(harness)

    harness.disconnect()
    harness.advance(120_000)

    shown = harness.shown("j")
    assert (shown["state"], shown["attempts"], shown["stallCount"]) == ("waiting-children", 0, 0)
    assert not any(timer[2] is harness.job("j") for timer in harness.engine.state.timers)


def test_listeners_hear_that_it_waits_for_its_children(harness):
    harness.push(jobId="j")
    pulled = harness.pull()
    harness.engine.listen(True)
    with harness.pending():
        harness.send(MOVE, id="j", token=pulled[1])
        assert harness.engine.state.events == []
        harness.commit()

    [event] = harness.engine.state.events
    assert (event.event_type, event.queue, event.job_id, event.prev) == ("waiting-children", "q", "j", "active")
    assert event.timestamp == harness.now.wall_ms


def test_a_full_timeline_parks_all_the_same(harness):
    harness.push(jobId="j", maxAttempts=100, backoff=0)
    for _ in range(12):
        harness.fail(*harness.pull())
    park_next(harness)

    assert harness.state("j") == "waiting-children"


# without children


@pytest.mark.parametrize("cmd", ["MoveToWait", "Promote", "ChangeDelay", "Discard", "ChangePriority"])
def test_it_answers_like_any_parked_job(harness, cmd):
    park(harness)

    harness.refusal(cmd, id="j", delay=1, priority=1)

    assert harness.state("j") == "waiting-children"


def test_it_can_be_cancelled(harness):
    park(harness)

    harness.send("Cancel", id="j")

    assert (harness.state("j"), harness.counts()) == ("unknown", {})


def test_its_data_can_be_changed_meanwhile(harness):
    park(harness)
    with harness.pending():
        harness.send("Update", id="j", data={"step": 2})
        assert harness.state("j") == "waiting-children"
        harness.commit()

    assert (harness.state("j"), harness.shown("j")["data"]) == ("waiting-children", {"step": 2})


def test_a_change_that_fails_leaves_it_parked(harness):
    park(harness)
    with harness.pending():
        harness.send("Cancel", id="j")
        harness.reject()

    assert harness.state("j") == "waiting-children"


def test_a_drained_queue_keeps_it_and_an_obliterated_one_does_not(harness):
    park(harness)

    harness.send("Drain", queue="q")
    assert harness.state("j") == "waiting-children"
    with harness.pending():
        harness.send("Obliterate", queue="q")
        harness.reject()
    assert harness.state("j") == "waiting-children"
    harness.send("Obliterate", queue="q")

    assert harness.state("j") == "unknown"


def test_an_obliteration_takes_it_although_it_was_just_about_to_park(harness):
    harness.push(jobId="j")
    pulled = harness.pull()
    with harness.pending():
        harness.send(MOVE, id="j", token=pulled[1])
        harness.send("Obliterate", queue="q")
        harness.commit()

    assert (harness.state("j"), harness.counts()) == ("unknown", {})


def test_why_it_does_not_run_can_be_asked(harness):
    park(harness)

    reply = harness.ask("Explain", id="j")

    assert reply["state"] == "waiting-children"
    assert reply["reasons"] == [{"reason": "dependencies", "total": 0, "dependencies": []}]


def test_a_child_whose_failure_lets_it_go_on_releases_it(harness):
    push_family(harness, CONTINUE)
    fail_child(harness)
    park_next(harness, PARENT)
    harness.send("MoveToWait", id="kid")

    fail_child(harness)

    assert harness.state("dad") == "waiting"
    assert harness.timeline("dad")[-2:] == ["waiting-children", "waiting"]
    assert harness.job("dad").past.is_parked_again is False
    harness.ack(*harness.pull(PARENT))
    assert harness.state("dad") == "completed"


def test_a_child_whose_failure_fails_it_does_so(harness):
    push_family(harness, FAIL_PARENT)
    harness.ack(*harness.pull(CHILD))
    park_next(harness, PARENT)
    harness.send("RetryCompleted", queue=CHILD, id="kid")

    fail_child(harness)

    assert harness.state("dad") == "failed"


@pytest.mark.parametrize("policy", [IGNORE, REMOVE])
def test_who_it_did_not_wait_for_does_not_release_it(harness, policy):
    push_family(harness, policy)
    harness.ack(*harness.pull(CHILD))
    park_next(harness, PARENT)
    harness.send("RetryCompleted", queue=CHILD, id="kid")

    fail_child(harness)
    assert harness.state("dad") == "waiting-children"
    harness.send("RetryDlq", queue=CHILD)
    harness.send("RemoveChildDependency", id="kid")
    assert harness.state("dad") == "waiting-children"
    harness.ack(*harness.pull(CHILD))

    assert harness.state("dad") == "waiting-children"


def test_a_new_life_of_somebody_it_once_waited_for_does_not_release_it(harness):
    push_family(harness, CONTINUE)
    fail_child(harness)
    park_next(harness, PARENT)
    harness.push(CHILD, jobId="kid")

    harness.ack(*harness.pull(CHILD))

    assert harness.state("dad") == "waiting-children"


def test_it_does_not_wait_for_who_waits_for_it(harness):
    go_on_without(harness, ("one", "two"))
    harness.send("Cancel", id="one")
    harness.push("others", jobId="one", dependsOn=["dad"])
    park_next(harness, PARENT)

    assert harness.job("dad").missing == {"two"}


def test_nor_for_who_waits_for_it_over_others(harness):
    go_on_without(harness, ("one",))
    harness.send("Cancel", id="one")
    harness.push("others", jobId="middle", dependsOn=["dad"])
    harness.push("others", jobId="one", dependsOn=["middle"])
    park_next(harness, PARENT)

    assert harness.job("dad").missing == set()


@pytest.mark.parametrize("commits_between", [False, True])
def test_two_that_park_do_not_wait_for_each_other(harness, commits_between):
    """The second learns of the first also while that one's move is on its way."""
    go_on_without(harness, ("one",))
    harness.send("Cancel", id="one")
    harness.push("others", jobId="kid of one", maxAttempts=1, parentId="one", continueParentOnFailure=True)
    harness.push("others", jobId="one", dependsOn=["kid of one", "dad"])
    harness.fail(*harness.pull("others"), unrecoverable=True)
    one, dad = harness.pull("others"), harness.pull(PARENT)
    with harness.pending():
        harness.send(MOVE, id=one[0], token=one[1])
        if commits_between:
            harness.commit()
        harness.send(MOVE, id=dad[0], token=dad[1])
        harness.commit()

    assert harness.job("one").missing == {"dad"}
    assert harness.job("dad").missing == set()


@pytest.mark.parametrize("commits_between", [False, True])
def test_a_push_cannot_close_a_circle_with_a_job_that_parks(harness, commits_between):
    """Also while the move is on its way: the child's holder is lost meanwhile, and its id lives again."""
    push_family(harness, CONTINUE)
    harness.push("others", jobId="one", maxAttempts=1)
    harness.send("Cancel", id="dad")
    harness.push(PARENT, jobId="dad", dependsOn=["kid", "one"], childrenIds=["kid", "one"])
    fail_child(harness)
    harness.connect(2)
    harness.pull("others", connection=2)
    dad = harness.pull(PARENT)
    with harness.pending():
        harness.send(MOVE, id="dad", token=dad[1])
        if commits_between:
            harness.commit()
        harness.disconnect(2)
        assert harness.state("one") == "failed"

        assert harness.refusal("PUSH", queue="others", data=1, jobId="one", dependsOn=["dad"]) == "Circular dependency"
        harness.push("others", jobId="one")
        harness.commit()

    assert harness.job("dad").missing == {"one"}


# with children


def test_it_waits_for_its_open_children(harness):
    go_on_without(harness, ("one", "two"))
    park_next(harness, PARENT)
    assert harness.job("dad").missing == {"one", "two"}

    harness.ack(*harness.pull("others"))
    assert harness.state("dad") == "waiting-children"
    harness.ack(*harness.pull("others"))

    assert harness.state("dad") == "waiting"
    assert harness.timeline("dad")[-2:] == ["waiting-children", "waiting"]
    assert harness.pull_id(PARENT) == "dad"
    assert harness.shown("dad")["attempts"] == 0


def test_the_last_open_child_may_be_let_go(harness):
    go_on_without(harness, ("one",))
    park_next(harness, PARENT)
    harness.send("UpdateParent", childId="one", parentId="dad")

    harness.send("RemoveChildDependency", id="one")

    assert harness.state("dad") == "waiting"


def test_a_child_that_completes_while_the_move_is_on_its_way_releases_it(harness):
    go_on_without(harness, ("one",))
    child, parent = harness.pull("others"), harness.pull(PARENT)
    with harness.pending():
        harness.ack(*child)
        harness.send(MOVE, id="dad", token=parent[1])
        harness.commit()

    assert harness.state("dad") == "waiting"
    assert harness.timeline("dad")[-2:] == ["waiting-children", "waiting"]


def test_a_child_that_completes_behind_the_move_releases_it_too(harness):
    go_on_without(harness, ("one",))
    child, parent = harness.pull("others"), harness.pull(PARENT)
    with harness.pending():
        harness.send(MOVE, id="dad", token=parent[1])
        harness.ack(*child)
        harness.commit()

    assert harness.state("dad") == "waiting"


def test_a_child_that_was_removed_keeps_it_parked_and_counts_as_lost(harness):
    go_on_without(harness, ("one",))
    park_next(harness, PARENT)

    harness.send("Cancel", id="one")

    assert harness.state("dad") == "waiting-children"
    assert harness.engine.state.totals.orphaned == 1


def test_a_released_job_may_park_again(harness):
    go_on_without(harness, ("one",))
    park_next(harness, PARENT)
    harness.ack(*harness.pull("others"))
    park_next(harness, PARENT)

    assert harness.state("dad") == "waiting-children"
    assert harness.job("dad").missing == set()


# rows


def test_one_row_tells_of_the_move(harness):
    harness.push(jobId="j")
    pulled = harness.pull()
    harness.commit()
    with harness.pending():
        harness.send(MOVE, id="j", token=pulled[1])
        batch = harness.commit()

    [(job_id, state_name, _, started_at, *_)] = batch.states
    assert (job_id, state_name, started_at) == ("j", "waiting", None)
    assert [row[0] for row in batch.extras] == ["j"]


def test_a_job_that_is_not_in_the_file_yet_is_written_whole(harness):
    harness.push(jobId="j")
    pulled = harness.pull()
    with harness.pending():
        harness.send(MOVE, id="j", token=pulled[1])
        batch = harness.commit()

    assert [row[1] for row in batch.full] == ["j"]
    assert [row[0] for row in batch.extras] == ["j"]


def back_from_the_dead_letters() -> Stored:
    """The parent ``dad``, once failed by a child and brought back, runs while its child ``b`` is active."""
    harness = Stored()
    push_family(harness, FAIL_PARENT, others=("b",))
    fail_child(harness)
    harness.send("RetryDlq", queue=PARENT)
    return harness


def test_a_job_that_was_a_dead_letter_waits_for_its_open_children_too():
    harness = back_from_the_dead_letters()
    park_next(harness, PARENT)

    assert harness.state("dad") == "waiting-children"
    harness.ack(*harness.pull("others"))
    assert harness.state("dad") == "waiting"


@pytest.mark.parametrize("ack_first", [True, False])
def test_what_removes_itself_meanwhile_is_remembered_for_a_job_that_was_a_dead_letter(ack_first):
    harness = Stored()
    harness.push(CHILD, jobId="kid", maxAttempts=1, **{FAIL_PARENT: True})
    harness.push("others", jobId="b", removeOnComplete=True)
    harness.push(PARENT, jobId="dad", dependsOn=["kid", "b"], childrenIds=["kid", "b"])
    harness.send("UpdateParent", childId="kid", parentId="dad")
    fail_child(harness)
    harness.send("RetryDlq", queue=PARENT)
    pulled, child = harness.pull(PARENT), harness.pull("others")
    with harness.pending():
        if ack_first:
            harness.ack(*child)
        harness.send(MOVE, id=pulled[0], token=pulled[1])
        if not ack_first:
            harness.ack(*child)
        harness.commit()

    assert harness.state("dad") == "waiting"
    harness.restart()
    assert harness.state("dad") == "waiting"
