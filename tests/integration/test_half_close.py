"""A client that closes its half of the connection still gets what it asked for."""

import socket

import pytest

from tests.process import Client, ServerProcess, frame


@pytest.mark.slow
def test_replies_that_wait_for_a_commit_arrive_after_a_half_close(server: ServerProcess) -> None:
    with socket.create_connection(("127.0.0.1", server.tcp_port), timeout=10) as sock:
        sock.sendall(frame({"cmd": "PUSH", "queue": "q", "data": 1, "jobId": "a", "durable": True, "reqId": "1"}))
        sock.shutdown(socket.SHUT_WR)
        received = b""
        while chunk := sock.recv(65_536):
            received += chunk

    assert b"\xa2ok\xc3" in received
    with Client(server.tcp_port) as client:
        assert client.state("a") == "waiting"
