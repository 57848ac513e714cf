"""One batch, one transaction, in statements of up to 100 rows whose texts are made once.

A statement per 100 rows, not per row, because every step hands the interpreter lock over to the loop thread and back.

Source: R11-R17, K18, K27; persistence, "Write buffer" and PD-2.
"""

import contextlib
import time
from collections.abc import Sequence
from itertools import chain
from typing import Final

import apsw
from msgspec.structs import replace

from bunqueue_trio.errors import StorageError
from bunqueue_trio.storage import emptying, faults
from bunqueue_trio.storage.batch import (
    CRON_COLUMNS,
    FULL_COLUMNS,
    LINK_COLUMNS,
    PLAIN_COLUMNS,
    PROBE_ID,
    SERIES_COLUMNS,
    SETTINGS_COLUMNS,
    STATE_COLUMNS,
    Batch,
    CommitReport,
    Row,
)
from bunqueue_trio.storage.soundness import find_damage
from bunqueue_trio.storage.statements import CHUNK, ListStatement
from bunqueue_trio.storage.wal import wal_bytes

_SYNCHRONOUS_FULL: Final = 2


class _RowStatement:
    """A statement over up to 100 rows. ``id_index`` is the column that names a row in error texts.

    ``is_whole``: up to 100 rows are one statement always, so there is a text for each count from 1 to 100. Otherwise
    what is left after the hundreds goes into a multiple of 8 and a rest, and 20 texts do: apsw remembers the last 512
    executions, and preparing an UPDATE for 50 rows takes half as long as running it.
    """

    __slots__ = ("_group", "_head", "_tail", "_texts", "id_index", "is_whole", "what")

    def __init__(
        self, what: str, head: str, width: int, tail: str = "", *, id_index: int = 0, is_whole: bool = False
    ) -> None:
        self.what = what
        self.id_index = id_index
        self.is_whole = is_whole
        self._head = head
        self._group = f"({','.join('?' * width)})"
        self._tail = tail
        self._texts: dict[int, str] = {}

    def text(self, count: int) -> str:
        """The SQL for *count* rows."""
        text = self._texts.get(count)
        if text is None:
            text = self._texts[count] = self._head + ",".join([self._group] * count) + self._tail
        return text

    def run(self, connection: apsw.Connection, rows: list[Row]) -> None:
        """Execute it over *rows*, in their order."""
        start, total = 0, len(rows)
        while start < total:
            count = min(total - start, CHUNK)
            if count < CHUNK and count > 8 and not self.is_whole:
                count &= ~7
            part = rows[start : start + count]
            start += count
            try:
                connection.execute(self.text(count), tuple(chain.from_iterable(part)))
            except (apsw.Error, OverflowError, UnicodeError, TypeError) as error:
                if faults.is_row_fault(error):
                    raise self._refused(connection, part, error) from error
                raise

    def _refused(self, connection: apsw.Connection, part: list[Row], error: Exception) -> StorageError:
        """The error that names the row at fault: found by trying them one by one; the caller rolls all of it back."""
        for row in part:
            try:
                connection.execute(self.text(1), row)
            except (apsw.Error, OverflowError, UnicodeError, TypeError) as cause:
                if faults.is_row_fault(cause):
                    text = f"{self.what} {row[self.id_index]!r} cannot be stored: {cause}"
                    return StorageError(text, transient=False, row_id=str(row[self.id_index]))
        return StorageError(f"a {self.what} cannot be stored: {error}", transient=False)


def _upsert(table: str, columns: tuple[str, ...], key: str, *, fixed: tuple[str, ...] = ()) -> tuple[str, int, str]:
    """Head, width and tail of an insert that overwrites a row of the same *key* and keeps its rowid."""
    names = ", ".join(columns)
    changes = ", ".join(f"{name} = excluded.{name}" for name in columns if name not in (key, *fixed))
    return f"INSERT INTO {table}({names}) VALUES ", len(columns), f" ON CONFLICT({key}) DO UPDATE SET {changes}"


