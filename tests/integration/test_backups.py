"""Backups of a running server to a real S3 server, and the way back.

Source: S3 backup and restore; R199, R201, R205, R223, R345.
"""

from __future__ import annotations

import http.client
import json
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.backup.commands import back_up, real_command
from tests.backup.fakes import make_database
from tests.process import ServerProcess, StartServer, wait_until
from tests.s3 import Bucket, S3Server
from tests.s3 import bucket as bucket
from tests.s3 import s3_server as s3_server

pytestmark = pytest.mark.slow


def test_everything_comes_back_after_the_loss_of_the_host(start_server: StartServer, bucket: Bucket, tmp_path: Path):
    server = start_server(S3_BACKUP_ENABLED=1, **bucket.environment)
    with server.connect() as client:
        ids = {name: client.ok("PUSH", queue=name, data={"n": name, "raw": b"\x00\xff"})["id"] for name in "abcd"}
        client.ok("PUSH", queue="late", data=1, delay=3_600_000)
        client.ok("ACK", id=client.ok("PULL", queue="a")["job"]["id"], result={"done": True})
        client.ok("PUSH", queue="dead", data=1, maxAttempts=1)
        client.ok("FAIL", id=client.ok("PULL", queue="dead")["job"]["id"], error="no")
        client.ok("Pause", queue="b")
        client.ok("Cron", name="nightly", queue="c", data={}, schedule="0 3 * * *")
        made = back_up(server)
        client.ok("PUSH", queue="c", data="after the backup")
    assert made["ok"] is True
    assert made["proven"] is True
    server.kill()
    for path in tmp_path.glob("jobs.db*"):
        path.unlink()

    code, out, err = real_command(bucket.environment, server.data_path, "restore", made["key"], "-f")

    assert (code, out.partition("\n")[0]) == (0, "Restore completed successfully"), err
    server.start()
    with server.connect() as client:
        assert client.ok("GetResult", id=ids["a"])["result"] == {"done": True}
        assert client.ok("IsPaused", queue="b")["paused"] is True
        assert client.ok("GetJob", id=ids["c"])["job"]["data"] == {"n": "c", "raw": b"\x00\xff"}
        assert [job["data"] for job in client.ok("Dlq", queue="dead")["jobs"]] == [1]
        assert [cron["name"] for cron in client.ok("CronList")["crons"]] == ["nightly"]
        assert client.ok("Count", queue="c")["count"] == 1
        assert client.ok("GetJobCounts", queue="late")["counts"]["delayed"] == 1
    server.assert_no_faults()


def test_wrong_credentials_degrade_health_and_leak_nothing(start_server: StartServer, bucket: Bucket):
    settings = {**bucket.environment, "S3_SECRET_ACCESS_KEY": "never-to-be-seen"}
    server = start_server(S3_BACKUP_ENABLED=1, **settings)

    assert "HTTP 403" in back_up(server)["error"]

    status, body = server.get("/health")
    report = json.loads(body)
    metrics = server.get("/prometheus")[1].decode()
    assert (status, report["reasons"][0]["code"]) == (503, "backup.failing")
    assert "HTTP 403" in report["reasons"][0]["message"]
    assert server.get("/ready")[0] == 200
    assert "bunqueue_backup_failures_total 1\n" in metrics
    assert "never-to-be-seen" not in metrics + body.decode() + server.log + server.get("/backups")[1].decode()


def test_a_store_that_hangs_does_not_hold_up_the_stop(start_server: StartServer, bucket: Bucket, s3_server: S3Server):
    """In the midst of a backup, and with changes that are not uploaded yet."""
    quick = {"S3_BACKUP_LOG_INTERVAL": 200, "SHUTDOWN_TIMEOUT_MS": 1_000}
    server = start_server(S3_BACKUP_ENABLED=1, **quick, **bucket.environment)
    assert back_up(server)["ok"] is True
    listed = bucket.names()
    s3_server.pause()
    try:
        with server.connect() as client:
            ids = [client.ok("PUSH", queue="q", data=n)["id"] for n in range(100)]
        waiting = threading.Thread(target=lambda: suppressed(lambda: back_up(server)))
        waiting.start()
        wait_until(lambda: json.loads(server.get("/backups")[1])["backups"]["isRunning"], "a backup is being made")
        time.sleep(0.5)
        began = time.monotonic()
        assert server.terminate() == 0
        took_s = time.monotonic() - began
        waiting.join()
    finally:
        s3_server.go_on()

    assert took_s < 15
    assert [key for key in bucket.names() if "/log/" not in key] == [key for key in listed if "/log/" not in key]
    assert not list(server.data_path.parent.glob("*.tmp*"))
    server.start()
    with server.connect() as client:
        assert client.ok("Count", queue="q")["count"] == len(ids)
    server.assert_no_faults()


