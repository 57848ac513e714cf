"""The lock expires while the handler still runs, and then the ACK arrives (R162 to R164; R126 to R128).

Invariant: a completion that comes late is taken as long as nobody else was given the job, is no stall then, and is
refused once somebody was; one completion per job in any case. Nothing is lost, and nobody is given a job before the
lease of the one before him has ended. A handler that works on after the end of its lease may have had its effects
twice: at-least-once is what is proven here.
"""

from __future__ import annotations

import random
import signal
import threading
import time
from typing import Any

import pytest

from tests.chaos.actors import completed_count, drain, look_up, prepare, push_durable
from tests.chaos.ledger import Ledger
from tests.process import Client, StartServer, wait_until

TTL_MS = 200
HANDLER_S = 0.5
LONG_GRACE_MS = 60_000  # far beyond what a slow machine needs


def take(client: Client, ledger: Ledger, worker: str, *, ttl_ms: int = TTL_MS, timeout: int = 30_000) -> Any:
    """Pull one job; id and token, or None."""
    lease_ends = time.monotonic() + ttl_ms / 1_000
    reply = client.ok("PULL", queue="q", owner=worker, lockTtl=ttl_ms, timeout=timeout)
    if reply["job"] is None:
        return None
    ledger.begin(reply["job"]["id"], worker, lease_ends=lease_ends)
    return reply["job"]["id"], reply["token"]


@pytest.mark.parametrize("cmd", ["ACK", "ACKB"])
def test_a_late_completion_within_the_grace_is_taken_and_is_no_stall(
    start_server: StartServer, ledger: Ledger, cmd: str
) -> None:
    """R162, R163: the row as it stands; another worker asks all the while, and is given nothing."""
    server = start_server(LEASE_GRACE_MS=LONG_GRACE_MS)
    push_durable(server, ledger, "job")
    with server.connect() as first, server.connect() as second:
        _, token = take(first, ledger, "first")
        waiting = second.send("PULL", queue="q", owner="second", lockTtl=60_000, timeout=int(HANDLER_S * 3_000))
        time.sleep(HANDLER_S)
        ledger.end("job", "first")

        if cmd == "ACK":
            first.ok("ACK", id="job", token=token, result="late")
        else:
            first.ok("ACKB", ids=["job"], tokens=[token], results=["late"])

        ledger.complete("job", worker="first")
        assert second.wait(waiting)["job"] is None
        job = first.ok("GetJob", id="job")["job"]
        assert (job["state"], job["attempts"], job["stallCount"]) == ("completed", 0, 0)
        assert first.ok("GetResult", id="job")["result"] == "late"
        assert first.ok("Dlq", queue="q", count=10)["jobs"] == []
        assert completed_count(server) == 1
    server.restart()
    assert look_up(server, ledger) == {"job": "completed"}
    server.assert_no_faults()


def test_nothing_but_a_completion_is_taken_late(start_server: StartServer, ledger: Ledger) -> None:
    """R163: who can no longer be sure to be alone may say that it is done, and nothing else."""
    server = start_server(LEASE_GRACE_MS=LONG_GRACE_MS)
    push_durable(server, ledger, "job")
    with server.connect() as first:
        _, token = take(first, ledger, "first")
        time.sleep(HANDLER_S)

        refused = "Invalid or expired lock token for job job"
        assert first.error("FAIL", id="job", token=token, error="late") == refused
        assert first.call("JobHeartbeat", id="job", token=token)["ok"] is False
        assert first.ok("JobHeartbeatB", ids=["job"], tokens=[token])["data"]["count"] == 0
        assert first.error("ExtendLock", id="job", token=token, duration=60_000) == "Lock not found or invalid token"

        ledger.end("job", "first")
        first.ok("ACK", id="job", token=token)
        ledger.complete("job", worker="first")
    assert look_up(server, ledger) == {"job": "completed"}


@pytest.mark.parametrize("cmd", ["ACK", "ACKB"])
def test_after_a_new_lease_the_first_workers_completion_is_refused(
    start_server: StartServer, ledger: Ledger, cmd: str
) -> None:
    """R164: the second worker's result is the one that counts, whenever the first one speaks up."""
    server = start_server(LEASE_GRACE_MS=100)
    push_durable(server, ledger, "job")
    with server.connect() as first, server.connect() as second:
        _, token = take(first, ledger, "first")
        taken = take(second, ledger, "second", ttl_ms=60_000)  # waits, and is given the job when the grace is over
        assert taken is not None

        refused = "Invalid or expired lock token for job job"
        if cmd == "ACK":
            assert first.error("ACK", id="job", token=token, result="stale") == refused
        else:
            assert first.error("ACKB", ids=["job"], tokens=[token], results=["stale"]) == refused
        assert first.error("FAIL", id="job", token=token) == refused
        assert second.state("job") == "active"
        assert second.ok("JobHeartbeatB", ids=["job"], tokens=[taken[1]])["data"]["count"] == 1

        ledger.end("job", "second")
        second.ok("ACK", id="job", token=taken[1], result="real")
        ledger.complete("job", worker="second")
        first.call("ACK", id="job", token=token, result="stale")
        job = second.ok("GetJob", id="job")["job"]
        assert (job["state"], job["attempts"], job["stallCount"]) == ("completed", 1, 1)
        assert second.ok("GetResult", id="job")["result"] == "real"
        assert completed_count(server) == 1
    server.restart()
    with server.connect() as client:
        assert client.ok("GetResult", id="job")["result"] == "real"
    assert look_up(server, ledger) == {"job": "completed"}
    server.assert_no_faults()


