"""One backup: what is put where and in which order, what is proven, what is kept, and what a failure leaves behind.

Source: S3 backup and restore, "Taking a backup", "Object layout", "Retention"; BD-1, BD-4, BD-5, BD-9, BD-10.
"""

import gzip
import hashlib
import json
import os
import threading
from pathlib import Path

import pytest

from bunqueue_trio.backup import making
from bunqueue_trio.backup.making import PART_BYTES, Made, Maker, part_bytes
from bunqueue_trio.backup.object_store import Unfinished
from bunqueue_trio.errors import BackupError, BackupStoppedError, DamagedBackupError, ObjectStoreError
from bunqueue_trio.storage.connection import open_writer
from tests.backup.fakes import GONE, FakeObjectStore, add_rows, names_beside, patience, rows, settings

KEY = "backups/bunqueue-2026-11-30T12-00-00-000Z.db"
SIDECAR = f"{KEY}.meta.json"
REFUSED = ObjectStoreError("Access Denied (PutObject, HTTP 403)", status=403)


@pytest.fixture
def make(store: FakeObjectStore, database: Path, noon):
    """Make a backup."""

    def run(*, waiting=None, **changes) -> Made:
        how = settings(database, **changes)
        return Maker(how, store, waiting or patience(), noon, version="1.2.3").make()

    return run


def test_the_data_is_the_database_in_gzip_and_the_sidecar_describes_it(make, store, database, tmp_path):
    made = make()

    data = gzip.decompress(store.objects[KEY])
    (copy := tmp_path / "copy.db").write_bytes(data)
    assert rows(copy) == 3
    assert json.loads(store.objects[SIDECAR]) == {
        "timestamp": "2026-11-30T12:00:00.000Z",
        "version": "1.2.3",
        "size": len(data),
        "compressedSize": len(store.objects[KEY]),
        "checksum": hashlib.sha256(data).hexdigest(),
        "compressed": True,
    }
    assert store.types == {KEY: "application/x-sqlite3", SIDECAR: "application/json;charset=utf-8"}
    assert store.metadata[KEY] == {"sha256": hashlib.sha256(data).hexdigest(), "size": str(len(data))}
    assert (made.key, made.size_bytes, made.packed_bytes, made.is_proven) == (
        KEY,
        len(data),
        len(store.objects[KEY]),
        True,
    )


def test_the_sidecar_is_there_before_the_data(make, store):
    make()

    done = [call for call in store.history if call[0] in ("put", "part", "complete")]
    assert done == [("put", SIDECAR), ("part", KEY), ("complete", KEY)]


def test_a_backup_of_many_parts_gets_its_sidecar_before_the_last(make, store, monkeypatch):
    monkeypatch.setattr(making, "part_bytes", lambda size_bytes: 1000)

    make()

    done = [name for name, _ in store.history if name in ("put", "part", "complete")]
    assert len(done) > 4
    assert done.index("put") < len(done) - 2
    assert done[-2:] == ["part", "complete"]
    assert store.largest_part == 1000


def test_what_is_in_the_wal_only_is_in_the_backup_and_the_live_file_is_not_changed(make, store, database, tmp_path):
    owner = open_writer(str(database))
    reader = open_writer(str(database))
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM bqt_meta").fetchall()  # pins the WAL
    add_rows(owner, 5, first=10)
    before = database.read_bytes()

    make()

    assert database.read_bytes() == before
    (tmp_path / "copy.db").write_bytes(gzip.decompress(store.objects[KEY]))
    assert rows(tmp_path / "copy.db") == 8
    reader.close(True)
    owner.close(True)


def test_copies_taken_while_somebody_writes_are_sound_and_show_one_moment(make, store, database, tmp_path, noon):
    owner = open_writer(str(database))
    has_ended = threading.Event()

    def write() -> None:
        first = 100
        while not has_ended.is_set():
            add_rows(owner, 20, first=first)
            first += 20

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(5):
            noon.advance(1)
            make(verify="off")
    finally:
        has_ended.set()
        writer.join()
        owner.close(True)

    counts = []
    for key in store.backups:
        (tmp_path / "copy.db").write_bytes(gzip.decompress(store.objects[key]))
        counts.append(rows(tmp_path / "copy.db"))
    assert len(counts) == 5
    assert counts == sorted(counts)
    assert {count % 20 for count in counts} == {3}


def test_a_key_that_is_taken_is_not_used_again(make, store):
    make()

    assert make().key == KEY.replace("000Z", "001Z")
    assert len(store.backups) == 2


def test_a_missing_file_is_said_and_nothing_is_uploaded(make, store, database):
    database.unlink()

    with pytest.raises(BackupError, match=rf"^Database file not found: {database}$"):
        make()

    assert store.history == []


