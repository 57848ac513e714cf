"""The few steps that every rule shares, on what the engine holds. The rules themselves live in the other rooms."""

from __future__ import annotations

from heapq import heapify, heappush
from typing import Any

from bunqueue_trio.engine.catalog import kind_of
from bunqueue_trio.engine.holdings import (
    DUE_SWEPT_FROM,
    TIMERS_SWEPT_FROM,
    FactsNeededError,
    Holdings,
    PendingChangeError,
    is_live,
)
from bunqueue_trio.engine.id_source import IdSource
from bunqueue_trio.engine.queue_state import QueueState
from bunqueue_trio.model.changes import Dirty
from bunqueue_trio.model.entries import DlqEntry
from bunqueue_trio.model.flow_replies import WaitReply
from bunqueue_trio.model.instant import Now
from bunqueue_trio.model.job import (
    KEY_GIVEN_UP,
    Job,
    JobState,
    Past,
    TimelineEntry,
    extended_timeline,
    queued_state,
    replace,
    waits_for_first,
)
from bunqueue_trio.model.transitions import Announcement, Removal, Staged, Transition

__all__ = ["FactsNeededError", "IdSource", "PendingChangeError", "State", "is_live"]

_ACTIVE, _GONE = JobState.ACTIVE, JobState.GONE  # as globals, see `engine.finishing`


