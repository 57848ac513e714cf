"""The tables of the file: those of the reference server, name by name, and a few of our own beside them.

Files go both ways between the two servers. Hence the version stays 21, columns are addressed by name always, and
whatever else we store lives in ``bqt_`` tables, which the reference does not look at.

Source: persistence, "Tables" and "Schema version and migrations"; R30-R53, K15.
"""

from typing import Final

import apsw

from bunqueue_trio.errors import StartError

VERSION: Final = 21

TABLES: Final[dict[str, tuple[str, ...]]] = {
    "migrations": (
        "version INTEGER PRIMARY KEY",
        "applied_at INTEGER NOT NULL",
    ),
    "jobs": (
        "id TEXT PRIMARY KEY",
        "queue TEXT NOT NULL",
        "data BLOB NOT NULL",
        "priority INTEGER NOT NULL DEFAULT 0",
        "created_at INTEGER NOT NULL",
        "run_at INTEGER NOT NULL",
        "started_at INTEGER",
        "completed_at INTEGER",
        "attempts INTEGER NOT NULL DEFAULT 0",
        "max_attempts INTEGER NOT NULL DEFAULT 3",
        "backoff INTEGER NOT NULL DEFAULT 1000",
        "ttl INTEGER",
        "timeout INTEGER",
        "unique_key TEXT",
        "custom_id TEXT",
        "depends_on BLOB",
        "parent_id TEXT",
        "children_ids BLOB",
        "tags BLOB",
        "state TEXT NOT NULL DEFAULT 'waiting'",
        "lifo INTEGER NOT NULL DEFAULT 0",
        "group_id TEXT",
        "progress INTEGER DEFAULT 0",
        "progress_msg TEXT",
        "remove_on_complete INTEGER DEFAULT 0",
        "remove_on_fail INTEGER DEFAULT 0",
        "stall_timeout INTEGER",
        "last_heartbeat INTEGER",
        "stall_count INTEGER NOT NULL DEFAULT 0",
        "timeline BLOB",
        "stacktrace BLOB",
    ),
    "job_results": (
        "job_id TEXT PRIMARY KEY",
        "result BLOB",
        "completed_at INTEGER NOT NULL",
    ),
    "dlq": (
        "id INTEGER PRIMARY KEY AUTOINCREMENT",
        "job_id TEXT NOT NULL",
        "queue TEXT NOT NULL",
        "entry BLOB NOT NULL",
        "entered_at INTEGER NOT NULL",
    ),
    "cron_jobs": (
        "name TEXT PRIMARY KEY",
        "queue TEXT NOT NULL",
        "data BLOB NOT NULL",
        "schedule TEXT",
        "repeat_every INTEGER",
        "priority INTEGER NOT NULL DEFAULT 0",
        "next_run INTEGER NOT NULL",
        "executions INTEGER NOT NULL DEFAULT 0",
        "max_limit INTEGER",
        "timezone TEXT",
        "unique_key TEXT",
        "dedup BLOB",
        "skip_missed_on_restart INTEGER NOT NULL DEFAULT 0",
        "skip_if_no_worker INTEGER NOT NULL DEFAULT 0",
        "prevent_overlap INTEGER NOT NULL DEFAULT 1",
        "job_options BLOB",
    ),
    "queue_state": (
        "name TEXT PRIMARY KEY",
        "paused INTEGER NOT NULL DEFAULT 0",
        "rate_limit INTEGER",
        "concurrency_limit INTEGER",
        "rate_limit_duration INTEGER",
        "rate_limit_expires_at INTEGER",
        "stall_enabled INTEGER",
        "stall_interval INTEGER",
        "max_stalls INTEGER",
        "stall_grace_period INTEGER",
    ),
}
"""Shape of the reference's tables: column definitions in their order."""

INDEXES: Final[dict[str, str]] = {
    "idx_jobs_queue_state": "jobs(queue, state)",
    "idx_jobs_queue_created": "jobs(queue, created_at, id)",
    "idx_jobs_queue_state_created": "jobs(queue, state, created_at, id)",
    "idx_jobs_run_at": "jobs(run_at) WHERE state IN ('waiting', 'delayed')",
    "idx_jobs_unique": "jobs(queue, unique_key) WHERE unique_key IS NOT NULL",
    "idx_jobs_custom_id": "jobs(custom_id) WHERE custom_id IS NOT NULL",
    "idx_jobs_parent": "jobs(parent_id) WHERE parent_id IS NOT NULL",
    "idx_jobs_state_started": "jobs(state, started_at) WHERE state = 'active'",
    "idx_jobs_group_id": "jobs(group_id) WHERE group_id IS NOT NULL",
    "idx_jobs_pending_priority": (
        "jobs(queue, state, priority DESC, run_at ASC) WHERE state IN ('waiting', 'delayed')"
    ),
    "idx_jobs_completed_order": "jobs(completed_at DESC) WHERE state = 'completed'",
    "idx_dlq_queue": "dlq(queue)",
    "idx_dlq_job_id": "dlq(job_id)",
    "idx_dlq_entered_at": "dlq(entered_at)",
}

