"""What recovery and queries read. Everything is paged by key, 10,000 rows a page, so that no read grows with the file.

Source: R55-R69; persistence, "Recovery at start", PD-2, PD-25.
"""

import json
import math
from array import array
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import apsw
from msgspec import Raw
from msgspec.structs import replace

from bunqueue_trio.errors import CorruptDatabaseError
from bunqueue_trio.model.entries import CompletedJob, DlqEntry, QueueSettings
from bunqueue_trio.model.grouping import GroupSettings
from bunqueue_trio.model.job import JobRecord
from bunqueue_trio.storage import faults
from bunqueue_trio.storage.batch import FULL_COLUMNS, SETTINGS_COLUMNS
from bunqueue_trio.storage.decoding import (
    PlainDecoder,
    StoredJob,
    group_settings_from_blob,
    job_from_row,
    policy_from_blob,
    settings_from_row,
)
from bunqueue_trio.storage.letters import entry_from_blob
from bunqueue_trio.storage.payloads import checked_payload
from bunqueue_trio.storage.records import NAME_ALONE
from bunqueue_trio.storage.statements import ListStatement

PAGE_ROWS: Final = 10_000
_BEFORE_ALL: Final = (-math.inf, -(1 << 63))
"""A moment and a row number."""
ROWS_AT_ONCE: Final = 100  # of a list: few enough that large ones can be given up in time

_JOB: Final = f"SELECT {', '.join(f'jobs.{name}' for name in FULL_COLUMNS)}, bqt_jobs.extra"
_SIDE: Final = "LEFT JOIN bqt_jobs ON bqt_jobs.job_id = jobs.id"

