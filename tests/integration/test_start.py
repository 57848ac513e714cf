"""What keeps a server from starting: exit code, what it says, and that nothing else has happened.

Source: R336 to R340, PD-7, PD-8, PD-20, PD-24; field report S3.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.process import ROOT, ServerProcess, StartServer


def run(directory: Path, *arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """Run a server that is expected to end by itself."""
    environment = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME", "LANG")}
    environment |= {"PYTHONPATH": str(ROOT), "TCP_PORT": "0", "HTTP_PORT": "0"} | settings
    return subprocess.run(
        [sys.executable, "-m", "bunqueue_trio", *arguments],
        cwd=directory, env=environment, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


@pytest.mark.slow
def test_malformed_settings_end_it_before_anything_is_opened(tmp_path: Path) -> None:
    ended = run(
        tmp_path, TCP_PORT="65536", SHUTDOWN_TIMEOUT_MS="soon", LOG_LEVEL="loud", MAX_CONNECTIONS="0", AUTH_TOKENS=" , "
    )

    assert ended.returncode == 2
    lines = ended.stderr.splitlines()
    assert sorted(line.partition(":")[0] for line in lines) == [
        "AUTH_TOKENS", "LOG_LEVEL", "MAX_CONNECTIONS", "SHUTDOWN_TIMEOUT_MS", "TCP_PORT",
    ]  # fmt: skip
    assert 'TCP_PORT: "65536" is not a port between 0 and 65535 (0: any free one)' in lines
    assert ended.stdout == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [("--nonsense",), ("start", "--tcp-port"), ("fly",), ("start", "extra")])
def test_unknown_flags_and_commands_are_a_usage_error(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    ended = run(tmp_path, *arguments)

    assert ended.returncode == 2
    assert "Traceback" not in ended.stderr
    assert list(tmp_path.iterdir()) == []


def _not_a_database(path: Path) -> None:
    path.write_text("these are somebody's notes, not jobs\n" * 200)


def _folder(path: Path) -> None:
    path.mkdir()


def _overwritten_header(path: Path) -> None:
    path.write_bytes(os.urandom(8_192))


@pytest.mark.slow
@pytest.mark.parametrize("damage", [_not_a_database, _folder, _overwritten_header])
def test_an_unusable_data_file_ends_it_with_one_line(tmp_path: Path, damage) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "jobs.db"
    damage(path)
    before = path.read_bytes() if path.is_file() else None

    ended = run(tmp_path, BUNQUEUE_DATA_PATH=str(path))

    assert ended.returncode == 1
    assert len(ended.stderr.splitlines()) == 1, ended.stderr
    assert str(path) in ended.stderr
    assert (path.read_bytes() if path.is_file() else None) == before


@pytest.mark.slow
def test_a_folder_that_is_not_there_ends_it_with_one_line(tmp_path: Path) -> None:
    ended = run(tmp_path, BUNQUEUE_DATA_PATH=str(tmp_path / "no" / "such" / "jobs.db"))

    assert ended.returncode == 1
    assert len(ended.stderr.splitlines()) == 1, ended.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["TCP_PORT", "HTTP_PORT"])
def test_a_port_that_is_taken_ends_it_with_one_line(tmp_path: Path, name: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])

        ended = run(tmp_path, BUNQUEUE_DATA_PATH=str(tmp_path / "jobs.db"), **{name: port})

    assert ended.returncode == 1
    assert len(ended.stderr.splitlines()) == 1, ended.stderr
    assert "already in use" in ended.stderr
    assert not (tmp_path / "jobs.db-wal").exists()


@pytest.mark.slow
def test_a_second_server_on_the_same_file_is_refused_under_every_name(server: ServerProcess, tmp_path: Path) -> None:
    with server.connect() as client:
        client.ok("PUSH", queue="q", data=1, jobId="a", durable=True)
        os.symlink(server.data_path, tmp_path / "symlink.db")
        os.link(server.data_path, tmp_path / "hardlink.db")
        for name in (str(server.data_path), "jobs.db", "./x/../jobs.db", "symlink.db", "hardlink.db"):
            (tmp_path / "x").mkdir(exist_ok=True)
            ended = run(tmp_path, BUNQUEUE_DATA_PATH=name)

            assert ended.returncode == 1, (name, ended)
            assert "another bunqueue server is using it" in ended.stderr, (name, ended.stderr)
            assert len(ended.stderr.splitlines()) == 1, ended.stderr
        assert client.state("a") == "waiting"
        client.ok("PUSH", queue="q", data=2, jobId="b", durable=True)
    server.crash_and_restart()
    with server.connect() as client:
        assert client.ok("Count", queue="q")["count"] == 2
    server.assert_no_faults()


@pytest.mark.slow
def test_an_empty_file_is_a_new_database(start_server: StartServer, tmp_path: Path) -> None:
    (tmp_path / "jobs.db").touch()

    server = start_server()

    with server.connect() as client:
        client.ok("PUSH", queue="q", data=1, durable=True)
    server.restart()
    with server.connect() as client:
        assert client.ok("Count", queue="q")["count"] == 1


@pytest.mark.slow
def test_the_banner_says_where_the_data_is(tmp_path: Path) -> None:
    # SIGINT before the end of the start-up would be the shells' 130; so the port is taken to end it.
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        ended = run(tmp_path, TCP_PORT=str(taken.getsockname()[1]))

    assert "./bunqueue.db" in ended.stdout
