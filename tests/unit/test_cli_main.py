"""The executable: which exit code, which line on which stream, and what reaches the server."""

import errno
import re
import socket
import sys
import types

import pytest
import trio

from bunqueue_trio import __version__
from bunqueue_trio.cli.main import main, report_failure
from bunqueue_trio.config import SETTINGS, Config
from bunqueue_trio.errors import CorruptDatabaseError, StartError


class FakeServer:
    """Stands in for `bunqueue_trio.app`: remembers its settings, ends as told."""

    def __init__(self) -> None:
        self.config: Config | None = None
        self.error: BaseException | None = None

    async def run_server(self, config: Config) -> None:
        self.config = config
        await trio.lowlevel.checkpoint()
        if self.error is not None:
            raise self.error


@pytest.fixture
def server(monkeypatch) -> FakeServer:
    for setting in SETTINGS:
        for name in (setting.variable, *setting.aliases):
            monkeypatch.delenv(name, raising=False)
    fake = FakeServer()
    module = types.ModuleType("bunqueue_trio.app")
    module.run_server = fake.run_server
    monkeypatch.setitem(sys.modules, "bunqueue_trio.app", module)
    return fake


def exit_code(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    return ended.value.code or 0


@pytest.mark.parametrize("arguments", [(), ("start",)])
def test_without_flags_the_server_runs_on_the_defaults(server, arguments):
    assert exit_code(*arguments) == 0
    assert server.config == Config()


@pytest.mark.parametrize("command", [(), ("start",)])
def test_flags_reach_the_server_with_and_without_the_command(server, command, monkeypatch):
    monkeypatch.setenv("TCP_PORT", "1")
    monkeypatch.setenv("LOG_LEVEL", "error")
    flags = ("--tcp-port", "7", "--http-port=8", "--host", "::1", "--data-path", "x.db", "--auth-tokens", "a,b")
    flags += ("--tls-cert", "c.pem", "--tls-key", "k.pem")

    assert exit_code(*command, *flags) == 0
    assert server.config == Config(
        tcp_port=7,
        http_port=8,
        host="::1",
        data_path="x.db",
        auth_tokens=("a", "b"),
        tls_cert_file="c.pem",
        tls_key_file="k.pem",
        log_level="error",
    )


def test_malformed_settings_are_told_line_by_line_and_nothing_starts(server, monkeypatch, capsys):
    monkeypatch.setenv("STATS_INTERVAL_MS", "1")

    assert exit_code("--tcp-port", "abc") == 2
    out, err = capsys.readouterr()
    assert server.config is None
    assert out == ""
    assert err.splitlines() == [
        '--tcp-port: "abc" is not a port between 0 and 65535 (0: any free one)',
        'STATS_INTERVAL_MS: "1" is not a whole number of milliseconds between 1000 and 9007199254740992',
    ]


@pytest.mark.parametrize("arguments", [("--bogus",), ("start", "--bogus"), ("start", "extra"), ("bogus",), ("--host",)])
def test_usage_errors_exit_with_2(server, arguments, capsys):
    assert exit_code(*arguments) == 2
    assert server.config is None
    assert "Error: " in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--version", "-v"])
def test_version(server, option, capsys):
    assert exit_code(option) == 0
    assert capsys.readouterr().out == f"bunqueue-trio v{__version__}\n"


def test_help_names_the_command_and_start_help_its_flags(server, capsys):
    assert exit_code("--help") == 0
    assert "start" in capsys.readouterr().out
    assert exit_code("start", "--help") == 0
    shown = capsys.readouterr().out
    assert all(setting.flag in shown for setting in SETTINGS if setting.has_flag)


def banner_items(text: str) -> dict[str, str]:
    """The banner's lines by name. Between the two rules there is a line per item."""
    return dict(line.strip().split(maxsplit=1) for line in text.split("-" * 64)[1].strip().splitlines())


def test_banner_says_where_it_listens_and_what_is_guaranteed(server, capsys):
    exit_code()
    out, err = capsys.readouterr()

    assert f"v{__version__}" in out.splitlines()[0]
    assert out.endswith("-" * 64 + "\n\n")
    assert err == ""
    assert banner_items(out) == {
        "TCP": "127.0.0.1:6789",
        "HTTP": "127.0.0.1:6790",
        "Data": "./bunqueue.db",
        "Auth": "disabled (loopback only; AUTH_TOKENS opens it to the network)",
        "TLS": "disabled",
        "Synchronous": "NORMAL (what was confirmed survives a killed process)",
    }


def test_banner_of_other_settings_and_never_a_token(server, capsys, monkeypatch):
    monkeypatch.setenv("SQLITE_SYNCHRONOUS", "FULL")

    exit_code("--host", "::", "--tcp-port", "0", "--auth-tokens", "hush")

    items = banner_items(out := capsys.readouterr().out)
    assert items["TCP"] == "[::]:0 (any free port)"
    assert items["HTTP"] == "[::]:6790"
    assert items["Auth"] == "enabled"
    assert items["Synchronous"] == "FULL (what was confirmed survives a power cut)"
    assert "hush" not in out


def test_banner_of_a_unix_socket(server, capsys, monkeypatch):
    monkeypatch.setenv("HTTP_SOCKET_PATH", "/run/http.sock")

    exit_code()

    assert banner_items(capsys.readouterr().out)["HTTP"] == "/run/http.sock"


def test_banner_and_warning_of_a_server_in_memory(server, capsys):
    exit_code("--data-path", ":memory:")

    out, err = capsys.readouterr()
    assert banner_items(out)["Data"] == "in-memory"
    assert banner_items(out)["Synchronous"] == "off (in memory nothing survives the process)"
    assert err == "[Server] Running in memory: every job is lost when the process ends\n"


def test_banner_has_no_colours_in_a_pipe(server, capsys):
    exit_code()

    assert "\x1b" not in capsys.readouterr().out


@pytest.mark.parametrize(("no_color", "has_colours"), [(None, True), ("", True), ("1", False), ("0", False)])
def test_banner_has_colours_on_a_terminal_unless_refused(server, capsys, monkeypatch, no_color, has_colours):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    if no_color is None:
        monkeypatch.delenv("NO_COLOR", raising=False)
    else:
        monkeypatch.setenv("NO_COLOR", no_color)

    exit_code()

    assert ("\x1b" in capsys.readouterr().out) is has_colours


def test_json_logs_have_no_banner(server, capsys, monkeypatch):
    monkeypatch.setenv("LOG_FORMAT", "json")

    assert exit_code("--host", "0.0.0.0") == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert re.fullmatch(
        r'\{"timestamp":"[^"]+","level":"warn","component":"Server","message":"Listening on .*"\}\n', out
    )


def wrapped(error: BaseException) -> BaseException:
    """As it arrives from three nested nurseries."""
    for _ in range(3):
        error = BaseExceptionGroup("Exceptions from Trio nursery", [error])
    return error


@pytest.mark.parametrize("wrap", [wrapped, lambda error: error])
@pytest.mark.parametrize(
    ("error", "line"),
    [
        (StartError("queue.db: is a folder"), "queue.db: is a folder"),
        (CorruptDatabaseError("queue.db: file is not a database"), "queue.db: file is not a database"),
        (OSError(errno.EADDRINUSE, "Address already in use"), "Address already in use"),
        (socket.gaierror(-2, "Name or service not known"), "Name or service not known"),
        (StartError("two\nlines"), "two lines"),
    ],
)
def test_a_server_that_cannot_start_says_so_in_one_line(server, capsys, error, line, wrap):
    server.error = wrap(error)

    assert exit_code() == 1
    assert capsys.readouterr().err == f"Failed to start server: {line}\n"


def test_a_crash_is_logged_with_its_traceback(server, capsys):
    server.error = wrapped(ZeroDivisionError("oops"))

    assert exit_code() == 1
    err = capsys.readouterr().err
    assert err.startswith("[Server] Server crashed {")
    assert "ZeroDivisionError: oops" in err
    assert err.count("\n") == 1


def test_an_input_or_output_error_while_running_is_a_crash_and_not_a_failed_start(server, capsys):
    server.error = wrapped(OSError(errno.EIO, "Input/output error"))

    assert exit_code() == 1
    assert capsys.readouterr().err.startswith("[Server] Server crashed {")


@pytest.mark.parametrize("wrap", [wrapped, lambda error: error])
def test_interrupted_before_the_server_took_over_the_signals(server, capsys, wrap):
    server.error = wrap(KeyboardInterrupt())

    assert exit_code() == 130
    assert capsys.readouterr().err == ""


def test_a_start_failure_outranks_what_it_dragged_along(capsys):
    group = BaseExceptionGroup("nursery", [KeyError("x"), BaseExceptionGroup("inner", [StartError("no room")])])

    assert report_failure(group) == 1
    assert capsys.readouterr().err == "Failed to start server: no room\n"
