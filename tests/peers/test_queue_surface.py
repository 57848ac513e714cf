"""The client's `Queue` against a real server: connecting, pushing, finding, listing, counting, waiting.

Every public method is called with every argument it has, and the check fails should the server ignore one of them.
That none is forgotten is checked by tests/contract/test_client_surface.py.

Source: design, "Compatibility".
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from bunqueue import CommandError, CommandTimeoutError, Job, Queue

from tests.peers.surface import MINUTE_MS, bury, complete, ids_of, pull
from tests.process import ServerProcess, wait_until

pytestmark = pytest.mark.slow

LONG_MS = 10_000
"""A wait that must not be sat out; half of it is more than a busy machine needs to answer."""


# connecting


def test_a_queue_is_ready_answers_pings_and_closes(shared_server: ServerProcess) -> None:
    queue = Queue("conn", host="127.0.0.1", port=shared_server.tcp_port)

    queue.wait_until_ready()
    assert queue.ping() is True
    queue.close()

    assert queue.ping() is False


def test_disconnect_closes_and_releases_what_the_connection_held(queue: Queue, shared_server: ServerProcess) -> None:
    other = Queue(queue.name, host="127.0.0.1", port=shared_server.tcp_port)
    job = queue.add("n", {})
    assert pull(other).id == job.id

    other.disconnect()

    wait_until(lambda: queue.get_state(job.id) == "waiting", "the job is released")


def test_a_prefix_makes_another_queue(shared_server: ServerProcess, queue: Queue) -> None:
    with Queue(queue.name, host="127.0.0.1", port=shared_server.tcp_port, prefix_key="team:") as prefixed:
        prefixed.add("n", {})

        assert (prefixed.count(), queue.count()) == (1, 0)
        assert f"team:{queue.name}" in queue.list_queues()


# pushing


def test_add_stores_name_data_and_options(queue: Queue) -> None:
    added = queue.add("send", {"to": "a"}, priority=3, tags=["x"], attempts=7)

    job = queue.get_job(added.id)

    assert job is not None
    assert (job.name, job.data, job.queue) == ("send", {"name": "send", "to": "a"}, queue.name)
    assert (job.priority, job.tags, job.max_attempts) == (3, ["x"], 7)


def test_add_with_one_custom_id_or_unique_key_twice_gives_the_same_job(queue: Queue) -> None:
    first = queue.add("n", {}, job_id=f"{queue.name}-id")
    second = queue.add("n", {}, deduplication={"id": "key"})

    assert queue.add("n", {}, job_id=first.id).id == first.id == f"{queue.name}-id"
    assert queue.add("n", {}, deduplication={"id": "key"}).id == second.id
    assert queue.count() == 2


def test_add_bulk_keeps_order_and_gives_each_entry_its_own_options(queue: Queue) -> None:
    ids = queue.add_bulk(
        [
            {"name": "a", "data": {"i": 0}},
            {"name": "b", "data": {"i": 1}, "delay": MINUTE_MS},
            {"name": "c", "data": {"i": 2}, "priority": 4, "job_id": f"{queue.name}-mine"},
        ]
    )

    jobs = [queue.get_job(job_id) for job_id in ids]

    assert [(job.name, job.data["i"], job.state) for job in jobs if job] == [
        ("a", 0, "waiting"),
        ("b", 1, "delayed"),
        ("c", 2, "prioritized"),
    ]
    assert ids[2] == f"{queue.name}-mine"


# finding one


def test_jobs_are_found_by_id_and_by_custom_id(queue: Queue) -> None:
    custom_id = f"{queue.name}-mine"
    queue.add("n", {"n": 1}, job_id=custom_id)

    found, by_custom_id = queue.get_job(custom_id), queue.get_job_by_custom_id(custom_id)

    assert found is not None
    assert by_custom_id is not None
    assert (found.id, found.custom_id, found.data["n"]) == (custom_id, custom_id, 1)
    assert (by_custom_id.id, by_custom_id.data["n"]) == (custom_id, 1)
    assert queue.get_deduplication_job_id(custom_id) == custom_id


def test_unknown_jobs_are_none_and_their_state_is_unknown(queue: Queue) -> None:
    assert queue.get_job("none such") is None
    assert queue.get_job_by_custom_id("none such") is None
    assert queue.get_deduplication_job_id("none such") is None
    assert queue.get_state("none such") == "unknown"
    assert queue.get_result("none such") is None


# listing and counting

Place = Callable[[Queue], str]


def _waiting(queue: Queue) -> str:
    return queue.add("n", {}).id


def _prioritized(queue: Queue) -> str:
    return queue.add("n", {}, priority=1).id


def _delayed(queue: Queue) -> str:
    return queue.add("n", {}, delay=MINUTE_MS).id


def _active(queue: Queue) -> str:
    queue.add("n", {})
    return pull(queue).id


def _completed(queue: Queue) -> str:
    queue.add("n", {})
    return complete(queue)


def _waiting_children(queue: Queue) -> str:
    with Queue(f"{queue.name}-children", connection=queue.connection) as children:
        child = children.add("child", {})
    return queue.add("n", {}, depends_on=[child.id]).id


PLACES: dict[str, tuple[Place, Callable[..., list[Job]], Callable[[Queue], int]]] = {
    "waiting": (_waiting, Queue.get_waiting, Queue.get_waiting_count),
    "prioritized": (_prioritized, Queue.get_prioritized, Queue.get_prioritized_count),
    "delayed": (_delayed, Queue.get_delayed, Queue.get_delayed_count),
    "active": (_active, Queue.get_active, Queue.get_active_count),
    "completed": (_completed, Queue.get_completed, Queue.get_completed_count),
    "failed": (bury, Queue.get_failed, Queue.get_failed_count),
    "waiting-children": (_waiting_children, Queue.get_waiting_children, Queue.get_waiting_children_count),
}


@pytest.mark.parametrize("state", PLACES)
def test_each_state_has_a_list_that_pages_and_a_count(queue: Queue, state: str) -> None:
    place, listed, counted = PLACES[state]
    ids = [place(queue) for _ in range(3)]
    other = "delayed" if state != "delayed" else "waiting"
    PLACES[other][0](queue)

    assert ids_of(listed(queue)) == ids
    assert ids_of(listed(queue, 1)) == ids[1:]
    assert ids_of(listed(queue, 1, 2)) == ids[1:2]
    assert {job.state for job in listed(queue)} == {state}
    assert counted(queue) == 3
    assert [queue.get_state(job_id) for job_id in ids] == [state] * 3


def test_get_jobs_lists_one_state_several_or_all_oldest_first(queue: Queue) -> None:
    delayed, completed, waiting = _delayed(queue), _completed(queue), _waiting(queue)
    in_order = [delayed, completed, waiting]

    assert ids_of(queue.get_jobs()) == in_order
    assert ids_of(queue.get_jobs("delayed")) == [delayed]
    assert ids_of(queue.get_jobs(["waiting", "completed"])) == [completed, waiting]
    assert ids_of(queue.get_jobs(["waiting", "completed"], start=1)) == [waiting]
    assert ids_of(queue.get_jobs(start=1, end=2)) == [completed]
    assert queue.get_jobs(start=2, end=2) == []


def test_a_job_just_pushed_is_listed(queue: Queue) -> None:
    """No list lags behind a push that was answered (CD-5)."""
    for i in range(20):
        queue.add("n", {"i": i})

        assert len(queue.get_waiting()) == i + 1


def test_counts_of_a_queue(queue: Queue) -> None:
    for place in (_waiting_children, _active, _completed, bury, _prioritized, _delayed, _delayed, _waiting):
        place(queue)

    assert queue.get_job_counts() == {
        "waiting": 1, "prioritized": 1, "delayed": 2, "active": 1, "completed": 1, "failed": 1,
        "waiting-children": 1, "paused": 0,
    }  # fmt: skip
    assert queue.count() == 4


def test_counts_per_priority(queue: Queue) -> None:
    for options in ({}, {"priority": 2}, {"priority": 2, "delay": MINUTE_MS}, {"priority": -1}):
        queue.add("n", {}, **options)

    assert queue.get_counts_per_priority() == {"0": 1, "2": 2, "-1": 1}


# results, progress, waiting


@pytest.mark.parametrize("result", [{"a": [1, None, "ü"]}, 0, False, "", []], ids=repr)
def test_a_result_comes_back_as_it_was_given(queue: Queue, result: Any) -> None:
    queue.add("n", {})

    job_id = complete(queue, result)

    assert queue.get_result(job_id) == result


def test_progress_with_its_message(queue: Queue) -> None:
    queue.add("n", {})
    job = pull(queue)

    queue.update_job_progress(job.id, 40)
    assert queue.get_progress(job.id) == {"progress": 40, "message": None}
    queue.update_job_progress(job.id, 60, "more than half")

    assert queue.get_progress(job.id) == {"progress": 60, "message": "more than half"}


@pytest.mark.parametrize("wait", [Queue.wait_for_job, Queue.wait_job_until_finished])
def test_waiting_for_a_job_returns_its_result(
    queue: Queue, shared_server: ServerProcess, wait: Callable[[Queue, str], Any]
) -> None:
    job = queue.add("n", {})
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(wait(queue, job.id)))
    thread.start()

    with Queue(queue.name, host="127.0.0.1", port=shared_server.tcp_port) as worker:
        complete(worker, {"sum": 3})
    thread.join(30)

    assert results == [{"sum": 3}]
    assert wait(queue, job.id) == {"sum": 3}


def test_waiting_ends_with_the_timeout_that_was_asked_for(queue: Queue) -> None:
    job = queue.add("n", {})

    with pytest.raises(CommandTimeoutError, match="timed out after 20ms"):
        queue.wait_for_job(job.id, 20)
    with pytest.raises(CommandTimeoutError, match="timed out after 30ms"):
        queue.wait_job_until_finished(job.id, ttl_ms=30)
    with pytest.raises(CommandError, match="Job not found"):
        queue.wait_for_job("none such")


def test_waiting_for_a_job_that_has_failed_says_so_at_once(queue: Queue) -> None:
    """Not after the full timeout (CD-9)."""
    job_id = bury(queue)
    began = time.monotonic()

    with pytest.raises(CommandError, match="failed before completion"):
        queue.wait_for_job(job_id, LONG_MS)

    assert time.monotonic() - began < LONG_MS / 2_000


def test_waiting_for_a_job_that_fails_meanwhile_ends_with_the_failure(
    queue: Queue, shared_server: ServerProcess
) -> None:
    """Not after the full timeout (CD-9)."""
    job = queue.add("n", {}, attempts=1)
    outcomes: list[str] = []

    def wait() -> None:
        try:
            queue.wait_for_job(job.id, LONG_MS)
        except CommandError as error:
            outcomes.append(str(error))

    thread = threading.Thread(target=wait)
    thread.start()
    with Queue(queue.name, host="127.0.0.1", port=shared_server.tcp_port) as worker:
        pulled = pull(worker)
        worker.move_job_to_failed(pulled.id, "boom", pulled.token)
    began = time.monotonic()
    thread.join(LONG_MS / 1_000 + 30)

    assert outcomes == [f"job {job.id} failed before completion"]
    assert time.monotonic() - began < LONG_MS / 2_000
