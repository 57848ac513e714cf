"""A push that names a parent which is there already: the two are linked in the same step.

The child is let in like a durable push, and beside it the parent's change is staged: it knows one child more, waits for
it, and is parked if it was not. One transaction carries both. Children that are pushed while that change has not left
for the file yet join it; those that come later wait for the commit.

Source: newer clients, "Child of an existing parent"; SD-19.
"""

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from bunqueue_trio.engine import happenings
from bunqueue_trio.engine.circles import LOOKED_AT_MAX, awaited_by
from bunqueue_trio.engine.foresight import key_holder
from bunqueue_trio.engine.linking import CHILDREN_MAX
from bunqueue_trio.engine.policies import WAITING
from bunqueue_trio.engine.state import PendingChangeError, State
from bunqueue_trio.errors import NotFoundError, StateError, ValidationError
from bunqueue_trio.model.changes import Changes, Dirty
from bunqueue_trio.model.commands import ParentLink, PushOptions
from bunqueue_trio.model.instant import Now
from bunqueue_trio.model.job import Job, JobState, Past, TimelineEntry, extended_timeline, replace
from bunqueue_trio.model.naming import with_data
from bunqueue_trio.model.transitions import Transition, TransitionKind


class Child(Struct, gc=False):
    """One job of a push that is to get a parent: its custom id, if it has one, and what else it says."""

    custom_id: str | None
    parent_id: str
    link: ParentLink
    depends_on: Sequence[str]


Entries = Sequence[tuple[str | None, PushOptions]]
"""Custom id and options of every job of a push, those that link nothing included."""


def has_link(options: PushOptions) -> bool:
    """Whether the job of these options is to get a parent."""
    return not options.is_plain and options.link is not None


