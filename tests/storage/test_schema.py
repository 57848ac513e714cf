"""The file has exactly the reference's tables and indexes, and older or newer files open.

Source: persistence 3, 5; R30-R53, K15.
"""

from pathlib import Path

import apsw
import pytest

from bunqueue_trio.errors import StartError
from bunqueue_trio.storage import connection as db
from bunqueue_trio.storage import reads, writes
from bunqueue_trio.storage.batch import FULL_COLUMNS, SETTINGS_COLUMNS, Batch
from bunqueue_trio.storage.records import plain_row
from bunqueue_trio.storage.schema import SIDE_INDEXES
from tests.storage.samples import job

REFERENCE = Path(__file__).parent.parent / "golden" / "reference-small.db"
TABLES = ("migrations", "jobs", "job_results", "dlq", "cron_jobs", "queue_state")


def open_reference() -> apsw.Connection:
    flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
    return apsw.Connection(f"{REFERENCE.as_uri()}?immutable=1", flags=flags)


def columns(connection: apsw.Connection, table: str) -> list[tuple]:
    return connection.execute("SELECT * FROM pragma_table_info(?)", (table,)).fetchall()


def indexes(connection: apsw.Connection) -> dict[str, tuple]:
    """By name: table, columns with their directions, condition. Without our own, which the reference ignores."""
    found = {}
    sql = "SELECT name, tbl_name, sql FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL"
    sql += " AND name NOT LIKE 'bqt%'"
    for name, table, text in connection.execute(sql).fetchall():
        parts = connection.execute('SELECT name, "desc" FROM pragma_index_xinfo(?) WHERE key', (name,)).fetchall()
        condition = text.partition("WHERE ")[2]
        found[name] = (table, parts, condition)
    return found


@pytest.mark.parametrize("table", TABLES)
def test_a_fresh_table_equals_that_of_the_reference(writer, table):
    assert columns(writer, table) == columns(open_reference(), table)


def test_indexes_equal_those_of_the_reference(writer):
    assert indexes(writer) == indexes(open_reference())
    assert len(indexes(writer)) == 14


def test_there_are_no_tables_beyond_the_known_ones(writer):
    names = {name for (name,) in writer.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}

    ours = {"bqt_jobs", "bqt_finished", "bqt_queues", "bqt_series", "bqt_groups", "bqt_crons", "bqt_meta"}
    assert names == {*TABLES, "sqlite_sequence", *ours}


def test_dead_letter_ids_are_never_reused(writer):
    writer.execute(
        "INSERT INTO dlq(job_id, queue, entry, entered_at) VALUES ('a', 'q', x'80', 1), ('b', 'q', x'80', 2)"
    )
    writer.execute("DELETE FROM dlq WHERE id = 2")
    writer.execute("INSERT INTO dlq(job_id, queue, entry, entered_at) VALUES ('c', 'q', x'80', 3)")

    assert writer.execute("SELECT max(id) FROM dlq").fetchall() == [(3,)]


def test_our_indexes_are_added_to_a_file_that_lacks_them(writer, path):
    for name in SIDE_INDEXES:
        writer.execute(f"DROP INDEX {name}")
    db.close_writer(writer)

    again = db.open_writer(path)

    present = {name for (name,) in again.execute("SELECT name FROM sqlite_master WHERE type = 'index'")}
    assert present.issuperset(SIDE_INDEXES)
    again.close()


def test_a_plain_push_pays_nothing_for_our_indexes():
    assert all("WHERE state = 'completed'" in target for target in SIDE_INDEXES.values())


def test_a_new_file_is_version_21_once(writer):
    [(version, applied_at)] = writer.execute("SELECT * FROM migrations").fetchall()

    assert version == 21
    assert applied_at > 1_700_000_000_000


def test_the_schema_is_in_the_main_file_at_once(writer, path, tmp_path):
    # PD-21: a damaged or lost WAL must not take the schema along.
    copy = tmp_path / "copy.db"
    copy.write_bytes(Path(path).read_bytes())

    assert db.wal_bytes(path) == 0
    assert indexes(apsw.Connection(str(copy))) == indexes(writer)


def test_opening_again_writes_nothing(writer, path):
    db.close_writer(writer)
    before = Path(path).read_bytes()

    again = db.open_writer(path)

    assert db.wal_bytes(path) == 0
    db.close_writer(again)
    assert Path(path).read_bytes() == before


def cut_back_to_version_4(path: str) -> None:
    connection = apsw.Connection(path)
    newer = ("dlq_entered_at", "jobs_state_started", "jobs_group_id", "jobs_pending_priority", "jobs_completed_order",
             "jobs_queue_created", "jobs_queue_state_created")  # fmt: skip
    for index in newer:
        connection.execute(f"DROP INDEX idx_{index}")
    dropped = {
        "jobs": ("timeline", "stacktrace", "stall_count"),
        "cron_jobs": ("unique_key", "dedup", "skip_missed_on_restart", "skip_if_no_worker", "prevent_overlap",
                      "job_options"),
        "queue_state": ("rate_limit_duration", "rate_limit_expires_at", "stall_enabled", "stall_interval",
                        "max_stalls", "stall_grace_period"),
    }  # fmt: skip
    for table, names in dropped.items():
        for name in names:
            connection.execute(f"ALTER TABLE {table} DROP COLUMN {name}")
    for table in ("bqt_jobs", "bqt_finished", "bqt_queues", "bqt_groups", "bqt_crons", "bqt_meta"):
        connection.execute(f"DROP TABLE {table}")
    connection.execute("UPDATE migrations SET version = 4")
    connection.close()


