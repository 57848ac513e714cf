"""A TCP connection: reading, writing what the kernel takes, and the two ways to end it."""

import socket

import pytest
import trio

from bunqueue_trio.server.stream import TcpStream
from tests.server.fakes import settle_down


@pytest.fixture
async def pair():
    """A stream and its client's socket."""
    client, far = socket.socketpair()
    client.setblocking(False)
    stream = TcpStream(far)
    yield stream, client
    stream.close()
    client.close()


@pytest.fixture
async def tcp_pair():
    """The same over loopback, where a reset can be told from an end."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        stream = TcpStream(listener.accept()[0])
    client.settimeout(10)
    yield stream, client
    stream.close()
    client.close()


async def test_bytes_arrive_as_they_come(pair):
    stream, client = pair
    client.send(b"hello")

    assert await stream.receive(3) == b"hel"
    assert await stream.receive() == b"lo"


async def test_receiving_waits(pair, nursery):
    stream, client = pair
    found = []

    async def read():
        found.append(await stream.receive())

    nursery.start_soon(read)
    await settle_down()
    assert found == []
    client.send(b"x")
    await settle_down()

    assert found == [b"x"]


async def test_the_end_of_the_stream_is_empty(pair):
    stream, client = pair
    client.send(b"last")
    client.close()

    assert await stream.receive() == b"last"
    assert await stream.receive() == b""
    assert await stream.receive() == b""


async def test_a_peers_reset_is_the_end(tcp_pair):
    stream, client = tcp_pair
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    client.close()

    assert await stream.receive() == b""


async def test_a_cancelled_receive_has_taken_nothing(pair, autojump_clock):
    stream, client = pair
    with trio.move_on_after(1):
        await stream.receive()
    client.send(b"kept")
    with trio.CancelScope() as scope:
        scope.cancel()
        await stream.receive()
    assert scope.cancelled_caught

    assert await stream.receive() == b"kept"


@pytest.mark.parametrize("end", [TcpStream.close, TcpStream.abort])
async def test_closing_wakes_the_reader_and_may_be_repeated(pair, nursery, end):
    stream, _ = pair
    found = []

    async def read():
        found.append(await stream.receive())

    nursery.start_soon(read)
    await settle_down()
    end(stream)
    end(stream)
    await settle_down()

    assert found == [b""]
    assert stream.is_closed
    assert await stream.receive() == b""


async def test_a_full_kernel_takes_part_and_then_nothing(pair):
    stream, client = pair
    data = b"x" * 10_000_000

    sent = stream.send_nowait(data)

    assert 0 < sent < len(data)
    assert stream.send_nowait(data[sent:]) == 0
    with trio.CancelScope() as scope:
        await settle_down()
        scope.cancel()
        await stream.wait_writable()
    assert scope.cancelled_caught
    client.recv(1 << 20)
    await stream.wait_writable()
    assert stream.send_nowait(b"y") == 1


async def test_sending_to_nobody_is_an_error(pair):
    stream, client = pair
    client.close()

    with pytest.raises(OSError, match="Broken pipe"):
        stream.send_nowait(b"x")


async def test_an_orderly_close_delivers_what_was_written(tcp_pair):
    stream, client = tcp_pair
    stream.send_nowait(b"last words")

    stream.close()

    assert client.recv(100) == b"last words"
    assert client.recv(100) == b""


async def test_an_abort_is_a_reset(tcp_pair):
    stream, client = tcp_pair

    stream.abort()

    with pytest.raises(ConnectionResetError):
        client.recv(100)


async def test_small_replies_do_not_wait_for_more(tcp_pair):
    stream, _ = tcp_pair

    assert stream._sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    assert not stream._sock.getblocking()
