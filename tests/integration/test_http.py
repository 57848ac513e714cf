"""HTTP and TLS of a real process: over real sockets, with clients that leave or send too much."""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.certificates import Certificate
from tests.live_clients import WebSocketClient
from tests.process import Client, ServerProcess, StartServer, wait_until

pytestmark = pytest.mark.slow


@pytest.fixture
def certificate(tmp_path: Path) -> Certificate:
    return Certificate(tmp_path)


def ask(server: ServerProcess, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
    """One request on a connection of its own: status and decoded body."""
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=60)
    try:
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        response = connection.getresponse()
        return response.status, json.loads(response.read() or b"null")
    finally:
        connection.close()


def begin(server: ServerProcess, request: bytes) -> socket.socket:
    """A request whose answer is not waited for."""
    open_socket = socket.create_connection(("127.0.0.1", server.http_port), 60)
    open_socket.sendall(request + b" HTTP/1.1\r\nHost: x\r\n\r\n")
    return open_socket


def test_http_and_tcp_see_the_same_queue(server: ServerProcess, client: Client) -> None:
    status, made = ask(server, "POST", "/queues/q/jobs", {"data": {"to": "ü"}})
    pulled = client.ok("PULL", queue="q", owner="w")
    ask(server, "POST", f"/jobs/{made['id']}/ack", {"result": [1], "token": pulled["token"]})

    assert status == 200
    assert pulled["job"]["data"] == {"to": "ü"}
    assert client.ok("GetResult", id=made["id"])["result"] == [1]


@pytest.mark.parametrize("more", [b"", b"\n", b"GET /ping HTTP/1.1\r\nHost: x\r\n\r\n"])
def test_a_client_that_leaves_its_long_poll_gets_no_job(server: ServerProcess, client: Client, more: bytes) -> None:
    poll = begin(server, b"GET /queues/q/jobs?timeout=60000")
    poll.sendall(more)
    time.sleep(0.3)
    poll.close()
    time.sleep(1 if more else 0.3)

    client.ok("PUSH", queue="q", data=1, jobId="a")

    assert client.ok("GetState", id="a")["state"] == "waiting"
    status, pulled = ask(server, "GET", "/queues/q/jobs")
    assert (status, pulled["job"]["id"], pulled["job"]["attempts"]) == (200, "a", 0)


def test_a_long_poll_outlasts_the_limit_for_idle_connections(server: ServerProcess) -> None:
    began = time.monotonic()

    assert ask(server, "GET", "/queues/q/jobs?timeout=12500") == (200, {"ok": True, "job": None})
    assert time.monotonic() - began >= 12.4


def test_a_stop_answers_long_polls_and_refuses_pushes(server: ServerProcess, client: Client) -> None:
    client.ok("PUSH", queue="other", data=1, jobId="held")
    token = client.ok("PULL", queue="other", owner="w")["token"]
    kept = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=60)
    kept.request("GET", "/ping")
    kept.getresponse().read()
    with begin(server, b"GET /queues/q/jobs?timeout=60000") as poll:
        time.sleep(0.3)
        server.signal(15)  # SIGTERM

        answer = b""
        while not answer.endswith(b'{"ok":true,"job":null}'):
            answer += (piece := poll.recv(65_536))
            assert piece, answer
    kept.request("POST", "/queues/q/jobs", '{"data":1}')
    refused = kept.getresponse()
    assert (refused.status, json.loads(refused.read())["error"]) == (400, "Server is shutting down")
    kept.close()
    client.ok("ACK", id="held", token=token)
    assert server.wait_exit() == 0


def test_a_body_beyond_all_bounds_is_refused_unread(server: ServerProcess) -> None:
    before_bytes = server.rss_bytes()
    with socket.create_connection(("127.0.0.1", server.http_port), 60) as stranger:
        stranger.sendall(b"POST /queues/q/jobs HTTP/1.1\r\nHost: x\r\nContent-Length: 134217729\r\n\r\n")
        assert stranger.recv(65_536).startswith(b"HTTP/1.1 413 ")

    assert server.rss_bytes() - before_bytes < 20_000_000


ODD = [
    b"GET /jobs/%ZZ",
    b"GET /jobs/a%00b",
    b"GET /\xff",
    b"BREW /queues",
    b"GET *",
    b"GET ?x",
    b"GET #",
    b"GET http://[",
]


