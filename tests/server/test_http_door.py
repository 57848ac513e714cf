"""Where HTTP listens: as many connections as allowed, and a Unix socket instead of a port."""

import os
import socket
import stat
from functools import partial

import pytest
import trio
from quart import websocket

from bunqueue_trio.server.door import Tally
from bunqueue_trio.web.serve import bind_path, serve_http
from tests.server.fakes import wait_for
from tests.server.http import Source

LIVE = b"GET /live HTTP/1.1\r\nHost: x\r\n\r\n"
CLOSE = b"GET /live HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
UPGRADE = b"GET /ws HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
KEY = b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"


async def ask(stream, request: bytes = CLOSE) -> bytes:
    """What comes back until the server has closed, or until the probe has answered."""
    await stream.send_all(request)
    reply = b""
    while not reply.endswith(b"OK") and (piece := await stream.receive_some()):
        reply += piece
    return reply


@pytest.fixture
async def serve(nursery: trio.Nursery):
    """Serve HTTP on a free port, or on a path; returns the port."""
    stop = trio.Event()

    async def start(**options):
        return await nursery.start(partial(serve_http, Source(), "127.0.0.1", 0, stop, 1.0, **options))

    yield start
    stop.set()


# how many


async def test_the_connection_over_the_limit_is_answered_with_503_and_frees_nothing(serve, log):
    tally = Tally()
    port = await serve(limit=2, tally=tally)
    inside = [await trio.open_tcp_stream("127.0.0.1", port) for _ in range(2)]
    for stream in inside:
        assert (await ask(stream, LIVE)).startswith(b"HTTP/1.1 200 ")

    for _ in range(3):
        async with await trio.open_tcp_stream("127.0.0.1", port) as outside:
            head, _, body = (await outside.receive_some(1_000)).partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 503 ")
            assert body == b'{"ok":false,"error":"Too many connections"}'
            assert f"Content-Length: {len(body)}".encode() in head
            assert await outside.receive_some(1_000) == b""

    assert (tally.connection_count, tally.refused_count) == (2, 3)
    assert [line["message"] for line in log()] == ["Too many connections"]  # not one line each
    await inside[0].aclose()
    await wait_for(lambda: tally.connection_count == 1)
    async with await trio.open_tcp_stream("127.0.0.1", port) as again:
        assert (await ask(again)).startswith(b"HTTP/1.1 200 ")
    await inside[1].aclose()
    await wait_for(lambda: tally.connection_count == 0)


# who does not read


class Large:
    """A room with an answer that no socket buffer holds."""

    def add_to(self, app) -> None:
        app.add_url_rule("/large", "large", lambda: b"x" * (16 << 20))


async def get_and_not_read(port: int) -> trio.SocketStream:
    stream = await trio.open_tcp_stream("127.0.0.1", port)
    await stream.send_all(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
    await stream.receive_some(100)
    return stream


@pytest.mark.parametrize("end", ["stop", "cancel"])
async def test_a_client_that_does_not_read_its_answer_does_not_hold_up_the_end(end, log):
    stop = trio.Event()
    with trio.fail_after(10):
        async with trio.open_nursery() as ours:
            port = await ours.start(partial(serve_http, Source(), "127.0.0.1", 0, stop, 0.2, rooms=[Large()]))
            stream = await get_and_not_read(port)
            stop.set() if end == "stop" else ours.cancel_scope.cancel()
    await stream.aclose()
    assert log() == []


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="NOT TESTED: a system without TCP_USER_TIMEOUT")
async def test_a_client_that_takes_nothing_of_its_answer_is_cut_off(serve, monkeypatch):
    monkeypatch.setattr("bunqueue_trio.web.serve.UNREAD_MS", 500)
    tally = Tally()
    port = await serve(tally=tally, rooms=[Large()])

    async with await get_and_not_read(port):
        assert tally.connection_count == 1
        # The kernel looks when it probes the window, after pauses that it doubles.
        await wait_for(lambda: tally.connection_count == 0, step_s=0.1, timeout_s=60)


# who leaves


class Waiting:
    """A room that keeps its clients waiting, with a request or with a WebSocket that is never read."""

    def __init__(self) -> None:
        self.begun = 0
        self.ended = 0

    def add_to(self, app) -> None:
        app.add_url_rule("/wait", "wait", self.wait)
        app.add_websocket("/ws", "ws", self.wait_connected)

    async def wait(self) -> bytes:
        self.begun += 1
        try:
            await trio.sleep(20)
        finally:
            self.ended += 1
        return b"at last"

    async def wait_connected(self) -> None:
        await websocket.accept()
        await self.wait()


WAIT = b"GET /wait HTTP/1.1\r\nHost: x\r\n\r\n"
MESSAGES = b"\x81\x81\0\0\0\0x" * 200
LEAVING = {
    "a request": WAIT,
    "a byte more": WAIT + b"x",
    "a second request": WAIT * 2,
    "a thousand requests more": WAIT * 1_000,
    "a websocket": UPGRADE + KEY + b"\r\n",
    "a websocket whose messages wait": UPGRADE + KEY + b"\r\n",
}