def test_a_file_of_version_4_is_upgraded_with_its_jobs(writer, path):
    # given
    writes.apply_batch(writer, Batch(plain=[plain_row(job("a"), 1, "waiting")]), path)
    writer.execute("INSERT INTO queue_state(name, paused) VALUES ('mail', 1)")
    db.close_writer(writer)
    cut_back_to_version_4(path)

    # when
    upgraded = db.open_writer(path)

    # then: the same columns, although some in another place
    for table in TABLES:
        shape = {row[1:] for row in columns(open_reference(), table)}
        assert {row[1:] for row in columns(upgraded, table)} == shape
    assert indexes(upgraded) == indexes(open_reference())
    assert upgraded.execute("SELECT version FROM migrations ORDER BY version").fetchall() == [(4,), (21,)]
    assert [stored.record.id for stored in reads.pending_jobs(upgraded)] == ["a"]
    assert [name for name, settings in reads.queue_settings(upgraded) if settings.paused] == ["mail"]
    upgraded.close()


def test_columns_in_another_order_are_addressed_by_name(writer, path):
    writer.execute("DROP TABLE jobs")
    shuffled = sorted(columns(open_reference(), "jobs"), key=lambda column: column[1])
    texts = [
        f"{name} {kind}{' NOT NULL' * needed}{' DEFAULT ' + default if default else ''}{' PRIMARY KEY' * key}"
        for _, name, kind, needed, default, key in shuffled
    ]
    writer.execute(f"CREATE TABLE jobs({', '.join(texts)})")
    writes.apply_batch(writer, Batch(plain=[plain_row(job("a", priority=5), 1, "waiting")]), path)

    [stored] = reads.pending_jobs(writer)

    assert (stored.record.id, stored.record.priority, stored.record.max_attempts) == ("a", 5, 3)


def test_an_interrupted_upgrade_is_completed(writer, path):
    # The reference is not transactional here: half of the columns may be there already.
    db.close_writer(writer)
    cut_back_to_version_4(path)
    half = apsw.Connection(path)
    half.execute("ALTER TABLE jobs ADD COLUMN timeline BLOB")
    half.execute("CREATE INDEX idx_jobs_group_id ON jobs(group_id) WHERE group_id IS NOT NULL")
    half.close()

    upgraded = db.open_writer(path)

    assert {row[1] for row in columns(upgraded, "jobs")} == {*FULL_COLUMNS, "progress_msg"} - {"rowid"}
    upgraded.close()


def test_a_newer_version_with_unknown_columns_is_used_as_it_is(writer, path):
    writer.execute("INSERT INTO migrations VALUES (99, 1)")
    writer.execute("ALTER TABLE jobs ADD COLUMN novelty TEXT")
    writer.execute("ALTER TABLE queue_state ADD COLUMN novelty TEXT DEFAULT 'kept'")
    db.close_writer(writer)

    newer = db.open_writer(path)

    assert newer.execute("SELECT max(version) FROM migrations").fetchall() == [(99,)]
    writes.apply_batch(newer, Batch(plain=[plain_row(job("a"), 1, "waiting")]), path)
    assert [stored.record.id for stored in reads.pending_jobs(newer)] == ["a"]
    newer.close()


@pytest.mark.parametrize(("table", "column"), [("jobs", "stall_count"), ("queue_state", "paused")])
def test_a_newer_version_without_a_column_we_need_is_refused(writer, path, table, column):
    writer.execute("INSERT INTO migrations VALUES (99, 1)")
    writer.execute(f"ALTER TABLE {table} DROP COLUMN {column}")
    db.close_writer(writer)

    with pytest.raises(StartError, match=rf"version 99 lacks {table}\.{column}") as caught:
        db.open_writer(path)

    assert "\n" not in str(caught.value)


def test_an_upgrade_that_cannot_succeed_changes_nothing(writer, path):
    writer.execute("ALTER TABLE jobs DROP COLUMN tags")
    writer.execute("UPDATE migrations SET version = 4")
    writer.execute("DROP INDEX idx_jobs_group_id")
    db.close_writer(writer)

    with pytest.raises(StartError, match=r"lacks jobs\.tags"):
        db.open_writer(path)

    assert "idx_jobs_group_id" not in indexes(apsw.Connection(path))


def test_column_tuples_of_the_batch_are_those_of_the_file(writer):
    assert {*FULL_COLUMNS, "progress_msg"} - {"rowid"} == {row[1] for row in columns(writer, "jobs")}
    assert list(SETTINGS_COLUMNS) == [row[1] for row in columns(writer, "queue_state")]
