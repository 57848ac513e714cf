"""What a parked job has waited for and no longer does, over a kill: dependencies that have completed and live again."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.stored_engine import Stored


@pytest.fixture
def stored() -> Iterator[Stored]:
    stored = Stored()
    yield stored
    stored.file.close()


def rerun(stored: Stored) -> None:
    stored.ask_file("RetryCompleted", queue="deps", id="done")


def push_again(stored: Stored) -> None:
    stored.ask_file("PUSH", queue="deps", data=2, jobId="done")


def push_again_durably(stored: Stored) -> None:
    stored.ask_file("PUSH", queue="deps", data=2, jobId="done", durable=True)


def push_batch(stored: Stored) -> None:
    stored.ask_file("PUSHB", queue="deps", jobs=[{"data": 2, "customId": "done", "durable": True}])


def parent_of_two(stored: Stored, **options: object) -> None:
    """``dad`` has waited for ``done``, and waits for ``open``."""
    stored.push("deps", jobId="done", **options)
    stored.push("others", jobId="open")
    stored.push("p", jobId="dad", dependsOn=["done", "open"])
    pulled = stored.pull("deps")
    assert pulled is not None
    stored.ack(*pulled, result=1)
    stored.commit()


def complete(stored: Stored, queue: str) -> None:
    pulled = stored.pull(queue)
    assert pulled is not None
    stored.ack(*pulled)


AGAIN = [rerun, push_again, push_again_durably, push_batch]


@pytest.mark.parametrize("again", AGAIN)
def test_a_new_life_of_a_dependency_that_has_completed_is_not_waited_for(
    stored: Stored, again: Callable[[Stored], None]
) -> None:
    parent_of_two(stored)
    again(stored)
    stored.commit()
    stored.restart()
    assert stored.job("dad").missing == {"open"}

    complete(stored, "others")

    assert stored.pull_id("p") == "dad"


@pytest.mark.parametrize("again", AGAIN[1:])
def test_nor_when_the_former_life_was_removed_on_completion(stored: Stored, again: Callable[[Stored], None]) -> None:
    parent_of_two(stored, removeOnComplete=True)
    again(stored)
    stored.commit()
    stored.restart()

    complete(stored, "others")

    assert stored.pull_id("p") == "dad"


@pytest.mark.parametrize("again", AGAIN)
def test_it_is_remembered_over_a_second_restart_and_another_end(
    stored: Stored, again: Callable[[Stored], None]
) -> None:
    parent_of_two(stored)
    again(stored)
    stored.commit()
    stored.restart()
    stored.send("UpdateParent", childId="open", parentId="dad")  # rewrites what the file has of it
    stored.send("Cancel", id="done")
    stored.commit()
    stored.restart()

    complete(stored, "others")

    assert stored.pull_id("p") == "dad"


@pytest.mark.parametrize("again", AGAIN)
def test_who_comes_later_waits_for_the_new_life(stored: Stored, again: Callable[[Stored], None]) -> None:
    parent_of_two(stored)
    again(stored)
    stored.push("p", jobId="later", dependsOn=["done"])
    stored.commit()
    stored.restart()
    assert stored.state("later") == "waiting-children"

    complete(stored, "deps")

    assert stored.state("later") == "waiting"


def test_a_dependency_that_had_not_completed_is_waited_for_in_its_new_life(stored: Stored) -> None:
    stored.push("deps", jobId="gone")
    stored.push("p", jobId="dad", dependsOn=["gone"])
    stored.send("Cancel", id="gone")
    stored.push("deps", jobId="gone")
    stored.commit()
    stored.restart()
    assert stored.state("dad") == "waiting-children"

    complete(stored, "deps")

    assert stored.state("dad") == "waiting"
