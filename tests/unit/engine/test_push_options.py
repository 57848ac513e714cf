"""Every option of PUSH is one of the entries of PUSHB too, and does the same there."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from bunqueue_trio.model.commands import PushOptions
from tests.engine_harness import EngineHarness

# One value for each option, different from its default, and what it becomes in the job's record. `durable` and
# `dependsOn` show elsewhere than in a key of their own name, hence the last tests.
SHOWN: dict[str, tuple[Any, dict[str, Any]]] = {
    "data": ({"x": 1}, {"data": {"x": 1}}),
    "priority": (7, {"priority": 7}),
    "delay": (500, {"runAt": 1_500}),
    "timeout": (5_000, {"timeout": 5_000}),
    "maxAttempts": (9, {"maxAttempts": 9}),
    "backoff": ({"type": "fixed", "delay": 40}, {"backoff": 40, "backoffConfig": {"type": "fixed", "delay": 40}}),
    "ttl": (60_000, {"ttl": 60_000}),
    "dependsOn": (["other"], {"dependsOn": ["other"], "state": "waiting-children"}),
    "uniqueKey": ("k", {"uniqueKey": "k"}),
    "tags": (["a"], {"tags": ["a"]}),
    "groupId": ("g", {"groupId": "g"}),
    "lifo": (True, {"lifo": True}),
    "removeOnComplete": (True, {"removeOnComplete": True}),
    "removeOnFail": (True, {"removeOnFail": True}),
    "stallTimeout": (8_000, {"stallTimeout": 8_000}),
    "timestamp": (600, {"createdAt": 600, "runAt": 600}),
    "stackTraceLimit": (4, {"stackTraceLimit": 4}),
    "keepLogs": (5, {"keepLogs": 5}),
    "sizeLimit": (6, {"sizeLimit": 6}),
    "childrenIds": (["c"], {"childrenIds": ["c"]}),
    "parentId": ("p", {"parentId": "p"}),
    "repeat": ({"every": 1_000}, {"repeat": {"every": 1_000, "count": 0}}),
    "dedup": (
        {"ttl": 900, "extend": True, "replace": True},
        {"deduplicationTtl": 900, "deduplicationExtend": True, "deduplicationReplace": True},
    ),
    "debounceId": ("d", {"debounceId": "d"}),
    "debounceTtl": (11, {"debounceTtl": 11}),
    "failParentOnFailure": (True, {"failParentOnFailure": True}),
    "removeDependencyOnFailure": (True, {"removeDependencyOnFailure": True}),
    "continueParentOnFailure": (True, {"continueParentOnFailure": True}),
    "ignoreDependencyOnFailure": (True, {"ignoreDependencyOnFailure": True}),
    "name": ("default", {"name": "default"}),
}


@pytest.fixture
def harness() -> EngineHarness:
    """An engine whose wall clock shows 1,000 ms."""
    harness = EngineHarness()
    harness.skew(1_000 - harness.now.wall_ms)
    harness.push("elsewhere", jobId="other")
    return harness


def differs(harness: EngineHarness, job_id: str, expected: dict[str, Any]) -> dict[str, Any]:
    """What of *expected* the job does not show."""
    shown = harness.shown(job_id)
    return {name: shown.get(name) for name, value in expected.items() if shown.get(name) != value}


@pytest.mark.parametrize("option", SHOWN)
def test_an_option_of_a_push_shows_in_its_job(harness: EngineHarness, option: str) -> None:
    value, expected = SHOWN[option]

    assert differs(harness, harness.push(), expected) != {}
    assert differs(harness, harness.push(**{option: value}), expected) == {}


@pytest.mark.parametrize("option", SHOWN)
def test_an_option_of_an_entry_shows_in_its_job(harness: EngineHarness, option: str) -> None:
    value, expected = SHOWN[option]

    plain, with_option = harness.push_many("q", [{}, {option: value}])

    assert differs(harness, plain, expected) != {}
    assert differs(harness, with_option, expected) == {}


def test_a_durable_push_or_entry_is_hidden_until_its_commit(harness: EngineHarness) -> None:
    with harness.pending():
        hidden = [harness.push(durable=True), *harness.push_many("q", [{"durable": True}])]
        buffered = [harness.push(), *harness.push_many("q", [{}])]

        assert [harness.state(job_id) for job_id in hidden] == ["unknown"] * 2
        assert [harness.state(job_id) for job_id in buffered] == ["waiting"] * 2
        harness.commit()

    assert [harness.state(job_id) for job_id in hidden] == ["waiting"] * 2


def test_no_option_is_forgotten_here() -> None:
    options = {f.encode_name for f in msgspec.structs.fields(PushOptions) if f.encode_name[0] != "("}

    # The size of a group is no part of a job: see test_group_sizes.
    assert options == set(SHOWN) | {"durable", "groupMaxSize"}