class Adoption:
    """Gives pushed jobs to their parents."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._open: dict[str, Transition] = {}
        self._open_in: Changes | None = None

    # before anything changes

    def check(self, queue_name: str, entries: Entries, now: Now) -> None:
        """All that may refuse the links of a push.

        Raises:
            NotFoundError, StateError: a parent is not there, is in a state or in a queue that does not do.
            ValidationError: parent and child would wait for each other.
            PendingChangeError, FactsNeededError: it cannot be told yet.

        Cost: O(entries); where children depend on others, O(what those wait for), bounded.
        """
        state = self._state
        asking = [child for child in _children(entries) if not self._is_done(child)]
        completed = state.completed_among(list({c.parent_id: None for c in asking if c.parent_id not in state.jobs}))
        leaving = self._making_room(queue_name, entries, now)
        counts: dict[str, int] = {}
        for child in asking:
            parent_id = child.parent_id
            if parent_id in completed:
                raise StateError(f"Parent job {parent_id} is not linkable")
            parent = state.jobs.get(parent_id)
            if parent is None or parent_id in leaving:
                raise NotFoundError(f"Parent job not found: {parent_id}")
            counts[parent_id] = counts.get(parent_id, 0) + 1
            self._check_parent(parent, child, counts[parent_id])
        self._check_circles(asking, entries)

    def _is_done(self, child: Child) -> bool:
        """Whether the child is there and has this parent: its push is a repetition, wherever the parent is by now."""
        known = self._state.find(child.custom_id)
        return known is not None and known.state is not JobState.FAILED and known.record.parent_id == child.parent_id

    def _making_room(self, queue_name: str, entries: Entries, now: Now) -> set[str]:
        """Ids of jobs that this very push replaces."""
        queue = self._state.queue(queue_name)
        leaving = set()
        for _, options in entries:
            if not options.is_plain and options.unique_key and options.dedup is not None and options.dedup.replace:
                holder = key_holder(queue, options.unique_key, now)
                if holder is not None:
                    leaving.add(holder.record.id)
        return leaving

    def _check_parent(self, parent: Job, child: Child, added: int) -> None:
        change = self._open_change(parent)
        if change is None and self._state.settled(parent).state not in WAITING:
            raise StateError(f"Parent job {child.parent_id} is not linkable")
        record = parent.record if change is None else change.record
        if record.queue != child.link.parent_queue:
            raise StateError(
                f"Parent job {child.parent_id} belongs to queue {record.queue}, not {child.link.parent_queue}"
            )
        if len(record.children_ids) + added > CHILDREN_MAX:
            raise StateError(f"Parent job {child.parent_id} is not linkable")

    def _check_circles(self, children: Sequence[Child], entries: Entries) -> None:
        if not any(child.depends_on for child in children):
            return
        needs = {custom_id: tuple(options.depends_on or ()) for custom_id, options in entries if custom_id is not None}
        adopted: dict[str, list[str]] = {}
        for child in children:
            adopted.setdefault(child.parent_id, []).extend(child.depends_on)
        for child in children:
            if self._leads_to(child.parent_id, child.depends_on, needs, adopted):
                raise ValidationError("Circular dependency")

    def _leads_to(
        self,
        parent_id: str,
        depends_on: Iterable[str],
        needs: Mapping[str, tuple[str, ...]],
        adopted: Mapping[str, list[str]],
    ) -> bool:
        """Whether who waits for *depends_on* waits, perhaps over others, for *parent_id*.

        Args:
            needs: what other jobs of the push depend on, by their ids.
            adopted: what parents will wait for through the children they are about to get, by the parents' ids.
        """
        jobs = self._state.jobs
        met: set[str] = set()
        ahead = list(depends_on)
        while ahead and len(met) < LOOKED_AT_MAX:
            other = ahead.pop()
            if other == parent_id:
                return True
            if other in met:
                continue
            met.add(other)
            live = jobs.get(other)
            ahead += adopted.get(other, ())
            if live is None or live.state is JobState.FAILED:
                ahead += needs.get(other, ())
                continue
            ahead += awaited_by(live)
        return False

    # when the children have been reserved

    def adopt(self, admitted: Sequence[tuple[str, PushOptions]], now: Now) -> None:
        """Stage that the parents of these jobs, which `check` has found good, wait for their new children.

        Args:
            admitted: id and options of jobs that have been reserved. A later entry of their batch may have undone that.

        Cost: O(children of the parents), whose data are written anew.
        """
        families: dict[str, list[tuple[str, ParentLink]]] = {}
        for job_id, options in admitted:
            if has_link(options) and job_id in self._state.jobs:
                families.setdefault(options.parent_id, []).append((job_id, options.link))
        for parent_id, links in families.items():
            self._adopt(self._state.jobs[parent_id], links, now)

    def _adopt(self, parent: Job, links: Sequence[tuple[str, ParentLink]], now: Now) -> None:
        change = self._open_change(parent)
        if change is None:
            change = self._opened(parent, now)
        record, past = change.record, change.past
        assert change.linked is not None
        assert isinstance(past, Past)
        ids = [job_id for job_id, _ in links]
        children = tuple(dict.fromkeys((*record.children_ids, *ids)))
        record = with_data(record, links[0][1].name_children(record.data, children))
        record.children_ids, record.depends_on = children, tuple(dict.fromkeys((*record.depends_on, *ids)))
        change.record = record
        change.linked += ids
        for job_id in ids:  # known at once, for another may be about to wait for the parent
            self._state.dependents.setdefault(job_id, set()).add(record.id)
        if past.met:
            change.past = replace(past, met=tuple(job_id for job_id in past.met if job_id not in ids))

    def _opened(self, parent: Job, now: Now) -> Transition:
        """A change of *parent* by which it parks. What it does not wait for now it must not wait for when recovered."""
        record, missing = parent.record, parent.missing or ()
        if parent.state is not JobState.PARKED:
            timeline = extended_timeline(record, TimelineEntry("waiting-children", now.wall_ms))
            record = replace(record, timeline=timeline)
        met = tuple(job_id for job_id in record.depends_on if job_id not in missing)
        change = Transition(TransitionKind.LINK, parent, record, JobState.PARKED, dirty=Dirty.FULL | Dirty.EXTRA)
        change.past = replace(parent.past or Past(), met=met, is_parked_again=True)
        change.linked = []
        self._state.stage_end(change)
        self._open[record.id] = change
        return change

    def _open_change(self, parent: Job) -> Transition | None:
        """The change of *parent* that further children can join: staged here, and not on its way into the file."""
        state = self._state
        if self._open_in is not state.changes:
            self._open, self._open_in = {}, state.changes
        change = self._open.get(parent.record.id)
        if change is None or parent.staged is not change:
            return None
        if change.doomed_by is not None:
            raise PendingChangeError(parent.record.id)
        return change


def apply(state: State, change: Transition, now: Now) -> None:
    """A LINK has committed: the parent waits for its new children, too."""
    job, record = change.job, change.record
    assert change.linked is not None
    assert isinstance(change.past, Past)
    job.missing = {*(job.missing or ()), *change.linked}
    job.record, job.past = record, change.past
    state.queues[record.queue].park(job)
    if state.events is not None and change.held_from is not JobState.PARKED:
        happenings.parked(state.events, record, now)


def drop(state: State, change: Transition, now: Now) -> None:
    """A LINK will not come: the parent is as it was."""
    job = change.job
    for child_id in change.linked or ():
        if child_id not in job.record.depends_on:
            state.forget_dependency(job.record.id, child_id)
    state.resume(job, change.held_from, now)


def _children(entries: Entries) -> list[Child]:
    return [
        Child(custom_id, options.parent_id, options.link, options.depends_on or ())
        for custom_id, options in entries
        if has_link(options)
    ]
