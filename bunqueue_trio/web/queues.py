"""Routes about queues: the dead letters, with what the wire protocol does not show of them.

Source: HTTP, "Queues"; commands, "Dead letter queue".
"""

from __future__ import annotations

import math
from typing import Any, Protocol

import msgspec
from quart import Response, request
from quart_trio import QuartTrio

from bunqueue_trio.model.entries import DlqEntry
from bunqueue_trio.protocol.json_bodies import json_of
from bunqueue_trio.web.access import Access, unauthorized
from bunqueue_trio.web.probes import json_response
from bunqueue_trio.web.responses import off_loop

PAGE_MAX = 1_000  # entries of one answer; each may carry a payload of 10 MB


class QueueReader(Protocol):
    """What these routes ask of the server. Synchronous; nothing scans."""

    def dead_letters(self, queue: str) -> list[DlqEntry]:
        """The dead letters of a queue, oldest first."""
        ...

    def dead_letter_statistics(self, queue: str) -> dict[str, Any]:
        """Their number by reason, and their times."""
        ...


class QueueRoutes:
    """Adds the routes to an application.

    Args:
        tokens: one of them must be presented as ``Authorization: Bearer <token>``; empty: nobody has to.
    """

    def __init__(self, reader: QueueReader, tokens: tuple[str, ...]) -> None:
        self._reader = reader
        self._access = Access(tokens)

    def add_to(self, app: QuartTrio) -> None:
        """Register every route of this room."""
        app.add_url_rule("/queues/<queue>/dlq", "dlq", self._dlq, methods=["GET"])
        app.add_url_rule("/queues/<queue>/dlq/stats", "dlq-stats", self._statistics, methods=["GET"])

    async def _dlq(self, queue: str) -> Response:
        if not self._access.is_granted:
            return unauthorized()
        entries = self._reader.dead_letters(queue)
        offset = _whole(request.args.get("offset"), 0)
        limit = min(_whole(request.args.get("limit"), PAGE_MAX), PAGE_MAX)
        page = entries[offset : offset + limit]
        body = msgspec.msgpack.encode({"ok": True, "entries": page, "total": len(entries)})
        return Response(await off_loop(len(body), lambda: json_of(body)), content_type="application/json")

    async def _statistics(self, queue: str) -> Response:
        if not self._access.is_granted:
            return unauthorized()
        return json_response({"ok": True, "stats": whole_numbers(self._reader.dead_letter_statistics(queue))})


def _whole(text: str | None, default: int) -> int:
    """A number of the query: truncated, not below 0; *default* where it is absent or no number."""
    if text is None:
        return default
    try:
        value = float(text) if text else 0.0
    except ValueError:
        return default
    return max(0, math.trunc(value)) if math.isfinite(value) else default


def whole_numbers(value: Any) -> Any:
    """*value* with its whole floats as integers, which JSON shows without a point."""
    if isinstance(value, dict):
        return {key: whole_numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [whole_numbers(item) for item in value]
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    return value
