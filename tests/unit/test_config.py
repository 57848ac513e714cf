"""Settings: names, bounds, order of precedence, and that all problems are told at once."""

import pytest

from bunqueue_trio.config import IN_MEMORY, SETTINGS, Config
from bunqueue_trio.errors import ConfigError
from bunqueue_trio.setting_values import MAX_COUNT
from bunqueue_trio.settings.setting import Setting


def problems_of(environ: dict[str, str], **flags: str | int | None) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        Config.from_environment(environ, **flags)
    return caught.value.problems


def test_an_empty_environment_gives_the_defaults():
    assert Config.from_environment({}) == Config()


def test_unknown_variables_are_ignored():
    assert Config.from_environment({"S3_BUCKETS": "b", "WEBHOOK_MIN_RETRIES": "many", "TCP_PORTS": "x"}) == Config()


EXAMPLES = {
    "tcp_port": ("0", 0),
    "http_port": ("65535", 65_535),
    "host": (" example.org ", "example.org"),
    "auth_tokens": (" a, b ,,a", ("a", "b")),
    "auth_tokens_read": ("r", ("r",)),
    "auth_tokens_produce": ("p,q", ("p", "q")),
    "auth_tokens_work": ("w", ("w",)),
    "metrics_auth": ("Yes", True),
    "cors_allow_origin": (" https://a.example,, https://b.example", ("https://a.example", "https://b.example")),
    "trusted_proxies": ("10.0.0.0/8, ::1", ("10.0.0.0/8", "::1/128")),
    "rate_limit_cleanup_ms": ("1", 1),
    "http_socket_path": ("/run/h.sock", "/run/h.sock"),
    "tls_cert_file": ("cert.pem", "cert.pem"),
    "tls_key_file": ("key.pem", "key.pem"),
    "data_path": ("/var/lib/queue file.db", "/var/lib/queue file.db"),
    "sqlite_synchronous": ("full", "FULL"),
    "rate_limit_max_requests": ("1000000000", 1_000_000_000),
    "rate_limit_window_ms": ("1", 1),
    "tcp_idle_timeout_ms": ("0", 0),
    "tcp_max_write_queue_bytes": ("0", 0),
    "max_connections": ("1", 1),
    "http_max_connections": ("17", 17),
    "preauth_max_frame_bytes": ("64", 64),
    "shutdown_timeout_ms": ("0", 0),
    "lease_grace_ms": ("0", 0),
    "worker_timeout_ms": (" 300 ", 300),
    "worker_cleanup_interval_ms": ("5", 5),
    "metrics_max_queues": ("0", 0),
    "queue_idle_threshold_ms": ("0", 0),
    "queue_size_threshold": ("5", 5),
    "worker_overload_threshold_ms": ("0", 0),
    "memory_warning_mb": ("512", 512),
    "storage_warning_mb": ("4096", 4_096),
    "stats_interval_ms": ("1000", 1000),
    "webhook_max_retries": ("100", 100),
    "webhook_retry_delay_ms": ("0", 0),
    "webhook_allow_internal": (" ON ", True),
    "completed_retention_ms": (str(MAX_COUNT), MAX_COUNT),
    "completed_retention_count": ("0", 0),
    "write_backlog_max_jobs": ("1", 1),
    "write_backlog_max_bytes": ("+7", 7),
    "s3_backup_enabled": ("1", True),
    "s3_access_key_id": ("key", "key"),
    "s3_secret_access_key": (" s ", " s "),
    "s3_session_token": ("t", "t"),
    "s3_bucket": ("b", "b"),
    "s3_endpoint": ("http://h:1/", "http://h:1/"),
    "s3_region": ("eu-x-1", "eu-x-1"),
    "s3_backup_interval": ("90000", 90_000),
    "s3_backup_retention": ("3", 3),
    "s3_backup_prefix": ("", ""),
    "s3_backup_verify": ("Off", "off"),
    "s3_backup_log_interval": ("0", 0),
    "s3_backup_log_max_bytes": ("1048576", 1_048_576),
    "log_level": ("WARN", "warn"),
    "log_format": ("Json", "json"),
}


COMPANIONS = {
    "METRICS_AUTH": {"AUTH_TOKENS": "t"},
    "TLS_CERT_FILE": {"TLS_KEY_FILE": "k"},
    "TLS_KEY_FILE": {"TLS_CERT_FILE": "c"},
}
"""What a setting is legal with only."""


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda s: s.variable)
def test_every_setting_is_read_from_its_variable(setting: Setting):
    text, value = EXAMPLES[setting.field]

    config = Config.from_environment({**COMPANIONS.get(setting.variable, {}), setting.variable: text})

    assert getattr(config, setting.field) == value


