"""An event in the forms in which clients read it. Each form is made once, however many read it, and only if one does.

Source: HTTP, "Server-Sent Events", "Event form"; "WebSocket", "Events".
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET

from bunqueue_trio.model.events import Event, JobEvent
from bunqueue_trio.protocol.event_names import event_name
from bunqueue_trio.protocol.json_bodies import json_of
from bunqueue_trio.protocol.json_text import json_number

_encode = msgspec.json.Encoder().encode
_pack = msgspec.msgpack.Encoder().encode


class Telling:
    """One event on its way to clients. ``name`` is what they call it, ``queue`` None where it concerns all."""

    __slots__ = ("_data", "_legacy", "_message", "_record", "event", "name", "number", "queue")

    def __init__(self, event: Event) -> None:
        self.event = event
        self.number = 0
        """Its id among server-sent events; 0: none."""
        self._data: bytes | None = None
        self._record: bytes | None = None
        self._message: str | None = None
        self._legacy: str | None = None
        if isinstance(event, JobEvent):
            self.name = event_name(event.event_type)
            self.queue: str | None = event.queue
        else:
            self.name = event.event
            queue = event.data.get("queue")
            self.queue = queue if type(queue) is str else None

    @property
    def is_of_job(self) -> bool:
        """Whether it comes from the queues themselves."""
        return type(self.event) is JobEvent

    def concerns(self, queue: str | None) -> bool:
        """Whether somebody who watches *queue* (None: all) is told."""
        return queue is None or self.queue is None or self.queue == queue

    @property
    def size_bytes(self) -> int:
        """What it takes to keep one form of it, about."""
        return 200 + self.event.payload_bytes

    @property
    def record(self) -> bytes:
        """As a server-sent event. Never holds data of jobs or results."""
        if self._record is None:
            self._record = b"id: %d\nevent: %b\ndata: %b\n\n" % (self.number, self.name.encode(), self._shown())
        return self._record

    def text(self) -> str:
        """As a subscriber's message. Never holds data of jobs or results."""
        if self._message is None:
            event = self.event
            ts = event.timestamp if isinstance(event, JobEvent) else event.ts
            data = _encode(_fields(event)) if isinstance(event, JobEvent) else self._shown()
            text = b'{"event":%b,"ts":%b,"data":%b}' % (_encode(self.name), _encode(json_number(ts)), data)
            self._message = text.decode()
        return self._message

    def legacy_text(self) -> str:
        """As the message of a socket that has never subscribed: the bare job event, its payload included (HD-15).

        Cost: about 0.3 µs per value of the payload.
        """
        if self._legacy is None:
            self._legacy = json_of(_pack(self.event)).decode()
        return self._legacy

    def _shown(self) -> bytes:
        if self._data is None:
            event = self.event
            if isinstance(event, JobEvent):
                self._data = _encode(_fields(event, timestamp=json_number(event.timestamp)))
            else:
                self._data = json_of(_pack(event.data))
        return self._data


def _fields(event: JobEvent, **more: Any) -> dict[str, Any]:
    fields = {"queue": event.queue, "jobId": event.job_id, **more}
    for name in ("error", "progress", "prev", "delay"):
        value = getattr(event, name)
        if value is not UNSET:
            fields[name] = json_number(value)
    return fields
