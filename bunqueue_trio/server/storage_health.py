"""Whether the file takes what we write, and how much may wait for it meanwhile."""

from __future__ import annotations

from collections.abc import Callable

from bunqueue_trio.errors import DiskFullError, StateError, StorageError
from bunqueue_trio.model.changes import Changes


class StorageHealth:
    """Healthy until a flush fails, and again with the first that succeeds.

    While degraded, commands that promise a commit are refused at once, and buffered pushes are taken only as long as
    the backlog stays within its bounds (PD-6).
    """

    def __init__(self, *, max_backlog_jobs: int, max_backlog_bytes: int) -> None:
        self._max_jobs = max_backlog_jobs
        self._max_bytes = max_backlog_bytes
        self.error: StorageError | None = None
        self.since_wall_ms: float | None = None
        self.last_trouble_wall_ms: float | None = None
        self.backlog_bytes = 0
        self.is_pausing = False

    @property
    def is_degraded(self) -> bool:
        """True while the last flush has failed."""
        return self.error is not None

    @property
    def is_disk_full(self) -> bool:
        """True while it failed for lack of space."""
        return isinstance(self.error, DiskFullError)

    def failed(self, error: StorageError, wall_ms: float) -> None:
        """A flush has failed."""
        if self.error is None:
            self.since_wall_ms = wall_ms
        self.error = error
        self.last_trouble_wall_ms = wall_ms

    def succeeded(self) -> bool:
        """A flush has succeeded. Returns True when that ends a time of trouble."""
        was_degraded, self.error = self.error is not None, None
        self.since_wall_ms = None
        self.backlog_bytes = 0
        return was_degraded

    def refuse_while_degraded(self, undo: Callable[[], None]) -> None:
        """A command has just staged a change: undo it and refuse, if the file refused a moment ago.

        Raises:
            StateError: with SQLite's words.
        """
        if self.error is not None and self.is_pausing:
            undo()
            raise StateError(str(self.error))

    def backlog_error(self, changes: Changes) -> str | None:
        """Why a buffered push must be refused, or None. Cost: constant."""
        if self.error is None:
            return None
        if len(changes.jobs) >= self._max_jobs or self.backlog_bytes >= self._max_bytes:
            return f"Storage unavailable: {self.error}"
        return None

    def note_buffered(self, size_bytes: int) -> None:
        """A push was taken into memory while the file refuses."""
        if self.error is not None:
            self.backlog_bytes += size_bytes
