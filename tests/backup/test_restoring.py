"""A backup takes the place of the data file, or nothing changes.

Source: S3 backup and restore, "Restore", BD-2, BD-3, BD-10, BD-11, BD-13; R212 to R214, R342 to R344, R357 to R364.
"""

import gzip
import hashlib
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from bunqueue_trio.backup import checking, restoring
from bunqueue_trio.backup.making import Maker
from bunqueue_trio.backup.record import BackupLock, read_record, write_record
from bunqueue_trio.backup.restoring import IN_USE, Restored, rehearse, restore
from bunqueue_trio.errors import BackupBusyError, BackupError
from bunqueue_trio.model.backup import BackupRecord
from bunqueue_trio.storage.connection import open_writer
from bunqueue_trio.storage.paths import FileLock
from tests.backup.fakes import (
    GONE,
    FakeObjectStore,
    add_rows,
    make_database,
    names_beside,
    patience,
    rows,
    settings,
    sha,
)
from tests.process import ROOT
from tests.tiny_disk import MountDisk

KEY = "backups/bunqueue-2026-11-30T12-00-00-000Z.db"
SIDECAR = f"{KEY}.meta.json"
KEPT = ".before-restore-2026-11-30T12-00-00-000Z"
NOT_JSON = "Backup metadata is not valid JSON"
NOT_GZIP = "Backup data is not a valid gzip stream"
MISMATCH = "Backup checksum mismatch - file may be corrupted"
NOT_SQLITE = "Restored data is not a valid SQLite database"


@pytest.fixture
def image(tmp_path: Path) -> bytes:
    """A database of seven rows, as bytes."""
    (folder := tmp_path / "image").mkdir()
    return make_database(folder / "image.db", 7).read_bytes()


@pytest.fixture
def run(store: FakeObjectStore, database: Path, noon):
    """Restore."""

    def call(key: str = KEY, path: Path = database) -> Restored:
        return restore(store, key, str(path), patience(), noon)

    return call


def put(store: FakeObjectStore, data: bytes, *, original: bytes | None = None, **sidecar: object) -> None:
    store.put(KEY, data, content_type="x")
    if sidecar or original is not None:
        store.put(SIDECAR, json.dumps(described(original, **sidecar)).encode(), content_type="x")


def described(original: bytes | None, **changes: object) -> dict[str, object]:
    if original is None:
        return dict(changes)
    checksum = hashlib.sha256(original).hexdigest()
    return {"size": len(original), "checksum": checksum, "compressed": True, **changes}


def damaged(image: bytes) -> bytes:
    """Pages of noise, so that the file is found unsound."""
    return image[:8192] + b"\xa5" * 40_960 + image[8192 + 40_960 :]


def test_the_rows_are_those_of_the_backup_and_the_old_file_is_kept(run, store, database, image):
    old = sha(database)
    put(store, gzip.compress(image), original=image)

    restored = run()

    assert rows(database) == 7
    assert restored == Restored(len(image), True, f"{database}{KEPT}")
    assert sha(Path(f"{database}{KEPT}")) == old
    assert names_beside(database) == {"", KEPT}


def test_what_we_make_we_restore(run, store, database, noon):
    Maker(settings(database), store, patience(), noon, version="1").make()
    connection = open_writer(str(database))
    add_rows(connection, 9, first=100)
    connection.close(True)

    run()

    assert rows(database) == 3


@pytest.mark.parametrize(
    ("form", "is_verified"),
    [("no sidecar, gzip", False), ("no sidecar, plain", False), ("plain, said so", True), ("no checksum", False),
     ("upper case", True), ("metadata of the object", True)],
)  # fmt: skip
def test_odd_forms_that_are_fine(run, store, database, image, form, is_verified):
    packed = gzip.compress(image)
    if form == "no sidecar, gzip":
        put(store, packed)
    elif form == "no sidecar, plain":
        put(store, image)
    elif form == "plain, said so":
        put(store, image, original=image, compressed=False)
    elif form == "no checksum":
        put(store, packed, compressed=True)
    elif form == "upper case":
        put(store, packed, original=image, checksum=hashlib.sha256(image).hexdigest().upper())
    else:
        put(store, packed)
        store.metadata[KEY] = {"sha256": hashlib.sha256(image).hexdigest()}

    assert run().is_verified is is_verified

    assert rows(database) == 7


