"""A small real file system that can be filled and freed, for tests of a full disk. Needs the right to mount."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest


class TinyDisk:
    """A mounted tmpfs of *size_mb* MiB at ``path``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._filler = path / "filler"

    @property
    def free_bytes(self) -> int:
        """Space left."""
        return shutil.disk_usage(self.path).free

    def fill(self, leave_bytes: int = 0) -> None:
        """Take all space but *leave_bytes*."""
        with open(self._filler, "ab", buffering=0) as file:
            while (left := self.free_bytes - leave_bytes) > 0:
                try:
                    file.write(b"\0" * min(left, 65_536))
                except OSError:
                    break

    def free(self) -> None:
        """Give back what `fill` took."""
        self._filler.unlink(missing_ok=True)


MountDisk = Callable[..., TinyDisk]


@contextmanager
def _mounted(path: Path, size_mb: int) -> Iterator[TinyDisk]:
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size_mb}m", "tmpfs", str(path)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        pytest.skip(f"NOT TESTED: a full disk. `mount` cannot be run: {error}")
    if done.returncode:
        pytest.skip(f"NOT TESTED: a full disk. No file system can be mounted here: {done.stderr.strip()}")
    try:
        yield TinyDisk(path)
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


@pytest.fixture
def mount_disk(tmp_path: Path) -> Iterator[MountDisk]:
    """A function that mounts a small file system under the test's directory. Where that is not allowed, it skips."""
    with ExitStack() as mounted:

        def mount(name: str = "disk", size_mb: int = 16) -> TinyDisk:
            return mounted.enter_context(_mounted(tmp_path / name, size_mb))

        yield mount
