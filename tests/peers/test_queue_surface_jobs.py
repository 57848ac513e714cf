"""The client's `Queue` and `Job` against a real server: what changes one job, its logs, its parents and children.

Source: design, "Compatibility"; commands, "Job management", "Flow commands", "Logs".
"""

from __future__ import annotations

import time
from typing import Any

import pytest
from bunqueue import CommandError, Job, Queue, UnrecoverableError

from tests.peers.surface import MINUTE_MS, bury, complete, ids_of, pull, try_pull
from tests.process import wait_until

pytestmark = pytest.mark.slow


def shown(queue: Queue, job_id: str) -> dict[str, Any]:
    """The record of a job."""
    job = queue.get_job(job_id)
    assert job is not None
    return job.raw


def due_in_ms(queue: Queue, job_id: str) -> float:
    """How far ahead the run time of a job lies."""
    return float(shown(queue, job_id)["runAt"]) - time.time() * 1_000


# finishing by hand


def test_move_job_to_completed_needs_the_token_of_the_lease(queue: Queue) -> None:
    queue.add("n", {})
    job = pull(queue)

    with pytest.raises(CommandError, match="Lock token required"):
        queue.move_job_to_completed(job.id)
    with pytest.raises(CommandError, match="Invalid or expired lock token"):
        queue.move_job_to_completed(job.id, token="another")
    queue.move_job_to_completed(job.id, {"done": 1}, job.token)

    assert (queue.get_state(job.id), queue.get_result(job.id)) == ("completed", {"done": 1})


def test_move_job_to_failed_needs_the_token_and_tries_again(queue: Queue) -> None:
    queue.add("n", {}, attempts=2, backoff=MINUTE_MS)
    job = pull(queue)

    with pytest.raises(CommandError, match="Invalid or expired lock token"):
        queue.move_job_to_failed(job.id, "boom", "another")
    queue.move_job_to_failed(job.id, "boom", job.token)

    raw = shown(queue, job.id)
    assert (raw["state"], raw["attempts"]) == ("delayed", 1)
    assert [entry.get("error") for entry in raw["timeline"] if entry["state"] == "failed"] == ["boom"]


def test_an_exception_leaves_its_stack_and_unrecoverable_ends_all_attempts(queue: Queue) -> None:
    job_id = queue.add("n", {}, attempts=5).id

    job = pull(queue)
    queue.move_job_to_failed(job_id, UnrecoverableError("no use"), job.token)

    raw = shown(queue, job_id)
    assert (raw["state"], raw["attempts"]) == ("failed", 1)
    assert raw["stacktrace"] == ["bunqueue.errors.UnrecoverableError: no use"]


def test_extend_job_lock_lasts_as_long_as_asked_and_needs_the_token(queue: Queue) -> None:
    queue.add("n", {})
    job = pull(queue, lockTtl=MINUTE_MS)

    with pytest.raises(CommandError):
        queue.extend_job_lock(job.id, "another", 1_000)
    queue.extend_job_lock(job.id, str(job.token), 1)
    time.sleep(0.05)

    with pytest.raises(CommandError, match="Invalid or expired lock token"):
        queue.move_job_to_failed(job.id, "late", job.token)


# changing


def test_update_job_data_replaces_it(queue: Queue) -> None:
    job_id = queue.add("n", {"old": 1}).id

    queue.update_job_data(job_id, {"new": [2]})

    assert pull(queue).data == {"new": [2]}


def test_change_job_priority_and_lifo_reorder(queue: Queue) -> None:
    first, second, third = (queue.add("n", {}).id for _ in range(3))

    queue.change_job_priority(third, 5)
    assert (queue.get_state(third), shown(queue, third)["priority"]) == ("prioritized", 5)
    for job_id in (first, second):
        queue.change_job_priority(job_id, 1, lifo=True)

    assert (shown(queue, first)["lifo"], shown(queue, third)["lifo"]) == (True, False)
    assert [pull(queue).id for _ in range(3)] == [third, second, first]


def test_change_job_delay_postpones_and_brings_forward(queue: Queue) -> None:
    job_id = queue.add("n", {}).id

    queue.change_job_delay(job_id, MINUTE_MS)
    assert queue.get_state(job_id) == "delayed"
    assert 50_000 < due_in_ms(queue, job_id) <= MINUTE_MS
    queue.change_job_delay(job_id, 0)

    assert pull(queue).id == job_id


