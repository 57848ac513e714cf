"""PUSHF: a flow comes as a whole, under ids that nobody has had before, or not at all.

Its jobs are reserved like those of a durable push, all at once: they are staged side by side, so that one transaction
carries them, and take effect one after the other before any pull is served. Until then nobody sees one of them, and
their ids answer for them.

Source: newer clients, "PUSHF".
"""

from bunqueue_trio.engine import job_forms
from bunqueue_trio.engine.admission import Admission
from bunqueue_trio.engine.flow_graph import check_graph
from bunqueue_trio.engine.group_sizes import GroupSizes
from bunqueue_trio.engine.state import FactsNeededError, PendingChangeError, State
from bunqueue_trio.errors import StateError
from bunqueue_trio.model.commands import FlowPlan, PushFlow
from bunqueue_trio.model.instant import Now
from bunqueue_trio.model.job import JobRecord
from bunqueue_trio.model.replies import DataReply


class FlowAdmission:
    """Lets flows in."""

    def __init__(self, state: State, admission: Admission) -> None:
        self._state = state
        self._admission = admission

    def push_flow(self, command: PushFlow, now: Now) -> DataReply:
        """Queue the jobs of a flow, or park them where they depend on others of it. Always durable.

        Shape: ``{"jobs": [job map, ...]}`` in the order of the request, with names beside the data whoever asks.

        Raises:
            ValidationError: the jobs do not hang together. Nothing has changed.
            StateError: one of the ids is taken, or a named group is full. Nothing has changed.
            PendingChangeError, FactsNeededError: it cannot be told yet.

        Cost: O(jobs and edges), some 10 µs per job.
        """
        plan: FlowPlan = command.plan
        if not plan.is_sound:
            check_graph(plan.jobs)
            plan.is_sound = True
        self._check_ids([entry.id for entry in plan.jobs])
        self._check_sizes(plan)
        records: list[JobRecord] = []
        for entry in plan.jobs:
            assert entry.input is not None
            records.append(self._admission.reserve(entry.queue, entry.input, entry.id, now))
        return DataReply(data={"jobs": [job_forms.given(record, is_newer=True) for record in records]})

    def _check_ids(self, ids: list[str]) -> None:
        """Unlike PUSH, a flow takes no id over from a job that has ended."""
        state = self._state
        taken = {job_id for job_id in ids if self._is_known(job_id)}
        if state.history.has_evicted:
            unknown = [job_id for job_id in ids if job_id not in taken]
            if any(job_id not in state.facts for job_id in unknown):
                raise FactsNeededError(unknown)
            taken.update(job_id for job_id in unknown if state.facts[job_id] is not None)
        for job_id in ids:
            if job_id in taken:
                raise StateError(f"Flow job {job_id} already exists")

    def _check_sizes(self, plan: FlowPlan) -> None:
        """Jobs that depend on others take no room yet."""
        inputs = [(entry.queue, entry.input) for entry in plan.jobs if entry.input is not None]
        if all(options.group_max_size is None for _, options in inputs):
            return
        sizes = GroupSizes(self._state)
        for queue_name, options in inputs:
            sizes.admit(queue_name, options, is_queued=not options.depends_on)

    def _is_known(self, job_id: str) -> bool:
        """Whether memory knows a job of that id, unfinished or finished, its record kept or not."""
        state = self._state
        state.not_removing(job_id)
        job = state.jobs.get(job_id)
        if job is not None:
            state.settled(job)
        elif state.leaves_with_queue(job_id):
            raise PendingChangeError(job_id)
        return job is not None or job_id in state.kept_finished or state.history.is_finished(job_id)
