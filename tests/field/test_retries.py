"""Retries and backoff: R1, R2, R4 of the field reports."""

from __future__ import annotations

import math
import time

import pytest

from tests.field.closing import check_closing, dead_letters, must_pull, pull, work_off
from tests.process import ServerProcess


@pytest.mark.slow
def test_r1_a_job_that_kills_its_worker_is_not_delivered_for_ever(server: ServerProcess) -> None:
    """dramatiq #213: retry limits counted only clean failures."""
    with server.connect() as producer:
        producer.ok("PUSH", queue="q", data=1, jobId="deadly", durable=True, maxAttempts=3, backoff=200)
        deliveries = []
        for _ in range(20):
            victim = server.connect()
            pulled = pull(victim, timeout=500)
            victim.reset()
            if pulled is not None:
                deliveries.append(pulled[0]["attempts"])
            producer.ok("PUSH", queue="q", data=1, jobId="other")
            producer.ok("Ping")
            if producer.state("deadly") == "failed":
                break

        assert deliveries == [0, 1, 2]
        assert work_off(producer) == ["other"]
        assert pull(producer, timeout=2_000) is None
        assert producer.ok("Dlq", queue="q")["jobs"][0]["attempts"] == 3
    check_closing(server, ["q"], ["deadly", "other"])
    entry = dead_letters(server)["deadly"]
    assert entry["reason"] == "worker_lost"
    assert "Connection lost" in entry["error"]


@pytest.mark.slow
def test_r1_a_job_that_kills_the_server_is_not_delivered_for_ever(server: ServerProcess) -> None:
    """The same with the server killed each time: at most ``maxStalls`` deliveries."""
    with server.connect() as producer:
        producer.ok("PUSH", queue="q", data=1, jobId="deadly", durable=True, maxAttempts=20, backoff=100)
        producer.ok("PUSH", queue="calm", data=1, jobId="other", durable=True)
    deliveries = []
    for _ in range(5):
        with server.connect() as victim:
            pulled = pull(victim, timeout=3_000)
            if pulled is None:
                break
            deliveries.append(pulled[0]["attempts"])
            victim.ok("PUSH", queue="calm", data=1, durable=True, jobId="other")  # its commit carries the pull
            victim.ok("PUSH", queue="calm", data=1, durable=True, jobId=f"mark{len(deliveries)}")
            server.crash_and_restart()

    assert deliveries == [0, 1, 2]
    with server.connect() as client:
        assert client.state("deadly") == "failed"
        assert work_off(client, "calm") == ["other", "mark1", "mark2", "mark3"]
    check_closing(server, ["q", "calm"], ["deadly", "other", "mark1", "mark2", "mark3"])
    entry = dead_letters(server)["deadly"]
    assert entry["reason"] == "stalled"
    assert entry["error"] == "Job stalled 3 times (recovered at startup)"


@pytest.mark.slow
def test_r2_a_lost_lease_costs_one_attempt_and_no_more(server: ServerProcess) -> None:
    """faktory #409: a job whose reservation ran out was dead although it had retries left."""
    with server.connect() as producer, server.connect() as silent, server.connect() as waiting:
        producer.ok("SetStallConfig", queue="q", config={"maxStalls": 5})
        producer.ok("PUSH", queue="q", data=1, jobId="j", durable=True, maxAttempts=5, backoff=60_000)
        for attempts in range(5):
            client = silent if attempts % 2 == 0 else waiting
            job, _ = must_pull(client, timeout=20_000, lock_ttl=1_500)
            # Delivered again at once, without its backoff of a minute.
            assert (job["attempts"], job["stallCount"]) == (attempts, attempts)
        assert pull(producer, timeout=8_000) is None
        assert producer.state("j") == "failed"
        assert producer.ok("Dlq", queue="q")["jobs"][0]["attempts"] == 5
    check_closing(server, ["q"], ["j"])


@pytest.mark.slow
def test_r4_the_cap_of_a_backoff_is_kept(server: ServerProcess) -> None:
    """bunqueue 2.9.7: ``maxDelay`` was dropped without a word."""
    backoff = {"type": "exponential", "delay": 500, "maxDelay": 1_000}
    with server.connect() as client:
        client.ok("PUSH", queue="q", data=1, jobId="j", durable=True, maxAttempts=6, backoff=backoff)
        assert client.ok("GetJob", id="j")["job"]["backoffConfig"] == backoff
        for attempts in range(5):
            job, token = must_pull(client)
            assert job["attempts"] == attempts
            client.ok("FAIL", id="j", token=token, error="again")
            failed_at = time.monotonic()
            job = client.ok("GetJob", id="j")["job"]
            gap = job["runAt"] - [entry for entry in job["timeline"] if entry["state"] == "failed"][-1]["timestamp"]
            assert 0 < gap <= 1_300
            assert job["state"] == "delayed"
            assert pull(client) is None
        _, token = must_pull(client)
        assert time.monotonic() - failed_at > 0.2
        client.ok("ACK", id="j", token=token)
    check_closing(server, ["q"], ["j"])


@pytest.mark.slow
def test_r4_null_is_the_default_and_a_bad_cap_stores_nothing(server: ServerProcess) -> None:
    """bunqueue 2.9.7: ``null`` crashed; others capped or ignored what they had accepted."""
    with server.connect() as client:
        client.ok("PUSH", queue="q", data=1, jobId="null", backoff=None)
        job = client.ok("GetJob", id="null")["job"]
        assert (job["backoff"], job["backoffConfig"]) == (1_000, None)
        for bad in (-1, 86_400_001, math.nan, "x"):
            backoff = {"type": "fixed", "delay": 10, "maxDelay": bad}
            assert client.error("PUSH", queue="q", data=1, jobId="bad", backoff=backoff).startswith(
                "backoff.maxDelay must be"
            )
            assert client.state("bad") == "unknown"
        assert client.ok("Count", queue="q")["count"] == 1
        client.ok(
            "PUSH", queue="q", data=1, jobId="bad", backoff={"type": "fixed", "delay": 10, "maxDelay": 86_400_000}
        )
    check_closing(server, ["q"], ["null", "bad"])


@pytest.mark.slow
def test_r4_a_burst_of_failures_does_not_come_back_as_one_spike(server: ServerProcess) -> None:
    """The ready times of 200 jobs that fail together are spread out."""
    with server.connect() as client:
        ids = client.ok("PUSHB", queue="q", jobs=[{"data": i, "backoff": 60_000} for i in range(200)])["ids"]
        pulled = client.ok("PULLB", queue="q", count=200, owner="w", lockTtl=60_000)
        fails = [
            {"cmd": "FAIL", "id": job["id"], "token": token}
            for job, token in zip(pulled["jobs"], pulled["tokens"], strict=True)
        ]
        assert all(reply["ok"] for reply in client.call_many(fails))
        jobs = [reply["job"] for reply in client.call_many([{"cmd": "GetJob", "id": job_id} for job_id in ids])]

        ready = sorted(job["runAt"] for job in jobs)
        assert ready[-1] - ready[0] > 30_000
        assert max(ready.count(moment) for moment in set(ready)) <= 5
    check_closing(server, ["q"], ids)
