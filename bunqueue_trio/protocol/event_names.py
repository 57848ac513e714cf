"""Names of events, as subscribers use them.

Source: HTTP, "Server-Sent Events" and "WebSocket".
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from bunqueue_trio.errors import ValidationError
from bunqueue_trio.protocol.values import js_text

ALL: Final = "*"
_BY_PREFIX: Final = {
    "job": "pushed active completed failed removed promoted progress delayed stalled retried discarded "
    "priority-changed data-updated delay-changed timeout lock-expired deduplicated waiting-children "
    "dependencies-resolved moved-to-delayed expired",
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
SUBSCRIBABLE: Final = frozenset(
    [ALL, *(f"{prefix}:*" for prefix in _BY_PREFIX)]
    + [f"{prefix}:{name}" for prefix, names in _BY_PREFIX.items() for name in names.split()]
)
"""What may be subscribed to.

Wire: ``job:waiting``, ``job:paused``, ``job:resumed`` and ``job:duplicated`` come only with ``job:*`` and ``*``.
"""


def event_name(event_type: str) -> str:
    """The name under which a job event of that type is sent."""
    return "job:active" if event_type == "pulled" else f"job:{event_type}"


def checked_patterns(given: Any) -> list[str]:
    """The names of a Subscribe.

    Raises:
        ValidationError: there are none, or some that do not exist.
    """
    if type(given) is not list or not given:
        raise ValidationError("events must be a non-empty array")
    unknown = [entry for entry in given if type(entry) is not str or entry not in SUBSCRIBABLE]
    if unknown:
        raise ValidationError(f"Invalid: {', '.join(map(js_text, unknown))}")
    return given


class Subscribed:
    """What somebody has subscribed to, in the order in which it was first named. Bounded by `SUBSCRIBABLE`."""

    def __init__(self) -> None:
        self._patterns: dict[str, None] = {}

    @property
    def names(self) -> list[str]:
        """All of it."""
        return list(self._patterns)

    def add(self, patterns: Iterable[str]) -> None:
        """Also these."""
        self._patterns.update(dict.fromkeys(patterns))

    def remove(self, patterns: Iterable[Any] | None) -> None:
        """No longer these; None: nothing any more. What was not there is no error."""
        if patterns is None:
            self._patterns.clear()
        else:
            gone = [pattern for pattern in patterns if type(pattern) is str]
            self._patterns = {name: None for name in self._patterns if name not in gone}

    def wants(self, name: str) -> bool:
        """Whether an event of that name is among it."""
        patterns = self._patterns
        return name in patterns or ALL in patterns or f"{name.partition(':')[0]}:*" in patterns
