"""Backups against a real S3 server: what goes wrong with stores and with objects.

Source: S3 backup and restore, "How to test"; R205, R207, R212, R214, R330 to R333.
"""

import gzip
import hashlib
import io
import json
from pathlib import Path

import pytest
from msgspec import structs

from bunqueue_trio.backup import making
from bunqueue_trio.backup.making import Made, Maker
from bunqueue_trio.backup.patience import Patience
from bunqueue_trio.backup.restoring import restore
from bunqueue_trio.backup.s3 import S3Store
from bunqueue_trio.clock import SystemClock
from bunqueue_trio.errors import BackupError, ObjectStoreError
from bunqueue_trio.storage.connection import open_writer
from tests.backup.fakes import make_database, names_beside, rows, sha
from tests.s3 import Bucket, S3Server
from tests.tiny_disk import MountDisk

pytestmark = pytest.mark.slow
KEY = "backups/bunqueue-2026-11-30T12-00-00-000Z.db"


def make(bucket: Bucket, database: Path, waiting: Patience | None = None, **changes: object) -> Made:
    waiting = waiting or Patience(SystemClock(), retry_pauses_s=(0.05,))
    settings = bucket.settings(database, **changes)
    return Maker(settings, S3Store(settings, waiting), waiting, SystemClock(), version="1").make()


def put_back(bucket: Bucket, key: str, database: Path) -> None:
    waiting = Patience(SystemClock(), retry_pauses_s=())
    store = S3Store(bucket.settings(database), waiting)
    restore(store, key, str(database), waiting, SystemClock())


def upload(bucket: Bucket, key: str, data: bytes) -> None:
    bucket.client.put_object(bucket.name, key, io.BytesIO(data), len(data))


def test_there_and_back(bucket: Bucket, database: Path, tmp_path: Path):
    made = make(bucket, database)

    put_back(bucket, made.key, tmp_path / "fresh.db")

    assert made.is_proven
    assert rows(tmp_path / "fresh.db") == 3
    assert bucket.names() == [made.key, f"{made.key}.meta.json"]
    head = bucket.client.stat_object(bucket.name, made.key)
    assert head.content_type == "application/x-sqlite3"
    assert head.metadata is not None
    assert "content-encoding" not in {name.lower() for name in head.metadata}
    assert bucket.read(made.key)[:2] == b"\x1f\x8b"


def test_many_parts_there_and_back_and_then_one_part_too_many(
    bucket: Bucket, s3_server: S3Server, database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    connection = open_writer(str(database))
    with connection:
        connection.execute("CREATE TABLE ballast(data)")
        connection.execute("INSERT INTO ballast VALUES (randomblob(12000000))")
    connection.close(True)
    made = make(bucket, database)
    put_back(bucket, made.key, tmp_path / "fresh.db")
    assert (rows(tmp_path / "fresh.db"), made.packed_bytes > 2 * making.PART_BYTES) == (3, True)

    # Now the store hangs in the midst of the next one.
    waiting = Patience(SystemClock(), timeout_s=1, retry_pauses_s=())
    send = S3Store.put

    def hang(store: S3Store, key: str, data: bytes, *, content_type: str) -> None:
        send(store, key, data, content_type=content_type)
        s3_server.pause()

    monkeypatch.setattr(S3Store, "put", hang)
    try:
        with pytest.raises(ObjectStoreError, match=r"^S3 backup upload timed out after 1000ms$"):
            make(bucket, database, waiting)
    finally:
        s3_server.go_on()

    assert [key for key in bucket.names() if key.endswith(".db")] == [made.key]
    assert names_beside(database) == {""}


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"secret_access_key": "wrong"}, r"(HTTP 403)"),
        ({"access_key_id": "unknown"}, r"(HTTP 403)"),
        ({"bucket": "no-such-bucket"}, r"bucket does not exist \(PutObject, HTTP 404\)$"),
        ({"endpoint": "http://127.0.0.1:9"}, r"^connection refused: 127\.0\.0\.1:9 "),
    ],
    ids=["secret", "key", "bucket", "endpoint"],
)
def test_settings_that_do_not_fit_the_store(bucket: Bucket, database: Path, changes: dict[str, str], text: str):
    waiting = Patience(SystemClock(), retry_pauses_s=())
    settings = structs.replace(bucket.settings(database), **changes)

    with pytest.raises(ObjectStoreError, match=text):
        Maker(settings, S3Store(settings, waiting), waiting, SystemClock(), version="1").make()

    assert bucket.names() == []
    assert names_beside(database) == {""}


@pytest.mark.parametrize("prefix", ["a b/ü+%/", "noslash", ""])
def test_any_prefix_will_do(bucket: Bucket, database: Path, prefix: str):
    made = make(bucket, database, prefix=prefix, retention=1)
    newer = make(bucket, database, prefix=prefix, retention=1)

    assert made.key.startswith(f"{prefix}bunqueue-")
    assert bucket.names() == [newer.key, f"{newer.key}.meta.json"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("truncated", r"^Backup data is not a valid gzip stream$"),
        ("flipped bit", r"^Backup (data is not a valid gzip stream|checksum mismatch)"),
        ("wrong checksum", r"^Backup checksum mismatch - file may be corrupted$"),
        ("no database", r"^Restored data is not a valid SQLite database$"),
        ("missing", r"^Backup not found: "),
    ],
)
def test_objects_that_are_not_what_they_were(bucket: Bucket, database: Path, tmp_path: Path, name: str, text: str):
    image = make_database(tmp_path / "image.db", 7).read_bytes()
    packed = gzip.compress(image)
    checksum = hashlib.sha256(b"other" if name == "wrong checksum" else image).hexdigest()
    data = {
        "truncated": packed[:-20],
        "flipped bit": packed[:-300] + bytes([packed[-300] ^ 0x55]) + packed[-299:],
        "no database": gzip.compress(b"no database"),
    }.get(name, packed)
    if name != "missing":
        upload(bucket, KEY, data)
    if name != "no database":
        upload(bucket, f"{KEY}.meta.json", json.dumps({"checksum": checksum, "compressed": True}).encode())
    before = sha(database)

    with pytest.raises(BackupError, match=text):
        put_back(bucket, KEY, database)

    assert sha(database) == before
    assert names_beside(database) == {""}


def test_a_disk_that_fills_up_while_restoring(bucket: Bucket, tmp_path: Path, mount_disk: MountDisk):
    made = make(bucket, make_database(tmp_path / "source.db", 50_000))
    disk = mount_disk(size_mb=2)
    database = make_database(disk.path / "jobs.db")
    before = sha(database)

    with pytest.raises(BackupError, match=r"^Not enough disk space to unpack the backup: \d+ bytes needed, \d+ free$"):
        put_back(bucket, made.key, database)
    upload(bucket, KEY, bucket.read(made.key))  # of which nobody says how large it will be
    with pytest.raises(BackupError, match=r"No space left on device$"):
        put_back(bucket, KEY, database)

    assert sha(database) == before
    assert names_beside(database) == {""}
