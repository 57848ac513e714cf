"""One batch, one transaction. Source: R12-R16, K14, K18, K27; persistence 6, 12.1, PD-2, PD-4."""

import os
import threading
import time

import apsw
import pytest

from bunqueue_trio.errors import DiskFullError, StorageError
from bunqueue_trio.model.entries import QueueSettings, RateLimit
from bunqueue_trio.model.job import replace
from bunqueue_trio.storage import reads, writes
from bunqueue_trio.storage.batch import STATE_COLUMNS, Batch
from bunqueue_trio.storage.records import (
    entry_blob,
    extra_blob,
    full_row,
    link_row,
    plain_row,
    settings_row,
    state_row,
)
from tests.storage.samples import T0, full_job, job, letter, plain, raw, same_job

TABLES = ("jobs", "job_results", "dlq", "queue_state", "bqt_jobs", "bqt_finished")


def contents(connection: apsw.Connection) -> dict[str, list[tuple]]:
    return {table: connection.execute(f"SELECT * FROM {table} ORDER BY 1").fetchall() for table in TABLES}


def select(connection: apsw.Connection, sql: str) -> list[tuple]:
    return connection.execute(sql).fetchall()


def everything() -> Batch:
    """A batch with something in each field, over a file that holds ``old`` and ``gone``."""
    return Batch(
        reborn=["old"],
        deleted=["gone"],
        letters_gone=["dead"],
        plain=[plain_row(job("old"), 10, "waiting")],
        full=[full_row(full_job(), 11, "delayed")],
        states=[state_row(job("old", started_at=T0 + 9), "active")],
        results=[("r", b"\xc0", T0)],
        letters=[("gone", "mail", entry_blob(letter(job("gone"))), T0)],
        extras=[("everything", extra_blob(full_job(), key_expires_at=T0, is_from_cron=True))],
        settings=[settings_row("mail", QueueSettings(paused=True))],
        settings_gone=["other"],
        finished=["f1", "f2"],
        finished_gone=["f0"],
    )


@pytest.fixture
def prepared(writer, path):
    """Rows for `everything` to replace and delete."""
    writes.apply_batch(
        writer,
        Batch(
            plain=[plain_row(job("old"), 1, "waiting"), plain_row(job("gone"), 2, "waiting")],
            results=[("old", b"\x01", T0), ("gone", b"\x02", T0)],
            letters=[("dead", "mail", b"\x80", T0), ("dead", "mail", b"\x80", T0), ("old", "mail", b"\x80", T0)],
            extras=[("gone", b"\x80"), ("old", b"\x80")],
            settings=[settings_row("other", QueueSettings(paused=True))],
            finished=["f0"],
        ),
        path,
    )
    return writer


# What is written ----------------------------------------------------------------------------------------------------


def test_every_field_of_a_batch_is_applied(prepared, path):
    report = writes.apply_batch(prepared, everything(), path)

    assert select(prepared, "SELECT rowid, id, state, started_at FROM jobs ORDER BY rowid") == [
        (10, "old", "active", T0 + 9),
        (11, "everything", "delayed", T0 + 3),
    ]
    assert select(prepared, "SELECT * FROM job_results") == [("r", b"\xc0", T0)]
    assert select(prepared, "SELECT job_id, queue, entered_at FROM dlq") == [("gone", "mail", T0)]
    assert select(prepared, "SELECT job_id FROM bqt_jobs") == [("everything",)]
    assert select(prepared, "SELECT name, paused FROM queue_state") == [("mail", 1)]
    assert select(prepared, "SELECT job_id FROM bqt_finished ORDER BY 1") == [("f1",), ("f2",)]
    assert report.forgotten == []
    assert report.wal_bytes == os.path.getsize(path + "-wal") > 0
    assert report.duration_ms > 0


