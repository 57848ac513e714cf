"""The command ``backup``: what it prints, what it ends with, and that it needs neither server nor other settings.

Source: S3 backup and restore, "Command line", BD-3, BD-6, BD-12; R215 to R218, R334 to R343, K5.
"""

import gzip
import json
import re

import pytest

from bunqueue_trio.cli.main import main
from bunqueue_trio.errors import ObjectStoreError
from bunqueue_trio.storage.paths import FileLock
from tests.backup import fakes
from tests.backup.commands import data_of, run
from tests.backup.commands import environ as environ
from tests.backup.fakes import rows, sha

REFUSED = ObjectStoreError("Access Denied (ListObjectsV2, HTTP 403)", status=403)
KEY = "backups/bunqueue-2026-11-30T12-00-00-000Z.db"


@pytest.mark.parametrize("name", ["now", "create"])
def test_now_makes_one(environ, capsys, store, database, name):
    size = f"{database.stat().st_size / 1_048_576:.2f} MB"
    code, out, err = run(capsys, name)

    assert (code, out.partition("\n")[0], err) == (0, "Backup created successfully", "")
    assert data_of(out) == {"key": KEY, "size": size, "duration": "0ms", "proven": True}
    assert store.backups == [KEY]


def test_list_shows_the_newest_first_with_size_and_age(environ, capsys, store, noon):
    now_ms = noon.now().wall_ms
    for minutes, key in ((1, "T11-59"), (185, "T08-55"), (4_000, "T00-00")):
        key = f"backups/bunqueue-2026-11-30{key}-00-000Z.db"
        store.put(key, b"x" * 104_858, content_type="x")
        store.modified[key] = now_ms - minutes * 60_000
    store.put("backups/other.db", b"x", content_type="x")

    code, out, _ = run(capsys, "list")

    assert (code, out.partition("\n")[0]) == (0, "Found 3 backup(s)")
    assert data_of(out)[0] == {
        "key": "backups/bunqueue-2026-11-30T11-59-00-000Z.db",
        "size": "0.10 MB",
        "date": "2026-11-30T11:59:00.000Z",
        "age": "1m",
    }
    assert [item["age"] for item in data_of(out)] == ["1m", "3h 5m", "2d 18h"]


def test_an_empty_list_is_one(environ, capsys):
    assert run(capsys, "list") == (0, "No backups found\n[]\n", "")


def test_another_prefix_is_honoured_by_all(environ, capsys, store):
    environ.setenv("S3_BACKUP_PREFIX", "odd prefix-")
    run(capsys, "now")
    key = "odd prefix-bunqueue-2026-11-30T12-00-00-000Z.db"

    assert data_of(run(capsys, "list")[1])[0]["key"] == key
    assert run(capsys, "restore", key, "-f")[0] == 0


def test_a_list_that_fails_says_so(environ, capsys, store):
    store.fail(REFUSED, "list")

    assert run(capsys, "list") == (1, f"Backup list failed: {REFUSED}\n", "")


def test_now_that_fails_says_so(environ, capsys, store):
    store.fail(REFUSED, "put")

    assert run(capsys, "now") == (1, f"Backup failed: {REFUSED}\n", f'[Backup] Backup failed {{"error":"{REFUSED}"}}\n')


def test_now_without_a_file_says_so(environ, capsys, database):
    database.unlink()

    code, out, _ = run(capsys, "now")

    assert (code, out) == (1, f"Backup failed: Database file not found: {database}\n")


@pytest.mark.parametrize("flag", ["-f", "--force"])
@pytest.mark.parametrize("is_first", [False, True])
def test_restore_with_force_replaces_the_file(environ, capsys, store, database, flag, is_first):
    run(capsys, "now")
    size = f"{database.stat().st_size / 1_048_576:.2f} MB"
    fakes.make_database(other := database.with_name("other.db"), 9)
    database.write_bytes(other.read_bytes())

    code, out, err = run(capsys, "restore", *([flag, KEY] if is_first else [KEY, flag]))

    assert (code, out.partition("\n")[0]) == (0, "Restore completed successfully")
    assert data_of(out) == {"key": KEY, "size": size, "duration": "0ms"}
    assert "Start the server to load it." in err
    assert "WARNING" not in err
    assert rows(database) == 3


