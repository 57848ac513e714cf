"""A real file system without space. Source: R191 to R196, K20, PD-3 to PD-6; persistence 12.1."""

from __future__ import annotations

import signal
import sqlite3
import time
from contextlib import closing

import pytest

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


def is_healthy(server: ServerProcess) -> bool:
    return server.get("/health")[0] == 200


@pytest.mark.slow
def test_a_full_disk_refuses_promises_keeps_serving_and_heals(start_server: StartServer, mount_disk: MountDisk) -> None:
    disk = mount_disk(size_mb=16)
    server = start_server(data_path=disk.path / "jobs.db")
    with server.connect() as client:
        kept = [client.ok("PUSH", queue="q", data=i, jobId=f"kept{i}", durable=i % 2 == 0)["id"] for i in range(40)]
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
        assert {client.ok("GetJob", id=job_id)["job"]["id"] for job_id in kept} == set(kept)
        assert FULL in client.error("Pause", queue="q")
        assert client.ok("IsPaused", queue="q")["paused"] is False
        assert client.ok("PULL", queue="q", owner="w")["job"]["id"] == "kept0"

        disk.free()
        wait_until(lambda: is_healthy(server), "the server has healed", 15)
        client.ok("PUSH", queue="q", data=1, jobId=refused, durable=True)
        assert server.get("/ready")[0] == 200
    server.crash_and_restart()
    with server.connect() as client:
        replies = client.call_many([{"cmd": "GetState", "id": job_id} for job_id in [*kept, *buffered, refused]])
        assert {reply["state"] for reply in replies} <= {"waiting", "delayed"}
    assert server.terminate() == 0
    with closing(sqlite3.connect(server.data_path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    server.assert_no_faults()


@pytest.mark.slow
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


@pytest.mark.slow
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
