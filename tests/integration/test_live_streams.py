"""Live streams of a real process, over real sockets: clients that do not read, and the frames of WebSockets."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from wsproto.extensions import PerMessageDeflate

from tests.certificates import Certificate
from tests.integration.test_http import ask
from tests.live_clients import Door, EventReader, WebSocketClient, dial
from tests.process import Client, ServerProcess, StartServer, wait_until

pytestmark = pytest.mark.slow

STUCK = 20
ERROR = "x" * 20_000  # carried by each event of a failure
SMALL = 4_096  # of what the kernel takes for a client that does not read


@pytest.fixture
def clients() -> Iterator[ExitStack]:
    """Closes what is opened."""
    with ExitStack() as stack:
        yield stack


def connections(server: ServerProcess) -> dict[str, int]:
    counts: dict[str, int] = ask(server, "GET", "/health")[1]["connections"]
    return counts


def fail_jobs(client: Client, count: int) -> list[float]:
    """Fail so many jobs, each with a long error; how long each failure took, in seconds."""
    times = []
    for _ in range(count):
        client.ok("PUSH", queue="q", data=1, maxAttempts=1)
        job = client.ok("PULL", queue="q", owner="w")
        began = time.monotonic()
        client.ok("FAIL", id=job["job"]["id"], token=job["token"], error=ERROR)
        times.append(time.monotonic() - began)
    return times


def test_who_never_reads_is_dropped_and_slows_nobody(server: ServerProcess, client: Client, clients: ExitStack) -> None:
    port = server.http_port
    reader = clients.enter_context(EventReader(port))
    for _ in range(STUCK):
        clients.enter_context(EventReader(port, receive_bytes=SMALL))
    for _ in range(3):
        clients.enter_context(WebSocketClient(port, receive_bytes=SMALL))
    assert connections(server) == {"tcp": 1, "ws": 3, "sse": STUCK + 1}
    failures = 0
    times: list[float] = []

    while connections(server)["sse"] > 1:
        times += fail_jobs(client, 50)
        for _ in range(50):
            assert reader.event("job:failed")["error"] == ERROR
        failures += 50
        assert failures <= 1_000, "nobody was dropped"

    assert sorted(times)[len(times) // 2] < 0.1
    assert connections(server) == {"tcp": 1, "ws": 3, "sse": 1}
    began = time.monotonic()
    assert server.terminate() == 0
    assert time.monotonic() - began < 5, "somebody who does not read holds up the stop"


def test_frames_of_a_websocket(server: ServerProcess, client: Client, clients: ExitStack) -> None:
    offers = [PerMessageDeflate()]
    socket = clients.enter_context(
        WebSocketClient(server.http_port, "/ws/queues/q", extensions=offers, subprotocols=["one", "two"])
    )
    assert socket.accepted is not None
    assert socket.accepted.extensions == []
    assert socket.accepted.subprotocol == "one"

    socket.send(json.dumps({"cmd": "Ping", "reqId": "t"}).encode())  # binary is read as text
    assert socket.receive()["reqId"] == "t"
    socket.send(" " * ((1 << 20) - 2) + "{}")
    assert socket.receive() == {"ok": False, "error": "Invalid command"}
    client.ok("PUSH", queue="q", data=1)
    assert socket.receive()["eventType"] == "pushed"
    assert socket.call("PULL", queue="q", owner="w")["job"]["data"] == 1
    socket.send(" " * (1 << 20) + "{}")
    socket.drain()

    assert socket.closed == (1009, "Received too big message")
    wait_until(lambda: client.ok("Count", queue="q")["count"] == 1, "the job to be released")


@pytest.mark.parametrize("kind", ["TLS", "Unix socket"])
def test_streams_behind_the_other_doors(
    start_server: StartServer, clients: ExitStack, tmp_path: Path, kind: str
) -> None:
    path = str(tmp_path / "http.sock")
    certificate = Certificate(tmp_path) if kind == "TLS" else None
    server = start_server(**(certificate.settings if certificate else {"HTTP_SOCKET_PATH": path}))

    def door() -> Door:
        if certificate is None:
            return path
        return certificate.client_context().wrap_socket(dial(server.http_port), server_hostname="localhost")

    reader = clients.enter_context(EventReader(door()))
    greedy = clients.enter_context(WebSocketClient(door()))
    other = clients.enter_context(WebSocketClient(door()))
    for number in range(200):  # fifty are parked, fifty wait behind them, and then the server stops reading
        greedy.send({"cmd": "PULL", "queue": "q", "owner": "w", "timeout": 60_000, "reqId": number})
    time.sleep(0.3)
    greedy.close()
    time.sleep(1)

    assert other.call("PUSH", queue="q", data=1, jobId="a")["ok"]
    assert reader.event("job:pushed")["jobId"] == "a"
    assert other.call("GetState", id="a")["state"] == "waiting"
    assert server.terminate() == 0
    server.assert_no_faults()


def test_streams_end_with_the_stop(server: ServerProcess, clients: ExitStack) -> None:
    reader = clients.enter_context(EventReader(server.http_port))
    socket = clients.enter_context(WebSocketClient(server.http_port))
    reader.block()

    assert server.terminate() == 0

    with pytest.raises(EOFError):
        reader.block()
    socket.drain()
    assert socket.closed in (None, (1006, None))