def test_a_backup_goes_on_when_its_client_has_left(start_server: StartServer, bucket: Bucket, s3_server: S3Server):
    server = start_server(S3_BACKUP_ENABLED=1, S3_BACKUP_LOG_INTERVAL=0, **bucket.environment)

    def status() -> dict[str, Any]:
        shown: dict[str, Any] = json.loads(server.get("/backups")[1])["backups"]
        return shown

    s3_server.pause()
    try:
        with pytest.raises(TimeoutError):
            server.request("POST", "/backups", timeout_s=0.5)
        time.sleep(1.5)  # who has left is noticed within half a second
        assert status()["isRunning"]
    finally:
        s3_server.go_on()
    wait_until(lambda: status()["madeCount"] == 1, "the backup is made")

    assert status()["lastKey"] in bucket.names()
    server.assert_no_faults()


def suppressed(function: Callable[[], Any]) -> None:
    with suppress(OSError, http.client.HTTPException):
        function()


@pytest.mark.alone
def test_a_large_file_is_backed_up_in_little_memory_while_pushes_go_on(
    start_server: StartServer, bucket: Bucket, tmp_path: Path
):
    """200 MB, of which a quarter cannot be compressed: under 200 MB of memory, and pushes take at most 3x as long."""
    path = make_database(tmp_path / "jobs.db")
    with closing(sqlite3.connect(path)) as ballast:
        ballast.execute("CREATE TABLE ballast(data)")
        rows = "WITH n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 200)"
        ballast.execute(f"INSERT INTO ballast {rows} SELECT randomblob(250000) || zeroblob(800000) FROM n")
        ballast.commit()
    assert path.stat().st_size > 200_000_000
    server = start_server(S3_BACKUP_ENABLED=1, **bucket.environment)
    quiet_ms, _ = push_while(server, lambda: time.sleep(2))
    before, peak, has_ended = server.rss_bytes(), 0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not has_ended.wait(0.02):
            peak = max(peak, server.rss_bytes())

    watcher = threading.Thread(target=watch)
    watcher.start()
    busy_ms, made = push_while(server, lambda: back_up(server))
    has_ended.set()
    watcher.join()

    assert made["ok"] is True, made
    assert (made["size"] > 200_000_000, made["compressedSize"] > 45_000_000, made["proven"]) == (True, True, True)
    print(f"p99 {quiet_ms:.2f} ms, during the backup {busy_ms:.2f} ms; {(peak - before) >> 20} MiB more")
    assert peak - before < 200_000_000
    assert busy_ms < max(3 * quiet_ms, 25)  # below that it is the noise of the machine
    assert not [*tmp_path.glob("*.backup-*.tmp*"), *tmp_path.glob("*.verify-*.tmp*")]
    shutil.rmtree(tmp_path, ignore_errors=True)


def push_while(server: ServerProcess, function: Any) -> tuple[float, Any]:
    """The p99 of pushes, ms, while *function* runs, and what that returns."""
    took_ms: list[float] = []
    has_ended = threading.Event()

    def push() -> None:
        with server.connect() as client:
            while not has_ended.is_set():
                began = time.perf_counter()
                client.ok("PUSH", queue="q", data=1)
                took_ms.append((time.perf_counter() - began) * 1000)
                time.sleep(0.001)

    pusher = threading.Thread(target=push)
    pusher.start()
    try:
        result = function()
    finally:
        has_ended.set()
        pusher.join()
    return sorted(took_ms)[int(len(took_ms) * 0.99)], result
