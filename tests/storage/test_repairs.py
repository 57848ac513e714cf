"""A file with cells that no server writes: a start from it goes on, and does not do the same work again each time."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest

from bunqueue_trio.storage.repairs import repair_keys, sweep_side_rows
from tests.stored_engine import Stored


@pytest.fixture
def store() -> Stored:
    return Stored()


def set_cell(store: Stored, column: str, value: Any) -> None:
    """One job, of which a cell is changed in the file."""
    store.push(jobId="a")
    store.commit()
    store.file.execute(f"UPDATE jobs SET {column} = ?", (value,))


@pytest.mark.parametrize(("key", "name"), [(b"a", "a"), (b"\xff", "\ufffd"), (None, "unnamed-1")])
def test_a_job_whose_id_is_no_text_runs_once(store: Stored, key: Any, name: str) -> None:
    set_cell(store, "id", key)

    store.restart()

    pulled = store.pull()
    assert pulled is not None
    assert pulled[0] == name
    store.ack(*pulled)
    store.commit()
    store.restart()
    assert store.pull() is None


def test_a_key_whose_text_is_taken_goes(store: Stored) -> None:
    store.push(jobId="a")
    store.commit()
    store.file.execute("INSERT INTO jobs(id, queue, data, created_at, run_at) VALUES (x'61', 'q', x'01', 1, 1)")

    assert repair_keys(store.file) == ["jobs.a"]

    assert store.rows("jobs", "id") == ["a"]
    assert repair_keys(store.file) == []


@pytest.mark.parametrize("table", ["job_results(job_id, completed_at)", "dlq(job_id, entered_at, queue, entry)"])
def test_keys_of_other_tables_are_made_text(store: Stored, table: str) -> None:
    values = "x'61', 5" + (", 'q', x'80'" if table.startswith("dlq") else "")
    store.file.execute(f"INSERT INTO {table} VALUES ({values})")

    assert len(repair_keys(store.file)) == 1
    assert store.rows(table.partition("(")[0]) == ["a"]


def test_a_cron_whose_name_is_no_text_is_one_cron(store: Stored) -> None:
    store.send("Cron", name="n", queue="q", data=1, schedule="* * * * *")
    store.commit()
    store.file.execute("UPDATE cron_jobs SET name = CAST(name AS BLOB), next_run = 1")

    store.restart()
    store.commit()
    store.restart()

    assert [cron["name"] for cron in store.ask("CronList")["crons"]] == ["n"]


@pytest.mark.parametrize("column", ["attempts", "max_attempts", "stall_count", "priority"])
@pytest.mark.parametrize("value", [2**63 - 1, -(2**63), 1e300, float("inf")])
@pytest.mark.parametrize("state", ["waiting", "active"])
def test_counts_beyond_all_bounds_are_no_obstacle(store: Stored, column: str, value: Any, state: str) -> None:
    set_cell(store, column, value)
    store.file.execute("UPDATE jobs SET state = ?", (state,))

    store.restart()
    store.commit()  # what recovery has changed can be stored
    store.restart()

    assert store.engine.state.jobs or store.rows("dlq") == ["a"]


TIMES = ["created_at", "run_at", "started_at", "completed_at", "last_heartbeat", "ttl", "timeout", "stall_timeout"]


@pytest.mark.parametrize("column", [*TIMES, "backoff", "progress"])
@pytest.mark.parametrize("value", [float("inf"), float("-inf")])
@pytest.mark.parametrize("state", ["waiting", "active"])
def test_moments_without_end_are_no_obstacle(store: Stored, column: str, value: float, state: str) -> None:
    set_cell(store, column, value)
    store.file.execute("UPDATE jobs SET state = ?", (state,))

    store.restart()
    store.commit()
    store.clock.advance(120_000)
    store.tick()
    store.commit()

    assert store.engine.state.jobs or store.rows("dlq")


@pytest.mark.parametrize("column", ["rate_limit", "rate_limit_duration", "concurrency_limit", "rate_limit_expires_at"])
@pytest.mark.parametrize("value", [0, -5, 2**63 - 1, float("inf"), b"x", "x"])
def test_limits_that_are_none_are_no_obstacle(store: Stored, column: str, value: Any) -> None:
    store.push(jobId="a")
    store.send("RateLimit", queue="q", limit=5)
    store.send("SetConcurrency", queue="q", limit=5)
    store.commit()
    store.file.execute(f"UPDATE queue_state SET {column} = ?", (value,))

    store.restart()
    store.clock.advance(10)
    store.pull()  # given or not: what the limit was nobody can know
    store.tick()
    store.commit()

    assert store.state("a") in ("waiting", "active")


POLICIES = [{"maxEntries": -1}, {"maxEntries": 0}, {"maxAge": -1}, {"autoRetryInterval": 1e308}, {"maxAutoRetries": -1}]


@pytest.mark.parametrize("policy", [*POLICIES, {"maxAge": float("inf")}, {"maxAge": 1e300}, []])
def test_a_policy_that_cannot_be_kept_to_is_no_obstacle(store: Stored, policy: Any) -> None:
    store.bury("a")
    store.send("SetDlqConfig", queue="q", config={"autoRetry": True})
    store.commit()
    store.file.execute("UPDATE bqt_queues SET dlq_config = ?", (msgpack.packb(policy),))

    store.restart()
    store.commit()
    store.clock.advance(120_000)
    store.tick()
    store.commit()

    assert store.rows("dlq") == ["a"]


def test_what_we_keep_of_a_job_stays_as_long_as_the_job(store: Stored) -> None:
    store.send("PUSH", queue="q", name="send", data=None, jobId="a")
    store.commit()
    store.file.execute("INSERT INTO bqt_jobs VALUES ('stray', x'80')")

    assert sweep_side_rows(store.file) == 1

    assert store.rows("bqt_jobs") == ["a"]
    assert sweep_side_rows(store.file) == 0


def test_a_job_does_not_inherit_what_was_said_of_one_that_another_server_has_deleted(store: Stored) -> None:
    store.send("PUSH", queue="q", name="send", data=None, jobId="a")
    store.commit()
    store.file.execute("DELETE FROM jobs")
    store.restart()

    store.push(jobId="a")
    store.commit()
    store.restart()

    assert store.form(store.ask_file("GetJob", id="a").job) == (None, {"n": 1})
    assert store.rows("bqt_jobs") == []