def test_move_job_to_delayed_takes_an_active_job_from_its_holder(queue: Queue) -> None:
    job_id = queue.add("n", {}).id
    job = pull(queue)

    queue.move_job_to_delayed(job_id, MINUTE_MS)

    assert (queue.get_state(job_id), queue.get_active_count()) == ("delayed", 0)
    assert 50_000 < due_in_ms(queue, job_id) <= MINUTE_MS
    with pytest.raises(CommandError):
        queue.extend_job_lock(job_id, str(job.token), 1_000)


def test_move_job_to_wait_promote_and_retry_job_make_jobs_ready(queue: Queue) -> None:
    dead = bury(queue)
    moved, promoted = (queue.add("n", {}, delay=MINUTE_MS).id for _ in range(2))

    queue.retry_job(dead)
    queue.move_job_to_wait(moved)
    queue.promote_job(promoted)

    assert [queue.get_state(job_id) for job_id in (dead, moved, promoted)] == ["waiting"] * 3
    assert (queue.get_dlq(), queue.count()) == ([], 3)


def test_promote_jobs_takes_as_many_as_asked_oldest_first(queue: Queue) -> None:
    ids = [queue.add("n", {}, delay=MINUTE_MS).id for _ in range(4)]

    assert queue.promote_jobs(1) == 1
    assert ids_of(queue.get_waiting()) == ids[:1]
    assert queue.promote_jobs() == 3


def test_remove_and_cancel_delete_a_job(queue: Queue) -> None:
    first, second, kept = (queue.add("n", {}).id for _ in range(3))

    queue.remove(first)
    queue.cancel(second)

    assert [queue.get_state(job_id) for job_id in (first, second, kept)] == ["unknown", "unknown", "waiting"]
    with pytest.raises(CommandError, match="Job not found or cannot be cancelled"):
        queue.remove(first)


def test_discard_sends_a_job_to_the_dead_letters(queue: Queue) -> None:
    discarded, kept = (queue.add("n", {}).id for _ in range(2))

    queue.discard(discarded)

    assert [letter["id"] for letter in queue.get_dlq()] == [discarded]
    assert ids_of(queue.get_waiting()) == [kept]


# the same on the job itself


def test_a_job_reports_beats_and_extends_its_lock(queue: Queue) -> None:
    queue.add("n", {})
    job = pull(queue)
    reports: list[int] = []
    job = Job(job.raw, queue.connection, job.token, on_progress=lambda _job, progress: reports.append(progress))
    before = shown(queue, job.id)["lastHeartbeat"]
    time.sleep(0.01)

    job.update_progress(30, "started")
    job.heartbeat()

    assert queue.get_progress(job.id) == {"progress": 30, "message": "started"}
    assert (reports, job.get_state()) == ([30], "active")
    assert shown(queue, job.id)["lastHeartbeat"] > before
    job.extend_lock(1)
    time.sleep(0.05)
    with pytest.raises(CommandError, match="Invalid or expired lock token"):
        queue.move_job_to_failed(job.id, "late", job.token)


def test_a_job_that_was_added_changes_itself(queue: Queue) -> None:
    job = queue.add("n", {"old": 1})

    job.update_data({"new": 2})
    job.change_priority(7, lifo=True)
    raw = shown(queue, job.id)
    assert (raw["data"], raw["priority"], raw["lifo"]) == ({"new": 2}, 7, True)

    job.change_delay(MINUTE_MS)
    assert 50_000 < due_in_ms(queue, job.id) <= MINUTE_MS
    job.promote()
    assert job.get_state() == "prioritized"
    job.move_to_delayed(2 * MINUTE_MS)
    assert 110_000 < due_in_ms(queue, job.id) <= 2 * MINUTE_MS


def test_a_job_discards_retries_and_removes_itself(queue: Queue) -> None:
    job = queue.add("n", {})

    job.discard()
    assert job.get_state() == "failed"
    job.retry()
    assert job.get_state() == "waiting"
    job.remove()

    assert job.get_state() == "unknown"


# logs


