"""Backup and restore: B1, B3, and the part of S3 that concerns backups, of the field reports."""

from __future__ import annotations

import datetime
import io
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path
from urllib.parse import parse_qs, quote, unquote, urlsplit
from xml.sax.saxutils import escape

import pytest

from tests.backup.commands import back_up, command, real_command, settings_of
from tests.backup.fakes import make_database, names_beside, rows, sha
from tests.backup.scripted import Answer, Scripted, Seen, error
from tests.field.closing import check_closing
from tests.field.test_persistence import other_process
from tests.process import ROOT, Client, ServerProcess, StartServer, wait_until
from tests.s3 import Bucket, S3Server
from tests.s3 import bucket as bucket
from tests.s3 import s3_server as s3_server

ROUND_TRIP_MS = 250
TOO_OLD_S = 10


def push_thousand(client: Client, first: int) -> list[str]:
    """A thousand jobs, every second one durable; all of them have been answered."""
    pushes = [{"cmd": "PUSH", "queue": "q", "data": first + n, "durable": n % 2 == 0} for n in range(1000)]
    replies = client.call_many(pushes)
    assert all(reply["ok"] for reply in replies)
    return [reply["id"] for reply in replies]


def started_on(start_server: StartServer, settings: dict[str, str], key: str, folder: Path) -> ServerProcess:
    """A server on a fresh folder into which the backup *key* has been restored."""
    folder.mkdir()
    code, out, err = command(settings, folder / "jobs.db", "restore", key, "-f")
    assert code == 0, out + err
    with closing(sqlite3.connect(folder / "jobs.db")) as copy:
        assert copy.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    return start_server(folder)


@pytest.mark.slow
def test_b1_what_was_answered_before_the_backup_began_is_in_it(
    start_server: StartServer, bucket: Bucket, tmp_path: Path
) -> None:
    """bunqueue 2.8.44: a reader kept the newest commits out of the snapshot, and buffered jobs were never in it.

    The WAL is folded in first, as R210 asks, so pages of the live file move, but no row changes.
    """
    server = start_server(S3_BACKUP_ENABLED=1, **bucket.environment)
    with server.connect() as client, other_process(server, "BEGIN", 600):
        ids = push_thousand(client, 0)
        made = back_up(server)
        assert made["ok"] is True, made
    restored = started_on(start_server, bucket.environment, made["key"], tmp_path / "fresh")
    check_closing(restored, ["q"], ids)
    check_closing(server, ["q"], ids)


@pytest.mark.slow
@pytest.mark.alone
def test_b1_under_a_thousand_pushes_a_second(start_server: StartServer, bucket: Bucket, tmp_path: Path) -> None:
    server = start_server(S3_BACKUP_ENABLED=1, **bucket.environment)
    answered: list[str] = []
    took_ms: list[float] = []
    has_ended = threading.Event()

    def push() -> None:
        with server.connect() as client:
            began = time.perf_counter()
            while not has_ended.is_set():
                sent = time.perf_counter()
                replies = client.call_many([{"cmd": "PUSH", "queue": "q", "data": n} for n in range(10)])
                took_ms.append((time.perf_counter() - sent) * 1000)
                answered.extend(reply["id"] for reply in replies)
                time.sleep(max(0.0, began + len(answered) / 1000 - time.perf_counter()))

    with server.connect() as client:
        ids = push_thousand(client, 0)
    pusher = threading.Thread(target=push)
    pusher.start()
    try:
        time.sleep(1)
        known = {*ids, *answered}
        made = back_up(server)
    finally:
        has_ended.set()
        pusher.join()

    assert made["ok"] is True, made
    p99_ms = sorted(took_ms)[int(len(took_ms) * 0.99)]
    print(f"{len(answered)} pushes, ten at a time: p99 {p99_ms:.1f} ms")
    assert p99_ms < ROUND_TRIP_MS
    restored = started_on(start_server, bucket.environment, made["key"], tmp_path / "fresh")
    with restored.connect() as client:
        found = {job["id"] for job in client.ok("GetJobs", queue="q", limit=1_000_000)["jobs"]}
    assert known <= found <= {*ids, *answered}
    check_closing(restored, ["q"], found)


@pytest.mark.slow
def test_s3_beside_a_running_server_the_command_makes_backups_and_restores_none(
    start_server: StartServer, bucket: Bucket, tmp_path: Path
) -> None:
    server = start_server(S3_BACKUP_ENABLED=1, **bucket.environment)
    with server.connect() as client:
        ids = [client.ok("PUSH", queue="q", data=n, durable=True)["id"] for n in range(20)]
        beside = real_command(bucket.environment, server.data_path, "now", "--json")
        assert beside[0] == 0, beside
        key = json.loads(beside[1])["data"]["key"]
        for arguments in (["restore", key, "-f"], ["restore", "--to", "latest", "-f"]):
            refused = command(bucket.environment, server.data_path, *arguments)
            assert refused[:2] == (1, "Restore failed: database is in use by a running server. Stop it first.\n")
        client.ok("Ping")
    restored = started_on(start_server, bucket.environment, key, tmp_path / "fresh")
    check_closing(restored, ["q"], ids)
    server.crash_and_restart()
    check_closing(server, ["q"], ids)


