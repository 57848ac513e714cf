"""A data file per test, opened as the server opens it."""

from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from bunqueue_trio.storage import connection as db


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "jobs.db")


@pytest.fixture
def writer(path: str) -> Iterator[apsw.Connection]:
    connection = db.open_writer(path)
    yield connection
    connection.close(True)


@pytest.fixture
def trace(writer: apsw.Connection) -> list[str]:
    """Every statement that the writer runs, without its values."""
    statements: list[str] = []
    writer.trace_v2(apsw.SQLITE_TRACE_STMT, lambda event: statements.append(event["sql"]))
    return statements
