"""What others have left in the file, put right before anything else reads it.

Keys that are no text are made text. We and the reference write texts only. A key that somebody else has stored as a
blob, or left out where SQLite lets that pass, would be read as a text and then never be found by it: its job would run
again after every start.

Rows of our own tables go with what they belong to. Another server that deletes a job does not know of them, and the
next job of that id would be taken for what they say.

Source: persistence, "Damaged rows".
"""

from typing import Final

import apsw

from bunqueue_trio.storage import faults
from bunqueue_trio.storage.decoding import text

_KEYS: Final = (
    ("jobs", "id"),
    ("job_results", "job_id"),
    ("dlq", "job_id"),
    ("cron_jobs", "name"),
    ("queue_state", "name"),
)
_OWNERS: Final = (("bqt_jobs", "job_id", "jobs", "id"), ("bqt_crons", "name", "cron_jobs", "name"))
NO_KEY: Final = "unnamed-"
"""What a row without a key is called, with its number behind."""


def repair_keys(connection: apsw.Connection) -> list[str]:
    """Make them text; a row whose text is taken already goes, for it could never be reached.

    Returns:
        ``table.key`` of each row that was changed or removed, as the key is now.
    Raises:
        StorageError: the file cannot be read or written.

    Cost: two looks into an index per table where there is nothing to do; SQLite sorts blobs behind all texts.
    """
    repaired: list[str] = []
    try:
        with connection:
            for table, column in _KEYS:
                repaired += _repair(connection, table, column)
    except apsw.Error as error:
        raise faults.from_apsw(error) from error
    return repaired


def sweep_side_rows(connection: apsw.Connection) -> int:
    """Delete our rows of jobs and crons that no longer exist. After `repair_keys`.

    Returns:
        How many were deleted.
    Raises:
        StorageError: nothing was deleted.

    Cost: a look-up for each of our rows, 0.7 s per million.
    """
    before = connection.total_changes()
    try:
        with connection:
            for table, column, owners, key in _OWNERS:
                connection.execute(
                    f"DELETE FROM {table}"
                    f" WHERE NOT EXISTS (SELECT 1 FROM {owners} WHERE {owners}.{key} = {table}.{column})"
                )
    except apsw.Error as error:
        raise faults.from_apsw(error) from error
    return connection.total_changes() - before


def _repair(connection: apsw.Connection, table: str, column: str) -> list[str]:
    odd = connection.execute(
        f"SELECT rowid, {column} FROM {table} WHERE {column} >= x''"
        f" UNION ALL SELECT rowid, NULL FROM {table} WHERE {column} IS NULL"
    ).fetchall()
    names = [f"{NO_KEY}{rowid}" if key is None else text(key) for rowid, key in odd]
    for (rowid, _), name in zip(odd, names, strict=True):
        connection.execute(f"UPDATE OR IGNORE {table} SET {column} = ? WHERE rowid = ?", (name, rowid))
        if connection.changes() == 0:
            connection.execute(f"DELETE FROM {table} WHERE rowid = ?", (rowid,))
    return [f"{table}.{name}" for name in names]