def test_restore_without_force_asks_for_it_and_asks_the_bucket_nothing(environ, capsys, store, database):
    before = sha(database)

    code, out, err = run(capsys, "restore", KEY)

    assert (code, err) == (1, "")
    assert out == (
        "Restore will OVERWRITE the current database. Use --force (-f) to confirm.\n"
        "WARNING: Stop the server before restoring!\n"
    )
    assert store.history == []
    assert sha(database) == before


def test_restore_beside_a_server_is_refused_also_with_force(environ, capsys, database):
    with FileLock.acquire(str(database)):
        code, out, _ = run(capsys, "restore", KEY, "-f")

    assert (code, out) == (1, "Restore failed: database is in use by a running server. Stop it first.\n")


def test_restore_that_cannot_verify_warns(environ, capsys, store, database):
    store.put("plain", gzip.compress(database.read_bytes()), content_type="x")

    code, _, err = run(capsys, "restore", "plain", "-f")

    assert code == 0
    assert "WARNING: there is no checksum to compare with" in err


def test_verify_rehearses_a_restore(environ, capsys, store, database):
    run(capsys, "now")
    before = sha(database)

    code, out, _ = run(capsys, "verify", KEY)
    store.objects[KEY] = b"damaged"
    failed = run(capsys, "verify", KEY)

    assert (code, out.partition("\n")[0], data_of(out)["key"]) == (0, "Backup can be restored", KEY)
    assert failed[:2] == (1, "Verification failed: Backup data is not a valid gzip stream\n")
    assert sha(database) == before


def test_what_has_been_verified_is_proven(environ, capsys, store, database, noon):
    environ.setenv("S3_BACKUP_VERIFY", "off")
    run(capsys, "now")
    noon.advance(60_000)
    run(capsys, "now")
    older, newer = store.backups
    assert data_of(run(capsys, "status")[1])["lastProven"] is None

    for key, proven in ((older, older), (newer, newer), (older, newer)):
        assert run(capsys, "verify", key)[0] == 0
        assert data_of(run(capsys, "status")[1])["lastProven"]["key"] == proven


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "Error: Unknown backup subcommand: undefined. Use: now, list, restore, status"),
        (["zzz"], "Error: Unknown backup subcommand: zzz. Use: now, list, restore, status"),
        (["restore"], "Error: Missing required argument: backup-key"),
        (["restore", "-f"], "Error: Missing required argument: backup-key"),
    ],
)
def test_wrong_calls_are_said_on_stderr(environ, capsys, arguments, text):
    assert run(capsys, *arguments) == (1, "", f"{text}\n")


def test_status_shows_settings_and_how_it_went(environ, capsys, noon):
    environ.setenv("S3_BACKUP_INTERVAL", "90000")
    environ.setenv("S3_BACKUP_ENABLED", "1")
    before = data_of(run(capsys, "status")[1])
    run(capsys, "now")
    noon.advance(3_600_000)

    code, out, _ = run(capsys, "status")

    assert (code, out.partition("\n")[0]) == (0, "Backup configuration")
    assert before == {
        "enabled": True,
        "bucket": "the-bucket",
        "endpoint": "AWS S3",
        "interval": "2 minutes",
        "retention": "7 backups",
        "verify": "auto",
        "lastProven": None,
        "lastAttempt": None,
        "lastBackup": None,
        "pointInTime": None,
    }
    after = data_of(out)
    assert after["lastProven"] == {"key": KEY, "date": "2026-11-30T12:00:00.000Z", "age": "1h 0m"}
    assert after["lastAttempt"] == {"date": "2026-11-30T12:00:00.000Z", "error": None}
    assert after["lastBackup"]["key"] == KEY


def test_status_without_an_answer_shows_the_rest(environ, capsys, store):
    environ.setenv("S3_ENDPOINT", "http://nas:9000")
    store.fail(REFUSED, "list")

    code, out, err = run(capsys, "status")

    assert (code, data_of(out)["endpoint"]) == (0, "http://nas:9000")
    assert "lastBackup" not in data_of(out)
    assert str(REFUSED) in err


