"""Whether the jobs of one PUSHF hang together: every edge is named on both sides, and nobody waits for himself.

Knows nothing but the jobs it is given: a flow is a world of its own, and an id that exists elsewhere is no part of it.

Source: newer clients, 6.1, number 5.
"""

from collections.abc import Mapping, Sequence, Set

from bunqueue_trio.errors import ValidationError
from bunqueue_trio.model.commands import FlowEntry, FlowInput

_Jobs = Mapping[str, FlowEntry]


def check_graph(jobs: Sequence[FlowEntry]) -> None:
    """Refuse what is no sound flow, with the first fault in the order of the wire.

    Raises:
        ValidationError: it is not.

    Cost: O(jobs and edges), some 1 µs each.
    """
    for entry in jobs:
        _check_repetitions(entry)
    by_id = {entry.id: entry for entry in jobs}
    owned = {(entry.id, child) for entry in jobs for child in _options(entry).children_ids or ()}
    for entry in jobs:
        options = _options(entry)
        if options.depends_on is not None:
            _check_dependencies(entry, by_id)
        if options.children_ids is not None:
            _check_children(entry, by_id)
        if options.parent_id is not None:
            _check_parent(entry, by_id, owned)
        if options.children_ids is not None and entry.named_children != options.children_ids:
            raise ValidationError(f"flow parent {entry.id} children does not match the canonical flow topology")
    if _has_circle(jobs):
        raise ValidationError("flow contains a dependency cycle")


def _check_repetitions(entry: FlowEntry) -> None:
    options = _options(entry)
    if _repeats(options.depends_on):
        raise ValidationError(f"duplicate dependency in flow job: {entry.id}")
    if _repeats(options.children_ids):
        raise ValidationError(f"duplicate child in flow job: {entry.id}")


def _repeats(ids: list[str] | None) -> bool:
    return ids is not None and len(set(ids)) < len(ids)


def _check_dependencies(entry: FlowEntry, by_id: _Jobs) -> None:
    for dependency in _options(entry).depends_on:
        if dependency not in by_id:
            raise ValidationError(f"flow dependency not found: {dependency}")
        if dependency == entry.id:
            raise ValidationError(f"flow job cannot depend on itself: {entry.id}")


def _check_children(entry: FlowEntry, by_id: _Jobs) -> None:
    options = _options(entry)
    dependencies = set(options.depends_on or ())
    for child in options.children_ids:
        if child not in dependencies:
            raise ValidationError(f"flow child is missing from dependencies: {child}")
        if _options(by_id[child]).parent_id != entry.id:  # a dependency, so it is there
            raise ValidationError(f"flow child {child} does not point back to parent {entry.id}")


def _check_parent(entry: FlowEntry, by_id: _Jobs, owned: Set[tuple[str, str]]) -> None:
    parent_id = _options(entry).parent_id
    parent = by_id.get(parent_id)
    if parent is None:
        raise ValidationError(f"flow parent not found: {parent_id}")
    if (parent_id, entry.id) not in owned:
        raise ValidationError(f"flow parent {parent_id} does not own child {entry.id}")
    if entry.named_parent != (parent_id, parent.queue):
        raise ValidationError(f"flow child {entry.id} metadata does not match parent {parent_id}")


def _has_circle(jobs: Sequence[FlowEntry]) -> bool:
    """Take away whoever waits for nobody that is left; whoever stays waits in a circle, or for one."""
    waits_for = {entry.id: len(_options(entry).depends_on or ()) for entry in jobs}
    needed_by: dict[str, list[str]] = {}
    for entry in jobs:
        for dependency in _options(entry).depends_on or ():
            needed_by.setdefault(dependency, []).append(entry.id)
    free = [job_id for job_id, count in waits_for.items() if not count]
    taken = 0
    while free:
        taken += 1
        for job_id in needed_by.get(free.pop(), ()):
            waits_for[job_id] -= 1
            if not waits_for[job_id]:
                free.append(job_id)
    return taken < len(waits_for)


def _options(entry: FlowEntry) -> FlowInput:
    assert entry.input is not None
    return entry.input
