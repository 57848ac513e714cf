"""The last resort of a stop: what the file did not take, beside it and in the log."""

import os
import stat
import tempfile

import msgpack
import pytest

from bunqueue_trio.server.spill import LOGGED_DATA_BYTES, spill
from tests.engine_harness import EngineHarness


@pytest.fixture
def harness():
    """An engine whose changes are not committed."""
    return EngineHarness(auto_commit=False)


@pytest.fixture(autouse=True)
def temporary(tmp_path_factory, monkeypatch):
    """The system's temporary folder."""
    folder = tmp_path_factory.mktemp("temporary")
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def read_spilled(directory):
    [path] = directory.iterdir()
    with open(path, "rb") as file:
        return path.name, list(msgpack.Unpacker(file))


def test_the_spill_file_holds_every_job_with_its_state(harness, tmp_path):
    harness.push(jobId="a", priority=3)
    harness.push(jobId="b", delay=5_000)
    harness.push(jobId="c", priority=9)
    harness.pull()

    count = spill(str(tmp_path / "jobs.db"), harness.engine.state.changes, harness.now)

    name, jobs = read_spilled(tmp_path)
    assert count == 3
    assert name == f"jobs.db.lost-{int(harness.now.wall_ms)}"
    assert {entry["job"]["id"]: entry["state"] for entry in jobs} == {"a": "prioritized", "b": "delayed", "c": "active"}
    assert jobs[0]["job"]["data"] == {"n": 1}
    assert jobs[0]["job"]["priority"] == 3


def test_the_log_names_each_job_with_the_beginning_of_its_data(harness, tmp_path, log):
    harness.push(jobId="a", data="x" * 1_000)

    spill(str(tmp_path / "jobs.db"), harness.engine.state.changes, harness.now)

    summary, lost = log()
    assert (summary["level"], summary["data"]["jobCount"]) == ("error", 1)
    assert summary["data"]["path"].endswith(f"jobs.db.lost-{int(harness.now.wall_ms)}")
    assert lost["message"] == "Lost job (recover from this log if needed)"
    assert (lost["data"]["id"], lost["data"]["queue"], lost["data"]["customId"]) == ("a", "q", "a")
    assert bytes.fromhex(lost["data"]["data"]) == msgpack.packb("x" * 1_000)[:LOGGED_DATA_BYTES]


def test_without_a_spill_file_the_log_still_has_the_jobs(harness, tmp_path, temporary, log):
    harness.push(jobId="a")
    temporary.rmdir()

    count = spill(str(tmp_path / "nowhere" / "jobs.db"), harness.engine.state.changes, harness.now)

    assert count == 1
    assert [line["message"] for line in log()] == [
        "CRITICAL: the spill file cannot be written either",
        "CRITICAL: the spill file cannot be written either",
        "Lost job (recover from this log if needed)",
    ]


def test_where_the_disk_of_the_file_is_gone_the_jobs_go_into_the_temporary_folder(harness, tmp_path, temporary, log):
    harness.push(jobId="a")

    spill(str(tmp_path / "nowhere" / "jobs.db"), harness.engine.state.changes, harness.now)

    name, [entry] = read_spilled(temporary)
    assert entry["job"]["id"] == "a"
    assert log()[1]["data"] == {"path": str(temporary / name), "jobCount": 1}
    assert stat.S_IMODE((temporary / name).stat().st_mode) == 0o600


def test_where_the_disk_of_the_file_is_full_no_half_of_a_spill_file_stays(harness, tmp_path, temporary, monkeypatch):
    harness.push(jobId="a")
    sync, path = os.fsync, tmp_path / "jobs.db"

    def refuse_once(descriptor: int) -> None:
        monkeypatch.setattr(os, "fsync", sync)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", refuse_once)
    spill(str(path), harness.engine.state.changes, harness.now)

    assert list(tmp_path.iterdir()) == []
    _, [entry] = read_spilled(temporary)
    assert entry["job"]["id"] == "a"


def test_an_older_spill_file_is_never_overwritten(harness, tmp_path, temporary):
    older = tmp_path / f"jobs.db.lost-{int(harness.now.wall_ms)}"
    older.write_bytes(b"older")
    harness.push(jobId="a")

    spill(str(tmp_path / "jobs.db"), harness.engine.state.changes, harness.now)

    assert older.read_bytes() == b"older"
    assert len(read_spilled(temporary)[1]) == 1


def test_a_push_that_was_refused_is_not_lost(harness, tmp_path):
    harness.push(jobId="refused", durable=True)
    harness.reject()
    assert harness.engine.state.changes.jobs

    assert spill(str(tmp_path / "jobs.db"), harness.engine.state.changes, harness.now) == 0

    assert list(tmp_path.iterdir()) == []


def test_a_dead_letter_that_was_never_written_is_spilled_with_its_reason(harness, tmp_path):
    harness.push(jobId="a", maxAttempts=1)
    harness.pull()
    harness.disconnect()

    count = spill(str(tmp_path / "jobs.db"), harness.engine.state.changes, harness.now)

    _, [entry] = read_spilled(tmp_path)
    assert count == 1
    assert (entry["job"]["id"], entry["state"], entry["reason"]) == ("a", "failed", "worker_lost")
