"""What becomes of changes that waited for their commit: applied when it succeeded, dropped when it failed.

Until then everybody saw the state before, so a failed commit leaves nothing to undo but the reservation.
"""

from bunqueue_trio.engine import adoption, dead_letters, happenings, leases, parking, policies, repeats
from bunqueue_trio.engine.admission import Admission
from bunqueue_trio.engine.cron_firing import RETRY_PAUSE_MS
from bunqueue_trio.engine.emptying import Emptying, give_back
from bunqueue_trio.engine.flows import has_all_children
from bunqueue_trio.engine.group_commands import apply_group_change
from bunqueue_trio.engine.limits import TokenBucket
from bunqueue_trio.engine.reruns import Reruns
from bunqueue_trio.engine.state import State
from bunqueue_trio.model.entries import CompletedJob
from bunqueue_trio.model.events import Event
from bunqueue_trio.model.flow_replies import WaitReply
from bunqueue_trio.model.instant import Now
from bunqueue_trio.model.job import Job, JobState
from bunqueue_trio.model.leases import TakenBack
from bunqueue_trio.model.transitions import (
    Amendment,
    Announcement,
    CompletedRemoval,
    CronChange,
    CronNews,
    GroupChange,
    Removal,
    SettingsChange,
    Staged,
    Transition,
    TransitionKind,
)

_COMPLETED, _RERUN = JobState.COMPLETED, TransitionKind.RERUN  # as globals, see `engine.finishing`


