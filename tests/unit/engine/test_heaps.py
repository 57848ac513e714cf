"""Orders of jobs, as a pull sees them: the heaps alone, and what they make of pushes."""

import random
from typing import Any

import pytest

from bunqueue_trio.engine import heaps
from bunqueue_trio.model.job import Job, JobRecord, JobState
from tests.engine_harness import EngineHarness, raw


def job(seq: int, **fields: Any) -> Job:
    record = JobRecord(str(seq), "q", raw(1), 0.0, fields.pop("run_at", 0.0), 0.0, **fields)
    return Job(record, JobState.READY, seq)


def test_ready_order_is_priority_then_run_time_then_push():
    jobs = [job(1), job(2, priority=5), job(3, run_at=-1.0), job(4, priority=-1), job(5)]
    heap: list[heaps.Entry] = []
    for one in random.Random(3).sample(jobs, len(jobs)):
        heaps.push_ready(heap, one)

    order = []
    while (top := heaps.first(heap)) is not None:
        order.append(top.seq)
        top.place = None

    assert order == [2, 3, 1, 5, 4]


def test_a_stale_entry_is_dropped_when_it_surfaces():
    heap: list[heaps.Entry] = []
    first, second = job(1), job(2)
    heaps.push_ready(heap, first)
    heaps.push_ready(heap, second)

    first.place = None

    assert heaps.first(heap) is second
    assert len(heap) == 1


def test_an_empty_heap_has_no_first():
    assert heaps.first([]) is None


def test_a_job_pushed_twice_counts_once():
    heap: list[heaps.Entry] = []
    one = job(1)
    heaps.push_delayed(heap, one)
    heaps.push_delayed(heap, one)

    assert heaps.first(heap) is one
    one.place = None
    assert heaps.first(heap) is None


@pytest.mark.parametrize(("live", "left"), [(400, 400), (600, 1_200)])
def test_stale_entries_go_when_they_outnumber_the_others(live, left):
    heap: list[heaps.Entry] = []
    for seq in range(1_200):
        one = job(seq)
        heaps.push_ready(heap, one)
        if seq >= live:
            one.place = None

    heaps.compact(heap, live)

    assert len(heap) == left
    assert heaps.first(heap).seq == 0


def test_a_small_heap_is_not_rebuilt():
    heap: list[heaps.Entry] = []
    heaps.push_ready(heap, job(1))
    heap[0][-1].place = None

    heaps.compact(heap, 0)

    assert len(heap) == 1


# through the engine


def order_of(pushes: list[dict[str, Any]]) -> list[str]:
    harness = EngineHarness()
    for number, options in enumerate(pushes):
        harness.push(**{"jobId": f"{number}", **options})
    return harness.pull_all()


def test_equal_jobs_come_in_push_order_whatever_their_ids():
    assert order_of([{"jobId": name} for name in ("z", "m", "b", "a")]) == ["z", "m", "b", "a"]


def test_push_order_holds_within_a_batch():
    harness = EngineHarness()
    ids = harness.push_many("q", [{"customId": name} for name in ("9", "5", "7")] + [{}, {}])

    assert harness.pull_all() == ids


def test_higher_priority_first_and_fifo_within():
    pushes = [{"priority": p} for p in (0, 10, -5, 10, 1)]

    assert order_of(pushes) == ["1", "3", "4", "0", "2"]


def test_lifo_jobs_come_newest_first_after_the_others():
    assert order_of([{}, {"lifo": True}, {}, {"lifo": True}]) == ["0", "2", "3", "1"]


def test_a_lifo_job_of_higher_priority_still_comes_first():
    assert order_of([{}, {"lifo": True, "priority": 1}]) == ["1", "0"]


def test_an_older_time_stamp_sorts_first():
    harness = EngineHarness()
    harness.push(jobId="new")
    harness.push(jobId="old", timestamp=harness.now.wall_ms - 5_000)

    assert harness.pull_all() == ["old", "new"]


def test_a_matured_job_sorts_by_its_run_time():
    harness = EngineHarness()
    harness.push(jobId="late", delay=200)
    harness.push(jobId="soon", delay=100)
    harness.clock.advance(150)
    harness.push(jobId="now")
    harness.clock.advance(100)

    assert harness.pull_all() == ["soon", "now", "late"]


def test_a_matured_job_of_higher_priority_overtakes():
    harness = EngineHarness()
    harness.push(jobId="plain")
    harness.push(jobId="urgent", priority=1, delay=100)

    assert harness.pull_id() == "plain"
    harness.push(jobId="plain2")
    harness.clock.advance(100)

    assert harness.pull_all() == ["urgent", "plain2"]


def test_a_retry_sorts_by_its_new_run_time():
    harness = EngineHarness()
    harness.push(jobId="a", backoff=0)
    pulled = harness.pull()
    harness.push(jobId="b")
    harness.clock.advance(10)
    harness.fail(*pulled)

    assert harness.pull_all() == ["b", "a"]


def test_a_released_job_returns_to_its_old_place():
    harness = EngineHarness()
    harness.connect(2)
    for name in "abc":
        harness.push(jobId=name)
        harness.clock.advance(1)
    harness.pull(connection=2)

    harness.disconnect(2)

    assert harness.pull_all() == ["a", "b", "c"]