def test_defaults_of_the_schema_fill_a_plain_row(writer, path):
    writes.apply_batch(writer, Batch(plain=plain(1)), path)

    [row] = writer.execute("SELECT attempts, max_attempts, backoff, lifo, progress, stall_count, ttl FROM jobs")
    assert row == (0, 3, 1000, 0, 0, 0, None)


def test_storage_classes_are_those_of_the_reference(writer, path):
    # Time stamps are floats in memory; INTEGER affinity makes whole ones integers in the file.
    writes.apply_batch(writer, Batch(full=[full_row(full_job(), 1, "waiting")]), path)

    [kinds] = writer.execute(
        "SELECT typeof(created_at), typeof(run_at), typeof(started_at), typeof(data), typeof(timeline), typeof(lifo)"
        " FROM jobs"
    )
    assert kinds == ("integer", "real", "integer", "blob", "blob", "integer")


@pytest.mark.parametrize("record", [job("plain", custom_id="plain"), full_job()])
def test_a_record_survives_the_file(writer, path, record):
    blob = extra_blob(record, key_expires_at=T0 + 1, is_from_cron=False)
    writes.apply_batch(writer, Batch(full=[full_row(record, 5, "waiting")], extras=[(record.id, blob)]), path)

    [stored] = reads.pending_jobs(writer)

    assert same_job(stored.record, record)
    assert (stored.seq, stored.key_expires_at, stored.damage) == (5, T0 + 1, ())


def test_an_upsert_keeps_the_rowid_and_changes_all_else(writer, path):
    writes.apply_batch(writer, Batch(plain=plain(3)), path)
    changed = full_job("j00001")

    writes.apply_batch(writer, Batch(full=[full_row(changed, 2, "delayed")]), path)
    writes.apply_batch(writer, Batch(full=[full_row(changed, 77, "waiting")]), path)

    assert select(writer, "SELECT rowid, id FROM jobs ORDER BY rowid") == [(1, "j00000"), (2, "j00001"), (3, "j00002")]
    stored = next(stored for stored in reads.pending_jobs(writer) if stored.seq == 2)
    assert stored.state_name == "waiting"
    assert stored.record.depends_on == changed.depends_on
    assert stored.record.run_at == changed.run_at


def test_a_state_row_changes_execution_columns_only(writer, path):
    record = full_job()
    writes.apply_batch(writer, Batch(full=[full_row(record, 1, "waiting")]), path)
    before = dict(zip(*described(writer), strict=True))

    writes.apply_batch(writer, Batch(states=[state_row(job(record.id, started_at=None), "active")]), path)

    after = dict(zip(*described(writer), strict=True))
    assert {name for name in before if before[name] != after[name]} <= set(STATE_COLUMNS)
    assert (after["state"], after["started_at"], after["stacktrace"], after["attempts"]) == ("active", None, None, 0)


def described(connection: apsw.Connection) -> tuple[list[str], tuple]:
    cursor = connection.execute("SELECT * FROM jobs")
    names = [name for name, *_ in cursor.description]
    return names, cursor.fetchall()[0]


def test_states_of_many_jobs_each_reach_their_own_row(writer, path):
    writes.apply_batch(writer, Batch(plain=plain(250)), path)
    rows = [state_row(job(f"j{number:05}", attempts=number), "active") for number in range(0, 250, 2)]

    writes.apply_batch(writer, Batch(states=[*rows, state_row(job("unknown"), "active")]), path)

    expected = [(f"j{n:05}", n if n % 2 == 0 else 0, "waiting" if n % 2 else "active") for n in range(250)]
    assert select(writer, "SELECT id, attempts, state FROM jobs ORDER BY id") == expected


def test_states_are_found_by_key_never_by_scan(writer):
    for count in (1, 100):
        plan = [
            row[3] for row in writer.execute(f"EXPLAIN QUERY PLAN {writes._STATES.text(count)}", (None,) * 11 * count)
        ]

        assert any(step.startswith("SEARCH jobs") and "(id=?)" in step for step in plan)
        assert not any(step.startswith("SCAN jobs") for step in plan)