@pytest.mark.parametrize("target", ODD)
def test_odd_targets_get_an_answer(server: ServerProcess, target: bytes) -> None:
    with begin(server, target) as odd:
        assert odd.recv(65_536).startswith(b"HTTP/1.1 4")
    server.assert_no_faults()


@pytest.mark.parametrize("target", ["http://[/ws", "?x", "*", "//[/ws"])
def test_a_websocket_to_an_odd_target_is_refused(server: ServerProcess, target: str) -> None:
    with WebSocketClient(server.http_port, target) as odd:
        assert odd.refused in (400, 404)
    server.assert_no_faults()


def test_encoded_slashes_and_dots_arrive_as_they_were_sent(server: ServerProcess, client: Client) -> None:
    client.ok("PUSH", queue="q", data=1, jobId="a/b")

    assert ask(server, "GET", "/jobs/a%2Fb")[1]["job"]["id"] == "a/b"
    assert ask(server, "GET", "/jobs/a/b")[0] == 404
    assert ask(server, "GET", "/queues/x/../q/count")[1] == {"ok": True, "count": 1}


# TLS


def test_both_doors_speak_tls_and_nothing_else(start_server: StartServer, certificate: Certificate) -> None:
    server = start_server(**certificate.settings, AUTH_TOKENS="t")
    context = certificate.client_context()

    client = Client(server.tcp_port)
    client.socket = context.wrap_socket(client.socket, server_hostname="localhost")
    with client:
        client.ok("Auth", token="t")
        jobs = [{"data": "x" * 10_000} for _ in range(500)]
        assert len(client.ok("PUSHB", queue="q", jobs=jobs)["ids"]) == 500
        assert len(client.ok("GetJobs", queue="q", limit=500)["jobs"]) == 500  # five megabytes back
    secure = http.client.HTTPSConnection("localhost", server.http_port, timeout=60, context=context)
    secure.request("GET", "/queues/q/count", headers={"Authorization": "Bearer t"})
    assert json.loads(secure.getresponse().read()) == {"ok": True, "count": 500}
    secure.close()
    with pytest.raises((http.client.HTTPException, OSError)):
        ask(server, "GET", "/live")
    with Client(server.tcp_port) as plain, pytest.raises((EOFError, OSError, AssertionError)):
        plain.ok("Ping")
    assert server.terminate() == 0
    server.assert_no_faults()


@pytest.mark.parametrize(
    ("names", "code", "text"),
    [
        (("cert", None), 2, "TLS misconfigured: TLS_CERT_FILE is set but TLS_KEY_FILE is missing"),
        ((None, "key"), 2, "TLS misconfigured: TLS_KEY_FILE is set but TLS_CERT_FILE is missing"),
        (("gone", "key"), 1, "Failed to start server: TLS cert file not found: "),
        (("cert", "gone"), 1, "Failed to start server: TLS key file not found: "),
        (("key", "key"), 1, "Failed to start server: TLS cert file is not PEM: "),
        (("cert", "other_key"), 1, "Failed to start server: TLS cert and key cannot be used "),
        (("cert", "locked_key"), 1, "Failed to start server: TLS cert and key cannot be used "),
    ],
)
def test_bad_files_end_the_start_before_anything_is_opened(
    tmp_path: Path, certificate: Certificate, names: tuple[str | None, str | None], code: int, text: str
) -> None:
    settings = {
        variable: str(getattr(certificate, name, tmp_path / name))
        for variable, name in zip(("TLS_CERT_FILE", "TLS_KEY_FILE"), names, strict=True)
        if name is not None
    }
    server = ServerProcess(tmp_path, **settings)
    try:
        server.launch()
        assert server.wait_exit() == code
    except subprocess.TimeoutExpired:
        server.kill()
        raise

    assert text in server.log
    assert "Traceback" not in server.log
    assert not server.data_path.exists()


def test_an_event_loop_full_of_http_keeps_tcp_alive(server: ServerProcess, client: Client) -> None:
    big = {str(number): number / 2 for number in range(200_000)}
    client.ok("PUSH", queue="big", data=big, jobId="big")
    polls = [begin(server, b"GET /jobs/big") for _ in range(5)]
    try:
        waited = []
        for _ in range(20):
            began = time.monotonic()
            client.ok("Ping")
            waited.append(time.monotonic() - began)
        assert sorted(waited)[10] < 0.5
        for poll in polls:
            wait_until(lambda poll=poll: b"HTTP/1.1 200" in poll.recv(65_536), "the job is shown")
    finally:
        for poll in polls:
            poll.close()
