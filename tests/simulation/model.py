"""What the clients and the file may see: a second opinion without heaps, timers, rows or tickets.

A `World` is plain data, so that a copy of it can be kept for every commit. A change that a client is told of only
after its commit is an `Op`: a function of a world, applied to the copy that is to become the file's content, and to the
living world when the commit has succeeded. The model follows the server where chance decides (ids, retry times, which
of the ready jobs a pull gets) and is strict about the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

GRACE_MS = 2_000.0
MAX_STALLS = 3
STALL_INTERVAL_MS, STALL_GRACE_MS, STALL_RECHECK_MS = 30_000.0, 5_000.0, 5_000.0
QUEUED, ACTIVE, COMPLETED, FAILED = "queued", "active", "completed", "failed"
NEVER = float("inf")
FAIL_PARENT, CONTINUE, IGNORE, REMOVE = POLICIES = (
    "failParentOnFailure",
    "continueParentOnFailure",
    "ignoreDependencyOnFailure",
    "removeDependencyOnFailure",
)
NOBODY: frozenset[str] = frozenset()
LETTER_AGE_MS = 604_800_000.0


class Violation(AssertionError):
    """The server has broken a promise."""


def require(holds: object, what: str) -> None:
    """A promise."""
    if not holds:
        raise Violation(what)


@dataclass(frozen=True, slots=True)
class Fact:
    """What is known of one job. A queued job that misses others is parked."""

    id: str
    queue: str
    number: int
    """Its payload, and the order of pushes."""
    run_at: float | None
    """None: the server has chosen it."""
    priority: int = 0
    max_attempts: int = 3
    removes_completed: bool = False
    removes_failed: bool = False
    timeout: float | None = None
    key: str | None = None
    holds_key: bool = False
    key_expires: float = NEVER
    missing: frozenset[str] = NOBODY
    parent: str | None = None
    policy: str | None = None
    """What its final failure does to its parent."""
    is_from_cron: bool = False
    state: str = QUEUED
    attempts: int = 0
    stalls: int = 0
    result: int | None = None
    token: str | None = None
    """Of the lease, or of the last one."""
    is_late_ack_good: bool = False
    connection: int | None = None
    is_renewed: bool = False
    ttl: float = 0.0
    expires: float = NEVER
    started: float = 0.0
    silence: float = STALL_INTERVAL_MS
    heard: float = 0.0
    """When its holder has last given a sign of life."""
    seen_silent: float = NEVER
    retries: int = 0
    """How often it came back from the dead letters by itself, since somebody brought it back."""
    retry_at: float = NEVER
    letter_ends: float = NEVER
    """When a dead letter has been kept long enough, on the wall clock."""

    @property
    def is_live(self) -> bool:
        return self.state in (QUEUED, ACTIVE)

    @property
    def is_ready(self) -> bool:
        """Waiting, prioritized or delayed."""
        return self.state == QUEUED and not self.missing

    @property
    def is_parked(self) -> bool:
        return self.state == QUEUED and bool(self.missing)

    @property
    def deadline(self) -> float:
        """When time alone takes it from its holder, on the monotonic clock."""
        return min(self.expires + GRACE_MS, self._times_out, self.stalls_at)

    @property
    def _times_out(self) -> float:
        return NEVER if self.timeout is None else self.started + self.timeout

    @property
    def is_timed_out(self) -> bool:
        """Whether that is what ends first."""
        return self._times_out <= self.deadline

    @property
    def silent_at(self) -> float:
        """When it is first found to be silent."""
        return max(self.heard + self.silence + 1, self.started + STALL_GRACE_MS)

    @property
    def stalls_at(self) -> float:
        """When it is found to be silent once more, if nothing is heard of it meanwhile."""
        return (self.silent_at if self.seen_silent == NEVER else self.seen_silent) + STALL_RECHECK_MS


@dataclass(frozen=True, slots=True)
class Letters:
    """What a queue does with its dead letters."""

    age: float = LETTER_AGE_MS
    retry_after: float | None = None
    """None: it brings none back by itself."""
    max_retries: int = 2

    def retry_at(self, fact: Fact, wall_ms: float) -> float:
        is_wanted = self.retry_after is not None and fact.retries < self.max_retries
        return wall_ms + self.retry_after if is_wanted and self.retry_after is not None else NEVER


@dataclass(frozen=True, slots=True)
class Death:
    """When a job has failed for good, and what the queues did with dead letters then, by what had committed."""

    wall_ms: float
    letters: dict[str, Letters]


@dataclass(slots=True)
class World:
    """All jobs, which ids have completed, which queues are paused, what they do with dead letters, and how often each
    cron has fired."""

    jobs: dict[str, Fact] = field(default_factory=dict)
    finished: set[str] = field(default_factory=set)
    paused: set[str] = field(default_factory=set)
    letters: dict[str, Letters] = field(default_factory=dict)
    crons: dict[str, int] = field(default_factory=dict)

    def copy(self) -> World:
        return World(dict(self.jobs), set(self.finished), set(self.paused), dict(self.letters), dict(self.crons))

    def add(self, fact: Fact) -> None:
        """A new job, or a new life of its id. What it waits for may have completed since it was pushed."""
        self.jobs[fact.id] = replace(fact, missing=fact.missing - self.finished)
        self.finished.discard(fact.id)

    def change(self, job_id: str, **fields: object) -> None:
        self.jobs[job_id] = replace(self.jobs[job_id], **fields)  # type: ignore[arg-type]

    def remove(self, ids: Iterable[str]) -> None:
        for job_id in ids:
            self.jobs.pop(job_id, None)

    def of_queue(self, queue: str) -> list[Fact]:
        return [fact for fact in self.jobs.values() if fact.queue == queue]

    def count_cron(self, name: str, executions: int) -> None:
        self.crons[name] = executions

    # ends of attempts

    def complete(self, job_id: str, result: int | None) -> None:
        fact = self.jobs[job_id]
        self.finished.add(job_id)
        if fact.removes_completed:
            del self.jobs[job_id]
        else:
            self.change(job_id, state=COMPLETED, result=result, is_late_ack_good=False, connection=None)
        for other in [other for other in self.jobs.values() if job_id in other.missing]:
            self.change(other.id, missing=other.missing - {job_id})

    def fail(self, job_id: str, *, is_final: bool, death: Death) -> None:
        """A FAIL, or a time-out."""
        fact = self.jobs[job_id]
        attempts = fact.attempts + 1
        if attempts < fact.max_attempts and not is_final:
            self.requeue(job_id, attempts=attempts, run_at=None, is_late_ack_good=False)
            return
        if fact.removes_failed:
            del self.jobs[job_id]
        else:
            self._bury(job_id, death, attempts=attempts)
        self._tell_parent(fact, death)

    def discard(self, job_id: str, death: Death) -> None:
        """To the dead letters, as it is."""
        fact = self.jobs[job_id]
        self._bury(job_id, death)
        self._tell_parent(fact, death)

    def death(self, wall_ms: float) -> Death:
        """What a job that ends now would become."""
        return Death(wall_ms, dict(self.letters))

    def lose(self, job_id: str, *, stalls: int, wall_ms: float) -> None:
        """Its holder is gone: an attempt is charged, and its ACK still counts until somebody else has the job.

        Its time has come once, also when the clock was set back since.
        """
        run_at = self.jobs[job_id].run_at
        if self._charge(job_id, stalls, None if run_at is None else min(run_at, wall_ms), wall_ms):
            self._tell_parent(self.jobs[job_id], self.death(wall_ms))

    def stall(self, job_id: str, wall_ms: float) -> None:
        """Its holder is silent: the same, but for a pause before the next attempt."""
        if self._charge(job_id, 1, None, wall_ms):
            self._tell_parent(self.jobs[job_id], self.death(wall_ms))

    def look_for_silence(self, mono_ms: float) -> None:
        """What has become silent while nobody looked is seen now."""
        for fact in [f for f in self.jobs.values() if f.state == ACTIVE and f.silent_at <= mono_ms]:
            if fact.seen_silent == NEVER:
                self.change(fact.id, seen_silent=mono_ms)

    def _charge(self, job_id: str, stalls: int, run_at: float | None, wall_ms: float) -> bool:
        """Returns whether that was the last attempt."""
        fact = self.jobs[job_id]
        attempts, stall_count = fact.attempts + 1, fact.stalls + stalls
        if fact.is_from_cron:
            del self.jobs[job_id]  # its schedule makes the next one
        elif attempts >= fact.max_attempts or (stalls and stall_count >= MAX_STALLS):
            self._bury(job_id, self.death(wall_ms), attempts=attempts, stalls=stall_count)
            return True
        else:
            self.requeue(job_id, attempts=attempts, stalls=stall_count, run_at=run_at, is_late_ack_good=True)
        return False

    def requeue(self, job_id: str, **fields: object) -> None:
        idle = {"connection": None, "is_renewed": False, "expires": NEVER, "seen_silent": NEVER}
        self.change(job_id, state=QUEUED, **idle, **fields)

    def _bury(self, job_id: str, death: Death, **fields: object) -> None:
        self.requeue(job_id, missing=NOBODY, is_late_ack_good=False, holds_key=False, result=None, **fields)
        fact, wall_ms = self.jobs[job_id], death.wall_ms
        letters = death.letters.get(fact.queue, Letters())
        times = {"letter_ends": wall_ms + letters.age, "retry_at": letters.retry_at(fact, wall_ms)}
        self.change(job_id, state=FAILED, **times)

    def affected_parent(self, fact: Fact) -> Fact | None:
        """Whom the final failure of that job changes."""
        parent = None if fact.policy is None else self.jobs.get(fact.parent or "")
        return parent if parent is not None and parent.state == QUEUED else None

    def _tell_parent(self, child: Fact, death: Death) -> None:
        parent = self.affected_parent(child)
        if parent is None:
            return
        if child.policy == FAIL_PARENT:
            self._bury(parent.id, death)
        elif parent.is_parked:
            missing = NOBODY if child.policy == CONTINUE else parent.missing - {child.id}
            self.change(parent.id, missing=missing, run_at=parent.run_at if missing else None)

    def start_over(self, job_id: str, **fields: object) -> None:
        """A new life: out of the dead letters, or after a completion."""
        self.finished.discard(job_id)
        holds_key = self.jobs[job_id].key is not None
        fields = {
            "retries": 0,
            **fields,
            "retry_at": NEVER,
            "holds_key": holds_key,
            "key_expires": NEVER,
            "missing": NOBODY,
        }
        self.requeue(job_id, attempts=0, stalls=0, token=None, is_late_ack_good=False, **fields)

    # losses

    def disconnect(self, connection: int, busy: set[str], wall_ms: float) -> None:
        for fact in [f for f in self.jobs.values() if f.state == ACTIVE and f.connection == connection]:
            if fact.is_renewed:
                self.change(fact.id, connection=None)
            elif fact.id not in busy:  # else its commit, or the end of it, decides
                self.lose(fact.id, stalls=0, wall_ms=wall_ms)

    def pass_time(self, mono_ms: float, wall_ms: float, busy: set[str], kept: set[str]) -> None:
        """*kept* are letters that are about to be retried rather than to end, as soon as they can be."""
        due = [f for f in self.jobs.values() if f.state == ACTIVE and f.deadline <= mono_ms and f.id not in busy]
        for fact in sorted(due, key=lambda fact: fact.deadline):
            then_wall_ms = wall_ms - (mono_ms - fact.deadline)
            if fact.is_timed_out:
                self.fail(fact.id, is_final=False, death=self.death(then_wall_ms))
            elif fact.expires + GRACE_MS <= fact.stalls_at:
                self.lose(fact.id, stalls=1, wall_ms=then_wall_ms)
            else:
                self.stall(fact.id, then_wall_ms)
        for fact in [f for f in self.jobs.values() if f.state == ACTIVE and f.silent_at < mono_ms]:
            if fact.seen_silent == NEVER:
                self.change(fact.id, seen_silent=fact.silent_at)
        self.remove(
            [f.id for f in self.jobs.values() if f.id not in kept and f.state == FAILED and f.letter_ends <= wall_ms]
        )

    def restart(self, wall_ms: float) -> None:
        """What recovery makes of a file that says this."""
        ended: list[Fact] = []
        for fact in list(self.jobs.values()):
            if fact.state != ACTIVE:
                self.change(fact.id, is_late_ack_good=False, token=None, connection=None)
            elif self._charge(fact.id, 1, None, wall_ms):
                ended.append(fact)
        for fact in ended:
            self._tell_parent(fact, self.death(wall_ms))


@dataclass(frozen=True, slots=True)
class Op:
    """A change that waits for its commit.

    ``ids`` are the jobs that it is about; nothing else may happen to them meanwhile. Those among ``moving`` stay
    queued. ``book`` is where the confirmation is counted, as ``weight``.
    """

    what: str
    apply: Callable[[World], None]
    ids: frozenset[str] = NOBODY
    moving: frozenset[str] = NOBODY
    book: str = "other changes"
    weight: int = 1