class Settling:
    """Applies or drops staged changes."""

    def __init__(self, state: State, admission: Admission, emptying: Emptying, reruns: Reruns) -> None:
        self._state = state
        self._admission = admission
        self._emptying = emptying
        self._reruns = reruns
        self._steps = {
            TransitionKind.PUBLISH: self._publish,
            TransitionKind.COMPLETE: self._complete,
            TransitionKind.RETRY: self._retry,
            TransitionKind.BURY: self._bury,
            TransitionKind.REMOVE: self._remove,
            TransitionKind.CANCEL: self._cancel,
            TransitionKind.MOVE: self._move,
            TransitionKind.UPDATE: self._update,
            TransitionKind.DISCARD: self._discard,
            TransitionKind.REVIVE: self._revive,
            TransitionKind.PURGE: self._purge,
            TransitionKind.LOOSEN: self._loosen,
            TransitionKind.AMEND: self._amend,
            TransitionKind.LINK: self._link,
            TransitionKind.PARK: self._park,
        }

    def apply(self, staged: list[Staged], now: Now, missing: frozenset[str] = frozenset()) -> None:
        """The transaction that carried these changes has committed: let them take effect, in order.

        Args:
            missing: ids of jobs to run again of which the file had no completed row any more.
        """
        state = self._state
        for change in staged:
            if isinstance(change, Transition):
                state.queues[change.record.queue].staged_count -= 1
                if change.held_from is not None:
                    state.unhold(change.job, change)
                change.job.staged = None
                if change.kind is _RERUN:
                    self._reruns.apply(change, missing, now)
                else:
                    self._steps[change.kind](change, now)
                if change.doomed_by is not None and change.is_doomed:
                    self._emptying.hold_outcome(change)
            else:
                self._apply_to_many(change, now)

    def _apply_to_many(
        self,
        change: SettingsChange | GroupChange | Removal | Amendment | CompletedRemoval | CronChange | Announcement,
        now: Now,
    ) -> None:
        if isinstance(change, SettingsChange):
            self._settings(change, now)
        elif isinstance(change, GroupChange):
            apply_group_change(self._state, change)
        elif isinstance(change, Removal):
            self._emptying.apply(change, now)
        elif isinstance(change, Amendment):
            self._state.amending.discard(change.record.id)
            self._state.amended_count += 1
            self._state.history.amend(change.record)
        elif isinstance(change, CronChange):
            self._cron(change, now)
        elif isinstance(change, Announcement):
            if self._state.events is not None:
                happenings.tell(self._state.events, change.event, now, **change.data)
        else:
            self._remove_completed(change)

    def _cron(self, change: CronChange, now: Now) -> None:
        crons = self._state.crons
        if self._state.events is not None:
            happenings.cron_changed(self._state.events, change, crons.job(change.name), now)
        crons.settle(change.name)

    def _let_cron_go(self, change: CronChange, error: str | None, now: Now) -> None:
        crons = self._state.crons
        crons.let_go(change.name, now.wall_ms + RETRY_PAUSE_MS)
        if self._state.events is not None and change.news is CronNews.FIRED:
            job = crons.job(change.name)
            assert job is not None
            happenings.cron_missed(self._state.events, job, error, now)

    def drop(self, staged: list[Staged], now: Now, error: str | None = None) -> None:
        """Their commit has failed, with that error: forget these changes, the last first."""
        state = self._state
        for change in reversed(staged):
            if isinstance(change, SettingsChange | GroupChange | Announcement):
                continue
            if isinstance(change, CompletedRemoval):
                state.removing.difference_update(change.ids)
                continue
            if isinstance(change, Removal):
                self._emptying.drop(change, now)
                continue
            if isinstance(change, Amendment):
                state.amending.discard(change.record.id)
                continue
            if isinstance(change, CronChange):
                self._let_cron_go(change, error, now)
                continue
            job = change.job
            state.queues[change.record.queue].staged_count -= 1
            state.unhold(job, change)
            job.staged = None
            if change.kind in (TransitionKind.PUBLISH, TransitionKind.RERUN):
                state.unreserve(change)
            elif change.kind is TransitionKind.REVIVE:
                state.free_key(job)
                job.past = None
            elif change.kind is TransitionKind.LINK:
                adoption.drop(state, change, now)
            else:
                give_back(state, job, change.held_from, now)

    def _publish(self, change: Transition, now: Now) -> None:
        if change.renews_id:
            former = change.former
            if former is not None:
                self._end_letter(former)
        if change.record.custom_id is not None:
            self._state.forget_completed(change.record.id)
        groups = self._state.queues[change.record.queue].named_groups
        if groups is not None:
            groups.unreserve(change.job)
        if change.displaced is not None:
            self._state.displace(change.displaced)
        self._admission.publish(change.job, now)
        if change.succeeds is not None:
            repeats.link(self._state, change.succeeds, change.record.id)
        if change.aftermath is not None and self._state.events is not None:
            self._state.events += change.aftermath

    def _complete(self, change: Transition, now: Now) -> None:
        state = self._state
        job, record = change.job, change.record
        job_id = record.id
        is_kept = change.state is _COMPLETED
        if job_id in state.awaited:
            state.note_end(job_id, WaitReply(completed=True, result=change.result if is_kept else None))
        state.end(job)
        job.record = record
        job.state = _COMPLETED
        # Durability: its row is in the file as it stays. What others have changed on it since the flush was taken, such
        # as who has its unique key, must not be written any more: it would be written as a job that waits.
        job.dirty = 0
        state.totals.completed += 1
        queue = state.queues[record.queue]
        queue.total_completed += 1
        if is_kept:  # also when its queue is about to go, for that commit may fail
            queue.note_kept()
            state.history.add(CompletedJob(record, change.result))
        is_doomed = change.doomed_by is not None and change.is_doomed
        if not is_kept or is_doomed:
            if not is_doomed:  # else nobody may come to depend on it any more
                state.history.remember_finished(job_id)
            if job_id in state.dependents:
                state.keep_finished(job_id)
                if change.result is not None:
                    state.kept_results.keep(job_id, change.result)
            elif change.keeps_id:
                state.changes.finished_gone[job_id] = None
        if state.events is not None and state.hears(record.queue):
            happenings.completed(state.events, record, change.result, now)
        if job_id in state.dependents:
            self._resolve_dependents(job_id, now)
        if state.events is not None and record.parent_id is not None and state.heard is None:
            self._tell_of_flow(state.events, record.parent_id, now)

    def _tell_of_flow(self, events: list[Event], parent_id: str, now: Now) -> None:
        """A child has completed: perhaps it was the last."""
        parent = self._state.jobs.get(parent_id)
        if parent is not None and has_all_children(self._state, parent):
            happenings.flow_completed(events, parent.record, now)

    def _retry(self, change: Transition, now: Now) -> None:
        state = self._state
        job = change.job
        state.deactivate(job)
        job.record = change.record
        if job.lease is not None:
            job.lease.taken_back = TakenBack.FAIL
        if state.events is not None:
            happenings.attempt_failed(state.events, job.record, change.error, now, is_retried=True)
        state.enqueue(state.queues[job.record.queue], job, now)

    def _bury(self, change: Transition, now: Now) -> None:
        state = self._state
        job = change.job
        job.record = change.record
        state.totals.failed += 1
        state.queues[job.record.queue].total_failed += 1
        if state.events is not None:
            happenings.buried(state.events, change, now)
        if change.entry is None:  # removeOnFail
            state.end(job)
            state.note_removed(job.record.id)
            return
        state.leave_place(job)
        state.unlist(job)
        job.state = JobState.GONE
        dead_letters.enter(state, job, change.entry)

    def _remove(self, change: Transition, now: Now) -> None:
        self._state.end(change.job)
        self._state.note_removed(change.record.id)

    def _cancel(self, change: Transition, now: Now) -> None:
        self._remove(change, now)
        if self._state.events is not None:
            happenings.cancelled(self._state.events, change.record, now)

    def _purge(self, change: Transition, now: Now) -> None:
        self._remove(change, now)
        self._state.forget_logs(change.record.id)

    def _remove_completed(self, change: CompletedRemoval) -> None:
        state = self._state
        state.removing.difference_update(change.ids)
        state.queues[change.queue].completed_count -= len(change.ids)
        for job_id in change.ids:
            state.history.pop(job_id)
            state.forget_logs(job_id)
            if job_id in state.dependents:
                state.history.remember_finished(job_id)
                state.keep_finished(job_id)
        # Who depended on these has ended since the change was staged.
        gone = [job_id for job_id in change.kept_ids if job_id not in state.dependents]
        state.changes.finished_gone.update(dict.fromkeys(gone))

    def _move(self, change: Transition, now: Now) -> None:
        state = self._state
        job = change.job
        if change.frees_key:
            state.take_key_away(job)
        if change.held_from is not None:
            job.record = change.record
            state.resume(job, change.held_from, now)
            return
        state.deactivate(job)
        if job.lease is not None:
            job.lease.taken_back = TakenBack.MOVED
        if state.events is not None:
            happenings.taken_back(state.events, change.record, change.delay_ms, now)
        job.record = change.record
        state.enqueue(state.queues[job.record.queue], job, now)

    def _update(self, change: Transition, now: Now) -> None:
        change.job.record = change.record
        if change.frees_key:
            self._state.take_key_away(change.job)
        if not change.is_doomed:
            give_back(self._state, change.job, None, now)  # its connection may have closed meanwhile

    def _discard(self, change: Transition, now: Now) -> None:
        job = change.job
        assert change.entry is not None
        self._state.leave_place(job)
        self._state.unlist(job)
        job.state = JobState.GONE
        if self._state.events is not None:
            happenings.dead_letter_added(self._state.events, change.record, change.entry.reason, now)
            happenings.tell(self._state.events, "job:discarded", now, jobId=change.record.id)
            happenings.child_failed(self._state.events, change.record, None, now)
        dead_letters.enter(self._state, job, change.entry)

    def _revive(self, change: Transition, now: Now) -> None:
        state = self._state
        job = change.job
        queue = state.queues[job.record.queue]
        del queue.letters[job.record.id]
        queue.hide_letter(job)
        job.record = change.record
        job.lease = None
        if job.past is not None:
            state.totals.letters_retried += 1
        state.enqueue(queue, job, now)

    def _loosen(self, change: Transition, now: Now) -> None:
        policies.loosen(self._state, change, now)

    def _link(self, change: Transition, now: Now) -> None:
        adoption.apply(self._state, change, now)

    def _park(self, change: Transition, now: Now) -> None:
        parking.apply(self._state, change, now)

    def _amend(self, change: Transition, now: Now) -> None:
        job, entry = change.job, change.entry
        assert entry is not None
        if job.state is JobState.FAILED:  # else newer dead letters have pushed it out meanwhile
            job.record = change.record
            dead_letters.exchange(self._state, entry)

    def _end_letter(self, letter: Job) -> None:
        """A dead letter's id lives again: the letter shows no more; its rows went in the same transaction."""
        queue = self._state.queues[letter.record.queue]
        if queue.letters.pop(letter.record.id, None) is not None:
            queue.hide_letter(letter)
        queue.catalog.remove(letter)

    def _resolve_dependents(self, job_id: str, now: Now) -> None:
        """*job_id* has completed: jobs for which it was the last thing missing become runnable."""
        state = self._state
        for waiting_id in sorted(state.dependents[job_id], key=lambda i: state.jobs[i].seq):
            waiting = state.jobs[waiting_id]
            if waiting.missing is None or job_id not in waiting.missing:
                continue
            waiting.missing.discard(job_id)
            if waiting.missing:
                continue
            waiting.missing = None
            if waiting.state is not JobState.PARKED:
                continue
            queue = state.queues[waiting.record.queue]
            queue.unpark(waiting)
            if state.events is not None:
                happenings.dependencies_resolved(state.events, waiting.record, now)
            state.release(queue, waiting, now)

    def _settings(self, change: SettingsChange, now: Now) -> None:
        state = self._state
        queue = state.queue(change.queue)
        old, queue.settings = queue.settings, change.settings
        if state.events is not None and change.is_switch:
            happenings.paused(state.events, change.queue, now, is_paused=change.settings.paused)
        if change.settings.rate_limit is not old.rate_limit:
            limit = change.settings.rate_limit
            queue.bucket = None if limit is None else TokenBucket(limit, now)
        if change.settings.stall != old.stall:
            leases.stall_policy_changed(state, change.queue, now)
        if change.settings.dlq != old.dlq:
            dead_letters.policy_changed(state, change.queue, now)
        state.wake(queue, max(1, queue.waiting_count + queue.prioritized_count))