def test_rebirth_reports_the_queues_of_completed_jobs(writer, path):
    completed = [full_row(job(f"c{n}", queue=f"q{n % 2}"), n + 1, "completed") for n in range(3)]
    writes.apply_batch(writer, Batch(full=[*completed, full_row(job("w"), 9, "waiting")]), path)

    report = writes.apply_batch(writer, Batch(reborn=["c0", "c1", "c2", "w", "unknown"]), path)

    assert sorted(report.forgotten) == ["q0", "q0", "q1"]
    assert contents(writer)["jobs"] == []


@pytest.mark.parametrize("count", [1, 2, 99, 100, 101, 250])
def test_lists_of_any_length_are_deleted_whole(writer, path, count):
    writes.apply_batch(writer, Batch(plain=plain(count + 1)), path)

    writes.apply_batch(writer, Batch(deleted=[f"j{number:05}" for number in range(count)]), path)

    assert select(writer, "SELECT id FROM jobs") == [(f"j{count:05}",)]


def test_settings_replace_the_whole_row(writer, path):
    limited = QueueSettings(True, RateLimit(5, 60_000, T0), 3)
    writes.apply_batch(writer, Batch(settings=[settings_row("q", limited), settings_row("r", limited)]), path)

    writes.apply_batch(writer, Batch(settings=[settings_row("q", QueueSettings(concurrency_limit=1))]), path)

    assert dict(reads.queue_settings(writer)) == {"q": QueueSettings(concurrency_limit=1), "r": limited}
    assert (
        select(writer, "SELECT stall_enabled, stall_interval, max_stalls, stall_grace_period FROM queue_state")
        == [(1, 30_000, 3, 5_000)] * 2
    )


def test_a_result_replaces_an_older_one(writer, path):
    writes.apply_batch(writer, Batch(results=[("a", b"\x01", T0)]), path)
    writes.apply_batch(writer, Batch(results=[("a", bytes(raw([2])), T0 + 1), ("b", b"\x03", T0)]), path)

    assert contents(writer)["job_results"] == [("a", b"\x91\x02", T0 + 1), ("b", b"\x03", T0)]


# One transaction ----------------------------------------------------------------------------------------------------


def test_a_batch_is_one_transaction(prepared, path, trace):
    writes.apply_batch(prepared, everything(), path)

    assert trace[0] == "BEGIN IMMEDIATE"
    assert trace[-1] == "COMMIT"
    assert sum(sql.startswith(("BEGIN", "COMMIT", "SAVEPOINT", "ROLLBACK")) for sql in trace) == 2


def test_an_insert_of_n_rows_is_one_statement_with_n_groups(writer, path, trace):
    writes.apply_batch(writer, Batch(plain=plain(37)), path)

    [insert] = [sql for sql in trace if "INSERT" in sql]
    assert insert.count("(?,?,?,?,?,?,?,?,?,?)") == 37


def test_larger_batches_are_cut_into_statements_of_a_hundred(writer, path, trace):
    writes.apply_batch(writer, Batch(plain=plain(250)), path)

    assert [sql.count("(?,") for sql in trace if "INSERT" in sql] == [100, 100, 50]
    assert trace.count("COMMIT") == 1


def test_insert_statements_of_every_size_are_prepared_once(writer, path):
    def flush_every_size(first: int) -> int:
        before = writer.cache_stats()["misses"]
        for count in range(1, 101):
            writes.apply_batch(writer, Batch(plain=plain(count, first)), path)
            first += count
        return writer.cache_stats()["misses"] - before

    writes.apply_batch(writer, Batch(finished=["warm"]), path)  # BEGIN and COMMIT are known after this

    assert flush_every_size(0) == 100
    assert flush_every_size(10_000) == 0


