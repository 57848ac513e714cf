"""Flows of every published client: parents run after their children, with their results.

Source: newer clients 17.4.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from bunqueue import FlowNode, FlowProducer, Job, Queue, Worker

from tests.peers.npm import Outcomes, prefix_of
from tests.peers.packages import NEWEST, OLDER
from tests.process import ServerProcess, wait_until

pytestmark = pytest.mark.slow


# npm


@pytest.fixture(scope="module", params=[pytest.param(NEWEST, id="newest"), pytest.param(OLDER, id="older")])
def outcomes(packages: None, shared_server: ServerProcess, request: pytest.FixtureRequest) -> Outcomes:
    return Outcomes(shared_server, request.param, "flows.ts")


@pytest.fixture(scope="module")
def newer(packages: None, shared_server: ServerProcess) -> Iterator[Outcomes]:
    """One of its trees is left to a Python worker."""

    def process(job: Job) -> list[Any]:
        return [job.name, job.data["of"], sorted(job.get_children_values().values())]

    name = f"{prefix_of('flows_newer.ts', NEWEST)}-addsATreeForOthers"
    with Worker(name, process, host="127.0.0.1", port=shared_server.tcp_port, poll_timeout_ms=100):
        yield Outcomes(shared_server, NEWEST, "flows_newer.ts")


def tree(name: str, *children: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "children": list(children)}


def test_a_tree_runs_from_its_leaves(outcomes: Outcomes) -> None:
    seen = outcomes["addsATree"]

    whole = tree("release", tree("build", tree("compile"), tree("link")), tree("notes"))
    assert seen["added"] == seen["read"] == whole
    assert seen["shallow"] == tree("release", tree("build"), tree("notes"))
    assert seen["states"] == ["waiting-children", "waiting-children", "waiting"]
    assert sorted(run["name"] for run in seen["done"][:3]) == ["compile", "link", "notes"]
    assert seen["done"][3:] == [
        {"name": "build", "children": ["compile's result", "link's result"]},
        {"name": "release", "children": ["build's result", "notes's result"]},
    ]


def test_several_trees_at_once(outcomes: Outcomes) -> None:
    seen = outcomes["addsSeveralTrees"]
    assert seen["added"] == [tree("one", tree("one-child")), tree("two", tree("two-child"))]
    assert sorted(seen["parents"], key=lambda run: str(run["name"])) == [
        {"name": "one", "children": ["one-child's result"]},
        {"name": "two", "children": ["two-child's result"]},
    ]


def test_a_chain(outcomes: Outcomes) -> None:
    assert outcomes["addsAChain"] == {
        "states": ["waiting", "waiting-children", "waiting-children"],
        "order": ["fetch", "process", "store"],
    }


def test_many_then_one(outcomes: Outcomes) -> None:
    assert outcomes["addsManyThenOne"] == {
        "parallel": 2,
        "merge": "waiting-children",
        "last": {"name": "merge", "children": ["left's result", "right's result"]},
    }


def test_a_tree_of_followers_runs_from_its_root(outcomes: Outcomes) -> None:
    assert outcomes["addsAFollowingTree"] == {"count": 4, "first": "root", "leafAfterLeft": True}


def test_a_child_that_fails_takes_its_parent_along(outcomes: Outcomes) -> None:
    assert outcomes["failsAParentWithItsChild"] == {"child": "failed"}


def test_a_failure_that_the_parent_ignores(outcomes: Outcomes) -> None:
    assert outcomes["letsAParentIgnoreAFailure"]["done"] == [
        {"name": "good"},
        {"name": "parent", "children": ["good's result"]},
    ]


def test_a_refused_flow_leaves_nothing_behind(newer: Outcomes) -> None:
    seen = newer["refusesAFlowWhole"]
    assert "already exists" in seen["reason"]
    assert seen["count"] == 1


def test_a_child_is_added_to_a_parent_that_is_there(newer: Outcomes) -> None:
    assert newer["addsAChildToAParentThatIsThere"] == {
        "parked": "waiting-children",
        "order": ["child", "parent"],
        "returnvalue": {"of": "parent", "children": [{"of": "child", "children": []}]},
        "childState": "completed",
    }


def test_a_job_waits_for_children_that_it_makes_itself(newer: Outcomes) -> None:
    assert newer["waitsForChildrenOfItsOwn"]["order"] == ["parent", "parked true", "child", "parent"]


def test_a_python_worker_runs_a_flow_of_the_npm_client(newer: Outcomes) -> None:
    children = [["left", "left", []], ["right", "right", []]]
    assert newer["addsATreeForOthers"] == {"name": "parent", "returnvalue": ["parent", "parent", children]}


# Python


@pytest.fixture
def flows(shared_server: ServerProcess) -> Iterator[FlowProducer]:
    producer = FlowProducer(host="127.0.0.1", port=shared_server.tcp_port)
    yield producer
    producer.close()


@pytest.fixture
def done(queue: Queue, shared_server: ServerProcess) -> Iterator[list[tuple[str | None, list[Any]]]]:
    """What a worker of the test's queue has run: name and children's results. It begins with the first flow."""
    runs: list[tuple[str | None, list[Any]]] = []
    lock = threading.Lock()

    def process(job: Job) -> str:
        if job.data.get("fails"):
            raise ValueError("boom")
        values = sorted(job.get_children_values().values())
        with lock:
            runs.append((job.name, values))
        return f"{job.name}'s result"

    with Worker(queue.name, process, host="127.0.0.1", port=shared_server.tcp_port, poll_timeout_ms=100):
        yield runs


def step(queue: Queue, name: str, *children: dict[str, Any], opts: Any = None, **data: Any) -> dict[str, Any]:
    return {"name": name, "queueName": queue.name, "data": data, "children": list(children), "opts": opts or {}}


def names_of(node: FlowNode | None) -> dict[str, Any]:
    assert node is not None
    return {"name": node.job.name, "children": [names_of(child) for child in node.children]}


def ids_of(node: FlowNode | None) -> list[Any]:
    assert node is not None
    return [node.job.id, *map(ids_of, node.children)]


def test_a_tree_of_the_python_client(
    queue: Queue, flows: FlowProducer, done: list[tuple[str | None, list[Any]]]
) -> None:
    added = flows.add(step(queue, "release", step(queue, "build", step(queue, "compile")), step(queue, "notes")))
    wait_until(lambda: len(done) == 4, "the tree has run")

    read = flows.get_flow(added.job.id)
    assert names_of(read) == tree("release", tree("build", tree("compile")), tree("notes"))
    assert ids_of(read) == ids_of(added)
    assert ("build", ["compile's result"]) in done
    assert done[-1] == ("release", ["build's result", "notes's result"])


def test_bulk_chain_and_fan_in_of_the_python_client(
    queue: Queue, flows: FlowProducer, done: list[tuple[str | None, list[Any]]]
) -> None:
    queue.pause()
    flows.add_bulk([step(queue, "one", step(queue, "child")), step(queue, "two")])
    chain = flows.add_chain([step(queue, "first"), step(queue, "second")])
    fan = flows.add_bulk_then([step(queue, "left"), step(queue, "right")], step(queue, "merge"))
    states = [queue.get_state(job_id) for job_id in (chain[1], fan["final_id"])]
    queue.resume()
    wait_until(lambda: len(done) == 8, "all have run")

    assert states == ["waiting-children", "waiting-children"]
    order = [name for name, _ in done]
    assert order.index("first") < order.index("second")
    assert order.index("child") < order.index("one")
    assert ("merge", ["left's result", "right's result"]) in done


def test_a_failing_child_of_the_python_client(
    queue: Queue, flows: FlowProducer, done: list[tuple[str | None, list[Any]]]
) -> None:
    bad = step(queue, "bad", opts={"attempts": 1, "fail_parent_on_failure": True}, fails=True)
    added = flows.add(step(queue, "parent", bad))

    wait_until(lambda: queue.get_state(added.job.id) == "failed", "the parent has failed")

    assert queue.get_state(added.children[0].job.id) == "failed"
    assert done == []
