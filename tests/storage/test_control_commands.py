"""Drain, Obliterate, RetryCompleted and the dead-letter policies over a real file, and over a restart."""

from collections.abc import Iterator

import pytest
from msgspec import UNSET

from bunqueue_trio.storage import reads
from tests.stored_engine import Stored


@pytest.fixture
def stored() -> Iterator[Stored]:
    stored = Stored()
    yield stored
    stored.file.close()


def filled(stored: Stored, queue: str) -> None:
    """A job in every state."""
    stored.bury(f"{queue}-failed", queue)
    stored.run(f"{queue}-completed", queue, backoff={"type": "fixed", "delay": 5})
    stored.push(queue, jobId=f"{queue}-active")
    stored.pull(queue)
    stored.push(queue, jobId=f"{queue}-waiting", debounceId="d")
    stored.push(queue, jobId=f"{queue}-delayed", delay=60_000)
    stored.push(queue, jobId=f"{queue}-parked", dependsOn=[f"{queue}-active"])
    stored.send("Pause", queue=queue)
    stored.send("SetDlqConfig", queue=queue, config={"maxEntries": 9})


def test_obliterate_leaves_no_row_of_the_queue_and_all_of_the_others(stored):
    filled(stored, "q")
    filled(stored, "r")

    stored.send("Obliterate", queue="q")
    stored.commit()

    assert stored.rows("jobs", "id") == ["r-active", "r-completed", "r-delayed", "r-parked", "r-waiting"]
    assert stored.rows("job_results") == ["r-completed"]
    assert stored.rows("bqt_jobs") == ["r-completed", "r-waiting"]
    assert stored.rows("dlq") == ["r-failed"]
    assert stored.rows("queue_state", "name") == stored.rows("bqt_queues", "queue") == ["r"]
    stored.restart()
    assert stored.ask("ListQueues")["queues"] == ["r"]
    assert stored.counts("r") == {
        "delayed": 2, "completed": 1, "failed": 1, "paused": 1, "waiting-children": 1,
    }  # fmt: skip
    assert stored.counts("q") == {}


def test_completed_rows_that_only_the_file_knows_go_too(stored):
    for n in range(3):
        stored.run(f"a{n}")
    stored.restart()

    stored.send("Obliterate", queue="q")

    assert stored.rows("jobs", "id") == stored.rows("job_results") == []


def test_a_dependent_of_an_obliterated_completed_job_waits_for_the_others_only(stored):
    stored.run("done")
    stored.push("r", jobId="open")
    stored.push("r", jobId="heir", dependsOn=["done", "open"])
    stored.push("r", jobId="unrelated", dependsOn=["open"])

    stored.send("Obliterate", queue="q")
    stored.commit()

    assert stored.rows("bqt_finished") == ["done"]
    stored.restart()
    assert stored.job("heir").missing == {"open"}
    stored.ack(*stored.pull("r"))
    assert stored.state("heir") == "waiting"


def test_so_does_one_of_a_completed_job_whose_time_in_the_file_is_over(stored):
    stored.run("done")
    stored.push("r", jobId="open")
    stored.push("r", jobId="heir", dependsOn=["done", "open"])

    stored.engine.expire_completed([("done", "q")], stored.now.wall_ms + 1)
    stored.commit()

    assert stored.rows("jobs", "id") == ["heir", "open"]
    stored.restart()
    assert stored.job("heir").missing == {"open"}


@pytest.mark.parametrize("landed", [False, True])
def test_so_does_one_of_a_job_that_was_just_completing(stored, landed):
    stored.push(jobId="done")
    pulled = stored.pull()
    stored.push("r", jobId="open")
    stored.push("r", jobId="heir", dependsOn=["done", "open"])
    with stored.pending():
        stored.ack(*pulled)
        flight = stored.take() if landed else None
        stored.send("Obliterate", queue="q")
        if flight is not None:
            stored.land(flight)
        stored.commit()

    stored.restart()
    assert stored.job("heir").missing == {"open"}


