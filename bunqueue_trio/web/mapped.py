"""Routes that are commands of the wire: fields come from a JSON body, the reply goes out as JSON.

Source: HTTP, "Bodies" and "Status codes of mapped commands"; HD-5.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Protocol

import msgspec
from quart import Response, request

from bunqueue_trio.errors import CommandError, ProtocolError
from bunqueue_trio.model.replies import ErrorReply, Reply
from bunqueue_trio.protocol.codec import decode_command
from bunqueue_trio.protocol.payloads import from_python, to_python
from bunqueue_trio.web.access import Access, unauthorized
from bunqueue_trio.web.probes import json_response
from bunqueue_trio.web.queues import whole_numbers

INVALID_BODY = "Invalid JSON body"


class Commands(Protocol):
    """What such routes ask of the server."""

    async def answer(self, command: Any) -> Reply:
        """Carry out a command and wait for its commit; an `ErrorReply` when it is refused."""
        ...


class InvalidBodyError(ValueError):
    """The body of the request is no JSON object, or holds what no command can."""


async def required_body() -> dict[str, Any]:
    """The JSON object that the request must carry.

    Raises:
        InvalidBodyError: empty, no JSON, or JSON of another kind.
    """
    try:
        body = msgspec.json.decode(await request.get_data())
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        body = None
    if not isinstance(body, dict):
        raise InvalidBodyError
    return body


async def optional_body() -> dict[str, Any]:
    """The same, where an empty or blank body stands for an object without fields."""
    return await required_body() if (await request.get_data()).strip() else {}


async def lenient_body() -> dict[str, Any]:
    """The same, where whatever is no JSON object stands for one without fields."""
    try:
        return await required_body()
    except InvalidBodyError:
        return {}


def command_of(cmd: str, body: dict[str, Any], fields: Iterable[str], **path: str) -> Any:
    """The command of that name: of the body only *fields* count, and nothing there overrides what the *path* says.

    Raises:
        InvalidBodyError: a value that no client of the wire could send.
    """
    given = {name: body[name] for name in fields if name in body}
    try:
        return decode_command(bytes(from_python({"cmd": cmd, **given, **path})))
    except (CommandError, ProtocolError) as error:
        raise InvalidBodyError from error


class MappedRoutes:
    """What routes of this kind have in common.

    Args:
        tokens: one of them must be presented as ``Authorization: Bearer <token>``; empty: nobody has to.
    """

    def __init__(self, server: Commands, tokens: tuple[str, ...]) -> None:
        self._server = server
        self._access = Access(tokens)

    async def from_body(
        self,
        read: Callable[[], Awaitable[dict[str, Any]]],
        cmd: str,
        fields: Iterable[str],
        refused_status: int,
        **path: str,
    ) -> Response:
        """As `answer`, for the command that `command_of` makes of the body. Nothing is read of a stranger's."""
        if not self._access.is_granted:
            return unauthorized()
        try:
            command = command_of(cmd, await read(), fields, **path)
        except InvalidBodyError:
            return json_response({"ok": False, "error": INVALID_BODY}, 400)
        return await self.answer(command, refused_status)

    async def answer(self, command: Any, refused_status: int) -> Response:
        """The reply to *command* as JSON, with *refused_status* where it is refused."""
        if not self._access.is_granted:
            return unauthorized()
        reply = await self._server.answer(command)
        shown = whole_numbers(to_python(msgspec.Raw(msgspec.msgpack.encode(reply))))
        return json_response(shown, refused_status if isinstance(reply, ErrorReply) else 200)