_PLAIN = _RowStatement(
    "job",
    f"INSERT INTO jobs({', '.join(PLAIN_COLUMNS)}) VALUES ",
    len(PLAIN_COLUMNS),
    id_index=1,
    is_whole=True,
)
_FULL = _RowStatement("job", *_upsert("jobs", FULL_COLUMNS, "id", fixed=("rowid",)), id_index=1)
_STATES = _RowStatement(
    "job",
    f"WITH v({', '.join(STATE_COLUMNS)}) AS (VALUES ",
    len(STATE_COLUMNS),
    f") UPDATE jobs SET {', '.join(f'{name} = v.{name}' for name in STATE_COLUMNS[1:])} FROM v WHERE jobs.id = v.id",
)
_LINKS = _RowStatement(
    "job",
    f"WITH v({', '.join(LINK_COLUMNS)}) AS (VALUES ",
    len(LINK_COLUMNS),
    f") UPDATE jobs SET {', '.join(f'{name} = v.{name}' for name in LINK_COLUMNS[1:])}"
    " FROM v WHERE jobs.id = v.id AND jobs.state = 'completed'",
)
_RESULTS = _RowStatement("result of job", *_upsert("job_results", ("job_id", "result", "completed_at"), "job_id"))
_LETTERS = _RowStatement("dead letter of job", "INSERT INTO dlq(job_id, queue, entry, entered_at) VALUES ", 4)
_EXTRAS = _RowStatement("options of job", *_upsert("bqt_jobs", ("job_id", "extra"), "job_id"))
_SETTINGS = _RowStatement("settings of queue", *_upsert("queue_state", SETTINGS_COLUMNS, "name"))
_POLICIES = _RowStatement("policy of queue", *_upsert("bqt_queues", ("queue", "dlq_config"), "queue"))
_SERIES = _RowStatement(
    "series of queue",
    f"INSERT INTO bqt_series({', '.join(SERIES_COLUMNS)}) VALUES ",
    len(SERIES_COLUMNS),
    " ON CONFLICT(queue, slot) DO UPDATE SET minute = excluded.minute,"
    " completed = excluded.completed + iif(minute = excluded.minute, completed, 0),"
    " failed = excluded.failed + iif(minute = excluded.minute, failed, 0),"
    " completed_at = coalesce(excluded.completed_at, completed_at),"
    " failed_at = coalesce(excluded.failed_at, failed_at)",
)
_GROUPS = _RowStatement(
    "settings of group",
    *_upsert("bqt_groups", ("queue", "group_id", "settings"), "queue, group_id", fixed=("queue", "group_id")),
    id_index=1,
)
_DELETE_GROUP = "DELETE FROM bqt_groups WHERE queue = ? AND group_id = ?"
_CRONS = _RowStatement("cron", *_upsert("cron_jobs", CRON_COLUMNS, "name"))
_JOB_NAMES = _RowStatement("job name of cron", *_upsert("bqt_crons", ("name", "job_name"), "name"))
_FINISHED = _RowStatement("finished job", "INSERT OR IGNORE INTO bqt_finished(job_id) VALUES ", 1)

_REBORN = ListStatement("DELETE FROM jobs WHERE id IN ({ids}) RETURNING queue, state")
_DELETE_JOBS = ListStatement("DELETE FROM jobs WHERE id IN ({ids})")
_DELETE_RESULTS = ListStatement("DELETE FROM job_results WHERE job_id IN ({ids})")
_DELETE_EXTRAS = ListStatement("DELETE FROM bqt_jobs WHERE job_id IN ({ids})")
_DELETE_LETTERS = ListStatement("DELETE FROM dlq WHERE job_id IN ({ids})")
_DELETE_SETTINGS = ListStatement("DELETE FROM queue_state WHERE name IN ({ids})")
_DELETE_POLICIES = ListStatement("DELETE FROM bqt_queues WHERE queue IN ({ids})")
_RERUN = ListStatement("DELETE FROM jobs WHERE id IN ({ids}) AND state = 'completed' RETURNING id")
_DELETE_CRONS = ListStatement("DELETE FROM cron_jobs WHERE name IN ({ids})")
_DELETE_JOB_NAMES = ListStatement("DELETE FROM bqt_crons WHERE name IN ({ids})")
_DELETE_FINISHED = ListStatement("DELETE FROM bqt_finished WHERE job_id IN ({ids})")


def apply_batch(connection: apsw.Connection, batch: Batch, path: str) -> CommitReport:
    """Write *batch* in one transaction: all of it or nothing.

    Where it meets an index that does not fit its table, all of them are built anew (10 s per million jobs).

    With ``needs_sync`` the commit is on the disk when this returns, whatever ``synchronous`` the connection has.

    Args:
        path: The database file, for the size of its WAL in the report.

    Raises:
        StorageError: nothing was written. Transient: try again later. Not transient: the text names the row that can
            never be stored.

    Cost: about 8 µs per new job, 13 µs per state change, at 1,000 rows per batch.
    """
    started = time.perf_counter()
    try:
        raises_sync = batch.needs_sync and connection.pragma("synchronous") < _SYNCHRONOUS_FULL
        if raises_sync:
            connection.execute("PRAGMA synchronous = FULL")
        has_mended = False
        try:
            report = _commit(connection, batch)
        except apsw.CorruptError:
            # `find_damage` does not compare indexes with their tables. They hold nothing that those do not.
            if find_damage(connection) is not None:
                raise
            connection.execute("REINDEX")
            has_mended = True
            report = _commit(connection, batch)
        finally:
            if raises_sync:
                connection.execute("PRAGMA synchronous = NORMAL")
    except apsw.Error as error:
        if isinstance(error, apsw.IOError):
            _write_over_refused(connection)
        raise faults.from_apsw(error) from error
    duration_ms = (time.perf_counter() - started) * 1000
    return replace(report, wal_bytes=wal_bytes(path), duration_ms=duration_ms, has_mended=has_mended)


