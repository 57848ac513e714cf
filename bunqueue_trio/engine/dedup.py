"""A push that meets an id or a key that is taken: who stands for it, who makes room for it, and what ends with that.

Source: scheduling and flows, "Deduplication".
"""

from bunqueue_trio.engine import happenings
from bunqueue_trio.engine.entry_checks import must_have_arrived
from bunqueue_trio.engine.state import State
from bunqueue_trio.errors import StateError
from bunqueue_trio.model.changes import Dirty
from bunqueue_trio.model.commands import PushOptions
from bunqueue_trio.model.events import Event
from bunqueue_trio.model.instant import Now
from bunqueue_trio.model.job import Job, JobState
from bunqueue_trio.model.transitions import Transition, TransitionKind

EXISTING = "existing"


class Dedup:
    """Custom ids and unique keys that are taken. ``mine`` are the ids of earlier entries of the batch at hand."""

    def __init__(self, state: State) -> None:
        self._state = state

    def existing(self, job: Job, is_durable: bool, mine: set[str] | frozenset[str]) -> tuple[str, str]:
        """A live job stands for the push. Who asked for durability is answered when that job is in the file.

        Returns:
            Its id, and `EXISTING`.
        Raises:
            PendingChangeError: a change of it waits for its commit.
        """
        if job.record.id not in mine:
            self._state.settled(job)
        if is_durable and job.dirty:
            self._state.waits_for_commit = True
        else:
            must_have_arrived(self._state, job, is_durable)
        return job.record.id, EXISTING

    def meet_holder(
        self,
        holder: Job,
        options: PushOptions,
        expires_at: float | None,
        is_durable: bool,
        mine: set[str] | frozenset[str],
        in_batch: bool,
        now: Now,
    ) -> tuple[str, str]:
        """The key is held and stays so; ``dedup.extend`` restarts its time.

        Args:
            expires_at: when that would end, epoch ms.
        Returns:
            As `existing`.
        Raises:
            StateError: its time has been restarted, but the holder runs already.
            PendingChangeError: as `existing`.
        """
        answer = self.existing(holder, is_durable, mine)
        dedup = options.dedup
        is_extended = dedup is not None and dedup.extend and bool(dedup.ttl)
        if is_extended:
            holder.key_expires_at = expires_at
            if holder.state is not JobState.STAGED:
                self._state.changes.touch(holder, Dirty.EXTRA)
            is_queued = holder.state in (JobState.READY, JobState.DELAYED, JobState.STAGED)
            if not is_queued and not in_batch:  # SD-24: inside a batch the holder's id is the answer
                raise StateError("Duplicate unique_key (extended TTL)")
        if self._state.events is not None:
            self._tell_of_duplicate(self._state.events, holder, now, is_extended=is_extended)
        return answer

    def _tell_of_duplicate(self, events: list[Event], holder: Job, now: Now, *, is_extended: bool) -> None:
        push = holder.staged
        if push is not None and holder.state is JobState.STAGED:  # an earlier entry of the same batch, not yet there
            if push.aftermath is None:
                push.aftermath = []
            events = push.aftermath
        happenings.duplicated(events, holder.record, now, is_extended=is_extended)

    def replace(self, holder: Job, is_durable: bool, mine: set[str] | frozenset[str]) -> Job | None:
        """``dedup.replace``: a queued holder makes room, a running or parked one is left alone (SD-22).

        Returns:
            The job that gets the key back should the push not commit.
        Raises:
            PendingChangeError: as `existing`.
        """
        state = self._state
        if holder.record.id not in mine:
            state.settled(holder)
        elif holder.state is JobState.STAGED and not holder.missing:
            return self._take_back(holder)  # replaced by a later entry of its own batch: it never was
        if holder.state not in (JobState.READY, JobState.DELAYED):
            return holder
        if is_durable:
            state.stage_end(Transition(TransitionKind.REMOVE, holder, holder.record, JobState.GONE))
        else:
            state.drop(holder)
        return holder

    def _take_back(self, job: Job) -> Job | None:
        """Undo the reservation of an entry of the batch at hand. Returns the job from which it had taken its key."""
        state = self._state
        reservation = _staged_of(job)
        state.changes.staged.remove(reservation)
        state.queues[job.record.queue].staged_count -= 1
        job.staged = None
        state.unreserve(reservation)
        return reservation.displaced

    def end_former_life(self, custom_id: str) -> None:
        """A custom id whose job has ended starts a new life: nothing of the old one may show."""
        state = self._state
        former = state.jobs.get(custom_id)
        if former is not None:  # a dead letter; who waits for it waits for the new life
            state.end(former)
            state.changes.touch(former, Dirty.STATE)
        if state.forget_completed(custom_id) or state.history.has_evicted or former is not None:
            state.changes.reborn.append(custom_id)


def _staged_of(job: Job) -> Transition:
    assert job.staged is not None
    return job.staged