def test_a_job_that_waits_again_is_still_completed_by_the_worker_that_did_it(
    start_server: StartServer, ledger: Ledger
) -> None:
    """R126: taken back, and given to nobody: the work is done, so it need not be done again."""
    server = start_server(LEASE_GRACE_MS=0)
    push_durable(server, ledger, "job")
    with server.connect() as first:
        _, token = take(first, ledger, "first")
        wait_until(lambda: first.state("job") == "waiting", "the job is taken back")
        ledger.end("job", "first")

        first.ok("ACK", id="job", token=token, result="late")

        ledger.complete("job", worker="first")
        assert take(first, ledger, "first", timeout=200) is None
        job = first.ok("GetJob", id="job")["job"]
        assert (job["state"], job["attempts"]) == ("completed", 1)
        assert completed_count(server) == 1
    assert look_up(server, ledger) == {"job": "completed"}


def test_handlers_of_any_length_end_in_one_completion_per_job(
    start_server: StartServer, ledger: Ledger, rng: random.Random
) -> None:
    """Six workers whose handlers take less or more than lease and grace together, at random."""
    server = start_server(LEASE_GRACE_MS=100)
    prepare(server)
    ids = [f"job-{number}" for number in range(60)]
    push_durable(server, ledger, *ids)
    late: list[str] = []
    faults: list[BaseException] = []

    def work(name: str, choices: random.Random) -> None:
        try:
            with server.connect() as client:
                while (taken := take(client, ledger, name, ttl_ms=100, timeout=1_000)) is not None:
                    job_id, token = taken
                    time.sleep(choices.choice((0.0, 0.05, 0.15, 0.21, 0.3)))
                    ledger.end(job_id, name)
                    reply = client.call("ACK", id=job_id, token=token, result=[name, token])
                    if reply["ok"]:
                        ledger.complete(job_id, worker=name)
                    else:
                        assert reply["error"] == f"Invalid or expired lock token for job {job_id}"
                        late.append(job_id)
        except BaseException as fault:
            faults.append(fault)

    workers = [threading.Thread(target=work, args=(f"w{n}", random.Random(rng.random()))) for n in range(6)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert faults == []
    drain(server, ledger)

    assert look_up(server, ledger) == dict.fromkeys(ids, "completed")
    assert ledger.completed == set(ids)
    assert completed_count(server) == len(ids)
    ledger.remark(f"{len(late)} completions refused")
    server.assert_no_faults()


def test_a_server_that_stood_still_takes_no_job_from_a_worker_that_shows_life(
    start_server: StartServer, ledger: Ledger
) -> None:
    """SIGSTOP for longer than the lease: the heartbeats of that time are in the socket when the server goes on."""
    ttl_ms, still_s = 3_000, 5.0
    server = start_server(LEASE_GRACE_MS=0)
    push_durable(server, ledger, "kept", "left")
    with server.connect() as first, server.connect() as silent, server.connect() as second:
        _, token = take(first, ledger, "first", ttl_ms=ttl_ms)
        silent.ok("PULL", queue="q", owner="silent", lockTtl=ttl_ms)
        first.ok("JobHeartbeat", id="kept", token=token)
        waiting = second.send("PULL", queue="q", owner="second", lockTtl=60_000, timeout=30_000)

        server.signal(signal.SIGSTOP)
        beats = []
        for _ in range(5):
            time.sleep(still_s / 5)
            beats.append(first.send("JobHeartbeat", id="kept", token=token))
        server.signal(signal.SIGCONT)

        assert [first.wait(beat)["ok"] for beat in beats] == [True] * 5
        # then: time goes on for whoever is silent
        reply = second.wait(waiting)
        assert reply["job"]["id"] == "left"
        assert first.call("ACK", id="kept", token=token)["ok"]
        ledger.excuse("left")
        ledger.end("kept", "first")
        ledger.complete("kept", worker="first")
        second.ok("ACK", id="left", token=reply["token"])
        assert completed_count(server) == 2
    assert "The process stood still" in server.log
    assert "The wall clock has jumped" not in server.log