def test_logs_are_read_in_part_and_cleared_in_part(queue: Queue) -> None:
    job = queue.add("n", {})

    queue.add_job_log(job.id, "one")
    queue.add_job_log(job.id, "two", level="warn")
    job.log("three", "error")
    job.log("four")

    assert [(line["message"], line["level"]) for line in queue.get_job_logs(job.id)] == [
        ("one", "info"), ("two", "warn"), ("three", "error"), ("four", "info"),
    ]  # fmt: skip
    assert messages(queue, job.id, start=2) == ["three", "four"]
    assert messages(queue, job.id, start=1, end=2) == ["two", "three"]
    assert messages(queue, job.id, end=0) == ["one"]
    queue.clear_job_logs(job.id, keep_logs=1)
    assert messages(queue, job.id) == ["four"]
    queue.clear_job_logs(job.id)
    assert messages(queue, job.id) == []


def test_logs_of_unknown_jobs(queue: Queue) -> None:
    assert queue.get_job_logs("none such") == []
    queue.clear_job_logs("none such")
    with pytest.raises(CommandError, match="Job not found"):
        queue.add_job_log("none such", "lost")


def messages(queue: Queue, job_id: str, **bounds: int) -> list[str]:
    return [line["message"] for line in queue.get_job_logs(job_id, **bounds)]


# parents and children


def family(queue: Queue, **child_options: Any) -> tuple[list[str], Job]:
    """Two children in the queue, the second with options, and a parent that waits for both in a queue of its own."""
    parent_id = f"{queue.name}-parent"
    children = [
        queue.add("child", {}, parent_id=parent_id).id,
        queue.add("child", {}, parent_id=parent_id, attempts=1, **child_options).id,
    ]
    with Queue(f"{queue.name}-parents", connection=queue.connection) as parents:
        parent = parents.add("parent", {}, job_id=parent_id, depends_on=children, children_ids=children)
    assert queue.get_state(parent.id) == "waiting-children"
    return children, parent


def test_children_hand_their_values_to_their_parent(queue: Queue) -> None:
    children, parent = family(queue)
    assert [complete(queue, {"part": n}) for n in range(2)] == children

    values = {f"{queue.name}:{child}": {"part": n} for n, child in enumerate(children)}

    assert queue.get_children_values(parent.id) == values == parent.get_children_values()
    assert queue.get_state(parent.id) == "waiting"
    assert queue.get_children_values("none such") == {}


def test_a_child_that_failed_lets_its_parent_go_on(queue: Queue) -> None:
    children, parent = family(queue, continue_parent_on_failure=True)
    queue.move_job_to_wait(children[0])
    complete(queue)

    job = pull(queue)
    queue.move_job_to_failed(job.id, "broken", job.token)

    assert queue.get_failed_children_values(parent.id) == {f"{queue.name}:{children[1]}": "broken"}
    assert queue.get_ignored_children_failures(parent.id) == {}
    wait_until(lambda: queue.get_state(parent.id) == "waiting", "the parent is released")


def test_a_child_whose_failure_is_ignored(queue: Queue) -> None:
    children, parent = family(queue, ignore_dependency_on_failure=True)
    complete(queue)

    job = pull(queue)
    queue.move_job_to_failed(job.id, "broken", job.token)

    assert queue.get_ignored_children_failures(parent.id) == {f"{queue.name}:{children[1]}": "broken"}
    assert queue.get_failed_children_values(parent.id) == {}
    wait_until(lambda: queue.get_state(parent.id) == "waiting", "the parent is released")


def test_a_dependency_that_is_removed_is_waited_for_no_more(queue: Queue) -> None:
    children, parent = family(queue)

    queue.remove_child_dependency(children[0])
    assert queue.get_state(parent.id) == "waiting-children"
    queue.remove_child_dependency(children[1])

    assert queue.get_state(parent.id) == "waiting"
    with pytest.raises(CommandError, match="Job not found: none such"):
        queue.remove_child_dependency("none such")


def test_children_that_have_not_begun_are_removed_and_the_others_stay(queue: Queue) -> None:
    children, parent = family(queue)
    begun = pull(queue)

    queue.remove_unprocessed_children(parent.id)

    assert begun.id == children[0]
    assert [queue.get_state(child) for child in children] == ["active", "unknown"]
    assert queue.get_state(parent.id) == "waiting-children"
    assert try_pull(queue) is None
