"""What recovery reads, page by page, from our files and from the reference's. Source: R55, R61, R67; persistence 8."""

import json
import shutil
from pathlib import Path

import apsw
import msgpack
import pytest

from bunqueue_trio.errors import CorruptDatabaseError
from bunqueue_trio.model.entries import DEFAULT_SETTINGS, RateLimit
from bunqueue_trio.storage import connection as db
from bunqueue_trio.storage import reads, writes
from bunqueue_trio.storage.batch import Batch
from bunqueue_trio.storage.records import entry_blob, extra_blob, full_row, plain_row
from tests.storage.samples import T0, full_job, job, letter, same_job

GOLDEN = Path(__file__).parent.parent / "golden"


def fill(writer: apsw.Connection, path: str, *rows: tuple) -> None:
    writes.apply_batch(writer, Batch(full=list(rows)), path)


def names(jobs) -> list[str]:
    return [stored.record.id for stored in jobs]


# Plans --------------------------------------------------------------------------------------------------------------

STATEMENTS = {
    "_COMPLETED_OF_QUEUE": reads._without(reads._COMPLETED_OF_QUEUE, [])[0],
    "_OLDEST_OF_QUEUE": reads._without(reads._OLDEST_OF_QUEUE, [])[0],
} | {
    name: getattr(reads, name)
    for name in ("ACTIVE_UNSTARTED", "ACTIVE_STARTED", "PENDING", "LETTER_IDS", "LETTERS", "SETTINGS", "CRON_NAMES",
                 "COMPLETED", "OLDEST_COMPLETED", "MAX_ROWID")
} | {
    name: getattr(reads, name)._texts[8]
    for name in ("_COMPLETED_IDS", "_RESULT_IDS", "_FINISHED_IDS")
} | {
    "_RESULTS": reads._RESULTS,
    "_COMPLETED_OF_QUEUE": reads._COMPLETED_OF_QUEUE.format(""),
    "_NEWEST_OF_QUEUE": reads._NEWEST_OF_QUEUE.format(""),
}  # fmt: skip