# Active rows in the order of their index; those without a start time, which no index range reaches, come first.
ACTIVE_UNSTARTED: Final = (
    f"{_JOB} FROM jobs {_SIDE} WHERE jobs.state = 'active' AND jobs.started_at IS NULL AND jobs.rowid > ?"
    f" ORDER BY jobs.rowid LIMIT {PAGE_ROWS}"
)
ACTIVE_STARTED: Final = (
    f"{_JOB} FROM jobs {_SIDE} WHERE jobs.state = 'active' AND (jobs.started_at, jobs.rowid) > (?, ?)"
    f" ORDER BY jobs.started_at, jobs.rowid LIMIT {PAGE_ROWS}"
)
# Waiting rows by their rowids, which a partial index lists: a long history of completed rows is not even touched.
PENDING_ROWIDS: Final = "SELECT rowid FROM jobs WHERE state IN ('waiting', 'delayed')"
PENDING: Final = (
    f"{_JOB} FROM json_each(?) AS page CROSS JOIN jobs ON jobs.rowid = page.value {_SIDE} LIMIT {PAGE_ROWS}"
)
# Most waiting jobs have no option at all, though perhaps a name: for them a third of the columns says everything, in a
# third of the time.
PLAIN_PENDING: Final = (
    "SELECT jobs.rowid, jobs.id, jobs.queue, jobs.data, jobs.priority, jobs.created_at, jobs.run_at, jobs.custom_id,"
    " jobs.timeline, jobs.state, bqt_jobs.extra,"
    " started_at IS NULL AND completed_at IS NULL AND attempts = 0 AND max_attempts = 3"
    " AND backoff = 1000 AND ttl IS NULL AND timeout IS NULL AND unique_key IS NULL AND depends_on IS NULL"
    " AND parent_id IS NULL AND children_ids IS NULL AND tags IS NULL AND lifo = 0 AND group_id IS NULL"
    " AND progress = 0 AND remove_on_complete = 0 AND remove_on_fail = 0 AND stall_timeout IS NULL"
    " AND last_heartbeat IS NULL AND stall_count = 0 AND stacktrace IS NULL"
    f" AND (bqt_jobs.extra IS NULL OR substr(bqt_jobs.extra, 1, {len(NAME_ALONE)}) = x'{NAME_ALONE.hex()}')"
    " AND typeof(jobs.id) = 'text' AND typeof(queue) = 'text' AND typeof(data) = 'blob'"
    " AND typeof(priority) = 'integer' AND typeof(created_at) = 'integer' AND typeof(run_at) = 'integer'"
    " AND typeof(custom_id) IN ('text', 'null') AND typeof(timeline) = 'blob'"
    f" FROM json_each(?) AS page CROSS JOIN jobs ON jobs.rowid = page.value {_SIDE} LIMIT {PAGE_ROWS}"
)
LETTER_IDS: Final = f"SELECT DISTINCT job_id FROM dlq WHERE job_id > ? ORDER BY job_id LIMIT {PAGE_ROWS}"
LETTERS: Final = (
    "SELECT queue, entry, job_id, entered_at, id FROM dlq WHERE (entered_at, id) > (?, ?)"
    f" ORDER BY entered_at, id LIMIT {PAGE_ROWS}"
)
SETTINGS: Final = (
    f"SELECT {', '.join(SETTINGS_COLUMNS)} FROM queue_state WHERE name > ? ORDER BY name LIMIT {PAGE_ROWS}"
)
GROUPS: Final = (
    "SELECT queue, group_id, settings FROM bqt_groups WHERE (queue, group_id) > (?, ?)"
    f" ORDER BY queue, group_id LIMIT {PAGE_ROWS}"
)
POLICIES: Final = (
    "SELECT queue, dlq_config FROM bqt_queues WHERE queue > ? AND dlq_config IS NOT NULL ORDER BY queue"
    f" LIMIT {PAGE_ROWS}"
)
CRON_NAMES: Final = f"SELECT name, queue FROM cron_jobs WHERE name > ? ORDER BY name LIMIT {PAGE_ROWS}"
COMPLETED_COUNTS: Final = (
    "WITH RECURSIVE names(queue) AS (SELECT min(queue) FROM jobs UNION ALL"
    " SELECT (SELECT min(queue) FROM jobs WHERE jobs.queue > names.queue) FROM names WHERE names.queue IS NOT NULL)"
    " SELECT queue, (SELECT count(*) FROM jobs WHERE jobs.queue = names.queue AND jobs.state = 'completed') AS jobs"
    " FROM names WHERE queue IS NOT NULL"
)
COMPLETED: Final = (
    f"{_JOB}, job_results.result FROM jobs {_SIDE} LEFT JOIN job_results ON job_results.job_id = jobs.id"
    " WHERE jobs.id = ? AND (jobs.state = 'completed' OR job_results.result IS NOT NULL)"
)
COMPLETED_OF_QUEUE: Final = (
    f"{_JOB}, job_results.result FROM jobs {_SIDE} LEFT JOIN job_results ON job_results.job_id = jobs.id"
    " WHERE jobs.queue = ? AND jobs.state = 'completed' AND jobs.rowid > ? ORDER BY jobs.rowid LIMIT ?"
)
OLDEST_COMPLETED: Final = (
    "SELECT id, queue FROM jobs WHERE state = 'completed' AND completed_at < ? ORDER BY completed_at LIMIT ?"
)
_COMPLETED_OF_QUEUE: Final = (
    "SELECT created_at, id, rowid FROM jobs WHERE queue = ? AND state = 'completed'{} ORDER BY created_at, id"
    " LIMIT ? OFFSET ?"
)
_NEWEST_OF_QUEUE: Final = _COMPLETED_OF_QUEUE.replace("BY created_at, id", "BY created_at DESC, id DESC")
_OLDEST_OF_QUEUE: Final = (
    "SELECT id FROM jobs INDEXED BY bqt_completed_of_queue WHERE queue = ? AND state = 'completed'"
    " AND completed_at <= ?{} ORDER BY completed_at, rowid LIMIT ?"
)
_RESULTS: Final = (
    "SELECT job_id, result FROM json_each(?) AS page CROSS JOIN job_results ON job_results.job_id = page.value"
)
_NOT_OVER: Final = " AND id NOT IN (SELECT value FROM json_each(?))"
_SERIES: Final = "SELECT slot, minute, {kind}, {kind}_at FROM bqt_series WHERE queue = ?"
MAX_ROWID: Final = "SELECT max(rowid) FROM jobs"

# An active row with a result is the trace of an interrupted ACK elsewhere: it runs again, so it is not done (PD-2).
_COMPLETED_IDS = ListStatement("SELECT id FROM jobs WHERE id IN ({ids}) AND state = 'completed'")
_RESULT_IDS = ListStatement(
    "SELECT job_id FROM job_results WHERE job_id IN ({ids})"
    " AND NOT EXISTS (SELECT 1 FROM jobs WHERE jobs.id = job_results.job_id AND jobs.state = 'active')"
)
_FINISHED_IDS = ListStatement("SELECT job_id FROM bqt_finished WHERE job_id IN ({ids})")


def active_jobs(connection: apsw.Connection) -> Iterator[StoredJob]:
    """Jobs that were active, oldest start first. The caller must not write to ``jobs`` meanwhile."""
    for row in _pages(connection, ACTIVE_UNSTARTED, (-(1 << 63),), lambda row: (row[0],)):
        yield job_from_row(row)
    for row in _pages(connection, ACTIVE_STARTED, _BEFORE_ALL, lambda row: (row[7], row[0])):
        yield job_from_row(row)