@pytest.mark.parametrize("setting", [s for s in SETTINGS if s.has_flag], ids=lambda s: s.flag)
def test_a_flag_outranks_the_environment(setting: Setting):
    text, value = EXAMPLES[setting.field]

    environ = {**COMPANIONS.get(setting.variable, {}), setting.variable: "40000"}
    config = Config.from_environment(environ, **{setting.field: text})

    assert getattr(config, setting.field) == value


def test_a_flag_may_be_a_number_and_none_means_not_given():
    config = Config.from_environment({"HTTP_PORT": "1234"}, tcp_port=0, http_port=None)

    assert (config.tcp_port, config.http_port) == (0, 1234)


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("TCP_PORT", "1e4", "a port between 0 and 65535 (0: any free one)"),
        ("TCP_PORT", "65536", "a port between 0 and 65535 (0: any free one)"),
        ("HTTP_PORT", "-1", "a port between 0 and 65535 (0: any free one)"),
        ("HTTP_PORT", "", "a port between 0 and 65535 (0: any free one)"),
        ("HOST", "", "a host name or an address"),
        ("HOST", "a b", "a host name or an address"),
        ("AUTH_TOKENS", ",", "a comma-separated list with at least one token (unset it to run without)"),
        ("AUTH_TOKENS", " ", "a comma-separated list with at least one token (unset it to run without)"),
        ("SQLITE_SYNCHRONOUS", "OFF", "one of NORMAL, FULL"),
        ("RATE_LIMIT_MAX_REQUESTS", "0", "a whole number of requests between 1 and 9007199254740992"),
        ("RATE_LIMIT_MAX_REQUESTS", "-5", "a whole number of requests between 1 and 9007199254740992"),
        ("RATE_LIMIT_WINDOW_MS", "31803.7", "a whole number of milliseconds between 1 and 9007199254740992"),
        ("RATE_LIMIT_WINDOW_MS", "0x10", "a whole number of milliseconds between 1 and 9007199254740992"),
        ("RATE_LIMIT_WINDOW_MS", "1_000", "a whole number of milliseconds between 1 and 9007199254740992"),
        ("RATE_LIMIT_WINDOW_MS", "٣", "a whole number of milliseconds between 1 and 9007199254740992"),
        ("RATE_LIMIT_WINDOW_MS", "9" * 5000, "a whole number of milliseconds between 1 and 9007199254740992"),
        ("MAX_CONNECTIONS", "9007199254740993", "a whole number of connections between 1 and 9007199254740992"),
        ("TCP_IDLE_TIMEOUT_MS", "-1", "a whole number of milliseconds between 0 and 9007199254740992 (0: off)"),
        ("STATS_INTERVAL_MS", "999", "a whole number of milliseconds between 1000 and 9007199254740992"),
        ("WORKER_TIMEOUT_MS", "0", "a whole number of milliseconds between 1 and 9007199254740992"),
        ("PREAUTH_MAX_FRAME_BYTES", "67108865", "a whole number of bytes between 64 and 67108864"),
        ("WEBHOOK_MAX_RETRIES", "0", "a whole number of tries between 1 and 100"),
        ("WEBHOOK_MAX_RETRIES", "101", "a whole number of tries between 1 and 100"),
        ("WEBHOOK_RETRY_DELAY_MS", "-1", "a whole number of milliseconds between 0 and 3600000"),
        ("WEBHOOK_ALLOW_INTERNAL", "maybe", "one of on, off, true, false, 1, 0, yes, no"),
        ("METRICS_AUTH", "", "one of on, off, true, false, 1, 0, yes, no"),
        ("AUTH_TOKENS_WORK", ",", "a comma-separated list with at least one token (unset it to run without)"),
        ("TRUSTED_PROXIES", "proxy", "a comma-separated list of addresses and networks such as 10.0.0.0/8"),
        ("LOG_LEVEL", "loud", "one of debug, info, warn, error"),
        ("LOG_FORMAT", "xml", "one of text, json"),
    ],
)
def test_a_malformed_value_is_one_line_that_says_what_is_allowed(name, value, allowed):
    assert problems_of({name: value}) == [f'{name}: "{value}" is not {allowed}']


def test_all_problems_are_told_at_once_in_the_order_of_the_table():
    problems = problems_of({"LOG_LEVEL": "x", "TCP_PORT": "x", "STATS_INTERVAL_MS": "5", "AUTH_TOKENS": ","})

    assert [problem.partition(":")[0] for problem in problems] == [
        "TCP_PORT",
        "AUTH_TOKENS",
        "STATS_INTERVAL_MS",
        "LOG_LEVEL",
    ]


def test_a_value_with_a_line_break_stays_one_line():
    assert problems_of({"TCP_PORT": "1\n2"}) == [
        'TCP_PORT: "1\\n2" is not a port between 0 and 65535 (0: any free one)'
    ]