class StrictStore:
    """A store of the picky kind: knows no checksum headers and no chunked signing, wants each signature fresh and the
    session token with it, cannot list unfinished uploads, and is busy whenever an upload begins."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.problems: list[str] = []
        self.dates: list[str] = []

    def __call__(self, seen: Seen, _number: int) -> Answer:
        headers = {name.lower(): value for name, value in seen.headers.items()}
        if problem := self._problem(headers):
            self.problems.append(problem)
            return error(403, "AccessDenied", problem)
        url = urlsplit(seen.path)
        query = parse_qs(url.query, keep_blank_values=True)
        bucket, _, key = unquote(url.path.removeprefix("/")).partition("/")
        assert bucket == "bucket.with.dots"
        if not key:
            return self._list(query) if "list-type" in query else error(501, "NotImplemented", "Not implemented")
        return getattr(self, f"_{seen.method.lower()}")(key, seen, headers)

    def _problem(self, headers: dict[str, str]) -> str:
        if headers.get("x-amz-content-sha256", "").startswith("STREAMING"):
            return "chunked signing"
        if found := [name for name in headers if "checksum" in name or "trailer" in name or name == "content-encoding"]:
            return f"unknown headers {found}"
        signed = datetime.datetime.strptime(headers["x-amz-date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=datetime.UTC)
        if abs(time.time() - signed.timestamp()) > TOO_OLD_S:
            return "the signature is too old"
        return "" if headers.get("x-amz-security-token") == "of-the-session" else "no session token"

    def _put(self, key: str, seen: Seen, headers: dict[str, str]) -> Answer:
        if key.endswith(".db"):
            self.dates.append(headers["x-amz-date"])
            if len(self.dates) < 3:
                return error(503, "SlowDown", "Please reduce your request rate.")
        self.objects[key] = seen.body
        return Answer(200, b"", {"ETag": '"e"'})

    def _get(self, key: str, _seen: Seen, _headers: dict[str, str]) -> Answer:
        if key not in self.objects:
            return error(404, "NoSuchKey", "The specified key does not exist.")
        return Answer(200, self.objects[key], {"ETag": '"e"', "Last-Modified": "Mon, 30 Nov 2026 12:00:00 GMT"})

    _head = _get

    def _delete(self, key: str, _seen: Seen, _headers: dict[str, str]) -> Answer:
        self.objects.pop(key, None)
        return Answer(204)

    def _list(self, query: dict[str, list[str]]) -> Answer:
        prefix = query["prefix"][0]
        found = "".join(
            f"<Contents><Key>{escape(quote(key))}</Key><LastModified>2026-11-30T12:00:00.000Z</LastModified>"
            f'<ETag>"e"</ETag><Size>{len(data)}</Size></Contents>'
            for key, data in sorted(self.objects.items())
            if key.startswith(prefix)
        )
        head = "<Name>bucket.with.dots</Name><EncodingType>url</EncodingType><IsTruncated>false</IsTruncated>"
        body = f"<ListBucketResult>{head}{found}"
        return Answer(200, f"{body}</ListBucketResult>".encode(), {"Content-Type": "application/xml"})


@pytest.mark.slow
def test_b3_a_store_that_takes_nothing_it_does_not_know(tmp_path: Path) -> None:
    """aws-sdk-net #3615, pgbackrest #2556: checksum trailers are refused, and so is what was signed long ago."""
    store = StrictStore()
    database = make_database(tmp_path / "jobs.db")
    with Scripted(store).running() as server:
        settings = {
            **settings_of(server.endpoint, "bucket.with.dots"),
            "S3_SESSION_TOKEN": "of-the-session",
            "S3_BACKUP_PREFIX": "some backups",
        }
        code, out, err = command(settings, database, "now")
        assert code == 0, out + err
        listed = json.loads(command(settings, database, "list", "--json")[1])["data"]
        restored = command(settings, database, "restore", listed[0]["key"], "-f")
        refused = command({**settings, "S3_SESSION_TOKEN": "another"}, database, "list")

    assert restored[0] == 0, restored
    assert store.problems == ["no session token"] * len(store.problems) != []
    assert [item["key"].partition("bunqueue-")[0] for item in listed] == ["some backups"]
    assert rows(database) == 3
    assert len(store.dates) == 3
    assert len(set(store.dates)) > 1  # they have whole seconds
    assert re.search(r"retrying in 500ms.*retrying in 1000ms", err, re.DOTALL)
    assert "(PutObject, HTTP 503)" in err
    assert refused[:2] == (1, "Backup list failed: no session token (ListObjectsV2, HTTP 403)\n")
    assert settings["S3_SECRET_ACCESS_KEY"] not in "".join((out, err, *restored[1:], *refused[1:]))


