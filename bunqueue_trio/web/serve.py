"""Hypercorn as a guest in our nursery: the doors are ours, the signals are ours, and it says nothing.

Of Hypercorn only the connection is used. Its own loop accepts without end, counts nobody, and can refuse newcomers only
together with dropping idle connections.
"""

import logging
import os
import socket
import ssl
import stat
from collections.abc import Sequence
from contextlib import suppress

import hypercorn.config
import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.events import Closed, RawData
from hypercorn.trio.lifespan import Lifespan
from hypercorn.trio.tcp_server import MAX_RECV, TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState

from bunqueue_trio.logs import get_logger
from bunqueue_trio.server.door import BACKLOG, Door, Tally
from bunqueue_trio.web.probes import HealthSource, Routes, create_app
from bunqueue_trio.web.transport import has_left, reset

MAX_MESSAGE_BYTES = 2 << 20  # of a WebSocket: twice what is taken, so that we say why before Hypercorn says nothing
KEEP_ALIVE_S = 10.0  # Wire: the reference drops a silent connection after 10 to 12 s
MAX_CONNECTIONS = 10_000
LOOK_EVERY_S = 0.25  # how often a client that waits behind its own bytes is looked after
UNREAD_MS = 60_000  # a client that takes nothing of an answer for so long is cut off, with what it holds in memory
_TOO_MANY = b'{"ok":false,"error":"Too many connections"}'
FAREWELL = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nConnection: close\r\n"
    b"Retry-After: 1\r\nContent-Length: %d\r\n\r\n%b" % (len(_TOO_MANY), _TOO_MANY)
)

Stream = trio.SocketStream | trio.SSLStream[trio.SocketStream]


async def serve_http(
    source: HealthSource,
    host: str,
    port: int,
    stop: trio.Event,
    grace_s: float,
    *,
    path: str | None = None,
    closing: trio.Event | None = None,
    rooms: Sequence[Routes] = (),
    tls: ssl.SSLContext | None = None,
    limit: int = MAX_CONNECTIONS,
    tally: Tally | None = None,
    task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve HTTP on *host*:*port* until *stop* is set; then requests in flight have *grace_s* seconds to end.

    With *path* the server listens on a Unix socket of that name instead; the file is removed in the end. With *tls* the
    listener speaks TLS only. Connections beyond *limit* are answered with 503; *tally* counts both.

    From *closing* on new connections are refused, while those that are open are served until *stop* (R280, H3).
    ``task_status.started`` gets the bound port once connections are accepted (of the first address, where *host* has
    several and *port* is 0; 0 for a Unix socket).

    Raises:
        OSError: The address cannot be bound or resolved; nothing stays bound.

    Cancel: closes the listener and all connections at once.
    """
    listeners = await _bind(host, port) if path is None else [bind_path(path)]
    inode = None if path is None else os.stat(path).st_ino
    settings = _Settings()
    context = WorkerContext(None)
    app = ASGIWrapper(create_app(source, rooms))
    lifespan = Lifespan(app, settings, {})
    try:
        async with trio.open_nursery() as lifespans:
            await lifespans.start(lifespan.handle_lifespan)
            await lifespan.wait_for_startup()
            async with trio.open_nursery() as connections:
                door = HttpDoor(app, settings, context, connections, limit, tls=tls, tally=tally)
                try:
                    async with trio.open_nursery() as doors:
                        for listener in listeners:
                            doors.start_soon(door.accept_from, listener)
                        task_status.started(0 if path is not None else int(listeners[0].socket.getsockname()[1]))
                        await (stop if closing is None else closing).wait()
                        doors.cancel_scope.cancel(reason="closing")
                    await stop.wait()
                    await context.terminated.set()
                    with trio.move_on_after(grace_s):
                        await door.wait_empty()
                finally:
                    door.reset_all()
                    connections.cancel_scope.cancel(reason="HTTP stops")
            await lifespan.wait_for_shutdown()
    finally:
        for listener in listeners:
            listener.socket.close()
        if path is not None and inode is not None:
            _remove(path, inode)


class _Connection(TCPServer):
    """A connection that is over once its client has gone.

    Hypercorn waits for its idle timer first. And it reads nothing while a request, or the queue of a WebSocket, holds
    up what came behind it, so that it would not see the end: a long poll would go on to take a job for nobody.
    """

    def __init__(self, app: ASGIWrapper, settings: "_Settings", context: WorkerContext, stream: Stream) -> None:
        super().__init__(app, settings, context, ConnectionState({}), stream)  # type: ignore[arg-type]
        self._life = trio.CancelScope()

    async def run(self) -> None:
        """Serve until either side has had enough."""
        with self._life:
            await super().run()

    async def _read_data(self) -> None:
        try:
            while data := await self.stream.receive_some(MAX_RECV):
                await self._hand_on(bytes(data))
        except (trio.ClosedResourceError, trio.BrokenResourceError):
            pass
        else:
            await self.protocol.handle(RawData(b""))
        await self.protocol.handle(Closed())
        await self.idle_task.stop()

    async def _hand_on(self, data: bytes) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch)
            await self.protocol.handle(RawData(data))
            nursery.cancel_scope.cancel(reason="handed on")

    async def _watch(self) -> None:
        """End the connection if its client leaves before the bytes have been taken."""
        left = False
        while not left:
            await trio.sleep(LOOK_EVERY_S)
            left = has_left(self.stream)
        await trio.sleep(LOOK_EVERY_S)  # what is soon answered still is, for who has closed one half only
        reset(self.stream)
        self._life.cancel(reason="client has left")


class HttpDoor(Door[Stream]):
    """The door for HTTP clients: each connection is Hypercorn's."""

    def __init__(
        self,
        app: ASGIWrapper,
        settings: "_Settings",
        context: WorkerContext,
        sessions: trio.Nursery,
        limit: int,
        *,
        tls: ssl.SSLContext | None = None,
        tally: Tally | None = None,
    ) -> None:
        super().__init__("HTTP", sessions, limit, b"" if tls is not None else FAREWELL, tally=tally)
        self._app = app
        self._settings = settings
        self._context = context
        self._tls = tls
        self._streams: set[Stream] = set()
        self._became_empty = trio.Event()

    def open_stream(self, sock: socket.socket) -> Stream:
        """Set up an accepted socket."""
        if sock.family != socket.AF_UNIX and hasattr(socket, "TCP_USER_TIMEOUT"):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNREAD_MS)
        stream = trio.SocketStream(trio.socket.from_stdlib_socket(sock))
        if self._tls is None:
            return stream
        return trio.SSLStream(stream, self._tls, server_side=True, https_compatible=True)

    async def serve(self, stream: Stream) -> None:
        """Requests, one after the other, until either side has enough."""
        self._streams.add(stream)
        try:
            await self._see_through(stream)
        finally:
            self._streams.remove(stream)
            if not self._streams:
                self._became_empty.set()
            await trio.aclose_forcefully(stream)

    async def _see_through(self, stream: Stream) -> None:
        """One connection. Bytes that Hypercorn and its parsers cannot read may raise anything, and any stranger
        may send them: they end the connection, and nothing else.
        """
        try:
            await _Connection(self._app, self._settings, self._context, stream).run()
        except* Exception as errors:
            self._complain("HTTP connection ended by an error", error=repr(_first(errors)))

    async def wait_empty(self) -> None:
        """Until no connection is open."""
        while self._streams:
            self._became_empty = trio.Event()
            await self._became_empty.wait()

    def reset_all(self) -> None:
        """End every connection. Hypercorn shields its writes from cancellation: one to a client that does not read
        would hold up the stop for as long as that client likes.
        """
        for stream in self._streams:
            reset(stream)


