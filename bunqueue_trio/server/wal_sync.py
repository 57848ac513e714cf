"""Has the disk take the WAL in small portions, beside the writer, so that a checkpoint finds little left to sync.

A checkpoint begins with a sync of the WAL: 4 MB at once take a disk some 20 ms, in which nobody's commit is confirmed.
Four portions of 1 MB take as long, but in a thread of their own, while the next commits are written.
"""

from __future__ import annotations

import os
from contextlib import suppress

from bunqueue_trio.server.writer import WorkThread
from bunqueue_trio.storage.wal import wal_path

SYNC_EVERY_FRAMES = 256  # pages of 4 KB: 1 MB


class WalSync:
    """Syncs the WAL of one data file. Promises nothing: SQLite makes its own syncs, and hears of errors by them."""

    def __init__(self, path: str) -> None:
        self._path = wal_path(path)
        self._thread = WorkThread("bunqueue-wal-sync")
        self._file: int | None = None
        self._synced_frames = 0
        self.is_running = False
        self._open()  # now, so that the number of open files does not change later

    def keep_up(self, frames: int) -> None:
        """Begin the next portion if *frames*, as many as the WAL holds now, are one more. For the writer's thread."""
        if frames < self._synced_frames:
            self._synced_frames = 0  # it has been folded in, and is written from its start again
        if frames - self._synced_frames >= SYNC_EVERY_FRAMES and not self.is_running:
            self.is_running = True
            self._synced_frames = frames
            self._thread.hand_over(self._sync)

    def stop(self) -> None:
        """End the thread and let go of the WAL. Blocks until a portion under way is done."""
        self._thread.stop()
        if self._file is not None:
            os.close(self._file)

    def _sync(self) -> None:
        try:
            # Each open file is told of an error by itself, so SQLite's own sync still meets it.
            if self._file is None:
                self._open()
            if self._file is not None:
                with suppress(OSError):
                    os.fdatasync(self._file)
        finally:
            self.is_running = False

    def _open(self) -> None:
        with suppress(OSError):  # not there yet, or no descriptor left: the next portion tries again
            self._file = os.open(self._path, os.O_RDONLY)