def plan(connection: apsw.Connection, sql: str) -> list[str]:
    return [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {sql}", (None,) * sql.count("?"))]


@pytest.mark.parametrize("name", STATEMENTS)
@pytest.mark.parametrize("is_analyzed", [False, True])
def test_reads_search_and_never_scan_or_sort(writer, path, name, is_analyzed):
    if is_analyzed:
        fill(writer, path, *(full_row(job(f"j{n}"), n, "completed") for n in range(1, 2_000)))
        writer.execute("ANALYZE")

    steps = plan(writer, STATEMENTS[name])

    assert any(step.startswith("SEARCH") for step in steps)
    assert [step for step in steps if step.startswith("SCAN") and "VIRTUAL TABLE" not in step] == []
    assert not any("TEMP B-TREE" in step for step in steps)


def test_counts_and_rowids_come_from_indexes_alone(writer):
    steps = plan(writer, reads.COMPLETED_COUNTS)
    assert all("COVERING INDEX" in step for step in steps if " jobs" in step)
    assert not any(step.startswith("SCAN jobs") for step in steps)

    [step] = plan(writer, reads.PENDING_ROWIDS)
    assert "USING COVERING INDEX" in step


# Pages --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def small_pages(monkeypatch):
    """Pages of 3 rows instead of 10,000, so that few rows cross many page borders."""
    monkeypatch.setattr(reads, "PAGE_ROWS", 3)
    for name in dir(reads):
        value = getattr(reads, name)
        if isinstance(value, str) and f"LIMIT {10_000}" in value:
            monkeypatch.setattr(reads, name, value.replace("LIMIT 10000", "LIMIT 3"))


@pytest.mark.parametrize("count", [0, 1, 3, 4, 6, 10])
@pytest.mark.usefixtures("small_pages")
def test_pages_miss_nothing_and_repeat_nothing(writer, path, count):
    ids = [f"j{n:02}" for n in range(count)]
    fill(
        writer,
        path,
        *(full_row(job(f"p{i}"), n + 1, "delayed" if n % 2 else "waiting") for n, i in enumerate(ids)),
        *(full_row(job(f"a{i}", started_at=T0 + n // 4), n + 100, "active") for n, i in enumerate(ids)),
        *(full_row(job(f"u{i}"), n + 200, "active") for n, i in enumerate(ids)),
    )
    letters = [(i, "mail", entry_blob(letter(job(i))), T0 + n // 4) for n, i in enumerate(ids)]
    settings = [(f"q{i}", 1, *(None,) * 8) for i in ids]
    writes.apply_batch(writer, Batch(letters=letters, settings=settings), path)
    for i in ids:
        writer.execute("INSERT INTO cron_jobs(name, queue, data, next_run) VALUES (?, 'q', x'c0', 1)", (i,))

    assert names(reads.pending_jobs(writer)) == [f"p{i}" for i in ids]
    assert names(reads.active_jobs(writer)) == [f"u{i}" for i in ids] + [f"a{i}" for i in ids]
    assert [job_id for _, _, job_id in reads.letters(writer)] == ids
    assert reads.letter_ids(writer) == set(ids)
    assert [queue for queue, _ in reads.queue_settings(writer)] == [f"q{i}" for i in ids]
    assert reads.cron_names(writer) == dict.fromkeys(ids, "q")


def test_25_001_rows_are_three_pages(writer, path, trace):
    rows = [plain_row(job(f"j{n:05}", data=job("x").data), n, "waiting") for n in range(1, 25_002)]
    writes.apply_batch(writer, Batch(plain=rows), path)
    trace.clear()

    assert sum(1 for _ in reads.pending_jobs(writer)) == 25_001

    assert sum("LIMIT 10000" in sql for sql in trace) == 3
    assert not any("OFFSET" in sql for sql in trace)


def test_pending_jobs_come_in_the_order_of_pushes(writer, path):
    fill(
        writer,
        path,
        full_row(job("c", priority=5), 30, "waiting"),
        full_row(job("a", run_at=T0 + 9e9), 10, "delayed"),
        full_row(job("x"), 15, "completed"),
        full_row(job("b"), 20, "waiting"),
        full_row(job("y"), 40, "strange"),
    )

    assert names(reads.pending_jobs(writer)) == ["a", "b", "c"]
    assert reads.max_rowid(writer) == 40


def test_side_rows_are_joined(writer, path):
    record = full_job()
    blob = extra_blob(record, key_expires_at=T0 + 5, is_from_cron=True)
    batch = Batch(full=[full_row(record, 1, "active"), full_row(job("b"), 2, "active")], extras=[(record.id, blob)])
    writes.apply_batch(writer, batch, path)

    other, stored = reads.active_jobs(writer)

    assert same_job(stored.record, record)
    assert (stored.is_from_cron, stored.key_expires_at, stored.state_name) == (True, T0 + 5, "active")
    assert (other.record.id, other.is_from_cron) == ("b", False)


def test_an_empty_file_has_nothing(writer):
    assert reads.max_rowid(writer) == 0
    assert reads.completed_counts(writer) == {}
    assert reads.done_among(writer, []) == set()
    assert reads.find_completed(writer, "a") is None


# Finished jobs ------------------------------------------------------------------------------------------------------


def test_done_means_completed_or_a_result_or_remembered(writer, path):
    fill(
        writer,
        path,
        full_row(job("completed"), 1, "completed"),
        full_row(job("again"), 2, "waiting"),
        full_row(job("running"), 3, "active"),
        full_row(job("waiting"), 4, "waiting"),
    )
    results = [("again", b"\xc0", T0), ("running", b"\xc0", T0), ("rowless", b"\xc0", T0)]
    writes.apply_batch(writer, Batch(results=results, finished=["removed"]), path)
    asked = ["completed", "again", "running", "waiting", "rowless", "removed", "unknown"]

    # An active job with a result runs again, so it releases nobody (PD-2).
    assert reads.done_among(writer, asked) == {"completed", "again", "rowless", "removed"}
    assert reads.done_among(writer, [*asked, *(f"x{n}" for n in range(500))]) == reads.done_among(writer, asked)


def test_completed_jobs_are_counted_per_queue(writer, path):
    fill(
        writer,
        path,
        *(full_row(job(f"a{n}", queue="a"), n, "completed") for n in range(1, 4)),
        full_row(job("b", queue="b"), 10, "waiting"),
        full_row(job("c", queue="c"), 11, "completed"),
        full_row(job("c2", queue="c"), 12, "active"),
    )

    assert reads.completed_counts(writer) == {"a": 3, "b": 0, "c": 1}


def test_a_completed_job_is_found_with_its_result(writer, path):
    wide = b"\x92\xcf\x00\x00\x01\x90\x00\x00\x00\x00\x01"
    fill(
        writer,
        path,
        *(full_row(job(i), n, "completed") for n, i in enumerate("abcd", 1)),
        full_row(job("w"), 9, "active"),
    )
    results = [("a", b"\xc0", T0), ("b", wide, T0), ("d", b"\x92", T0), ("w", b"\x01", T0)]
    writes.apply_batch(writer, Batch(results=results), path)

    found = {i: reads.find_completed(writer, i) for i in "abcdw"}

    assert found["a"] is not None
    assert same_job(found["a"].record, job("a"))
    shown = {i: None if one is None or one.result is None else bytes(one.result) for i, one in found.items()}
    assert shown["a"] == b"\xc0"
    assert msgpack.unpackb(shown["b"]) == [float(0x190_0000_0000), 1]
    assert (shown["c"], shown["d"], found["w"]) == (None, None, None)


# Damage -------------------------------------------------------------------------------------------------------------


def test_one_bad_row_stops_nothing(writer, path):
    fill(
        writer, path, *(full_row(job(i, tags=("t",), depends_on=("d",)), n, "waiting") for n, i in enumerate("abc", 1))
    )
    writer.execute("UPDATE jobs SET depends_on = x'92a1', data = x'c1', timeline = 'text', tags = x'' WHERE id = 'b'")
    writer.execute("UPDATE jobs SET priority = 'high', attempts = x'00', run_at = 'soon', ttl = 1e300 WHERE id = 'b'")
    writer.execute("INSERT INTO bqt_jobs VALUES ('b', x'c1')")

    a, b, c = reads.pending_jobs(writer)

    assert (a.damage, c.damage) == ((), ())
    assert set(b.damage) == {"depends_on", "data", "timeline", "tags", "extra"}
    assert (b.record.priority, b.record.attempts, b.record.depends_on, b.record.ttl) == (0, 0, (), 1e300)


def test_an_unreadable_dead_letter_is_reported_without_entry(writer, path):
    good = entry_blob(letter(job("good")))
    writes.apply_batch(writer, Batch(letters=[("bad", "q", b"\xc1", T0), ("good", "q", good, T0)]), path)

    bad, (queue, entry, job_id) = reads.letters(writer)

    assert bad == ("q", None, "bad")
    assert (queue, job_id) == ("q", "good")
    assert entry is not None
    assert entry.reason == "explicit_fail"
    assert reads.letter_ids(writer) == {"bad", "good"}


def test_text_that_is_not_utf8_is_named_as_damage_of_the_file(writer, path):
    fill(writer, path, full_row(job("a"), 1, "waiting"))
    writer.execute("UPDATE jobs SET queue = CAST(x'ff' AS TEXT)")

    with pytest.raises(CorruptDatabaseError, match="not UTF-8"):
        list(reads.pending_jobs(writer))


def test_a_malformed_page_is_a_corrupt_database(path):
    writer = db.open_writer(path)
    rows = [plain_row(job(f"j{n:05}"), n, "waiting") for n in range(1, 3_000)]
    writes.apply_batch(writer, Batch(plain=rows), path)
    db.close_writer(writer)
    content = bytearray(Path(path).read_bytes())
    middle = len(content) // 4096 // 2 * 4096
    content[middle : middle + 40 * 4096] = b"\xa5" * (40 * 4096)
    Path(path).write_bytes(content)
    reader = db.open_reader(path)

    with pytest.raises(CorruptDatabaseError, match="malformed"):
        list(reads.pending_jobs(reader))

    reader.close()


# The reference's own file -------------------------------------------------------------------------------------------


@pytest.fixture
def reference(tmp_path):
    path = str(tmp_path / "reference.db")
    shutil.copy(GOLDEN / "reference-small.db", path)
    opened = db.open_data_file(path)
    yield opened.reader
    db.close_data_file(opened)


def test_every_row_of_the_reference_is_read_undamaged(reference):
    pending = list(reads.pending_jobs(reference))
    active = list(reads.active_jobs(reference))
    completed = [reads.find_completed(reference, job_id) for job_id in ("m-done", "m-plain", "f-c1")]

    assert (len(pending), len(active)) == (23, 4)
    assert all(stored.damage == () for stored in pending + active)
    assert all(stored.record.last_heartbeat == stored.record.created_at for stored in pending + active)
    assert None not in completed
    assert reads.completed_counts(reference)["mail"] == 2
    assert sum(reads.completed_counts(reference).values()) == 3


def test_jobs_of_the_reference_keep_their_fields(reference):
    jobs = {stored.record.id: stored.record for stored in reads.pending_jobs(reference)}

    retry = jobs["m-retry"]
    assert (retry.run_at, retry.attempts, retry.stacktrace) == (1717243201833.0413, 1, ("Error: later",))
    assert [step.state for step in retry.timeline] == ["waiting", "active", "failed"]
    assert (retry.timeline[2].error, retry.timeline[2].attempt) == ("later", 1)
    assert (jobs["m-prio"].priority, jobs["m-prio"].tags) == (10, ("x", "y"))
    assert (jobs["m-lifo"].lifo, jobs["m-lifo"].timeout, jobs["m-lifo"].stall_timeout) == (True, 5_000, 7_000)
    opts = jobs["m-opts"]
    assert (opts.max_attempts, opts.backoff, opts.group_id) == (9, 2_500, "g1")
    assert (opts.remove_on_complete, opts.remove_on_fail) == (True, True)
    parent = jobs["f-parent"]
    assert (parent.depends_on, parent.children_ids, parent.unique_key) == (
        ("f-c1", "f-c2"),
        ("f-c1", "f-c2"),
        "flow-uk",
    )
    assert reads.done_among(reference, ["f-c1", "f-c2", "f-parent"]) == {"f-c1"}


def test_payloads_of_the_reference_are_given_back_byte_by_byte(reference):
    cells = dict(reference.execute("SELECT id, data FROM jobs"))

    jobs = list(reads.pending_jobs(reference))

    assert all(bytes(stored.record.data) == cells[stored.record.id] for stored in jobs)
    undefined = next(stored for stored in jobs if stored.record.id == "t3")
    assert bytes(undefined.record.data) == b"\x93\xc0\x90\xde\x00\x00"


def test_the_dead_letter_of_the_reference_is_read_whole(reference):
    [(queue, entry, job_id)] = reads.letters(reference)

    assert (queue, job_id) == ("mail", "m-fail")
    assert entry is not None
    assert (entry.reason, entry.error, entry.retry_count, entry.expires_at) == (
        "max_attempts_exceeded",
        "second",
        0,
        None,
    )
    assert [(a.attempt, a.reason, a.duration) for a in entry.attempts] == [(2, "max_attempts_exceeded", 1.0)]
    assert entry.job.stacktrace == ("Error: second", "at send (mail.js:3:7)")
    assert len(entry.job.timeline) == 6
    [(cell,)] = reference.execute("SELECT entry FROM dlq")
    assert msgpack.unpackb(entry_blob(entry)) == msgpack.unpackb(cell)


def test_settings_and_crons_of_the_reference_are_read(reference):
    settings = dict(reads.queue_settings(reference))

    assert set(settings) == {"halted", "limited", "slow", "quick", "strict"}
    assert settings["halted"] == DEFAULT_SETTINGS.__class__(paused=True)
    assert settings["limited"].concurrency_limit == 1
    assert settings["quick"].rate_limit == RateLimit(1, 600_000, 1717243260195.0)
    assert (settings["strict"].stall.max_stalls, settings["strict"].stall.stall_interval) == (1, 2_000)
    crons = json.loads((GOLDEN / "reference-small.json").read_text())["rows_in_file"]["cron_jobs"]
    assert len(reads.cron_names(reference)) == crons
    assert reads.cron_names(reference)["hourly"] == "cron-b"
