"""Commands between a job and its children: their values, their failures, and letting go of them.

Source: commands, "Flow commands" and "GetChildrenValues"; scheduling and flows, "Reading" and "Commands"; CD-6, SD-17.
"""

from typing import Any

from bunqueue_trio.engine import policies
from bunqueue_trio.engine.queries import Queries
from bunqueue_trio.engine.state import State
from bunqueue_trio.errors import NotFoundError, StateError
from bunqueue_trio.model.commands import (
    GetChildrenValues,
    GetFailedChildrenValues,
    GetIgnoredChildrenFailures,
    RemoveChildDependency,
    RemoveUnprocessedChildren,
)
from bunqueue_trio.model.flow_replies import RemovedReply, ValuesReply
from bunqueue_trio.model.instant import Now
from bunqueue_trio.model.job import ChildFailures, Job, JobRecord, JobState
from bunqueue_trio.model.replies import DataReply, Reply
from bunqueue_trio.model.transitions import Transition, TransitionKind

VALUES_MAX = 10_000  # children of one job whose values are read: as many as a flow may have


def has_all_children(state: State, parent: Job) -> bool:
    """Whether each of its children has completed, as far as memory can tell.

    Cost: O(children), but constant while it waits for any.
    """
    record = parent.record
    if parent.missing or not record.children_ids:
        return False
    waited_for = frozenset(record.depends_on)  # none of them is missing
    history = state.history
    return all(
        child in waited_for or (child not in state.jobs and (history.is_finished(child) or history.get(child)))
        for child in record.children_ids
    )


class Flows:
    """Reads and changes what ties a job to its children."""

    def __init__(self, state: State, queries: Queries) -> None:
        self._state = state
        self._queries = queries

    def get_children_values(self, command: GetChildrenValues, now: Now) -> DataReply:
        """The results of those children that have completed, null where there is none (CD-6).

        Shape: ``{"values": {"<queue>:<id>": result}}``; a child that was removed on completion goes by its bare id.

        Raises:
            FactsNeededError: the file has to be asked for all children beyond memory at once.

        Cost: O(children), 10,000 at the most.
        """
        state = self._state
        parent = self._record(command.id)
        if parent is None or not parent.children_ids:
            return DataReply(data={"values": {}})
        children = list(dict.fromkeys(parent.children_ids[:VALUES_MAX]))
        asked = [child_id for child_id in children if child_id not in state.jobs and not self._is_removed(child_id)]
        # The parent too may be known by the file only: facts last for one look-up, so each has to bring them all.
        found = state.completed_among(asked if parent.id in state.jobs else [parent.id, *asked])
        values: dict[str, Any] = {}
        for child_id in children:
            if child_id in state.jobs:
                continue
            completed = found.get(child_id)
            if completed is not None:
                values[f"{completed.record.queue}:{child_id}"] = completed.result
            elif self._is_removed(child_id):
                values[child_id] = state.kept_results.get(child_id)
        return DataReply(data={"values": values})

    def get_failed_children_values(self, command: GetFailedChildrenValues, now: Now) -> ValuesReply:
        """Errors of the children that failed and let this job go on; empty for any other id."""
        return ValuesReply(values=self._failures(command.id).failed)

    def get_ignored_children_failures(self, command: GetIgnoredChildrenFailures, now: Now) -> ValuesReply:
        """Errors of the children whose failures this job ignores; empty for any other id."""
        return ValuesReply(values=self._failures(command.id).ignored)

    def remove_child_dependency(self, command: RemoveChildDependency, now: Now) -> RemovedReply:
        """Let the parent of a child no longer wait for it; the last dependency releases the parent.

        A child that was cancelled or drained is unknown, but jobs may still wait for it: all of those are let go
        (SD-17). The reply says whether there was a queued or parked parent.

        Raises:
            NotFoundError: neither the child nor anybody who waits for it is known.
            StateError: the child has no parent.

        Cost: O(dependencies of the parent).
        """
        child_id: str = command.id
        child = self._record(child_id)
        if child is None:
            parents = [self._state.jobs[job_id] for job_id in sorted(self._state.dependents.get(child_id, ()))]
            if not parents or self._state.history.is_finished(child_id):
                raise NotFoundError(f"Job not found: {child_id}")
        elif child.parent_id is None:
            raise StateError(f"Job {child_id} has no parent")
        else:
            parent = self._state.jobs.get(child.parent_id)
            parents = [] if parent is None else [parent]
        return RemovedReply(removed=self._let_go(child_id, parents, now))

    def remove_unprocessed_children(self, command: RemoveUnprocessedChildren, now: Now) -> Reply:
        """Cancel the children of a job that are queued or parked; the job itself stays as it is. Never an error.

        Cost: O(children).
        """
        state = self._state
        parent = self._record(command.id)
        ids = () if parent is None else dict.fromkeys(parent.children_ids)
        children = [state.settled(state.jobs[job_id]) for job_id in ids if job_id in state.jobs]
        for child in children:
            if child.state in policies.WAITING and child.record.id != command.id:
                state.stage_end(Transition(TransitionKind.CANCEL, child, child.record, JobState.GONE))
        return Reply()

    def _record(self, job_id: Any) -> JobRecord | None:
        """The job of that id as clients see it, completed or not."""
        job = self._queries.visible(job_id)
        if job is not None:
            return job.record
        completed = self._state.completed(job_id)
        return None if completed is None else completed.record

    def _is_removed(self, job_id: str) -> bool:
        """True for a job that completed and was removed, as far as that is remembered."""
        state = self._state
        return state.history.get(job_id) is None and (
            job_id in state.kept_finished or state.history.is_finished(job_id)
        )

    def _failures(self, job_id: Any) -> ChildFailures:
        job = self._state.find(job_id)
        return (None if job is None else job.child_failures) or ChildFailures()

    def _let_go(self, child_id: str, parents: list[Job], now: Now) -> bool:
        """Stage that *parents* no longer wait for a child. Returns whether any of them was waiting for anything."""
        state = self._state
        waiting = [parent for parent in parents if state.settled(parent).state in policies.WAITING]
        for parent in waiting:
            change = policies.loosened(parent, frozenset({child_id}), now, failures=parent.child_failures)
            if change is not None:
                state.stage_end(change)
        return bool(waiting)
