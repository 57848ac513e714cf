"""What the server shows of its backups: health, readiness, dashboard, and backups on request over HTTP.

Source: S3 backup and restore, BD-12; R218, R219, K43.
"""

import json
import subprocess
import sys
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import trio

from bunqueue_trio.app import Server
from bunqueue_trio.config import Config
from bunqueue_trio.errors import BackupBusyError, BackupError
from bunqueue_trio.ids import Ids
from bunqueue_trio.model.backup import LogStatus
from bunqueue_trio.server.reporting import Reporting
from tests.process import ROOT
from tests.server.fakes import FULL, SECRET, FakeBackups, Rig
from tests.server.http import Http

NOON = 1_796_040_000_000.0
SETTINGS = {
    "s3_backup_enabled": True, "s3_access_key_id": "a", "s3_secret_access_key": "hidden", "s3_bucket": "b",
    "data_path": "/nowhere/x.db",
}  # fmt: skip


@pytest.fixture
async def reporting(rig: Rig) -> Reporting:
    """Reports of a server that accepts commands."""
    tcp: Any = SimpleNamespace(connection_count=0)
    made = Reporting(rig.broker, rig.store, tcp)  # type: ignore[arg-type]
    made.is_serving = True
    return made


async def test_a_server_without_backups_shows_none(rig: Rig, reporting: Reporting, autojump_clock):
    assert "backup" not in json.loads(health_json(reporting))
    http = Http(rig)
    assert "backups" not in await http.reply("GET", "/dashboard")
    assert await http.reply("GET", "/backups") == {"ok": True, "backups": None}
    status, body = await http.ask("POST", "/backups")
    assert (status, "S3_BACKUP_ENABLED is off" in body["error"]) == (400, True)


def health_json(reporting: Reporting) -> bytes:
    return msgspec.json.encode(reporting.health())


async def test_health_shows_the_age_of_the_last_proven_backup(rig: Rig, reporting: Reporting, autojump_clock):
    now_ms = rig.clock.now().wall_ms
    rig.broker.monitoring.backups = FakeBackups(
        last_proven_at=now_ms - 90_500, last_proven_key="k", last_success_at=now_ms - 500, last_attempt_at=now_ms - 600
    )

    report = json.loads(health_json(reporting))

    assert (report["ok"], report["status"]) == (True, "healthy")
    assert report["backup"] == {
        "provenAgeSeconds": 90,
        "provenKey": "k",
        "lastSuccessAt": now_ms - 500,
        "lastAttemptAt": now_ms - 600,
        "error": None,
    }


async def test_a_clock_that_was_put_back_gives_no_negative_age(rig: Rig, reporting: Reporting, autojump_clock):
    rig.broker.monitoring.backups = FakeBackups(last_proven_at=rig.clock.now().wall_ms + 5_000)

    assert json.loads(health_json(reporting))["backup"]["provenAgeSeconds"] == 0


async def test_a_failing_backup_degrades_health_with_the_reason_but_clients_may_come(
    rig: Rig, reporting: Reporting, autojump_clock
):
    rig.broker.monitoring.backups = FakeBackups(error="Access Denied", failing_since=NOON)

    report = json.loads(health_json(reporting))

    assert (report["ok"], report["status"], report["backup"]["error"]) == (False, "degraded", "Access Denied")
    assert report["reasons"] == [{"code": "backup.failing", "message": "Access Denied", "since": NOON}]
    assert reporting.is_ready

    rig.broker.monitoring.backups = FakeBackups()
    assert json.loads(health_json(reporting))["ok"] is True


def log_status(**changes: Any) -> LogStatus:
    values: dict[str, Any] = {
        "interval": 5_000, "generation": "g", "recovery_point_at": None, "waiting_bytes": 3, "shipped_count": 2,
        "broken_count": 1, "error": None, "failing_since": None,
    }  # fmt: skip
    return LogStatus(**{**values, **changes})


async def test_health_and_metrics_show_what_would_be_lost_now(rig: Rig, reporting: Reporting, autojump_clock):
    now_ms = rig.clock.now().wall_ms
    for at, age in ((now_ms - 2_500, 2.5), (now_ms + 5_000, 0), (None, None)):
        rig.broker.monitoring.backups = FakeBackups(log=log_status(recovery_point_at=at))

        assert json.loads(health_json(reporting))["backup"]["recoveryPointAgeSeconds"] == age
        text = rig.broker.monitoring.exposition(rig.clock.now())
        assert (f"bunqueue_backup_recovery_point_age_seconds {age}" in text) == (age is not None)
        assert "bunqueue_backup_log_waiting_bytes 3\n" in text