@pytest.mark.slow
def test_b3_a_bucket_with_dots_and_a_prefix_with_spaces(bucket: Bucket, tmp_path: Path) -> None:
    database = make_database(tmp_path / "jobs.db")
    name = f"{bucket.name}.with.dots"
    bucket.client.make_bucket(name)
    settings = {**bucket.environment, "S3_BUCKET": name, "S3_BACKUP_PREFIX": "some backups"}

    code, out, err = command(settings, database, "now", "--json")
    assert code == 0, out + err
    key = json.loads(out)["data"]["key"]
    assert [item["key"] for item in json.loads(command(settings, database, "list", "--json")[1])["data"]] == [key]
    assert command(settings, database, "restore", key, "-f")[0] == 0

    assert key.startswith("some backupsbunqueue-")
    assert rows(database) == 3


@pytest.mark.slow
def test_a_file_that_has_been_replaced_is_not_backed_up_as_that_of_the_server(
    start_server: StartServer, bucket: Bucket
) -> None:
    """An operator copies an old file over the data file; nobody pushes, so no flush finds out."""
    server = start_server(S3_BACKUP_ENABLED=1, **bucket.environment)
    with server.connect() as client:
        client.ok("PUSH", queue="q", data=1, durable=True)
        assert back_up(server)["ok"] is True
        other = server.data_path.with_name("other")
        other.write_bytes(server.data_path.read_bytes())
        other.rename(server.data_path)

        refused = back_up(server)

    assert refused["ok"] is False
    assert "was removed or replaced while the server runs" in refused["error"]
    assert len([name for name in bucket.names() if name.endswith(".db")]) == 1


@pytest.mark.slow
def test_a_part_of_the_log_that_nobody_can_read_ends_no_server(start_server: StartServer, bucket: Bucket) -> None:
    server = start_server(S3_BACKUP_ENABLED=1, **bucket.environment)
    for name, content in (("deep", b'{"x":' + b"[" * 30_000), ("cut", b"{")):
        key = f"backups/log/{name}/start.base.json"
        bucket.client.put_object(bucket.name, key, io.BytesIO(content), len(content))

    assert back_up(server)["ok"] is True
    assert back_up(server)["ok"] is True
    code, _, err = command(bucket.environment, server.data_path, "list")
    assert (code, err.count(".base.json is damaged")) == (0, 2)
    server.assert_no_faults()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    "arguments", [("now",), ("verify", "k"), ("restore", "k", "-f"), ("list",)], ids=lambda a: a[0]
)
def test_a_command_that_is_interrupted_leaves_nothing_behind(
    tmp_path: Path, arguments: tuple[str, ...], number: signal.Signals
) -> None:
    (folder := tmp_path / "data").mkdir()
    before = sha(database := make_database(folder / "jobs.db"))

    def script(seen: Seen, _number: int) -> Answer:
        is_free_key = arguments == ("now",) and seen.method == "HEAD"
        return error(404, "NoSuchKey", "no") if is_free_key else Answer(hang=True)

    with Scripted(script).running() as store:
        environment = {
            **os.environ, **settings_of(store.endpoint, "bucket"),
            "BUNQUEUE_DATA_PATH": str(database), "PYTHONPATH": str(ROOT),
        }  # fmt: skip
        run = subprocess.Popen(
            [sys.executable, "-m", "bunqueue_trio", "backup", *arguments],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        wait_until(lambda: len(store.seen) > (arguments == ("now",)), "the command asks the store")
        run.send_signal(number)
        out, err = run.communicate(timeout=60)

    assert (run.returncode, out, err) == (128 + number, "", "")
    assert (names_beside(database), sha(database)) == ({""}, before)


@pytest.mark.slow
def test_a_backup_that_is_asked_for_at_the_start_waits_for_what_the_log_begins_with(
    start_server: StartServer, bucket: Bucket, s3_server: S3Server
) -> None:
    server = start_server(S3_BACKUP_ENABLED=1, **bucket.environment)
    lock = server.data_path.with_name(f"{server.data_path.name}.backup-lock")
    s3_server.pause()
    try:
        wait_until(lambda: lock.exists() and lock.read_bytes() == b"log", "the log begins")
        threading.Timer(2, s3_server.go_on).start()
        code, out, err = real_command(bucket.environment, server.data_path, "now")
    finally:
        s3_server.go_on()

    assert (code, out.partition("\n")[0]) == (0, "Backup created successfully"), err
    assert [name.endswith("start.snapshot") for name in bucket.names("backups/log/")].count(True) == 1
