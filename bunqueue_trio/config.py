"""Settings: from the environment and from flags, checked as a whole before anything is opened.

`SETTINGS` is the one table of names; parsing, the documentation and its test read it. Each default and its reason
stand at the field of `Config`, or of the room in `settings` that it is made of.
"""

import json
from collections.abc import Mapping
from typing import Any

from bunqueue_trio.errors import ConfigError
from bunqueue_trio.setting_values import (
    host_name,
    members,
    networks,
    one_of,
    port,
    switch,
    tokens,
    whole,
)
from bunqueue_trio.settings.backups import BACKUPS, BackupOptions
from bunqueue_trio.settings.limits import LIMITS
from bunqueue_trio.settings.setting import Setting, with_defaults
from bunqueue_trio.settings.watching import WATCHING

IN_MEMORY = ":memory:"
LOOPBACK_HOSTS = frozenset({"127.0.0.1", "::1", "localhost"})


class Config(BackupOptions, frozen=True, kw_only=True, gc=False):
    """Every setting of a server, checked. Durations are ms, sizes bytes. ``Config()`` holds the defaults.

    Make one with `from_environment`; the constructor checks nothing.
    """

    tcp_port: int = 6789
    """The reference's port; 0: any free one."""

    http_port: int = 6790
    """The reference's port; 0: any free one."""

    host: str | None = None
    """None: not set, see `bind_host`."""

    auth_tokens: tuple[str, ...] = ()
    """Empty: nobody has to authenticate."""

    auth_tokens_read: tuple[str, ...] = ()
    """Tokens that may only look."""

    auth_tokens_produce: tuple[str, ...] = ()
    """Tokens that may make jobs."""

    auth_tokens_work: tuple[str, ...] = ()
    """Tokens that may run jobs."""

    metrics_auth: bool = False
    """The reference's value: scrapers come without a token."""

    cors_allow_origin: tuple[str, ...] = ()
    """None: pages from elsewhere read nothing."""

    trusted_proxies: tuple[str, ...] = ()
    """None: anybody can send the headers in which a proxy names its client."""

    http_socket_path: str | None = None
    """None: HTTP has a port."""

    tls_cert_file: str | None = None
    """None: plain TCP and HTTP, as in the reference."""

    tls_key_file: str | None = None
    """The key that belongs to the certificate."""

    data_path: str = "./bunqueue.db"
    """A file, so that nothing is lost by default (K37); `IN_MEMORY` only on request."""

    sqlite_synchronous: str = "NORMAL"
    """NORMAL survives a killed process at no price; FULL also a power cut, for one fsync per group commit."""

    shutdown_timeout_ms: int = 30_000
    """The reference's value; buffered rows are safe from the start of the wait (K21). 0: no wait."""

    lease_grace_ms: int = 2_000
    """Covers a worker's slow network and short pause without delaying the retry much (P-27)."""

    worker_timeout_ms: int = 30_000
    """The reference's value: three missed heartbeats of the published workers."""

    worker_cleanup_interval_ms: int = 60_000
    """The reference's value."""

    completed_retention_ms: int | None = None
    """None: kept until removed, as in the reference."""

    completed_retention_count: int | None = None
    """None: any number."""

    write_backlog_max_jobs: int = 10_000
    """At most this many jobs depend on memory alone while the file cannot be written."""

    write_backlog_max_bytes: int = 67_108_864
    """The same bound for large jobs: 64 MiB."""

    webhook_max_retries: int = 3
    """The reference's value; it counts tries, the first one included."""

    webhook_retry_delay_ms: int = 1_000
    """The reference's value."""

    webhook_allow_internal: bool = False
    """Off: whoever may add a webhook must not thereby reach what only this machine can reach."""

    log_level: str = "info"
    """One of debug, info, warn, error."""

    log_format: str = "text"
    """One of text, json."""

    @classmethod
    def from_environment(cls, environ: Mapping[str, str], **flags: str | int | None) -> "Config":
        """Read every setting; a flag that is not None outranks the environment.

        Args:
            environ: Usually ``os.environ``. Unknown variables are ignored.
            flags: By field name: ``tcp_port="0"``.

        Raises:
            ConfigError: One problem per malformed value or contradiction, all of them at once.
        """
        values: dict[str, Any] = {}
        problems: list[str] = []
        for setting in SETTINGS:
            name, text = setting.find(environ, flags)
            if text is None:
                continue
            try:
                values[setting.field] = setting.parse(text)
            except ValueError as error:
                # Escaped as in JSON: a value may hold line breaks, a problem is one line.
                problems.append(f"{name}: {json.dumps(text, ensure_ascii=False)} is not {error}")
        problems += _contradictions(cls(**values), {problem.partition(":")[0] for problem in problems})
        if problems:
            raise ConfigError(problems)
        return cls(**values)

    @property
    def bind_host(self) -> str:
        """Where both listeners bind: ``host`` if set, else loopback without tokens and everywhere with some (K37)."""
        if self.host is not None:
            return self.host
        return "0.0.0.0" if self.has_tokens else "127.0.0.1"

    @property
    def has_tokens(self) -> bool:
        """Whether clients must present a token, of whatever role."""
        return bool(self.auth_tokens or self.auth_tokens_read or self.auth_tokens_produce or self.auth_tokens_work)

    @property
    def has_tls(self) -> bool:
        """Whether both listeners speak TLS, and nothing else."""
        return self.tls_cert_file is not None

    @property
    def is_in_memory(self) -> bool:
        """Whether there is no data file."""
        return self.data_path == IN_MEMORY

    @property
    def is_open_to_strangers(self) -> bool:
        """Whether other machines may connect without a token."""
        return not self.has_tokens and self.bind_host not in LOOPBACK_HOSTS

    def warnings(self) -> list[str]:
        """What is legal but should be known, a sentence each; for the log at start."""
        found = []
        if self.is_in_memory:
            found.append("Running in memory: every job is lost when the process ends")
        if self.is_open_to_strangers:
            found.append(f"Listening on {self.bind_host} without AUTH_TOKENS: anybody who can connect may do anything")
        if self.webhook_allow_internal:
            found.append("WEBHOOK_ALLOW_INTERNAL is on: webhooks may reach this machine and its network")
        return found


