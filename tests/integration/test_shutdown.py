"""How a server ends: what each signal does, what is still served meanwhile, and what the file holds afterwards.

Source: R90, R280 to R291, K21, K22, PD-9; persistence, "Orderly shutdown".
"""

from __future__ import annotations

import signal
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

from tests.process import Client, ServerProcess, StartServer, wait_until


def rows(server: ServerProcess) -> dict[str, tuple[str, int]]:
    """State and attempts of each job as the main file has them; what is only in a WAL does not count."""
    with closing(sqlite3.connect(f"file:{server.data_path}?immutable=1", uri=True)) as connection:
        found = connection.execute("SELECT id, state, attempts FROM jobs").fetchall()
    return {job_id: (state, attempts) for job_id, state, attempts in found}


def beside(path: Path) -> list[str]:
    """Names of the data file and of what SQLite keeps beside it."""
    return sorted(file.name for file in path.parent.glob(path.name + "*"))


def hold(client: Client, job_id: str, **options: object) -> str:
    """Push and pull one job; its token."""
    client.ok("PUSH", queue="q", data=1, jobId=job_id, durable=True, **options)
    reply = client.ok("PULL", queue="q", owner="w", lockTtl=60_000)
    assert reply["job"]["id"] == job_id
    return str(reply["token"])


def begin_drain(server: ServerProcess) -> None:
    """SIGTERM to a server that holds an active job; returns once it waits for it."""
    server.signal(signal.SIGTERM)
    wait_until(lambda: "Waiting for" in server.last_log, "the server waits for active jobs")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT])
def test_each_stop_signal_ends_in_order(server: ServerProcess, client: Client, number: signal.Signals) -> None:
    client.ok("PUSH", queue="q", data=1, jobId="a")

    server.signal(number)

    assert server.wait_exit() == 0
    assert f"Received {number.name}" in server.log
    assert "Shutdown complete" in server.log
    assert beside(server.data_path) == ["jobs.db"]
    assert rows(server) == {"a": ("waiting", 0)}
    server.assert_no_faults()


@pytest.mark.slow
def test_parked_pulls_get_nothing_at_once(start_server: StartServer) -> None:
    server = start_server()
    with server.connect() as holder, server.connect() as waiting, server.connect() as batch:
        token = hold(holder, "a")
        numbers = [
            waiting.send("PULL", queue="q", timeout=60_000, owner="w"),
            waiting.send("PULL", queue="q", timeout=60_000),
        ]
        of_batch = batch.send("PULLB", queue="q", count=5, timeout=60_000, owner="w")
        waiting.ok("Ping")
        begin_drain(server)

        assert waiting.wait(numbers[0]) == {"ok": True, "job": None, "token": None, "reqId": numbers[0]}
        assert waiting.wait(numbers[1]) == {"ok": True, "job": None, "reqId": numbers[1]}
        assert batch.wait(of_batch) == {"ok": True, "jobs": [], "tokens": [], "reqId": of_batch}
        holder.ok("ACK", id="a", token=token)
        assert server.wait_exit() == 0


@pytest.mark.slow
def test_during_the_drain_jobs_are_finished_and_nothing_new_begins(server: ServerProcess, client: Client) -> None:
    token = hold(client, "a")
    other = hold(client, "b")
    failing = hold(client, "c", maxAttempts=1)
    client.ok("PUSH", queue="q", data=1, jobId="next", durable=True)
    begin_drain(server)

    assert client.error("PUSH", queue="q", data=1) == "Server is shutting down"
    assert client.error("PUSH", queue="q", data=1, durable=True) == "Server is shutting down"
    assert client.error("PUSHB", queue="q", jobs=[{"data": 1}]) == "Server is shutting down"
    assert client.ok("PULL", queue="q", owner="w", timeout=60_000)["job"] is None
    assert client.ok("PULLB", queue="q", count=3, owner="w", timeout=60_000)["jobs"] == []
    client.ok("JobHeartbeat", id="a", token=token)
    assert client.ok("JobHeartbeatB", ids=["a", "b"], tokens=[token, other])["data"] == {"ok": True, "count": 2}
    client.ok("Progress", id="a", progress=50)
    client.ok("ExtendLock", id="a", token=token, duration=30_000)
    assert client.state("next") == "waiting"
    client.ok("FAIL", id="c", token=failing, error="no")
    client.ok("ACK", id="b", token=other, result=2)
    with pytest.raises(ConnectionError):
        server.connect()
    assert server.is_running
    client.ok("ACK", id="a", token=token, result=1)

    asked = time.monotonic()
    assert server.wait_exit() == 0
    assert time.monotonic() - asked < 10  # of a timeout of thirty seconds
    assert {job_id: state for job_id, (state, _) in rows(server).items()} == {
        "a": "completed",
        "b": "completed",
        "next": "waiting",
    }
    server.start()
    with server.connect() as again:
        assert [again.state(job_id) for job_id in ("a", "b", "c", "next")] == [
            "completed",
            "completed",
            "failed",
            "waiting",
        ]
        assert again.ok("GetResult", id="a")["result"] == 1
    server.assert_no_faults()


