"""TLS: files that are refused at start, and a stream that carries the protocol as the plain one does."""

import socket
import ssl
from functools import partial

import pytest
import trio
import trio.testing

from bunqueue_trio.config import Config
from bunqueue_trio.errors import StartError
from bunqueue_trio.server import tcp
from bunqueue_trio.server.tcp import TcpServer
from bunqueue_trio.server.tls import TlsStream, load_tls
from bunqueue_trio.web.serve import serve_http
from tests.certificates import Certificate
from tests.server.fakes import QUEUE, Rig, frame, unframe, wait_for
from tests.server.http import Source


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return Certificate(tmp_path_factory.mktemp("tls"))


# files


def test_without_files_there_is_no_tls():
    assert load_tls(Config()) is None


def test_good_files_make_a_context_of_modern_tls(certificate: Certificate):
    context = load_tls(certificate.config)

    assert context is not None
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2


@pytest.mark.parametrize(
    ("cert", "key", "text"),
    [
        ("/nowhere/c.pem", "key", "TLS cert file not found: /nowhere/c.pem"),
        ("cert", "/nowhere/k.pem", "TLS key file not found: /nowhere/k.pem"),
        ("/", "key", "TLS cert file cannot be read: /: Is a directory"),
        ("junk", "key", "TLS cert file is not PEM: .*: there is no CERTIFICATE in it"),
        ("cert", "junk", "TLS key file is not PEM: .*: there is no PRIVATE KEY in it"),
        ("key", "cert", "TLS cert file is not PEM"),
        ("cert", "other_key", r"TLS cert and key cannot be used \(.*\): .*KEY_VALUES_MISMATCH"),
        ("cert", "locked_key", r"TLS cert and key cannot be used \(.*\): "),
        ("torn", "key", r"TLS cert and key cannot be used \(.*\): "),
    ],
)
def test_bad_files_are_refused_and_named(certificate: Certificate, tmp_path, cert, key, text):
    (tmp_path / "junk").write_bytes(b"\x00\xff junk")
    (tmp_path / "torn").write_bytes(certificate.cert.read_bytes()[:200] + b"\n-----END CERTIFICATE-----\n")

    def path_of(name: str) -> str:
        return name if name.startswith("/") else str(getattr(certificate, name, tmp_path / name))

    with pytest.raises(StartError, match=text):
        load_tls(Config(tls_cert_file=path_of(cert), tls_key_file=path_of(key)))


# the stream


