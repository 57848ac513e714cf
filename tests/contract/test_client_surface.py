"""The published client: each public method of `Queue` and `Job` is tried against a server, or named with what it lacks.

Source: design, "Compatibility".
"""

import ast
import inspect
from pathlib import Path
from typing import get_args

import pytest
from bunqueue import Job, Queue

from bunqueue_trio.model.commands import AnyCommand

PEERS = Path(__file__).parents[1] / "peers"
TESTS = sorted(PEERS.glob("test_queue_surface*.py"))

# Methods that wait for commands the server does not have yet. An entry goes when its commands come: the test below
# says so.
LACKING = {}


def public_methods(kind: type) -> set[str]:
    """Names of everything callable that a user of the class meets, inherited methods included."""
    return {name for name, _ in inspect.getmembers(kind, callable) if not name.startswith("_")}


def parameters(kind: type, method: str) -> set[str]:
    """Names of the arguments of a method; ``**options`` do not count."""
    named = inspect.signature(getattr(kind, method)).parameters.values()
    return {p.name for p in named if p.kind is p.POSITIONAL_OR_KEYWORD} - {"self"}


def exercised(*receivers: str) -> set[str]:
    """Methods that the tests use on a variable, or on a class, of one of these names."""
    return {
        node.attr
        for path in TESTS
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in receivers
    }


def test_every_method_of_a_queue_is_tried_or_named_with_what_it_lacks():
    assert public_methods(Queue) - exercised("queue", "other", "Queue") - set(LACKING) == set()


def test_every_method_of_a_job_is_tried():
    assert public_methods(Job) - exercised("job", "dead", "parent") == set()


@pytest.mark.parametrize("method", LACKING)
def test_what_is_named_as_lacking_exists_and_is_lacking(method):
    known = {command.__struct_config__.tag for command in get_args(AnyCommand)}

    assert method in public_methods(Queue)
    assert LACKING[method] & known == set(), "the command is there: test the method"


def test_a_method_with_arguments_is_tried_with_each_of_them():
    """By position or by name, somewhere."""
    seen: dict[str, set[str]] = {}
    for path in TESTS:
        for call in ast.walk(ast.parse(path.read_text())):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and hasattr(Queue, call.func.attr):
                names = list(parameters_in_order(call.func.attr))
                given = set(names[: len(call.args)]) | {keyword.arg or "" for keyword in call.keywords}
                seen.setdefault(call.func.attr, set()).update(given)

    # The lists of the states, the waits and the logs are called through variables and helpers.
    indirect = {m for m in public_methods(Queue) if m.startswith("get_") and {"start", "end"} & parameters(Queue, m)}
    indirect |= {"wait_job_until_finished", *LACKING}
    missing = {m: parameters(Queue, m) - seen.get(m, set()) for m in public_methods(Queue) - indirect}
    assert {method: names for method, names in missing.items() if names} == {}


def parameters_in_order(method: str) -> list[str]:
    """Names of the arguments of a method of `Queue`, as they are given by position."""
    function = getattr(Queue, method)
    return [name for name in inspect.signature(function).parameters if name != "self"] if callable(function) else []
