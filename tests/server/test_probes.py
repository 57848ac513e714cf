"""The probes: what each answers in each condition, through Quart's test client and over a real socket."""

import errno
import json
import socket

import pytest
import trio

from bunqueue_trio.model.health import HealthReport, MemoryUse, QueueTotals, Reason, StorageTrouble, WalUse
from bunqueue_trio.web import serve
from bunqueue_trio.web.probes import ANY_METHOD, MAX_BODY_BYTES, create_app
from bunqueue_trio.web.serve import serve_http

HEALTHY = HealthReport(uptime=6, version="1.2.3", queues=QueueTotals(waiting=2, dlq=1), memory=MemoryUse(rss=49))
DEGRADED = HealthReport(
    ok=False,
    status="degraded",
    uptime=7,
    version="1.2.3",
    wal=WalUse(bytes=4096, checkpoint_age_seconds=3, backlog=12),
    reasons=[Reason(code="storage.diskFull", message="database or disk is full", since=1_795_977_923_427.0)],
    storage=StorageTrouble(disk_full=True, error="database or disk is full", since=1_795_977_923_427.0),
)


class FakeSource:
    """A server in a condition of our choice."""

    def __init__(self, report: HealthReport = HEALTHY, is_ready: bool = True) -> None:
        self.report = report
        self.is_ready = is_ready

    def health(self) -> HealthReport:
        return self.report


class BrokenSource(FakeSource):
    """A server whose report cannot be made."""

    def health(self) -> HealthReport:
        raise RuntimeError("no report today")


def client(source: FakeSource):
    return create_app(source).test_client()


async def test_health_of_a_healthy_server():
    response = await client(FakeSource()).get("/health")

    assert response.status_code == 200
    assert response.headers["content-type"] == "application/json"
    assert json.loads(await response.get_data()) == {
        "ok": True,
        "status": "healthy",
        "uptime": 6,
        "version": "1.2.3",
        "queues": {"waiting": 2, "active": 0, "delayed": 0, "completed": 0, "dlq": 1},
        "connections": {"tcp": 0, "ws": 0, "sse": 0},
        "memory": {"heapUsed": 0, "heapTotal": 0, "rss": 49},
    }


async def test_health_of_a_degraded_server_says_why_and_puts_storage_last():
    response = await client(FakeSource(DEGRADED)).get("/health")
    body = json.loads(await response.get_data())

    assert response.status_code == 503
    assert body["ok"] is False
    assert body["status"] == "degraded"
    assert body["wal"] == {"bytes": 4096, "checkpointAgeSeconds": 3, "backlog": 12}
    assert body["reasons"] == [
        {"code": "storage.diskFull", "message": "database or disk is full", "since": 1_795_977_923_427}
    ]
    assert list(body)[-1] == "storage"
    assert body["storage"] == {"diskFull": True, "error": "database or disk is full", "since": 1_795_977_923_427}


@pytest.mark.parametrize("path", ["/healthz", "/live"])
@pytest.mark.parametrize("source", [FakeSource(), FakeSource(DEGRADED, is_ready=False), BrokenSource()])
async def test_liveness_is_ok_in_any_condition(path, source):
    response = await client(source).get(path)

    assert response.status_code == 200
    assert response.headers["content-type"] == "text/plain;charset=utf-8"
    assert await response.get_data() == b"OK"


@pytest.mark.parametrize(("is_ready", "status"), [(True, 200), (False, 503)])
async def test_readiness_follows_the_server(is_ready, status):
    response = await client(FakeSource(is_ready=is_ready)).get("/ready")

    assert response.status_code == status
    assert json.loads(await response.get_data()) == {"ok": is_ready, "ready": is_ready}


@pytest.mark.parametrize("path", ["/health", "/healthz", "/live", "/ready"])
async def test_probes_answer_any_method(path):
    probe = client(FakeSource())

    answers = {method: (await probe.open(path, method=method)).status_code for method in ANY_METHOD}

    assert answers == dict.fromkeys(ANY_METHOD, 200)


@pytest.mark.parametrize("path", ["/", "/nope", "/health/", "/HEALTH", "/health/x", "/static/x"])
async def test_other_paths_are_not_found(path):
    response = await client(FakeSource()).get(path)

    assert response.status_code == 404
    assert response.headers["content-type"] == "application/json"
    assert await response.get_data() == b'{"ok":false,"error":"Not found"}'


async def test_unknown_method_is_not_found_rather_than_405():
    response = await client(FakeSource()).open("/health", method="BREW")

    assert response.status_code == 404


async def test_query_is_not_part_of_the_route():
    assert (await client(FakeSource()).get("/health?x=1")).status_code == 200


async def test_an_error_in_a_route_is_logged_and_says_nothing_to_the_client(capsys):
    response = await client(BrokenSource()).get("/health")

    assert response.status_code == 500
    assert await response.get_data() == b'{"ok":false,"error":"Internal server error"}'
    logged = capsys.readouterr().err
    assert logged.startswith("[HTTP] Request failed ")
    assert "no report today" in logged