@pytest.mark.parametrize("name", ["now", "list", "status", "restore", "zzz"])
def test_bad_settings_come_before_everything_else(environ, capsys, name):
    environ.setenv("S3_BUCKET", "")
    environ.setenv("S3_BACKUP_RETENTION", "-2")

    code, out, _ = run(capsys, name)

    assert (code, out) == (
        1,
        "S3 configuration invalid:\n  - S3_BUCKET is required\n  - Retention must be at least 1\n",
    )


def test_without_a_path_and_a_file_there_is_nothing_to_back_up(environ, capsys, tmp_path):
    environ.delenv("BUNQUEUE_DATA_PATH")
    environ.chdir(tmp_path)
    text = "BUNQUEUE_DATA_PATH not set. Backup requires persistent storage.\n"
    assert run(capsys, "status") == (1, text, "")
    environ.setenv("BUNQUEUE_DATA_PATH", ":memory:")
    assert run(capsys, "status") == (1, text, "")


def test_without_a_path_the_file_of_the_default_counts(environ, capsys, tmp_path, store):
    environ.delenv("BUNQUEUE_DATA_PATH")
    environ.chdir(tmp_path)
    fakes.make_database(tmp_path / "bunqueue.db")

    assert run(capsys, "now")[0] == 0
    assert len(store.backups) == 1


def test_settings_of_the_server_do_not_matter(environ, capsys):
    environ.setenv("TCP_PORT", "no port")
    environ.setenv("AUTH_TOKENS", ",")

    assert run(capsys, "list")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "code", "answer"),
    [
        (["--json", "list"], 0, {"success": True, "message": "No backups found", "data": []}),
        (["list", "--json"], 0, {"success": True, "message": "No backups found", "data": []}),
        (["restore", "x", "-f", "--json"], 1, {"success": False, "message": "Restore failed: Backup not found: x"}),
        (["zzz", "--json"], 1, {"success": False, "message":
            "Error: Unknown backup subcommand: zzz. Use: now, list, restore, status"}),
    ],
)  # fmt: skip
def test_json_is_one_object(environ, capsys, arguments, code, answer):
    got, out, _ = run(capsys, *arguments)

    assert (got, json.loads(out)) == (code, answer)
    assert out == json.dumps(answer, indent=2) + "\n"


@pytest.mark.parametrize("arguments", [["backup", "list", "--json"], ["--json", "backup", "list"]])
def test_the_command_line_leads_here(environ, capsys, arguments):
    with pytest.raises(SystemExit) as ended:
        main(arguments)

    assert ended.value.code == 0
    assert json.loads(capsys.readouterr().out)["message"] == "No backups found"


def test_help_is_shown(environ, capsys):
    with pytest.raises(SystemExit):
        main(["backup", "--help"])

    assert re.search(r"now, list, restore KEY -f,\s+verify KEY, status", capsys.readouterr().out)


def test_no_secret_is_ever_printed(environ, capsys, store):
    store.fail(REFUSED, "list", "put")
    for arguments in (["status"], ["now"], ["list"], ["restore", "x", "-f"]):
        _, out, err = run(capsys, *arguments)
        assert "a-secret" not in out + err


@pytest.mark.parametrize("is_file", [True, False])
def test_now_without_the_folder_says_that_there_is_no_file(environ, capsys, tmp_path, is_file):
    environ.setenv("BUNQUEUE_DATA_PATH", str(tmp_path / "no" / "jobs.db"))
    if is_file:
        (tmp_path / "no").touch()

    code, out, _ = run(capsys, "now")

    assert (code, out) == (1, f"Backup failed: Database file not found: {tmp_path}/no/jobs.db\n")


def test_now_with_a_path_that_cannot_be_looked_at_says_so(environ, capsys, tmp_path):
    environ.setenv("BUNQUEUE_DATA_PATH", str(tmp_path / ("x" * 300)))

    assert run(capsys, "now")[:2] == (1, f"Backup failed: {tmp_path}/{'x' * 300}: File name too long\n")
