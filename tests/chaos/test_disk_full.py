"""A real file system without space below the running server (R191 to R196).

Invariants: the server neither ends nor hangs; what it promises to store it stores, and when it cannot it says no and
keeps nothing of it; what it had confirmed before can be read all along, and what it takes meanwhile without a promise
is bounded, shown as trouble by /health, and in the file once there is space again, however late that is. Nothing
confirmed is lost over a kill afterwards.

Skipped, loudly, where no file system can be mounted. Source also: K20, PD-3 to PD-6; persistence 12.1.
"""

from __future__ import annotations

import signal
import sqlite3
import time
from contextlib import closing

from tests.chaos.actors import LASTING, Producer, Worker, living, look_up
from tests.chaos.leaks import assert_back_at, baseline
from tests.chaos.ledger import Ledger
from tests.chaos.soak import Soak
from tests.process import Client, ServerProcess, StartServer, wait_until
from tests.tiny_disk import MountDisk

FULL = "database or disk is full"


def push_until_refused(client: Client, prefix: str) -> str:
    """Durable pushes of 64 KB until the disk takes no more; the id of the refused one."""
    for number in range(1_000):
        reply = client.call("PUSH", queue="filling", data="x" * 65_536, jobId=f"{prefix}{number}", durable=True)
        if not reply["ok"]:
            assert FULL in reply["error"]
            assert "id" not in reply
            return f"{prefix}{number}"
    raise AssertionError("the disk takes everything")


LIVE = ("waiting", "prioritized", "delayed", "active")


class Steady(Producer):
    """Goes on when it is told that there is no space."""

    def act(self, client: Client) -> None:
        if self.ledger.open_count > self.most_open:
            time.sleep(0.01)
            return
        job_id = f"{self.name}-{next(self._numbers)}"
        self.ledger.push(job_id)
        reply = client.call("PUSH", queue="q", jobId=job_id, data="x" * 2_000, durable=self.durable, **LASTING)
        if reply["ok"]:
            self.ledger.acknowledge(job_id)
        else:
            assert FULL in reply["error"], reply
            assert "id" not in reply
        time.sleep(self.pause_s)


class Patient(Worker):
    """Confirms until it is believed."""

    def act(self, client: Client) -> None:
        reply = client.ok("PULLB", queue="q", owner=self.name, count=self.count, lockTtl=600_000, timeout=50)
        ids, tokens = [job["id"] for job in reply["jobs"]], reply["tokens"]
        if not ids:
            return
        for job_id in ids:
            self.ledger.begin(job_id, self.name)
        for job_id in ids:
            self.ledger.end(job_id, self.name)
        while not (confirmed := client.call("ACKB", ids=ids, tokens=tokens))["ok"]:
            assert FULL in confirmed["error"], confirmed
            time.sleep(0.02)
        self.ledger.complete(*ids)


def is_healthy(server: ServerProcess) -> bool:
    return server.get("/health")[0] == 200


