"""Fixtures: Debian's Chromium without a window, a page in it, and a real server.

``BROWSER_SCREENSHOTS`` names a directory for pictures. Where Chromium or Playwright is missing the tests are skipped,
and say so loudly; ``BROWSER_REQUIRED=1`` makes that a failure.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.process import Client, ServerProcess
from tests.process import start_server as start_server

CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")
SIZE = {"width": 1280, "height": 860}


_missing: list[str] = []


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """A skip is a letter among many; this one is said."""
    for what in _missing:
        terminalreporter.write_line(what, red=True, bold=True)


def _unavailable(what: str) -> None:
    _missing.append(what)
    if os.environ.get("BROWSER_REQUIRED") == "1":
        pytest.fail(what)
    pytest.skip(what)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """One browser for all tests."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        _unavailable("THE PAGE IS NOT TESTED: no playwright; install the extra 'browser'")
    if shutil.which(CHROMIUM) is None:
        _unavailable(f"THE PAGE IS NOT TESTED: no {CHROMIUM}; apt-get install chromium, or name it in CHROMIUM")
    with sync_playwright() as playwright:
        # Root has no sandbox of Chromium's; /dev/shm is small in containers.
        arguments = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield launched
        launched.close()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One server for all tests, each of which has queues of its own."""
    with ServerProcess(tmp_path_factory.mktemp("browser")) as running:
        yield running.start()


@pytest.fixture
def client(server: ServerProcess) -> Iterator[Client]:
    """A connection to `server`."""
    with server.connect() as connected:
        yield connected


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """A page of its own context; complaints of the browser fail the test."""
    context = browser.new_context(viewport=SIZE, color_scheme="light")
    context.set_default_timeout(10_000)
    opened = context.new_page()
    complaints: list[str] = []
    opened.on("pageerror", lambda error: complaints.append(str(error)))
    opened.on("console", lambda line: complaints.append(line.text) if _is_complaint(line) else None)
    yield opened
    context.close()
    assert complaints == []


def _is_complaint(line: Any) -> bool:
    # The browser notes every refused request as an error; whether one may be refused is for the test to say.
    return line.type in ("error", "warning") and not line.text.startswith("Failed to load resource")


@pytest.fixture
def picture() -> Callable[[Any, str], None]:
    """A function that keeps a picture of a page under a name, where a directory for them is given."""

    def take(page: Any, name: str) -> None:
        directory = os.environ.get("BROWSER_SCREENSHOTS")
        if directory:
            Path(directory).mkdir(parents=True, exist_ok=True)
            page.screenshot(path=str(Path(directory) / f"{name}.png"))

    return take
