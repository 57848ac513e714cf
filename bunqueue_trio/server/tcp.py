"""The TCP listener: accepts, counts, and hands each connection to a task of its own."""

from __future__ import annotations

import errno
import socket
import ssl
from contextlib import suppress

import trio

from bunqueue_trio.config import Config
from bunqueue_trio.logs import get_logger
from bunqueue_trio.model.replies import ErrorReply
from bunqueue_trio.protocol.codec import encode_frame
from bunqueue_trio.server.broker import Broker
from bunqueue_trio.server.connection import serve_connection
from bunqueue_trio.server.stream import TcpStream
from bunqueue_trio.server.tls import TlsStream

log = get_logger("TCP")

BACKLOG = 1_024
OUT_OF_DESCRIPTORS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
ACCEPT_PAUSE_S = 0.25  # without descriptors: four tries a second cost nothing and notice a free one at once
COMPLAIN_EVERY_S = 10.0
HANDSHAKE_S = 10.0  # an honest client needs three round trips


class TcpServer:
    """The door for TCP clients. `run` is the listener; connections live in the nursery they are given.

    Args:
        tls: makes the door speak TLS, and nothing else.
    """

    def __init__(
        self, broker: Broker, config: Config, sessions: trio.Nursery, *, tls: ssl.SSLContext | None = None
    ) -> None:
        self._tls = tls
        self._broker = broker
        self._config = config
        self._sessions = sessions
        self._complained_at_s = float("-inf")
        self.connection_count = 0
        self.refused_count = 0

    async def run(self, *, task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED) -> None:
        """Accept until cancelled; ``started`` gets the bound port.

        Raises:
            OSError: the address cannot be bound or resolved.
        """
        listeners = await trio.open_tcp_listeners(self._config.tcp_port, host=self._config.bind_host, backlog=BACKLOG)
        async with trio.open_nursery() as nursery:
            for listener in listeners:
                nursery.start_soon(self._accept_from, listener)
            task_status.started(int(listeners[0].socket.getsockname()[1]))

    async def _accept_from(self, listener: trio.SocketListener) -> None:
        async with listener:
            while True:
                try:
                    accepted = await listener.socket.accept()
                except OSError as error:
                    await self._pause_after(error)
                    continue
                self._take(socket.socket(fileno=accepted[0].detach()))

    def _take(self, sock: socket.socket) -> None:
        try:
            stream = TcpStream(sock) if self._tls is None else TlsStream(sock, self._tls)
        except OSError:  # the peer has gone again already
            sock.close()
            return
        if self.connection_count >= self._config.max_connections:
            self.refused_count += 1
            self._complain("Too many connections", limit=self._config.max_connections)
            self._turn_away(stream)
            return
        self.connection_count += 1
        self._sessions.start_soon(self._serve, stream)

    async def _serve(self, stream: TcpStream) -> None:
        try:
            if isinstance(stream, TlsStream) and not await self._shake_hands(stream):
                return
            await serve_connection(stream, self._broker, self._config)
        finally:
            self.connection_count -= 1

    @staticmethod
    async def _shake_hands(stream: TlsStream) -> bool:
        """Until then nothing that the peer has sent is looked at, and no session exists (Z1)."""
        is_done = False
        try:
            with trio.move_on_after(HANDSHAKE_S):
                is_done = await stream.handshake()
        finally:
            if not is_done:
                stream.abort()
        return is_done

    @staticmethod
    def _turn_away(stream: TcpStream) -> None:
        with suppress(OSError):  # it did not wait for the answer; TLS would have to shake hands for one
            if not isinstance(stream, TlsStream):
                stream.send_nowait(encode_frame(ErrorReply(error="Too many connections")))
        stream.close()

    async def _pause_after(self, error: OSError) -> None:
        """Out of descriptors or memory: old clients go on; new ones are looked at again soon (T5)."""
        if error.errno not in OUT_OF_DESCRIPTORS:
            await trio.lowlevel.checkpoint()
            return
        self._complain("Cannot accept connections", error=str(error))
        await trio.sleep(ACCEPT_PAUSE_S)

    def _complain(self, message: str, **details: object) -> None:
        now_s = trio.current_time()
        if now_s >= self._complained_at_s + COMPLAIN_EVERY_S:
            self._complained_at_s = now_s
            log.warning(message, **details)