def _commit(connection: apsw.Connection, batch: Batch) -> CommitReport:
    connection.execute("BEGIN IMMEDIATE")
    try:
        kept = [job_id for queue, named in batch.emptied for job_id in emptying.empty(connection, queue, named)]
        forgotten = _delete(connection, batch)
        missing = _rerun(connection, batch) if batch.reruns else []
        _write(connection, batch, missing)
        connection.execute("COMMIT")
    finally:
        # After a failure only; some errors have ended the transaction by themselves.
        if connection.in_transaction:
            with contextlib.suppress(apsw.Error):  # the first error is the one to report
                connection.execute("ROLLBACK")
    return CommitReport(forgotten, 0, 0.0, kept, missing)


def _write_over_refused(connection: apsw.Connection) -> None:
    """Make a commit that changes nothing in the place of one whose sync has failed.

    Durability: that one is whole in the WAL. Nobody sees it while this process lives, but the next one would replay it,
    although whoever asked for it was told no. That the sync of this one may fail as well does not matter: its frames
    are written before it.
    """
    with contextlib.suppress(apsw.Error):  # or the disk does not even take a write: the next flush comes to that place
        _commit(connection, Batch(finished=[PROBE_ID], finished_gone=[PROBE_ID]))


def _delete(connection: apsw.Connection, batch: Batch) -> list[str]:
    """What has to go before anything is written; returns the queues of completed jobs that a rebirth ended."""
    forgotten: list[str] = []
    if batch.reborn:
        rows = _REBORN.run(connection, batch.reborn)
        forgotten = [queue for queue, state in rows if state == "completed"]
        _DELETE_RESULTS.run(connection, batch.reborn)
        _DELETE_EXTRAS.run(connection, batch.reborn)
        _DELETE_LETTERS.run(connection, batch.reborn)
    if batch.deleted:
        _DELETE_JOBS.run(connection, batch.deleted)
        _DELETE_RESULTS.run(connection, batch.deleted)
        _DELETE_EXTRAS.run(connection, batch.deleted)
    if batch.letters_gone:
        _DELETE_LETTERS.run(connection, batch.letters_gone)
    if batch.results_gone:
        _DELETE_RESULTS.run(connection, batch.results_gone)
    return forgotten


def _rerun(connection: apsw.Connection, batch: Batch) -> list[str]:
    """Exchange the rows of completed jobs; returns the ids of those that had none any more, which get none."""
    ids = [row[1] for row in batch.reruns]
    found = {job_id for (job_id,) in _RERUN.run(connection, ids)}
    missing = [job_id for job_id in ids if job_id not in found]
    _DELETE_EXTRAS.run(connection, ids)
    _FULL.run(connection, [row for row in batch.reruns if row[1] in found])
    return missing


def _write(connection: apsw.Connection, batch: Batch, missing: Sequence[str]) -> None:
    _LINKS.run(connection, batch.links)  # first: none of the rows below may be taken for the job of before
    _PLAIN.run(connection, batch.plain)
    _FULL.run(connection, batch.full)
    _STATES.run(connection, batch.states)
    _RESULTS.run(connection, batch.results)
    _LETTERS.run(connection, batch.letters)
    _EXTRAS.run(connection, [row for row in batch.extras if row[0] not in missing] if missing else batch.extras)
    _SETTINGS.run(connection, batch.settings)
    if batch.settings_gone:
        _DELETE_SETTINGS.run(connection, batch.settings_gone)
    _POLICIES.run(connection, batch.policies)
    if batch.policies_gone:
        _DELETE_POLICIES.run(connection, batch.policies_gone)
    if batch.series:
        _SERIES.run(connection, batch.series)
    _GROUPS.run(connection, batch.groups)
    if batch.groups_gone:
        connection.executemany(_DELETE_GROUP, batch.groups_gone)
    _CRONS.run(connection, batch.crons)
    if batch.crons_gone:
        _DELETE_CRONS.run(connection, batch.crons_gone)
    _JOB_NAMES.run(connection, batch.job_names)
    if batch.job_names_gone:
        _DELETE_JOB_NAMES.run(connection, batch.job_names_gone)
    if batch.finished:
        _FINISHED.run(connection, [(job_id,) for job_id in batch.finished])
    if batch.finished_gone:
        _DELETE_FINISHED.run(connection, batch.finished_gone)
