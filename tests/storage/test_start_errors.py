"""What cannot be opened is refused in one line and left as it was.

Source: PD-5, PD-20, PD-24; persistence 12.2-12.4.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import apsw
import pytest

from bunqueue_trio.errors import StartError
from bunqueue_trio.storage import connection as db
from bunqueue_trio.storage import soundness, writes
from bunqueue_trio.storage.batch import Batch
from bunqueue_trio.storage.records import plain_row
from tests.storage.samples import job, plain

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="gives up root's rights in a child process")


def refused(path: str) -> str:
    with pytest.raises(StartError) as caught:
        db.open_writer(path)
    text = str(caught.value)
    assert "\n" not in text
    assert path in text
    return text


def test_a_missing_parent_folder_is_made(tmp_path):
    opened = db.open_data_file(str(tmp_path / "data" / "jobs.db"))

    db.close_data_file(opened)
    assert os.listdir(tmp_path / "data") == ["jobs.db"]


def test_a_folder_is_not_made_where_its_parent_is_missing(tmp_path):
    text = refused(str(tmp_path / "no" / "such" / "jobs.db"))

    assert "does not exist" in text
    assert "unable to open database file" in text
    assert os.listdir(tmp_path) == []


def test_a_file_as_parent_folder_is_refused(tmp_path):
    (tmp_path / "file").touch()

    assert "is not a folder" in refused(str(tmp_path / "file" / "jobs.db"))


def test_a_folder_that_cannot_be_made_is_refused(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "mkdir", refuse)

    assert "cannot create the folder" in refused(str(tmp_path / "data" / "jobs.db"))


def test_a_path_that_leads_in_a_circle_is_refused(tmp_path):
    os.symlink(tmp_path / "b", tmp_path / "a")
    os.symlink(tmp_path / "a", tmp_path / "b")

    for attempt in (db.FileLock.acquire, db.open_writer):
        with pytest.raises(StartError, match="too many levels of symbolic links"):
            attempt(str(tmp_path / "a"))


def test_a_folder_is_refused(tmp_path):
    assert "it is a folder" in refused(str(tmp_path))


def test_a_device_is_refused():
    assert "not a regular file" in refused("/dev/null")


@pytest.mark.parametrize("content", [b"Dear diary, " * 50, b"\0" * 16 + b"x" * 4080])
def test_a_file_that_is_no_database_is_refused_and_untouched(path, content):
    Path(path).write_bytes(content)

    assert "file is not a database" in refused(path)
    assert Path(path).read_bytes() == content


def filled(path: str) -> bytearray:
    writer = db.open_writer(path)
    writes.apply_batch(writer, Batch(plain=plain(2_000)), path)
    db.close_writer(writer)
    return bytearray(Path(path).read_bytes())


@pytest.mark.parametrize("damage", ["header", "pages", "cut"])
def test_a_damaged_file_is_refused_and_untouched(path, damage):
    content = filled(path)
    if damage == "header":
        content[:16] = os.urandom(16)
    elif damage == "pages":
        content[3 * 4096 : 9 * 4096] = b"\xa5" * (6 * 4096)
    else:
        del content[5 * 4096 + 100 :]
    Path(path).write_bytes(content)

    text = refused(path)

    assert ("file is not a database" if damage == "header" else "database disk image is malformed") in text
    assert Path(path).read_bytes() == content


def pages(path: str, name: str) -> list[int]:
    """Pages of a table or index."""
    connection = apsw.Connection(path)
    found = [number for (number,) in connection.execute("SELECT pageno FROM dbstat WHERE name = ? ORDER BY 1", (name,))]
    connection.close()
    return found


def with_free_pages(path: str) -> bytearray:
    """A file with room that deletions have left: what writes takes its pages from there."""
    writer = db.open_writer(path)
    writes.apply_batch(writer, Batch(plain=plain(2_000)), path)
    writer.execute("DELETE FROM jobs WHERE rowid % 20 != 0")
    db.close_writer(writer)
    content = bytearray(Path(path).read_bytes())
    assert content[32:40] != bytes(8)
    return content


@pytest.mark.parametrize("place", ["trunk", "count", "jobs", "index"])
def test_damage_that_only_writes_would_meet_is_found_at_the_start(path, place):
    content = with_free_pages(path)
    if place == "trunk":
        start = (int.from_bytes(content[32:36], "big") - 1) * 4096
        content[start : start + 4096] = b"\xa5" * 4096
    elif place == "count":
        content[36:40] = b"\0\0\xff\xff"
    elif place == "jobs":  # the free pages begin where jobs are
        content[32:36] = pages(path, "jobs")[-1].to_bytes(4, "big")
    else:
        start = (pages(path, "idx_jobs_queue_state")[-1] - 1) * 4096
        content[start : start + 4096] = b"\xa5" * 4096
    Path(path).write_bytes(content)

    text = refused(path)

    assert "database disk image is malformed (" in text
    assert Path(path).read_bytes() == content


def test_a_schema_that_is_no_text_is_refused(path):
    content = filled(path).replace(b"stall_timeout", b"\x8ctall_timeout")
    Path(path).write_bytes(content)

    assert "database disk image is malformed (a text of the file is not UTF-8: " in refused(path)
    assert Path(path).read_bytes() == content


def test_a_refusal_leaves_the_wal_and_the_file_apart(path, tmp_path):
    # given: a killed process, and damage in the main file
    writer = db.open_writer(path)
    writes.apply_batch(writer, Batch(plain=plain(2_000)), path)
    db.checkpoint(writer, "TRUNCATE")
    damaged_page = pages(path, "jobs")[-2]
    writes.apply_batch(writer, Batch(plain=[plain_row(job("new"), 9_000, "waiting")]), path)
    copy = tmp_path / "copy"
    copy.mkdir()
    for suffix in ("", "-wal"):
        shutil.copy(path + suffix, copy / f"jobs.db{suffix}")
    writer.close()
    content = bytearray((copy / "jobs.db").read_bytes())
    content[(damaged_page - 1) * 4096 : damaged_page * 4096] = b"\xa5" * 4096
    (copy / "jobs.db").write_bytes(content)
    wal = (copy / "jobs.db-wal").read_bytes()

    # when
    refused(str(copy / "jobs.db"))

    # then
    assert (copy / "jobs.db").read_bytes() == content
    assert (copy / "jobs.db-wal").read_bytes() == wal


def test_the_look_for_damage_takes_no_longer_than_it_may(path, monkeypatch):
    content = with_free_pages(path)
    content[36:40] = b"\0\0\xff\xff"
    Path(path).write_bytes(content)
    monkeypatch.setattr(soundness, "LIMIT_S", 0.0)
    monkeypatch.setattr(soundness, "STEPS", 1)

    db.open_writer(path).close()


def test_a_row_that_breaks_a_rule_is_no_damage(path):
    writer = db.open_writer(path)
    writes.apply_batch(writer, Batch(plain=plain(10)), path)
    writer.execute("PRAGMA writable_schema = ON")
    writer.execute(
        "UPDATE sqlite_schema SET sql = replace(sql, 'queue TEXT NOT NULL', 'queue TEXT') WHERE name = 'jobs'"
    )
    writer.close()
    other = apsw.Connection(path)
    other.execute("UPDATE jobs SET queue = NULL WHERE rowid = 1; PRAGMA writable_schema = ON")
    other.execute(
        "UPDATE sqlite_schema SET sql = replace(sql, 'queue TEXT', 'queue TEXT NOT NULL') WHERE name = 'jobs'"
    )
    other.close()
    other = apsw.Connection(path)
    assert other.execute("PRAGMA quick_check").fetchall() == [("NULL value in jobs.queue",)]
    other.close()

    db.open_writer(path).close()


def test_a_file_of_size_0_is_a_new_database(path):
    Path(path).touch()

    writer = db.open_writer(path)

    assert writer.execute("SELECT count(*) FROM jobs").fetchall() == [(0,)]
    writer.close()


# Root may write to anything, so the tests about rights run in a child that has given up being root.
AS_NOBODY = """
import os, sys
from bunqueue_trio.errors import StartError
from bunqueue_trio.storage import connection as db
os.setgroups([]); os.setgid(65534); os.setuid(65534)
for attempt in (db.FileLock.acquire, db.open_writer):
    try:
        attempt(sys.argv[1])
    except StartError as error:
        print(error)
    else:
        print("opened")
