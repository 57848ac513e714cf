"""The command ``backup`` as tests call it, in this process or as a program of its own; backups asked of a server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from bunqueue_trio.backup import s3
from bunqueue_trio.cli import backup as cli_backup
from bunqueue_trio.cli.backup import run_backup
from bunqueue_trio.clock import ManualClock
from bunqueue_trio.config import SETTINGS
from tests.backup.fakes import FakeObjectStore
from tests.process import ROOT, ServerProcess

Ended = tuple[int, str, str]
"""Exit code, stdout, stderr."""


@pytest.fixture
def environ(
    monkeypatch: pytest.MonkeyPatch, store: FakeObjectStore, database: Path, noon: ManualClock
) -> pytest.MonkeyPatch:
    """The environment, with settings that pass, and a bucket in memory behind them."""
    for setting in SETTINGS:
        for name in (setting.variable, *setting.aliases):
            monkeypatch.delenv(name, raising=False)
    good = {
        "S3_ACCESS_KEY_ID": "some-key",
        "S3_SECRET_ACCESS_KEY": "a-secret",
        "S3_BUCKET": "the-bucket",
        "BUNQUEUE_DATA_PATH": str(database),
    }
    for name, value in good.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(s3, "S3Store", lambda settings, patience: store)
    monkeypatch.setattr(cli_backup, "SystemClock", lambda: noon)
    return monkeypatch


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> Ended:
    """Carry out ``backup *arguments`` with the settings of `environ`."""
    code = run_backup(arguments)
    out, err = capsys.readouterr()
    return code, out, err


def data_of(out: str) -> Any:
    """What stands behind the message."""
    return json.loads(out.partition("\n")[2])


def command(settings: Mapping[str, str], path: Path, *arguments: str) -> Ended:
    """Carry out ``backup *arguments`` for the data file *path*, with a real bucket."""
    out, err = StringIO(), StringIO()
    environment = {**settings, "BUNQUEUE_DATA_PATH": str(path)}
    with mock.patch.dict(os.environ, environment), redirect_stdout(out), redirect_stderr(err):
        code = run_backup(arguments)
    return code, out.getvalue(), err.getvalue()


def real_command(settings: Mapping[str, str], path: Path, *arguments: str) -> Ended:
    """The same as a program of its own."""
    environment = {**os.environ, **settings, "BUNQUEUE_DATA_PATH": str(path), "PYTHONPATH": str(ROOT)}
    run = subprocess.run(
        [sys.executable, "-m", "bunqueue_trio", "backup", *arguments], env=environment, capture_output=True, text=True
    )
    return run.returncode, run.stdout, run.stderr


def back_up(server: ServerProcess) -> dict[str, Any]:
    """Ask the server for a backup, and wait for it."""
    reply: dict[str, Any] = json.loads(server.request("POST", "/backups", timeout_s=300)[1])
    return reply


def settings_of(endpoint: str, bucket: str) -> dict[str, str]:
    """Environment variables that lead to a store which knows no credentials of ours."""
    return {
        "S3_ENDPOINT": endpoint,
        "S3_BUCKET": bucket,
        "S3_ACCESS_KEY_ID": "some-key",
        "S3_SECRET_ACCESS_KEY": "the-very-secret-word",
    }