def pending_jobs(connection: apsw.Connection) -> Iterator[StoredJob]:
    """Waiting and delayed jobs, page after page in the order of their pushes; within a page plain ones come first.

    The caller must not write to ``jobs`` meanwhile. Cost: 8 bytes per such job while it runs, and a look-up each.
    """
    rowids = array("q", sorted(rowid for (rowid,) in _rows(connection, PENDING_ROWIDS)))
    for start in range(0, len(rowids), PAGE_ROWS):
        others: list[int] = []
        decode = PlainDecoder()
        for row in _rows(connection, PLAIN_PENDING, (json.dumps(rowids[start : start + PAGE_ROWS].tolist()),)):
            job = decode(row) if row[-1] else None
            if job is None:
                others.append(row[0])
            else:
                yield job
        if others:
            for row in _rows(connection, PENDING, (json.dumps(others),)):
                yield job_from_row(row)


def letter_ids(connection: apsw.Connection) -> set[str]:
    """Ids of the jobs that have a dead letter, readable or not."""
    return {job_id for (job_id,) in _pages(connection, LETTER_IDS, ("",), lambda row: (row[0],))}


def letters(connection: apsw.Connection) -> Iterator[tuple[str, DlqEntry | None, str]]:
    """Dead letters, oldest first: queue, entry, job id. The entry is None where it cannot be read; its row stays."""
    for queue, blob, job_id, _entered_at, _row in _pages(
        connection, LETTERS, _BEFORE_ALL, lambda row: (row[3], row[4])
    ):
        yield queue, entry_from_blob(blob), job_id


def queue_settings(connection: apsw.Connection) -> Iterator[tuple[str, QueueSettings]]:
    """Settings of each queue that has any: from the reference's table, from ours, or from both."""
    policies = {name: policy_from_blob(blob) for name, blob in _pages(connection, POLICIES, ("",), _first)}
    for row in _pages(connection, SETTINGS, ("",), _first):
        name, settings = settings_from_row(row)
        policy = policies.pop(name, None)
        yield name, settings if policy is None else replace(settings, dlq=policy)
    for name, policy in policies.items():
        yield name, QueueSettings(dlq=policy)


def group_settings(connection: apsw.Connection) -> Iterator[tuple[str, str, GroupSettings]]:
    """Settings of named groups: queue, group, settings. One that cannot be read is left out; its row stays."""
    for queue, group_id, blob in _pages(connection, GROUPS, ("", ""), lambda row: (row[0], row[1])):
        settings = group_settings_from_blob(blob)
        if settings is not None:
            yield queue, group_id, settings


def cron_names(connection: apsw.Connection) -> dict[str, str]:
    """The queue of each cron in the file, by the cron's name."""
    return dict(_pages(connection, CRON_NAMES, ("",), lambda row: (row[0],)))


def completed_counts(connection: apsw.Connection) -> dict[str, int]:
    """How many completed jobs each queue of the file has; 0 for queues that have only others. Index only."""
    return dict(_rows(connection, COMPLETED_COUNTS))


def max_rowid(connection: apsw.Connection) -> int:
    """The highest push sequence in the file, 0 when there is no job."""
    [(rowid,)] = _rows(connection, MAX_ROWID)
    return rowid or 0


def done_among(connection: apsw.Connection, ids: Iterable[str]) -> set[str]:
    """Which of *ids* have completed, so that their dependents may run: by row, by result, or remembered by us."""
    asked = list(ids)
    found = (
        row[0]
        for statement in (_COMPLETED_IDS, _RESULT_IDS, _FINISHED_IDS)
        for row in _listed(connection, statement, asked)
    )
    return set(found)


def find_completed(connection: apsw.Connection, job_id: str) -> CompletedJob | None:
    """A completed job with its result; None when the file has none of that id.

    Of one that runs again its old result: a record without ``completed_at``.
    """
    rows = list(_rows(connection, COMPLETED, (job_id,)))
    if not rows:
        return None
    stored = job_from_row(rows[0][:-1])
    if stored.state_name != "completed":
        if stored.past is None or not stored.past.has_result:
            return None  # the trace of an interrupted ACK elsewhere
        stored.record.completed_at = None
    return CompletedJob(stored.record, _result_from(rows[0]))


def completed_page(
    connection: apsw.Connection, queue: str, after_seq: int, limit: int
) -> list[tuple[int, CompletedJob]]:
    """The completed jobs of a queue behind *after_seq*, in order, at most *limit*, with their sequence numbers."""
    return [
        (row[0], CompletedJob(job_from_row(row[:-1]).record, _result_from(row)))
        for row in _rows(connection, COMPLETED_OF_QUEUE, (queue, after_seq, limit))
    ]


