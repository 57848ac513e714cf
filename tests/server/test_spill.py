"""The last resort of a stop: what the file did not take, beside it and in the log."""

import msgpack
import pytest

from bunqueue_trio.server.spill import LOGGED_DATA_BYTES, spill
from tests.engine_harness import EngineHarness


@pytest.fixture
def harness():
    """An engine whose changes are not committed."""
    return EngineHarness(auto_commit=False)


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


def test_without_a_spill_file_the_log_still_has_the_jobs(harness, tmp_path, log):
    harness.push(jobId="a")

    count = spill(str(tmp_path / "nowhere" / "jobs.db"), harness.engine.state.changes, harness.now)

    assert count == 1
    assert [line["message"] for line in log()] == [
        "CRITICAL: the spill file cannot be written either",
        "Lost job (recover from this log if needed)",
    ]


def test_an_older_spill_file_is_never_overwritten(harness, tmp_path, log):
    older = tmp_path / f"jobs.db.lost-{int(harness.now.wall_ms)}"
    older.write_bytes(b"older")
    harness.push(jobId="a")

    spill(str(tmp_path / "jobs.db"), harness.engine.state.changes, harness.now)

    assert older.read_bytes() == b"older"
    assert len(log()) == 2


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
