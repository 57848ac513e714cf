"""A job that has parked itself, over a kill at each commit of its life."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bunqueue_trio.engine.state import PendingChangeError
from tests.flows import CONTINUE, PARENT, fail_child, push_family
from tests.stored_engine import Stored

MOVE = "MoveToWaitingChildren"


@pytest.fixture
def stored() -> Iterator[Stored]:
    stored = Stored()
    yield stored
    stored.file.close()


def park_next(stored: Stored, queue: str = "q") -> str:
    """The next job of the queue parks; its token."""
    pulled = stored.pull(queue)
    assert pulled is not None
    stored.send(MOVE, id=pulled[0], token=pulled[1])
    return pulled[1] or ""


def wait_for_one(stored: Stored) -> None:
    """``dad`` has run because ``kid`` failed, has parked itself, and waits for ``one``."""
    push_family(stored, CONTINUE, others=("one",))
    fail_child(stored)
    park_next(stored, PARENT)


def complete(stored: Stored, queue: str) -> None:
    pulled = stored.pull(queue)
    assert pulled is not None
    stored.ack(*pulled)


def shown(stored: Stored, job_id: str) -> tuple[str, float, list[str]]:
    job = stored.shown(job_id)
    return job["state"], job["attempts"], stored.timeline(job_id)


def test_a_job_without_children_stays_parked(stored):
    stored.push(jobId="j")
    park_next(stored)
    before = shown(stored, "j")
    assert before == ("waiting-children", 0, ["waiting", "active", "waiting-children"])

    stored.restart()

    assert shown(stored, "j") == before
    assert stored.pull() is None
    stored.send("Cancel", id="j")
    assert stored.rows("jobs", "id") == []
    assert stored.rows("bqt_jobs") == []


def test_a_move_that_was_not_stored_counts_as_a_lost_worker(stored):
    stored.push(jobId="j")
    pulled = stored.pull()
    assert pulled is not None
    stored.commit()
    with stored.pending():
        stored.send(MOVE, id="j", token=pulled[1])
        stored.restart()

    assert (stored.state("j"), stored.shown("j")["attempts"]) == ("delayed", 1)


def test_a_full_timeline_does_not_matter(stored):
    """The timeline shows 20 steps; that the job parked again is none of them."""
    stored.push(jobId="j", maxAttempts=100, backoff=0)
    for _ in range(12):
        pulled = stored.pull()
        assert pulled is not None
        stored.fail(*pulled)
    park_next(stored)

    stored.restart()

    assert stored.state("j") == "waiting-children"


def test_its_unique_key_stays_free(stored):
    stored.push(jobId="j", uniqueKey="k")
    park_next(stored)

    stored.restart()

    assert stored.shown("j")["uniqueKey"] == "k"
    assert stored.push(jobId="next", uniqueKey="k") == "next"
    stored.commit()
    stored.restart()
    assert stored.push(jobId="third", uniqueKey="k") == "next"


def test_it_waits_for_the_same_children_and_for_no_others(stored):
    wait_for_one(stored)

    stored.restart()
    assert stored.job("dad").missing == {"one"}
    stored.send("MoveToWait", id="kid")
    stored.commit()
    stored.restart()
    assert stored.job("dad").missing == {"one"}
    complete(stored, "others")

    assert stored.state("dad") == "waiting"


@pytest.mark.parametrize("is_written", [False, True])
def test_the_last_child_releases_it_once_and_for_all(stored, is_written):
    """A kill between the child's completion and the next flush leaves only the former in the file."""
    wait_for_one(stored)
    complete(stored, "others")
    if is_written:
        stored.commit()

    for _ in range(2):
        stored.restart()
        assert stored.state("dad") == "waiting"
        stored.commit()

    assert stored.pull_id(PARENT) == "dad"
    stored.commit()
    stored.restart()
    assert stored.shown("dad")["attempts"] == 1


def test_a_child_that_is_let_go_releases_it_in_the_same_transaction(stored):
    wait_for_one(stored)
    stored.send("UpdateParent", childId="one", parentId="dad")
    with stored.pending():
        stored.send("RemoveChildDependency", id="one")
        stored.commit()  # and nothing behind it

    stored.restart()

    assert stored.state("dad") == "waiting"


def test_a_failure_that_lets_it_go_on_does_so_for_good(stored):
    push_family(stored, CONTINUE)
    fail_child(stored)
    park_next(stored, PARENT)
    stored.send("MoveToWait", id="kid")
    with stored.pending():
        pulled = stored.pull("c")
        assert pulled is not None
        stored.fail(*pulled, unrecoverable=True)
        stored.commit()

    stored.restart()

    assert stored.state("dad") == "waiting"


