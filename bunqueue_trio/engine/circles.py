"""Jobs of one batch that depend on each other in a circle, and so would wait for ever.

Source: scheduling and flows, SD-19.
"""

from bunqueue_trio.model.commands import PushEntry


def first_in_circle(entries: list[PushEntry]) -> int | None:
    """The index of the first entry that, over custom ids of the batch, depends on itself (SD-19)."""
    index_of = {entry.custom_id: i for i, entry in enumerate(entries) if entry.custom_id is not None}
    needs = [[index_of[d] for d in entry.depends_on or () if d in index_of] for entry in entries]
    blocked_by = [len(n) for n in needs]
    needed_by: dict[int, list[int]] = {}
    for index, wanted in enumerate(needs):
        for other in wanted:
            needed_by.setdefault(other, []).append(index)
    _peel(blocked_by, needed_by)
    # What is left depends on a circle or is in one: peel from the other side.
    left = {i for i, count in enumerate(blocked_by) if count}
    wanted_by = [sum(other in left for other in needed_by.get(i, ())) if i in left else 0 for i in range(len(entries))]
    _peel(wanted_by, {i: [n for n in needs[i] if n in left] for i in left})
    return next((i for i, count in enumerate(wanted_by) if count), None)


def _peel(counts: list[int], neighbours: dict[int, list[int]]) -> None:
    """Take away whatever has a count of 0, lowering the counts of its neighbours, until nothing changes."""
    free = [i for i, count in enumerate(counts) if not count]
    while free:
        for index in neighbours.get(free.pop(), ()):
            counts[index] -= 1
            if not counts[index]:
                free.append(index)