def test_batches_of_changing_sizes_find_their_statements_prepared(writer, path):
    def flush_many_sizes(first: int) -> int:
        before = writer.cache_stats()["misses"]
        for count in range(1, 101, 3):
            ids = [f"j{number:05}" for number in range(first, first + count)]
            batch = Batch(plain=plain(count, first), deleted=ids)
            batch.states = [state_row(job(job_id), "completed") for job_id in ids]
            batch.results = [(job_id, b"\xc0", T0) for job_id in ids]
            batch.full = [full_row(job(job_id), number, "waiting") for number, job_id in enumerate(ids, first + 1)]
            writes.apply_batch(writer, batch, path)
            first += count
        return writer.cache_stats()["misses"] - before

    flush_many_sizes(0)
    assert flush_many_sizes(10_000) == 0


@pytest.mark.parametrize("count", [1, 7, 8, 9, 15, 16, 99, 100, 101, 107, 108, 199, 200])
def test_results_of_any_count_are_all_written(writer, path, trace, count):
    results = [(f"r{number:03}", b"\xc0", T0) for number in range(count)]

    writes.apply_batch(writer, Batch(results=results), path)

    assert contents(writer)["job_results"] == results
    assert sum("INSERT" in sql for sql in trace) <= count // 100 + 2


def test_an_empty_batch_is_harmless(writer, path):
    report = writes.apply_batch(writer, Batch(needs_sync=True), path)

    assert report.forgotten == []
    assert all(rows == [] for rows in contents(writer).values())


@pytest.mark.parametrize("position", [0, 50, 99, 149])
def test_a_row_that_can_never_be_stored_is_named_and_nothing_remains(prepared, path, position):
    # given
    before = contents(prepared)
    batch = everything()
    batch.plain += plain(150, 100)
    batch.plain[1 + position] = plain_row(job("twin", created_at=None), 5_000, "waiting")  # type: ignore[arg-type]

    # when
    with pytest.raises(StorageError, match=r"job 'twin' cannot be stored: NOT NULL constraint failed") as caught:
        writes.apply_batch(prepared, batch, path)

    # then
    assert not caught.value.transient
    assert contents(prepared) == before
    assert not prepared.in_transaction


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"priority": 2**70}, "int too big"),
        ({"custom_id": "\ud800"}, "surrogates not allowed"),
        ({"priority": object()}, "Bad binding"),
    ],
)
def test_values_that_sqlite_has_no_form_for_are_named(writer, path, changes, text):
    rows = [*plain(10), plain_row(job("bad", **changes), 500, "waiting")]

    with pytest.raises(StorageError, match=rf"job 'bad' cannot be stored: .*{text}") as caught:
        writes.apply_batch(writer, Batch(plain=rows), path)

    assert not caught.value.transient
    assert contents(writer)["jobs"] == []


def test_a_rowid_in_use_is_a_named_fault_too(writer, path):
    writes.apply_batch(writer, Batch(plain=plain(5)), path)

    with pytest.raises(StorageError, match=r"job 'other' cannot be stored: UNIQUE constraint failed: jobs\.rowid"):
        writes.apply_batch(writer, Batch(plain=[plain_row(job("other"), 3, "waiting")]), path)


def test_a_failure_late_in_the_batch_undoes_its_deletions(prepared, path):
    before = contents(prepared)
    prepared.execute("CREATE TEMP TRIGGER stop BEFORE INSERT ON bqt_finished BEGIN SELECT raise(ABORT, 'stop'); END")

    with pytest.raises(StorageError):
        writes.apply_batch(prepared, everything(), path)

    assert contents(prepared) == before


def test_a_failing_commit_leaves_nothing_and_the_next_one_works(prepared, path):
    before = contents(prepared)
    prepared.set_commit_hook(lambda: True)
    with pytest.raises(StorageError):
        writes.apply_batch(prepared, everything(), path)
    prepared.set_commit_hook(None)

    assert contents(prepared) == before
    assert not prepared.in_transaction
    writes.apply_batch(prepared, everything(), path)
    assert contents(prepared) != before