class State(Holdings):
    """Everything the engine knows (`Holdings`), and the steps by which it changes."""

    def stage(self, staged: Staged) -> None:
        """Hold a change back until its commit; the reply waits for it."""
        self.changes.staged.append(staged)
        if isinstance(staged, Transition):
            self.queues[staged.record.queue].staged_count += 1
        elif isinstance(staged, Removal):
            self.queues[staged.queue].staged_count += len(staged.jobs)
        self.waits_for_commit = True

    def announce(self, event: str, **data: Any) -> None:
        """Tell those who listen, if anybody does, when what has been staged so far has committed."""
        if self.events is not None and self.heard is None:
            self.stage(Announcement(event, data))

    def stage_end(self, transition: Transition) -> None:
        """Hold back the end of a job. One that is queued or parked leaves its place now, so that no pull can get it."""
        job = transition.job
        job.staged = transition
        if job.state is not _ACTIVE and job.state in (JobState.READY, JobState.DELAYED, JobState.PARKED):
            transition.held_from = job.state
            transition.held_kind = kind = kind_of(job)
            self.leave_place(job)
            job.state = JobState.STAGED
            job.block.counts[kind] += 1  # lists go on showing it until the commit
        self.stage(transition)

    def unhold(self, job: Job, transition: Transition) -> None:
        """The commit of a change has come, or failed: *job* is no longer listed as what it was before."""
        if transition.held_from is not None:
            job.block.counts[transition.held_kind] -= 1

    def resume(self, job: Job, held_from: JobState | None, now: Now) -> None:
        """The end of a job that `stage_end` held back will not come: put it where it was."""
        queue = self.queues[job.record.queue]
        if held_from is JobState.PARKED:
            if job.missing or (job.missing is not None and waits_for_first(job)):
                queue.park(job)
                return
            job.missing = None
        if held_from is not None:
            self.release(queue, job, now)

    def note_release(self, job: Job, now: Now) -> None:
        """*job* waits for others no longer: its timeline shows it, if it does not yet, and so will the file."""
        record, past = job.record, job.past
        if past is not None and past.is_parked_again:
            job.past = past.released()
            self.changes.touch(job, Dirty.EXTRA)
        last = record.timeline[-1].state if record.timeline else None
        if last != "waiting-children" and (last is not None or not record.depends_on):
            return
        entry = TimelineEntry(queued_state(record, now.wall_ms), now.wall_ms)
        record.timeline = extended_timeline(record, entry)
        self.changes.touch(job, Dirty.STATE)

    def unreserve(self, reservation: Transition) -> None:
        """A durable push will not come: nothing of it stays, and what it had taken goes back (PD-3)."""
        job = reservation.job
        job_id, key = job.record.id, job.record.unique_key
        job.state = JobState.GONE
        self.free_key(job)
        if self.jobs.get(job_id) is job:
            del self.jobs[job_id]
        groups = self.queues[job.record.queue].named_groups
        if groups is not None:
            groups.unreserve(job)
        if reservation.former is not None:
            self.jobs[job_id] = reservation.former
        self.forget_waiting(job)
        displaced = reservation.displaced
        if displaced is not None and key is not None and self.jobs.get(displaced.record.id) is displaced:
            self.queues[job.record.queue].keys[key] = displaced

    def wake(self, queue: QueueState, count: int = 1) -> None:
        """Note that *count* jobs of *queue* may have become runnable."""
        self.wakes[queue.name] = self.wakes.get(queue.name, 0) + count

    def wake_all(self, queue: QueueState) -> None:
        """Note that any ready job of *queue* may have become runnable."""
        self.wake(queue, max(1, queue.waiting_count + queue.prioritized_count))

    def next_tie(self) -> int:
        """A number that orders what is due at the same moment."""
        self._tie += 1
        return self._tie

    def arm(self, mono_ms: float, target: Job | QueueState) -> None:
        """Have `tick` look at *target* at that moment.

        Short jobs leave timers behind that stand for nothing; they are swept out before they outnumber the others by
        far, else a busy server would carry half a minute of them.
        """
        self._tie += 1
        heappush(self.timers, (mono_ms, self._tie, target))
        if len(self.timers) > TIMERS_SWEPT_FROM and len(self.timers) > 4 * self.active_count:
            self.timers = [timer for timer in self.timers if is_live(timer)]
            heapify(self.timers)

    def enqueue(self, queue: QueueState, job: Job, now: Now) -> None:
        """Queue *job*; wake a pull when it is ready, see to its due time when it is not."""
        if queue.insert(job, now.wall_ms):
            self.wake(queue)
        elif queue.delayed[0] is job.place:
            heappush(self.due, (job.record.run_at, queue.name))
            if len(self.due) > DUE_SWEPT_FROM and len(self.due) > 4 * len(self.queues):
                # Jobs pushed and cancelled long before they are due must not leave an entry each.
                self.due = [(q.delayed[0][0], q.name) for q in self.queues.values() if q.delayed]
                heapify(self.due)

    def release(self, queue: QueueState, job: Job, now: Now) -> None:
        """Queue *job*. If it has waited for others, its timeline says that it does no longer: a restart goes by it.

        What it waited for may have completed while the job was held, or on its way into the file.
        """
        self.note_release(job, now)
        self.enqueue(queue, job, now)

    def deactivate(self, job: Job) -> None:
        """An active job is no longer: slot, group and connection are free again, and a waiting pull may try."""
        queue = self.queues[job.record.queue]
        queue.deactivate(job)
        self.active_count -= 1
        lease = job.lease
        if lease is not None and lease.connection_id is not None:
            held = self.held.get(lease.connection_id)
            if held is not None and held.get(job.record.id) is job:
                del held[job.record.id]
        if queue.named_groups is None:
            self.wake(queue)
        else:
            self.wake_all(queue)  # one that ran alone may have held up many

    def free_key(self, job: Job) -> None:
        """Give the job's unique key back, unless a newer job holds it by now (SD-23)."""
        key = job.record.unique_key
        if key is not None:
            keys = self.queues[job.record.queue].keys
            if keys.get(key) is job:
                del keys[key]

    def take_key_away(self, job: Job) -> None:
        """*job* lives on without its unique key, which its record goes on showing."""
        self.free_key(job)
        job.key_expires_at = KEY_GIVEN_UP

    def displace(self, holder: Job) -> None:
        """Another job has got the unique key of *holder*. If that runs on, the file has to know: it would get the key
        back when recovered, once the other has ended."""
        if holder.state not in (JobState.GONE, JobState.FAILED, JobState.COMPLETED):
            self.take_key_away(holder)
            self.changes.touch(holder, Dirty.EXTRA)

    def drop(self, job: Job) -> None:
        """Remove *job* for good, from wherever it is, and have its row deleted."""
        self.end(job)
        self.changes.touch(job, Dirty.STATE)
        self.note_removed(job.record.id)

    def note_removed(self, job_id: str) -> None:
        """A job has gone without completing, and what that does to others has been seen to: count those who go on
        waiting for it (SD-17), unless its id lives on. Cost: one look-up where nobody does.
        """
        waiting = self.dependents.get(job_id)
        if waiting is not None and job_id not in self.jobs:
            self.totals.orphaned += sum(_goes_on_waiting(self.jobs[waiting_id], job_id) for waiting_id in waiting)

    def end(self, job: Job) -> None:
        """Let go of everything *job* holds, wherever it is; its row and its dead letter are not touched."""
        record = job.record
        queue = self.queues[record.queue]
        if job.state is _ACTIVE:  # most jobs end so
            self.deactivate(job)
        else:
            self.leave_place(job)
        if record.unique_key is not None:
            self.free_key(job)
        job.missing = None
        if record.depends_on:
            self.forget_waiting(job)
        queue.catalog.remove(job)
        job.state = _GONE
        if self.jobs.get(record.id) is job:
            del self.jobs[record.id]
        if record.id in self.awaited:
            self.note_end(record.id)

    def note_failure(self, queue_name: str) -> None:
        """A job of that queue has failed for good, and nobody has asked for it: the next flush counts it."""
        self.totals.failed += 1
        self.queue(queue_name).total_failed += 1
        failures = self.changes.failures
        failures[queue_name] = failures.get(queue_name, 0) + 1

    def note_end(self, job_id: str, answer: WaitReply | None = None) -> None:
        """A job has ended for good, whatever the way: whoever waits for that is told *answer*, or "not completed".

        Every way out of the live state passes here: completion, the dead letters, removal. Cost: one look-up.
        """
        if job_id in self.awaited:
            self.awaited.discard(job_id)
            self.ended.setdefault(job_id, WaitReply() if answer is None else answer)

    def leave_place(self, job: Job) -> None:
        """Take *job* out of its queue's order, its parking place, its lease or the dead letters."""
        queue = self.queues[job.record.queue]
        state = job.state
        if state is JobState.READY or state is JobState.DELAYED:
            queue.remove(job)
            if queue.named_groups is not None and job.record.group_id is not None:
                self.wake(queue)  # others of its group may have waited behind it
        elif state is JobState.PARKED:
            queue.unpark(job)
        elif state is JobState.ACTIVE:
            self.deactivate(job)
        elif state is JobState.FAILED and queue.letters.pop(job.record.id, None) is not None:
            queue.hide_letter(job)
            self.letter_gone(job.record.id)

    def unlist(self, job: Job) -> None:
        """*job*, which has left its place, has ended: no list shows it any more."""
        self.queues[job.record.queue].catalog.remove(job)

    def letter_gone(self, job_id: str) -> None:
        """A dead letter leaves the file, or does not even get there: deletions come first in a batch."""
        self.changes.letters_gone.append(job_id)
        self.changes.letters.pop(job_id, None)

    def keep_finished(self, job_id: str) -> None:
        """Have the file remember that *job_id* completed although its row goes: others depend on it (PD-11)."""
        if job_id not in self.kept_finished:
            self.kept_finished.add(job_id)
            self.changes.finished[job_id] = None
            self.changes.finished_gone.pop(job_id, None)  # which would come after it in the batch

    def is_met(self, dependency: str) -> bool:
        """True for a job that has completed. Where its id lives again, or has failed since, that life counts."""
        return dependency not in self.jobs and (
            self.history.is_finished(dependency) or self.facts.get(dependency) is not None
        )

    def note_met(self, job_id: str) -> None:
        """*job_id*, if it had completed, is about to live again: who waited for it no longer must not do so anew.

        Memory knows it anyway; the file has to learn it with the very transaction that brings the new life. Should that
        one fail, what was noted is true all the same. Cost: O(jobs that name it); nothing where nobody does.
        """
        for waiting_id in self.dependents.get(job_id, ()):
            waiting = self.jobs[waiting_id]
            past = waiting.past or Past()
            if waiting.missing and job_id not in waiting.missing and job_id not in past.met:
                waiting.past = replace(past, met=(*past.met, job_id))
                self.changes.touch(waiting, Dirty.EXTRA)

    def forget_waiting(self, job: Job) -> None:
        """*job* has ended: it no longer depends on anything."""
        job.missing = None
        if not job.record.depends_on:
            return
        heir = self.jobs.get(job.record.id)
        is_renewed = heir is not None and heir is not job and heir.state is not JobState.FAILED
        still_needed = heir.record.depends_on if heir is not None and is_renewed else ()
        for dependency in job.record.depends_on:
            if dependency not in still_needed:
                self.forget_dependency(job.record.id, dependency)

    def forget_dependency(self, job_id: str, dependency: str) -> None:
        """*job_id* no longer names *dependency*; who was the last to name it lets go what was kept for it."""
        waiting = self.dependents.get(dependency)
        if waiting is None:
            return
        waiting.discard(job_id)
        if not waiting:
            del self.dependents[dependency]
            self._forget_kept(dependency)

    def _forget_kept(self, dependency: str) -> None:
        self.kept_results.forget(dependency)
        if dependency in self.kept_finished:
            self.kept_finished.remove(dependency)
            self.changes.finished_gone[dependency] = None

    def forget_completed(self, job_id: str) -> bool:
        """The id starts a new life: the completed job of that id ends. Returns True if memory knew one.

        One that only the file knows is found by the transaction that deletes it (`Engine.forgotten`).
        """
        self.history.forget_finished(job_id)
        self.forget_logs(job_id)
        self.successors.pop(job_id, None)
        self._forget_kept(job_id)  # else a restart would release those who wait for the new life
        completed = self.history.pop(job_id)
        if completed is not None:
            name = completed.record.queue
            self.queue(name).completed_count -= 1
        elif job_id in self.changes.expired:  # counted out when it expired
            name = self.changes.expired.pop(job_id)
        else:
            return False
        self.counted_out[name] = self.counted_out.get(name, 0) + 1
        return True

    def forget_logs(self, job_id: str) -> None:
        """The job is gone for good, or its id starts a new life: so is its log. Costs nothing without logs."""
        if self.logs:
            self.logs.forget(job_id)

    def letter_job(self, entry: DlqEntry, *, is_stored: bool = False) -> Job:
        """The job that stands for a dead letter in the index."""
        job = Job(record=entry.job, state=JobState.FAILED, seq=0, is_stored=is_stored)
        self.jobs[entry.job.id] = job
        self.queues[entry.job.queue].show_letter(job)
        return job


def _goes_on_waiting(job: Job, dependency: str) -> bool:
    """Whether *job* waits for *dependency* and no change is about to end that."""
    if job.missing is None or dependency not in job.missing:
        return False
    change = job.staged
    return change is None or (change.state is not JobState.GONE and dependency in change.record.depends_on)