def _result_from(row: tuple[Any, ...]) -> Raw | None:
    return None if row[-1] is None else checked_payload(row[-1])


def _pages(
    connection: apsw.Connection, sql: str, start: tuple[Any, ...], key: Callable[[tuple[Any, ...]], tuple[Any, ...]]
) -> Iterator[Any]:
    """Rows of *sql*, page after page; *key* takes from a page's last row what the next page begins after."""
    after = start
    while True:
        count, row = 0, after
        for row in _rows(connection, sql, after):
            count += 1
            yield row
        if count < PAGE_ROWS:
            return
        after = key(row)


def _first(row: tuple[Any, ...]) -> tuple[Any, ...]:
    return (row[0],)


def _rows(connection: apsw.Connection, sql: str, bindings: tuple[Any, ...] = ()) -> Iterator[Any]:
    try:
        yield from connection.execute(sql, bindings)
    except apsw.Error as error:
        raise faults.from_apsw(error) from error
    except UnicodeDecodeError as error:
        raise CorruptDatabaseError(f"a text of the file is not UTF-8: {error}") from error


def _listed(connection: apsw.Connection, statement: ListStatement, ids: list[str]) -> list[tuple[Any, ...]]:
    try:
        return statement.run(connection, ids)
    except apsw.Error as error:
        raise faults.from_apsw(error) from error


def finished_ids(connection: apsw.Connection) -> set[str]:
    """Ids that completed and were removed while a stored job still named them."""
    return {job_id for (job_id,) in _rows(connection, "SELECT job_id FROM bqt_finished")}


def oldest_completed(connection: apsw.Connection, before_ms: float | None, limit: int) -> list[tuple[str, str]]:
    """(id, queue) of the jobs that completed first, at most *limit*; only those before *before_ms* if it is given."""
    after_all = 1e308 if before_ms is None else before_ms
    return list(_rows(connection, OLDEST_COMPLETED, (after_all, limit)))


def series(connection: apsw.Connection, queue: str, kind: str) -> list[tuple[int, int, int, float | None]]:
    """What has ended in a queue, ``completed`` or ``failed``: slot, minute, count and the time of the last one."""
    return list(_rows(connection, _SERIES.format(kind=kind), (queue,)))


def oldest_of_queue(
    connection: apsw.Connection, queue: str, *, until_ms: float, limit: int, over: list[str]
) -> list[str]:
    """Ids of the jobs of a queue that completed first, until *until_ms*, at most *limit*, none of *over*."""
    sql, listed = _without(_OLDEST_OF_QUEUE, over)
    return [job_id for (job_id,) in _rows(connection, sql, (queue, until_ms, *listed, limit))]


def completed_keys(
    connection: apsw.Connection, queue: str, *, limit: int, offset: int, over: list[str], newest_first: bool = False
) -> list[tuple[float, str, int]]:
    """(createdAt, id, rowid) of completed jobs of a queue in that order, without those of *over*. Index only."""
    sql, listed = _without(_NEWEST_OF_QUEUE if newest_first else _COMPLETED_OF_QUEUE, over)
    return list(_rows(connection, sql, (queue, *listed, limit, offset)))


def records_at(connection: apsw.Connection, rowids: list[int], max_bytes: int) -> dict[int, JobRecord] | None:
    """The jobs in these rows; None when their data is more than *max_bytes*, of which no more is read."""
    records: dict[int, JobRecord] = {}
    size = 0
    for start in range(0, len(rowids), ROWS_AT_ONCE):
        for row in _rows(connection, PENDING, (json.dumps(rowids[start : start + ROWS_AT_ONCE]),)):
            records[row[0]] = record = job_from_row(row).record
            size += len(record.data)
            if size > max_bytes:
                return None
    return records


def results_of(connection: apsw.Connection, ids: list[str], max_bytes: int) -> dict[str, Raw] | None:
    """The results that jobs of these ids have; None when they are more than *max_bytes*, of which no more is read."""
    results: dict[str, Raw] = {}
    size = 0
    for start in range(0, len(ids), ROWS_AT_ONCE):
        for job_id, blob in _rows(connection, _RESULTS, (json.dumps(ids[start : start + ROWS_AT_ONCE]),)):
            result = checked_payload(blob)
            if result is None:
                continue
            results[job_id] = result
            size += len(result)
            if size > max_bytes:
                return None
    return results


def _without(sql: str, over: list[str]) -> tuple[str, tuple[str, ...]]:
    """The statement that leaves out the ids of *over*, and the binding for them."""
    return (sql.format(_NOT_OVER), (json.dumps(over),)) if over else (sql.format(""), ())
