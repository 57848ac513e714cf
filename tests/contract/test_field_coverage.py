"""Every field of every command has a test that fails should the field be dropped; `field_coverage` names it.

The names are checked here, by reading the tests, not by running them: an entry for each field, none for fields that are
gone, and a test of that name in that file. That a named test really depends on its field was tried by dropping it, and
is to be tried again when an entry changes.

Source: design, "Compatibility".
"""

import ast
from functools import cache
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from bunqueue_trio.model.commands import AnyCommand, FlowEntry, FlowInput, PushEntry
from tests.contract.field_coverage import EVERY_COMMAND, FIELDS, IGNORED

ROOT = Path(__file__).parents[2]
COMMANDS = {kind.__struct_config__.tag: kind for kind in get_args(AnyCommand)}
PARTS = {"entry of PUSHB": PushEntry, "job of PUSHF": FlowEntry, "input of PUSHF": FlowInput}
RECORDS = {**COMMANDS, **PARTS}
NAMED = sorted({test for tests in FIELDS.values() for test in tests.values()} | set(EVERY_COMMAND.values()))


def wire_names(kind: type[msgspec.Struct]) -> set[str]:
    """Fields as a client calls them; names in brackets are no fields of the wire."""
    return {field.encode_name for field in msgspec.structs.fields(kind) if not field.encode_name.startswith("(")}


@cache
def functions_of(path: str) -> frozenset[str]:
    """Names of the test functions of a file."""
    tree = ast.parse((ROOT / path).read_text())
    return frozenset(n.name for n in tree.body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))


@pytest.mark.parametrize("command", RECORDS)
def test_every_field_has_its_test(command):
    ignored = {field for name, field in IGNORED if name == command}
    common = set(EVERY_COMMAND) if command in COMMANDS else set()

    assert wire_names(RECORDS[command]) - set(FIELDS.get(command, {})) - ignored - common == set()


def test_no_entry_is_stale():
    entries = {(command, field) for command, fields in FIELDS.items() for field in fields} | set(IGNORED)
    fields = {(command, field) for command, kind in RECORDS.items() for field in wire_names(kind)}

    assert entries - fields == set()


@pytest.mark.parametrize("test", NAMED)
def test_a_named_test_exists(test):
    path, _, function = test.partition("::")

    assert function in functions_of(path)
