"""Leases and stalls: L1, L3, L5 of the field reports."""

from __future__ import annotations

import threading
import time
from collections import Counter

import pytest

from tests.field.closing import check_closing, must_pull, pull
from tests.process import Client, ServerProcess, wait_until


@pytest.mark.slow
def test_l1_work_longer_than_the_lease_is_not_handed_out_again_and_a_delay_alone_does_no_harm(
    server: ServerProcess,
) -> None:
    """celery #5935: a long job, or only a long delay, was given to a second worker."""
    with server.connect() as producer, server.connect() as first, server.connect() as second, server.connect() as third:
        producer.ok("PUSH", queue="q", data=1, jobId="j1", durable=True)
        producer.ok("PUSH", queue="later", data=1, jobId="j2", delay=10_000, durable=True)
        _, token = must_pull(first, lock_ttl=2_000)
        delayed = third.send("PULL", queue="later", timeout=30_000, lockTtl=2_000, owner="w")
        stop = threading.Event()
        found: list[object] = []

        def poll() -> None:
            while not stop.is_set():
                found.append(pull(second, timeout=1_000))

        polling = threading.Thread(target=poll)
        polling.start()
        for _ in range(40):
            time.sleep(0.5)
            assert first.ok("JobHeartbeatB", ids=["j1"], tokens=[token])["data"]["count"] == 1
        stop.set()
        polling.join()
        first.ok("ACK", id="j1", token=token)

        assert set(found) == {None}
        job = producer.ok("GetJob", id="j1")["job"]
        assert (job["attempts"], job["stallCount"]) == (0, 0)
        late = third.wait(delayed)
        waited = late["job"]["startedAt"] - late["job"]["createdAt"]
        assert 10_000 <= waited < 13_000
        assert late["job"]["attempts"] == 0
        third.ok("ACK", id="j2", token=late["token"])
    check_closing(server, ["q", "later"], ["j1", "j2"])


@pytest.mark.slow
def test_l3_no_job_is_taken_from_a_quick_worker(server: ServerProcess) -> None:
    """saq #277: the sweeper caught jobs between claim and start. 2,000 jobs, and a subscriber to what happens."""
    total = 2_000
    told: Counter[str] = Counter()
    runs: list[tuple[str, int]] = []
    stop = threading.Event()

    def work() -> None:
        with server.connect() as client:
            while not stop.is_set():
                pulled = pull(client, timeout=1_000, lock_ttl=1_000)
                if pulled is not None:
                    runs.append((pulled[0]["id"], pulled[0]["attempts"]))
                    client.ok("ACK", id=pulled[0]["id"], token=pulled[1])

    def listen() -> None:
        while sum(told.values()) < 3 * total:
            frame = subscriber.receive()
            assert frame is not None
            told[frame["event"]["eventType"]] += 1

    workers = [threading.Thread(target=work) for _ in range(20)]
    for worker in workers:
        worker.start()
    with server.connect() as producer, server.connect() as subscriber:
        subscriber.ok("SubscribeEvents", queue="q")
        listener = threading.Thread(target=listen)
        listener.start()
        ids = []
        for _ in range(total // 50):
            reply = producer.ok("PUSHB", queue="q", jobs=[{"data": 1, "name": "n"} for _ in range(50)])
            ids += reply["ids"]
            time.sleep(0.1)
        wait_until(lambda: producer.ok("GetJobCounts", queue="q")["counts"]["completed"] == total, "all are completed")
        stop.set()
        for worker in [*workers, listener]:
            worker.join()

        assert told == dict.fromkeys(("pushed", "pulled", "completed"), total)
        assert sorted(runs) == sorted((job_id, 0) for job_id in ids)
        assert producer.ok("GetJobCounts", queue="q")["counts"]["failed"] == 0
    check_closing(server, ["q"], ids)


@pytest.mark.slow
@pytest.mark.parametrize("has_beaten", [False, True])
def test_l5_a_silent_worker_that_leaves_takes_nothing_from_the_next_one(
    server: ServerProcess, has_beaten: bool
) -> None:
    """bunqueue 2.9.7: the first worker's disconnect gave away the second worker's running delivery."""
    with server.connect() as producer, server.connect() as second, server.connect() as third:
        producer.ok("PUSH", queue="q", data=1, jobId="j", durable=True, maxAttempts=3, backoff=500)
        with server.connect() as first:
            _, token = must_pull(first, lock_ttl=2_000)
            if has_beaten:
                first.ok("JobHeartbeat", id="j", token=token)
            job, second_token = must_pull(second, lock_ttl=30_000)
            assert job["attempts"] == 1
        assert pull(third, timeout=5_000) is None
        assert_refused(producer, token)
        second.ok("ACK", id="j", token=second_token)

        job = producer.ok("GetJob", id="j")["job"]
        assert (job["state"], job["attempts"]) == ("completed", 1)
        assert producer.ok("GetJobCounts", queue="q")["counts"]["completed"] == 1
    check_closing(server, ["q"], ["j"])


def assert_refused(client: Client, token: str) -> None:
    assert client.error("ACK", id="j", token=token) == "Invalid or expired lock token for job j"