@pytest.mark.parametrize("kind", LEAVING)
async def test_who_leaves_is_noticed_whatever_was_sent_behind_the_request(serve, kind):
    room, tally = Waiting(), Tally()
    port = await serve(tally=tally, rooms=[room])

    async with await trio.open_tcp_stream("127.0.0.1", port) as client:
        with trio.move_on_after(0.5):
            await client.send_all(LEAVING[kind])
        await wait_for(lambda: room.begun == 1)
        if kind == "a websocket whose messages wait":
            await client.receive_some(1_000)
            await client.send_all(MESSAGES)
            await trio.sleep(0.05)
        assert room.ended == 0

    await wait_for(lambda: room.ended == 1 and tally.connection_count == 0, timeout_s=3)
    assert room.begun == 1


async def test_requests_that_came_together_are_answered_one_by_one(serve):
    port = await serve()
    async with await trio.open_tcp_stream("127.0.0.1", port) as client:
        await client.send_all(LIVE * 3 + CLOSE)
        received = b""
        while piece := await client.receive_some():
            received += piece
    assert received.count(b"HTTP/1.1 200 ") == received.count(b"\r\n\r\nOK") == 4


# what nobody can read

H2C = b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: "
UNREADABLE = {
    "subprotocol": UPGRADE + b"Sec-WebSocket-Protocol: \xff\r\n\r\n",
    "extensions": UPGRADE + KEY + b"Sec-WebSocket-Extensions: \xff\r\n\r\n",
    "connection": b"GET /ws HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade, \xff\r\n" + KEY + b"\r\n",
    "upgrade with a body": UPGRADE + KEY + b"Content-Length: 3\r\n\r\nabc",
    "a frame too early": UPGRADE + KEY + b"\r\n\x81\x80\0\0\0\0",
    "settings that are no base64": H2C + b"A\r\n\r\n",
    "settings that are no frame": H2C + b"AAAA\r\n\r\n",
    "settings that nobody may have": H2C + b"AAIAAAAF\r\n\r\n",
    "a request line of HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\1\1\5\0\0\0\1\xff",
    "noise": bytes(range(256)) * 8,
}


@pytest.mark.parametrize("sent", UNREADABLE.values(), ids=UNREADABLE)
async def test_bytes_that_nobody_can_read_end_their_connection_and_no_other(serve, sent):
    tally = Tally()
    port = await serve(tally=tally)

    for _ in range(3):
        async with await trio.open_tcp_stream("127.0.0.1", port) as stranger:
            await stranger.send_all(sent)
            with trio.move_on_after(0.1):
                await stranger.receive_some(1_000)

    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        assert (await ask(stream)).startswith(b"HTTP/1.1 200 ")
    await wait_for(lambda: tally.connection_count == 0)


# a Unix socket


def is_there(path: str) -> bool:
    return os.path.exists(path)


@pytest.fixture
def path(tmp_path) -> str:
    return str(tmp_path / "http.sock")


async def test_a_unix_socket_serves_and_is_removed_in_the_end(path):
    stop = trio.Event()
    async with trio.open_nursery() as nursery:
        port = await nursery.start(partial(serve_http, Source(), "nowhere", 1, stop, 1.0, path=path))
        async with await trio.open_unix_socket(path) as stream:
            reply = await ask(stream)
        stop.set()

    assert port == 0
    assert reply.startswith(b"HTTP/1.1 200 ")
    assert not is_there(path)


async def test_cancelling_removes_it_too(path, nursery):
    async with trio.open_nursery() as ours:
        await ours.start(partial(serve_http, Source(), "", 0, trio.Event(), 1.0, path=path))
        assert stat.S_ISSOCK(os.stat(path).st_mode)
        ours.cancel_scope.cancel()

    assert not is_there(path)


async def test_a_socket_that_nobody_answers_on_is_replaced(path, serve):
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(path)
        killed.listen()

    await serve(path=path)

    async with await trio.open_unix_socket(path) as stream:
        assert (await ask(stream)).startswith(b"HTTP/1.1 200 ")


async def test_a_socket_that_somebody_answers_on_is_left_alone(path, serve):
    await serve(path=path)

    with pytest.raises(OSError, match=f"Cannot listen on {path}: Address already in use"):
        bind_path(path)

    async with await trio.open_unix_socket(path) as stream:
        assert (await ask(stream)).startswith(b"HTTP/1.1 200 ")


def test_a_file_of_another_kind_is_left_alone(path):
    with open(path, "w") as file:
        file.write("precious")

    with pytest.raises(OSError, match="Address already in use"):
        bind_path(path)

    with open(path) as file:
        assert file.read() == "precious"


@pytest.mark.parametrize(
    ("name", "text"), [("none/http.sock", "No such file or directory"), ("x" * 200, "AF_UNIX path too long")]
)
def test_a_path_that_cannot_be_used_is_an_error_that_names_it(tmp_path, name, text):
    with pytest.raises(OSError, match=rf"Cannot listen on {tmp_path}/{name}: .*{text}"):
        bind_path(str(tmp_path / name))


async def test_the_socket_of_somebody_else_is_not_removed(path):
    stop = trio.Event()
    async with trio.open_nursery() as nursery:
        await nursery.start(partial(serve_http, Source(), "", 0, stop, 1.0, path=path))
        os.rename(path, f"{path}.old")  # keeps its inode from being given to the next one
        with socket.socket(socket.AF_UNIX) as other:
            other.bind(path)
        stop.set()

    assert is_there(path)
