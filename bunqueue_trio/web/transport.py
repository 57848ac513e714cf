"""What ASGI does not offer of the connection below: ending it in the middle of a write, pings, when bytes last came.

Hypercorn shields what it writes from cancellation, so a write to a client that does not read ends only with the
socket. And it compresses WebSockets for whoever asks: a third of a megabyte per client, and messages that grow a
thousandfold on arrival. All that is known here of its insides is found in one place, `Transport`; where it is not found
(another server, a test) nothing happens.
"""

from __future__ import annotations

import select
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

import trio
from hypercorn.protocol.events import Event
from hypercorn.protocol.ws_stream import WSStream
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.typing import ASGISendCallable
from quart.wrappers import Websocket
from quart_trio.asgi import TrioASGIWebsocketConnection
from wsproto.events import Ping

_RESET = struct.pack("ii", 1, 0)
_LEFT = getattr(select, "POLLRDHUP", 0)  # a hang-up and an error are always told
_KEY = "bunqueue_trio.transport"
NO_SUCH_PATH = "/-"

T = TypeVar("T")


def reset(stream: Any) -> None:
    """End a connection at once, plain or TLS: a write that waits for its client fails now."""
    raw = getattr(stream, "transport_stream", stream).socket
    with suppress(OSError):  # gone already
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    raw.close()


def has_left(stream: Any) -> bool:
    """Whether the client has closed the connection, or its half of it, be it behind bytes that nobody has read.

    Where the system cannot tell (POLLRDHUP is Linux's) only a connection that is reset counts.
    """
    poll = select.poll()
    try:
        poll.register(getattr(stream, "transport_stream", stream).socket.fileno(), _LEFT)
    except ValueError:
        return True  # closed on this side
    return bool(poll.poll(0))


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


def with_known_path(scope: Any, create: Callable[[], T]) -> T:
    """What *create* makes of *scope*, whose path may be one that nobody can read.

    A target such as "http://[" or "?x" is no address of anything here, and no fault of ours worth a traceback.
    """
    try:
        return create()
    except (ValueError, IndexError):
        scope["path"] = NO_SUCH_PATH
        return create()


class Websockets(TrioASGIWebsocketConnection):
    """Lets handlers find the transport of their WebSocket."""

    def _create_websocket_from_scope(self, send: ASGISendCallable) -> Websocket:
        carry(self.scope, send)
        return with_known_path(self.scope, lambda: super(Websockets, self)._create_websocket_from_scope(send))
