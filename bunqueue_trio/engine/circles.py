"""Jobs that depend on each other in a circle, and so would wait for ever.

They may be of one batch. Or somebody waits for an id that has gone or failed, and now that id is to live again and to
wait for him. Or a job parks itself while one of its dependencies waits for it, having come to life after it.

Source: scheduling and flows, SD-19.
"""

from collections.abc import Collection, Iterable, Mapping

from bunqueue_trio.engine.state import State
from bunqueue_trio.model.commands import PushEntry
from bunqueue_trio.model.job import Job, JobState, Past
from bunqueue_trio.model.transitions import TransitionKind

LOOKED_AT_MAX = (
    10_000  # jobs between the two ends of a circle; a wider one is let in, and RemoveChildDependency ends it
)
_PARKING = (TransitionKind.PARK, TransitionKind.LINK)
NOTHING: Mapping[str, tuple[str, ...]] = {}


def closes_circle(
    state: State, job_id: str | None, depends_on: Iterable[str], batch: Mapping[str, tuple[str, ...]] = NOTHING
) -> bool:
    """Whether a push of *job_id* would wait for a job that waits, perhaps over others, for that very id.

    Args:
        batch: what other entries of the same batch depend on, by their ids.

    Cost: one look-up where nobody waits for the id; else O(jobs that it would wait for), bounded.
    """
    if job_id is None or job_id not in state.dependents:
        return False
    known = state.jobs.get(job_id)
    if known is not None and known.state is not JobState.FAILED:
        return False  # it answers for the push
    met: set[str] = set()
    ahead = list(depends_on)
    while ahead and len(met) < LOOKED_AT_MAX:
        other = ahead.pop()
        if other == job_id:
            return True
        if other not in met:
            met.add(other)
            live = state.jobs.get(other)
            if live is None or live.state is JobState.FAILED:
                ahead += batch.get(other, ())
            else:
                ahead += awaited_by(live)
    return False


def waiters(state: State, job_id: str) -> set[str]:
    """Those who wait for *job_id*, perhaps over others, and the id itself.

    Cost: one look-up where nobody waits for it; else O(those who do and what they depend on), bounded.
    """
    found = {job_id}
    ahead = [job_id]
    while ahead and len(found) < LOOKED_AT_MAX:
        awaited = ahead.pop()
        for other in state.dependents.get(awaited, ()):
            if other not in found and awaited in awaited_by(state.jobs[other]):
                found.add(other)
                ahead.append(other)
    return found


def awaited_by(job: Job) -> Collection[str]:
    """What *job* waits for; or will wait for when a change that is on its way has committed."""
    change = job.staged
    if change is not None and change.kind in _PARKING and isinstance(change.past, Past):
        return set(change.record.depends_on).difference(change.past.met)
    return job.missing or ()


def first_in_circle(state: State, entries: list[PushEntry]) -> int | None:
    """The index of the first entry that, over custom ids of the batch or over jobs there are, depends on itself."""
    needs = {entry.custom_id: tuple(entry.depends_on) for entry in entries if entry.custom_id and entry.depends_on}
    if not needs:
        return None
    circle = _first_in_batch(entries)
    if circle is not None:
        return circle
    for index, entry in enumerate(entries):
        if entry.depends_on and closes_circle(state, entry.custom_id, entry.depends_on, needs):
            return index
    return None


def _first_in_batch(entries: list[PushEntry]) -> int | None:
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