def test_it_may_park_again_and_again(stored):
    wait_for_one(stored)
    complete(stored, "others")
    park_next(stored, PARENT)

    stored.restart()

    assert stored.job("dad").missing == set()
    assert stored.state("dad") == "waiting-children"


def test_a_child_that_is_removed_on_completion_counts_as_done(stored):
    push_family(stored, CONTINUE)
    stored.push("others", jobId="one", removeOnComplete=True)
    stored.send("Cancel", id="dad")
    stored.push(PARENT, jobId="dad", dependsOn=["kid", "one"], childrenIds=["kid", "one"])
    fail_child(stored)
    park_next(stored, PARENT)
    complete(stored, "others")

    stored.restart()

    assert stored.state("dad") == "waiting"


@pytest.mark.parametrize("move", [MOVE, "MoveToWait", "MoveToDelayed"])
@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_holder_that_has_moved_its_job_completes_it_no_more(stored, move, is_restarted):
    """After a restart nothing but its token would tell of the delivery."""
    push_family(stored, CONTINUE, others=("one",))
    fail_child(stored)
    pulled = stored.pull(PARENT)
    assert pulled is not None
    stored.commit()
    stored.send(move, id="dad", token=pulled[1], delay=0)
    complete(stored, "others")
    if is_restarted:
        stored.commit()
        stored.restart()

    stored.ack(*pulled)

    assert stored.state("dad") == "waiting"


# children of a push


def push_child(stored: Stored, job_id: str) -> None:
    """A child of ``dad``, by a push that names its parent."""
    data = {"__parentId": "dad", "__parentQueue": PARENT}
    stored.ask_file("PUSH", queue="c", name="kid", data=data, parentId="dad", jobId=job_id)


def park_dad(stored: Stored) -> None:
    stored.push(PARENT, jobId="dad", data={"step": 1})
    park_next(stored, PARENT)


def restart(stored: Stored) -> None:
    stored.commit()
    stored.restart()


@pytest.mark.parametrize("restarts", [False, True])
def test_children_that_are_added_later_are_waited_for(stored, restarts):
    go_on = restart if restarts else Stored.commit
    park_dad(stored)
    go_on(stored)

    push_child(stored, "one")
    push_child(stored, "two")
    go_on(stored)
    assert stored.job("dad").missing == {"one", "two"}
    complete(stored, "c")
    go_on(stored)
    assert stored.state("dad") == "waiting-children"
    complete(stored, "c")
    go_on(stored)

    assert stored.state("dad") == "waiting"
    assert stored.shown("dad")["attempts"] == 0
    assert stored.pull_id(PARENT) == "dad"


@pytest.mark.parametrize("restarts", [False, True])
def test_a_processor_may_go_step_by_step(stored, restarts):
    """Each step parks, adds a child, and runs again with its result; children of earlier steps are not waited for."""
    go_on = restart if restarts else Stored.commit
    stored.push(PARENT, jobId="dad", data={})
    for step in ("one", "two", "three"):
        park_next(stored, PARENT)
        go_on(stored)
        push_child(stored, step)
        go_on(stored)
        assert stored.job("dad").missing == {step}
        complete(stored, "c")
        go_on(stored)
        assert stored.state("dad") == "waiting"

    assert stored.shown("dad")["childrenIds"] == ["one", "two", "three"]
    pulled = stored.pull(PARENT)
    assert pulled is not None
    stored.ack(*pulled)
    go_on(stored)
    assert stored.ask_file("GetState", id="dad").state == "completed"


def test_a_child_that_lives_again_is_waited_for_where_it_was_added_again(stored):
    """Its former life completed under another parent, before this one was linked to it."""
    stored.run("one", "c")
    park_dad(stored)
    push_child(stored, "one")
    assert stored.job("dad").missing == {"one"}

    restart(stored)

    assert stored.job("dad").missing == {"one"}
    complete(stored, "c")
    assert stored.state("dad") == "waiting"


def test_a_cancelled_child_leaves_it_parked_until_somebody_lets_it_go(stored):
    park_dad(stored)
    push_child(stored, "one")
    stored.send("Cancel", id="one")
    restart(stored)
    assert stored.state("dad") == "waiting-children"

    stored.ask_file("RemoveChildDependency", id="one")
    restart(stored)

    assert stored.state("dad") == "waiting"


def test_a_job_that_parks_once_more_may_be_filled_with_children_at_once(stored):
    """The move and the pushes of its children share a transaction, as when a worker pipelines them."""
    stored.push(PARENT, jobId="dad", data={})
    pulled = stored.pull(PARENT)
    assert pulled is not None
    with stored.pending():
        stored.send(MOVE, id="dad", token=pulled[1])
        with pytest.raises(PendingChangeError):
            push_child(stored, "one")
        stored.commit()
        push_child(stored, "one")
        stored.commit()

    restart(stored)

    assert stored.job("dad").missing == {"one"}