def test_a_full_disk_is_reported_in_sqlites_words_and_passes(writer, path):
    writes.apply_batch(writer, Batch(plain=plain(1)), path)
    limit = writer.execute("PRAGMA page_count").fetchall()[0][0] + 2
    writer.execute(f"PRAGMA max_page_count = {limit}").fetchall()
    batch = Batch(plain=plain(2_000, 1), needs_sync=True)

    with pytest.raises(DiskFullError) as caught:
        writes.apply_batch(writer, batch, path)

    assert str(caught.value) == "database or disk is full"
    assert caught.value.transient
    assert len(contents(writer)["jobs"]) == 1
    assert writer.pragma("synchronous") == 1
    writer.execute("PRAGMA max_page_count = 1000000").fetchall()
    writes.apply_batch(writer, batch, path)
    assert len(contents(writer)["jobs"]) == 2_001


def test_a_write_lock_of_another_program_is_waited_for(writer, path):
    other = apsw.Connection(path)
    other.execute("BEGIN IMMEDIATE")
    timer = threading.Timer(0.2, lambda: other.execute("COMMIT"))
    timer.start()

    writes.apply_batch(writer, Batch(plain=plain(1)), path)

    timer.join()
    assert len(contents(writer)["jobs"]) == 1
    other.close()


def test_a_write_lock_held_too_long_is_an_explicit_error(writer, path):
    writer.set_busy_timeout(100)
    other = apsw.Connection(path)
    other.execute("BEGIN IMMEDIATE")
    started = time.perf_counter()

    with pytest.raises(StorageError) as caught:
        writes.apply_batch(writer, Batch(plain=plain(1)), path)

    assert time.perf_counter() - started >= 0.09
    assert str(caught.value) == "database is locked"
    assert caught.value.transient
    other.close()


def test_a_new_parent_or_child_of_a_completed_job_changes_nothing_else(writer, path):
    done, other = full_job("done"), job("other")
    writes.apply_batch(writer, Batch(full=[full_row(done, 1, "completed"), full_row(other, 2, "waiting")]), path)
    changed = replace(done, data=raw({"a": 1}), parent_id="dad", children_ids=("x", "y"))
    before = select(writer, "SELECT * FROM jobs WHERE id = 'other'")

    links = [link_row(changed), link_row(replace(other, data=raw(2))), link_row(job("nobody"))]
    writes.apply_batch(writer, Batch(links=links), path)

    assert select(writer, "SELECT * FROM jobs WHERE id = 'other'") == before  # it has begun a new life meanwhile
    assert select(writer, "SELECT count(*) FROM jobs") == [(2,)]
    found = reads.find_completed(writer, "done")
    assert (bytes(found.record.data), found.record.parent_id) == (bytes(changed.data), "dad")
    assert found.record.children_ids == ("x", "y")
    assert (found.record.depends_on, found.record.timeline) == (done.depends_on, done.timeline)


def test_a_job_that_loses_its_last_child_has_none_in_the_file(writer, path):
    done = full_job("done")
    writes.apply_batch(writer, Batch(full=[full_row(done, 1, "completed")]), path)

    writes.apply_batch(writer, Batch(links=[link_row(replace(done, parent_id=None, children_ids=()))]), path)

    assert select(writer, "SELECT parent_id, children_ids FROM jobs") == [(None, None)]


def test_a_link_of_a_former_life_does_not_reach_the_new_one(writer, path):
    writes.apply_batch(writer, Batch(full=[full_row(job("a"), 1, "completed")]), path)

    batch = Batch(reborn=["a"], links=[link_row(job("a", parent_id="dad"))], plain=[plain_row(job("a"), 2, "waiting")])
    writes.apply_batch(writer, batch, path)

    assert select(writer, "SELECT parent_id FROM jobs") == [(None,)]
