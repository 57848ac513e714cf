"""A wall clock that jumps below a running server: libfaketime, with the offset in a file that the server's process
reads at every look at the clock. The monotonic clock stays real, as it does on a machine whose time is set.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from functools import cache
from pathlib import Path

import pytest

from tests.process import ServerProcess, wait_until

HOUR_S = 3_600
PLACES = ("/usr/lib", "/usr/local/lib", "/usr/lib64", "/opt/homebrew/lib")
NAME = "libfaketimeMT.so.1"
TOLD = "The wall clock has jumped"
PROBE = "import time; print(time.time())"


class FalseClock:
    """The wall clock of the servers that get ``environment``; ``offset_s`` is how far it is from the true one."""

    def __init__(self, library: Path, file: Path) -> None:
        self._file = file
        self.offset_s = 0
        self.environment = {
            "LD_PRELOAD": str(library),
            "FAKETIME_TIMESTAMP_FILE": str(file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "FAKETIME_FORCE_MONOTONIC_FIX": "0",  # a cure for an old C library, under which a commit takes 60 ms
        }
        self.set(0)

    def set(self, offset_s: int) -> None:
        """Jump to so many seconds after, or before, the true time."""
        self.offset_s = offset_s
        fresh = self._file.with_suffix(".new")
        fresh.write_text(f"{offset_s:+d}\n")
        os.replace(fresh, self._file)  # nobody reads half of it

    def jump(self, server: ServerProcess, offset_s: int) -> None:
        """The same, and wait until the server has seen it: the timekeeper looks at the clock once a second."""
        was_s, told_count = self.offset_s, server.last_log.count(TOLD)
        self.set(offset_s)
        wait_until(lambda: abs(server_time_ms(server) - true_time_ms() - offset_s * 1_000) < 60_000, "the clock jumped")
        if abs(offset_s - was_s) > 1:
            wait_until(lambda: server.last_log.count(TOLD) > told_count, "the jump is told")


def server_time_ms(server: ServerProcess) -> float:
    """What the server takes for the present."""
    return float(json.loads(server.get("/ping")[1])["data"]["time"])


def true_time_ms() -> float:
    """What we take for it."""
    return time.time() * 1_000


def find_library() -> Path | None:
    """The library as distributions install it, or ``FAKETIME_LIBRARY``."""
    named = os.environ.get("FAKETIME_LIBRARY")
    if named:
        return Path(named)
    found = (path for place in PLACES for path in sorted(Path(place).glob(f"**/faketime/{NAME}")))
    return next(found, None)


@cache
def fault_of(library: Path | None) -> str | None:
    """Why the clock of a process cannot be moved; None when it can."""
    if library is None:
        return f"{NAME} is not installed (Debian: faketime)"
    with tempfile.TemporaryDirectory() as directory:
        clock = FalseClock(library, Path(directory) / "offset")
        clock.set(HOUR_S)
        environment = {**os.environ, **clock.environment}
        probed = subprocess.run(
            [sys.executable, "-c", PROBE], env=environment, capture_output=True, text=True, check=False
        )
    shown_s = float(probed.stdout) if probed.returncode == 0 else 0.0
    is_moved = abs(shown_s * 1_000 - true_time_ms() - HOUR_S * 1_000) < 60_000
    return None if is_moved else f"{library} has no effect here: {probed.stderr.strip()}"


@pytest.fixture
def false_clock(tmp_path: Path) -> FalseClock:
    """A clock that can be set. Where that cannot be had the test is skipped, and says so."""
    library = find_library()
    if (fault := fault_of(library)) is not None:
        pytest.skip(f"NOT TESTED: a wall clock that jumps. {fault}")
    assert library is not None
    return FalseClock(library, tmp_path / "clock-offset")
