"""The import arrows: that they hold, and that no module is forgotten by them."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "bunqueue_trio"
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]


def modules() -> set[str]:
    """What lies directly in the package."""
    files = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__", "__main__"}
    packages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    return {f"bunqueue_trio.{name}" for name in files | packages}


def forbidden_to(module: str) -> set[str]:
    """What the contracts forbid *module* to import."""
    return {
        name for contract in CONTRACTS if module in contract["source_modules"] for name in contract["forbidden_modules"]
    }


def test_all_contracts_are_kept():
    pytest.importorskip("importlinter")
    run = subprocess.run(
        [sys.executable, "-c", "from importlinter.cli import lint_imports_command; lint_imports_command()"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )

    assert run.returncode == 0, run.stdout[-3000:]


@pytest.mark.parametrize(
    ("source", "allowed"),
    [
        ("errors", set()),
        ("model", {"errors"}),
        ("engine", {"model", "errors"}),
        ("protocol", {"model", "errors"}),
        ("storage", {"model", "errors"}),
    ],
)
def test_the_lower_layers_may_import_nothing_but_what_is_named_here(source, allowed):
    named = {f"bunqueue_trio.{name}" for name in {source} | allowed}

    assert modules() - forbidden_to(f"bunqueue_trio.{source}") - named == set()


@pytest.mark.parametrize("source", ["engine", "model", "protocol"])
def test_the_pure_layers_may_not_reach_the_world(source):
    assert {"trio", "anyio", "apsw", "socket", "logging", "os"} <= forbidden_to(f"bunqueue_trio.{source}")


def test_storage_may_not_reach_trio():
    assert {"trio", "anyio"} <= forbidden_to("bunqueue_trio.storage")
