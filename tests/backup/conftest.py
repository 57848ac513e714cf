"""Fixtures of the tests of backups."""

from pathlib import Path

import pytest

from bunqueue_trio.clock import ManualClock
from tests.backup import fakes
from tests.s3 import bucket as bucket
from tests.s3 import s3_server as s3_server
from tests.tiny_disk import mount_disk as mount_disk


@pytest.fixture
def store() -> fakes.FakeObjectStore:
    """A bucket in memory."""
    return fakes.FakeObjectStore()


@pytest.fixture
def noon() -> ManualClock:
    """A clock that stands at noon."""
    return fakes.clock()


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """A data file with three rows, in a folder of its own."""
    folder = tmp_path / "data"
    folder.mkdir()
    return fakes.make_database(folder / "jobs.db")
