"""The machine is lost under load: what is in the bucket is at most ten seconds old, and any moment can be had.

Source: point-in-time recovery; D-150 to D-153.
"""

import json
import sqlite3
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from bunqueue_trio.backup.naming import iso
from tests.backup.commands import command
from tests.backup.log_rig import dump
from tests.process import ServerProcess, StartServer, wait_until
from tests.s3 import Bucket
from tests.s3 import bucket as bucket
from tests.s3 import s3_server as s3_server

pytestmark = pytest.mark.slow
PROMISE_S = 10.0


class Pusher(threading.Thread):
    """Pushes one job after the other until the server is gone; ``acked`` holds number and when it was answered."""

    def __init__(self, server: ServerProcess) -> None:
        super().__init__()
        self._server = server
        self.acked: list[float] = []
        self.began: list[float] = []

    def run(self) -> None:
        try:
            with self._server.connect() as client:
                while True:
                    self.began.append(time.time() * 1000)
                    client.ok("PUSH", queue="q", data={"n": len(self.acked)}, durable=True)
                    self.acked.append(time.time() * 1000)
                    time.sleep(0.002)
        except OSError:
            return  # killed


def state(server: ServerProcess) -> dict[str, Any]:
    status: dict[str, Any] = json.loads(server.get("/backups")[1])["backups"]
    return status


def is_safe(status: dict[str, Any]) -> bool:
    """Whether nothing would be lost now: only a chain that goes on says so, since no backup is so young."""
    log = status["log"]
    return log["waitingBytes"] == 0 and (log["recoveryPointAt"] or 0) > time.time() * 1000 - 300


def can_be_restored(server: ServerProcess) -> bool:
    """Whether there is what a log begins with."""
    return state(server)["log"]["recoveryPointAt"] is not None


def numbers(path: Path) -> set[int]:
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        return {seq - 1 for (seq,) in connection.execute("SELECT rowid FROM jobs")}


def test_the_loss_of_the_machine_costs_ten_seconds_at_most(start_server: StartServer, bucket: Bucket, tmp_path: Path):
    server = start_server(S3_BACKUP_ENABLED=1, **bucket.environment)  # all at its defaults
    pusher = Pusher(server)
    pusher.start()
    wait_until(lambda: can_be_restored(server), "there is what the log begins with")
    seen = state(server)["log"]["shippedCount"]
    wait_until(lambda: state(server)["log"]["shippedCount"] > seen, "more has been uploaded")
    time.sleep(2)
    shown_s = json.loads(server.get("/health")[1])["backup"]["recoveryPointAgeSeconds"]
    metrics = server.get("/prometheus")[1].decode()
    server.kill()
    killed_at = time.time() * 1000
    pusher.join()
    fresh = tmp_path / "other-machine" / "jobs.db"
    fresh.parent.mkdir()

    listed = command(bucket.environment, fresh, "list")
    code, out, err = command(bucket.environment, fresh, "restore", "--to", "latest", "-f", "--json")
    assert code == 0, out + err
    found = numbers(fresh)
    lost_s = (killed_at - pusher.acked[len(found)]) / 1000 if len(found) < len(pusher.acked) else 0.0
    print(
        f"{len(pusher.acked)} pushes, {len(pusher.acked) - len(found)} lost: the last {lost_s:.1f} s; {shown_s} shown"
    )
    assert found == set(range(len(found)))
    assert len(found) > 100
    assert lost_s <= PROMISE_S
    assert 0 < shown_s <= PROMISE_S
    assert "bunqueue_backup_recovery_point_age_seconds " in metrics
    assert "can be restored (--to)" in listed[2]

    number = len(found) - 50
    at = pusher.acked[number]
    code, out, err = command(bucket.environment, fresh, "restore", "--to", iso(at), "-f")
    assert code == 0, out + err
    found = numbers(fresh)
    assert found == set(range(len(found)))
    assert number <= len(found) <= number + 2  # the commit is a moment before its answer; the name of it has whole ms
    late = command(bucket.environment, fresh, "restore", "--to", str(int(killed_at)), "-f")
    assert late[0] == 1
    assert "The change log ends at" in late[1]


def test_a_clean_stop_loses_nothing_and_the_next_start_begins_a_chain(
    start_server: StartServer, bucket: Bucket, tmp_path: Path
):
    server = start_server(S3_BACKUP_ENABLED=1, S3_BACKUP_LOG_INTERVAL=500, **bucket.environment)
    wait_until(lambda: can_be_restored(server), "there is what the log begins with")
    with server.connect() as client:
        for _ in range(10):  # 9 MB, so that the WAL begins anew under way
            client.ok("PUSHB", queue="q", jobs=[{"data": "x" * 3_000} for _ in range(300)])
    assert server.terminate() == 0
    fresh = tmp_path / "fresh" / "jobs.db"
    fresh.parent.mkdir()

    code, out, err = command(bucket.environment, fresh, "restore", "--to", "latest", "-f")

    assert code == 0, out + err
    assert dump(fresh) == dump(server.data_path)
    assert len(numbers(fresh)) == 3_000
    assert list(tmp_path.glob("*.log-*")) == []
    for round_ in (1, 2):
        server.start()
        with server.connect() as client:
            client.ok("PUSH", queue="q", data="more")
            wait_until(lambda: is_safe(state(server)), "everything is uploaded")
        server.kill()
        code, out, err = command(bucket.environment, fresh, "restore", "--to", "latest", "-f")
        assert code == 0, out + err
        assert dump(fresh) == dump(server.data_path)
        assert len(numbers(fresh)) == 3_000 + round_
    listed = command(bucket.environment, fresh, "list")[2].splitlines()
    spans = {line for line in listed if "can be restored" in line}
    assert len(spans) in (2, 3)  # the snapshots of two starts are kept; the third start may not have got to that