def test_without_space_for_the_copy_nothing_is_begun(make, store, monkeypatch):
    monkeypatch.setattr(
        making.shutil, "disk_usage", lambda path: os.statvfs(path) and type("Use", (), {"free": 100_000})
    )

    with pytest.raises(BackupError, match=r"^Not enough disk space for a snapshot: \d+ bytes needed, 100000 free$"):
        make()

    assert store.history == []


def test_a_damaged_database_is_not_uploaded(make, store, database):
    data = bytearray(database.read_bytes())
    data[4096 * 2 : 4096 * 12] = b"\xa5" * 40_960
    database.write_bytes(data)

    with pytest.raises(DamagedBackupError, match=r"^Database integrity check failed: "):
        make()

    assert store.objects == {}
    assert names_beside(database) == {""}


def test_the_newest_stay_whatever_the_time_of_upload_says(make, store, noon):
    foreign = ["backups/mine.db", "backups/mine.db.meta.json", "backups/sub/bunqueue-2020-01-01T00-00-00-000Z.db"]
    for key in foreign:
        store.put(key, b"x", content_type="x")
    keys = []
    for _ in range(4):
        noon.advance(1)
        keys.append(make(retention=3).key)

    assert sorted(store.objects) == sorted([*foreign, *keys[1:], *(f"{key}.meta.json" for key in keys[1:])])


def test_more_than_a_page_of_old_backups_goes(make, store):
    for index in range(150):
        store.put(f"backups/bunqueue-2026-01-01T00-00-00-{index:03}Z.db", b"x", content_type="x")

    make(retention=1)

    assert store.backups == [KEY]


@pytest.mark.parametrize("names", [("list",), ("delete",)])
def test_a_clean_up_that_fails_fails_no_backup(make, store, noon, names):
    make()
    noon.advance(1)
    store.fail(REFUSED, *names)

    made = make(retention=1)

    assert store.backups == [KEY, made.key]


def test_one_that_cannot_be_deleted_does_not_keep_the_others(make, store, noon):
    for _ in range(3):
        make()
        noon.advance(1)
    store.fail(REFUSED, "delete", key=KEY)

    made = make(retention=1)

    assert store.backups == [KEY, made.key]


@pytest.mark.parametrize("name", ["put", "part", "complete"])
@pytest.mark.parametrize("error", [REFUSED, GONE], ids=["refused", "gone"])
def test_a_failed_upload_leaves_nothing_and_costs_no_older_backup(make, store, noon, database, name, error):
    make()
    noon.advance(1)
    store.fail(error, name)

    with pytest.raises(ObjectStoreError, match=str(error).partition("(")[0]):
        make(retention=1)

    assert sorted(store.objects) == [KEY, SIDECAR]
    assert names_beside(database) == {""}


@pytest.mark.parametrize("name", ["put", "part", "complete", "block"])
def test_a_stop_leaves_nothing_half_made(make, store, database, name):
    waiting = patience()

    def before(called: str, key: str) -> None:
        if called == name:
            waiting.stop()
            store.before = lambda name, key: waiting.check()

    store.before = before

    with pytest.raises(BackupStoppedError):
        make(waiting=waiting)

    assert sorted(store.objects) == ([KEY, SIDECAR] if name == "block" else [])  # in full, but not proven
    assert names_beside(database) == {""}


def damage(store: FakeObjectStore, change) -> None:
    """What is read back differs from what was put."""
    put = store.keep

    def keep(key: str, data: bytes, content_type: str, metadata: dict[str, str]) -> None:
        put(key, change(data) if key.endswith(".db") else data, content_type, metadata)

    store.keep = keep


def test_a_flipped_bit_in_the_bucket_is_found_and_the_object_deleted(make, store, noon):
    make()
    noon.advance(1)
    damage(store, lambda data: data[:-300] + bytes([data[-300] ^ 0x55]) + data[-299:])

    with pytest.raises(DamagedBackupError, match=r"^Backup verification failed: "):
        make(retention=1)

    assert sorted(store.objects) == [KEY, SIDECAR]


def test_a_cut_object_is_found_also_where_nothing_is_read_back(make, store):
    damage(store, lambda data: data[:-10])

    with pytest.raises(DamagedBackupError, match=r"^The bucket has not kept what was uploaded: "):
        make(verify="off")

    assert store.objects == {}


def test_another_sound_backup_in_its_place_is_found(make, store, database):
    make()
    others = {KEY: store.objects.pop(KEY), SIDECAR: store.objects.pop(SIDECAR)}
    connection = open_writer(str(database))
    add_rows(connection, 1, first=50)
    connection.close(True)
    store.get = lambda key: iter([others[key]])

    with pytest.raises(
        DamagedBackupError, match=r"^Backup verification failed: it holds other bytes than were uploaded$"
    ):
        make()

    assert store.objects == {}


def test_one_that_cannot_be_read_back_fails_but_stays(make, store):
    store.fail(GONE, "get")

    with pytest.raises(BackupError, match=r"^Backup verification failed: connection refused"):
        make()

    assert store.backups == [KEY]


