"""Copies of a data file in use, and whether a file is a sound database."""

from pathlib import Path

import apsw
import pytest

from bunqueue_trio.errors import CorruptDatabaseError, StorageError
from bunqueue_trio.storage import copying
from bunqueue_trio.storage.connection import open_writer
from bunqueue_trio.storage.copying import check_integrity, copy_database
from bunqueue_trio.storage.users import is_open_elsewhere
from tests.backup.fakes import add_rows, make_database, names_beside, rows


def nothing() -> None:
    pass


class StopError(Exception):
    pass


def stop() -> None:
    raise StopError


def test_the_copy_shows_the_moment_at_which_it_was_pinned(database: Path, tmp_path: Path):
    owner = open_writer(str(database))
    target = tmp_path / "copy.db"
    seen: list[int] = []

    def pinned(connection: apsw.Connection) -> None:
        add_rows(owner, 10, first=100)  # commits go on
        seen.extend(connection.execute("SELECT count(*) FROM bqt_meta WHERE key LIKE 'row-%'").fetchone())

    copy_database(str(database), str(target), check=nothing, pinned=pinned)

    assert seen == [3]
    assert (rows(target), rows(database)) == (3, 13)
    owner.close(True)


def test_commits_between_the_steps_do_not_make_it_begin_anew(database: Path, tmp_path: Path):
    owner = open_writer(str(database))
    with owner:
        owner.execute("CREATE TABLE ballast(data)")
        owner.execute("INSERT INTO ballast VALUES (zeroblob(8000000))")
    steps = 0

    def write() -> None:
        nonlocal steps
        steps += 1
        assert steps < 50
        add_rows(owner, 1, first=100 + steps)

    copy_database(str(database), str(tmp_path / "copy.db"), check=write)

    assert steps > 3
    assert rows(tmp_path / "copy.db") == 3
    owner.close(True)


def test_the_wal_of_a_killed_owner_stays_and_an_empty_one_does_not(database: Path, tmp_path: Path):
    copy_database(str(database), str(tmp_path / "one.db"), check=nothing)
    assert names_beside(database) == {""}

    owner = open_writer(str(database))
    add_rows(owner, 4, first=100)
    killed = tmp_path / "killed"
    killed.mkdir()
    for suffix in ("", "-wal"):
        (killed / f"jobs.db{suffix}").write_bytes(Path(f"{database}{suffix}").read_bytes())
    owner.close(True)
    before = (killed / "jobs.db").read_bytes(), (killed / "jobs.db-wal").read_bytes()

    copy_database(str(killed / "jobs.db"), str(tmp_path / "two.db"), check=nothing)

    assert rows(tmp_path / "two.db") == 7
    assert ((killed / "jobs.db").read_bytes(), (killed / "jobs.db-wal").read_bytes()) == before


def test_a_copy_ends_when_it_is_told_to(database: Path, tmp_path: Path):
    with pytest.raises(StopError):
        copy_database(str(database), str(tmp_path / "copy.db"), check=stop)


@pytest.mark.parametrize("name", ["missing.db", "text.db"])
def test_what_is_no_database_is_not_copied(tmp_path: Path, name: str):
    (tmp_path / "text.db").write_text("no database at all, but long enough to look at" * 100)

    with pytest.raises(StorageError):
        copy_database(str(tmp_path / name), str(tmp_path / "copy.db"), check=nothing)

    assert not (tmp_path / "missing.db").exists()


def test_a_sound_file_passes_and_leaves_nothing_beside_it(database: Path):
    check_integrity(str(database), check=nothing)

    assert names_beside(database) == {""}


def test_a_check_ends_when_it_is_told_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(copying, "INSTRUCTIONS_PER_LOOK", 1_000)
    path = make_database(tmp_path / "large.db", 20_000)

    with pytest.raises(StopError):
        check_integrity(str(path), check=stop)


@pytest.mark.parametrize("name", ["a b.db", "100%.db", "ä?#&.db"])
def test_any_name_can_be_checked(tmp_path: Path, name: str):
    check_integrity(str(make_database(tmp_path / name)), check=nothing)


@pytest.mark.parametrize("data", [b"", b"short", b"SQLite format 3\0" + b"\0" * 84])
def test_what_is_no_database_fails(tmp_path: Path, data: bytes):
    (tmp_path / "x.db").write_bytes(data)

    if data:
        with pytest.raises(CorruptDatabaseError, match=r"^corrupt or invalid database$"):
            check_integrity(str(tmp_path / "x.db"), check=nothing)
    else:
        check_integrity(str(tmp_path / "x.db"), check=nothing)  # to SQLite an empty file is an empty database


def test_nobody_has_a_file_open_that_is_closed_or_missing(database: Path):
    assert not is_open_elsewhere(str(database))
    assert not is_open_elsewhere(f"{database}-missing")