class Peer:
    """The client's end of a socket pair, speaking TLS by hand, so that every byte is ours to send or keep."""

    def __init__(self, certificate: Certificate, *, buffer_bytes: int | None = None) -> None:
        near, far = socket.socketpair()
        if buffer_bytes is not None:
            for end in (near, far):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer_bytes)
        context = load_tls(certificate.config)
        assert context is not None
        self.server = TlsStream(far, context)
        self.socket = trio.socket.from_stdlib_socket(near)
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = certificate.client_context().wrap_bio(self.incoming, self.outgoing, server_hostname="localhost")

    async def flush(self) -> None:
        data = memoryview(self.outgoing.read())
        while data:
            data = data[await self.socket.send(data) :]

    async def hear(self) -> None:
        data = await self.socket.recv(65_536)
        if data:
            self.incoming.write(data)
        else:
            self.incoming.write_eof()

    async def shake(self, last_words: bytes = b"") -> None:
        """The handshake; *last_words* leave together with its last message."""
        while True:
            try:
                self.tls.do_handshake()
            except ssl.SSLWantReadError:
                await self.flush()
                await self.hear()
            else:
                break
        if last_words:
            self.tls.write(last_words)
        await self.flush()

    async def meet(self) -> None:
        """The handshake of both."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.shake)
            assert await self.server.handshake()

    async def send(self, data: bytes) -> None:
        self.tls.write(data)
        await self.flush()

    async def receive(self, size: int) -> bytes:
        received = b""
        while len(received) < size:
            try:
                piece = self.tls.read(65_536)
                if not piece:
                    raise EOFError("told that nothing is missing")
                received += piece
            except ssl.SSLWantReadError:
                await self.hear()
        return received

    def close(self) -> None:
        self.socket.close()
        self.server.close()


@pytest.fixture
async def peer(certificate: Certificate):
    peer = Peer(certificate)
    yield peer
    peer.close()


async def test_bytes_go_both_ways(peer: Peer):
    await peer.meet()

    await peer.send(b"question")

    assert await peer.server.receive() == b"question"
    assert peer.server.receive_nowait() is None
    assert peer.server.send_nowait(b"answer") == 6
    assert await peer.receive(6) == b"answer"


async def test_what_comes_with_the_end_of_the_handshake_is_not_lost(peer: Peer):
    async with trio.open_nursery() as nursery:
        nursery.start_soon(peer.shake, b"at once")
        assert await peer.server.handshake()

    assert await peer.server.receive() == b"at once"


async def test_many_records_are_read_at_once_up_to_the_limit(peer: Peer):
    await peer.meet()
    for _ in range(10):
        peer.tls.write(b"x" * 1_000)
    await peer.flush()

    assert len(await peer.server.receive(2_500)) == 2_500
    assert len(await peer.server.receive()) == 7_500


async def test_receiving_is_always_a_checkpoint_and_cancelling_loses_nothing(peer: Peer):
    await peer.meet()
    await peer.send(b"xy")
    await peer.server.receive(1)

    with trio.CancelScope() as scope:
        scope.cancel()
        await peer.server.receive()

    assert scope.cancelled_caught
    assert peer.server.receive_nowait() == b"y"


async def test_a_slow_reader_gets_everything_once_and_in_order(certificate: Certificate):
    peer = Peer(certificate, buffer_bytes=4_096)
    await peer.meet()
    data = bytes(range(256)) * 4_000
    partial_count = 0

    async def write() -> None:
        nonlocal partial_count
        view = memoryview(data)
        while view:
            taken = peer.server.send_nowait(view)
            partial_count += taken < len(view)
            view = view[taken:]
            if view:
                await peer.server.wait_writable()

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(write)
            assert await peer.receive(len(data)) == data
    assert partial_count > 10
    peer.close()


async def test_the_ends_of_a_stream(certificate: Certificate):
    orderly, torn = Peer(certificate), Peer(certificate)
    for peer in (orderly, torn):
        await peer.meet()
        peer.tls.write(b"last")
    with pytest.raises(ssl.SSLWantReadError):
        orderly.tls.unwrap()
    for peer in (orderly, torn):
        await peer.flush()
    torn.socket.shutdown(socket.SHUT_WR)

    for peer in (orderly, torn):
        assert await peer.server.receive() == b"last"
        assert await peer.server.receive() == b""
        assert peer.server.receive_nowait() == b""
        peer.close()


async def test_closing_says_that_nothing_is_missing(peer: Peer):
    await peer.meet()
    peer.server.send_nowait(b"bye")

    peer.server.close()

    assert await peer.receive(3) == b"bye"
    with pytest.raises(EOFError):
        await peer.receive(1)


async def test_closing_wakes_whoever_waits(peer: Peer):
    await peer.meet()
    received: list[bytes] = []

    async def read() -> None:
        received.append(await peer.server.receive())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await trio.testing.wait_all_tasks_blocked()
        peer.server.abort()

    assert received == [b""]


@pytest.mark.parametrize(
    "data", [b"GET / HTTP/1.1\r\n\r\n", frame({"cmd": "Ping"}), b"\x16\x03\x01\xff\xff" + bytes(99)]
)
async def test_what_is_no_tls_fails_the_handshake(peer: Peer, data):
    await peer.socket.send(data)
    peer.socket.shutdown(socket.SHUT_WR)

    assert not await peer.server.handshake()


async def test_a_peer_that_goes_fails_the_handshake(peer: Peer):
    peer.socket.close()

    assert not await peer.server.handshake()


async def test_rubbish_after_the_handshake_is_the_end(peer: Peer):
    await peer.meet()
    await peer.socket.send(b"\x17\x03\x03\x00\x20" + bytes(32))

    assert await peer.server.receive() == b""


# the doors


async def test_a_session_over_tls(rig: Rig, certificate: Certificate, nursery):
    config = Config(tcp_port=0)
    server = TcpServer(rig.broker, config, nursery, tls=load_tls(certificate.config))
    port = await nursery.start(server.run)

    stream = await trio.open_ssl_over_tcp_stream("localhost", port, ssl_context=certificate.client_context())
    await stream.send_all(frame({"cmd": "PUSH", "queue": QUEUE, "data": 1, "jobId": "a"}) + frame({"cmd": "Ping"}))
    received = b""
    while received.count(b"ok") < 2:
        received += await stream.receive_some()

    assert unframe(received)[0] == {"ok": True, "id": "a"}
    await stream.aclose()
    nursery.cancel_scope.cancel()


async def test_strangers_without_tls_are_cut_off_and_leave_nothing(
    rig: Rig, certificate: Certificate, nursery, monkeypatch
):
    monkeypatch.setattr(tcp, "HANDSHAKE_S", 0.2)
    server = TcpServer(rig.broker, Config(tcp_port=0), nursery, tls=load_tls(certificate.config))
    port = await nursery.start(server.run)
    connected: list[int] = []
    rig.broker.connect = lambda client: connected.append(client.id)  # type: ignore[method-assign]

    for words in (frame({"cmd": "Ping"}), b""):  # the second one is silent
        stream = await trio.open_tcp_stream("127.0.0.1", port)
        if words:
            await stream.send_all(words)
        with trio.fail_after(10):
            try:
                while await stream.receive_some():
                    pass  # the alert
            except trio.BrokenResourceError:
                pass
        await stream.aclose()

    assert connected == []
    await wait_for(lambda: not server.connection_count)
    nursery.cancel_scope.cancel()


async def test_who_is_one_too_many_is_turned_away_without_a_word(rig: Rig, certificate: Certificate, nursery):
    config = Config(tcp_port=0, max_connections=1)
    server = TcpServer(rig.broker, config, nursery, tls=load_tls(certificate.config))
    port = await nursery.start(server.run)

    async with await trio.open_tcp_stream("127.0.0.1", port), await trio.open_tcp_stream("127.0.0.1", port) as second:
        with trio.fail_after(10):
            assert await second.receive_some() == b""
    assert server.tally.refused_count == 1
    nursery.cancel_scope.cancel()


async def test_http_over_tls_and_nothing_else(certificate: Certificate):
    stop = trio.Event()
    context = load_tls(certificate.config)
    request = b"GET /ready HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            serve = partial(serve_http, Source(), "127.0.0.1", 0, stop, 1.0, tls=context)
            port = await nursery.start(serve)
            secure = await trio.open_ssl_over_tcp_stream(
                "127.0.0.1", port, ssl_context=certificate.client_context(), https_compatible=True
            )
            await secure.send_all(request)
            reply = b"".join([chunk async for chunk in secure])
            await secure.aclose()
            plain = await trio.open_tcp_stream("127.0.0.1", port)
            await plain.send_all(request)
            refused = b""
            try:
                while piece := await plain.receive_some():
                    refused += piece
            except trio.BrokenResourceError:
                pass
            await plain.aclose()
            stop.set()

    assert reply.startswith(b"HTTP/1.1 200 ")
    assert b"HTTP/1.1" not in refused
