"""What a report says of the machine it was made on."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import apsw

from tests.chaos.bounds import MACHINE


def describe_machine() -> str:
    """Processors, memory, system and versions in one line."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    parts = [
        f"{os.cpu_count()} x {_processor()}",
        f"{_memory_bytes() / 2**30:.1f} GiB",
        f"{platform.system()} {platform.release()}",
        f"Python {platform.python_version()}",
        f"SQLite {apsw.sqlite_lib_version()}",
        f"load {load:.1f}",
        f"bounds of a {MACHINE} machine",
    ]
    return ", ".join(parts)


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def _memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