def _contradictions(config: Config, malformed: set[str]) -> list[str]:
    """Problems of values that are fine one by one. *malformed* names the settings that have a problem already."""
    found = []
    has_ports = config.http_socket_path is None
    if has_ports and config.tcp_port == config.http_port != 0 and not malformed & {"TCP_PORT", "HTTP_PORT"}:
        found.append(f'HTTP_PORT: "{config.http_port}" is not a port of its own; TCP_PORT is the same')
    if config.metrics_auth and not config.has_tokens and not any("AUTH_TOKENS" in name for name in malformed):
        found.append("METRICS_AUTH: there are no AUTH_TOKENS to present")
    if config.tls_cert_file is not None and config.tls_key_file is None:
        found.append("TLS_KEY_FILE: TLS misconfigured: TLS_CERT_FILE is set but TLS_KEY_FILE is missing")
    if config.tls_key_file is not None and config.tls_cert_file is None:
        found.append("TLS_CERT_FILE: TLS misconfigured: TLS_KEY_FILE is set but TLS_CERT_FILE is missing")
    return found


SETTINGS = with_defaults(
    Config,
    Setting("TCP_PORT", "tcp_port", port, "Port of the wire protocol; 0: any free one", has_flag=True),
    Setting("HTTP_PORT", "http_port", port, "Port of HTTP; 0: any free one", has_flag=True),
    Setting(
        "HOST",
        "host",
        host_name,
        "Address of both listeners. Not set: `127.0.0.1` while `AUTH_TOKENS` is not set, `0.0.0.0` once it is",
        has_flag=True,
    ),
    Setting(
        "HTTP_SOCKET_PATH",
        "http_socket_path",
        str,
        "HTTP listens on this Unix socket, and not on `HTTP_PORT`",
        skips_empty=True,
    ),
    Setting(
        "AUTH_TOKENS",
        "auth_tokens",
        tokens,
        "Comma-separated tokens; with some, clients must authenticate",
        has_flag=True,
    ),
    Setting("AUTH_TOKENS_READ", "auth_tokens_read", tokens, "Tokens that may only look"),
    Setting("AUTH_TOKENS_PRODUCE", "auth_tokens_produce", tokens, "Tokens that may look and make jobs"),
    Setting("AUTH_TOKENS_WORK", "auth_tokens_work", tokens, "Tokens that may look and run jobs"),
    Setting("METRICS_AUTH", "metrics_auth", switch, "`on`: `/prometheus` needs a token too"),
    Setting(
        "CORS_ALLOW_ORIGIN",
        "cors_allow_origin",
        members,
        "Comma-separated origins whose pages may read the answers of HTTP; `*`: all",
    ),
    Setting(
        "TRUSTED_PROXIES",
        "trusted_proxies",
        networks,
        "Comma-separated addresses and networks of proxies whose `X-Forwarded-For` or `X-Real-IP` names the client",
    ),
    Setting(
        "TLS_CERT_FILE",
        "tls_cert_file",
        str,
        "PEM file of the certificate and its chain; with `TLS_KEY_FILE` both listeners speak TLS only",
        has_flag=True,
        flag_name="--tls-cert",
        skips_empty=True,
    ),
    Setting(
        "TLS_KEY_FILE",
        "tls_key_file",
        str,
        "PEM file of its key",
        has_flag=True,
        flag_name="--tls-key",
        skips_empty=True,
    ),
    Setting(
        "BUNQUEUE_DATA_PATH",
        "data_path",
        str,
        "Data file; `:memory:` keeps everything in memory only. Also `BQ_DATA_PATH`, `DATA_PATH`, `SQLITE_PATH`; "
        "the first that is not empty counts",
        aliases=("BQ_DATA_PATH", "DATA_PATH", "SQLITE_PATH"),
        has_flag=True,
        skips_empty=True,
    ),
    Setting(
        "SQLITE_SYNCHRONOUS",
        "sqlite_synchronous",
        one_of("NORMAL", "FULL"),
        "`NORMAL`: what was confirmed survives a killed process. `FULL`: also a power cut, for one fsync per commit",
    ),
    *LIMITS,
    Setting(
        "SHUTDOWN_TIMEOUT_MS",
        "shutdown_timeout_ms",
        whole("milliseconds", 0, zero=" (0: no wait)"),
        "Longest wait for active jobs while stopping, ms; 0: no wait",
    ),
    Setting(
        "LEASE_GRACE_MS",
        "lease_grace_ms",
        whole("milliseconds", 0, zero=" (0: none)"),
        "How long an ACK is still accepted after its lease has ended, ms",
    ),
    Setting(
        "WORKER_TIMEOUT_MS",
        "worker_timeout_ms",
        whole("milliseconds", 1),
        "A worker not heard of for so long is stale, ms; it is removed after three times this",
    ),
    Setting(
        "WORKER_CLEANUP_INTERVAL_MS",
        "worker_cleanup_interval_ms",
        whole("milliseconds", 1),
        "How often stale workers are looked for, ms",
    ),
    *WATCHING,
    Setting(
        "COMPLETED_RETENTION_MS",
        "completed_retention_ms",
        whole("milliseconds", 1),
        "Completed jobs and their results are deleted when older, ms. Not set: never",
    ),
    Setting(
        "COMPLETED_RETENTION_COUNT",
        "completed_retention_count",
        whole("jobs", 0),
        "Completed jobs and their results beyond this number are deleted, oldest first. Not set: none",
    ),
    Setting(
        "WRITE_BACKLOG_MAX_JOBS",
        "write_backlog_max_jobs",
        whole("jobs", 1),
        "While the file cannot be written: unwritten jobs after which pushes are refused",
    ),
    Setting(
        "WRITE_BACKLOG_MAX_BYTES",
        "write_backlog_max_bytes",
        whole("bytes", 1),
        "The same for their size",
    ),
    Setting("WEBHOOK_MAX_RETRIES", "webhook_max_retries", whole("tries", 1, 100), "Tries of a webhook call, in all"),
    Setting(
        "WEBHOOK_RETRY_DELAY_MS",
        "webhook_retry_delay_ms",
        whole("milliseconds", 0, 3_600_000),
        "Pause after the n-th failed try of a webhook call: n times this, ms",
    ),
    Setting("WEBHOOK_ALLOW_INTERNAL", "webhook_allow_internal", switch, "`on`: webhooks may reach internal addresses"),
    *BACKUPS,
    Setting("LOG_LEVEL", "log_level", one_of("debug", "info", "warn", "error"), "`debug`, `info`, `warn` or `error`"),
    Setting("LOG_FORMAT", "log_format", one_of("text", "json"), "`text` or `json` (one object per line)"),
)
"""Every setting, in the order of the documentation."""
