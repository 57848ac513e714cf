"""Persistence and crash: P1, P4, P5, P6 of the field reports."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from tests.field.closing import check_closing, must_pull, pull
from tests.process import ServerProcess, StartServer, wait_until

HOLDER = """
import sqlite3, sys, time
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute(sys.argv[2])
if sys.argv[2] == "BEGIN":
    connection.execute("SELECT count(*) FROM jobs").fetchall()
print("held", flush=True)
time.sleep(float(sys.argv[3]))
connection.execute("ROLLBACK")
"""


@contextmanager
def other_process(server: ServerProcess, statement: str, seconds: float) -> Iterator[subprocess.Popen[str]]:
    """Another program that holds a transaction on the data file for so long."""
    command = [sys.executable, "-c", HOLDER, str(server.data_path), statement, str(seconds)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "held\n"
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.slow
def test_p1_settings_survive_a_kill_and_so_does_their_undoing(server: ServerProcess) -> None:
    """bunqueue #100: a paused queue resumed by itself. Pause, limits and both policies."""
    config = {"enabled": False, "stallInterval": 12_345, "maxStalls": 7, "gracePeriod": 678}
    letters = {"autoRetry": True, "autoRetryInterval": 5_000, "maxAutoRetries": 2, "maxAge": None, "maxEntries": 44}
    with server.connect() as client:
        defaults = client.ok("GetStallConfig", queue="q")["config"]
        letter_defaults = client.ok("GetDlqConfig", queue="q")["config"]
        client.ok("PUSH", queue="q", data=1, jobId="j", durable=True)
        client.ok("Pause", queue="q")
        client.ok("SetStallConfig", queue="q", config=config)
        client.ok("SetDlqConfig", queue="q", config=letters)
        client.ok("RateLimit", queue="q", limit=5, duration=60_000, ttl=120_000)
        client.ok("SetConcurrency", queue="q", limit=3)
        server.kill()
    server.start()
    with server.connect() as client:
        assert client.ok("IsPaused", queue="q")["paused"] is True
        assert client.ok("GetStallConfig", queue="q")["config"] == config
        assert client.ok("GetDlqConfig", queue="q")["config"] == letters
        limits = client.ok("GetQueueLimits", queue="q")["data"]["limits"]
        assert 0 < limits.pop("rateLimitTtl") < 120_000
        assert limits == {"rateLimit": {"max": 5, "duration": 60_000}, "concurrencyLimit": 3, "maxed": False}
        assert pull(client, timeout=1_000) is None
        assert client.ok("GetJobCounts", queue="q")["counts"]["paused"] == 1
        client.ok("Resume", queue="q")
        client.ok("SetStallConfig", queue="q", config=defaults)
        client.ok("SetDlqConfig", queue="q", config=letter_defaults)
        client.ok("RateLimitClear", queue="q")
        client.ok("ClearConcurrency", queue="q")
        server.kill()
    server.start()
    with server.connect() as client:
        assert client.ok("IsPaused", queue="q")["paused"] is False
        assert client.ok("GetStallConfig", queue="q")["config"] == defaults
        assert client.ok("GetDlqConfig", queue="q")["config"] == letter_defaults
        limits = client.ok("GetQueueLimits", queue="q")["data"]["limits"]
        assert limits == {"rateLimit": None, "rateLimitTtl": -2, "concurrencyLimit": None, "maxed": False}
        job, token = must_pull(client)
        client.ok("ACK", id=job["id"], token=token)
    check_closing(server, ["q"], ["j"])


