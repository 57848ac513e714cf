"""Settings of backups: defaults, fallbacks, and what keeps backups from working."""

import pytest

from bunqueue_trio.backup.settings import BackupSettings
from bunqueue_trio.backup.sidecar import Sidecar, from_object_metadata, read_sidecar, to_object_metadata
from bunqueue_trio.config import Config
from bunqueue_trio.errors import ConfigError, DamagedBackupError

REQUIRED = {"S3_ACCESS_KEY_ID": "a", "S3_SECRET_ACCESS_KEY": "s", "S3_BUCKET": "b"}


def read(**environ: str) -> BackupSettings:
    return BackupSettings.of(Config.from_environment(environ))


def test_the_defaults_are_those_of_the_reference():
    settings = read(**REQUIRED)

    assert settings.problems() == []
    assert settings == BackupSettings(
        database="./bunqueue.db",
        bucket="b",
        access_key_id="a",
        secret_access_key="s",
        session_token="",
        endpoint="",
        region="us-east-1",
        interval_ms=21_600_000,
        retention=7,
        prefix="backups/",
        verify="auto",
        is_enabled=False,
        log_interval_ms=5_000,
        log_max_bytes=1 << 30,
    )


@pytest.mark.parametrize(
    ("name", "fallback", "field"),
    [
        ("S3_ACCESS_KEY_ID", "AWS_ACCESS_KEY_ID", "access_key_id"),
        ("S3_SECRET_ACCESS_KEY", "AWS_SECRET_ACCESS_KEY", "secret_access_key"),
        ("S3_SESSION_TOKEN", "AWS_SESSION_TOKEN", "session_token"),
        ("S3_BUCKET", "AWS_BUCKET", "bucket"),
        ("S3_REGION", "AWS_REGION", "region"),
        ("S3_ENDPOINT", "AWS_ENDPOINT", "endpoint"),
    ],
)
def test_the_name_of_aws_is_used_where_ours_is_not_set(name, fallback, field):
    assert getattr(read(**{fallback: "theirs"}), field) == "theirs"
    assert getattr(read(**{fallback: "theirs", name: "ours"}), field) == "ours"
    assert getattr(read(**{fallback: "theirs", name: ""}), field) == ""


@pytest.mark.parametrize(
    ("text", "interval", "retention"),
    [("", 21_600_000, 7), ("0", 21_600_000, 7), ("junk", 21_600_000, 7), ("90000", 90_000, 90_000),
     (" 61000 x", 61_000, 61_000), ("2.9", 2, 2), ("-3", -3, -3)],
)  # fmt: skip
def test_numbers_are_the_leading_integer_or_the_default(text, interval, retention):
    settings = read(S3_BACKUP_INTERVAL=text, S3_BACKUP_RETENTION=text)

    assert (settings.interval_ms, settings.retention) == (interval, retention)


@pytest.mark.parametrize(
    ("text", "enabled"), [("1", True), ("true", True), ("ON", True), ("0", False), ("false", False), ("", False)]
)
def test_backups_are_switched_on_and_off(text, enabled):
    assert read(S3_BACKUP_ENABLED=text).is_enabled is enabled


def test_a_switch_that_is_neither_is_said():
    with pytest.raises(ConfigError, match="S3_BACKUP_ENABLED"):
        read(S3_BACKUP_ENABLED="maybe")


@pytest.mark.parametrize("verify", ["auto", "on", "off"])
def test_reading_back_is_a_choice(verify):
    assert read(S3_BACKUP_VERIFY=verify).verify == verify


def test_all_that_is_wrong_is_said_at_once_and_in_order():
    settings = read(
        BUNQUEUE_DATA_PATH=":memory:", S3_BACKUP_RETENTION="-1", S3_BACKUP_INTERVAL="59999", S3_ENDPOINT="host:9000"
    )

    assert settings.problems() == [
        "S3_ACCESS_KEY_ID is required",
        "S3_SECRET_ACCESS_KEY is required",
        "S3_BUCKET is required",
        "Database path is required",
        "Retention must be at least 1",
        "Backup interval must be at least 60 seconds",
        "S3_ENDPOINT must be a URL such as https://host:port",
    ]


@pytest.mark.parametrize(
    "endpoint",
    [
        "https://s3.eu-central-1.amazonaws.com",
        "https://account.r2.cloudflarestorage.com",
        "http://localhost:9000/",
        "https://fra1.digitaloceanspaces.com",
    ],
)
def test_endpoints_of_the_four_stores_are_fine(endpoint):
    assert read(**REQUIRED, S3_ENDPOINT=endpoint).problems() == []


def test_a_sidecar_has_its_keys_in_the_order_of_the_wire():
    sidecar = Sidecar("2026-11-30T12:00:00.000Z", "1.2.3", 10, 5, "abc", True)

    assert sidecar.to_json().decode() == (
        '{\n  "timestamp": "2026-11-30T12:00:00.000Z",\n  "version": "1.2.3",\n  "size": 10,\n'
        '  "compressedSize": 5,\n  "checksum": "abc",\n  "compressed": true\n}'
    )
    assert read_sidecar(sidecar.to_json()) == sidecar


def test_a_sidecar_may_lack_fields_and_have_others():
    assert read_sidecar(b'{"checksum": "abc", "more": [1]}') == Sidecar(checksum="abc")


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'"text"', b'{"size": "5"}', b"\xff\xfe"])
def test_a_sidecar_that_cannot_be_read_is_refused(data):
    with pytest.raises(DamagedBackupError, match=r"^Backup metadata is not valid JSON$"):
        read_sidecar(data)


def test_the_object_itself_says_the_same_in_short():
    assert from_object_metadata(to_object_metadata("abc", 7)) == Sidecar(checksum="abc", size=7)
    assert from_object_metadata({"sha256": "abc", "size": "many"}) == Sidecar(checksum="abc")
    assert from_object_metadata({"size": "7"}) is None


@pytest.mark.parametrize("ending", ["/", "/b", "/b/"])
def test_an_endpoint_may_name_the_bucket_too(ending):
    assert read(**{**REQUIRED, "S3_BUCKET": "b"}, S3_ENDPOINT=f"https://host{ending}").problems() == []


@pytest.mark.parametrize(
    "endpoint",
    ["http://[::1", "http://h:99999", "http://h:x", "http://h:0", "http://h:9000 ", "https://h/storage/v1/s3",
     "http://key:secret@h", "http://h/#x", "http://h/?x=1", "http://"],
)  # fmt: skip
def test_endpoints_that_the_client_would_not_ask_are_a_problem_and_no_crash(endpoint):
    assert read(**REQUIRED, S3_ENDPOINT=endpoint).problems() == ["S3_ENDPOINT must be a URL such as https://host:port"]
