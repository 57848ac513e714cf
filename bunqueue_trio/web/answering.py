"""Carries out the rows of the route table: request to command, reply to response."""

from __future__ import annotations

from inspect import isawaitable
from typing import Any

import msgspec
from msgspec import UNSET
from quart import Response, request
from quart_trio import QuartTrio

from bunqueue_trio.errors import AuthError, ValidationError
from bunqueue_trio.model.replies import ErrorReply, ResultReply
from bunqueue_trio.protocol.codec import encode_reply
from bunqueue_trio.protocol.json_bodies import INVALID_BODY, command_of, json_of, object_of
from bunqueue_trio.server.answering import INTERNAL_ERROR, Request
from bunqueue_trio.server.broker import Broker
from bunqueue_trio.server.overviews import Overviews
from bunqueue_trio.web.gate import Gate, check_permitted, refuse_foreign
from bunqueue_trio.web.openapi import document_text
from bunqueue_trio.web.paths import PathTable, decoded, segments_of
from bunqueue_trio.web.probes import json_response
from bunqueue_trio.web.responses import hand_over, off_loop
from bunqueue_trio.web.routes import OPENAPI, ROUTES, Asked, Body, Route

PROMETHEUS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class CommandRoutes:
    """Adds the whole route table to an application.

    Args:
        gate: which requests come from pages of somebody else.
    """

    def __init__(self, broker: Broker, gate: Gate) -> None:
        self._broker = broker
        self._gate = gate
        self._overviews = Overviews(broker)
        self._table: PathTable[Route] = PathTable()
        for route in ROUTES:
            self._table.add(route.method, route.pattern, route)

    def add_to(self, app: QuartTrio) -> None:
        """Answer what stands in the table; everything else goes on to the rules of the application."""
        app.before_request(self._dispatch)

    async def _dispatch(self) -> Response | None:
        found = self._table.find(request.method, segments_of(request.scope))
        if found is None:
            return None
        route, parameters = found
        try:
            check_permitted(route.kind)
            if route.has_effects and self._gate.is_foreign(request.headers):
                return refuse_foreign()
            asked = await _asked(route, parameters)
            if route.look == OPENAPI:
                return Response(document_text(), content_type="application/json")
            if route.look:
                return await self._look(route, asked)
            command = await off_loop(asked.body_bytes, lambda: command_of(_name_of(route.kind), route.fields_of(asked)))
        except ValidationError as error:
            return refusal(str(error), 400)
        except AuthError as error:
            return refusal(str(error), 403)
        return await self._carry_out(route, command)

    async def _carry_out(self, route: Route, command: Any) -> Response:
        asking = Request(self._broker, command)
        # From here on the response's way out decides: what was pulled is kept, or goes back.
        hand_over(request.scope, asking)
        reply = await asking.carry_out()
        body = asking.body
        if isinstance(reply, ResultReply) and reply.result is UNSET:
            reply.result = None  # Wire: over HTTP what is absent is null
            body = encode_reply(reply)[1]
        try:
            text = await off_loop(len(body), lambda: json_of(body))
        except Exception:
            asking.give_back()  # the client will see an error, and no job
            raise
        status = 200
        if isinstance(reply, ErrorReply):
            status = 500 if reply.error == INTERNAL_ERROR else route.refused
        return Response(text, status=status, content_type="application/json")

    async def _look(self, route: Route, asked: Asked) -> Response:
        shown = getattr(self._overviews, route.look)(**route.fields_of(asked))
        if isawaitable(shown):
            shown = await shown
        if isinstance(shown, str):
            return Response(shown, content_type=PROMETHEUS_TYPE)
        body = msgspec.msgpack.encode(shown)
        return Response(await off_loop(len(body), lambda: json_of(body)), content_type="application/json")


def refusal(text: str, status: int) -> Response:
    """The answer to a request that comes to no command."""
    return json_response({"ok": False, "error": text}, status)


async def _asked(route: Route, parameters: dict[str, str]) -> Asked:
    try:
        path = {name: decoded(segment) for name, segment in parameters.items()}
    except ValueError:
        raise ValidationError("Invalid percent-encoding in the path") from None
    text: Any = b"" if route.body is Body.UNREAD else await request.get_data(as_text=False)
    return Asked(path, request.args, await _fields(route.body, text), len(text))


async def _fields(reading: Body, text: bytes) -> dict[str, Any]:
    try:
        if text.strip():
            return await off_loop(len(text), lambda: object_of(text))
        if reading is Body.REQUIRED:
            raise ValidationError(INVALID_BODY)
    except ValidationError:
        if reading is not Body.LENIENT:
            raise
    return {}


def _name_of(kind: Any) -> str:
    return str(kind.__struct_config__.tag)
