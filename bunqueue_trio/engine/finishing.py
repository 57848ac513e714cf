"""ACK, ACKB and FAIL: who may end a job, and what its end will be. Applied by `settling` after the commit.

Source: protocol, "Finishing and keeping jobs"; production page, "The ACK plumbing, precisely".
"""

from msgspec import UNSET, Raw

from bunqueue_trio.engine import dead_letters, leases, policies, repeats, retries
from bunqueue_trio.engine.state import State
from bunqueue_trio.errors import StateError
from bunqueue_trio.model.commands import ABSENT, Ack, AckBatch, Fail
from bunqueue_trio.model.instant import Now
from bunqueue_trio.model.job import Job, JobRecord, JobState, TimelineEntry, extended_timeline, replace
from bunqueue_trio.model.leases import LATE_ACK_COUNTS, TakenBack
from bunqueue_trio.model.replies import DataReply, ErrorReply, Reply
from bunqueue_trio.model.transitions import Transition, TransitionKind

# As globals, since every ACK asks for them: on Python 3.11 a member costs five times as much.
_ACTIVE, _COMPLETED, _COMPLETE = JobState.ACTIVE, JobState.COMPLETED, TransitionKind.COMPLETE

TOO_LATE = {"applied": False, "reason": "already-finalized"}


