"""Where backups go and how often: the part of the settings that concerns them, and what is wrong with it.

Source: S3 backup and restore, "Settings"; R203 to R209, R317 to R333, K9.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal
from urllib.parse import urlsplit

from msgspec import Struct

if TYPE_CHECKING:
    from bunqueue_trio.config import Config

MIN_INTERVAL_MS: Final = 60_000
MEMORY: Final = ":memory:"

Verify = Literal["auto", "on", "off"]


class BackupSettings(Struct, frozen=True, kw_only=True, gc=False):
    """Everything that a backup or a restore needs to know.

    ``endpoint`` is a URL, empty for AWS; ``session_token`` is empty without temporary credentials; ``retention`` is how
    many backups are kept. ``log_interval_ms`` of 0: changes are not uploaded between backups.
    """

    database: str
    bucket: str
    access_key_id: str
    secret_access_key: str
    session_token: str = ""
    endpoint: str = ""
    region: str = "us-east-1"
    interval_ms: int = 21_600_000
    retention: int = 7
    prefix: str = "backups/"
    verify: Verify = "auto"
    is_enabled: bool = False
    log_interval_ms: int = 0
    log_max_bytes: int = 1 << 30

    @classmethod
    def of(cls, config: Config) -> BackupSettings:
        """The part of *config* that concerns backups."""
        verify: Verify = "on" if config.s3_backup_verify == "on" else "auto"
        return cls(
            database=config.data_path,
            bucket=config.s3_bucket,
            access_key_id=config.s3_access_key_id,
            secret_access_key=config.s3_secret_access_key,
            session_token=config.s3_session_token,
            endpoint=config.s3_endpoint,
            region=config.s3_region,
            interval_ms=config.s3_backup_interval,
            retention=config.s3_backup_retention,
            prefix=config.s3_backup_prefix,
            verify="off" if config.s3_backup_verify == "off" else verify,
            is_enabled=config.s3_backup_enabled,
            log_interval_ms=config.s3_backup_log_interval,
            log_max_bytes=config.s3_backup_log_max_bytes,
        )

    def problems(self) -> list[str]:
        """What keeps backups from working, in the order of the reference; empty when nothing does."""
        checks = (
            (bool(self.access_key_id), "S3_ACCESS_KEY_ID is required"),
            (bool(self.secret_access_key), "S3_SECRET_ACCESS_KEY is required"),
            (bool(self.bucket), "S3_BUCKET is required"),
            (self.has_database, "Database path is required"),
            (self.retention >= 1, "Retention must be at least 1"),
            (self.interval_ms >= MIN_INTERVAL_MS, "Backup interval must be at least 60 seconds"),
            (self._has_endpoint, "S3_ENDPOINT must be a URL such as https://host:port"),
        )
        return [text for holds, text in checks if not holds]

    @property
    def has_database(self) -> bool:
        """Whether there is a file that could be backed up."""
        return self.database not in ("", MEMORY)

    @property
    def _has_endpoint(self) -> bool:
        if not self.endpoint:
            return True
        try:
            url = urlsplit(self.endpoint)
            port = url.port
        except ValueError:
            return False
        # The client addresses buckets below the root: a path would be left out without a word. That of the bucket
        # itself, which some stores show behind the endpoint, may be.
        is_bare = url.path.strip("/") in ("", self.bucket) and not (url.query or url.fragment or "@" in url.netloc)
        return url.scheme in ("http", "https") and bool(url.hostname) and port != 0 and is_bare
