"""What the engine holds, and how it is looked up. What happens to it is in `state` and in the rooms of the rules."""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Any

from msgspec import Raw

from bunqueue_trio.engine.cron_table import CronTable
from bunqueue_trio.engine.gauges import Gauges
from bunqueue_trio.engine.history import History, KeptResults
from bunqueue_trio.engine.id_source import IdSource
from bunqueue_trio.engine.job_logs import JobLogs
from bunqueue_trio.engine.queue_state import QueueState
from bunqueue_trio.errors import BunqueueError
from bunqueue_trio.model.changes import Changes
from bunqueue_trio.model.entries import CompletedJob, DlqEntry, WorkerInfo
from bunqueue_trio.model.events import Event
from bunqueue_trio.model.flow_replies import WaitReply
from bunqueue_trio.model.job import Job, JobState, SharedStep
from bunqueue_trio.model.questions import Question


class PendingChangeError(BunqueueError):
    """The command meets a change that has not committed yet. Nothing happened; execute it again after the commit."""


class FactsNeededError(BunqueueError):
    """Only the file can tell whether these ids completed. Execute again with `State.facts` filled in.

    Attributes:
        ids: the ids to look up.
    """

    def __init__(self, ids: list[str]) -> None:
        super().__init__(f"{len(ids)} ids must be looked up in the file")
        self.ids = ids


TIMERS_SWEPT_FROM = 1_000
DUE_SWEPT_FROM = 1_000
Timer = tuple[float, int, Job | QueueState]
_ACTIVE = JobState.ACTIVE  # as a global, see `engine.finishing`


def is_live(timer: Timer) -> bool:
    """False for a timer whose job has been finished, taken back or given a later deadline since."""
    mono_ms, _, target = timer
    if not isinstance(target, Job):
        return True
    lease = target.lease
    return target.state is _ACTIVE and lease is not None and lease.armed_mono_ms == mono_ms


def _nobody_waits(_queue: str) -> bool:
    return False


class Totals:
    """Counters since start, for metrics. Deliveries count as pulled, final failures as failed.

    Of dead letters: those that made room for newer ones, grew too old, were brought back without anybody asking.
    ``orphaned`` counts jobs left parked because a job they wait for was removed, once for each such job (SD-17).
    """

    __slots__ = (
        "completed",
        "failed",
        "letters_evicted",
        "letters_expired",
        "letters_retried",
        "orphaned",
        "pulled",
        "pushed",
    )

    def __init__(self) -> None:
        self.pushed = self.pulled = self.completed = self.failed = self.orphaned = 0
        self.letters_evicted = self.letters_expired = self.letters_retried = 0