def test_a_full_disk_refuses_promises_keeps_serving_and_heals(
    start_server: StartServer, mount_disk: MountDisk, ledger: Ledger
) -> None:
    disk = mount_disk(size_mb=16)
    server = start_server(data_path=disk.path / "jobs.db")
    with server.connect() as client:
        kept = [client.ok("PUSH", queue="q", data=i, jobId=f"kept{i}", durable=i % 2 == 0)["id"] for i in range(40)]
        ledger.push(*kept)
        ledger.acknowledge(*kept)
        time.sleep(0.5)  # the buffered ones are in the file
        disk.fill()
        refused = push_until_refused(client, "x")

        status, body = server.get("/health")
        assert status == 503
        assert b'"diskFull":true' in body
        report = server.health()
        assert report["status"] == "degraded"
        assert FULL in report["storage"]["error"]
        assert [reason["code"] for reason in report["reasons"]] == ["storage.diskFull"]
        assert server.get("/live")[0] == server.get("/healthz")[0] == 200
        assert server.get("/ready")[0] == 503
        assert client.state(refused) == "unknown"
        buffered = [client.ok("PUSH", queue="q", data=i, jobId=f"buffered{i}")["id"] for i in range(50)]
        ledger.push(*buffered, refused)
        ledger.acknowledge(*buffered)
        assert {client.ok("GetJob", id=job_id)["job"]["id"] for job_id in kept} == set(kept)
        assert FULL in client.error("Pause", queue="q")
        assert client.ok("IsPaused", queue="q")["paused"] is False
        assert client.ok("PULL", queue="q", owner="w")["job"]["id"] == "kept0"

        disk.free()
        wait_until(lambda: is_healthy(server), "the server has healed", 15)
        client.ok("PUSH", queue="q", data=1, jobId=refused, durable=True)
        ledger.acknowledge(refused)
        assert server.get("/ready")[0] == 200
    server.crash_and_restart()
    with server.connect() as client:
        assert set(look_up(server, ledger).values()) <= {"waiting", "delayed"}
    assert server.terminate() == 0
    with closing(sqlite3.connect(server.data_path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    server.assert_no_faults()


def test_the_backlog_of_a_full_disk_is_bounded(start_server: StartServer, mount_disk: MountDisk) -> None:
    disk = mount_disk(size_mb=16)
    server = start_server(data_path=disk.path / "jobs.db", WRITE_BACKLOG_MAX_JOBS=500)
    with server.connect() as client:
        disk.fill()
        push_until_refused(client, "x")
        replies = client.call_many([{"cmd": "PUSH", "queue": "q", "data": "x" * 100} for _ in range(2_000)])

        taken = {reply["id"] for reply in replies if reply["ok"]}
        # A checkpoint makes room in the WAL file for a flush: what that one wrote is no backlog.
        with closing(sqlite3.connect(server.data_path)) as connection:
            stored = {job_id for (job_id,) in connection.execute("SELECT id FROM jobs")}
        assert 400 <= len(taken - stored) <= 500
        assert {reply["error"] for reply in replies if not reply["ok"]} == {f"Storage unavailable: {FULL}"}
        disk.free()
        wait_until(lambda: is_healthy(server), "the server has healed", 15)
        client.ok("PUSH", queue="q", data=1)
    server.crash_and_restart()
    with server.connect() as client:
        replies = client.call_many([{"cmd": "GetState", "id": job_id} for job_id in taken])
        assert {reply["state"] for reply in replies} == {"waiting"}


def test_space_that_comes_and_goes_below_a_busy_server_costs_nothing(
    start_server: StartServer, mount_disk: MountDisk, soak: Soak, ledger: Ledger
) -> None:
    """Producers and workers go on all the time; refusals are no answers to rely on, confirmations are."""
    disk = mount_disk(size_mb=24)
    server = start_server(data_path=disk.path / "jobs.db")
    before = None
    for number in soak.rounds(3):
        producers = [
            Steady(server, ledger, f"p{number}-{kind}", durable=kind == "durable", most_open=500, pause_s=0.002)
            for kind in ("durable", "buffered")
        ]
        workers = [Patient(server, ledger, f"w{number}-{n}", count=5) for n in range(2)]
        with living(*producers, *workers):
            time.sleep(0.3)
            disk.fill()
            wait_until(lambda: not is_healthy(server), "the trouble shows", 15)
            time.sleep(0.4)
            disk.free()
            wait_until(lambda: is_healthy(server), "the server has healed", 15)
            time.sleep(0.3)
        with living(*(Patient(server, ledger, f"d{number}-{n}", count=20) for n in range(2))), server.connect() as c:
            wait_until(lambda: sum(c.ok("GetJobCounts", queue="q")["counts"][s] for s in LIVE) == 0, "all is done")
        assert set(look_up(server, ledger).values()) == {"completed"}
        ledger.settle(set(ledger.found or ()))
        refused = set(ledger.pushed)  # nothing of them is there, and may not be any more
        ledger.excuse(*refused)
        ledger.forget(refused)
        if before is None:
            before = baseline(server)
    assert before is not None
    assert_back_at(server, before)
    server.crash_and_restart()
    server.assert_no_faults()


def test_a_server_stops_in_order_on_a_disk_that_gets_space_at_last(
    start_server: StartServer, mount_disk: MountDisk
) -> None:
    disk = mount_disk(size_mb=16)
    server = start_server(data_path=disk.path / "jobs.db", SHUTDOWN_TIMEOUT_MS=2_000)
    with server.connect() as client:
        disk.fill()
        push_until_refused(client, "x")
        ids = [client.ok("PUSH", queue="q", data=i, jobId=f"b{i}")["id"] for i in range(20)]
    server.signal(signal.SIGTERM)
    time.sleep(2)
    disk.free()

    assert server.wait_exit() == 0
    server.start()
    with server.connect() as client:
        assert {client.state(job_id) for job_id in ids} == {"waiting"}
