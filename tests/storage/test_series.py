"""Metrics of one queue: counted with the commit that ends a job, kept in the file, read by the minute."""

import random

import pytest

from bunqueue_trio.engine import series
from bunqueue_trio.engine.series import MINUTES_KEPT, Series
from bunqueue_trio.ids import Ids
from bunqueue_trio.model.commands import Metrics
from bunqueue_trio.server.startup import load_engine
from bunqueue_trio.storage import lists
from bunqueue_trio.storage.records import SERIES_SLOTS, series_rows
from tests.engine_harness import SECRET
from tests.stored_engine import Stored

MINUTE = 60_000
NOTHING = {"meta": {"count": 0, "prevTS": 0, "prevCount": 0}, "data": [], "count": 0}


class Counting(Stored):
    """An engine over a file, at the beginning of a minute."""

    def __init__(self) -> None:
        super().__init__()
        self._lend()
        self.clock.advance(MINUTE - self.now.wall_ms % MINUTE)

    def restart(self) -> None:
        super().restart()
        self._lend()

    def _lend(self) -> None:
        """What the server does."""
        self.engine.lend({Metrics: Series(self.engine.state).metrics})

    def metrics(self, queue: str = "q", kind: str = "completed", **fields: object) -> dict[str, object]:
        command, question = self.question("Metrics", queue=queue, type=kind, **fields)
        lists.answer(self.file, question)
        return self.answered(command, question).data

    def count(self, kind: str = "completed", queue: str = "q") -> object:
        return self.metrics(queue, kind)["meta"]["count"]

    def complete(self, count: int = 1, queue: str = "q", **options: object) -> None:
        self.push_many(queue, [options] * count)
        self.send("ACKB", ids=[self.pull(queue)[0] for _ in range(count)], tokens=self.tokens(count, queue))

    def tokens(self, count: int, queue: str) -> list[str]:
        jobs = self.engine.state.held[1].values()
        return [job.lease.token for job in jobs if job.record.queue == queue][:count]


@pytest.fixture
def stored() -> Counting:
    return Counting()


def test_a_queue_in_which_nothing_has_ended(stored):
    stored.push()

    assert stored.metrics() == NOTHING
    assert stored.metrics("none", "failed") == NOTHING
    assert "none" not in stored.engine.state.queues


def test_completed_and_failed_are_counted_apart_and_by_queue(stored):
    stored.complete(3)
    stored.bury("a")
    stored.complete(2, "r")

    assert stored.metrics() == {
        "meta": {"count": 3, "prevTS": stored.now.wall_ms, "prevCount": 3}, "data": [3], "count": 1,
    }  # fmt: skip
    assert stored.metrics(kind="failed")["data"] == [1]
    assert stored.metrics("r")["data"] == [2]
    assert stored.metrics("r", "failed") == NOTHING


def test_only_final_failures_count(stored):
    stored.push(jobId="a", maxAttempts=2, backoff=0)
    stored.fail_next()
    assert stored.count("failed") == 0
    stored.advance(10)
    stored.fail_next()
    assert stored.count("failed") == 1


def test_jobs_that_leave_nothing_behind_count_too(stored):
    stored.complete(2, removeOnComplete=True)
    stored.bury("a", removeOnFail=True)

    assert (stored.count(), stored.count("failed")) == (2, 1)


def test_a_time_limit_and_a_parent_that_fails_with_its_child_count(stored):
    stored.push(jobId="slow", timeout=100, maxAttempts=1)
    stored.pull()
    stored.advance(200)
    stored.commit()
    assert stored.count("failed") == 1
    stored.push("c", jobId="child", parentId="parent", failParentOnFailure=True, maxAttempts=1)
    stored.push("p", jobId="parent", dependsOn=["child"])
    stored.fail_next("c")
    assert (stored.count("failed", "c"), stored.count("failed", "p")) == (1, 1)
    stored.push("c", jobId="child2", parentId="parent2", failParentOnFailure=True, timeout=100, maxAttempts=1)
    stored.push("p", jobId="parent2", dependsOn=["child2"])
    stored.pull("c")
    stored.advance(200)
    stored.commit()
    assert (stored.count("failed", "c"), stored.count("failed", "p")) == (2, 2)
    totals = {name: queue.total_failed for name, queue in stored.engine.state.queues.items()}
    assert totals == {"q": 1, "c": 2, "p": 2}


