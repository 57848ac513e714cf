"""What happens to jobs and to the server, as one stream that webhooks, subscribers over TCP, server-sent events and
WebSockets share.

An event is made only when somebody listens. The engine collects `JobEvent`s in a list that exists only then, and the
broker hands that list to the fan-out once per turn; so a server without listeners pays one comparison with None.
"""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, Raw, Struct, UnsetType


class JobEvent(Struct, frozen=True, rename="camel", omit_defaults=True, gc=False):
    """Something has happened to a job.

    Shape: ``{"eventType": str, "queue": str, "jobId": str, "timestamp": epoch ms, "data"?: payload, "error"?: str,
    "progress"?: number, "prev"?: str, "delay"?: ms, "terminal"?: bool}``

    ``data`` by type: ``completed`` the result, ``failed`` the job's data, ``progress`` the map ``{progress, message}``,
    ``stalled`` the map ``{stallCount, action}``; canonical msgpack, shared with the job and never copied. ``prev`` is
    the state before, ``delay`` the pause in ms of a job moved to delayed. ``terminal`` says of a failed attempt whether
    it was the last; it is for subscribers over TCP only.

    Types: pushed, duplicated, pulled, completed, failed, retried, progress, delayed, waiting, waiting-children,
    removed, stalled; paused and resumed concern a queue and have an empty ``jobId``.

    Source: scheduling and flows, "Job events"; newer clients, "Events".
    """

    event_type: str
    queue: str
    job_id: str
    timestamp: float
    data: Raw | UnsetType = UNSET
    error: str | UnsetType = UNSET
    progress: float | UnsetType = UNSET
    prev: str | UnsetType = UNSET
    delay: float | UnsetType = UNSET
    terminal: bool | UnsetType = UNSET

    @property
    def payload_bytes(self) -> int:
        """How much memory the event keeps alive beyond itself, about."""
        data = self.data
        size = 0 if data is UNSET else len(data)
        return size if self.error is UNSET else size + len(self.error)


class NewerJobEvent(JobEvent, frozen=True, rename="camel", omit_defaults=True, gc=False):
    """A `JobEvent` that only subscribers over TCP are told of: others know a protocol in which it does not occur."""


class SystemEvent(Struct, frozen=True, gc=False):
    """Something has happened that is about no single job: ``webhook:added``, ``cron:fired``, ``worker:connected``.

    Shape: ``{"event": str, "ts": epoch ms, "data": map}``; ``data`` holds plain values only.
    """

    event: str
    ts: float
    data: dict[str, Any]

    @property
    def payload_bytes(self) -> int:
        """As in `JobEvent`: nothing that counts."""
        return 0


Event = JobEvent | SystemEvent
