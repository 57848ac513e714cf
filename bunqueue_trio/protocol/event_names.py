"""Events as streams show them: their names, what may be subscribed to, and what is said of each.

Source: HTTP, "Server-Sent Events" and "WebSocket".
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec import UNSET

from bunqueue_trio.model.events import Event, JobEvent

ANY = "*"
_JOB_NAMES = {"pulled": "job:active"}  # Wire: the one that is called otherwise
_SHOWN = ("error", "progress", "prev", "delay")

_KINDS = {
    "job": "pushed active completed failed removed promoted progress delayed stalled retried discarded priority-changed"
    " data-updated delay-changed timeout lock-expired deduplicated waiting-children dependencies-resolved"
    " moved-to-delayed expired",
    "queue": "created removed paused resumed drained cleaned obliterated counts idle threshold",
    "dlq": "added retried retry-all purged auto-retried expired",
    "flow": "completed failed",
    "cron": "created updated deleted fired missed skipped",
    "worker": "connected disconnected heartbeat idle removed-stale overloaded error",
    "ratelimit": "set cleared hit rejected",
    "concurrency": "set cleared rejected",
    "webhook": "added removed fired failed enabled disabled",
    "batch": "pushed pulled",
    "client": "connected disconnected",
    "auth": "failed",
    "cleanup": "orphans-removed stale-deps-removed",
    "health": "status",
    "stats": "snapshot",
    "storage": "status backup-started backup-completed backup-failed size-warning",
    "server": "started shutdown recovered memory-warning",
    "memory": "compacted",
    "config": "stall-changed dlq-changed",
}
SUBSCRIBABLE = frozenset(
    [
        ANY,
        *(f"{prefix}:*" for prefix in _KINDS),
        *(f"{prefix}:{name}" for prefix, names in _KINDS.items() for name in names.split()),
    ]
)
"""What Subscribe takes.

Wire: ``job:waiting``, ``job:paused``, ``job:resumed`` and ``job:duplicated`` come with ``job:*`` and ``*`` only.
"""


def name_of(event: Event) -> str:
    """Its name on a stream."""
    if isinstance(event, JobEvent):
        return _JOB_NAMES.get(event.event_type) or f"job:{event.event_type}"
    return event.event


def shown(event: Event, *, has_timestamp: bool) -> dict[str, Any]:
    """What a stream says of *event*, in the order of the wire. Data and results of jobs are never shown.

    Shape, of job events: ``{"queue", "jobId", "timestamp"?: epoch ms, "error"?, "progress"?, "prev"?, "delay"?}``; of
    others their ``data``.

    Args:
        has_timestamp: server-sent events carry the time in their data, WebSockets beside it.
    """
    if not isinstance(event, JobEvent):
        return event.data
    data: dict[str, Any] = {"queue": event.queue, "jobId": event.job_id}
    if has_timestamp:
        data["timestamp"] = event.timestamp
    for name in _SHOWN:
        value = getattr(event, name)
        if value is not UNSET:
            data[name] = value
    return data


def queue_of(event: Event) -> str | None:
    """The queue it is about; None where it is about no single one."""
    queue = event.queue if isinstance(event, JobEvent) else event.data.get("queue")
    return queue if type(queue) is str else None


def concerns(event: Event, queue: str) -> bool:
    """Whether a stream of one queue shows *event*: those of that queue, and those of none (HD-13)."""
    return queue_of(event) in (None, queue)


class Subscriptions:
    """The patterns of one client, in the order in which they came, each once."""

    def __init__(self) -> None:
        self._patterns: dict[str, None] = {}

    @property
    def patterns(self) -> list[str]:
        """All of them."""
        return list(self._patterns)

    @staticmethod
    def unknown(patterns: Iterable[Any]) -> list[Any]:
        """Those that nobody can subscribe to."""
        return [pattern for pattern in patterns if type(pattern) is not str or pattern not in SUBSCRIBABLE]

    def add(self, patterns: Iterable[str]) -> None:
        """Subscribe. At most as many as there are names."""
        self._patterns.update(dict.fromkeys(patterns))

    def remove(self, patterns: Iterable[Any] | None) -> None:
        """Unsubscribe; None: from everything. What was not subscribed to is no error."""
        if patterns is None:
            self._patterns.clear()
            return
        for pattern in patterns:
            if type(pattern) is str:
                self._patterns.pop(pattern, None)

    def match(self, event: Event) -> bool:
        """Whether the client wants *event*. Cost: three look-ups."""
        name, patterns = name_of(event), self._patterns
        return name in patterns or f"{name.partition(':')[0]}:*" in patterns or ANY in patterns
