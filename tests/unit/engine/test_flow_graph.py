"""How the jobs of a flow must hang together.

Source: newer clients, 6.1, number 5.
"""

from typing import Any

import pytest

from bunqueue_trio.engine.flow_graph import check_graph
from bunqueue_trio.errors import ValidationError
from bunqueue_trio.model.commands import FlowEntry, FlowInput

CIRCLE = "flow contains a dependency cycle"


def node(
    job_id: str,
    *depends_on: str,
    children: list[str] | None = None,
    parent: str | None = None,
    named_children: Any = ...,
    named_parent: Any = ...,
) -> FlowEntry:
    """A job whose data name its kin, unless said otherwise."""
    options = FlowInput(depends_on=list(depends_on) or None, children_ids=children, parent_id=parent)
    return FlowEntry(
        job_id,
        f"queue of {job_id}",
        options,
        named_parent=(parent, f"queue of {parent}") if named_parent is ... else named_parent,
        named_children=children if named_children is ... else named_children,
    )


def refusal(*jobs: FlowEntry) -> str:
    with pytest.raises(ValidationError) as caught:
        check_graph(jobs)
    return str(caught.value)


@pytest.mark.parametrize(
    "jobs",
    [
        [],
        [node("a")],
        [node("p", "a", "b", children=["a", "b"]), node("a", parent="p"), node("b", parent="p")],
        [node("a"), node("b", "a"), node("c", "b", "a")],
        [node("p", "x", "a", children=["a"]), node("a", "x", parent="p"), node("x")],
        [node("a", parent="p"), node("p", "a", children=["a"], parent="g"), node("g", "p", children=["p"])],
    ],
)
def test_a_sound_flow_is_let_in_in_any_order(jobs):
    check_graph(jobs)
    check_graph(jobs[::-1])


@pytest.mark.parametrize(
    ("jobs", "text"),
    [
        ([node("a", "b", "b"), node("b")], "duplicate dependency in flow job: a"),
        ([node("a", "b", children=["b", "b"]), node("b", parent="a")], "duplicate child in flow job: a"),
        ([node("a", "b")], "flow dependency not found: b"),
        ([node("a", "a")], "flow job cannot depend on itself: a"),
        ([node("a", children=["b"]), node("b", parent="a")], "flow child is missing from dependencies: b"),
        ([node("a", children=["nobody"])], "flow child is missing from dependencies: nobody"),
        ([node("a", "b", children=["b"]), node("b")], "flow child b does not point back to parent a"),
        (
            [node("a", "b", children=["b"]), node("b", parent="c"), node("c")],
            "flow child b does not point back to parent a",
        ),
        ([node("b", parent="a")], "flow parent not found: a"),
        ([node("a"), node("b", parent="a")], "flow parent a does not own child b"),
        ([node("a", parent="a")], "flow parent a does not own child a"),
        ([node("a", "b"), node("b", "a")], CIRCLE),
        ([node("a", "b"), node("b", "c"), node("c", "b")], CIRCLE),
        ([node("p", "a", children=["a"]), node("a", "p", parent="p")], CIRCLE),
    ],
)
def test_a_fault_is_named(jobs, text):
    assert refusal(*jobs) == text


@pytest.mark.parametrize(
    "named",
    [(None, None), ("p", None), (None, "queue of p"), ("p", "queue of a"), ("a", "queue of p")],
)
def test_the_data_of_a_child_name_its_parent_and_the_queue_of_that(named):
    jobs = [node("a", parent="p", named_parent=named), node("p", "a", children=["a"])]

    assert refusal(*jobs) == "flow child a metadata does not match parent p"


@pytest.mark.parametrize("named", [None, [], ["a"], ["b", "a"], ["a", "b", "b"]])
def test_the_data_of_a_parent_name_its_children_in_their_order(named):
    kids = [node("a", parent="p"), node("b", parent="p")]

    text = refusal(*kids, node("p", "a", "b", children=["a", "b"], named_children=named))

    assert text == "flow parent p children does not match the canonical flow topology"


def test_repetitions_of_all_jobs_come_first():
    assert refusal(node("a", "nobody"), node("b", "a", "a")) == "duplicate dependency in flow job: b"


def test_the_faults_of_a_job_come_in_order_and_before_those_of_the_next():
    bad_child = node("a", parent="p", named_parent=(None, None))

    assert refusal(node("p", "nobody", children=["a"]), bad_child) == "flow dependency not found: nobody"
    assert refusal(node("p", "a", children=["a"], named_children=[]), bad_child) == (
        "flow parent p children does not match the canonical flow topology"
    )
    assert refusal(bad_child, node("p", "a", children=["a"], named_children=[])) == (
        "flow child a metadata does not match parent p"
    )
    assert refusal(node("x", "y"), node("y", "x"), node("z", "nobody")) == "flow dependency not found: nobody"


def test_a_parent_of_very_many_children_costs_little():
    ids = [f"c{n}" for n in range(9_999)]

    check_graph([*(node(job_id, parent="p") for job_id in ids), node("p", *ids, children=ids)])


def test_a_very_long_chain_is_fine_and_a_very_long_circle_is_found():
    links = [node(f"s{n}", f"s{n - 1}") for n in range(1, 10_000)]

    check_graph([node("s0"), *links])
    assert refusal(node("s0", "s9999"), *links) == CIRCLE
