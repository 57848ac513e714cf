"""What the fault-injection suites share: marks, seeds, books, and the report that ends a run."""

from __future__ import annotations

import os
import random
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.ledger import Ledger
from tests.chaos.machine import describe_machine
from tests.chaos.soak import SOAK, Soak
from tests.process import client as client
from tests.process import server as server
from tests.process import start_server as start_server
from tests.tiny_disk import mount_disk as mount_disk

HERE = Path(__file__).parent
OUTCOMES = ("passed", "skipped", "failed", "error")  # from good to bad
SAID = "chaos"  # the property of a test under which its lines travel to the report, also from another process


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test of this folder: ``chaos``, and ``slow``, which keeps it out of the quick run."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.chaos)
            item.add_marker(pytest.mark.slow)


@pytest.fixture
def soak() -> Soak:
    """How long to go on."""
    return SOAK


@pytest.fixture
def seed(record_property: Any) -> int:
    """``CHAOS_SEED``, or another one in each run; printed in either case. The same seed makes the same choices."""
    text = os.environ.get("CHAOS_SEED")
    chosen = int(text) if text else secrets.randbits(32)
    print(f"CHAOS_SEED={chosen}")
    record_property(SAID, f"seed {chosen}")
    return chosen


@pytest.fixture
def rng(seed: int) -> random.Random:
    """Choices that `seed` reproduces."""
    return random.Random(seed)


@pytest.fixture
def ledger(request: pytest.FixtureRequest, record_property: Any) -> Iterator[Ledger]:
    """The books of this test; they are printed and checked when it ends."""
    books = Ledger(request.node.name)
    yield books
    print(books.report())
    record_property(SAID, books.report())
    books.check()


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Machine, suites, books and what was skipped, with the reason: the report of ``make chaos`` (R303)."""
    suites: dict[str, dict[str, list[tuple[str, Any]]]] = {}
    for outcome in ("", *OUTCOMES):  # the first one: setups and teardowns that went well
        for report in terminalreporter.stats.get(outcome, ()):
            suite, _, name = getattr(report, "nodeid", "").partition("::")
            if suite.startswith("tests/chaos/"):
                suites.setdefault(suite, {}).setdefault(name, []).append((outcome, report))
    if not suites:
        return
    terminalreporter.section("fault injection")
    terminalreporter.write_line(describe_machine())
    for suite, tests in sorted(suites.items()):
        _write_suite(terminalreporter, suite, tests)


def _write_suite(terminalreporter: Any, suite: str, tests: dict[str, list[tuple[str, Any]]]) -> None:
    outcomes = [max((outcome for outcome, _ in phases), key=("", *OUTCOMES).index) for phases in tests.values()]
    counts = ", ".join(f"{outcomes.count(name)} {name}" for name in OUTCOMES if name in outcomes)
    seconds = sum(report.duration for phases in tests.values() for _, report in phases)
    is_bad = "failed" in outcomes or "error" in outcomes
    terminalreporter.write_line(f"{suite}: {counts}, {seconds:.1f} s", red=is_bad, green=not is_bad)
    for name, phases in tests.items():
        for outcome, report in phases:
            if outcome == "skipped":
                reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
                terminalreporter.write_line(f"  {name}: NOT TESTED, {reason}", red=True, bold=True)
        said = (value for _, report in phases for key, value in report.user_properties if key == SAID)
        for line in dict.fromkeys(said):
            terminalreporter.write_line(f"  {name}: {line.removeprefix(name + ': ')}")
