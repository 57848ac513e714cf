"""What becomes of changes that waited for their commit: applied when it succeeded, dropped when it failed.

Until then everybody saw the state before, so a failed commit leaves nothing to undo but the reservation.
"""

from bunqueue_trio.engine import leases, retries
from bunqueue_trio.engine.admission import Admission
from bunqueue_trio.engine.limits import TokenBucket
from bunqueue_trio.engine.state import State
from bunqueue_trio.model.changes import Dirty
from bunqueue_trio.model.entries import CompletedJob
from bunqueue_trio.model.instant import Now
from bunqueue_trio.model.job import Job, JobState, TimelineEntry, extended_timeline, queued_state
from bunqueue_trio.model.leases import TakenBack
from bunqueue_trio.model.transitions import SettingsChange, Staged, Transition, TransitionKind


class Settling:
    """Applies or drops staged changes."""

    def __init__(self, state: State, admission: Admission) -> None:
        self._state = state
        self._admission = admission
        self._steps = {
            TransitionKind.PUBLISH: self._publish,
            TransitionKind.COMPLETE: self._complete,
            TransitionKind.RETRY: self._retry,
            TransitionKind.BURY: self._bury,
            TransitionKind.REMOVE: self._remove,
            TransitionKind.MOVE: self._move,
            TransitionKind.UPDATE: self._update,
            TransitionKind.DISCARD: self._discard,
            TransitionKind.REVIVE: self._revive,
            TransitionKind.PURGE: self._remove,
        }

    def apply(self, staged: list[Staged], now: Now) -> None:
        """The transaction that carried these changes has committed: let them take effect, in order."""
        for change in staged:
            if isinstance(change, SettingsChange):
                self._settings(change, now)
            else:
                self._state.queues[change.record.queue].staged_count -= 1
                change.job.staged = None
                self._steps[change.kind](change, now)

    def drop(self, staged: list[Staged], now: Now) -> None:
        """Their commit has failed: forget these changes, the last first."""
        state = self._state
        for change in reversed(staged):
            if isinstance(change, SettingsChange):
                continue
            job = change.job
            state.queues[change.record.queue].staged_count -= 1
            job.staged = None
            if change.kind is TransitionKind.PUBLISH:
                state.unreserve(change)
            elif change.kind is TransitionKind.REVIVE:
                state.free_key(job)
            elif change.held_from is not None:
                state.resume(change, now)
            elif job.state is JobState.ACTIVE and job.lease is not None:
                holder = job.lease.connection_id
                if holder is not None and holder not in state.connections:
                    leases.release(state, job, now, is_orderly=False)

    def _publish(self, change: Transition, now: Now) -> None:
        if change.renews_id:
            former = change.former
            if former is not None:
                self._state.queues[former.record.queue].letters.pop(former.record.id, None)
        if change.record.custom_id is not None:
            self._state.forget_completed(change.record.id)
        self._admission.publish(change.job, now)

    def _complete(self, change: Transition, now: Now) -> None:
        state = self._state
        job = change.job
        self._leave(job)
        job.record = change.record
        job.state = JobState.COMPLETED
        state.totals.completed += 1
        if change.state is JobState.COMPLETED:
            state.queues[job.record.queue].completed_count += 1
            state.history.add(CompletedJob(change.record, change.result))
        else:
            state.history.remember_finished(job.record.id)
            if job.record.id in state.dependents:
                state.keep_finished(job.record.id)
            elif change.keeps_id:
                state.changes.finished_gone.append(job.record.id)
        self._resolve_dependents(job.record.id, now)

    def _retry(self, change: Transition, now: Now) -> None:
        state = self._state
        job = change.job
        state.deactivate(job)
        job.record = change.record
        if job.lease is not None:
            job.lease.taken_back = TakenBack.FAIL
        state.enqueue(state.queues[job.record.queue], job, now)

    def _bury(self, change: Transition, now: Now) -> None:
        state = self._state
        job = change.job
        job.record = change.record
        state.totals.failed += 1
        if change.entry is None:  # removeOnFail
            self._leave(job)
            return
        state.leave_place(job)
        job.state = JobState.GONE
        retries.enter_letters(state, job, change.entry)

    def _remove(self, change: Transition, now: Now) -> None:
        self._leave(change.job)
        change.job.state = JobState.GONE

    def _move(self, change: Transition, now: Now) -> None:
        state = self._state
        job = change.job
        if change.held_from is not None:
            job.record = change.record
            state.resume(change, now)
            return
        state.deactivate(job)
        if job.lease is not None:
            job.lease.taken_back = TakenBack.MOVED
        job.record = change.record
        state.enqueue(state.queues[job.record.queue], job, now)

    def _update(self, change: Transition, now: Now) -> None:
        change.job.record = change.record

    def _discard(self, change: Transition, now: Now) -> None:
        job = change.job
        assert change.entry is not None
        self._state.leave_place(job)
        job.state = JobState.GONE
        retries.enter_letters(self._state, job, change.entry)

    def _revive(self, change: Transition, now: Now) -> None:
        state = self._state
        job = change.job
        queue = state.queues[job.record.queue]
        del queue.letters[job.record.id]
        job.record = change.record
        job.lease = None
        state.enqueue(queue, job, now)

    def _leave(self, job: Job) -> None:
        """Nothing of *job* stays in the live state; its row is already right."""
        state = self._state
        state.leave_place(job)
        state.free_key(job)
        state.forget_waiting(job)
        job.state = JobState.GONE
        if state.jobs.get(job.record.id) is job:
            del state.jobs[job.record.id]

    def _resolve_dependents(self, job_id: str, now: Now) -> None:
        """*job_id* has completed: jobs for which it was the last thing missing become runnable."""
        state = self._state
        if job_id not in state.dependents:
            return
        for waiting_id in sorted(state.dependents.get(job_id, ()), key=lambda i: state.jobs[i].seq):
            waiting = state.jobs[waiting_id]
            if waiting.missing is None:
                continue
            waiting.missing.discard(job_id)
            if waiting.missing:
                continue
            waiting.missing = None
            if waiting.state is not JobState.PARKED:
                continue
            queue = state.queues[waiting.record.queue]
            queue.parked_count -= 1
            entry = TimelineEntry(queued_state(waiting.record, now.wall_ms), now.wall_ms)
            waiting.record.timeline = extended_timeline(waiting.record, entry)
            state.enqueue(queue, waiting, now)
            state.changes.touch(waiting, Dirty.STATE)

    def _settings(self, change: SettingsChange, now: Now) -> None:
        state = self._state
        queue = state.queue(change.queue)
        old, queue.settings = queue.settings, change.settings
        if change.settings.rate_limit is not old.rate_limit:
            limit = change.settings.rate_limit
            queue.bucket = None if limit is None else TokenBucket(limit, now)
        if change.settings.stall != old.stall:
            leases.stall_policy_changed(state, change.queue, now)
        state.wake(queue, max(1, queue.waiting_count + queue.prioritized_count))
