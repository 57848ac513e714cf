"""The client's `Queue` against a real server: webhooks and workers.

Source: design, "Compatibility"; scheduling and flows, "Webhooks" and "Worker registry".
"""

from __future__ import annotations

import pytest
from bunqueue import Queue

pytestmark = pytest.mark.slow

URL = "https://example.com/hook"


def test_a_webhook_is_listed_until_it_is_removed(queue: Queue) -> None:
    webhook_id = queue.add_webhook(URL, ["job.failed"], queue=queue.name, secret="s3cret")
    assert webhook_id is not None

    [listed] = [hook for hook in queue.list_webhooks() if hook["id"] == webhook_id]
    queue.remove_webhook(webhook_id)

    assert (listed["url"], listed["events"], listed["queue"]) == (URL, ["job.failed"], queue.name)
    assert "secret" not in listed
    assert webhook_id not in [hook["id"] for hook in queue.list_webhooks()]


def test_a_webhook_can_be_switched_off_and_on(queue: Queue) -> None:
    webhook_id = queue.add_webhook(URL, ["job.failed"], queue=queue.name)
    assert webhook_id is not None
    shown = []

    for enabled in (False, True):
        queue.set_webhook_enabled(webhook_id, enabled)
        shown += [hook["enabled"] for hook in queue.list_webhooks() if hook["id"] == webhook_id]
    queue.remove_webhook(webhook_id)

    assert shown == [False, True]


def test_a_worker_is_listed_until_it_is_withdrawn(queue: Queue) -> None:
    worker_id = f"worker-of-{queue.name}"
    queue.connection.call({"cmd": "RegisterWorker", "name": "w", "queues": [queue.name], "workerId": worker_id})

    [worker] = [worker for worker in queue.get_workers() if worker["id"] == worker_id]
    count = queue.get_workers_count()
    queue.connection.call({"cmd": "UnregisterWorker", "workerId": worker_id})

    assert (worker["status"], worker["queues"]) == ("active", [queue.name])
    assert queue.get_workers_count() == count - 1
