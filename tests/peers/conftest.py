"""Fixtures: a real server process and clients of it."""

from typing import Any

import pytest

from tests.peers import npm
from tests.peers.surface import queue as queue
from tests.peers.surface import shared_server as shared_server
from tests.process import client as client
from tests.process import server as server
from tests.process import start_server as start_server


@pytest.fixture(scope="session")
def packages() -> None:
    """The npm packages are there; else the test is skipped."""
    npm.require_packages()


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say what was not tested: a skip is a letter among many."""
    reasons = {report.longrepr[2] for report in terminalreporter.stats.get("skipped", ()) if report.when == "setup"}
    for reason in sorted(reasons):
        if npm.NOT_TESTED in reason:
            terminalreporter.write_line(reason, red=True, bold=True)