class Holdings:
    """Everything the engine knows.

    ``jobs`` holds every job that is not completed, dead letters included, by id.
    ``dependents`` maps an id to the unfinished jobs that name it in ``dependsOn``, parked or not; ``kept_finished`` are
    the ids that the file remembers as completed although their row is gone, because such a job still names them.
    ``held`` maps a connection to the jobs it leased.
    ``workers_of`` maps a connection to the workers it registered; ``left_processed`` and ``left_failed`` are what
    workers had done that are gone.
    ``gauges`` are the sums over all queues, ``logs`` the log lines that clients add to jobs, ``crons`` what pushes
    jobs at set times.
    ``timers`` is a heap of (monotonic ms, tie, job or queue), ``due`` one of (wall ms, queue name) with an entry for at
    least the earliest delayed job of each queue.
    ``wakes`` counts, per queue, the jobs that have just become runnable.
    ``letters_due`` is a heap of (wall ms, tie, dead letter): when to look at one for its retry or its end.
    ``old_results`` are results of completed jobs that run again, brought along from the file like ``facts``.
    ``awaited`` are ids of jobs for whose end somebody waits, put there by whoever has told a client to wait; ``ended``
    are those of them that have ended since, each with the answer to its first end.
    ``amending`` are completed jobs with a change that waits for its commit; ``amended_count`` counts those commits, so
    that whoever reads such jobs from the file can tell that they may have changed since.
    ``has_parked_pull`` tells whether a worker waits for jobs of a queue; for Explain only.
    ``holds_file`` is True while no flush is under way nor can begin: memory and file belong together. ``answer`` is a
    question that has been answered from the file, for the command that asked it.
    ``activation`` and ``completion`` append the two commonest steps to timelines.
    ``removing`` are completed jobs that go for good with the next commits.
    ``successors`` maps the newest completed jobs with ``repeat`` to the jobs that follow them; ``next_match`` is the
    arithmetic of their patterns, see `repeats.NextMatch`.
    ``events`` are what has happened since the last turn; None while nobody listens. ``heard`` are the queues of whose
    jobs somebody is to be told; None: all of them, and of all else that happens.
    ``waits_for_commit`` is set by a command whose reply must wait for the next flush.
    """

    def __init__(
        self, ids: IdSource, *, lease_grace_ms: float, history: History | None = None, syncs_commits: bool = False
    ) -> None:
        self.ids = ids
        self.lease_grace_ms = lease_grace_ms
        self.syncs_commits = syncs_commits
        self.history = History() if history is None else history
        self.jobs: dict[str, Job] = {}
        self.queues: dict[str, QueueState] = {}
        self.dependents: dict[str, set[str]] = {}
        self.kept_finished: set[str] = set()
        self.kept_results = KeptResults()
        self.connections: set[int] = set()
        self.orderly: set[int] = set()
        self.held: dict[int, dict[str, Job]] = {}
        self.workers: dict[str, WorkerInfo] = {}
        self.workers_of: dict[int, dict[str, WorkerInfo]] = {}
        self.left_processed: float = 0
        self.left_failed: float = 0
        self.timers: list[Timer] = []
        self.due: list[tuple[float, str]] = []
        self.wakes: dict[str, int] = {}
        self.letters_due: list[tuple[float, int, DlqEntry]] = []
        self.letters_due_swept_from = DUE_SWEPT_FROM
        self.facts: dict[str, CompletedJob | None] = {}
        self.old_results: dict[str, Raw | None] = {}
        self.holds_file = False
        self.answer: Question | None = None
        self.removing: set[str] = set()
        self.activation = SharedStep("active")
        self.completion = SharedStep("completed")
        self.changes = Changes()
        self.settings_in_flight: set[str] = set()
        self.in_flight: Changes | None = None
        self._in_flight_ids: set[int] | None = None
        self.counted_out: dict[str, int] = {}
        self.awaited: set[str] = set()
        self.ended: dict[str, WaitReply] = {}
        self.amending: set[str] = set()
        self.amended_count = 0
        self.has_parked_pull: Callable[[str], bool] = _nobody_waits
        self.totals = Totals()
        self.gauges = Gauges()
        self.logs = JobLogs()
        self.crons = CronTable()
        self.successors: dict[str, str] = {}
        self.next_match: Callable[[str, str | None, float], float | None] | None = None
        self.events: list[Event] | None = None
        self.heard: Container[str] | None = None
        self.next_seq = 1
        self.waits_for_commit = False
        self.hands_out = True
        self.active_count = 0
        self.last_wall_ms = 0.0
        self._tie = 0

    # look-ups

    def hears(self, queue: str) -> bool:
        """Whether those who listen, while anybody does, are to be told of jobs of *queue*. For what happens often."""
        return self.heard is None or queue in self.heard

    def queue(self, name: str) -> QueueState:
        """The queue of that name, made on first use."""
        queue = self.queues.get(name)
        if queue is None:
            queue = self.queues[name] = QueueState(name, self.gauges)
        return queue

    def find(self, job_id: Any) -> Job | None:
        """The unfinished or failed job of that id. Anything that is no string names no job."""
        return self.jobs.get(job_id) if type(job_id) is str else None

    def settled(self, job: Job) -> Job:
        """*job* itself, unless a change of it waits for its commit.

        Raises:
            PendingChangeError: it does.
        """
        if job.staged is not None:
            raise PendingChangeError(job.record.id)
        return job

    def not_changing(self, job_id: str | None) -> None:
        """
        Raises:
            PendingChangeError: a completed job of that id is about to go, or to have another record.
        """
        self.not_removing(job_id)
        if job_id in self.amending:
            raise PendingChangeError(str(job_id))

    def not_removing(self, job_id: str | None) -> None:
        """
        Raises:
            PendingChangeError: a completed job of that id is about to go, and its id lives again only after that.
        """
        if job_id in self.removing:
            raise PendingChangeError(str(job_id))

    def completed(self, job_id: Any) -> CompletedJob | None:
        """The completed job of that id, from memory or from the facts brought along.

        Raises:
            FactsNeededError: only the file can tell.
        """
        if type(job_id) is not str:
            return None
        found = self.history.get(job_id)
        if found is not None or not self.history.has_evicted:
            return found
        if job_id not in self.facts:
            raise FactsNeededError([job_id])
        return self.facts[job_id]

    def leaves_with_queue(self, job_id: str) -> bool:
        """True for a completed job whose queue is being obliterated: a moment from now nobody can depend on it."""
        done = self.history.get(job_id) or self.facts.get(job_id)
        queue = None if done is None else self.queues.get(done.record.queue)
        return queue is not None and queue.removal is not None and queue.removal.is_whole

    def completed_among(self, ids: list[str]) -> dict[str, CompletedJob]:
        """Those of *ids* that have completed; the caller knows that none of them is alive.

        Raises:
            FactsNeededError: for all ids beyond memory at once, so that one look-up in the file answers the command.
        """
        history = self.history
        found = {job_id: job for job_id in ids if (job := history.get(job_id)) is not None}
        if history.has_evicted:
            unknown = [job_id for job_id in ids if job_id not in found]
            if any(job_id not in self.facts for job_id in unknown):
                raise FactsNeededError(unknown)
            found |= {job_id: job for job_id in unknown if (job := self.facts[job_id]) is not None}
        return found

    def answered(self, command: Any) -> Question | None:
        """The answer that *command* has asked for; it serves once. None when it has asked nothing yet."""
        answer = self.answer
        if answer is None or answer.command is not command:
            return None
        self.answer = None
        return answer

    def over_in_file(self) -> list[str]:
        """Ids of completed jobs whose rows are still in the file although they have gone or live again."""
        over = [*self.changes.expired, *self.changes.reborn]
        if self.in_flight is not None:
            over += [*self.in_flight.expired, *self.in_flight.reborn]
        return over

    def is_in_flight(self, job: Job) -> bool:
        """True while a flush that carries *job* is under way. Constant, but for the first question of a flush."""
        if self.in_flight is None:
            return False
        if self._in_flight_ids is None:
            self._in_flight_ids = {id(flying) for flying in self.in_flight.jobs}
        return id(job) in self._in_flight_ids

    def set_in_flight(self, changes: Changes | None) -> None:
        """A flush has begun, or ended."""
        self.in_flight, self._in_flight_ids = changes, None
