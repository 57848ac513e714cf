"""Where backups go, how often, and what is kept of them."""

from bunqueue_trio.setting_values import leading_integer, one_of, switch_or_nothing, verbatim, whole
from bunqueue_trio.settings.setting import Setting
from bunqueue_trio.settings.watching import WatchSettings


class BackupOptions(WatchSettings, frozen=True, kw_only=True, gc=False):
    """Where backups go and how; durations are ms."""

    s3_backup_enabled: bool = False
    """Off, as in the reference: there is no bucket that everybody has."""

    s3_access_key_id: str = ""
    """Required for backups."""

    s3_secret_access_key: str = ""
    """Required for backups."""

    s3_session_token: str = ""
    """Only temporary credentials have one."""

    s3_bucket: str = ""
    """Required for backups."""

    s3_endpoint: str = ""
    """Empty: AWS."""

    s3_region: str = "us-east-1"
    """The reference's value; many stores take any."""

    s3_backup_interval: int = 21_600_000
    """The reference's value: six hours."""

    s3_backup_retention: int = 7
    """The reference's value."""

    s3_backup_prefix: str = "backups/"
    """The reference's value."""

    s3_backup_verify: str = "auto"
    """One of auto, on, off. Reading back a file of a gigabyte costs as much traffic as the backup."""

    s3_backup_log_interval: int = 5_000
    """So that with the time of an upload at most ten seconds are lost with the machine."""

    s3_backup_log_max_bytes: int = 1 << 30
    """Some minutes of the heaviest load, hours of an ordinary one."""


BACKUPS = (
    Setting(
        "S3_BACKUP_ENABLED",
        "s3_backup_enabled",
        switch_or_nothing,
        "`on`: the server makes backups. The `backup` command needs no switch",
    ),
    Setting(
        "S3_ACCESS_KEY_ID",
        "s3_access_key_id",
        verbatim,
        "Access key. Also `AWS_ACCESS_KEY_ID`",
        aliases=("AWS_ACCESS_KEY_ID",),
    ),
    Setting(
        "S3_SECRET_ACCESS_KEY",
        "s3_secret_access_key",
        verbatim,
        "Its secret. Also `AWS_SECRET_ACCESS_KEY`",
        aliases=("AWS_SECRET_ACCESS_KEY",),
    ),
    Setting(
        "S3_SESSION_TOKEN",
        "s3_session_token",
        verbatim,
        "Token of temporary credentials. Also `AWS_SESSION_TOKEN`",
        aliases=("AWS_SESSION_TOKEN",),
    ),
    Setting(
        "S3_BUCKET",
        "s3_bucket",
        verbatim,
        "Bucket; it must exist. Also `AWS_BUCKET`",
        aliases=("AWS_BUCKET",),
    ),
    Setting(
        "S3_ENDPOINT",
        "s3_endpoint",
        verbatim,
        "URL of the store; empty: AWS. Also `AWS_ENDPOINT`",
        aliases=("AWS_ENDPOINT",),
    ),
    Setting("S3_REGION", "s3_region", verbatim, "Its region. Also `AWS_REGION`", aliases=("AWS_REGION",)),
    Setting(
        "S3_BACKUP_INTERVAL",
        "s3_backup_interval",
        leading_integer(21_600_000),
        "Time between two backups, ms; at least 60000",
    ),
    Setting("S3_BACKUP_RETENTION", "s3_backup_retention", leading_integer(7), "How many backups are kept"),
    Setting("S3_BACKUP_PREFIX", "s3_backup_prefix", verbatim, "What their keys begin with"),
    Setting(
        "S3_BACKUP_VERIFY",
        "s3_backup_verify",
        one_of("auto", "on", "off"),
        "Whether each backup is read back and checked; `auto`: where the file is below 1 GiB",
    ),
    Setting(
        "S3_BACKUP_LOG_INTERVAL",
        "s3_backup_log_interval",
        whole("ms", 0, 3_600_000, " (0: no log)"),
        "How often changes are uploaded between two backups, ms; 0: never, so that only backups can be restored",
    ),
    Setting(
        "S3_BACKUP_LOG_MAX_BYTES",
        "s3_backup_log_max_bytes",
        whole("bytes", 1 << 20, 1 << 40),
        "How much of the disk changes may take that are not uploaded yet; beyond that a new backup is made",
    ),
)
"""One row for each."""