class Finishing:
    """Ends attempts, with success or without."""

    def __init__(self, state: State) -> None:
        self._state = state

    def ack(self, command: Ack, now: Now) -> Reply:
        """Complete a job. A token that outlived its job is a harmless repeat: ok, and nothing happens.

        Shape, of the reply to such a repeat for who speaks protocol 3: `TOO_LATE`.

        Raises:
            LeaseLostError: the token is not that of the current lease.
            StateError: no token, and the job is not active.
        """
        job = self._to_complete(command.id, command.token, now)
        if job is None:
            return _too_late(is_newer=command.is_newer)
        self._complete(job, command.result, now, is_removed=command.remove_on_complete is True)
        return Reply()

    def ack_batch(self, command: AckBatch, now: Now) -> Reply:
        """Complete several jobs in one transaction. One rule for every size (P-20): a token conflict refuses the whole
        batch up front; then every job that may be is completed, and the first that may not is the reply.

        Shape, if there are harmless repeats and the client speaks protocol 3: ``{"ignoredIndices": [int],
        "ignoredIds": [str]}``, positions in the request and the ids there.
        """
        tokens = command.tokens or [None] * len(command.ids)
        results = command.results or [ABSENT] * len(command.ids)
        first_error: StateError | None = None
        completing: list[tuple[Job, Raw, int]] = []
        ignored: list[int] = []
        seen: set[str] = set()
        for index, (job_id, token, result) in enumerate(zip(command.ids, tokens, results, strict=True)):
            if job_id in seen:
                continue
            seen.add(job_id)
            try:
                job = self._to_complete(job_id, token, now)
            except StateError as error:  # a LeaseLostError refuses them all
                first_error = first_error or error
                continue
            if job is None:
                ignored.append(index)
            else:
                completing.append((job, result, index))
        removals = command.remove_on_completes
        for job, result, index in completing:
            self._complete(job, result, now, is_removed=removals is not None and removals[index] is True)
        if first_error is not None:
            return ErrorReply(error=str(first_error))
        if ignored and command.is_newer:
            return DataReply(data={"ignoredIndices": ignored, "ignoredIds": [command.ids[index] for index in ignored]})
        return Reply()

    def fail(self, command: Fail, now: Now) -> Reply:
        """End an attempt without success: retry after a pause, or the dead letters.

        Shape, where the token has outlived its job and the client speaks protocol 3: `TOO_LATE`.

        Raises:
            LeaseLostError: the token is not that of the current lease, or the lease has ended: no grace here.
            StateError: no token, and the job is not active.
        """
        state = self._state
        job = state.find(command.id)
        if job is not None:
            state.settled(job)
        if job is None or job.state is not JobState.ACTIVE:
            if command.token is None:
                raise _not_processing(command.id)
            return _too_late(is_newer=command.is_newer)
        leases.fence(job, command.token, now, grace=False)
        self._fail(job, command, now)
        return Reply()

    def _to_complete(self, job_id: str, token: str | None, now: Now) -> Job | None:
        """The job that this ACK completes, or None when it is a quiet repeat.

        After a lost connection, an expired lock, a stall or a restart, the last holder's token still completes the job
        out of the queue, until somebody else leases it (P-18).
        """
        state = self._state
        job = state.find(job_id)
        if job is not None:
            state.settled(job)
            if job.state is _ACTIVE:
                leases.fence(job, token, now, grace=True)
                return job
            lease = job.lease
            if lease is not None and job.state in (JobState.READY, JobState.DELAYED):
                if lease.taken_back is TakenBack.TIMEOUT:
                    return None  # the retry wins (protocol 6.1, R130)
                if token is not None and token == lease.token and lease.taken_back in LATE_ACK_COUNTS:
                    return job
            elif token is not None and lease is None and self._was_leased(job, token):
                return job
        if token is None:
            raise _not_processing(job_id)
        return None

    def _was_leased(self, job: Job, token: str) -> bool:
        """True when *token* is that of a delivery which a crash has erased before it was written.

        The server has given it out, so its ACK must not be confirmed and then forgotten.
        """
        if job.state not in (JobState.READY, JobState.DELAYED):
            return False
        ids, record = self._state.ids, job.record
        started_at = ids.lease_start(token)
        if started_at is None:
            return False
        if any(entry.state == "active" and entry.timestamp == started_at for entry in record.timeline):
            return False  # the file knew of it: its holder has moved the job since
        return ids.lease_token(record.id, job.seq, started_at, record.attempts) == token

    def _complete(self, job: Job, result: Raw, now: Now, *, is_removed: bool) -> None:
        state = self._state
        old = job.record
        kind = _COMPLETE
        if is_removed or old.remove_on_complete:
            given = result if result else None  # for those who depend on it, as long as they do
            transition = Transition(kind, job, old, JobState.GONE, result=given, keeps_id=old.id in state.dependents)
        else:
            record = replace(
                old,
                completed_at=now.wall_ms,
                progress=100,
                timeline=state.completion.after(old, now.wall_ms),
            )
            given = result if result else None
            transition = Transition(kind, job, record, _COMPLETED, result=given)
        state.stage_end(transition)
        if old.repeat is not None:
            repeats.stage_successor(state, old, old.repeat, now)

    def _fail(self, job: Job, command: Fail, now: Now) -> None:
        state = self._state
        old = job.record
        attempts = old.attempts + 1
        error = command.error
        failed = TimelineEntry("failed", now.wall_ms, error=UNSET if error is None else error, attempt=attempts)
        stacktrace = _stacktrace(old, command.stack)
        if attempts < old.max_attempts and not command.unrecoverable:
            again = TimelineEntry("waiting", now.wall_ms, attempt=attempts + 1)
            record = replace(
                old,
                attempts=attempts,
                started_at=None,
                run_at=retries.retry_at(old, attempts, now, state.ids.jitter()),
                stacktrace=stacktrace,
                timeline=extended_timeline(old, failed, again),
            )
            state_after = JobState.DELAYED if record.run_at > now.wall_ms else JobState.READY
            state.stage_end(Transition(TransitionKind.RETRY, job, record, state_after, error=error))
        else:
            timeline = extended_timeline(old, failed)
            record = replace(old, attempts=attempts, stacktrace=stacktrace, timeline=timeline)
            entry = None
            if not (old.remove_on_fail or command.remove_on_fail is True):
                entry = dead_letters.dead_letter(state, job, record, retries.MAX_ATTEMPTS_EXCEEDED, error, now)
            burial = Transition(TransitionKind.BURY, job, record, JobState.GONE, entry=entry, error=error)
            policies.stage_failure(state, burial, error, now)


def _stacktrace(record: JobRecord, lines: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """The stack to keep: a new one cut to the job's limit, or the old one when none was sent."""
    if lines is None:
        return record.stacktrace
    return tuple(lines[: max(0, int(record.stack_trace_limit))]) or None


def _too_late(*, is_newer: bool) -> Reply:
    """What somebody is told whose report changes nothing."""
    return DataReply(data=dict(TOO_LATE)) if is_newer else Reply()


def _not_processing(job_id: str) -> StateError:
    return StateError(f"Job not found or not in processing state: {job_id}")
