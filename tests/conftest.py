"""Fixtures that several layers of tests share. All time and randomness in tests come from here."""

import os
import random

import hypothesis
import pytest

from bunqueue_trio import logs
from bunqueue_trio.clock import ManualClock, TrioClock
from bunqueue_trio.ids import Ids

# No deadline: a slow machine is no defect. In CI the examples are the same every time; elsewhere they go on searching.
hypothesis.settings.register_profile("tests", deadline=None, derandomize=bool(os.environ.get("CI")))
hypothesis.settings.load_profile("tests")

SEED = 20_261
SECRET = b"a secret of the tests, 32 bytes."


@pytest.fixture
def clock() -> ManualClock:
    """A clock that stands still until told to move."""
    return ManualClock()


@pytest.fixture
async def trio_clock() -> TrioClock:
    """A clock that follows Trio's time; ``skew(ms)`` moves its wall clock only.

    The test asks for ``autojump_clock`` itself: pytest-trio installs only clocks among a test's own arguments.
    """
    return TrioClock()


@pytest.fixture
def ids() -> Ids:
    """Ids that are the same in every run."""
    return Ids(SECRET, random.Random(SEED))


@pytest.fixture(autouse=True)
def _default_logs():
    """Log settings belong to the process; no test may inherit another one's."""
    logs.configure()
    yield
    logs.configure()
