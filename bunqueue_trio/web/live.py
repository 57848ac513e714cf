"""The live streams: ``/events`` for server-sent events, ``/ws`` for WebSockets.

Source: HTTP, "Server-Sent Events", "WebSocket"; HD-13, HD-14.
"""

from __future__ import annotations

from typing import Any, Final

import trio
from quart import Response, g, request, websocket
from quart_trio import QuartTrio

from bunqueue_trio.errors import AuthError, LimitError
from bunqueue_trio.model import commands as c
from bunqueue_trio.server.broker import Broker
from bunqueue_trio.server.feed import Reader
from bunqueue_trio.server.holding import Hold, see_through
from bunqueue_trio.server.live import Live
from bunqueue_trio.server.live_socket import LiveSocket
from bunqueue_trio.server.replay import parse_last_id
from bunqueue_trio.server.roles import Role
from bunqueue_trio.web.gate import check_permitted
from bunqueue_trio.web.paths import decoded, segments_of
from bunqueue_trio.web.probes import json_response
from bunqueue_trio.web.responses import hand_over
from bunqueue_trio.web.transport import Transport, transport_of

MAX_MESSAGE_BYTES = 1 << 20  # Wire
TOO_BIG: Final = (1009, "Received too big message")
MAX_UNCONFIRMED = 1_000  # replies of one socket that may wait for a commit before more is read
MAX_BACKLOG = 50  # messages of one socket that may wait behind fifty parked pulls
PING_AFTER_S = 100.0  # Wire: a silent client is pinged after some 104 s, and cut off after 120 s
SILENT_S = 120.0
LOOK_EVERY_S = 4.0
TEXT: Final = "text/plain;charset=utf-8"


class LiveRoutes:
    """Adds the live streams to an application."""

    def __init__(self, broker: Broker, live: Live) -> None:
        self._broker = broker
        self._live = live

    def add_to(self, app: QuartTrio) -> None:
        """Answer ``/events``, ``/ws`` and all below them, by any method."""
        app.before_request(self._dispatch)
        for path in ("/ws", "/ws/", "/ws/<path:rest>"):
            app.add_websocket(path, path, self._serve_socket)

    async def _dispatch(self) -> Response | None:
        segments = segments_of(request.scope)
        if segments[0] == "ws":
            return Response("WebSocket upgrade failed", status=400, content_type=TEXT)
        if segments[0] != "events":
            return None
        try:
            check_permitted(c.Stats)
            queue = watched_queue(segments)
            cut = transport_of(request.scope).cut
            last_number = parse_last_id(request.headers.get("Last-Event-ID"))
            reader = self._live.open_reader(queue, last_number, cut, g.get("roles", Role.ALL))
        except LimitError as error:
            return Response(str(error), status=503, content_type=TEXT)
        except AuthError as error:
            return json_response({"ok": False, "error": str(error)}, 403)
        except ValueError:
            return json_response({"ok": False, "error": "Invalid percent-encoding in the path"}, 400)
        stream = Stream(self._live, reader)
        hand_over(request.scope, stream)
        headers = {"Cache-Control": "no-cache", "Connection": "keep-alive", "X-Accel-Buffering": "no"}
        response = Response(stream, headers=headers, content_type="text/event-stream")
        response.timeout = None
        return response

    async def _serve_socket(self, rest: str = "") -> Response | None:
        transport = transport_of(websocket.scope)
        try:
            queue = watched_queue(segments_of(websocket.scope))
        except ValueError:
            return json_response({"ok": False, "error": "Invalid percent-encoding in the path"}, 400)
        slot = _Slot()
        try:
            with self._live.open_socket(queue, g.get("roles", Role.ALL), slot.free, transport.cut) as socket:
                offered = websocket.requested_subprotocols
                await websocket.accept(subprotocol=offered[0] if offered else None)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(_write, socket)
                    nursery.start_soon(_keep_alive, transport)
                    nursery.start_soon(self._use_slots, socket, slot)
                    await self._read(socket, slot)
                    nursery.cancel_scope.cancel(reason="message too big")
        except LimitError as error:
            return json_response({"ok": False, "error": str(error)}, 503)
        return None

    async def _read(self, socket: LiveSocket, slot: _Slot) -> None:
        """Carry out what comes, until it is too big; the end of the connection cancels it."""
        session, broker = socket.session, self._broker
        while True:
            message: Any = await websocket.receive()
            text = message.encode() if isinstance(message, str) else message
            if len(text) > MAX_MESSAGE_BYTES:
                await websocket.close(*TOO_BIG)
                return
            hold = socket.receive(text)
            if hold is not None:
                await see_through(session, broker, hold)
            while session.unconfirmed_count >= MAX_UNCONFIRMED or broker.must_wait_for_room:
                await broker.wait_for_flush()
            while session.backlog_count >= MAX_BACKLOG:
                await slot.wait_used()
            await socket.wait_for_room()

    async def _use_slots(self, socket: LiveSocket, slot: _Slot) -> None:
        while True:
            await slot.wait_free()
            await see_through(socket.session, self._broker, Hold([]))
            slot.note_used()


class Stream:
    """The body of a response that ends when its reader does."""

    def __init__(self, live: Live, reader: Reader) -> None:
        self._live = live
        self._reader = reader

    def __aiter__(self) -> Stream:
        return self

    async def __anext__(self) -> bytes:
        piece = await self._reader.next()
        if not piece:
            raise StopAsyncIteration
        return piece

    def keep(self) -> None:
        """The response is over."""
        self._live.close_reader(self._reader)

    give_back = keep


class _Slot:
    """Tells that a parked pull has ended, and that those behind it have been seen to."""

    def __init__(self) -> None:
        self._free = trio.Event()
        self._used = trio.Event()

    def free(self) -> None:
        self._free.set()

    async def wait_free(self) -> None:
        await self._free.wait()
        self._free = trio.Event()

    def note_used(self) -> None:
        used, self._used = self._used, trio.Event()
        used.set()

    async def wait_used(self) -> None:
        await self._used.wait()


def watched_queue(segments: tuple[str, ...]) -> str | None:
    """The queue that a path below ``/events`` or ``/ws`` names; None for all.

    Raises:
        ValueError: a bad escape.
    """
    if len(segments) < 3 or segments[1] != "queues":
        return None
    return decoded("/".join(segments[2:])) or None


async def _write(socket: LiveSocket) -> None:
    while True:
        await websocket.send(await socket.next())


async def _keep_alive(transport: Transport) -> None:
    """Ping who is silent; cut off who stays silent."""
    pinged_s = 0.0
    while True:
        await trio.sleep(LOOK_EVERY_S)
        now_s = trio.current_time()
        if now_s - transport.heard_s >= SILENT_S:
            transport.cut()
            return
        if now_s - transport.heard_s >= PING_AFTER_S and pinged_s <= transport.heard_s:
            pinged_s = now_s
            await transport.ping()
