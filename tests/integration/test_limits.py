"""What one client can do to the others: nothing. Floods, strangers, stalled and broken frames, too many connections.

Source: protocol, "Framing and connection", P-2; requirement on bad input.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Iterator
from typing import Any

import msgpack
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.process import Client, ServerProcess, StartServer, frame, framed, wait_until

MIB = 1024 * 1024


def is_cut_off(client: Client) -> bool:
    """Read until the end of the connection; replies on the way do not matter."""
    try:
        while client.receive_body() is not None:
            pass
    except TimeoutError:
        return False
    return True


@pytest.mark.slow
def test_a_client_that_does_not_read_is_dropped_at_the_write_budget_and_others_go_on(start_server: StartServer) -> None:
    server = start_server(TCP_MAX_WRITE_QUEUE_BYTES=4 * MIB)
    with server.connect() as good, server.connect(receive_buffer=8_192) as flooding:
        good.ok("PUSH", queue="big", data="x" * 100_000, jobId="big")
        good.ok("PUSH", queue="held", data=1, jobId="held", backoff=0)
        assert flooding.ok("PULL", queue="held", owner="f")["job"]["id"] == "held"
        before = server.rss_bytes()
        flood = threading.Thread(target=send_until_refused, args=(flooding, frame({"cmd": "GetJob", "id": "big"})))
        flood.start()
        for number in range(50):
            good.ok("PUSH", queue="q", data=number, durable=True)
        flood.join()

        wait_until(lambda: "write queue exceeded budget" in server.log, "the flood is dropped")
        assert is_cut_off(flooding)
        wait_until(lambda: good.state("held") == "waiting", "its job is released")
        assert good.ok("Count", queue="q")["count"] == 50
        assert server.rss_bytes() - before < 64 * MIB
    server.assert_no_faults()


def send_until_refused(client: Client, data: bytes, seconds: float = 60.0) -> None:
    """Send and never read, until the server has cut the connection."""
    deadline = time.monotonic() + seconds
    try:
        while time.monotonic() < deadline:
            client.send_bytes(data * 50)
    except OSError:
        pass


@pytest.mark.slow
def test_five_hundred_commands_in_flight_are_all_answered(client: Client) -> None:
    commands: list[dict[str, Any]] = []
    for number in range(125):
        commands += [
            {"cmd": "PUSH", "queue": "q", "data": number, "jobId": f"j{number}", "durable": number % 2 == 0},
            {"cmd": "GetState", "id": f"j{number}"},
            {"cmd": "Ping"},
            {"cmd": "Nonsense"},
        ]

    replies = client.call_many(commands)

    assert [reply["ok"] for reply in replies] == [True, True, True, False] * 125
    assert {reply["state"] for reply in replies[1::4]} == {"waiting"}
    assert client.ok("Count", queue="q")["count"] == 125


@pytest.mark.slow
def test_a_stranger_may_not_send_a_large_frame(start_server: StartServer) -> None:
    server = start_server(AUTH_TOKENS="secret")
    for length, error in (
        (65_537, "Not authenticated"),
        (70_000_000, "Frame too large: 70000000 bytes exceeds maximum 67108864"),
    ):
        with server.connect() as stranger:
            stranger.send_bytes(struct.pack(">I", length))
            reply = stranger.receive()

            assert reply is not None
            assert (reply["ok"], reply["error"]) == (False, error)
            assert is_cut_off(stranger)
    with server.connect() as stranger:  # the largest legal one is read, refused, and the connection stays
        stranger.send_bytes(framed(msgpack.packb({"cmd": "PUSH", "data": "x" * 65_000}).ljust(65_536, b"\xc0")))
        assert stranger.receive() is not None
        assert stranger.error("Ping") == "Not authenticated"
        stranger.ok("Auth", token="secret")
        stranger.ok("PUSH", queue="q", data="x" * 1_000_000)
    server.assert_no_faults()


@pytest.mark.slow
def test_strangers_cannot_make_the_server_hold_memory(start_server: StartServer) -> None:
    server = start_server(AUTH_TOKENS="secret")
    with server.connect(token="secret") as good:
        before = server.rss_bytes()
        strangers = [server.connect() for _ in range(200)]
        try:
            for stranger in strangers:
                stranger.send_bytes(struct.pack(">I", 65_536) + b"\x01" * 65_000)
            for _ in range(20):
                good.ok("PUSH", queue="q", data=1, durable=True)
            # 64 KiB each, and as much again for what an allocator makes of it.
            assert server.rss_bytes() - before < 200 * 2 * 65_536 + 8 * MIB
        finally:
            for stranger in strangers:
                stranger.close()
        with server.connect(receive_buffer=8_192) as flooding:
            send_until_refused(flooding, frame({"cmd": "Ping", "reqId": "x" * 1_000}))
            assert is_cut_off(flooding)
        assert server.rss_bytes() - before < 200 * 2 * 65_536 + 8 * MIB
        good.ok("Ping")
    server.assert_no_faults()


@pytest.mark.slow
def test_a_stalled_frame_is_cut_and_an_idle_or_slow_but_honest_client_is_not(start_server: StartServer) -> None:
    server = start_server(TCP_IDLE_TIMEOUT_MS=1_000)
    idle, stalled, header, trickling, honest = (server.connect(timeout_s=20) for _ in range(5))
    try:
        idle.ok("Ping")
        stalled.ok("Ping")
        stalled.send_bytes(frame({"cmd": "Ping"})[:-1])
        header.send_bytes(b"\0")
        cut_off = threading.Event()

        def trickle() -> None:
            data = frame({"cmd": "PUSH", "queue": "q", "data": "x" * 4_000})
            try:
                for byte in data:
                    trickling.send_bytes(bytes([byte]))
                    time.sleep(0.1)
            except OSError:
                cut_off.set()

        thread = threading.Thread(target=trickle, daemon=True)
        thread.start()
        body = frame({"cmd": "PUSH", "queue": "q", "data": "x" * 60_000, "reqId": 1})
        for start in range(0, len(body), 6_000):
            honest.send_bytes(body[start : start + 6_000])
            time.sleep(0.4)

        assert (honest.receive() or {})["ok"] is True
        assert is_cut_off(stalled)
        assert is_cut_off(header)
        assert cut_off.wait(20)
        idle.ok("Ping")
        thread.join()
    finally:
        for client in (idle, stalled, header, trickling, honest):
            client.close()
    assert "Closing stalled connection" in server.log


@pytest.mark.slow
def test_connections_beyond_the_limit_get_one_error_and_the_others_go_on(start_server: StartServer) -> None:
    server = start_server(MAX_CONNECTIONS=5)
    clients = [server.connect() for _ in range(5)]
    try:
        for client in clients:
            client.ok("Ping")
        with server.connect() as refused:
            assert (refused.receive() or {}).get("error") == "Too many connections"
            assert is_cut_off(refused)
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


# bytes that are not ours


@pytest.fixture(scope="module")
def lasting_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One server for all examples; it must still be sound after the last."""
    with ServerProcess(tmp_path_factory.mktemp("random")) as server:
        server.start()
        yield server
        server.assert_no_faults()
        assert server.health()["status"] == "healthy"
        assert server.terminate() == 0


