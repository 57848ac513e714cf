"""One server per file, however its name is spelled. Source: PD-8, persistence 12.2."""

import os
import signal
import subprocess
import sys

import apsw
import pytest

from bunqueue_trio.errors import StartError
from bunqueue_trio.storage import connection as db
from bunqueue_trio.storage import paths
from bunqueue_trio.storage.connection import FileLock

SERVER = """
import sys, time
from bunqueue_trio.storage import connection as db
opened = db.open_data_file(sys.argv[1])
print("open", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def other_server(path):
    """Another process that serves the file."""
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdin is not None
    assert process.stdout.readline() == "open\n"
    yield process
    process.kill()
    process.wait()
    process.stdin.close()
    process.stdout.close()


def assert_taken(path: str) -> None:
    with pytest.raises(StartError, match="another bunqueue server is using it") as caught:
        FileLock.acquire(path)
    assert "\n" not in str(caught.value)
    assert path in str(caught.value)


def spellings(path: str, tmp_path) -> list[str]:
    os.symlink(path, tmp_path / "symlink.db")
    os.link(path, tmp_path / "hardlink.db")
    return [
        path,
        os.path.relpath(path),
        str(tmp_path / "." / ".." / tmp_path.name / "jobs.db"),
        str(tmp_path / "symlink.db"),
        str(tmp_path / "hardlink.db"),
    ]


def test_a_second_process_is_refused_under_every_name(other_server, path, tmp_path):
    for name in spellings(path, tmp_path):
        assert_taken(name)


def test_a_second_server_in_this_process_is_refused_under_every_name(path, tmp_path):
    with FileLock.acquire(path):
        for name in spellings(path, tmp_path):
            assert_taken(name)
    FileLock.acquire(path).release()


def test_a_killed_server_leaves_nothing_stale(other_server, path):
    other_server.send_signal(signal.SIGKILL)
    other_server.wait()

    db.close_data_file(db.open_data_file(path))


def test_other_programs_may_read_and_write_beside_us(other_server, path):
    tool = apsw.Connection(path)

    assert tool.execute("SELECT count(*) FROM jobs").fetchall() == [(0,)]
    tool.execute("INSERT INTO bqt_finished VALUES ('x')")
    tool.close()
    assert os.path.exists(path + "-wal")


HAS_SHARED_LOCK = """
import fcntl, sys
with open(sys.argv[1], "r+b") as file:
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 510, 0x40000002)  # where SQLite keeps its shared locks
    except BlockingIOError:
        print("held")
    else:
        print("free")
"""


def test_a_refused_second_open_drops_no_lock_of_sqlite(path):
    # Closing any descriptor of the file would drop them: another program could take itself for the only one.
    def shared_lock() -> str:
        done = subprocess.run([sys.executable, "-c", HAS_SHARED_LOCK, path], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    opened = db.open_data_file(path)
    assert shared_lock() == "held"

    assert_taken(path)

    assert shared_lock() == "held"
    db.close_data_file(opened)
    assert shared_lock() == "free"


def test_releasing_twice_is_harmless(path):
    lock = FileLock.acquire(path)
    lock.release()
    with FileLock.acquire(path):
        lock.release()
        assert_taken(path)


def test_the_lock_makes_a_new_file_and_only_that(path, tmp_path):
    with FileLock.acquire(path):
        assert os.listdir(tmp_path) == ["jobs.db"]
        assert os.stat(path).st_size == 0


def test_a_file_that_is_replaced_while_it_is_being_locked_is_locked_anew(tmp_path, monkeypatch):
    path, other = tmp_path / "jobs.db", tmp_path / "other.db"
    path.write_bytes(b"")
    other.write_bytes(b"")
    inode = other.stat().st_ino
    flock = paths.fcntl.flock

    def replace_first(descriptor: int, operation: int) -> None:
        if other.exists():
            other.replace(path)  # as a restore does
        flock(descriptor, operation)

    monkeypatch.setattr(paths.fcntl, "flock", replace_first)

    with paths.FileLock.acquire(str(path)) as lock:
        assert lock._inode[1] == inode
        with pytest.raises(StartError, match="another bunqueue server is using it"):
            paths.FileLock.acquire(str(path))