def test_where_nothing_can_be_read_back_the_bucket_does_not_fill_up(make, store, noon):
    make()
    store.fail(GONE, "get")
    for _ in range(4):
        noon.advance(1)
        with pytest.raises(BackupError):
            make(retention=2)

    assert len(store.backups) == 2
    assert store.backups[-1].endswith("00-004Z.db")


def test_names_of_a_wrong_future_do_not_outlive_what_comes_after_them(make, store, noon):
    store.modified = {}
    now = noon.now().wall_ms
    noon.skew(400 * 86_400_000.0)
    for _ in range(3):
        noon.advance(1)
        make(retention=2)
    store.modified = dict.fromkeys(store.objects, now)
    noon.skew(-400 * 86_400_000.0)
    noon.advance(60_000)
    made = [make(retention=2).key]
    store.modified.update({key: now + 60_000 for key in store.objects if key not in store.modified})
    noon.advance(60_000)
    made.append(make(retention=2).key)

    assert store.backups == made


def test_what_has_just_been_made_stays_even_where_the_clock_says_it_is_old(make, store, noon):
    for _ in range(2):
        noon.advance(1)
        make(retention=2)
    noon.skew(-50 * 365 * 86_400_000.0)

    made = make(retention=2)

    assert made.key in store.backups
    assert len(store.backups) == 3


def test_a_bucket_that_cannot_be_asked_is_not_copied_for(make, store, database, monkeypatch):
    store.fail(REFUSED, "look")
    monkeypatch.setattr(making, "copy_database", lambda *_, **__: pytest.fail("copied"))

    with pytest.raises(ObjectStoreError):
        make()


def test_uploads_that_killed_processes_have_left_are_taken_back_after_a_day(make, store, noon):
    now, day = noon.now().wall_ms, 86_400_000.0
    old, segment = "backups/bunqueue-2026-11-28T12-00-00-000Z.db", "backups/log/g/00000007-412-1-2.segment.gz"
    ours = [Unfinished(key, "1", now - day - 1) for key in (old, segment)]
    others = [
        Unfinished(old, "2", now - day + 1),
        Unfinished("backups/something.db", "3", 0.0),
        Unfinished("backups/log/something", "4", 0.0),
        Unfinished("elsewhere/bunqueue-2026-11-28T12-00-00-000Z.db", "5", 0.0),
    ]
    store.uploads = [*ours, *others]

    make()

    assert store.uploads == others


@pytest.mark.parametrize("name", ["unfinished", "abandon"])
def test_a_store_that_cannot_tell_of_unfinished_uploads_is_no_failure(make, store, name):
    store.uploads = [Unfinished(KEY, "1", 0.0)]
    store.fail(REFUSED, name)

    assert make().is_proven


@pytest.mark.parametrize(("verify", "below", "proven"), [
    ("auto", 1 << 30, True), ("auto", 1000, False), ("on", 1000, True), ("off", 1 << 30, False),
])  # fmt: skip
def test_what_is_read_back(make, store, monkeypatch, verify, below, proven):
    monkeypatch.setattr(making, "PROVEN_BELOW_BYTES", below)

    assert make(verify=verify).is_proven is proven

    assert [key for name, key in store.history if name == "get"] == ([SIDECAR, KEY] if proven else [])


def test_what_a_killed_process_has_left_is_swept_away(make, database):
    for name in ("backup-1-ab.tmp", "verify-1-ab.tmp", "restore-1-ab.tmp", "restore-1-ab.tmp-wal"):
        (database.parent / f"jobs.db.{name}").write_bytes(b"left")
    (database.parent / "jobs.db.before-restore-2026").write_bytes(b"wanted")

    make()

    assert names_beside(database) == {"", ".before-restore-2026"}


def test_parts_are_large_enough_for_any_file_and_no_larger():
    assert part_bytes(0) == part_bytes(1 << 30) == PART_BYTES
    assert part_bytes(1 << 40) * making.MAX_PARTS >= 1 << 40
    assert part_bytes(1 << 40) % (1 << 20) == 0


def test_what_the_bucket_does_not_list_is_no_backup(make, store, monkeypatch):
    """Some stores strip the slash that a prefix begins with."""
    monkeypatch.setattr(store, "list", lambda prefix: [])

    with pytest.raises(BackupError, match=r"^The bucket does not list /bunq.*: choose another S3_BACKUP_PREFIX$"):
        make(prefix="/")

    assert store.objects == {}


def test_an_empty_file_is_no_database_and_costs_no_backup(make, store, database):
    make()
    before = dict(store.objects)
    database.write_bytes(b"")

    with pytest.raises(BackupError, match=r"^Database file is empty: .*jobs.db$"):
        make(retention=1)

    assert store.objects == before