async def http_get(port: int, request: bytes) -> bytes:
    """Everything the server sends back until it closes."""
    stream = await trio.open_tcp_stream("127.0.0.1", port)
    async with stream:
        await stream.send_all(request)
        return b"".join([chunk async for chunk in stream])


async def test_served_over_a_real_socket_until_stopped_without_a_word(capfd):
    stop = trio.Event()
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            port = await nursery.start(serve_http, FakeSource(), "127.0.0.1", 0, stop, 1.0)
            reply = await http_get(port, b"GET /ready HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            stop.set()

    head, _, body = reply.partition(b"\r\n\r\n")
    assert isinstance(port, int)
    assert head.startswith(b"HTTP/1.1 200 ")
    assert b"content-length: 24" in head
    assert b"hypercorn" not in head
    assert body == b'{"ok":true,"ready":true}'
    assert capfd.readouterr() == ("", "")
    with pytest.raises(OSError, match="all attempts to connect"):
        await trio.open_tcp_stream("127.0.0.1", port)


async def test_head_has_no_body():
    stop = trio.Event()
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            port = await nursery.start(serve_http, FakeSource(), "127.0.0.1", 0, stop, 1.0)
            reply = await http_get(port, b"HEAD /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            stop.set()

    assert reply.startswith(b"HTTP/1.1 200 ")
    assert reply.endswith(b"\r\n\r\n")


async def test_a_connection_is_kept_for_further_requests_and_closed_at_once_by_stop():
    stop = trio.Event()
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            port = await nursery.start(serve_http, FakeSource(), "127.0.0.1", 0, stop, 15.0)
            async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
                for _ in range(3):
                    await stream.send_all(b"GET /live HTTP/1.1\r\nHost: x\r\n\r\n")
                    reply = b""
                    while not reply.endswith(b"\r\n\r\nOK"):
                        reply += (piece := await stream.receive_some())
                        assert piece
                stopped_at = trio.current_time()
                stop.set()
                assert await stream.receive_some() == b""
    assert trio.current_time() - stopped_at < 5


async def test_an_idle_connection_is_closed(monkeypatch):
    monkeypatch.setattr(serve, "KEEP_ALIVE_S", 0.2)
    stop = trio.Event()
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            port = await nursery.start(serve_http, FakeSource(), "127.0.0.1", 0, stop, 1.0)
            # Without `Connection: close` only the server's timer ends the connection.
            reply = await http_get(port, b"GET /live HTTP/1.1\r\nHost: x\r\n\r\n")
            stop.set()

    assert reply.endswith(b"OK")


async def test_a_taken_port_surfaces_as_os_error_that_names_it():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=f"Cannot listen on 127.0.0.1:{port}: Address already in use") as caught:
            await serve_http(FakeSource(), "127.0.0.1", port, trio.Event(), 1.0)

    assert caught.value.errno == errno.EADDRINUSE


async def test_a_host_that_cannot_be_resolved_surfaces_as_gaierror():
    with pytest.raises(socket.gaierror, match="Cannot listen on bad host:0: "):
        await serve_http(FakeSource(), "bad host", 0, trio.Event(), 1.0)


async def test_cancelling_closes_the_listener():
    async with trio.open_nursery() as nursery:
        port = await nursery.start(serve_http, FakeSource(), "127.0.0.1", 0, trio.Event(), 1.0)
        nursery.cancel_scope.cancel()

    with pytest.raises(OSError, match="all attempts to connect"):
        await trio.open_tcp_stream("127.0.0.1", port)


async def test_a_large_body_is_not_kept():
    kept: list[int] = []
    stop = trio.Event()

    class MeasuringSource(FakeSource):
        def health(self) -> HealthReport:
            from quart import request

            kept.append(len(request.body._data))
            return HEALTHY

    size = 40 * MAX_BODY_BYTES
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            port = await nursery.start(serve_http, MeasuringSource(), "127.0.0.1", 0, stop, 1.0)
            head = f"POST /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {size}\r\n\r\n"
            reply = await http_get(port, head.encode() + bytes(4 * MAX_BODY_BYTES))
            stop.set()

    assert reply.startswith(b"HTTP/1.1 200 ")
    assert kept
    assert max(kept) <= MAX_BODY_BYTES


async def test_a_header_without_end_is_refused():
    stop = trio.Event()
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            port = await nursery.start(serve_http, FakeSource(), "127.0.0.1", 0, stop, 1.0)
            reply = await http_get(port, b"GET /health HTTP/1.1\r\nHost: x\r\nX-Long: " + b"a" * 20_000)
            stop.set()

    assert reply.startswith(b"HTTP/1.1 431 ")


async def test_a_target_that_is_no_address_is_not_found_without_a_word(capfd):
    stop = trio.Event()
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            port = await nursery.start(serve_http, FakeSource(), "127.0.0.1", 0, stop, 1.0)
            reply = await http_get(port, b"GET http://[ HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            stop.set()

    assert reply.startswith(b"HTTP/1.1 404 ")
    assert capfd.readouterr() == ("", "")
