"""Slots, tokens and sleeping queues: Q1 and Q2 of the field reports, and the limits of P1."""

from __future__ import annotations

import threading
import time
from itertools import pairwise
from typing import Any

import pytest

from tests.field.closing import check_closing, must_pull, pull
from tests.process import Client, ServerProcess, wait_until

LATER = 3_600_000
OPTIONS: dict[str, dict[str, Any]] = {
    "ACK": {},
    "FAIL with retry": {"backoff": LATER},
    "FAIL to the dead letters": {"maxAttempts": 1},
    "lease expiry": {},
    "socket loss": {},
    "MoveToDelayed": {},
    "MoveToWait": {},
    "Discard": {},
    "timeout": {"timeout": 200, "backoff": LATER},
    "kill": {},
}


def leave(server: ServerProcess, client: Client, how: str) -> tuple[Client, str]:
    """Pull a job and let it leave the active state in that way. Returns a client to go on with, and the job's id."""
    worker = server.connect() if how == "socket loss" else client
    job, token = must_pull(worker, lock_ttl=200 if how == "lease expiry" else 60_000)
    job_id = job["id"]
    if how == "ACK":
        client.ok("ACK", id=job_id, token=token)
    elif how.startswith("FAIL"):
        client.ok("FAIL", id=job_id, token=token)
    elif how == "MoveToDelayed":
        client.ok("MoveToDelayed", id=job_id, delay=LATER)
    elif how in ("MoveToWait", "Discard"):
        client.ok(how, id=job_id)
    elif how == "socket loss":
        worker.reset()
    elif how == "kill":
        client.ok("PUSH", queue="q", data=1, jobId=f"mark-{job_id}", durable=True)  # its commit carries the pull
        client.close()
        server.crash_and_restart()
        client = server.connect()
    wait_until(lambda: client.state(job_id) != "active", f"the job is no longer active: {how}")
    return client, job_id


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("how", OPTIONS)
def test_q1_every_way_out_gives_the_slot_back(server: ServerProcess, how: str) -> None:
    """bunqueue 2.8.14 and 2.8.32: after a few such exits the queue stood still with no error."""
    client = server.connect()
    client.ok("SetConcurrency", queue="q", limit=2)
    ids = []
    for _ in range(5):
        ids.append(client.ok("PUSH", queue="q", data=1, durable=True, **{"maxAttempts": 20, **OPTIONS[how]})["id"])
        client, left = leave(server, client, how)
        if how == "kill":
            ids.append(f"mark-{left}")
    ids += client.ok("PUSHB", queue="q", jobs=[{"data": 1} for _ in range(3)])["ids"]

    for _ in range(2):
        must_pull(client)
    assert pull(client) is None
    client.close()
    check_closing(server, ["q"], set(ids))


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.long
def test_q2_a_limited_queue_serves_evenly_and_a_silent_one_wakes_by_itself(server: ServerProcess) -> None:
    """bull #1110: a limited or delayed queue stopped for good after an idle stretch. Shortened: 100 jobs, 15 s."""
    stop = threading.Event()
    served: list[tuple[float, str]] = []

    def work() -> None:
        with server.connect() as worker:
            while not stop.is_set():
                reply = worker.ok("PULL", queue="q", owner="w", timeout=3_000, lockTtl=60_000)
                if reply["job"] is not None:
                    served.append((time.monotonic(), reply["job"]["id"]))
                    worker.ok("ACK", id=reply["job"]["id"], token=reply["token"])

    def wait_served(count: int) -> None:
        wait_until(lambda: len(served) == count, f"{count} jobs are served")

    workers = [threading.Thread(target=work) for _ in range(8)]
    with server.connect() as client:
        client.ok("RateLimit", queue="q", limit=10, duration=1_000)
        ids = client.ok("PUSHB", queue="q", jobs=[{"data": 1} for _ in range(80)])["ids"]
        ids += client.ok("PUSHB", queue="q", jobs=[{"data": 1, "delay": 4_000} for _ in range(20)])["ids"]
        began = time.monotonic()
        for worker in workers:
            worker.start()
        try:
            wait_served(100)
            times = [began, *(moment for moment, _ in served)]
            assert 8.5 < times[-1] - began < 15  # ten at once, ninety at ten a second
            assert max(after - before for before, after in pairwise(times)) < 2

            time.sleep(15)
            asked = time.monotonic()
            ids.append(client.ok("PUSH", queue="q", data=1, delay=6_000)["id"])
            wait_served(101)
            assert 5.9 < served[-1][0] - asked < 7

            client.ok("RateLimit", queue="q", limit=1, duration=LATER)
            ids += client.ok("PUSHB", queue="q", jobs=[{"data": 1} for _ in range(8)])["ids"]
            wait_served(102)
            time.sleep(1)
            assert len(served) == 102
            client.ok("RateLimitClear", queue="q")
            cleared = time.monotonic()
            wait_served(109)
            assert served[-1][0] - cleared < 1.5  # 0.3 s is asked for on a quiet machine; a poll ends after 3 s

            client.ok("RateLimit", queue="q", limit=1, duration=LATER, ttl=4_000)
            limited = time.monotonic()
            ids += client.ok("PUSHB", queue="q", jobs=[{"data": 1} for _ in range(3)])["ids"]
            wait_served(112)
            assert 3.9 < served[-1][0] - limited < 8
        finally:
            stop.set()
            for worker in workers:
                worker.join()
    assert sorted(job_id for _, job_id in served) == sorted(ids)
    check_closing(server, ["q"], ids)


@pytest.mark.slow
def test_p1_limits_hold_after_a_kill_and_so_does_their_undoing(server: ServerProcess) -> None:
    """bunqueue #100: limits fell back to the default. The ttl goes on with its remaining time."""
    ttl_s = 20

    def pull_and_ack() -> int:
        pulled = client.ok("PULLB", queue="q", count=20, owner="w", lockTtl=60_000)
        client.ok("ACKB", ids=[job["id"] for job in pulled["jobs"]], tokens=pulled["tokens"])
        return len(pulled["jobs"])

    with server.connect() as client:
        ids = client.ok("PUSHB", queue="q", jobs=[{"data": 1, "durable": True} for _ in range(20)])["ids"]
        client.ok("SetConcurrency", queue="q", limit=3)
        client.ok("RateLimit", queue="q", limit=5, duration=LATER, ttl=ttl_s * 1_000)
        limited = time.monotonic()
        server.kill()
    server.start()
    with server.connect() as client:
        assert [pull_and_ack() for _ in range(3)] == [3, 2, 0]
        job, token = must_pull(client, timeout=60_000)
        assert ttl_s - 0.1 < time.monotonic() - limited < ttl_s + 4
        client.ok("ACK", id=job["id"], token=token)
        assert [pull_and_ack() for _ in range(2)] == [3, 3]
        client.ok("RateLimit", queue="q", limit=1, duration=LATER)
        client.ok("ClearConcurrency", queue="q")
        client.ok("RateLimitClear", queue="q")
        server.kill()
    server.start()
    with server.connect() as client:
        assert pull_and_ack() == 8
    check_closing(server, ["q"], ids)