SIDE_INDEXES: Final[dict[str, str]] = {
    "bqt_completed_of_queue": "jobs(queue, completed_at) WHERE state = 'completed'",
}
"""Our own: what the reference's indexes would have to scan for. Partial, so that a push pays nothing."""

SIDE_TABLES: Final[dict[str, str]] = {
    "bqt_jobs": "job_id TEXT PRIMARY KEY, extra BLOB NOT NULL",
    "bqt_finished": "job_id TEXT PRIMARY KEY",
    "bqt_queues": "queue TEXT PRIMARY KEY, dlq_config BLOB",
    "bqt_series": (
        "queue TEXT NOT NULL, slot INTEGER NOT NULL, minute INTEGER NOT NULL, completed INTEGER NOT NULL,"
        " failed INTEGER NOT NULL, completed_at INTEGER, failed_at INTEGER, PRIMARY KEY(queue, slot)"
    ),
    "bqt_groups": "queue TEXT, group_id TEXT, settings BLOB NOT NULL, PRIMARY KEY(queue, group_id)",
    "bqt_crons": "name TEXT PRIMARY KEY, job_name TEXT NOT NULL",
    "bqt_meta": "key TEXT PRIMARY KEY, value BLOB NOT NULL",
}
"""Our own: what no column of the reference can hold, completed ids whose row is gone though dependents still need
them, policies per queue, how many jobs of a queue ended in each minute, settings of named groups, the names of the jobs
of crons, and a few named values."""

_ADDED_LATER: Final[dict[str, frozenset[str]]] = {
    "jobs": frozenset({"timeline", "stacktrace", "stall_count"}),
    "cron_jobs": frozenset(
        {"unique_key", "dedup", "skip_missed_on_restart", "skip_if_no_worker", "prevent_overlap", "job_options"}
    ),
    "queue_state": frozenset(
        {"rate_limit_duration", "rate_limit_expires_at", "stall_enabled", "stall_interval", "max_stalls"}
        | {"stall_grace_period"}
    ),
}
"""Columns that older versions lack and that an upgrade may add."""


def ensure_schema(connection: apsw.Connection, path: str) -> bool:
    """Bring the file to version 21 and add our side tables, in one transaction; touch nothing that is there already.

    A newer version is used as it is, provided every column we need exists.

    Returns:
        True when something was written, so that a WAL checkpoint is due.

    Raises:
        StartError: a needed column is missing and no upgrade adds it.
        apsw.Error: SQLite refused.
    """
    version = _version(connection)
    have = _table_names(connection)
    if version >= VERSION and have.issuperset(SIDE_TABLES) and _index_names(connection).issuperset(SIDE_INDEXES):
        _require_columns(connection, path, version)
        return False
    connection.execute("BEGIN IMMEDIATE")
    try:
        if version < VERSION:
            _upgrade(connection)
        for name, columns in SIDE_TABLES.items():
            connection.execute(f"CREATE TABLE IF NOT EXISTS {name}({columns}) WITHOUT ROWID")
        _require_columns(connection, path, version)
        for name, target in SIDE_INDEXES.items():
            connection.execute(f"CREATE INDEX IF NOT EXISTS {name} ON {target}")
        if version < VERSION:
            # SQLite's own clock: the stamp informs people, nothing is decided by it.
            connection.execute(
                "INSERT OR IGNORE INTO migrations(version, applied_at)"
                " VALUES (?, CAST(unixepoch('now', 'subsec') * 1000 AS INTEGER))",
                (VERSION,),
            )
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
    return True


def _upgrade(connection: apsw.Connection) -> None:
    for table, columns in TABLES.items():
        connection.execute(f"CREATE TABLE IF NOT EXISTS {table} ({', '.join(columns)})")
        present = _column_names(connection, table)
        for column in columns:
            name = column.split(" ", 1)[0]
            if name not in present and name in _ADDED_LATER.get(table, ()):
                connection.execute(f"ALTER TABLE {table} ADD COLUMN {column}")
    for name, target in INDEXES.items():
        connection.execute(f"CREATE INDEX IF NOT EXISTS {name} ON {target}")


def _version(connection: apsw.Connection) -> int:
    """The highest version of the file; 0 for a file without the table."""
    if "migrations" not in _table_names(connection):
        return 0
    versions = connection.execute("SELECT max(version) FROM migrations").fetchall()
    return int(versions[0][0] or 0)


def _require_columns(connection: apsw.Connection, path: str, version: int) -> None:
    for table, columns in TABLES.items():
        present = _column_names(connection, table)
        missing = [name for column in columns if (name := column.split(" ", 1)[0]) not in present]
        if missing:
            raise StartError(
                f"Cannot use database {path}: its version {version} lacks {', '.join(f'{table}.{m}' for m in missing)};"
                " open it with the server that wrote it, or name another data path"
            )


def _table_names(connection: apsw.Connection) -> set[str]:
    return {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}


def _index_names(connection: apsw.Connection) -> set[str]:
    return {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'index'")}


def _column_names(connection: apsw.Connection, table: str) -> set[str]:
    return {name for (name,) in connection.execute("SELECT name FROM pragma_table_info(?)", (table,))}