def flipped(data: bytes, index: int) -> bytes:
    changed = bytearray(data)
    changed[index] ^= 4
    return bytes(changed)


def odd_objects(image: bytes) -> dict[str, tuple[bytes, bytes | None, str]]:
    """Data, sidecar, and the beginning of the refusal."""
    packed, bad = gzip.compress(image), damaged(image)

    def sidecar(original: bytes, **changes: object) -> bytes:
        return json.dumps(described(original, **changes)).encode()

    unsound = "Database integrity check failed: "
    unreadable = f"{unsound}corrupt or invalid database"
    return {
        "wrong checksum": (packed, sidecar(image, checksum="0" * 64), MISMATCH),
        "wrong size": (packed, sidecar(image, size=5), "Backup size mismatch"),
        "gzip, said to be plain": (packed, sidecar(image, compressed=False), MISMATCH),
        "gzip, said to be plain, no checksum": (packed, b'{"compressed": false}', NOT_SQLITE),
        "plain, said to be gzip": (image, sidecar(image), NOT_GZIP),
        "cut gzip": (packed[: len(packed) // 2], sidecar(image), NOT_GZIP),
        "flipped bit": (flipped(packed, -6), sidecar(image), NOT_GZIP),
        "flipped bit, plain": (flipped(image, 9000), sidecar(image, compressed=False), MISMATCH),
        "text": (gzip.compress(b"not a database" * 99), None, NOT_SQLITE),
        "damaged pages": (gzip.compress(bad), sidecar(bad), unsound),
        "damaged pages, no checksum": (gzip.compress(bad), None, unsound),
        "damaged pages, checksum of the good": (gzip.compress(bad), sidecar(image), MISMATCH),
        "header only": (image[:100], None, unreadable),
        "cut file": (image[: len(image) // 2], None, unsound),
        "broken sidecar": (packed, b'{"checksum": ', NOT_JSON),
        "no object in the sidecar": (packed, b"[]", NOT_JSON),
        "huge sidecar": (packed, b" " * (2 << 20), NOT_JSON),
        "empty": (b"", None, NOT_SQLITE),
        "metadata of the object": (packed, None, MISMATCH),
    }  # fmt: skip


@pytest.mark.parametrize("name", list(odd_objects(random.Random(1).randbytes(60_000))))
def test_odd_objects_are_refused_and_nothing_changes(run, store, database, image, name):
    data, sidecar, text = odd_objects(image)[name]
    store.put(KEY, data, content_type="x")
    if sidecar is not None:
        store.put(SIDECAR, sidecar, content_type="x")
    if name == "metadata of the object":
        store.metadata[KEY] = {"sha256": "0" * 64}
    before = sha(database)

    with pytest.raises(BackupError) as refusal:
        run()

    assert str(refusal.value).startswith(text)
    assert sha(database) == before
    assert names_beside(database) == {""}


@pytest.mark.parametrize("name", ["look", "get", "block"])
@pytest.mark.parametrize("about", [KEY, SIDECAR])
def test_a_bucket_that_fails_changes_nothing(run, store, database, image, name, about):
    put(store, gzip.compress(image), original=image)
    store.before = lambda called, key: (_ for _ in ()).throw(GONE) if (called, key) == (name, about) else None
    before = sha(database)

    with pytest.raises(BackupError, match="connection refused"):
        run()

    assert sha(database) == before
    assert names_beside(database) == {""}


def test_an_unknown_key_is_said(run, database):
    with pytest.raises(BackupError, match=r"^Backup not found: no/such.db$"):
        run("no/such.db")

    assert names_beside(database) == {""}


def test_any_key_of_the_bucket_can_be_restored(run, store, database, image):
    store.put("elsewhere/any name", image, content_type="x")

    run("elsewhere/any name")

    assert rows(database) == 7


def test_the_wal_of_a_killed_server_is_not_replayed_over_the_backup(run, store, database, image):
    subprocess.run([sys.executable, "-c", LEAVE_A_WAL, str(database)], cwd=ROOT, check=False)
    wal = database.with_name("jobs.db-wal").read_bytes()
    assert len(wal) > 1000
    put(store, gzip.compress(image), original=image)

    run()

    assert rows(database) == 7
    kept = Path(f"{database}{KEPT}")
    assert Path(f"{kept}-wal").read_bytes() == wal
    assert rows(kept) == 43  # the old state, as a whole


LEAVE_A_WAL = """
import os, sys
from tests.backup.fakes import open_writer, add_rows
it = open_writer(sys.argv[1])
add_rows(it, 40, first=100)
os.kill(os.getpid(), 9)
"""
RESTORE_AND_DIE = """
import os, shutil, sys
from pathlib import Path
from bunqueue_trio.backup import checking, restoring
from tests.backup import fakes
left = int(sys.argv[3])
def deadly(function):
    def step(*arguments, **options):
        global left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), 9)
        return function(*arguments, **options)
    return step
for owner, name in ((os, "replace"), (os, "link"), (os, "unlink"), (os, "fsync"), (os, "chmod"), (shutil, "copy"),
                    (restoring, "fold_in"), (restoring, "sync_folder"), (restoring, "_dress"), (restoring, "_swap")):
    setattr(owner, name, deadly(getattr(owner, name)))
store = fakes.FakeObjectStore()
store.put("key", Path(sys.argv[2]).read_bytes(), content_type="x")
restoring.restore(store, "key", sys.argv[1], fakes.patience(), fakes.clock())
"""


@pytest.mark.slow
def test_killed_at_any_step_the_file_is_the_old_or_the_new_one_as_a_whole(tmp_path, image):
    """The old state has 43 rows, of which 40 are in the WAL that a killed server has left; the new one 7."""
    (tmp_path / "image.db").write_bytes(image)
    script = [sys.executable, "-c"]
    seen = []
    for steps in range(40):
        database = make_database(tmp_path / f"jobs-{steps}.db")
        subprocess.run([*script, LEAVE_A_WAL, str(database)], cwd=ROOT, check=False)
        assert Path(f"{database}-wal").stat().st_size > 1000
        run = subprocess.run([*script, RESTORE_AND_DIE, database, tmp_path / "image.db", str(steps)], cwd=ROOT)
        seen.append(rows(database))
        for kept in tmp_path.glob(f"jobs-{steps}.db.before-restore-*Z"):
            assert rows(kept) == 43
        if run.returncode == 0:
            break

    assert run.returncode == 0
    assert len(seen) > 8
    assert seen == sorted(seen, reverse=True)
    assert set(seen) == {43, 7}


def test_a_wal_that_cannot_be_folded_in_is_moved_away(run, store, database, image, monkeypatch):
    subprocess.run([sys.executable, "-c", LEAVE_A_WAL, str(database)], cwd=ROOT, check=False)
    wal = database.with_name("jobs.db-wal").read_bytes()
    monkeypatch.setattr(restoring, "fold_in", lambda path: False)
    put(store, gzip.compress(image), original=image)

    run()

    assert rows(database) == 7
    assert Path(f"{database}{KEPT}-wal").read_bytes() == wal
    assert rows(Path(f"{database}{KEPT}")) == 43


def test_a_little_gzip_that_holds_very_much_ends_at_the_size_that_was_said(run, store, database, image, monkeypatch):
    bomb = gzip.compress(image + bytes(100 << 20))
    put(store, bomb, original=image)
    largest, before = 0, sha(database)

    def watch(name: str, key: str) -> None:
        nonlocal largest
        largest = max([largest, *(path.stat().st_size for path in database.parent.glob("*.tmp"))])

    store.before = watch
    with pytest.raises(BackupError, match=r"^Backup size mismatch - file may be corrupted$"):
        run()

    assert largest < 2 << 20
    assert sha(database) == before


def test_what_was_kept_is_kept_until_the_next_restore_that_succeeds(run, store, database, image, noon):
    put(store, gzip.compress(image), original=image)
    run()
    noon.advance(1)
    with pytest.raises(BackupError):
        run("unknown")
    assert names_beside(database) == {"", KEPT}

    run()

    assert names_beside(database) == {"", KEPT.replace("000Z", "001Z")}


def test_where_there_was_no_file_there_is_one(run, store, database, image):
    database.unlink()
    put(store, gzip.compress(image), original=image)

    assert run().kept_as is None

    assert rows(database) == 7
    assert names_beside(database) == {""}


def test_where_there_was_no_file_a_refusal_leaves_none(run, store, database):
    database.unlink()
    put(store, b"junk")

    with pytest.raises(BackupError):
        run()

    assert names_beside(database) == set()


def test_a_wal_without_its_file_is_not_replayed(run, store, database, image):
    database.unlink()
    database.with_name("jobs.db-wal").write_bytes(b"stale")
    put(store, gzip.compress(image), original=image)

    run()

    assert rows(database) == 7
    assert names_beside(database) == {""}


def test_a_server_that_has_locked_the_file_keeps_it(run, store, database, image):
    put(store, gzip.compress(image), original=image)
    before = sha(database)

    with FileLock.acquire(str(database)), pytest.raises(BackupError, match=rf"^{IN_USE}$"):
        run()

    assert sha(database) == before
    assert store.history == [("put", KEY), ("put", SIDECAR)]


def test_any_program_that_has_the_file_open_keeps_it(run, store, database, image):
    script = (
        "import sys, sqlite3; connection = sqlite3.connect(sys.argv[1]);"
        "connection.execute('SELECT * FROM bqt_meta').fetchall(); print('open', flush=True); sys.stdin.read()"
    )
    put(store, gzip.compress(image), original=image)
    command = [sys.executable, "-c", script, str(database)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"open\n"
        with pytest.raises(BackupError, match=rf"^{IN_USE}$"):
            run()
        other.communicate()

    run()

    assert rows(database) == 7


def test_one_restore_or_backup_at_a_time(run, store, database):
    with BackupLock.acquire(str(database)), pytest.raises(BackupError, match=r"^Backup already in progress$"):
        run()


def test_through_a_link_the_real_file_is_replaced(run, store, database, image, tmp_path):
    (tmp_path / "links").mkdir()
    link = tmp_path / "links" / "link.db"
    link.symlink_to(database)
    put(store, gzip.compress(image), original=image)

    run(path=link)

    assert link.is_symlink()
    assert rows(database) == 7
    assert {entry.name for entry in link.parent.iterdir()} == {"link.db"}


def test_the_rights_of_the_file_stay(run, store, database, image):
    database.chmod(0o640)
    put(store, gzip.compress(image), original=image)

    run()

    assert database.stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("failing", [1, 2])
def test_a_swap_that_fails_is_undone(run, store, database, image, monkeypatch, failing):
    database.with_name("jobs.db-wal").write_bytes(b"")
    put(store, gzip.compress(image), original=image)
    before, replace, calls = sha(database), os.replace, 0

    def fail(source: str, target: str) -> None:
        nonlocal calls
        calls += 1
        if calls == failing:
            raise OSError(5, "Input/output error", source)
        replace(source, target)

    monkeypatch.setattr(restoring.os, "replace", fail)

    with pytest.raises(BackupError, match=r"Input/output error$"):
        run()

    assert sha(database) == before
    assert names_beside(database) == {"", "-wal"}


def test_file_and_folder_are_on_disk_when_it_says_so(run, store, database, image, monkeypatch):
    put(store, gzip.compress(image), original=image)
    done: list[str] = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda fd: (done.append(os.readlink(f"/proc/self/fd/{fd}")), fsync(fd))[1])
    monkeypatch.setattr(os, "replace", lambda a, b: (done.append("rename"), replace(a, b))[1])

    run()

    assert [entry.rpartition(".")[2] for entry in done] == ["tmp", "rename", str(database.parent).rpartition(".")[2]]


@pytest.mark.parametrize(
    ("is_size_known", "text"), [(True, "^Not enough disk space to unpack"), (False, "No space left on device$")]
)
def test_a_full_disk_is_said_and_nothing_changes(store, noon, image, mount_disk: MountDisk, is_size_known, text):
    disk = mount_disk(size_mb=2)
    database = make_database(disk.path / "jobs.db")
    put(store, gzip.compress(image), original=image if is_size_known else None)
    disk.fill(leave_bytes=40_000)
    before = sha(database)

    with pytest.raises(BackupError, match=text):
        restore(store, KEY, str(database), patience(), noon)

    assert sha(database) == before
    assert names_beside(database) - {"filler"} == {""}


def test_a_rehearsal_goes_through_everything_and_touches_nothing(store, database, image, noon):
    put(store, gzip.compress(image), original=image)
    before = sha(database)

    with FileLock.acquire(str(database)):  # a server may run meanwhile
        fetched = rehearse(store, KEY, str(database), patience(), noon)

    assert (fetched.digest.size_bytes, fetched.is_verified) == (len(image), True)
    assert sha(database) == before
    assert names_beside(database) == {""}
    put(store, b"junk")
    with pytest.raises(BackupError):
        rehearse(store, KEY, str(database), patience(), noon)


DEEP = b'{"x":' + b"[" * 300_000


def test_a_sidecar_that_is_nested_too_deep_is_no_sidecar(store, database, noon):
    store.put(KEY, gzip.compress(database.read_bytes()), content_type="x")
    store.put(f"{KEY}.meta.json", DEEP, content_type="x")

    with pytest.raises(BackupError, match="Backup metadata is not valid JSON"):
        rehearse(store, KEY, str(database), patience(), noon)


def test_a_size_of_thousands_of_digits_says_nothing(store, database, noon):
    store.put(KEY, gzip.compress(database.read_bytes()), content_type="x")
    store.metadata[KEY] = {"sha256": sha(database), "size": "9" * 5_000}

    assert rehearse(store, KEY, str(database), patience(), noon).is_verified


def test_a_record_that_is_nested_too_deep_is_none(database):
    Path(f"{database}.backup-state.json").write_bytes(DEEP)

    assert read_record(str(database)) == BackupRecord()


def test_without_space_for_what_is_in_it_nothing_is_downloaded(store, database, noon, monkeypatch):
    store.put(KEY, gzip.compress(database.read_bytes()), content_type="x")
    store.put(SIDECAR, b'{"size": 5000000}', content_type="x")
    monkeypatch.setattr(checking.shutil, "disk_usage", lambda path: type("Use", (), {"free": 6_000_000}))

    with pytest.raises(
        BackupError, match=r"^Not enough disk space to unpack the backup: 5000000 bytes needed, 6000000"
    ):
        rehearse(store, KEY, str(database), patience(), noon)

    assert ("get", KEY) not in store.history


NOBODY = 65_534


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of others")
@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_what_an_operator_has_begun_does_not_lock_the_server_out(database, mask):
    """``sudo bunqueue-trio backup now`` beside a server of another user."""
    os.chown(database, NOBODY, NOBODY)
    former = os.umask(mask)
    try:
        Path(f"{database}.backup-state.json.tmp").touch()
        with BackupLock.acquire(str(database)):
            write_record(str(database), BackupRecord(last_key="k"))
    finally:
        os.umask(former)

    for name in ("backup-lock", "backup-state.json"):
        status = os.stat(f"{database}.{name}")
        assert (status.st_uid, status.st_gid, status.st_mode & 0o777) == (NOBODY, NOBODY, 0o644)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_a_lock_of_another_user_can_be_taken():
    with TemporaryDirectory() as folder:  # that of the test is not everybody's
        os.chmod(folder, 0o755)
        database = Path(folder, "jobs.db")
        Path(f"{database}.backup-lock").touch(0o644)
        os.seteuid(NOBODY)
        try:
            with BackupLock.acquire(str(database)), pytest.raises(BackupBusyError):
                BackupLock.acquire(str(database))
        finally:
            os.seteuid(0)
