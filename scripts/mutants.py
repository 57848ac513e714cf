"""Take promises out of the server, one at a time, and see that the fault-injection suites notice.

    python scripts/mutants.py [--only NAME]...

Works on a copy of the tree. First the suites run on it as it is and must pass; then each mutant replaces one piece of
source, runs the suites that are meant to notice, and is listed with the first test that failed. Exit code 1 if one is
not found, or if a suite fails without it. Takes some minutes and needs what the suites need; a skipped test finds
nothing.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SUITE_LIMIT_S = 600
MEMORY_BYTES = 4 << 30  # of each process: a server without its limits must not take the machine with it
FAILED = re.compile(r"^FAILED (\S+)", re.MULTILINE)
PASSED = re.compile(r"(\d+) passed")


@dataclass(frozen=True)
class Mutant:
    """One promise taken out: ``old``, which stands once in ``file``, becomes ``new``."""

    name: str
    file: str
    old: str
    new: str
    suites: tuple[str, ...]


MUTANTS = (
    Mutant(
        "the token check",
        "bunqueue_trio/engine/leases.py",
        "    if lease is None or lease.token is None:\n        return\n    if token is None:",
        "    if True:\n        return\n    if token is None:",
        ("tests/chaos/test_lock_expiry.py", "tests/chaos/test_races.py"),
    ),
    Mutant(
        "backpressure on who does not read",
        "bunqueue_trio/server/outbox.py",
        "if 0 < self.max_bytes < self.pending_bytes:",
        "if False:",
        ("tests/chaos/test_overload.py",),
    ),
    Mutant(
        "backpressure on who pushes faster than the disk",
        "bunqueue_trio/server/broker.py",
        "return self.is_flushing and self.engine.state.changes.row_count >= ROWS_IN_FILLING",
        "return False",
        ("tests/server/test_connection_limits.py",),
    ),
    Mutant(
        "the wait of an ACK for its commit",
        "bunqueue_trio/server/session.py",
        "        if broker.waits_for_commit:\n",
        "        if broker.waits_for_commit and kind is not Ack:\n",
        ("tests/chaos/test_server_crash.py",),
    ),
    Mutant(
        "the way back of a failed flush",
        "bunqueue_trio/storage/snapshot.py",
        "            if bits:\n                job.dirty, newer = 0, job.dirty",
        "            if False:\n                job.dirty, newer = 0, job.dirty",
        ("tests/chaos/test_disk_full.py",),
    ),
)


def copy_tree(folder: Path) -> None:
    """What is under version control, and what is new beside it."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    for name in filter(None, listed.stdout.decode().split("\0")):
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target)


def run_suites(folder: Path, suites: tuple[str, ...]) -> tuple[int, str]:
    """How many tests passed, and the first that failed, or what went wrong; empty when all is well."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *suites]
    environ = {**os.environ, "PYTHONPATH": str(folder)}
    try:
        run = subprocess.run(
            command,
            cwd=folder,
            env=environ,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES)),
            capture_output=True,
            text=True,
            timeout=SUITE_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return 0, f"no end within {SUITE_LIMIT_S} s"
    found, passed = FAILED.search(run.stdout), PASSED.search(run.stdout)
    if run.returncode == 0:
        return int(passed[1]) if passed else 0, ""
    return 0, found[1] if found else f"exit code {run.returncode}: {run.stdout[-300:]}"


def check_baseline(folder: Path, mutants: list[Mutant]) -> bool:
    """Whether the suites pass, and are not merely skipped, without a mutant."""
    is_sound = True
    for suite in sorted({suite for mutant in mutants for suite in mutant.suites}):
        passed_count, fault = run_suites(folder, (suite,))
        print(f"as it is: {suite}: {fault or f'{passed_count} passed'}", flush=True)
        is_sound = is_sound and not fault and passed_count > 0
    return is_sound


def check_mutant(folder: Path, mutant: Mutant) -> bool:
    """Whether the suites of *mutant* fail with it."""
    path = folder / mutant.file
    source = path.read_text()
    if source.count(mutant.old) != 1:
        print(f"without {mutant.name}: {mutant.file} has changed; say anew what to take out", flush=True)
        return False
    path.write_text(source.replace(mutant.old, mutant.new))
    began = time.monotonic()
    try:
        _, fault = run_suites(folder, mutant.suites)
    finally:
        path.write_text(source)
    verdict = f"found by {fault}" if fault else "NOT FOUND"
    print(f"without {mutant.name}: {verdict} ({time.monotonic() - began:.0f} s)", flush=True)
    return bool(fault)


def main() -> int:
    """Run what was asked for; the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", action="append", help="part of the name of a mutant")
    only = parser.parse_args().only
    mutants = [mutant for mutant in MUTANTS if only is None or any(part in mutant.name for part in only)]
    if not mutants:
        parser.error(f"no mutant is called like {only}")
    with tempfile.TemporaryDirectory(prefix="mutants-") as name:
        folder = Path(name)
        copy_tree(folder)
        is_sound = check_baseline(folder, mutants)
        found = [check_mutant(folder, mutant) for mutant in mutants]
    return 0 if is_sound and all(found) else 1


if __name__ == "__main__":
    sys.exit(main())
