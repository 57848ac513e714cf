"""Emptied queues and dead letters, seen from outside: Q1 and X1 of the field reports, R180, kills after an ok."""

from __future__ import annotations

import pytest

from tests.field.closing import check_closing, dead_letters, must_pull, pull
from tests.process import ServerProcess, wait_until


@pytest.mark.slow
def test_q1_an_obliterated_queue_gives_its_slots_back(server: ServerProcess) -> None:
    """bunqueue 2.8.14: a slot was not given back on some way out, and after a few such exits the queue stood still."""
    with server.connect() as client:
        for _ in range(5):
            client.ok("SetConcurrency", queue="q", limit=2)
            client.ok("PUSHB", queue="q", jobs=[{"data": 1}] * 3)
            held = [must_pull(client) for _ in range(2)]
            assert pull(client) is None
            client.ok("Obliterate", queue="q")
            for job, token in held:
                client.ok("ACK", id=job["id"], token=token)
        client.ok("SetConcurrency", queue="q", limit=2)
        ids = client.ok("PUSHB", queue="q", jobs=[{"data": 1}] * 3)["ids"]
        assert [must_pull(client)[0]["id"] for _ in range(2)] == ids[:2]
        assert pull(client) is None
    check_closing(server, ["q"], ids)


@pytest.mark.slow
def test_what_was_emptied_stays_empty_after_a_kill(server: ServerProcess) -> None:
    with server.connect() as client:
        for queue in ("drained", "gone"):
            client.ok("PUSH", queue=queue, data=1, jobId=f"{queue}-done", durable=True)
            _, token = must_pull(client, queue)
            client.ok("ACK", id=f"{queue}-done", token=token, result=1)
            client.ok("PUSH", queue=queue, data=1, jobId=f"{queue}-dead", maxAttempts=1)
            _, token = must_pull(client, queue)
            client.ok("FAIL", id=f"{queue}-dead", token=token)
            client.ok("PUSHB", queue=queue, jobs=[{"data": 1}] * 2_500)
            client.ok("Pause", queue=queue)
        assert client.ok("Drain", queue="drained")["count"] == 2_500
        client.ok("Obliterate", queue="gone")
        server.kill()
    server.start()
    with server.connect() as client:
        assert client.ok("ListQueues")["queues"] == ["drained"]
        assert client.ok("Count", queue="drained")["count"] == 0
        assert client.ok("IsPaused", queue="drained")["paused"]
        assert not client.ok("IsPaused", queue="gone")["paused"]
        assert [client.state(f"gone-{which}") for which in ("done", "dead")] == ["unknown"] * 2
    check_closing(server, ["drained", "gone"], ["drained-done", "drained-dead"])


@pytest.mark.slow
def test_the_dead_letters_never_exceed_their_bound_and_can_be_retried(server: ServerProcess) -> None:
    """R180: three times as many failures as the bound; memory and file agree, also after a kill."""
    with server.connect() as client:
        client.ok("SetDlqConfig", queue="q", config={"maxEntries": 10})
        for number in range(30):
            client.ok("PUSH", queue="q", data=number, jobId=f"j{number}", maxAttempts=1)
            _, token = must_pull(client)
            client.ok("FAIL", id=f"j{number}", token=token, error="no")
        client.ok("PUSH", queue="other", data=1, jobId="mark", durable=True)  # its commit carries the last eviction
        server.kill()
    assert sorted(dead_letters(server)) == sorted(f"j{number}" for number in range(20, 30))
    server.start()
    with server.connect() as client:
        assert [job["id"] for job in client.ok("Dlq", queue="q")["jobs"]] == [f"j{number}" for number in range(20, 30)]
        assert client.state("j19") == "unknown"
        assert client.ok("RetryDlq", queue="q", jobId="j25")["count"] == 1
        assert must_pull(client)[0]["data"] == 25
    check_closing(server, ["q", "other"], [*(f"j{number}" for number in range(20, 30)), "mark"])


@pytest.mark.slow
def test_an_automatic_retry_comes_in_time_exists_once_and_counts_over_a_kill(server: ServerProcess) -> None:
    with server.connect() as client:
        config = {"autoRetry": True, "autoRetryInterval": 300, "maxAutoRetries": 2}
        client.ok("SetDlqConfig", queue="q", config=config)
        client.ok("PUSH", queue="q", data=1, jobId="j", maxAttempts=1, durable=True)
        for count in (0, 1, 2):
            _, token = must_pull(client, timeout=5_000)
            client.ok("FAIL", id="j", token=token)
            entry = dead_letters(server)["j"]
            assert (entry["retryCount"], entry["nextRetryAt"] is None) == (count, count == 2)
            if count == 0:
                server.kill()
                server.start()
                client = server.connect()
        assert pull(client, timeout=1_500) is None
        client.close()
    check_closing(server, ["q"], ["j"])


@pytest.mark.slow
def test_x1_a_job_that_died_by_losing_its_lease_is_dead_on_disk_too_and_can_be_retried(server: ServerProcess) -> None:
    """bunqueue #97: it was dead only in memory; a retry failed, and a restart brought back a half-active copy."""
    with server.connect() as client:
        client.ok("SetStallConfig", queue="q", config={"maxStalls": 1})
        client.ok("PUSH", queue="q", data=1, jobId="j", durable=True)
        must_pull(client, lock_ttl=500)
        wait_until(lambda: client.state("j") == "failed", "the job has died")
        before = client.ok("Dlq", queue="q")["jobs"]
        client.ok("PUSH", queue="other", data=1, jobId="mark", durable=True)  # its commit carries the failure
        entry = dead_letters(server)["j"]
        server.kill()
    assert (entry["reason"], entry["error"]) == ("stalled", "Lock expired after 0 renewals")
    server.start()
    with server.connect() as client:
        assert client.ok("Dlq", queue="q")["jobs"] == before
        assert dead_letters(server) == {"j": entry}
        counts = client.ok("GetJobCounts", queue="q")["counts"]
        assert {state: count for state, count in counts.items() if count} == {"failed": 1}
        assert pull(client) is None

        assert client.ok("RetryDlq", queue="q", jobId="j")["count"] == 1
        job, token = must_pull(client)
        assert (job["attempts"], job["stallCount"]) == (0, 0)
        client.ok("ACK", id="j", token=token)
    for _ in range(2):
        server.restart()
        with server.connect() as client:
            counts = client.ok("GetJobCounts", queue="q")["counts"]
            assert {state: count for state, count in counts.items() if count} == {"completed": 1}
    check_closing(server, ["q", "other"], ["j", "mark"])
