"""How long blocking work may wait for a peer, and how another thread ends it.

Work that waits for a socket cannot be cancelled; its sockets can be closed. So every connection is registered here,
and closed when its request has made no progress for too long, or when the work is told to stop.

Source: S3 backup and restore, BD-8; R352.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from bunqueue_trio.errors import BackupStoppedError

if TYPE_CHECKING:
    from bunqueue_trio.clock import Clock

TIMEOUT_S: Final = 30.0
MAX_WORK_S: Final = 0.1
"""Nobody works for longer between two breaths; more is time that was waited."""
FAREWELL_S: Final = 2.0
"""For a request that takes back what has been begun: it is a courtesy, and others wait."""


class Patience:
    """Belongs to one piece of work, which runs in one thread. `stop` may be called from any other.

    Args:
        timeout_s: how long a request may wait for its answer, and its body for the next bytes.
        retry_pauses_s: the pauses before the second, third, ... try of a request.
        rest_share: how long to rest for each second of work, so that the threads of the server get their turn.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        timeout_s: float = TIMEOUT_S,
        retry_pauses_s: tuple[float, ...] = (0.5, 1.0, 2.0),
        rest_share: float = 0.0,
    ) -> None:
        self._rest_share = rest_share
        self._rested_ms = clock.stopwatch_ms()
        self.timeout_s = timeout_s
        self.retry_pauses_s = retry_pauses_s
        self._clock = clock
        self._stopped = threading.Event()
        self._sockets: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._progress_ms = 0.0
        self.is_parting = False
        """Whether `parting` is under way."""
        self.has_timed_out = False
        """Whether the last request was cut off because it took too long."""

    def stop(self) -> None:
        """Make the work end: whatever it waits for fails at once, and what it tries next too."""
        self._stopped.set()
        self._cut()

    def check(self) -> None:
        """Raise if the work has been told to stop.

        Raises:
            BackupStoppedError: it has.
        """
        if self._stopped.is_set() and not self.is_parting:
            raise BackupStoppedError("Backup was stopped")

    def breathe(self) -> None:
        """Like `check`, in the midst of work: rest from what has been done since the last time.

        Raises:
            BackupStoppedError: as `check`.
        """
        if self._rest_share:
            worked_s = min((self._clock.stopwatch_ms() - self._rested_ms) / 1000, MAX_WORK_S)
            self._stopped.wait(worked_s * self._rest_share)
            self._rested_ms = self._clock.stopwatch_ms()
        self.check()

    def pause(self, seconds: float) -> None:
        """Sleep; raises as `check` does, at once."""
        self._stopped.wait(seconds)
        self.check()

    def register(self, connection: socket.socket) -> None:
        """A connection has been made."""
        with self._lock:
            self._sockets.add(connection)
        if self._stopped.is_set() and not self.is_parting:
            self._cut()

    def unregister(self, connection: socket.socket | None) -> None:
        """It has been closed."""
        if connection is not None:
            with self._lock:
                self._sockets.discard(connection)

    def note_progress(self) -> None:
        """Bytes have moved: the time begins anew."""
        self._progress_ms = self._clock.stopwatch_ms()

    @contextmanager
    def parting(self) -> Iterator[None]:
        """What happens inside takes back what has been begun: also after a stop, one try each, and that a short one."""
        was_parting, self.is_parting = self.is_parting, True
        try:
            yield
        finally:
            self.is_parting = was_parting

    @contextmanager
    def request(self) -> Iterator[None]:
        """Cut off what happens inside when it makes no progress; `has_timed_out` says so afterwards."""
        timeout_s = min(self.timeout_s, FAREWELL_S) if self.is_parting else self.timeout_s
        self.has_timed_out = False
        self.note_progress()
        done = threading.Event()
        watch = threading.Thread(target=self._watch, args=(done, timeout_s), name="bunqueue-patience", daemon=True)
        watch.start()
        try:
            yield
        finally:
            done.set()
            watch.join()

    def _watch(self, done: threading.Event, timeout_s: float) -> None:
        while not done.wait(max(0.0, timeout_s - self._idle_s())):
            if self._idle_s() >= timeout_s:
                self.has_timed_out = True
                self._cut()
                return

    def _idle_s(self) -> float:
        return (self._clock.stopwatch_ms() - self._progress_ms) / 1000

    def _cut(self) -> None:
        with self._lock:
            for connection in self._sockets:
                with suppress(OSError):
                    # Below TLS: whoever waits in it meets the end of the stream.
                    socket.socket.shutdown(connection, socket.SHUT_RDWR)
