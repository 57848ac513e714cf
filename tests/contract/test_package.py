"""The package as others meet it: its layout, its dependencies, its exceptions."""

import ast
import inspect
import re
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import bunqueue_trio
from bunqueue_trio import errors

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

# Where the module's name is not that of the distribution; Quart and Werkzeug are what Quart-Trio is made of, and minio
# takes a pool of urllib3, which reads the certificates of certifi.
MODULES_OF = {"quart-trio": {"quart_trio", "quart", "werkzeug"}, "minio": {"minio", "urllib3", "certifi"}}


def declared_modules() -> dict[str, set[str]]:
    """The modules that each declared dependency brings."""
    names = [re.split(r"[<>=!~ ;\[]", requirement)[0] for requirement in PROJECT["dependencies"]]
    return {name: MODULES_OF.get(name, {name.replace("-", "_")}) for name in names}


def imported_modules() -> set[str]:
    """Top-level names of everything that the package imports."""
    found = set()
    for path in (ROOT / "bunqueue_trio").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                found.add(node.module.partition(".")[0])
    return found


def test_everything_imported_is_declared():
    declared = set().union(*declared_modules().values())

    assert imported_modules() - set(sys.stdlib_module_names) - declared == {"bunqueue_trio"}


def test_everything_declared_is_imported():
    imported = imported_modules()

    assert [name for name, brought in declared_modules().items() if not brought & imported] == []


def test_asyncio_is_not_imported():
    assert "asyncio" not in imported_modules()


def test_the_installed_version_is_that_of_the_package():
    assert version("bunqueue-trio") == bunqueue_trio.__version__


def test_the_top_level_has_what_it_should():
    expected = {"pyproject.toml", "Makefile", "LICENSE", "README.md", "CHANGELOG.md", "DECISIONS.md"}
    expected |= {"bunqueue_trio", "tests", "fuzz", "scripts", ".ci"}

    assert expected - {path.name for path in ROOT.iterdir()} == set()


def test_the_makefile_has_the_promised_targets():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))

    assert {"check", "fmt", "lint", "types", "test", "test-slow", "golden", "chaos", "fuzz", "bench"} <= targets


def test_every_exception_is_drawn_in_the_tree():
    drawn = set(re.findall(r"\b[A-Z][A-Za-z]+Error\b", errors.__doc__ or ""))

    defined = {
        name for name, value in vars(errors).items() if inspect.isclass(value) and value.__module__ == errors.__name__
    }

    assert defined == drawn