def test_minutes_newest_first_with_gaps(stored):
    stored.complete(2)
    stored.clock.advance(MINUTE)
    stored.complete(1)
    stored.clock.advance(3 * MINUTE)
    stored.complete(4)
    last = stored.now.wall_ms
    stored.clock.advance(5 * MINUTE)

    found = stored.metrics()
    assert found["meta"] == {"count": 7, "prevTS": last, "prevCount": 4}
    assert (found["data"], found["count"]) == ([4, 0, 0, 1, 2], 5)


@pytest.mark.parametrize(
    ("start", "end", "data"),
    [
        (0, -1, [4, 0, 1, 2]),
        (0, 0, [4]),
        (1, 2, [0, 1]),
        (2, -1, [1, 2]),
        (3, 99, [2]),
        (4, -1, []),
        (2, 1, []),
        (None, None, [4, 0, 1, 2]),
        (0.0, -1.0, [4, 0, 1, 2]),
    ],
)
def test_a_range_of_minutes(stored, start, end, data):
    for count, minutes in ((2, 1), (1, 2), (4, 0)):
        stored.complete(count)
        stored.clock.advance(minutes * MINUTE)

    found = stored.metrics(start=start, end=end)
    assert (found["data"], found["count"]) == (data, 4)


def test_two_weeks_are_kept_and_the_total_counts_all(stored):
    stored.complete(5)
    stored.clock.advance(MINUTE)
    stored.complete(1)
    stored.clock.advance((MINUTES_KEPT - 2) * MINUTE)
    stored.complete(2)
    assert stored.metrics()["count"] == MINUTES_KEPT
    stored.clock.advance(MINUTE)
    stored.complete(3)

    found = stored.metrics()
    assert (found["count"], found["meta"]["count"]) == (MINUTES_KEPT, 11)
    assert (found["data"][:2], found["data"][-1], sum(found["data"])) == ([3, 2], 1, 6)
    stored.clock.advance(MINUTES_KEPT * MINUTE)
    stored.complete(1)
    found = stored.metrics()
    assert (found["data"], found["meta"]["count"]) == ([1], 12)


def test_the_file_holds_no_more_rows_than_minutes_are_kept():
    assert SERIES_SLOTS == MINUTES_KEPT
    slots = {series_rows("q", 1, 0, minute * MINUTE)[1][1] for minute in range(3 * SERIES_SLOTS)}

    assert slots == set(range(SERIES_SLOTS))


def test_a_clock_that_was_ahead_for_a_while(stored):
    """Given that minutes of the future are hidden as soon as something ends in the present, and come to be used."""
    stored.complete(1)
    stored.clock.skew(MINUTES_KEPT * MINUTE * 3 + MINUTE)
    stored.complete(2)
    assert stored.metrics()["data"] == [2]
    stored.clock.skew(-MINUTES_KEPT * MINUTE * 3)
    stored.complete(4)

    found = stored.metrics()
    assert (found["data"], found["meta"]["count"], found["meta"]["prevCount"]) == ([4, 1], 7, 4)
    assert found["meta"]["prevTS"] == stored.now.wall_ms


def test_counts_survive_restarts_and_go_on(stored):
    stored.complete(2)
    stored.bury("a")
    before = (stored.metrics(), stored.metrics(kind="failed"))
    stored.restart()
    assert (stored.metrics(), stored.metrics(kind="failed")) == before
    stored.complete(1)

    assert stored.metrics()["data"] == [3]


def test_what_had_not_committed_when_the_process_was_killed_is_not_counted(stored):
    stored.complete(1)
    stored.push(jobId="a")
    with stored.pending():
        stored.ack(*stored.pull())
        stored.take()
    stored.restart()

    assert stored.count() == 1


