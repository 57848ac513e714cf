"""What must hold between commands, recounted from scratch. Slow on purpose: nothing here trusts a counter."""

from collections import Counter

from bunqueue_trio.engine.catalog import LIVE_KINDS, key_of, kind_of
from bunqueue_trio.engine.queue_state import QueueState
from bunqueue_trio.engine.repeats import MAX_LINKS
from bunqueue_trio.engine.state import State
from bunqueue_trio.errors import InvariantError
from bunqueue_trio.model.grouping import DEFAULT_GROUP_SETTINGS, takes_turns
from bunqueue_trio.model.job import Job, JobState, waits_for_first
from bunqueue_trio.model.naming import record_class
from bunqueue_trio.model.transitions import Amendment, CronChange, TransitionKind


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
        kind = record_class(job.record.name, job.record.data)
        _require(type(job.record) is kind, f"{job_id} would be shown in another form than that of its data")
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
    _check_gauges(state)
    _check_logs(state)
    _check_workers(state)
    _require(len(state.successors) <= MAX_LINKS, f"{len(state.successors)} links to successors")
    for connection_id, held in state.held.items():
        for job_id, job in held.items():
            lease = job.lease
            _require(job.state is JobState.ACTIVE, f"connection {connection_id} holds {job_id}, which is not active")
            _require(lease is not None and lease.connection_id == connection_id, f"{job_id} is held by two connections")
    for dependency, waiting in state.dependents.items():
        for job_id in waiting:
            _require(job_id in state.jobs, f"{job_id} waits for {dependency} but is gone")
    _check_flows(state)
    _check_crons(state)


def _check_crons(state: State) -> None:
    table = state.crons
    flying = [] if state.in_flight is None else state.in_flight.staged
    changing = sorted(change.name for change in (*flying, *state.changes.staged) if isinstance(change, CronChange))
    _require(changing == sorted(table.pending), f"crons {sorted(table.pending)} wait for a commit, staged {changing}")
    live = {id(place) for place in table.due if place[2].place is place}
    for name, cron in table.by_name.items():
        _require(cron.job.name == name, f"cron {name} is called {cron.job.name}")
        is_due = cron.place is not None and id(cron.place) in live
        _require(is_due != (name in table.pending), f"cron {name} is not in its place")
    _require(len(live) == sum(cron.place is not None for cron in table.by_name.values()), "a cron that is gone is due")


def _check_flows(state: State) -> None:
    for job_id, job in state.jobs.items():
        missing = job.missing or set()
        waits = bool(missing) or (job.missing is not None and waits_for_first(job))
        _require(job.state is not JobState.PARKED or waits, f"{job_id} is parked and waits for nothing")
        is_again = job.past is not None and job.past.is_parked_again
        is_held = job.state in (JobState.PARKED, JobState.STAGED)
        _require(not is_again or is_held, f"{job_id} is {job.state.name} but counts as parked")
        for dependency in missing:
            is_known = dependency in job.record.depends_on and job_id in state.dependents.get(dependency, ())
            _require(is_known, f"{job_id} waits for {dependency}, which does not know")
        _require(job.state is not JobState.FAILED or job.child_failures is None, f"dead letter {job_id} has failures")
    for job_id in state.kept_results:
        _require(job_id in state.kept_finished, f"the result of {job_id} is kept for nobody")
    for job_id in state.awaited:
        awaited = state.jobs.get(job_id)
        is_going_on = awaited is not None and awaited.state is not JobState.FAILED
        _require(is_going_on, f"{job_id} is awaited but has ended")
    flying = [] if state.in_flight is None else state.in_flight.staged
    amended = {change.record.id for change in (*flying, *state.changes.staged) if isinstance(change, Amendment)}
    _require(amended == state.amending, f"amending {sorted(state.amending)}, staged {sorted(amended)}")


def _check_gauges(state: State) -> None:
    queues = state.queues.values()
    gauges = state.gauges
    counted = {
        "waiting": (gauges.waiting, sum(queue.waiting_count for queue in queues)),
        "prioritized": (gauges.prioritized, sum(queue.prioritized_count for queue in queues)),
        "delayed": (gauges.delayed, sum(queue.delayed_count for queue in queues)),
        "parked": (gauges.parked, sum(queue.parked_count for queue in queues)),
        "completed": (gauges.completed, sum(queue.completed_count for queue in queues)),
        "dead": (gauges.dead, sum(len(queue.letters) for queue in queues)),
    }
    for what, (kept, recount) in counted.items():
        _require(kept == recount, f"all queues: {kept} {what}, counted {recount}")


def _check_workers(state: State) -> None:
    expected: dict[int, set[str]] = {}
    for worker in state.workers.values():
        if worker.connection_id is not None:
            expected.setdefault(worker.connection_id, set()).add(worker.id)
    listed = {connection_id: set(workers) for connection_id, workers in state.workers_of.items()}
    _require(listed == expected, f"workers by connection: {listed}, counted {expected}")


def _check_logs(state: State) -> None:
    total, most, least = state.logs.recounted()
    _require(total == state.logs.total_bytes, f"logs: {state.logs.total_bytes} bytes, counted {total}")
    _require(least > 0 and most <= state.logs.max_lines, f"logs: between {least} and {most} lines of a job")


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
    _check_lists(queue, jobs)
    _check_removal(queue)
    _check_letters(state, queue)
    heaps = [queue.ready, queue.delayed, *(group.aside for group in queue.groups.values())]
    if queue.named_groups is not None:
        heaps += queue.named_groups.heaps()
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
            if group_id is not None and not takes_turns(job.record):
                group = queue.groups.get(group_id)
                _require(group is not None and group.active is job, f"{job.record.id} runs outside its group's turn")
    _check_named_groups(queue, [job for job in jobs if takes_turns(job.record)])
    for key, job in queue.keys.items():
        _require(state.jobs.get(job.record.id) is job, f"key {key} of {queue.name} is held by a job that is gone")
        _require(job.record.unique_key == key, f"key {key} of {queue.name} is held by a job without it")
        is_letter = job.state is JobState.FAILED and job.staged is None  # one that is on its way back has its key
        _require(not is_letter, f"key {key} of {queue.name} is held by a dead letter")