@pytest.mark.slow
def test_p4_finished_jobs_are_known_after_a_restart(server: ServerProcess) -> None:
    """bunqueue #83: they were "unknown", and clean-up left their results behind."""
    ids = [f"j{number}" for number in range(10)]
    with server.connect() as client:
        client.ok("PUSHB", queue="q", jobs=[{"data": i, "customId": i, "maxAttempts": 1} for i in ids])
        for number, job_id in enumerate(ids):
            job, token = must_pull(client)
            assert job["id"] == job_id
            if number % 2:
                client.ok("FAIL", id=job_id, token=token, error=f"no {number}")
            else:
                client.ok("ACK", id=job_id, token=token, result={"n": number})
    for _ in range(2):
        server.restart()
        with server.connect() as client:
            assert [client.state(job_id) for job_id in ids] == ["completed", "failed"] * 5
            assert [client.ok("GetJob", id=job_id)["job"]["data"] for job_id in ids] == ids
            results = [client.ok("GetResult", id=job_id).get("result") for job_id in ids]
            assert results == [None if number % 2 else {"n": number} for number in range(10)]
            assert sorted(job["id"] for job in client.ok("Dlq", queue="q")["jobs"]) == ids[1::2]
    with server.connect() as client:
        cleaned = client.ok("Clean", queue="q", grace=0, state="completed")
        assert (cleaned["count"], sorted(cleaned["ids"])) == (5, ids[0::2])
        server.kill()
    for _ in range(2):
        server.start()
        with server.connect() as client:
            assert [client.state(job_id) for job_id in ids] == ["unknown", "failed"] * 5
            assert ["result" in client.ok("GetResult", id=job_id) for job_id in ids] == [False] * 10
            assert client.ok("GetJobs", queue="q", state="completed")["jobs"] == []
        server.kill()
    with closing(sqlite3.connect(server.data_path)) as connection:
        assert connection.execute("SELECT count(*) FROM job_results").fetchone() == (0,)
        assert connection.execute("SELECT count(*) FROM jobs WHERE state = 'completed'").fetchone() == (0,)
    server.start()
    check_closing(server, ["q"], ids[1::2])


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "level"), [("FULL", "synced"), ("NORMAL", "committed")])
def test_p5_each_push_says_how_safe_it_is_and_durable_ones_survive_a_kill(
    start_server: StartServer, mode: str, level: str
) -> None:
    """The batch command did not even bypass the buffer (bunqueue 2.8.14).

    That a sync comes between receiving and answering is not traced here: the recorded writes and syncs of
    tests/storage/test_power_cut.py show it.
    """
    server = start_server(SQLITE_SYNCHRONOUS=mode)
    with server.connect() as client:
        replies = [client.ok("PUSH", queue="q", data=i, durable=True, receipt=True) for i in range(20)]
        batch = client.ok("PUSHB", queue="q", jobs=[{"data": i, "durable": True} for i in range(50)], receipt=True)
        server.kill()
        durable = [reply["id"] for reply in replies] + batch["ids"]
    server.start()
    with server.connect() as client:
        loose = [client.ok("PUSH", queue="q", data=i, receipt=True) for i in range(20)]
        time.sleep(1)  # the window of 10 ms, many times over

        assert {reply["durability"] for reply in replies} == {level}
        assert {reply["outcome"] for reply in replies} == {"created"}
        assert batch["durability"] == level
        assert batch["outcomes"] == ["created"] * 50
        assert {reply["durability"] for reply in loose} == {"buffered"}
        server.crash_and_restart()
    ids = durable + [reply["id"] for reply in loose]
    with server.connect() as client:
        assert client.ok("Count", queue="q")["count"] == len(ids)
    check_closing(server, ["q"], ids)


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [3, 12])
def test_p6_another_process_holds_the_write_lock(server: ServerProcess, seconds: int) -> None:
    """huey #445: "database is locked" bursts lost work. Nobody is blocked but who waits for a commit."""
    stop = threading.Event()
    pings: list[float] = []
    accepted: list[str] = []
    refused: list[str] = []
    done: list[str] = []

    def ping() -> None:
        with server.connect() as client:
            while not stop.is_set():
                began = time.monotonic()
                client.ok("Ping")
                pings.append(time.monotonic() - began)
                time.sleep(0.1)

    def push_durable() -> None:
        with server.connect() as client:
            while not stop.is_set():
                reply = client.call("PUSH", queue="durable", data=1, durable=True)
                (accepted if reply["ok"] else refused).append(reply["id"] if reply["ok"] else reply["error"])
                time.sleep(0.05)

    def push_buffered() -> None:
        with server.connect() as client:
            while not stop.is_set():
                accepted.extend(client.ok("PUSHB", queue="q", jobs=[{"data": 1} for _ in range(10)])["ids"])
                time.sleep(0.05)

    def work() -> None:
        with server.connect() as client:
            while not stop.is_set():
                pulled = pull(client, timeout=200)
                if pulled is not None and client.call("ACK", id=pulled[0]["id"], token=pulled[1])["ok"]:
                    done.append(pulled[0]["id"])

    threads = [threading.Thread(target=task) for task in (ping, push_durable, push_buffered, work)]
    for thread in threads:
        thread.start()
    try:
        time.sleep(1)
        with other_process(server, "BEGIN IMMEDIATE", seconds) as holder:
            holder.wait(60)
        wait_until(lambda: server.get("/health")[0] == 200, "the server has recovered by itself", 60)
        count = len(done)
        wait_until(lambda: len(done) > count + 3, "work goes on")
    finally:
        stop.set()
        for thread in threads:
            thread.join()

    pings.sort()
    assert pings[int(len(pings) * 0.99) - 1] < 1.0  # 0.2 s is asked for on a quiet machine; a blocked loop takes 5 s
    if seconds == 3:
        assert refused == []
    assert all("locked" in text for text in refused)
    server.crash_and_restart() if seconds == 3 else server.restart()
    with server.connect() as client:
        states = client.call_many([{"cmd": "GetState", "id": job_id} for job_id in done])
        assert {reply["state"] for reply in states} == {"completed"}
        lost = [
            reply["id"]
            for reply in client.call_many([{"cmd": "GetState", "id": job_id} for job_id in accepted])
            if reply["state"] == "unknown"
        ]
        assert lost == [] or seconds == 3  # a kill may take the last buffered window
        assert len(lost) <= 20
        counts = [client.ok("GetJobCounts", queue=name)["counts"] for name in ("q", "durable")]
        assert sum(sum(count.values()) for count in counts) == len(accepted) - len(lost)
    check_closing(server, ["q", "durable"], [job_id for job_id in accepted if job_id not in set(lost)])
