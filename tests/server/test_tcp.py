"""The listener: the bound port, the limit of connections, and what it does when it may not accept."""

import errno
import socket

import pytest
import trio
import trio.testing

from bunqueue_trio.config import Config
from bunqueue_trio.server import tcp as tcp_module
from bunqueue_trio.server.tcp import TcpServer
from tests.server.fakes import Rig, frame, settle_down, unframe, wait_for


@pytest.fixture
async def serve(rig: Rig, nursery: trio.Nursery):
    """Start a listener on a free port of loopback; returns it and its port."""

    async def start(**settings):
        config = Config(tcp_port=0, host="127.0.0.1", **settings)
        server = TcpServer(rig.broker, config, nursery)
        return server, await nursery.start(server.run)

    return start


@pytest.fixture
async def dial(nursery):
    """Connect to a port; closed in the end."""
    opened = []

    async def connect(port):
        stream = await trio.open_tcp_stream("127.0.0.1", port)
        opened.append(stream)
        return stream

    yield connect
    for stream in opened:
        stream.socket.close()


async def ask(stream) -> dict:
    await stream.send_all(frame({"cmd": "Ping"}))
    return unframe(await stream.receive_some(1_000))[0]


async def test_a_free_port_is_bound_and_announced(serve, dial):
    _, port = await serve()

    assert port > 0
    assert (await ask(await dial(port)))["ok"]


async def test_a_port_that_is_taken_is_an_error(serve, rig: Rig, nursery):
    _, port = await serve()
    second = TcpServer(rig.broker, Config(tcp_port=port, host="127.0.0.1"), nursery)

    with pytest.RaisesGroup(OSError, flatten_subgroups=True, allow_unwrapped=True) as raised:
        await nursery.start(second.run)

    error = raised.value
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert error.errno == errno.EADDRINUSE


async def test_connections_are_counted_while_they_last(serve, dial):
    server, port = await serve()
    streams = [await dial(port) for _ in range(3)]
    for stream in streams:
        await ask(stream)
    assert server.connection_count == 3

    await streams[0].aclose()
    await wait_for(lambda: server.connection_count == 2)


async def test_the_connection_over_the_limit_gets_one_error_and_frees_nothing(serve, dial, log):
    server, port = await serve(max_connections=2)
    inside = [await dial(port) for _ in range(2)]
    for stream in inside:
        await ask(stream)
    for _ in range(3):
        outside = await dial(port)
        assert unframe(await outside.receive_some(1_000)) == [{"ok": False, "error": "Too many connections"}]
        assert await outside.receive_some(1_000) == b""

    assert (server.connection_count, server.tally.refused_count) == (2, 3)
    assert (await ask(inside[0]))["ok"]
    assert [line["message"] for line in log()] == ["Too many connections"]  # not one line each
    await inside[0].aclose()
    await wait_for(lambda: server.connection_count == 1)
    assert (await ask(await dial(port)))["ok"]


async def test_cancelling_the_listener_leaves_the_connections(rig: Rig, nursery, dial):
    server = TcpServer(rig.broker, Config(tcp_port=0, host="127.0.0.1"), nursery)
    async with trio.open_nursery() as doors:
        port = await doors.start(server.run)
        stream = await dial(port)
        await ask(stream)
        doors.cancel_scope.cancel()

    assert (await ask(stream))["ok"]
    with pytest.raises(OSError, match=r"."):
        await dial(port)


class FakeListener:
    """A listening socket whose ``accept`` raises what it is told, then never returns."""

    def __init__(self, *errors: OSError) -> None:
        self.errors = list(errors)
        self.attempts_s: list[float] = []
        self.socket = self

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_exc):
        pass

    async def accept(self):
        self.attempts_s.append(trio.current_time())
        if self.errors:
            raise self.errors.pop(0)
        await trio.sleep_forever()


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM])
async def test_without_descriptors_it_pauses_complains_now_and_then_and_goes_on(
    rig: Rig, nursery, autojump_clock, log, number
):
    server = TcpServer(rig.broker, Config(), nursery)
    listener = FakeListener(*[OSError(number, "too many")] * 60)
    nursery.start_soon(server.accept_from, listener)
    await trio.sleep(20)

    assert listener.attempts_s[:3] == [0, 0.25, 0.5]
    assert len(listener.attempts_s) == 61
    assert [line["message"] for line in log()] == ["Cannot accept connections"] * 2  # 15 s of trouble


async def test_a_peer_that_has_gone_before_it_was_accepted_is_no_trouble(rig: Rig, nursery, autojump_clock, log):
    server = TcpServer(rig.broker, Config(), nursery)
    listener = FakeListener(*[OSError(errno.ECONNABORTED, "gone")] * 3)
    nursery.start_soon(server.accept_from, listener)
    await trio.sleep(0.1)

    assert listener.attempts_s == [0] * 4
    assert log() == []


async def test_a_socket_that_cannot_be_set_up_is_dropped(rig: Rig, nursery, monkeypatch, mock_clock):
    def refuse(sock):
        raise OSError(errno.EINVAL, "invalid argument")

    monkeypatch.setattr(tcp_module, "TcpStream", refuse)
    server = TcpServer(rig.broker, Config(), nursery)
    near, far = socket.socketpair()
    server.take(far)
    await settle_down()

    assert near.recv(10) == b""
    near.close()
    assert server.connection_count == 0
