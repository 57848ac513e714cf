"""What ASGI does not offer of the connection below: ending it in the middle of a write, pings, when bytes last came.

Hypercorn shields what it writes from cancellation, so a write to a client that does not read ends only with the
socket. And it compresses WebSockets for whoever asks: a third of a megabyte per client, and messages that grow a
thousandfold on arrival. All that is known here of its insides is found in one place, `Transport`; where it is not found
(another server, a test) nothing happens.
"""

from __future__ import annotations

import socket
import struct
from contextlib import suppress
from typing import Any

import trio
from hypercorn.protocol.events import Event
from hypercorn.protocol.ws_stream import WSStream
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.typing import ASGISendCallable
from quart.wrappers import Websocket
from quart_trio.asgi import TrioASGIWebsocketConnection
from wsproto.events import Ping

_RESET = struct.pack("ii", 1, 0)
_KEY = "bunqueue_trio.transport"


def reset(stream: Any) -> None:
    """End a connection at once, plain or TLS: a write that waits for its client fails now."""
    raw = getattr(stream, "transport_stream", stream).socket
    with suppress(OSError):  # gone already
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    raw.close()


class Transport:
    """The connection that an ASGI ``send`` writes to."""

    def __init__(self, send: Any) -> None:
        stream = getattr(send, "__self__", None)
        protocol = getattr(getattr(stream, "send", None), "__self__", None)
        server = getattr(getattr(protocol, "send", None), "__self__", None)
        self._server = server if isinstance(server, TCPServer) else None
        self._websocket = stream if isinstance(stream, WSStream) else None
        self.heard_s = trio.current_time()
        """When bytes last came from the client of a WebSocket."""
        if self._websocket is not None:
            self._prepare(self._websocket)

    def _prepare(self, websocket: WSStream) -> None:
        websocket.handshake.extensions = None  # Wire: no compression
        handle = websocket.handle

        async def handle_heard(event: Event) -> None:
            self.heard_s = trio.current_time()
            await handle(event)

        websocket.handle = handle_heard  # type: ignore[method-assign]

    def cut(self) -> None:
        """Reset the connection; a write that waits for the client fails now."""
        if self._server is not None:
            reset(self._server.stream)

    async def ping(self) -> None:
        """Send a ping frame."""
        if self._websocket is not None:
            await self._websocket._send_wsproto_event(Ping())


def carry(scope: Any, send: ASGISendCallable) -> None:
    """Let the transport of *send* be found in *scope*."""
    scope[_KEY] = Transport(send)


def transport_of(scope: Any) -> Transport:
    """The transport of a request or a WebSocket."""
    transport: Transport = scope[_KEY]
    return transport


class Websockets(TrioASGIWebsocketConnection):
    """Lets handlers find the transport of their WebSocket."""

    def _create_websocket_from_scope(self, send: ASGISendCallable) -> Websocket:
        carry(self.scope, send)
        return super()._create_websocket_from_scope(send)
