"""Too many connections. What else one client can do to the others, which is nothing, is in `tests/chaos`.

Source: protocol, "Framing and connection".
"""

from __future__ import annotations

import pytest

from tests.process import ServerProcess, StartServer, wait_until


@pytest.mark.slow
def test_connections_beyond_the_limit_get_one_error_and_the_others_go_on(start_server: StartServer) -> None:
    server = start_server(MAX_CONNECTIONS=5)
    clients = [server.connect() for _ in range(5)]
    try:
        for client in clients:
            client.ok("Ping")
        with server.connect() as refused:
            assert (refused.receive() or {}).get("error") == "Too many connections"
            assert refused.is_cut_off()
        for client in clients:
            client.ok("PUSH", queue="q", data=1)
        clients.pop().close()
        wait_until(lambda: can_connect(server), "a place is free again")
    finally:
        for client in clients:
            client.close()


def can_connect(server: ServerProcess) -> bool:
    with server.connect() as client:
        try:
            return client.call("Ping")["ok"] is True
        except (KeyError, OSError):
            return False