def test_the_counts_are_in_the_transaction_of_the_jobs(stored):
    stored.complete(3)
    batch = stored.batches[-1]

    assert len(batch.states) + len(batch.full) == 3
    assert [(row[0], row[3], row[4]) for row in batch.series] == [("q", 3, 0), ("q", 3, 0)]


def test_a_commit_that_fails_counts_nothing(stored):
    stored.push(jobId="a")
    pulled = stored.pull()
    with stored.pending():
        stored.ack(*pulled)
        stored.reject()
    assert stored.count() == 0
    stored.ack(*pulled)
    assert stored.count() == 1


def test_a_failure_that_nobody_asked_for_is_counted_once_when_it_gets_into_the_file(stored):
    stored.push(jobId="slow", timeout=100, maxAttempts=1)
    stored.push(jobId="slower", timeout=5_000, maxAttempts=1)
    stored.pull()
    stored.pull()
    with stored.pending():
        stored.advance(200)
        flight = stored.take()
        stored.advance(6_000)
        stored.crash(flight)
        assert stored.count("failed") == 0
        stored.reject()
        flight = stored.take()
        stored.withdraw(flight)
        stored.commit()

    assert stored.count("failed") == 2
    stored.commit()
    assert stored.count("failed") == 2


def test_a_commit_that_was_not_tried_counts_when_it_comes(stored):
    stored.push(jobId="a")
    pulled = stored.pull()
    with stored.pending():
        stored.ack(*pulled)
        stored.withdraw(stored.take())
        stored.commit()

    assert stored.count() == 1


def test_obliterate_forgets_and_what_ends_afterwards_counts(stored):
    stored.complete(3)
    stored.bury("a")
    stored.complete(1, "r")
    stored.send("Obliterate", queue="q")

    assert (stored.metrics(), stored.metrics(kind="failed")) == (NOTHING, NOTHING)
    assert stored.count(queue="r") == 1
    stored.complete(2)
    assert stored.count() == 2


def test_what_ends_in_the_transaction_of_an_obliterate(stored):
    """Given one job that has just completed, and one that comes and completes before the commit."""
    stored.push(jobId="before")
    stored.push(jobId="slow", timeout=50, maxAttempts=1)
    pulled, _ = stored.pull(), stored.pull()
    with stored.pending():
        stored.ack(*pulled)
        stored.advance(60)
        stored.send("Obliterate", queue="q")
        stored.push(jobId="after")
        stored.ack(*stored.pull())
        stored.commit()
        stored.commit()

    assert (stored.count(), stored.count("failed")) == (1, 0)


def test_a_queue_that_memory_has_forgotten_is_obliterated_too(stored):
    stored.complete(2, removeOnComplete=True)
    stored.advance(60_000)
    assert "q" not in stored.engine.state.queues
    assert stored.count() == 2
    stored.send("Obliterate", queue="q")

    assert stored.metrics() == NOTHING
    assert stored.rows("bqt_series", "queue") == []


def test_a_failed_obliterate_forgets_nothing(stored):
    stored.complete(2)
    with stored.pending():
        stored.send("Obliterate", queue="q")
        stored.reject()

    assert stored.count() == 2


def test_recovery_reads_nothing_of_it_and_memory_holds_nothing(stored):
    rows = [row for n in range(10_000) for row in series_rows(f"queue-{n}", 1, 1, n * MINUTE)]
    stored.file.executemany("INSERT INTO bqt_series VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
    engine = load_engine(stored.file, Ids(SECRET, random.Random(2)), stored.clock, lease_grace_ms=2_000)

    assert engine.state.queues == {}
    assert stored.metrics("queue-77")["meta"]["prevTS"] == 77 * MINUTE


def test_a_count_beyond_32_bits_is_told_as_a_float(stored):
    stored.complete(1)
    stored.file.execute("UPDATE bqt_series SET completed = ? WHERE slot = -1", (series.COUNT_MAX + 1,))

    count = stored.count()
    assert (count, type(count)) == (series.COUNT_MAX + 1, float)
