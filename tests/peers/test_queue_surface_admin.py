"""The client's `Queue` against a real server: control of whole queues, dead letters, limits, figures.

Source: design, "Compatibility"; commands, "Queue control" to "Monitoring and dashboards".
"""

from __future__ import annotations

import pytest
from bunqueue import Queue

from tests.peers.surface import MINUTE_MS, bury, complete, ids_of, pull, try_pull
from tests.process import wait_until

pytestmark = pytest.mark.slow


# control


def test_a_paused_queue_hands_out_nothing_until_it_is_resumed(queue: Queue) -> None:
    queue.pause()
    job = queue.add("n", {})

    assert (queue.is_paused(), try_pull(queue)) == (True, None)
    assert ids_of(queue.get_jobs("paused")) == [job.id]
    queue.resume()

    assert (queue.is_paused(), pull(queue).id) == (False, job.id)


def test_a_pause_holds_for_its_own_queue_only(queue: Queue) -> None:
    queue.pause()

    with Queue(f"{queue.name}-other", connection=queue.connection) as other:
        assert not other.is_paused()


def test_drain_deletes_what_is_queued_and_nothing_else(queue: Queue) -> None:
    queue.add("n", {})
    active = pull(queue)
    dead = queue.add("n", {})
    dead.discard()
    for options in ({}, {"priority": 1}, {"delay": MINUTE_MS}):
        queue.add("n", {}, **options)

    assert queue.drain() == 3
    assert queue.drain() == 0

    counts = {state: count for state, count in queue.get_job_counts().items() if count}
    assert (counts, active.get_state()) == ({"active": 1, "failed": 1}, "active")


def test_drain_frees_unique_keys(queue: Queue) -> None:
    """Those of an extending deduplication too (CD-11)."""
    options = {"deduplication": {"id": "key", "ttl": MINUTE_MS, "extend": True}}
    former = queue.add("n", {}, **options)

    queue.drain()

    assert queue.add("n", {}, **options).id != former.id
    assert queue.count() == 1


def test_obliterate_leaves_nothing(queue: Queue) -> None:
    queue.add("n", {})
    pulled, dead = pull(queue).id, bury(queue)
    waiting = queue.add("n", {}, unique_key="key").id
    queue.set_stall_config({"maxStalls": 9})
    queue.pause()

    queue.obliterate()

    assert [queue.get_state(job_id) for job_id in (pulled, dead, waiting)] == ["unknown"] * 3
    assert set(queue.get_job_counts().values()) == {0}
    assert (queue.is_paused(), queue.get_stall_config()["maxStalls"], queue.get_dlq()) == (False, 3, [])
    assert queue.name not in queue.list_queues()
    assert queue.add("n", {}, unique_key="key").id != waiting


@pytest.mark.parametrize("state", ["completed", "failed"])
def test_clean_deletes_finished_jobs_of_one_state(queue: Queue, state: str) -> None:
    for _ in range(3):
        queue.add("n", {})
        complete(queue)
        bury(queue)
    waiting = queue.add("n", {}).id
    other = "failed" if state == "completed" else "completed"

    assert queue.clean(MINUTE_MS, state=state) == 0
    assert queue.clean(0, limit=1, state=state) == 1
    assert queue.clean(0, state=state) == 2

    counts = {state: count for state, count in queue.get_job_counts().items() if count}
    assert (counts, queue.get_state(waiting)) == ({other: 3, "waiting": 1}, "waiting")


def test_clean_honours_which_queued_state_was_asked_for(queue: Queue) -> None:
    """Not all queued jobs, as the reference does (CD-12)."""
    queue.add_bulk([{"name": "n"}, {"name": "n", "delay": MINUTE_MS}, {"name": "n", "priority": 1}])

    assert queue.clean(0, state="delayed") == 1
    assert queue.get_job_counts() | {"waiting": 1, "prioritized": 1, "delayed": 0} == queue.get_job_counts()
    assert queue.clean(0, limit=0) == 0
    assert queue.clean(0) == 2


# dead letters


def test_dead_letters_are_read_oldest_first_and_as_many_as_asked_for(queue: Queue) -> None:
    ids = [bury(queue) for _ in range(3)]

    assert [letter["id"] for letter in queue.get_dlq()] == ids
    assert [letter["id"] for letter in queue.get_dlq(count=2)] == ids[:2]


def test_retry_dlq_takes_one_some_or_all(queue: Queue) -> None:
    first, second, third, fourth = (bury(queue) for _ in range(4))

    assert queue.retry_dlq(job_id="none such") == 0
    assert queue.retry_dlq(job_id=third) == 1
    assert (queue.get_state(third), queue.get_failed_count()) == ("waiting", 3)
    assert queue.retry_dlq(count=1) == 1
    assert queue.get_state(first) == "waiting"
    assert queue.retry_dlq() == 2
    assert {queue.get_state(job_id) for job_id in (second, fourth)} == {"waiting"}


