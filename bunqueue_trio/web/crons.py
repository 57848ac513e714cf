"""Routes about crons: the four commands of the wire, with the same maps as JSON.

Source: HTTP, "Crons"; scheduling and flows, "Commands and reply shapes".
"""

from __future__ import annotations

from typing import Any, Protocol

import msgspec
from quart import Response, request
from quart_trio import QuartTrio

from bunqueue_trio.errors import CommandError, ProtocolError
from bunqueue_trio.model import commands as c
from bunqueue_trio.model.replies import ErrorReply, Reply
from bunqueue_trio.protocol.codec import decode_command
from bunqueue_trio.protocol.payloads import from_python, to_python
from bunqueue_trio.web.access import Access, unauthorized
from bunqueue_trio.web.probes import json_response
from bunqueue_trio.web.queues import whole_numbers

INVALID_BODY = "Invalid JSON body"


class Commands(Protocol):
    """What these routes ask of the server."""

    async def answer(self, command: Any) -> Reply:
        """Carry out a command and wait for its commit; an `ErrorReply` when it is refused."""
        ...


class CronRoutes:
    """Adds the routes to an application.

    Args:
        tokens: one of them must be presented as ``Authorization: Bearer <token>``; empty: nobody has to.
    """

    def __init__(self, server: Commands, tokens: tuple[str, ...]) -> None:
        self._server = server
        self._access = Access(tokens)

    def add_to(self, app: QuartTrio) -> None:
        """Register every route of this room."""
        app.add_url_rule("/crons", "crons", self._list, methods=["GET"])
        app.add_url_rule("/crons", "crons-put", self._put, methods=["POST"])
        app.add_url_rule("/crons/<path:name>", "cron", self._get, methods=["GET"])
        app.add_url_rule("/crons/<path:name>", "cron-delete", self._delete, methods=["DELETE"])

    async def _list(self) -> Response:
        return await self._answer(c.CronList(), 400)

    async def _get(self, name: str) -> Response:
        return await self._answer(c.CronGet(name=name), 404)

    async def _delete(self, name: str) -> Response:
        return await self._answer(c.CronDelete(name=name), 404)

    async def _put(self) -> Response:
        if not self._access.is_granted:
            return unauthorized()
        try:
            body = msgspec.json.decode(await request.get_data())
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            body = None
        if not isinstance(body, dict):
            return json_response({"ok": False, "error": INVALID_BODY}, 400)
        try:
            command = decode_command(bytes(from_python({**body, "cmd": "Cron"})))
        except (CommandError, ProtocolError):
            return json_response({"ok": False, "error": INVALID_BODY}, 400)
        return await self._answer(command, 400)

    async def _answer(self, command: Any, refused_status: int) -> Response:
        if not self._access.is_granted:
            return unauthorized()
        reply = await self._server.answer(command)
        shown = whole_numbers(to_python(msgspec.Raw(msgspec.msgpack.encode(reply))))
        return json_response(shown, refused_status if isinstance(reply, ErrorReply) else 200)
