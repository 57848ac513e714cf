"""The probes over the life of a server: start, drain, end. Source: R255 to R263, R280, K51; field report H3."""

from __future__ import annotations

import http.client
import json
import signal

import pytest

from tests.process import Client, ServerProcess, StartServer, wait_until

PROBES = ("/health", "/healthz", "/live", "/ready")


@pytest.mark.slow
def test_all_probes_are_good_while_serving_and_need_no_token(start_server: StartServer) -> None:
    server = start_server(AUTH_TOKENS="secret-token")
    with server.connect(token="secret-token") as client:
        client.ok("PUSHB", queue="q", jobs=[{"data": 1}, {"data": 2}, {"data": 3, "delay": 60_000}])
        client.ok("PULL", queue="q", owner="w")

        answers = {path: server.get(path) for path in PROBES}
        health = server.health()

    assert {status for status, _ in answers.values()} == {200}
    assert answers["/live"][1] == answers["/healthz"][1] == b"OK"
    assert json.loads(answers["/ready"][1]) == {"ok": True, "ready": True}
    assert (health["ok"], health["status"]) == (True, "healthy")
    assert health["queues"] == {"waiting": 1, "active": 1, "delayed": 1, "completed": 0, "dlq": 0}
    assert health["connections"]["tcp"] == 1
    assert all(b"secret" not in body for _, body in answers.values())
    assert "secret" not in server.log
    assert server.get("/nothing")[0] == 401  # whether it exists is nobody's business without a token


@pytest.mark.slow
def test_during_the_drain_an_open_probe_connection_is_answered_and_new_ones_are_refused(
    server: ServerProcess, client: Client
) -> None:
    client.ok("PUSH", queue="q", data=1, jobId="a")
    token = client.ok("PULL", queue="q", owner="w")["token"]
    probe = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=30)
    try:
        assert ask(probe, "/live") == 200
        server.signal(signal.SIGTERM)
        wait_until(lambda: "Waiting for" in server.log, "the drain has begun")

        assert ask(probe, "/live") == 200
        assert ask(probe, "/ready") == 503
        with pytest.raises(OSError, match="refused"):
            server.get("/live")
        client.ok("ACK", id="a", token=token)
        assert server.wait_exit() == 0
    finally:
        probe.close()


def ask(connection: http.client.HTTPConnection, path: str) -> int:
    connection.request("GET", path)
    response = connection.getresponse()
    response.read()
    return response.status


@pytest.mark.slow
def test_an_idle_probe_connection_does_not_hold_up_the_end(server: ServerProcess) -> None:
    probe = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=30)
    try:
        assert ask(probe, "/live") == 200
        server.signal(signal.SIGTERM)

        assert server.wait_exit(15) == 0  # of a timeout of thirty seconds
    finally:
        probe.close()