def test_retry_jobs_brings_back_failed_or_completed_ones(queue: Queue) -> None:
    first, second = bury(queue), bury(queue)
    queue.add("n", {})
    done = complete(queue, 1)

    assert queue.retry_jobs(count=1) == 1
    assert [queue.get_state(job_id) for job_id in (first, second, done)] == ["waiting", "failed", "completed"]
    assert queue.retry_jobs() == 1
    assert queue.retry_jobs("completed") == 1

    assert ids_of(queue.get_waiting()) == [first, second, done]


def test_retry_completed_takes_one_or_all(queue: Queue) -> None:
    done = []
    for _ in range(3):
        queue.add("n", {})
        done.append(complete(queue))

    assert queue.retry_completed("none such") == 0
    assert queue.retry_completed(done[1]) == 1
    assert [queue.get_state(job_id) for job_id in done] == ["completed", "waiting", "completed"]
    assert queue.retry_completed() == 2

    assert queue.get_completed_count() == 0
    assert sorted(pull(queue).id for _ in range(3)) == done


def test_purge_dlq_deletes_them(queue: Queue) -> None:
    ids = [bury(queue) for _ in range(2)]

    assert queue.purge_dlq() == 2

    assert (queue.get_dlq(), queue.get_state(ids[0]), queue.purge_dlq()) == ([], "unknown", 0)


# policies


def test_the_dlq_policy_has_defaults_and_takes_what_is_given(queue: Queue) -> None:
    defaults = queue.get_dlq_config()
    assert defaults == {
        "autoRetry": False, "autoRetryInterval": 3_600_000, "maxAutoRetries": 3, "maxAge": 604_800_000,
        "maxEntries": 10_000,
    }  # fmt: skip

    queue.set_dlq_config({"maxEntries": 2, "maxAge": MINUTE_MS})

    assert queue.get_dlq_config() == defaults | {"maxEntries": 2, "maxAge": MINUTE_MS}
    ids = [bury(queue) for _ in range(3)]
    assert [letter["id"] for letter in queue.get_dlq()] == ids[1:]


def test_the_stall_policy_has_defaults_and_takes_what_is_given(queue: Queue) -> None:
    defaults = queue.get_stall_config()
    assert defaults == {"enabled": True, "stallInterval": 30_000, "maxStalls": 3, "gracePeriod": 5_000}

    queue.set_stall_config({"enabled": False, "stallInterval": 7_000, "gracePeriod": 1_000})

    expected = {"enabled": False, "stallInterval": 7_000, "gracePeriod": 1_000}
    assert queue.get_stall_config() == defaults | expected


# limits


def test_a_rate_limit_holds_until_it_is_removed(queue: Queue) -> None:
    queue.add_bulk([{"name": "n"} for _ in range(6)])

    queue.set_global_rate_limit(2, duration_ms=MINUTE_MS)
    # The client sends no duration, so tokens come back at two a second: only the burst is certain.
    burst = [try_pull(queue) for _ in range(3)]
    queue.set_global_rate_limit(0)

    assert [job is not None for job in burst] == [True, True, False]
    assert try_pull(queue) is None
    queue.remove_global_rate_limit()
    assert sum(try_pull(queue) is not None for _ in range(4)) == 4


def test_a_concurrency_limit_holds_until_a_job_ends_or_it_is_removed(queue: Queue) -> None:
    queue.add_bulk([{"name": "n"} for _ in range(6)])

    queue.set_global_concurrency(2)
    first = pull(queue)
    pull(queue)
    assert try_pull(queue) is None
    queue.move_job_to_completed(first.id, token=first.token)
    pull(queue)
    assert try_pull(queue) is None
    queue.remove_global_concurrency()

    assert sum(try_pull(queue) is not None for _ in range(3)) == 3


# figures


def test_statistics_follow_what_happens(queue: Queue) -> None:
    before = queue.get_stats()

    queue.add_bulk([{"name": "n"}, {"name": "n"}, {"name": "n", "delay": MINUTE_MS}])
    pull(queue)
    bury(queue, priority=1)

    after = queue.get_stats()
    changes = {name: after[name] - before[name] for name in ("waiting", "active", "delayed", "dlq", "failed")}
    assert changes == {"waiting": 1, "active": 1, "delayed": 1, "dlq": 1, "failed": 1}
    assert after["uptime"] >= before["uptime"] > 0
    assert {"completed", "pushPerSec", "pullPerSec"} <= set(after)


def test_metrics_count_what_happened(queue: Queue) -> None:
    before = queue.get_metrics()

    queue.add("n", {})
    complete(queue)
    bury(queue)

    after = queue.get_metrics()
    totals = ("totalPushed", "totalPulled", "totalCompleted", "totalFailed")
    assert {name: after[name] - before[name] for name in totals} == {
        "totalPushed": 2, "totalPulled": 2, "totalCompleted": 1, "totalFailed": 1,
    }  # fmt: skip
    assert after["memoryUsageMb"] > 0


def test_queues_are_listed_once_they_have_got_a_job(queue: Queue) -> None:
    assert queue.name not in queue.list_queues()

    queue.add("n", {})

    wait_until(lambda: queue.name in queue.list_queues(), "the queue is listed")
