"""The bounded window over finished jobs."""

import msgpack
from msgspec import Raw

from bunqueue_trio.engine import history as module
from bunqueue_trio.engine.history import History
from bunqueue_trio.model.entries import CompletedJob
from bunqueue_trio.model.job import JobRecord
from tests.engine_harness import EngineHarness, needs_facts


def done(name: str, size: int = 10, result_size: int | None = None) -> CompletedJob:
    record = JobRecord(name, "q", Raw(msgpack.packb("x" * size)), 0.0, 0.0, 0.0)
    return CompletedJob(record, None if result_size is None else Raw(msgpack.packb("y" * result_size)))


def test_the_newest_jobs_stay():
    history = History(max_jobs=3)
    for name in "abcd":
        history.add(done(name))

    assert [name for name in "abcd" if history.get(name)] == ["b", "c", "d"]
    assert (len(history), history.has_evicted) == (3, True)


def test_nothing_is_evicted_within_the_bounds():
    history = History(max_jobs=3)
    for name in "abc":
        history.add(done(name))

    assert not history.has_evicted


def test_large_payloads_push_others_out():
    history = History(max_bytes=1_000)
    history.add(done("a", 400))
    history.add(done("b", 100, 400))
    assert not history.has_evicted

    history.add(done("c", 300))

    assert (history.get("a"), history.get("b") is not None) == (None, True)


def test_the_newest_stays_however_large():
    history = History(max_bytes=100)
    history.add(done("a"))
    history.add(done("b", 5_000))

    assert history.get("b") is not None
    assert len(history) == 1


def test_taking_a_job_out_frees_its_bytes():
    history = History(max_bytes=1_000)
    for _ in range(20):
        history.add(done("a", 900))
        assert history.pop("a") is not None

    assert history.pop("a") is None
    assert not history.has_evicted


def test_finished_ids_are_known_and_bounded(monkeypatch):
    monkeypatch.setattr(module, "MAX_FINISHED_IDS", 2)
    history = History()
    for name in "abc":
        history.remember_finished(name)

    assert [history.is_finished(name) for name in "abc"] == [False, True, True]
    history.forget_finished("b")
    history.forget_finished("never")
    assert not history.is_finished("b")


def test_a_kept_job_is_finished():
    history = History()
    history.add(done("a"))

    assert history.is_finished("a")


def test_counts_go_on_when_the_window_is_full():
    harness = EngineHarness(history=History(max_jobs=2))
    ids = [harness.push() for _ in range(5)]
    for _ in ids:
        harness.ack(*harness.pull())

    assert harness.counts() == {"completed": 5}
    assert harness.state(ids[4]) == "completed"
    assert needs_facts(harness, "GetState", id=ids[0]) == [ids[0]]


def test_completed_jobs_are_let_go_when_their_time_is_over():
    harness = EngineHarness()
    for name in "ab":
        harness.push(jobId=name)
        harness.ack(*harness.pull())
    moment = harness.now.wall_ms
    harness.clock.advance(10)
    harness.push(jobId="b")
    harness.ack(*harness.pull())
    harness.push(jobId="c")
    harness.commit()

    harness.engine.expire_completed([("a", "q"), ("b", "q"), ("c", "q"), ("d", "gone")], moment)
    batch = harness.commit()

    assert batch.deleted == ["a", "d"]
    assert (harness.state("a"), harness.state("b"), harness.state("c")) == ("unknown", "completed", "waiting")
    assert harness.counts() == {"completed": 1, "waiting": 1}
    assert harness.engine.completed_count == 1
