"""The published client's schedulers: every method with every argument it has."""

from __future__ import annotations

import pytest
from bunqueue import Queue

from tests.peers.surface import pull
from tests.process import wait_until

pytestmark = pytest.mark.slow
HOUR_MS = 3_600_000


def test_a_scheduler_with_everything_the_client_can_say(queue: Queue) -> None:
    repeat = {"every": HOUR_MS, "tz": "Europe/Rome", "immediately": True, "limit": 5, "prevent_overlap": True}
    template = {
        "name": "report",
        "data": {"n": 1},
        "opts": {"priority": 3, "attempts": 7, "unique_key": f"key {queue.name}", "remove_on_complete": True},
    }
    queue.upsert_job_scheduler(f"s {queue.name}", repeat=repeat, template=template)

    wait_until(queue.count, "the first run")
    job = pull(queue)
    assert job.data == {"name": "report", "n": 1}
    shown = queue.connection.call({"cmd": "GetJob", "id": job.id})["job"]
    assert (shown["priority"], shown["maxAttempts"], shown["uniqueKey"]) == (3, 7, f"key {queue.name}")
    assert shown["removeOnComplete"] is True
    scheduler = queue.get_job_scheduler(f"s {queue.name}")
    assert scheduler is not None
    assert (scheduler["repeatEvery"], scheduler["executions"], scheduler["maxLimit"]) == (HOUR_MS, 1, 5)
    assert scheduler["timezone"] == "Europe/Rome"


def test_shorthands_lists_and_removal(queue: Queue) -> None:
    queue.add_cron(name=f"c {queue.name}", schedule="0 9 * * *", data={"a": 1}, tz="Asia/Tokyo")
    queue.every(name=f"e {queue.name}", interval_ms=200, data={"b": 2})

    listed = queue.get_job_schedulers()
    assert [(one["name"], one["schedule"], one["repeatEvery"]) for one in listed] == [
        (f"c {queue.name}", "0 9 * * *", None),
        (f"e {queue.name}", None, 200),
    ]
    assert queue.get_job_schedulers_count() == 2
    wait_until(queue.count, "a run of the interval")
    assert pull(queue).data == {"name": f"e {queue.name}", "b": 2}

    queue.remove_job_scheduler(scheduler_id=f"e {queue.name}")

    assert queue.get_job_scheduler(scheduler_id=f"e {queue.name}") is None
    assert queue.get_job_schedulers_count() == 1
