"""Fuzz target: a data file with arbitrary rows. It is refused with a clear error, or a server works from it.

The tables are as they should be; what stands in their cells is decided by the input: sound values, values of another
type, damaged blobs. After the start everything is recounted, jobs are run, all is written, and it starts once more.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import apsw
import msgpack
from harness import Choices, instrumented, run

with instrumented():
    from bunqueue_trio.errors import CommandError, StartError, StorageError
    from bunqueue_trio.logs import configure
    from bunqueue_trio.storage.schema import SIDE_TABLES, TABLES
    from tests.stored_engine import Stored

QUEUES, IDS = ("q", "r", ""), ("a", "b", "c", "d")
STATES = ("waiting", "delayed", "active", "completed", "failed", "odd")
T0 = 1_800_000_000_000
BLOBS: tuple[Any, ...] = (
    {"a": 1},
    [],
    ["a"],
    ["b", "c"],
    [{"state": "waiting", "timestamp": float(T0)}],
    {"type": "fixed", "delay": 5},
    {"auto_retries": 2, "met": ["a"], "has_result": True},
    {"maxAttempts": 2, "priority": 1},
)
CELLS: dict[str, tuple[Any, ...]] = {
    "queue": QUEUES,
    "name": ("n", "q", "r"),
    "id": IDS,
    "job_id": IDS,
    "custom_id": (None, *IDS),
    "unique_key": (None, "k", "cron:n"),
    "parent_id": (None, "a", "b"),
    "group_id": (None, "g"),
    "state": STATES,
    "created_at": (T0, T0 - 5_000),
    "run_at": (T0, T0 + 60_000, 0),
    "started_at": (None, T0),
    "completed_at": (None, T0),
    "next_run": (T0, T0 - 5_000, T0 + 60_000),
    "schedule": (None, "* * * * *", "nonsense"),
    "repeat_every": (None, 1_000),
    "timezone": (None, "UTC", "Europe/Berlin", "Nowhere/Else"),
    "attempts": (0, 1, 9),
    "max_attempts": (3, 1),
    "priority": (0, 5, -5),
    "paused": (0, 1),
}
ODD_CELLS = (
    None,
    0,
    1,
    -1,
    2**31,
    2**63 - 1,
    -(2**63),
    0.5,
    float("inf"),
    -1e300,
    "",
    "x",
    "5",
    "\0",
    b"",
    b"\xc1",
    b"\x81\xa1a",
)


def check(data: bytes) -> int:
    """Start from the file of an input; returns 1 when a server came up.

    Raises:
        Exception: whatever is no refusal, InvariantError among them: a defect.
    """
    choices = Choices(data)
    store = Stored()
    store.checks = store.auto_commit = False
    for table, columns in _tables(store.file):
        for _ in range(choices.number(5)):
            _insert(store.file, table, columns, choices)
    try:
        store.restart()
    except (StartError, StorageError):
        return 0
    _work(store)
    store.engine.check_invariants()
    store.commit()
    store.restart()
    return 1


def _work(store: Stored) -> None:
    """A little of everything, as a server does after its start."""
    store.commit()
    for queue in ("q", "r"):
        for _ in range(3):
            with suppress(CommandError):
                pulled = store.pull(queue)
                if pulled is not None:
                    store.ack(*pulled)
    store.clock.advance(120_000)
    for _ in range(3):
        store.engine.tick(store.now)
    store.commit()


def _tables(connection: apsw.Connection) -> list[tuple[str, list[str]]]:
    """The tables whose rows say something, ours behind those of the reference, with their columns."""
    names = [name for name in (*TABLES, *SIDE_TABLES) if name not in ("migrations", "bqt_meta")]
    columns = "SELECT name FROM pragma_table_info(?)"
    return [(name, [column for (column,) in connection.execute(columns, (name,))]) for name in names]


def _insert(connection: apsw.Connection, table: str, columns: list[str], choices: Choices) -> None:
    row = {name: cell for name in columns if (cell := _cell(name, choices)) is not _DEFAULT}
    if not row:
        return
    names, marks = ", ".join(row), ", ".join("?" * len(row))
    with suppress(apsw.ConstraintError, apsw.MismatchError):  # no file can hold such a row
        connection.execute(f"INSERT OR REPLACE INTO {table}({names}) VALUES ({marks})", tuple(row.values()))


def _cell(name: str, choices: Choices) -> Any:
    how = choices.number(16)
    if how == 15:
        return choices.pick(ODD_CELLS)
    if how == 14:
        return choices.raw()
    if how == 13:
        return msgpack.packb(choices.value(), unicode_errors="surrogatepass")
    if name in CELLS:
        return choices.pick(CELLS[name])
    if name in _REQUIRED_BLOBS or how < 4:
        return msgpack.packb(choices.pick(BLOBS)) if name in _BLOBS else _DEFAULT
    return _DEFAULT


_DEFAULT = object()
_REQUIRED_BLOBS = {"data", "entry", "extra"}
_BLOBS = _REQUIRED_BLOBS | {
    "depends_on",
    "children_ids",
    "tags",
    "timeline",
    "stacktrace",
    "result",
    "dedup",
    "job_options",
}


if __name__ == "__main__":
    configure("error")
    run("rows", check)
