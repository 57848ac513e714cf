"""What a receiver gets: body, headers, signature. The same bytes at every try.

Source: scheduling and flows, "Delivery".
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Final

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from bunqueue_trio.model.events import JobEvent
from bunqueue_trio.protocol.json_text import json_number, json_text

WEBHOOK_NAMES: Final = {
    "pushed": "job.pushed",
    "pulled": "job.started",
    "completed": "job.completed",
    "failed": "job.failed",
    "progress": "job.progress",
}
"""The types of events that webhooks know, and their names there."""

MAX_BODY_BYTES = 32 << 20  # 10 MiB of UTF-16 units are at most 30 MiB of UTF-8

_encode = msgspec.json.Encoder().encode


class BodyTooLargeError(ValueError):
    """The event makes a body that is not sent."""


class _Body(Struct, omit_defaults=True, rename="camel", gc=False):
    """Wire: the order of the keys is promised."""

    event: str
    timestamp: float
    job_id: str
    queue: str
    data: Raw | UnsetType = UNSET
    error: str | UnsetType = UNSET
    progress: float | UnsetType = UNSET


def webhook_body(event: JobEvent) -> bytes:
    """The JSON text about *event*.

    Raises:
        BodyTooLargeError: longer than `MAX_BODY_BYTES`, or more binary than is written out.

    Cost: about 3 µs, and 0.5 µs per value of the payload; for large payloads call it in a thread.
    """
    body = _Body(WEBHOOK_NAMES[event.event_type], json_number(event.timestamp), event.job_id, event.queue)
    try:
        # Wire: of progress only the number is sent, although the event has the message too.
        if event.event_type in ("completed", "failed") and event.data is not UNSET and len(event.data):
            body.data = Raw(json_text(event.data))
    except ValueError as error:
        raise BodyTooLargeError(str(error)) from error
    if event.event_type == "failed":
        body.error = event.error
    if event.event_type == "progress" and event.progress is not UNSET:
        body.progress = json_number(event.progress)
    text = _encode(body)
    if len(text) > MAX_BODY_BYTES:
        raise BodyTooLargeError(f"a body of {len(text)} bytes")
    return text


def webhook_headers(event: JobEvent, body: bytes, secret: str | None) -> list[tuple[str, str]]:
    """The headers that belong to *body*. Signed when there is a secret, over exactly these bytes."""
    headers = [
        ("Content-Type", "application/json"),
        ("X-Webhook-Event", WEBHOOK_NAMES[event.event_type]),
        ("X-Webhook-Timestamp", str(json_number(event.timestamp))),
    ]
    if secret:
        key = secret.encode("utf-8", "surrogatepass")
        headers.append(("X-Webhook-Signature", hmac.new(key, body, hashlib.sha256).hexdigest()))
    return headers