def test_a_malformed_flag_is_named_as_the_flag():
    assert problems_of({"TCP_PORT": "1"}, tcp_port="abc") == [
        '--tcp-port: "abc" is not a port between 0 and 65535 (0: any free one)'
    ]


@pytest.mark.parametrize("environ", [{"TCP_PORT": "6790"}, {"HTTP_PORT": "6789"}, {"TCP_PORT": "1", "HTTP_PORT": "1"}])
def test_both_listeners_cannot_have_the_same_port(environ):
    (problem,) = problems_of(environ)

    assert problem.startswith("HTTP_PORT: ")
    assert problem.endswith("is not a port of its own; TCP_PORT is the same")


def test_both_ports_may_be_left_to_the_system():
    assert Config.from_environment({"TCP_PORT": "0", "HTTP_PORT": "0"}).tcp_port == 0
    assert Config.from_environment({"TCP_PORT": "6790", "HTTP_SOCKET_PATH": "/s"}).http_socket_path == "/s"


DATA_VARIABLES = ("BUNQUEUE_DATA_PATH", "BQ_DATA_PATH", "DATA_PATH", "SQLITE_PATH")


@pytest.mark.parametrize("position", range(4))
def test_the_first_data_path_that_is_not_empty_counts(position):
    environ = {name: f"{name}.db" for name in DATA_VARIABLES[position:]}
    environ |= dict.fromkeys(DATA_VARIABLES[:position], "")

    assert Config.from_environment(environ).data_path == f"{DATA_VARIABLES[position]}.db"


@pytest.mark.parametrize("text", ["", "  "])
def test_an_empty_data_path_is_the_default_file_and_not_memory(text):
    config = Config.from_environment(dict.fromkeys(DATA_VARIABLES, text))

    assert config.data_path == "./bunqueue.db"
    assert not config.is_in_memory


def test_memory_only_on_request_and_with_a_warning():
    config = Config.from_environment({"DATA_PATH": IN_MEMORY})

    assert config.is_in_memory
    assert config.warnings() == ["Running in memory: every job is lost when the process ends"]


@pytest.mark.parametrize(
    ("environ", "host", "is_open"),
    [
        ({}, "127.0.0.1", False),
        ({"AUTH_TOKENS": "t"}, "0.0.0.0", False),
        ({"HOST": "0.0.0.0"}, "0.0.0.0", True),
        ({"HOST": "0.0.0.0", "AUTH_TOKENS": "t"}, "0.0.0.0", False),
        ({"HOST": "127.0.0.1", "AUTH_TOKENS": "t"}, "127.0.0.1", False),
        ({"HOST": "[::1]"}, "::1", False),
        ({"HOST": "localhost"}, "localhost", False),
        ({"HOST": "::"}, "::", True),
    ],
)
def test_where_the_listeners_bind_and_whether_that_needs_a_warning(environ, host, is_open):
    config = Config.from_environment(environ)

    assert config.bind_host == host
    assert config.is_open_to_strangers is is_open
    assert bool(config.warnings()) is is_open


def test_a_problem_never_shows_a_usable_token():
    problems = problems_of({"AUTH_TOKENS": "secret", "TCP_PORT": "x", "LOG_FORMAT": "maybe"})

    assert "secret" not in "".join(problems)


@pytest.mark.parametrize(
    ("text", "value"), [("on", True), ("TRUE", True), ("1", True), ("off", False), ("False", False), ("0", False)]
)
def test_a_switch_has_several_spellings(text, value):
    assert Config.from_environment({"WEBHOOK_ALLOW_INTERNAL": text}).webhook_allow_internal is value


def test_opening_the_network_to_webhooks_is_warned_about():
    assert "WEBHOOK_ALLOW_INTERNAL is on" in Config(webhook_allow_internal=True).warnings()[0]


@pytest.mark.parametrize("name", ["AUTH_TOKENS", "AUTH_TOKENS_READ", "AUTH_TOKENS_PRODUCE", "AUTH_TOKENS_WORK"])
def test_tokens_of_any_role_open_the_server_to_the_network(name):
    config = Config.from_environment({name: "t"})

    assert config.has_tokens
    assert config.bind_host == "0.0.0.0"
    assert not config.is_open_to_strangers


def test_metrics_behind_tokens_need_tokens():
    assert problems_of({"METRICS_AUTH": "on"}) == ["METRICS_AUTH: there are no AUTH_TOKENS to present"]
    assert Config.from_environment({"METRICS_AUTH": "off"}) == Config()


@pytest.mark.parametrize(("given", "missing"), [("TLS_CERT_FILE", "TLS_KEY_FILE"), ("TLS_KEY_FILE", "TLS_CERT_FILE")])
def test_half_of_tls_is_no_tls(given, missing):
    assert problems_of({given: "x.pem"}) == [f"{missing}: TLS misconfigured: {given} is set but {missing} is missing"]
    assert not Config.from_environment({given: ""}).has_tls
