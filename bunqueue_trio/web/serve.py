"""Hypercorn as a guest in our nursery: the listener is ours, the signals are ours, and it says nothing."""

import logging
import os
import socket
import ssl
from collections.abc import Sequence

import hypercorn.config
import hypercorn.trio
import trio

from bunqueue_trio.errors import InvariantError
from bunqueue_trio.logs import get_logger
from bunqueue_trio.web.probes import HealthSource, Routes, create_app

MAX_MESSAGE_BYTES = 2 << 20  # of a WebSocket: twice what is taken, so that we say why before Hypercorn says nothing
KEEP_ALIVE_S = 10.0  # Wire: the reference drops a silent connection after 10 to 12 s
BACKLOG = 1024


async def serve_http(
    source: HealthSource,
    host: str,
    port: int,
    stop: trio.Event,
    grace_s: float,
    *,
    closing: trio.Event | None = None,
    rooms: Sequence[Routes] = (),
    tls: ssl.SSLContext | None = None,
    task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve HTTP on *host*:*port* until *stop* is set; then requests in flight have *grace_s* seconds to end.

    With *tls* the listener speaks TLS only.

    From *closing* on new connections are refused, while those that are open are served until *stop* (R280, H3).
    ``task_status.started`` gets the bound port once connections are accepted (of the first address, where *host* has
    several and *port* is 0).

    Raises:
        OSError: The address cannot be bound or resolved; nothing stays bound.
        InvariantError: The server ended although *stop* was not set.

    Cancel: closes the listener and all connections at once.
    """
    sockets = await _bind(host, port)
    try:
        bound_port: int = sockets[0].getsockname()[1]
        app = create_app(source, rooms)
        async with trio.open_nursery() as nursery:
            if closing is not None:
                nursery.start_soon(_refuse_newcomers, closing, sockets)
            await hypercorn.trio.serve(
                app,
                _Settings(sockets, grace_s, tls),
                shutdown_trigger=stop.wait,
                mode="asgi",
                task_status=_PortStatus(task_status, bound_port),
            )
            nursery.cancel_scope.cancel(reason="HTTP server ended")
    finally:
        # Hypercorn closes what it has taken over; this is for an end before that.
        for listening in sockets:
            listening.close()
    if not stop.is_set():
        # It may return normally on an event of its own while its neighbours run on.
        raise InvariantError("HTTP server ended on its own")


async def _bind(host: str, port: int) -> list[socket.socket]:
    # Not left to Hypercorn, which leaks the socket when binding fails and never asks for a name's second address.
    try:
        listeners = await trio.open_tcp_listeners(port, host=host, backlog=BACKLOG)
    except OSError as error:
        # The same kind of error, saying what it is about.
        raise type(error)(error.errno, f"Cannot listen on {host}:{port}: {error.strerror}") from error
    return [socket.socket(fileno=listener.socket.detach()) for listener in listeners]


async def _refuse_newcomers(closing: trio.Event, sockets: list[socket.socket]) -> None:
    """Stop listening, behind the back of Hypercorn, which can only do so together with dropping idle connections.

    The descriptors stay open and Hypercorn's, but from now on they are sockets at which nobody can arrive.
    """
    await closing.wait()
    for listening in sockets:
        with socket.socket(listening.family, listening.type) as deaf:
            os.dup2(deaf.fileno(), listening.fileno(), inheritable=False)


class _Settings(hypercorn.config.Config):
    """Hypercorn's settings, with sockets that are bound already."""

    def __init__(self, sockets: list[socket.socket], grace_s: float, tls: ssl.SSLContext | None) -> None:
        self._sockets = sockets
        self._tls = tls
        self.graceful_timeout = grace_s
        self.keep_alive_timeout = KEEP_ALIVE_S
        self.backlog = BACKLOG
        self.websocket_max_message_size = MAX_MESSAGE_BYTES
        self.include_server_header = False
        self.accesslog = None
        self.errorlog = _quiet_logger()

    def create_sockets(self) -> hypercorn.config.Sockets:
        """Hand over the bound sockets."""
        if self._tls is not None:
            return hypercorn.config.Sockets(self._sockets, [], [])
        return hypercorn.config.Sockets([], self._sockets, [])

    def create_ssl_context(self) -> ssl.SSLContext | None:
        """The context that the TCP listener uses too; this server speaks no HTTP/2."""
        return self._tls


class _PortStatus(trio.TaskStatus[list[str]]):
    """Turns Hypercorn's list of URLs into the port that our caller waits for."""

    def __init__(self, outer: trio.TaskStatus[int], port: int) -> None:
        self._outer = outer
        self._port = port

    def started(self, value: list[str] | None = None) -> None:
        self._outer.started(self._port)


class _Forward(logging.Handler):
    """Hands Hypercorn's complaints to our log."""

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        level = "error" if record.levelno >= logging.ERROR else "warning"
        getattr(get_logger("HTTP"), level)(record.getMessage(), **({"exc_info": error} if error else {}))


def _quiet_logger() -> logging.Logger:
    logger = logging.Logger("bunqueue_trio.hypercorn", logging.WARNING)
    logger.addHandler(_Forward())
    return logger
