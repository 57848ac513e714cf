"""Security: Z1, Z3 of the field reports."""

from __future__ import annotations

import http.client
import socket
import ssl
import struct
import time
from pathlib import Path

import pytest

from bunqueue_trio.web.routes import ROUTES
from tests.certificates import Certificate
from tests.process import Client, ServerProcess, StartServer, frame, wait_until

pytestmark = pytest.mark.slow

CROWD = 100
TOKEN = "the-only-token"


def status_of(server: ServerProcess, method: str, path: str, body: bytes = b"", **headers: str) -> int:
    """The status of one request, sent as it is written here."""
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=60)
    try:
        connection.putrequest(method, path, skip_accept_encoding=True)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            connection.putheader(name, value)
        connection.endheaders(body)
        response = connection.getresponse()
        response.read()
        return response.status
    finally:
        connection.close()


def test_z1_bytes_before_and_around_the_handshake_hurt_nobody(start_server: StartServer, tmp_path: Path) -> None:
    certificate = Certificate(tmp_path)
    server = start_server(**certificate.settings, AUTH_TOKENS=TOKEN)
    context = certificate.client_context()
    client = Client(server.tcp_port)
    client.socket = context.wrap_socket(client.socket, server_hostname="localhost")
    client.ok("Auth", token=TOKEN)
    before_bytes = server.rss_bytes()

    crowd = []
    for number in range(CROWD):
        stranger = socket.create_connection(("127.0.0.1", server.tcp_port), 60)
        hello = _client_hello(context)
        words = (frame({"cmd": "Ping"}), hello[:20], hello, b"\x16\x03\x01\x40\x00" + bytes(500), b"")[number % 5]
        stranger.sendall(words)
        if number % 10 == 2:
            stranger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            stranger.close()
        crowd.append(stranger)
    waited_ms = []
    for _ in range(50):
        began = time.monotonic()
        client.ok("Ping")
        waited_ms.append((time.monotonic() - began) * 1000)

    assert sorted(waited_ms)[25] < 100
    assert server.rss_bytes() - before_bytes < CROWD * 500_000
    wait_until(lambda: server.descriptor_count() < 40, "the silent ones are dropped by a deadline", 60)
    client.ok("Ping")
    for stranger in crowd:
        stranger.close()
    client.close()
    server.assert_no_faults()


def _client_hello(context: ssl.SSLContext) -> bytes:
    outgoing = ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost").do_handshake()
    return outgoing.read()


def test_z3_without_a_token_every_route_is_closed(start_server: StartServer) -> None:
    server = start_server(AUTH_TOKENS=TOKEN)
    paths = sorted({route.pattern.replace(":", "") for route in ROUTES} - {"/prometheus"})
    paths += [
        "//queues",
        "/%2e%2e/queues",
        "/queues/../gc",
        "/nope",
        "/events",
        "/ws",
        "/crons",
        "/webhooks",
        "/workers",
    ]

    statuses = {
        (method, path): status_of(server, method, path, b'{"data":1}')
        for path in paths
        for method in ("GET", "HEAD", "POST", "PUT", "DELETE")
    }
    guesses = {status_of(server, "GET", "/queues", Authorization=f"Bearer guess-{number}") for number in range(200)}
    upgrade = status_of(
        server, "GET", "/ws", Connection="Upgrade", Upgrade="websocket",
        **{"Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==", "Sec-WebSocket-Version": "13"},
    )  # fmt: skip

    assert {key: status for key, status in statuses.items() if status != 401} == {}
    assert guesses == {401}
    assert upgrade in (400, 401, 403, 404)
    assert status_of(server, "GET", "/queues", Authorization=f"Bearer {TOKEN}") == 200
    assert TOKEN not in server.log
    server.assert_no_faults()


def test_z3_mixed_auth_is_never_more_open(start_server: StartServer) -> None:
    server = start_server(AUTH_TOKENS=TOKEN, AUTH_TOKENS_READ="reader")
    push = frame({"cmd": "PUSH", "queue": "q", "data": 1, "reqId": 2})
    with server.connect() as wrong:
        wrong.socket.sendall(frame({"cmd": "Auth", "token": "no", "reqId": 1}) + push)
        assert wrong.wait(2) == {"ok": False, "error": "Not authenticated", "reqId": 2}
    with server.connect(token=TOKEN) as right:
        right.socket.sendall(frame({"cmd": "Auth", "token": "no", "reqId": 1}) + push)
        assert right.wait(2)["ok"]
        right.ok("Auth", token="reader")
        assert right.call("PUSH", queue="q", data=1)["error"].startswith("Not permitted for this token")


@pytest.mark.parametrize("content_type", ["application/x-www-form-urlencoded", "text/plain"])
def test_z3_without_tokens_a_page_from_elsewhere_changes_nothing(
    server: ServerProcess, client: Client, content_type: str
) -> None:
    foreign = {"Origin": "https://evil.example", "Content-Type": content_type}
    client.ok("PUSH", queue="q", data=1, jobId="a")

    for method, path in (("POST", "/queues/q/jobs"), ("POST", "/queues/q/obliterate"), ("DELETE", "/jobs/a")):
        assert status_of(server, method, path, b'{"data":1}', **foreign) == 403
    assert status_of(server, "GET", "/queues/q/jobs", **{"Sec-Fetch-Site": "cross-site"}) == 403

    assert client.ok("GetJobCounts", queue="q")["counts"]["waiting"] == 1


def test_z3_an_open_server_says_so_at_its_start(start_server: StartServer) -> None:
    server = start_server(HOST="0.0.0.0")

    assert "without AUTH_TOKENS: anybody who can connect may do anything" in server.log