def test_a_dead_letter_that_cannot_be_read_goes_with_its_queue(stored):
    stored.push()
    stored.commit()
    stored.file.execute("INSERT INTO dlq(job_id, queue, entry, entered_at) VALUES ('x', 'q', x'c1', 1)")

    stored.send("Obliterate", queue="q")

    assert stored.rows("dlq") == []


def test_a_rebirth_right_after_obliterate_counts_right(stored):
    """The completed life goes with its queue, so the rebirth must not be counted out a second time."""
    stored.run("a")
    with stored.pending():
        stored.send("Obliterate", queue="q")
        stored.push(jobId="a")
        stored.ack(*stored.pull(), result=2)
        stored.commit()
    assert stored.counts() == {"completed": 1}

    stored.push(jobId="a")
    stored.commit()
    assert stored.counts() == {"waiting": 1}


def test_a_rebirth_right_before_obliterate_counts_right(stored):
    stored.run("a")
    with stored.pending():
        stored.push(jobId="a")
        stored.send("Obliterate", queue="q")
        stored.commit()
    stored.run("b")
    stored.restart()
    stored.push(jobId="b")
    stored.commit()

    assert stored.counts() == {"waiting": 1}
    assert stored.rows("jobs", "id") == ["b"]


def test_drained_rows_do_not_come_back(stored):
    filled(stored, "q")
    stored.send("Resume", queue="q")
    stored.commit()

    assert stored.send("Drain", queue="q").count == 2

    assert stored.rows("jobs", "id") == ["q-active", "q-completed", "q-parked"]
    assert stored.rows("bqt_jobs") == ["q-completed"]


# the policy


def test_the_policy_comes_back_after_a_restart(stored):
    config = {"autoRetry": True, "autoRetryInterval": 1_000, "maxAutoRetries": 7, "maxAge": None, "maxEntries": 5}
    stored.send("SetDlqConfig", queue="only", config=config)
    stored.send("SetDlqConfig", queue="both", config={"maxEntries": 4})
    stored.send("Pause", queue="both")

    stored.restart()

    assert stored.ask("GetDlqConfig", queue="only")["config"] == config
    assert stored.send("GetDlqConfig", queue="both").config.max_entries == 4
    assert stored.send("IsPaused", queue="both").paused
    assert sorted(stored.ask("ListQueues")["queues"]) == ["both", "only"]
    stored.send("SetDlqConfig", queue="both", config={"maxEntries": 10_000})
    assert stored.rows("bqt_queues", "queue") == ["only"]
    stored.restart()
    assert stored.send("IsPaused", queue="both").paused


def test_a_policy_that_cannot_be_read_is_the_default_one(stored):
    stored.file.execute("INSERT INTO bqt_queues(queue, dlq_config) VALUES ('q', x'c1'), ('r', NULL)")

    stored.restart()

    assert stored.send("GetDlqConfig", queue="q").config.max_entries == 10_000


def test_evicted_letters_do_not_come_back(stored):
    """CD-15, R180."""
    stored.send("SetDlqConfig", queue="q", config={"maxEntries": 2})
    for name in "abcdef":
        stored.bury(name)
    stored.commit()

    assert stored.rows("dlq") == ["e", "f"]
    stored.restart()
    assert [letter[0] for letter in stored.dead_letters()] == ["e", "f"]
    assert stored.send("RetryDlq", queue="q", jobId="e").count == 1


def test_an_eviction_that_a_crash_has_cut_off_is_made_up_for(stored):
    stored.send("SetDlqConfig", queue="q", config={"maxEntries": 1})
    stored.bury("a")
    stored.bury("b")  # the deletion of "a" is left to the next flush, which never comes

    stored.restart()

    assert [letter[0] for letter in stored.dead_letters()] == ["b"]
    stored.commit()
    assert stored.rows("dlq") == ["b"]


def test_letters_grow_old_over_a_restart(stored):
    stored.send("SetDlqConfig", queue="q", config={"maxAge": 60_000})
    stored.bury("a")
    stored.restart()

    stored.advance(60_000)
    stored.commit()

    assert stored.state("a") == "unknown"
    assert stored.rows("dlq") == []


