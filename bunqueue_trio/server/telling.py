"""An event in the forms in which clients read it. Each form is made once, however many read it, and only if one does.

Source: HTTP, "Server-Sent Events", "Event form"; "WebSocket", "Events".
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, structs

from bunqueue_trio.model import commands as c
from bunqueue_trio.model.events import Event, JobEvent
from bunqueue_trio.protocol.event_names import name_of, queue_of, shown
from bunqueue_trio.protocol.json_bodies import json_of
from bunqueue_trio.protocol.json_text import json_number
from bunqueue_trio.server.roles import Role, permitted

_encode = msgspec.json.Encoder().encode
_pack = msgspec.msgpack.Encoder().encode


class Telling:
    """One event on its way to clients. ``name`` is what they call it, ``queue`` None where it concerns all."""

    __slots__ = ("_legacy", "_message", "_record", "event", "name", "number", "queue")

    def __init__(self, event: Event, number: int = 0) -> None:
        self.event = event
        self.number = number
        """Its id among server-sent events; 0: none."""
        self._record: bytes | None = None
        self._message: str | None = None
        self._legacy: str | None = None
        self.name = name_of(event)
        self.queue = queue_of(event)

    @property
    def is_of_job(self) -> bool:
        """Whether it comes from the queues themselves."""
        return type(self.event) is JobEvent

    def concerns(self, queue: str | None) -> bool:
        """Whether somebody who watches *queue* (None: all) is told."""
        return queue is None or self.queue is None or self.queue == queue

    def is_open_to(self, roles: Role) -> bool:
        """Whether somebody with these roles is told. The URL of a webhook is a secret: who may not list them hears
        nothing of them.
        """
        return (c.ListWebhooks if self.name.startswith("webhook:") else c.Stats) in permitted(roles)

    @property
    def size_bytes(self) -> int:
        """What it takes to keep one form of it, about."""
        return 200 + self.event.payload_bytes

    @property
    def record(self) -> bytes:
        """As a server-sent event. Never holds data of jobs or results."""
        if self._record is None:
            data = _json(shown(self.event, has_timestamp=True))
            self._record = b"id: %d\nevent: %b\ndata: %b\n\n" % (self.number, self.name.encode(), data)
        return self._record

    def text(self) -> str:
        """As a subscriber's message. Never holds data of jobs or results."""
        if self._message is None:
            event = self.event
            ts = event.timestamp if isinstance(event, JobEvent) else event.ts
            data = _json(shown(event, has_timestamp=False))
            text = b'{"event":%b,"ts":%b,"data":%b}' % (_encode(self.name), _encode(json_number(ts)), data)
            self._message = text.decode()
        return self._message

    def legacy_text(self) -> str:
        """As the message of a socket that has never subscribed: the bare job event, its payload included (HD-15).

        Cost: about 0.3 µs per value of the payload.
        """
        if self._legacy is None:
            event = self.event
            if isinstance(event, JobEvent) and event.terminal is not UNSET:
                event = structs.replace(event, terminal=UNSET)  # Wire: unknown there
            self._legacy = json_of(_pack(event)).decode()
        return self._legacy


def _json(data: dict[str, Any]) -> bytes:
    """Compact, whole numbers without a point."""
    return _encode({name: json_number(value) if type(value) is float else value for name, value in data.items()})
