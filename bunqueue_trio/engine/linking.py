"""UpdateParent: one job becomes the parent of another, whatever the states of the two.

Clients push children first, then their parent, then link them; so a child may run, be completed or have failed by the
time it learns of its parent. All of it changes in one transaction: the child's ``parentId``, the two keys in its data
that name the parent, the parent's ``childrenIds``, and what the failure of a dead child does to the parent.

Source: commands, "UpdateParent"; scheduling and flows, "Linking"; CD-8, SD-20.
"""

from msgspec import Struct

from bunqueue_trio.engine import policies
from bunqueue_trio.engine.state import PendingChangeError, State
from bunqueue_trio.errors import StateError
from bunqueue_trio.model.changes import Dirty
from bunqueue_trio.model.commands import UpdateParent
from bunqueue_trio.model.instant import Now
from bunqueue_trio.model.job import Job, JobRecord, JobState, replace
from bunqueue_trio.model.replies import Reply
from bunqueue_trio.model.transitions import Amendment, Transition, TransitionKind

CHILDREN_MAX = 10_000  # what a flow may have: the parent's row is rewritten with each child
EARLIER_FAILURE = "Child job failed"  # Wire: what a parent hears of a child that had failed before it was linked


class Kin(Struct, gc=False, eq=False):
    """One of the two jobs: its record, and the job itself unless it has completed."""

    record: JobRecord
    job: Job | None


class Linking:
    """Makes parents."""

    def __init__(self, state: State) -> None:
        self._state = state

    def update_parent(self, command: UpdateParent, now: Now) -> Reply:
        """Link a child to a parent; an unknown child is no error, and an unknown parent is noted all the same.

        Raises:
            StateError: the child's data can name no parent, or there are too many children. Nothing has changed.
            PendingChangeError, FactsNeededError: come again.

        Cost: O(childrenIds of the parent).
        """
        if type(command.child_id) is not str:  # which names no job
            return Reply()
        child, parent = self._kin(command.child_id, command.parent_id)
        if child is None:
            return Reply()
        record = self._named(child.record, command, None if parent is None else parent.record.queue)
        staged = [] if record == child.record else [self._change(child, record)]
        staged += self._changes_of_parent(record, child, parent, now)
        for change in staged:
            self._stage(change)
        return Reply()

    def _kin(self, child_id: str, parent_id: str) -> tuple[Kin | None, Kin | None]:
        state = self._state
        live = {job_id: job for job_id in (child_id, parent_id) if (job := state.find(job_id)) is not None}
        for job in live.values():
            state.settled(job)
        done = state.completed_among([job_id for job_id in (child_id, parent_id) if job_id not in live])
        if not state.amending.isdisjoint(done):
            raise PendingChangeError("a completed job that is being linked")
        kin = {job_id: Kin(job.record, job) for job_id, job in live.items()}
        kin |= {job_id: Kin(completed.record, None) for job_id, completed in done.items()}
        return kin.get(child_id), kin.get(parent_id)

    @staticmethod
    def _named(child: JobRecord, command: UpdateParent, parent_queue: str | None) -> JobRecord:
        data = command.name_parent(child.data, command.parent_id, parent_queue, child.queue)
        if data is None or child.id == command.parent_id:
            raise StateError("Failed to update parent")
        return replace(child, data=data, parent_id=command.parent_id)

    def _changes_of_parent(
        self, child: JobRecord, before: Kin, parent: Kin | None, now: Now
    ) -> list[Transition | Amendment]:
        if parent is None:
            return []
        children = parent.record.children_ids
        if child.id not in children:
            if len(children) >= CHILDREN_MAX:
                raise StateError("Failed to update parent")
            children = (*children, child.id)
        changes: list[Transition | Amendment] = []
        if before.job is not None and before.job.state is JobState.FAILED:
            changes += policies.consequences(self._state, child, EARLIER_FAILURE, now)
        if children is not parent.record.children_ids:
            if changes:
                _add_children(changes[0], children)
            else:
                changes.append(self._change(parent, replace(parent.record, children_ids=children)))
        return changes

    def _change(self, kin: Kin, record: JobRecord) -> Transition | Amendment:
        """The change by which a job gets another record and stays where it is."""
        job = kin.job
        if job is None:
            return Amendment(record)
        if job.state is JobState.FAILED:
            entry = replace(self._state.queues[record.queue].letters[record.id], job=record)
            return Transition(TransitionKind.AMEND, job, record, JobState.GONE, entry=entry)
        kind = TransitionKind.UPDATE if job.state is JobState.ACTIVE else TransitionKind.MOVE
        return Transition(kind, job, record, JobState.READY, dirty=Dirty.FULL)

    def _stage(self, change: Transition | Amendment) -> None:
        state = self._state
        if isinstance(change, Amendment):
            state.amending.add(change.record.id)
            state.stage(change)
        else:
            state.stage_end(change)


def _add_children(change: Transition | Amendment, children: tuple[str, ...]) -> None:
    """What happens to the parent anyway also gives it its new child."""
    assert isinstance(change, Transition)
    change.record = replace(change.record, children_ids=children)
    if change.entry is not None:
        change.entry.job = change.record
