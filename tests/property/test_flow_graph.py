"""The checks of a flow's graph against a naive oracle that tries everything."""

from itertools import permutations

from hypothesis import given
from hypothesis import strategies as st

from bunqueue_trio.engine.flow_graph import check_graph
from bunqueue_trio.errors import ValidationError
from bunqueue_trio.model.commands import FlowEntry, FlowInput

IDS = ["a", "b", "c", "d", "e"]
some_ids = st.lists(st.sampled_from([*IDS, "nobody"]), max_size=3)


@st.composite
def trees(draw) -> list[FlowEntry]:
    """Sound trees with some dependencies more, in any order; often all that is wrong is one field of one job."""
    ids = IDS[: draw(st.integers(1, len(IDS)))]
    parent_of = {job_id: draw(st.none() | st.sampled_from(ids[:n])) for n, job_id in enumerate(ids) if n}
    jobs = []
    for job_id in ids:
        children = [child for child, parent in parent_of.items() if parent == job_id]
        parent = parent_of.get(job_id)
        needs = list(dict.fromkeys(children + draw(st.lists(st.sampled_from(ids), max_size=1))))
        options = FlowInput(depends_on=needs or None, children_ids=children or None, parent_id=parent)
        named = None if parent is None and not children else (parent, None if parent is None else f"q{parent}")
        jobs.append(FlowEntry(job_id, f"q{job_id}", options, named_parent=named, named_children=children or None))
    if draw(st.booleans()):
        spoil(draw, draw(st.sampled_from(jobs)))
    return draw(st.permutations(jobs))


def spoil(draw, job: FlowEntry) -> None:
    match draw(st.integers(0, 4)):
        case 0:
            job.input.depends_on = draw(some_ids) or None
        case 1:
            job.input.children_ids = draw(some_ids) or None
        case 2:
            job.input.parent_id = draw(st.none() | st.sampled_from(IDS))
        case 3:
            job.named_parent = draw(st.tuples(st.none() | st.sampled_from(IDS), st.none() | st.just("qa")))
        case _:
            job.named_children = draw(st.none() | some_ids)


def faults(jobs: list[FlowEntry]) -> list[str]:
    """Every fault there is, in the order of the wire."""
    found = []
    for job in jobs:
        for word, ids in (("dependency", job.input.depends_on or []), ("child", job.input.children_ids or [])):
            if any(ids.count(one) > 1 for one in ids):
                found.append(f"duplicate {word} in flow job: {job.id}")
    for job in jobs:
        found += faults_of(job, jobs)
    if not any(can_run_in(order) for order in permutations(jobs)):
        found.append("flow contains a dependency cycle")
    return found


def faults_of(job: FlowEntry, jobs: list[FlowEntry]) -> list[str]:
    found = []
    for need in job.input.depends_on or []:
        if all(other.id != need for other in jobs):
            found.append(f"flow dependency not found: {need}")
        if need == job.id:
            found.append(f"flow job cannot depend on itself: {need}")
    for child in job.input.children_ids or []:
        if child not in (job.input.depends_on or []):
            found.append(f"flow child is missing from dependencies: {child}")
        elif not any(other.id == child and other.input.parent_id == job.id for other in jobs):
            found.append(f"flow child {child} does not point back to parent {job.id}")
    parent_id = job.input.parent_id
    if parent_id is not None:
        parents = [other for other in jobs if other.id == parent_id]
        if not parents:
            found.append(f"flow parent not found: {parent_id}")
        elif job.id not in (parents[0].input.children_ids or []):
            found.append(f"flow parent {parent_id} does not own child {job.id}")
        elif job.named_parent != (parent_id, parents[0].queue):
            found.append(f"flow child {job.id} metadata does not match parent {parent_id}")
    if job.input.children_ids and job.named_children != job.input.children_ids:
        found.append(f"flow parent {job.id} children does not match the canonical flow topology")
    return found


def can_run_in(order: tuple[FlowEntry, ...]) -> bool:
    """Whether each job comes after all that it depends on."""
    done: set[str] = set()
    for job in order:
        if not set(job.input.depends_on or []) <= done:
            return False
        done.add(job.id)
    return True


@given(trees())
def test_the_first_fault_is_the_one_that_trying_everything_finds(jobs):
    expected = faults(jobs)

    assert refusals(jobs) == expected[:1]


def refusals(jobs: list[FlowEntry]) -> list[str]:
    try:
        check_graph(jobs)
    except ValidationError as error:
        return [str(error)]
    return []