NAMES = [
    *("PUSH", "PUSHB", "PULL", "PULLB", "ACK", "ACKB", "FAIL", "JobHeartbeatB", "ExtendLocks", "Progress", "GetJob"),
    *("GetState", "Cancel", "SetStallConfig", "RegisterWorker", "Heartbeat", "Auth", "Dlq", "Pause", "GetJobCounts"),
]
FIELDS = [
    *(
        "queue",
        "data",
        "id",
        "ids",
        "tokens",
        "token",
        "jobs",
        "count",
        "owner",
        "lockTtl",
        "jobId",
        "delay",
        "backoff",
    ),
    *("dependsOn", "timeout", "durations", "config", "progress", "results", "error", "stack", "name", "queues"),
]
ATOMS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=20)
    | st.binary(max_size=20)
)
KEYS = st.text(max_size=5)
SHALLOW = ATOMS | st.lists(ATOMS, max_size=4) | st.dictionaries(KEYS, ATOMS, max_size=4)
VALUES = SHALLOW | st.lists(SHALLOW, max_size=3) | st.dictionaries(KEYS, SHALLOW, max_size=3)
COMMANDS = st.builds(
    lambda cmd, fields: frame({"cmd": cmd, **fields}),
    st.sampled_from(NAMES),
    st.dictionaries(st.sampled_from(FIELDS), VALUES | st.sampled_from(["q", "a"]), max_size=6),
)
BYTES = st.binary(max_size=300)
PIECES = st.lists(COMMANDS | BYTES | BYTES.map(framed), min_size=1, max_size=8)


@pytest.mark.slow
@settings(
    max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
@given(pieces=PIECES)
def test_a_random_byte_stream_never_stops_the_server(lasting_server: ServerProcess, pieces: list[bytes]) -> None:
    with lasting_server.connect() as wild:
        try:
            wild.send_bytes(b"".join(pieces))
            wild.socket.shutdown(socket.SHUT_WR)
            while wild.receive_body() is not None:
                pass
        except OSError:
            pass  # cut off for an oversize frame

    assert lasting_server.is_running, lasting_server.log
    with lasting_server.connect() as good:
        good.ok("Ping")
