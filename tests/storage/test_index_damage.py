"""An index that a disk has damaged: the look at the start does not compare it with its table. Source: R185."""

from pathlib import Path

import apsw
import pytest

from bunqueue_trio.errors import StorageError
from bunqueue_trio.storage import connection as db
from bunqueue_trio.storage import writes
from bunqueue_trio.storage.batch import Batch
from bunqueue_trio.storage.records import plain_row, state_row
from tests.storage.samples import job

IDS = [f"j{number}" for number in range(20)]


def damage_page(path: str, page: int, old: bytes, new: bytes) -> None:
    """Exchange bytes on one page of a closed file."""
    content = bytearray(Path(path).read_bytes())
    start = (page - 1) * 4_096
    at = content.index(old, start, start + 4_096)
    content[at : at + len(new)] = new
    Path(path).write_bytes(content)


@pytest.fixture
def root_page(path: str) -> dict[str, int]:
    """The page of each table and index of a file with twenty jobs."""
    connection = db.open_writer(path)
    writes.apply_batch(connection, Batch(plain=[plain_row(job(x), n, "waiting") for n, x in enumerate(IDS, 1)]), path)
    pages = dict(connection.execute("SELECT name, rootpage FROM sqlite_schema WHERE rootpage"))
    db.close_writer(connection)
    return pages


@pytest.mark.parametrize("index", ["idx_jobs_queue_state", "idx_jobs_queue_state_created", "idx_jobs_pending_priority"])
def test_a_commit_that_meets_a_damaged_index_has_it_built_anew(path, root_page, index):
    damage_page(path, root_page[index], b"waiting", b"waitin\x00")
    writer = db.open_writer(path)

    report = writes.apply_batch(writer, Batch(states=[state_row(job(x), "active") for x in IDS]), path)

    assert report.has_mended
    assert writer.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert writer.execute("SELECT count(*) FROM jobs WHERE state = 'active'").fetchall() == [(20,)]
    assert not writes.apply_batch(writer, Batch(deleted=IDS), path).has_mended
    writer.close()


def test_a_damaged_table_is_not_mended(path, root_page):
    writer = db.open_writer(path)
    damage_page(path, root_page["jobs"], b"waiting", b"waitin\x00")
    for page in (root_page["jobs"], root_page["job_results"]):
        content = bytearray(Path(path).read_bytes())
        content[(page - 1) * 4_096] = 0xFF
        Path(path).write_bytes(content)

    statements: list[str] = []
    writer.trace_v2(apsw.SQLITE_TRACE_STMT, lambda event: statements.append(event["sql"]))
    with pytest.raises(StorageError, match="malformed"):
        writes.apply_batch(writer, Batch(results=[("a", b"1", 1.0)]), path)
    assert "REINDEX" not in statements
    writer.close(True)
