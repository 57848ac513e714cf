"""The fuzz targets: what they have once found stays mended, and some rounds of each find nothing."""

import random
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

FUZZ = Path(__file__).parents[2] / "fuzz"
TARGETS = {"frames": 400, "commands": 15, "rows": 30, "cron": 2_000, "http": 400}
"""How many rounds, and thus about a second of each."""


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch):
    """Imports a module of the fuzz folder, as the targets do."""
    monkeypatch.setattr(sys, "argv", ["fuzz", "--plain"])
    monkeypatch.syspath_prepend(str(FUZZ))
    return import_module


def test_every_target_is_run_here():
    assert {path.stem.removeprefix("fuzz_") for path in FUZZ.glob("fuzz_*.py")} == set(TARGETS)


@pytest.mark.parametrize("name", TARGETS)
def test_some_rounds_find_nothing(load, name):
    harness: Any = load("harness")
    target: Any = load(f"fuzz_{name}")
    make = getattr(target, "make", harness.random_bytes)
    dice = random.Random(7)

    accepted = sum(target.check(make(dice)) for _ in range(TARGETS[name]))

    assert accepted > TARGETS[name] // 100  # it must get past the refusals, or it tests little


@pytest.mark.parametrize("name", TARGETS)
def test_what_was_kept_finds_nothing(load, name):
    harness: Any = load("harness")
    target: Any = load(f"fuzz_{name}")

    for path in harness.corpus(name):
        target.check(path.read_bytes())
