"""What must hold between commands, recounted from scratch. Slow on purpose: nothing here trusts a counter."""

from collections import Counter

from bunqueue_trio.engine.queue_state import QueueState
from bunqueue_trio.engine.state import State
from bunqueue_trio.errors import InvariantError
from bunqueue_trio.model.job import Job, JobState


def check_invariants(state: State) -> None:
    """Compare every counter, index and heap with a recount. O(everything).

    Raises:
        InvariantError: names the first thing that is wrong.
    """
    by_queue: dict[str, list[Job]] = {}
    for job_id, job in state.jobs.items():
        _require(job.record.id == job_id, f"index: {job_id} leads to {job.record.id}")
        _require(job.state not in (JobState.COMPLETED, JobState.GONE), f"index: {job_id} is {job.state.name}")
        _require(job.state is not JobState.STAGED or job.staged is not None, f"{job_id} is staged without a change")
        by_queue.setdefault(job.record.queue, []).append(job)
        former = None if job.staged is None else job.staged.former
        if former is not None:  # the life before, as long as the new one may still fail to commit
            by_queue.setdefault(former.record.queue, []).append(former)
    for name in by_queue:
        _require(name in state.queues, f"queue {name} is missing")
    for name, queue in state.queues.items():
        _check_queue(state, queue, by_queue.get(name, []))
    active = sum(queue.active_count for queue in state.queues.values())
    _require(active == state.active_count, f"{state.active_count} active in all, counted {active}")
    for connection_id, held in state.held.items():
        for job_id, job in held.items():
            lease = job.lease
            _require(job.state is JobState.ACTIVE, f"connection {connection_id} holds {job_id}, which is not active")
            _require(lease is not None and lease.connection_id == connection_id, f"{job_id} is held by two connections")
    for dependency, waiting in state.dependents.items():
        for job_id in waiting:
            _require(job_id in state.jobs, f"{job_id} waits for {dependency} but is gone")


def _check_queue(state: State, queue: QueueState, jobs: list[Job]) -> None:
    states = Counter(job.state for job in jobs)
    ready = [job for job in jobs if job.state is JobState.READY]
    prioritized = sum(job.record.priority > 0 for job in ready)
    counted = {
        "waiting": (queue.waiting_count, len(ready) - prioritized),
        "prioritized": (queue.prioritized_count, prioritized),
        "delayed": (queue.delayed_count, states[JobState.DELAYED]),
        "parked": (queue.parked_count, states[JobState.PARKED]),
        "active": (queue.active_count, states[JobState.ACTIVE]),
        "failed": (len(queue.letters), states[JobState.FAILED]),
        "staged": (queue.staged_count, sum(job.staged is not None for job in jobs)),
    }
    for what, (kept, recount) in counted.items():
        _require(kept == recount, f"queue {queue.name}: {kept} {what}, counted {recount}")
    heaps = [queue.ready, queue.delayed, *(group.aside for group in queue.groups.values())]
    placed = Counter(id(e[-1]) for heap in heaps for e in heap if e[-1].place is e)
    for job in jobs:
        queued = job.state in (JobState.READY, JobState.DELAYED)
        _require(placed[id(job)] == int(queued), f"{job.record.id}: {job.state.name} with {placed[id(job)]} places")
        may_miss = job.state in (JobState.PARKED, JobState.STAGED)
        _require(may_miss or job.missing is None, f"{job.record.id} is {job.state.name} but waits for others")
        if job.state is JobState.ACTIVE:
            has_lease = job.lease is not None and job.lease.taken_back is None
            _require(has_lease, f"{job.record.id} is active without a lease")
            group_id = job.record.group_id
            if group_id is not None:
                group = queue.groups.get(group_id)
                _require(group is not None and group.active is job, f"{job.record.id} runs outside its group's turn")
    for key, job in queue.keys.items():
        _require(state.jobs.get(job.record.id) is job, f"key {key} of {queue.name} is held by a job that is gone")
        _require(job.record.unique_key == key, f"key {key} of {queue.name} is held by a job without it")
        is_letter = job.state is JobState.FAILED and job.staged is None  # one that is on its way back has its key
        _require(not is_letter, f"key {key} of {queue.name} is held by a dead letter")


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise InvariantError(what)
