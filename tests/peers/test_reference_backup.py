"""A backup that the reference server 2.8.39 has made of ``golden/reference-small.db``, restored here.

``reference-backup.db.gz`` and ``.meta.json`` are the two objects as they lay in the bucket, recorded with
``bunqueue backup now``.
"""

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from bunqueue_trio.backup.restoring import restore
from bunqueue_trio.clock import SystemClock
from tests.backup.fakes import FakeObjectStore, patience
from tests.process import StartServer

HERE = Path(__file__).parent
GOLDEN = HERE.parent / "golden"
KEY = "backups/bunqueue-2026-11-30T12-24-35-723Z.db"


@pytest.fixture
def store() -> FakeObjectStore:
    """A bucket that holds what the reference has put there."""
    made = FakeObjectStore()
    made.put(KEY, (HERE / "reference-backup.db.gz").read_bytes(), content_type="application/gzip")
    sidecar = (HERE / "reference-backup.meta.json").read_bytes()
    made.put(f"{KEY}.meta.json", sidecar, content_type="application/json;charset=utf-8")
    return made


def tables(path: Path) -> dict[str, Any]:
    """All rows of the reference's tables."""
    with closing(sqlite3.connect(path)) as connection:
        names = ("jobs", "job_results", "dlq", "cron_jobs", "queue_state")
        return {name: connection.execute(f"SELECT * FROM {name} ORDER BY 1").fetchall() for name in names}


def test_every_row_is_there(store: FakeObjectStore, tmp_path: Path):
    restored = restore(store, KEY, str(tmp_path / "jobs.db"), patience(), SystemClock())

    assert restored.is_verified
    shutil.copy(GOLDEN / "reference-small.db", tmp_path / "original.db")
    assert tables(tmp_path / "jobs.db") == tables(tmp_path / "original.db")


@pytest.mark.slow
def test_the_server_starts_with_it(store: FakeObjectStore, tmp_path: Path, start_server: StartServer):
    restore(store, KEY, str(tmp_path / "jobs.db"), patience(), SystemClock())
    steps = json.loads((GOLDEN / "reference-small.json").read_text())["steps"]
    counts = next(step for step in steps if step["send"]["cmd"] == "GetJobCounts" and step["send"]["queue"] == "mail")

    with start_server().connect() as client:
        assert client.ok("GetJobCounts", queue="mail")["counts"] == counts["expect"]["counts"]
        assert client.ok("Stats")["stats"]["dlq"] == 3
        assert len(client.ok("CronList")["crons"]) == 4