def _first(errors: BaseException) -> BaseException:
    while isinstance(errors, BaseExceptionGroup):
        errors = errors.exceptions[0]
    return errors


async def _bind(host: str, port: int) -> list[trio.SocketListener]:
    try:
        return await trio.open_tcp_listeners(port, host=host, backlog=BACKLOG)
    except OSError as error:
        # The same kind of error, saying what it is about.
        raise type(error)(error.errno, f"Cannot listen on {host}:{port}: {error.strerror}") from error


def bind_path(path: str) -> trio.SocketListener:
    """Listen on a Unix socket; one that is there but that nobody answers on is replaced (C6).

    Raises:
        OSError: somebody listens there, the file is no socket, or its folder cannot be used.
    """
    listening = socket.socket(socket.AF_UNIX)
    try:
        with suppress(FileNotFoundError):
            if stat.S_ISSOCK(os.stat(path).st_mode) and not _is_answered(path):
                os.unlink(path)
        listening.bind(path)
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        # "AF_UNIX path too long" comes without a number.
        raise OSError(error.errno, f"Cannot listen on {path}: {error.strerror or error}") from error
    return trio.SocketListener(trio.socket.from_stdlib_socket(listening))


def _is_answered(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            return False
        except OSError:
            pass  # its queue is full, or we may not ask: somebody may be there
        return True


def _remove(path: str, inode: int) -> None:
    """Remove our socket, unless somebody else has put another one there."""
    with suppress(OSError):
        if os.stat(path).st_ino == inode:
            os.unlink(path)


class _Settings(hypercorn.config.Config):
    """Hypercorn's settings, as far as its connections read them."""

    def __init__(self) -> None:
        self.keep_alive_timeout = KEEP_ALIVE_S
        self.websocket_max_message_size = MAX_MESSAGE_BYTES
        self.include_server_header = False
        self.accesslog = None
        self.errorlog = _quiet_logger()


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