def _check_named_groups(queue: QueueState, members: list[Job]) -> None:
    """Each member stands in its group, each counter is right, and who has a turn has a ready job."""
    groups = queue.named_groups
    counted = Counter((job.record.group_id, job.state) for job in members)
    if groups is None:
        is_left = any(state in (JobState.READY, JobState.DELAYED, JobState.ACTIVE) for _, state in counted)
        _require(not is_left, f"queue {queue.name}: members of named groups without groups")
        return
    publishing = {job.record.id for job in members if job.staged and job.staged.kind is TransitionKind.PUBLISH}
    for group in groups:
        name = f"group {group.group_id} of {queue.name}"
        ready, delayed, active = (
            counted.pop((group.group_id, state), 0) for state in (JobState.READY, JobState.DELAYED, JobState.ACTIVE)
        )
        placed = [e[-1] for e in group.ready if e[-1].place is e]
        mine = sum(job.record.group_id == group.group_id and takes_turns(job.record) for job in placed)
        _require(mine == len(placed) == ready, f"{name}: {len(placed)} in its heap, {mine} of them its own")
        _require(group.ready_count == ready, f"{name}: {group.ready_count} ready, counted {ready}")
        _require(group.queued_count == ready + delayed, f"{name}: {group.queued_count} queued, not {ready + delayed}")
        _require(group.active_count == active, f"{name}: {group.active_count} active, counted {active}")
        _require((group.turn > 0) == (ready > 0), f"{name}: {ready} ready jobs and turn {group.turn}")
        _require(group.reserved <= publishing, f"{name}: reserved for {sorted(group.reserved - publishing)}")
        _require(group.is_needed or group.idle_mono_ms > 0, f"{name} holds nothing and is kept for ever")
        alone = queue.groups.get(group.group_id)
        _require(not (active and alone is not None and alone.active), f"{name}: a member that runs alone does not")
    left = [key for key in counted if key[1] in (JobState.READY, JobState.DELAYED, JobState.ACTIVE)]
    _require(not left, f"queue {queue.name}: no group for {left}")
    sums = {
        "ready": (groups.ready_count, sum(group.ready_count for group in groups)),
        "queued": (groups.queued_count, sum(group.queued_count for group in groups)),
        "with settings": (groups.settings_count, sum(group.settings != DEFAULT_GROUP_SETTINGS for group in groups)),
        "in line": (groups.line_length, sum(group.turn > 0 for group in groups)),
    }
    for what, (kept, recount) in sums.items():
        _require(kept == recount, f"groups of {queue.name}: {kept} {what}, counted {recount}")


def _check_removal(queue: QueueState) -> None:
    removal = queue.removal
    if removal is not None:
        _require(not removal.is_dropped and removal.queue == queue.name, f"queue {queue.name}: a removal gone by")
        for job in removal.jobs:
            _require(job.staged is not None, f"{job.record.id} is to be removed but does not wait for it")
            _require(job.record.queue == queue.name, f"{job.record.id} is to be removed with another queue")


def _check_letters(state: State, queue: QueueState) -> None:
    """Each dead letter that time may end or retry is looked at some time."""
    if not queue.letters:
        return
    policy = queue.settings.dlq
    watched = {id(entry) for _, _, entry in state.letters_due}
    for job_id, entry in queue.letters.items():
        may_return = policy.auto_retry and entry.retry_count < policy.max_auto_retries
        is_timed = entry.expires_at is not None or (may_return and entry.next_retry_at is not None)
        _require(not is_timed or id(entry) in watched, f"dead letter {job_id} is never looked at")


def _check_lists(queue: QueueState, jobs: list[Job]) -> None:
    """Every job that clients can see is listed once, in a block of its range, and counted as what it is."""
    listed: list[Job] = []
    before = None
    for block in queue.catalog.blocks:
        members = [job for job in block.jobs if job.block is block]
        _require(before is None or before < block.first, f"queue {queue.name}: blocks out of order")
        before = block.first
        stale = len(block.jobs) - len(members)
        _require(block.stale_count == stale, f"queue {queue.name}: {block.stale_count} stale in a block, not {stale}")
        kinds = Counter(kind_of(job) for job in members)
        for kind in LIVE_KINDS:
            kept = block.count((kind,))
            _require(kept == kinds[kind], f"queue {queue.name}: {kept} of kind {kind} in a block, not {kinds[kind]}")
        listed += members
    keys = [key_of(job) for block in queue.catalog.blocks for job in block.in_order()]
    _require(keys == sorted(keys), f"queue {queue.name}: lists are out of order")
    visible = [job for job in jobs if not (job.state is JobState.STAGED and job.staged and not job.staged.held_kind)]
    expected = sorted(job.record.id for job in visible)
    _require(sorted(job.record.id for job in listed) == expected, f"queue {queue.name}: lists do not show its jobs")
    queued = (JobState.READY, JobState.DELAYED)
    priorities = Counter(job.record.priority for job in jobs if job.state in queued and job.record.priority)
    _require(queue.priorities == priorities, f"queue {queue.name}: {queue.priorities} by priority, not {priorities}")


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise InvariantError(what)
