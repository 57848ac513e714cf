"""A real server process and a raw client, for tests that need the whole thing: signals, kills, sockets, disks.

The server runs in a process group of its own, on free loopback ports that it keeps over restarts, with its log in a
file. The client blocks, and matches replies by ``reqId``. Waits poll, with deadlines far beyond what a slow machine
needs.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgpack
import pytest

from bunqueue_trio.config import SETTINGS
from tests import warm

ROOT = Path(__file__).parent.parent
PATIENCE_S = 60.0
POLL_S = 0.02
FAULTS = ("Traceback", "Internal error in a command", "Server crashed")


def wait_until(condition: Callable[[], Any], what: str, timeout_s: float = PATIENCE_S) -> Any:
    """Poll *condition* until it is truthy, and return that value; an AssertionError names *what* did not happen."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {timeout_s:.0f} s: {what}"
        time.sleep(POLL_S)
    return value


class ServerProcess:
    """One server: started, stopped, killed and started again on the same file and ports.

    Args:
        directory: where the log and, unless *data_path* says otherwise, the data file are; also the working directory.
        data_path: as given to the server.
        prefix: a command that runs the server, such as a shell that sets limits.
        settings: environment variables.
    """

    def __init__(
        self,
        directory: Path,
        *,
        data_path: str | Path | None = None,
        prefix: Sequence[str] = (),
        **settings: str | int,
    ) -> None:
        self.directory = directory
        self.data_path = Path(directory / "jobs.db" if data_path is None else data_path)
        self.settings = {name: str(value) for name, value in settings.items()}
        self.prefix = list(prefix)
        self.unset: frozenset[str] = frozenset()
        """Variables that the server must not find, although `ServerProcess` usually sets them."""
        self.tcp_port = 0
        self.http_port = 0
        self.log_path = directory / f"server-{id(self):x}.log"
        self._process: subprocess.Popen[bytes] | warm.WarmProcess | None = None
        self._log_start = 0

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(self, *_exc: object) -> None:
        if self.is_running:
            self.kill()

    @property
    def pid(self) -> int:
        """The process id of the current run."""
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the process has not ended yet."""
        return self._process is not None and self._process.poll() is None

    @property
    def log(self) -> str:
        """What all runs have logged."""
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    @property
    def last_log(self) -> str:
        """What the last run has logged."""
        with open(self.log_path, "rb") as log:
            log.seek(self._log_start)
            return log.read().decode(errors="replace")

    # starting

    def launch(self) -> None:
        """Start the process without waiting for it."""
        assert not self.is_running
        self._log_start = self.log_path.stat().st_size if self.log_path.exists() else 0
        environment = self._environment()
        if not self.prefix and warm.is_wanted(environment):
            self.log_path.touch()
            self._process = warm.STARTER.start(env=environment, cwd=self.directory, log=self.log_path)
            return
        with open(self.log_path, "ab") as log:
            self._process = subprocess.Popen(
                [*self.prefix, sys.executable, "-m", "bunqueue_trio"],
                cwd=self.directory,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=0,
            )

    def start(self) -> ServerProcess:
        """Start the process and wait until both ports are open."""
        self.launch()
        started = wait_until(self._find_start, "server started")
        assert isinstance(started, dict), f"the server ended with {self._process and self._process.poll()}:\n{self.log}"
        self.tcp_port = int(started["tcp"].rpartition(":")[2])
        _, _, http_port = started["http"].rpartition(":")
        self.http_port = int(http_port) if http_port.isdigit() else 0  # none behind a Unix socket
        return self

    def _find_start(self) -> dict[str, str] | str | None:
        has_ended = not self.is_running
        for line in self.last_log.splitlines(keepends=True):
            if '"Server started"' in line and line.endswith("\n"):
                data: dict[str, str] = json.loads(line)["data"]
                return data
        return "ended" if has_ended else None

    def _environment(self) -> dict[str, str]:
        ours = {name for setting in SETTINGS for name in (setting.variable, *setting.aliases)}
        environment = {name: value for name, value in os.environ.items() if name not in ours}
        environment |= {
            "TCP_PORT": str(self.tcp_port),
            "HTTP_PORT": str(self.http_port),
            "HOST": "127.0.0.1",
            "BUNQUEUE_DATA_PATH": str(self.data_path),
            "LOG_FORMAT": "json",
            "RATE_LIMIT_MAX_REQUESTS": "1000000000",
            "PYTHONPATH": str(ROOT),
        }
        environment |= self.settings
        return {name: value for name, value in environment.items() if name not in self.unset}

    # ending

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process."""
        os.kill(self.pid, number)

    def wait_exit(self, timeout_s: float = PATIENCE_S) -> int:
        """Wait for the end of the process; its exit code."""
        assert self._process is not None
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the server still runs after {timeout_s:.0f} s:\n{self.log}") from None

    def terminate(self) -> int:
        """SIGTERM, and wait; the exit code."""
        self.signal(signal.SIGTERM)
        return self.wait_exit()

    def kill(self) -> None:
        """SIGKILL, and wait."""
        self.signal(signal.SIGKILL)
        self.wait_exit()

    def restart(self) -> None:
        """An orderly stop, and a start on the same file and ports."""
        assert self.terminate() == 0, self.last_log
        self.start()

    def crash_and_restart(self) -> None:
        """SIGKILL, and a start on the same file and ports."""
        self.kill()
        self.start()

    def assert_no_faults(self) -> None:
        """No run has logged a traceback."""
        faults = [line for line in self.log.splitlines() if any(word in line for word in FAULTS)]
        assert not faults, faults

    # looking

    def connect(self, **options: Any) -> Client:
        """A new raw client."""
        return Client(self.tcp_port, **options)

    def get(self, path: str, timeout_s: float = PATIENCE_S) -> tuple[int, bytes]:
        """GET, as `request`."""
        return self.request("GET", path, timeout_s=timeout_s)

    def request(
        self,
        method: str,
        path: str,
        body: str | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        timeout_s: float = PATIENCE_S,
    ) -> tuple[int, bytes]:
        """One HTTP request on a connection of its own: status and body."""
        connection = http.client.HTTPConnection("127.0.0.1", self.http_port, timeout=timeout_s)
        try:
            connection.request(method, path, body, headers or {})
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def health(self) -> dict[str, Any]:
        """The health report."""
        report: dict[str, Any] = json.loads(self.get("/health")[1])
        return report

    def rss_bytes(self) -> int:
        """Resident memory of the process."""
        pages = Path(f"/proc/{self.pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    def peak_rss_bytes(self) -> int:
        """The most that ever was resident."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) * 1_024

    def cpu_s(self) -> float:
        """Processor time the process has used."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def descriptor_count(self) -> int:
        """How many file descriptors the process has open."""
        return len(os.listdir(f"/proc/{self.pid}/fd"))


def frame(message: Any) -> bytes:
    """One frame as it goes over the wire."""
    return framed(msgpack.packb(message))


def framed(body: bytes) -> bytes:
    """*body* behind its length."""
    return struct.pack(">I", len(body)) + body


class Client:
    """One blocking connection. Replies may come in any order."""

    def __init__(
        self, port: int, *, timeout_s: float = PATIENCE_S, token: str | None = None, receive_buffer: int | None = None
    ) -> None:
        self.socket = socket.socket()
        self.socket.settimeout(timeout_s)
        if receive_buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        try:
            self.socket.connect(("127.0.0.1", port))
        except OSError:
            self.socket.close()
            raise
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = bytearray()
        self._replies: dict[Any, dict[str, Any]] = {}
        self._count = 0
        if token is not None:
            self.ok("Auth", token=token)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    # commands

    def send(self, cmd: str, **fields: Any) -> int:
        """Send one command; the number to `wait` for."""
        return self.send_many([{"cmd": cmd, **fields}])[0]

    def send_many(self, commands: Sequence[Mapping[str, Any]]) -> list[int]:
        """Send several commands in one go; the numbers to `wait` for."""
        first = self._count + 1
        self._count += len(commands)
        numbers = list(range(first, self._count + 1))
        pairs = zip(commands, numbers, strict=True)
        self.send_bytes(b"".join(frame({**command, "reqId": number}) for command, number in pairs))
        return numbers

    def wait(self, number: int) -> dict[str, Any]:
        """The reply to that command."""
        while number not in self._replies:
            reply = self.receive()
            if reply is None:
                raise ConnectionError("the server closed the connection")
            self._replies[reply.get("reqId")] = reply
        return self._replies.pop(number)

    def call(self, cmd: str, **fields: Any) -> dict[str, Any]:
        """One command and its reply."""
        return self.wait(self.send(cmd, **fields))

    def ok(self, cmd: str, **fields: Any) -> dict[str, Any]:
        """One command that must be answered ok."""
        reply = self.call(cmd, **fields)
        assert reply["ok"] is True, (cmd, fields, reply)
        return reply

    def error(self, cmd: str, **fields: Any) -> str:
        """One command that must be refused; the reason."""
        reply = self.call(cmd, **fields)
        assert reply["ok"] is False, (cmd, fields, reply)
        return str(reply["error"])

    def call_many(self, commands: Sequence[Mapping[str, Any]], at_once: int = 500) -> list[dict[str, Any]]:
        """Pipeline commands, *at_once* in flight; replies in the order of the commands."""
        replies = []
        for start in range(0, len(commands), at_once):
            numbers = self.send_many(commands[start : start + at_once])
            replies += [self.wait(number) for number in numbers]
        return replies

    def state(self, job_id: str) -> str:
        """The state of a job."""
        return str(self.ok("GetState", id=job_id)["state"])

    # bytes

    def send_bytes(self, data: bytes) -> None:
        """Send raw bytes."""
        self.socket.sendall(data)

    def receive(self) -> dict[str, Any] | None:
        """The next reply, whatever it answers; None when the connection has ended."""
        body = self.receive_body()
        if body is None:
            return None
        reply: dict[str, Any] = msgpack.unpackb(body, strict_map_key=False)
        return reply

    def receive_body(self) -> bytes | None:
        """The bytes of the next frame; None when the connection has ended."""
        while len(self._buffer) < 4 or len(self._buffer) < 4 + struct.unpack_from(">I", self._buffer)[0]:
            try:
                data = self.socket.recv(262_144)
            except (ConnectionResetError, BrokenPipeError):
                data = b""
            if not data:
                return None
            self._buffer += data
        end = 4 + struct.unpack_from(">I", self._buffer)[0]
        body = bytes(self._buffer[4:end])
        del self._buffer[:end]
        return body

    def is_cut_off(self) -> bool:
        """Read until the end of the connection, whatever comes on the way; False when it does not end in time."""
        try:
            while self.receive_body() is not None:
                pass
        except TimeoutError:
            return False
        return True

    def flood(self, data: bytes, timeout_s: float = PATIENCE_S) -> None:
        """Send *data* again and again and never read, until the server has cut the connection."""
        deadline = time.monotonic() + timeout_s
        try:
            while time.monotonic() < deadline:
                self.send_bytes(data)
        except OSError:
            pass

    def close(self) -> None:
        """Close in order."""
        self.socket.close()

    def reset(self) -> None:
        """Cut the connection, as a process that dies does."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()


StartServer = Callable[..., ServerProcess]


@pytest.fixture
def start_server(tmp_path: Path) -> Iterator[StartServer]:
    """A function that starts a server; its arguments are those of `ServerProcess`. None outlives the test."""
    with ExitStack() as running:

        def start(directory: Path = tmp_path, **options: Any) -> ServerProcess:
            return running.enter_context(ServerProcess(directory, **options)).start()

        yield start


@pytest.fixture
def server(start_server: StartServer) -> ServerProcess:
    """A running server with the settings that a user gets."""
    return start_server()


@pytest.fixture
def client(server: ServerProcess) -> Iterator[Client]:
    """A connection to `server`."""
    with server.connect() as connected:
        yield connected