async def test_uploads_that_fail_for_long_degrade_health_with_the_reason(
    rig: Rig, reporting: Reporting, autojump_clock
):
    since = rig.clock.now().wall_ms
    rig.broker.monitoring.backups = FakeBackups(log=log_status(error="Access Denied", failing_since=since))
    await trio.sleep(14)
    assert json.loads(health_json(reporting))["status"] == "healthy"
    await trio.sleep(2)

    report = json.loads(health_json(reporting))

    assert report["reasons"] == [{"code": "backup.log_failing", "message": "Access Denied", "since": since}]
    assert reporting.is_ready


async def test_the_dashboard_and_the_route_show_how_backups_went(rig: Rig, autojump_clock):
    rig.broker.monitoring.backups = FakeBackups(last_key="k", last_success_at=NOON, made_count=3)
    http = Http(rig)

    shown = (await http.reply("GET", "/backups"))["backups"]

    assert shown == {
        "bucket": "the-bucket", "interval": 60_000, "isRunning": False, "lastAttemptAt": None, "lastSuccessAt": NOON,
        "lastKey": "k", "lastSize": None, "lastDuration": None, "lastProvenAt": None, "lastProvenKey": None,
        "error": None, "failingSince": None, "madeCount": 3, "failedCount": 0, "rejectedCount": 0, "log": None,
    }  # fmt: skip
    assert (await http.reply("GET", "/dashboard"))["backups"] == shown


async def test_a_backup_is_made_on_request(rig: Rig, autojump_clock):
    rig.broker.monitoring.backups = backups = FakeBackups()
    http = Http(rig)

    made = await http.reply("POST", "/backups")
    backups.made = BackupBusyError("Backup already in progress")
    busy = await http.reply("POST", "/backups")
    backups.made = BackupError("Access Denied")
    failed = await http.reply("POST", "/backups")

    assert made == {"ok": True, "key": "k", "size": 7, "compressedSize": 5, "proven": True}
    assert busy == {"ok": False, "error": "Backup already in progress"}
    assert failed == {"ok": False, "error": "Access Denied"}


async def test_only_those_who_run_the_server_may_ask_for_one(rig: Rig, autojump_clock):
    rig.broker.monitoring.backups = FakeBackups()
    http = Http(rig, Config(auth_tokens=("all",), auth_tokens_read=("look",)))

    def asked(token: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {token}"}

    assert (await http.ask("GET", "/backups", headers=asked("look")))[0] == 200
    assert (await http.ask("POST", "/backups", headers=asked("look")))[0] == 403
    assert (await http.ask("POST", "/backups", headers=asked("all")))[0] == 200


def server(rig: Rig, **changes: Any) -> Server:
    config = Config(**{**SETTINGS, **changes})
    return Server(config, rig.store, rig.broker, None, Ids(SECRET), signals=no_signals())  # type: ignore[arg-type]


async def no_signals() -> AsyncIterator[int]:
    await trio.sleep_forever()
    yield 0


async def test_backups_are_made_only_when_switched_on(rig: Rig, autojump_clock):
    assert server(rig).backups is not None
    assert server(rig, s3_backup_enabled=False).backups is None


async def test_invalid_settings_are_one_line_of_log_and_no_backups(rig: Rig, autojump_clock, capsys):
    made = server(rig, s3_bucket="", s3_backup_retention=-1, s3_backup_interval=5)

    assert made.backups is None
    problems = '["S3_BUCKET is required","Retention must be at least 1","Backup interval must be at least 60 seconds"]'
    assert capsys.readouterr().err == f'[Backup] S3 backup configuration invalid {{"errors":{problems}}}\n'


async def test_what_is_buffered_is_flushed_before_a_copy(rig: Rig, autojump_clock):
    made = server(rig)
    made.flusher = rig.flusher
    rig.push("a")
    assert rig.store.commit_count == 0

    await made.flush_for_backup()

    assert rig.store.ids == ["a"]
    assert rig.store.checkpoints == ["TRUNCATE"]


async def test_without_the_flush_there_is_no_backup(rig: Rig, autojump_clock):
    made = server(rig)
    made.flusher = rig.flusher
    rig.store.fill_disk()
    rig.push("a")

    with pytest.raises(BackupError, match=rf"^The write buffer cannot be flushed: {FULL}$"):
        await made.flush_for_backup()
    rig.store.heal()


@pytest.mark.slow
def test_the_client_of_the_store_is_not_imported_without_backups():
    program = "import sys, bunqueue_trio.app; sys.exit('minio' in sys.modules)"

    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)