def test_an_automatic_retry_exists_once_after_a_restart_and_its_count_goes_on(stored):
    """CD-17: the entry goes in the transaction that brings the job back."""
    stored.send("SetDlqConfig", queue="q", config={"autoRetry": True, "autoRetryInterval": 1_000, "maxAutoRetries": 2})
    stored.bury("a", data={"n": 1})
    stored.restart()
    stored.advance(1_000)
    assert stored.rows("dlq") == []

    stored.restart()

    assert stored.counts() == {"waiting": 1}
    stored.fail_next()
    letter = stored.engine.state.queues["q"].letters["a"]
    assert (letter.retry_count, letter.last_retry_at) == (1, stored.now.wall_ms)
    stored.advance(1_000)
    stored.fail_next()
    stored.restart()
    assert stored.engine.state.queues["q"].letters["a"].retry_count == 2
    stored.advance(3_600_000)
    assert stored.state("a") == "failed"


# completed jobs that run again


def test_a_rerun_survives_a_restart_with_its_old_result(stored):
    stored.run("a", uniqueKey="u", backoff={"type": "fixed", "delay": 5})

    assert stored.ask_file("RetryCompleted", queue="q", id="a").count == 1
    stored.restart()

    shown = stored.shown("a")
    assert (shown["state"], shown["progress"], shown["completedAt"], shown["attempts"]) == ("waiting", 0, None, 0)
    assert shown["backoffConfig"]["delay"] == 5
    assert bytes(stored.ask_file("GetResult", id="a").result) == b"\xa1a"
    assert stored.push(uniqueKey="u") == "a"
    assert stored.counts() == {"waiting": 1}
    stored.ack(*stored.pull(), result="new")
    stored.restart()
    assert bytes(stored.ask_file("GetResult", id="a").result) == b"\xa3new"
    assert stored.counts() == {"completed": 1}


def test_a_second_completion_without_a_result_leaves_none(stored):
    stored.run("a")
    stored.ask_file("RetryCompleted", queue="q", id="a")
    stored.ack(*stored.pull())

    assert stored.rows("job_results") == []
    stored.restart()
    assert stored.ask_file("GetResult", id="a").result is UNSET


def test_jobs_that_wait_for_a_rerun_wait_over_a_restart(stored):
    stored.run("a")
    stored.ask_file("RetryCompleted", queue="q", id="a")
    stored.push(jobId="heir", dependsOn=["a"])
    stored.commit()

    stored.restart()

    assert stored.state("heir") == "waiting-children"
    stored.ack(*stored.pull())
    assert stored.state("heir") == "waiting"


def test_a_rerun_goes_with_all_it_has(stored):
    stored.run("a")
    stored.ask_file("RetryCompleted", queue="q", id="a")

    stored.send("Cancel", id="a")

    assert stored.rows("jobs", "id") == stored.rows("job_results") == stored.rows("bqt_jobs") == []


def test_a_completed_row_that_is_gone_is_not_made_again(stored):
    stored.run("a")
    with stored.pending():
        stored.send("RetryCompleted", queue="q", id="a")
        stored.file.execute("DELETE FROM jobs")
        stored.commit()

    assert stored.rows("jobs", "id") == stored.rows("bqt_jobs") == []
    assert "a" not in stored.engine.state.jobs


def test_pages_hold_what_completed_in_the_order_of_the_pushes(stored):
    for name in "abc":
        stored.run(name)
    stored.run("other", "r")
    stored.push(jobId="live")
    stored.commit()

    first = reads.completed_page(stored.file, "q", -1, 2)
    second = reads.completed_page(stored.file, "q", first[-1][0], 2)

    assert [[one.record.id for _, one in page] for page in (first, second)] == [["a", "b"], ["c"]]
    assert bytes(first[0][1].result) == b"\xa1a"


def test_the_queries_use_their_indexes(stored):
    sql = f"EXPLAIN QUERY PLAN {reads.COMPLETED_OF_QUEUE}"
    plan = [row[3] for row in stored.file.execute(sql, ("q", 0, 10))]
    assert any("idx_jobs_queue_state" in step for step in plan), plan
    assert not any("TEMP B-TREE" in step for step in plan), plan