@pytest.mark.slow
def test_a_retry_that_becomes_ready_during_the_drain_waits_for_the_next_start(
    server: ServerProcess, client: Client
) -> None:
    token = hold(client, "a")
    retried = hold(client, "b", backoff=0)
    begin_drain(server)
    client.ok("FAIL", id="b", token=retried)

    assert client.ok("PULL", queue="q", owner="w")["job"] is None
    client.ok("ACK", id="a", token=token)
    assert server.wait_exit() == 0
    assert rows(server)["b"] == ("waiting", 1)


@pytest.mark.slow
def test_a_job_active_at_the_deadline_stays_active_and_is_charged_at_the_next_start(start_server: StartServer) -> None:
    server = start_server(SHUTDOWN_TIMEOUT_MS=1_500)
    with server.connect() as client:
        hold(client, "kept")
        hold(client, "last", maxAttempts=1)
        began = time.monotonic()
        server.signal(signal.SIGTERM)

        assert server.wait_exit() == 0
        assert time.monotonic() - began >= 1.4
    assert rows(server) == {"kept": ("active", 0), "last": ("active", 0)}
    assert beside(server.data_path) == ["jobs.db"]
    server.start()
    with server.connect() as again:
        kept = again.ok("GetJob", id="kept")["job"]
        assert (kept["attempts"], kept["stallCount"], kept["state"]) == (1, 1, "delayed")
        assert again.state("last") == "failed"
    server.assert_no_faults()


@pytest.mark.slow
def test_a_worker_that_is_late_meets_no_server_and_its_token_counts_at_the_next(start_server: StartServer) -> None:
    server = start_server(SHUTDOWN_TIMEOUT_MS=0)
    with server.connect() as client:
        token = hold(client, "a", backoff=60_000)
        assert server.terminate() == 0
        with pytest.raises(ConnectionError):
            client.call("ACK", id="a", token=token)
    server.start()
    with server.connect() as again:
        again.ok("ACK", id="a", token=token, result="late")
        assert again.state("a") == "completed"


@pytest.mark.slow
def test_a_second_signal_skips_the_wait_but_not_the_flush(server: ServerProcess, client: Client) -> None:
    hold(client, "held")
    with server.connect() as other:
        other.ok("PUSH", queue="q", data=1, jobId="dropped", backoff=0)
        assert other.ok("PULL", queue="q", owner="w", lockTtl=60_000)["job"]["id"] == "dropped"
        begin_drain(server)
        other.reset()
        wait_until(lambda: client.state("dropped") == "waiting", "the job is released")
        began = time.monotonic()
        server.signal(signal.SIGTERM)

        assert server.wait_exit() == 0
    assert time.monotonic() - began < 10  # of a timeout of thirty seconds
    assert rows(server) == {"held": ("active", 0), "dropped": ("waiting", 1)}
    assert beside(server.data_path) == ["jobs.db"]
    server.assert_no_faults()


@pytest.mark.slow
def test_signals_that_are_repeated_do_not_cut_the_last_flush_short(start_server: StartServer) -> None:
    """An impatient supervisor repeats its signal until the process has gone, here while the file is locked."""
    server = start_server(SHUTDOWN_TIMEOUT_MS=0)
    with server.connect() as client, closing(sqlite3.connect(server.data_path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        client.ok("PUSH", queue="q", data=1, jobId="kept")
        for _ in range(15):
            server.signal(signal.SIGTERM)
            time.sleep(0.1)
        other.execute("ROLLBACK")
        code = repeat_until_exit(server, signal.SIGTERM)

    assert code == 0, server.last_log
    server.start()
    with server.connect() as client:
        assert client.state("kept") == "waiting"
    assert repeat_until_exit(server, signal.SIGINT) == 0
    server.assert_no_faults()


def repeat_until_exit(server: ServerProcess, number: signal.Signals) -> int:
    """Send a signal again and again; the exit code."""
    while server.is_running:
        server.signal(number)
        time.sleep(0.001)
    return server.wait_exit()


@pytest.mark.slow
def test_what_is_buffered_is_safe_before_the_wait_begins(server: ServerProcess, client: Client) -> None:
    hold(client, "held")
    client.ok("PUSHB", queue="q", jobs=[{"data": i, "customId": f"b{i}"} for i in range(50)])
    begin_drain(server)

    # An impatient orchestrator: nothing is left to lose, and the WAL has been folded in (K21).
    server.kill()
    assert rows(server) == {"held": ("active", 0)} | {f"b{i}": ("waiting", 0) for i in range(50)}


@pytest.mark.slow
def test_a_server_in_memory_stops_as_well(start_server: StartServer, tmp_path: Path) -> None:
    server = start_server(data_path=":memory:")
    with server.connect() as client:
        client.ok("PUSH", queue="q", data=1, durable=True)

        assert server.terminate() == 0
    assert list(tmp_path.glob("*.db*")) == []
    assert "every job is lost" in server.log
    server.assert_no_faults()
