"""From the file to a running engine, through the real recovery."""

import gc

import apsw
import pytest

from bunqueue_trio.clock import ManualClock
from bunqueue_trio.engine.state import FactsNeededError
from bunqueue_trio.errors import StorageError
from bunqueue_trio.server.startup import load_engine
from bunqueue_trio.storage import reads, writes
from bunqueue_trio.storage.connection import MEMORY, open_writer
from tests.engine_harness import EngineHarness, snapshot_of


@pytest.fixture
def connection():
    opened = open_writer(MEMORY)
    yield opened
    opened.close(True)


@pytest.fixture
def harness(connection: apsw.Connection):
    """An engine each of whose commits reaches the connection."""
    made = EngineHarness()
    made.batches = _Applied(connection)  # type: ignore[assignment]
    return made


class _Applied(list):
    def __init__(self, connection: apsw.Connection) -> None:
        super().__init__()
        self._connection = connection

    def append(self, batch):
        writes.apply_batch(self._connection, batch, MEMORY)


def restart(connection: apsw.Connection, harness: EngineHarness, **options) -> EngineHarness:
    """The next process, a minute later by the monotonic clock of its machine."""
    clock = ManualClock(harness.now.wall_ms + 60_000, 5_000)
    engine = load_engine(connection, harness.engine.state.ids, clock, lease_grace_ms=2_000, **options)
    return EngineHarness(engine=engine, clock=clock)


def test_an_empty_file_gives_an_empty_engine(connection, harness):
    recovered = restart(connection, harness)

    assert recovered.engine.state.jobs == {}
    assert not recovered.engine.state.changes


def test_everything_that_waits_is_back_as_it_was(connection, harness):
    for number in range(5):
        harness.push(jobId=f"j{number}", priority=number % 2)
    harness.push(jobId="later", delay=3_600_000)
    harness.push("other", jobId="key", uniqueKey="k")
    harness.push(jobId="parent", dependsOn=["j0"])
    harness.send("Pause", queue="other")
    harness.send("SetStallConfig", queue="q", config={"maxStalls": 7})
    harness.commit()

    recovered = restart(connection, harness)

    assert snapshot_of(recovered.engine) == snapshot_of(harness.engine)
    assert not recovered.engine.state.changes
    assert [recovered.pull_id() for _ in range(3)] == ["j1", "j3", "j0"]
    assert recovered.push("other", jobId="again", uniqueKey="k") == "key"


def test_what_was_running_is_charged_and_dirty(connection, harness):
    harness.push(jobId="a", backoff=0)
    harness.push(jobId="b", maxAttempts=1)
    harness.pull_all()
    harness.commit()

    recovered = restart(connection, harness)

    assert recovered.engine.active_count == 0
    assert recovered.shown("a")["attempts"] == 1
    assert recovered.state("b") == "failed"
    assert recovered.engine.state.changes
    writes.apply_batch(connection, recovered.commit(), MEMORY)
    third = restart(connection, recovered)
    assert not third.engine.state.changes
    assert third.shown("a")["attempts"] == 1
    assert [job_id for job_id, *_ in third.dead_letters()] == ["b"]


def test_new_rows_follow_the_old_ones(connection, harness):
    harness.push_many("q", [{}] * 3)
    harness.commit()

    recovered = restart(connection, harness)
    recovered.push(jobId="new")

    writes.apply_batch(connection, recovered.commit(), MEMORY)
    assert connection.execute("SELECT id, rowid FROM jobs ORDER BY rowid").fetchall()[-1] == ("new", 4)


def test_completed_jobs_are_counted_and_looked_up_in_the_file(connection, harness):
    harness.push(jobId="a")
    pulled = harness.pull()
    harness.ack("a", pulled[1], result=1)
    harness.push(jobId="next", dependsOn=["a"])
    harness.commit()

    recovered = restart(connection, harness)

    assert recovered.counts() == {"waiting": 1, "completed": 1}
    with pytest.raises(FactsNeededError):
        recovered.send("GetState", id="a")
    recovered.engine.find_facts({"a": reads.find_completed(connection, "a")})
    assert recovered.state("a") == "completed"
    assert recovered.pull_id() == "next"


def test_more_than_a_page_is_read_whole(connection, harness, monkeypatch):
    monkeypatch.setattr(reads, "PAGE_ROWS", 3)
    harness.push(jobId="done")
    pulled = harness.pull()
    harness.ack("done", pulled[1])
    ids = [harness.push(jobId=f"j{n}", **({"dependsOn": ["done"]} if n % 4 == 3 else {})) for n in range(10)]
    harness.commit()

    recovered = restart(connection, harness)

    assert recovered.pull_all() == ids


def test_a_dead_letter_that_cannot_be_read_stays_in_the_file_and_is_named(connection, harness, log):
    harness.push(jobId="a", maxAttempts=1)
    pulled = harness.pull()
    harness.fail("a", pulled[1])
    connection.execute("UPDATE dlq SET entry = x'c1'")

    recovered = restart(connection, harness)

    assert recovered.dead_letters() == []
    assert [line["data"] for line in log()] == [{"queue": "q", "id": "a"}]
    assert connection.execute("SELECT count(*) FROM dlq").fetchone() == (1,)


def test_a_long_recovery_is_worth_a_line(connection, harness, log, monkeypatch):
    harness.push_many("q", [{}] * 3)
    harness.pull()
    harness.commit()
    monkeypatch.setattr("bunqueue_trio.server.startup.WORTH_A_LINE", 3)
    restart(connection, harness)
    assert log() == []

    monkeypatch.setattr("bunqueue_trio.server.startup.WORTH_A_LINE", 2)
    restart(connection, harness)

    assert [line["data"] for line in log()] == [{"active": 1, "pending": 2}]


def test_a_file_that_cannot_be_read_is_an_error_and_the_collector_runs_again(connection, harness):
    connection.execute("DROP TABLE dlq")

    with pytest.raises(StorageError):
        restart(connection, harness)

    assert gc.isenabled()


def test_receipts_know_whether_commits_reach_the_disk(connection, harness):
    recovered = restart(connection, harness, syncs_commits=True)

    reply = recovered.ask("PUSH", queue="q", data=1, durable=True, receipt=True)

    assert reply["durability"] == "synced"
