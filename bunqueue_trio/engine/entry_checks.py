"""What can refuse a push or a batch, before anything changes.

Source: protocol, "PUSH and PUSHB", P-12; scheduling and flows, SD-19.
"""

from collections.abc import Iterable

from bunqueue_trio.engine.circles import closes_circle, first_in_circle
from bunqueue_trio.engine.foresight import NOTHING, Foresight, foresee, key_holder
from bunqueue_trio.engine.group_sizes import GroupSizes, check_max_size
from bunqueue_trio.engine.repeat_patterns import RepeatPatterns
from bunqueue_trio.engine.state import FactsNeededError, PendingChangeError, State
from bunqueue_trio.errors import NotFoundError, ValidationError
from bunqueue_trio.model.commands import ABSENT, Push, PushBatch, PushEntry, PushOptions
from bunqueue_trio.model.instant import Now
from bunqueue_trio.model.job import Job, JobState, RepeatConfig


class EntryChecks:
    """Refuses; changes nothing."""

    def __init__(self, state: State, patterns: RepeatPatterns) -> None:
        self._state = state
        self._patterns = patterns

    def check_push(self, command: Push, now: Now) -> None:
        """All that may refuse one job.

        Raises:
            ValidationError: the pattern of ``repeat`` is none, or jobs would wait for each other in a circle.
            NotFoundError: a dependency is unknown, or ends with this very push.
            PendingChangeError, FactsNeededError: it cannot be told yet.
        """
        if command.repeat is not None:
            self._patterns.check(command.repeat, now)
        if not command.depends_on:
            return
        state = self._state
        former = state.find(command.job_id)
        gone: set[str] = set()
        if former is None or former.state is JobState.FAILED:  # else that job answers, whoever holds the key
            gone = self._replaced(command, now)
        self._check_dependencies(command.depends_on, Foresight(gone=gone))
        if command.job_id in command.depends_on and (former is None or former.state is JobState.FAILED):
            # Its former life is no dependency: this push ends it, and would wait for itself for ever.
            raise NotFoundError(f"Dependency job not found: {command.job_id}")
        if closes_circle(state, command.job_id, command.depends_on):
            raise ValidationError("Circular dependency")

    def check_batch(self, queue_name: str, entries: list[PushEntry], is_durable: bool, now: Now) -> None:
        """All that may refuse a batch.

        Raises:
            ValidationError: ``jobs[<i>]: ...`` for the first entry that cannot be let in.
            PendingChangeError, FactsNeededError: it cannot be told yet.
        """
        state = self._state
        queue = state.queue(queue_name)
        for entry in entries:
            state.not_removing(entry.custom_id)
            if entry.custom_id is not None and (job := state.jobs.get(entry.custom_id)) is not None:
                must_have_arrived(state, state.settled(job), is_durable)
            if not entry.is_plain and entry.unique_key and (holder := queue.keys.get(entry.unique_key)) is not None:
                must_have_arrived(state, state.settled(holder), is_durable)
        seen = NOTHING
        if any(entry.depends_on for entry in entries if not entry.is_plain):
            seen = foresee(state, queue, [(entry.custom_id, entry) for entry in entries], now)
        self._check_each(entries, seen, now)
        if any(entry.group_max_size is not None and entry.name is not ABSENT for entry in entries):
            self.check_sizes(queue_name, [(entry.custom_id, entry) for entry in entries], now)

    def check_sizes(self, queue_name: str, pushes: list[tuple[str | None, PushOptions]], now: Now) -> None:
        """Whether the named groups that these jobs go to have room for them; duplicates need none.

        Args:
            pushes: custom id and options of each job of one push, in order.

        Raises:
            ValidationError, StateError: a ``groupMaxSize`` is no positive whole number, or the group is full.
            PendingChangeError: it cannot be told yet.
        """
        state = self._state
        for _, options in pushes:
            check_max_size(options)
        queue = state.queue(queue_name)
        for custom_id, options in pushes:
            state.not_removing(custom_id)
            jobs = (state.find(custom_id), None if options.unique_key is None else queue.keys.get(options.unique_key))
            for job in jobs:
                if job is not None:
                    state.settled(job)
        foresee(state, queue, pushes, now, GroupSizes(state))

    def check_first(self, command: PushBatch, count: int, now: Now) -> None:
        """Check patterns and dependencies of the first *count* entries only: a later one is known to be malformed.

        Raises:
            ValidationError: one of them is the first fault of the batch.
        """
        entries = [entry for entry in command.jobs or () if isinstance(entry, PushEntry)]
        # Entries behind the first malformed one are unchecked: their ids may be anything.
        ids = {entry.custom_id for entry in entries if type(entry.custom_id) is str}
        self._check_each(entries[:count], Foresight(born=ids), now)

    def _replaced(self, command: Push, now: Now) -> set[str]:
        """The id of the job that the push takes the place of, if there is one."""
        if command.unique_key is None or command.dedup is None or not command.dedup.replace:
            return set()
        queue = self._state.queue(command.queue)
        holder = key_holder(queue, command.unique_key, now)
        if holder is not None:
            self._state.settled(holder)
        return foresee(self._state, queue, [(command.job_id, command)], now).gone

    def _check_each(self, entries: list[PushEntry], seen: Foresight, now: Now) -> None:
        self._patterns.check_count(entry.repeat for entry in entries if entry.repeat is not None)
        for index, entry in enumerate(entries):
            if entry.is_plain:
                continue
            if entry.repeat is not None:
                self._check_pattern(index, entry.repeat, now)
            if not entry.depends_on:
                continue
            if entry.custom_id in entry.depends_on:
                raise ValidationError(f"jobs[{index}]: Job cannot depend on itself: {entry.custom_id}")
            try:
                self._check_dependencies(entry.depends_on, seen)
            except NotFoundError as error:
                raise ValidationError(f"jobs[{index}]: {error}") from error
        circle = first_in_circle(self._state, entries)
        if circle is not None:
            raise ValidationError(f"jobs[{circle}]: Circular dependency")

    def _check_pattern(self, index: int, repeat: RepeatConfig, now: Now) -> None:
        try:
            self._patterns.check(repeat, now)
        except ValidationError as error:
            raise ValidationError(f"jobs[{index}]: {error}") from error

    def _check_dependencies(self, ids: Iterable[str], seen: Foresight) -> None:
        """Each id must be a job that is queued, parked, active, failed or has completed, and will be when all is in."""
        state = self._state
        unknown: list[str] = []
        for job_id in ids:
            if job_id in seen.gone:
                raise NotFoundError(f"Dependency job not found: {job_id}")
            job = state.jobs.get(job_id)
            if job is not None:
                if job.state is JobState.STAGED:
                    raise PendingChangeError(job_id)
            elif state.leaves_with_queue(job_id):
                raise PendingChangeError(job_id)
            elif job_id not in seen.born and not state.history.is_finished(job_id):
                unknown.append(job_id)
        if not unknown:
            return
        if state.history.has_evicted and any(job_id not in state.facts for job_id in unknown):
            raise FactsNeededError(unknown)
        for job_id in unknown:
            if state.facts.get(job_id) is None:
                raise NotFoundError(f"Dependency job not found: {job_id}")


def must_have_arrived(state: State, job: Job, is_durable: bool) -> None:
    """A durable push is not answered with a buffered job whose row is only on its way into the file.

    Raises:
        PendingChangeError: it is; ask again when the flush has ended. Nothing has changed.
    """
    if is_durable and not job.dirty and state.is_in_flight(job):
        raise PendingChangeError(job.record.id)
