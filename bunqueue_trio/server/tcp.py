"""The TCP listener: hands each connection to a task of its own."""

from __future__ import annotations

import socket
import ssl

import trio

from bunqueue_trio.config import Config
from bunqueue_trio.model.replies import ErrorReply
from bunqueue_trio.protocol.codec import encode_frame
from bunqueue_trio.server.broker import Broker
from bunqueue_trio.server.connection import serve_connection
from bunqueue_trio.server.door import BACKLOG, Door
from bunqueue_trio.server.stream import TcpStream
from bunqueue_trio.server.tls import TlsStream

HANDSHAKE_S = 10.0  # an honest client needs three round trips


class TcpServer(Door[TcpStream]):
    """The door for TCP clients. `run` is the listener; connections live in the nursery they are given.

    Args:
        tls: makes the door speak TLS, and nothing else.
    """

    def __init__(
        self, broker: Broker, config: Config, sessions: trio.Nursery, *, tls: ssl.SSLContext | None = None
    ) -> None:
        # TLS would have to shake hands for a last word.
        farewell = b"" if tls is not None else encode_frame(ErrorReply(error="Too many connections"))
        super().__init__("TCP", sessions, config.max_connections, farewell)
        self._tls = tls
        self._broker = broker
        self._config = config

    @property
    def connection_count(self) -> int:
        """Connections that are open now."""
        return self.tally.connection_count

    async def run(self, *, task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED) -> None:
        """Accept until cancelled; ``started`` gets the bound port.

        Raises:
            OSError: the address cannot be bound or resolved.
        """
        listeners = await trio.open_tcp_listeners(self._config.tcp_port, host=self._config.bind_host, backlog=BACKLOG)
        async with trio.open_nursery() as nursery:
            for listener in listeners:
                nursery.start_soon(self.accept_from, listener)
            task_status.started(int(listeners[0].socket.getsockname()[1]))

    def open_stream(self, sock: socket.socket) -> TcpStream:
        """Set up an accepted socket."""
        return TcpStream(sock) if self._tls is None else TlsStream(sock, self._tls)

    async def serve(self, stream: TcpStream) -> None:
        """Shake hands where that is needed, then serve commands."""
        if isinstance(stream, TlsStream) and not await self._shake_hands(stream):
            return
        await serve_connection(stream, self._broker, self._config)

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
