"""What the programs of the ledger test write down: one line per fact, appended at once, so that no kill loses one.

A line is ``moment id fact``, where moment is the monotonic clock in ns, which all processes of a machine share.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path


class Ledger:
    """One program's own file. Threads may write to it."""

    def __init__(self, path: str) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def note(self, job_id: str, fact: str, moment_ns: int | None = None) -> None:
        """Append one line; the moment is now if not given."""
        moment_ns = time.monotonic_ns() if moment_ns is None else moment_ns
        os.write(self._descriptor, f"{moment_ns} {job_id} {fact}\n".encode())


def read_ledger(path: Path) -> Iterator[tuple[int, str, str]]:
    """Moment, job id and fact of each line so far."""
    if path.exists():
        for line in path.read_text().splitlines(keepends=True):
            if line.endswith("\n"):  # else it is being written
                moment, job_id, fact = line.split()
                yield int(moment), job_id, fact