"""


def open_as_nobody(path: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", AS_NOBODY, path], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


@pytest.fixture
def public_path(tmp_path_factory):
    folder = tmp_path_factory.mktemp("public")
    for parent in folder.relative_to(tempfile.gettempdir()).parents[:-1]:
        (tempfile.gettempdir() / parent).chmod(0o755)
    folder.chmod(0o777)
    return str(folder / "jobs.db")


@needs_root
def test_a_read_only_file_is_refused(public_path):
    db.close_writer(db.open_writer(public_path))
    os.chmod(public_path, 0o444)

    lines = open_as_nobody(public_path)

    assert len(lines) == 2
    assert all("attempt to write a readonly database" in line for line in lines)


@needs_root
def test_a_read_only_folder_is_refused(public_path):
    db.close_writer(db.open_writer(public_path))
    os.chmod(public_path, 0o666)
    os.chmod(os.path.dirname(public_path), 0o555)

    lines = open_as_nobody(public_path)

    assert len(lines) == 2
    assert all("the folder" in line and "read-only" in line for line in lines)


@needs_root
def test_a_forbidden_folder_is_refused(public_path):
    os.chmod(os.path.dirname(public_path), 0o700)

    lines = open_as_nobody(public_path)

    assert len(lines) == 2
    assert all(line.startswith(f"Cannot open database {public_path}: ") for line in lines)


def test_a_write_lock_of_another_program_does_not_keep_us_from_starting(writer, path):
    # Nothing needs writing, so nothing waits.
    db.close_writer(writer)
    other = apsw.Connection(path)
    other.execute("BEGIN IMMEDIATE")

    again = db.open_writer(path)

    assert again.execute("SELECT count(*) FROM jobs").fetchall() == [(0,)]
    again.close()
    other.close()


@pytest.fixture
def _impatient(monkeypatch):
    monkeypatch.setattr(db, "BUSY_TIMEOUT_MS", 50)
    monkeypatch.setattr(db, "OPEN_RETRY_S", 0.1)


@pytest.mark.usefixtures("_impatient")
def test_an_exclusive_lock_of_another_program_is_named_after_the_wait(path):
    other = apsw.Connection(path)
    other.execute("PRAGMA locking_mode = EXCLUSIVE")
    other.execute("BEGIN EXCLUSIVE; CREATE TABLE x(y)")

    text = refused(path)

    assert "database is locked" not in text.split(";")[1]
    assert "database is locked; another program holds it locked" in text
    other.close()


def test_an_exclusive_lock_that_ends_within_the_wait_does_no_harm(path):
    # apsw lets a connection move between threads; SQLite's lock belongs to the connection.
    other = apsw.Connection(path)
    other.execute("BEGIN EXCLUSIVE; CREATE TABLE x(y)")
    timer = threading.Timer(0.2, lambda: other.execute("COMMIT"))
    timer.start()

    writer = db.open_writer(path)

    timer.join()
    assert writer.pragma("journal_mode") == "wal"
    writer.close()
    other.close()


def test_a_failed_start_leaves_nothing_open_or_locked(path):
    Path(path).write_bytes(b"Dear diary, " * 50)
    with pytest.raises(StartError):
        db.open_data_file(path)
    Path(path).write_bytes(b"")

    db.close_data_file(db.open_data_file(path))


def test_a_reader_of_a_missing_file_is_refused(path):
    with pytest.raises(StartError, match="unable to open database file"):
        db.open_reader(path)
