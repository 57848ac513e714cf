"""A second opinion about the queue's rules: a hundred lines without heaps, timers, rows or tickets.

Stall checks are off; every pull has an owner. ``busy`` marks a job whose change waits for its commit: whoever meets it
has to come again. ``pending`` and ``flying`` are such changes, as (apply, drop).
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

TTL = 30_000
GRACE = 2_000
MAX_STALLS = 3
QUEUED, PARKED, ACTIVE, FAILED, HIDDEN = "queued", "parked", "active", "failed", "hidden"
Step = Callable[[], None]


class Pending(Exception):
    """Come again after the commit."""


class Refused(Exception):
    """The client is told no."""


@dataclass(eq=False)
class MJob:
    id: str
    queue: str
    seq: int
    run_at: float
    priority: int = 0
    lifo: bool = False
    group: str | None = None
    key: str | None = None
    key_expires: float | None = None
    max_attempts: int = 3
    remove_on_complete: bool = False
    remove_on_fail: bool = False
    missing: set[str] = field(default_factory=set)
    depends_on: list[str] = field(default_factory=list)
    custom: bool = False
    name: str | None = None
    state: str = HIDDEN
    busy: bool = False
    attempts: int = 0
    stalls: int = 0
    token: str | None = None
    late_ack: bool = False
    connection: int | None = None
    renewed: bool = False
    expires: float = 0.0
    soon: set[str] = field(default_factory=set)  # what it will wait for when its move has committed
    waited: set[str] | None = None  # what it waited for when it parked itself
    former: "MJob | None" = None  # the dead letter whose id a durable push has reserved

    @property
    def order(self) -> tuple[float, ...]:
        return (-self.priority, self.lifo, -self.seq if self.lifo else self.run_at, self.seq)


class Model:
    """What clients should see."""

    def __init__(self) -> None:
        self.live: dict[str, MJob] = {}  # everything but completed jobs, dead letters included
        self.done: dict[str, str] = {}  # kept completed jobs, by id: their queue
        self.done_jobs: dict[str, MJob] = {}
        self.emptying: dict[str, tuple[bool, list[MJob], list[MJob]]] = {}  # queue: whole, held, to be held
        self.kept: set[str] = set()  # completed and obliterated, but remembered as long as somebody names them
        self.finished: set[str] = set()
        self.removing: set[str] = set()  # completed jobs that Clean is about to remove
        self.keys: dict[tuple[str, str], MJob] = {}
        self.paused: dict[str, bool] = {}
        self.pending: list[tuple[str, Step, Step]] = []
        self.flying: list[tuple[str, Step, Step]] = []
        self.connections: set[int] = set()
        self.is_row_on_its_way: Callable[[str], bool] = lambda _: False
        self.seq = 0

    # commits

    def promise(self, apply: Step, drop: Step = lambda: None, name: str = "") -> None:
        self.pending.append((name, apply, drop))

    def take(self) -> None:
        self.flying, self.pending = self.pending, []

    def land(self) -> None:
        steps, self.flying = self.flying, []
        for _, apply, _ in steps:
            apply()
            for _, held, stragglers in self.emptying.values():
                for job in [j for j in stragglers if self.live.get(j.id) is j and not j.busy]:
                    stragglers.remove(job)
                    job.busy = True
                    held.append(job)

    def crash(self) -> None:
        steps, self.flying, self.pending = self.flying + self.pending, [], []
        for _, _, drop in reversed(steps):
            drop()

    # pushes

    def push(self, job: MJob, wall: float, *, durable: bool, depends_on: list[str], dedup: dict) -> str | None:
        """Returns the id of the job that stands for the push already; None when *job* is taken."""
        if any((other := self.live.get(i)) is not None and self._hidden(other) for i in depends_on):
            raise Pending
        if any(i not in self.live and self.emptying.get(self.done.get(i, ""), (False,))[0] for i in depends_on):
            raise Pending  # its queue is being obliterated
        if any(i not in self.live and i not in self.finished for i in depends_on):
            raise Refused
        former = self.live.get(job.id) if job.custom else None
        if former is not None and former.state == FAILED:
            self._settled(former)
        if job.custom and job.id in depends_on and (former is None or former.state == FAILED):
            raise Refused
        if job.custom and job.id in self.removing:
            raise Pending
        if former is not None and former.state != FAILED:
            return self._stands(former, durable)
        holder = self.keys.get((job.queue, job.key)) if job.key else None
        if holder is not None and holder.key_expires is not None and wall >= holder.key_expires:
            holder = None
        if holder is not None:
            self._settled(holder)
            if not dedup.get("replace"):
                self._stands(holder, durable)
                if dedup.get("extend") and dedup.get("ttl"):
                    holder.key_expires = wall + dedup["ttl"]
                    if holder.state != QUEUED:
                        raise Refused
                return holder.id
            if holder.state == QUEUED:
                self._end(holder, durable=durable)
        self.seq += 1
        job.seq = self.seq
        job.key_expires = wall + dedup["ttl"] if job.key and "ttl" in dedup else None
        job.depends_on = depends_on
        job.missing = {i for i in depends_on if i in self.live or i not in self.finished}
        if not durable and former is not None:
            self.gone(former)
        self.live[job.id] = job
        if job.key:
            self.keys[(job.queue, job.key)] = job
        if durable:
            job.busy, job.former = True, former
            self.promise(lambda: self._publish(job), lambda: self._unpush(job, holder))
        else:
            self._publish(job)
        return None

    def _stands(self, job: MJob, durable: bool) -> str:
        """*job* stands for a push; a durable one has to wait while its row is on its way into the file."""
        if durable and self.is_row_on_its_way(job.id):
            raise Pending
        return self._settled(job).id

    def _publish(self, job: MJob) -> None:
        job.busy, job.former = False, None
        job.state = PARKED if job.missing else QUEUED
        self.done.pop(job.id, None)
        self.finished.discard(job.id)

    def _unpush(self, job: MJob, displaced: MJob | None) -> None:
        self.gone(job)
        if job.former is not None:
            self.live[job.id] = job.former
        if displaced is not None and job.key and self.live.get(displaced.id) is displaced:
            self.keys[(job.queue, job.key)] = displaced

    def _end(self, job: MJob, *, durable: bool) -> None:
        if not durable:
            return self.gone(job)
        job.busy = True
        return self.promise(lambda: self.gone(job), lambda: self._unbusy(job))

    # pulls and ends

    def best(self, queue: str, wall: float) -> MJob | None:
        if self.paused.get(queue):
            return None
        running = {j.group for j in self.live.values() if j.queue == queue and j.state == ACTIVE and j.group}
        ready = [
            j
            for j in self.live.values()
            if j.queue == queue and j.state == QUEUED and not j.busy and j.run_at <= wall and j.group not in running
        ]
        return min(ready, key=lambda j: j.order, default=None)

    def lease(self, job: MJob, token: str, connection: int, mono: float) -> None:
        job.waited = None
        job.state, job.token, job.connection = ACTIVE, token, connection
        job.expires, job.renewed, job.late_ack = mono + TTL, False, False

    def ack(self, job_id: str, token: str | None) -> None:
        job = self.live.get(job_id)
        if job is not None:
            self._settled(job)
            if job.state == ACTIVE and token != job.token:
                raise Refused
            if job.state == ACTIVE or (job.state == QUEUED and job.late_ack and token == job.token):
                job.busy = True
                return self.promise(lambda: self._complete(job), lambda: self._unbusy(job))
        if token is None:
            raise Refused
        return None

    def fail(self, job_id: str, token: str | None, mono: float, retry_at: Callable[[MJob], float]) -> None:
        job = self.live.get(job_id)
        if job is not None:
            self._settled(job)
        if job is None or job.state != ACTIVE:
            if token is None:
                raise Refused
            return
        if token != job.token or mono >= job.expires:
            raise Refused
        job.busy = True
        self.promise(lambda: self._failed(job, retry_at), lambda: self._unbusy(job))

    def _failed(self, job: MJob, retry_at: Callable[[MJob], float]) -> None:
        job.busy = False
        job.attempts += 1
        if job.attempts < job.max_attempts:
            job.state, job.run_at = QUEUED, retry_at(job)
        elif job.remove_on_fail:
            self.gone(job)
        else:
            self._bury(job)

    def _complete(self, job: MJob) -> None:
        self.gone(job)
        self.finished.add(job.id)
        if not job.remove_on_complete:
            self.done[job.id] = job.queue
            self.done_jobs[job.id] = job
        for other in self.live.values():
            other.missing.discard(job.id)
            if other.state == PARKED and not other.busy and self._is_free(other):
                other.state = QUEUED

    def _bury(self, job: MJob) -> None:
        self._free(job)
        job.state, job.missing = FAILED, set()

    def gone(self, job: MJob) -> None:
        self._free(job)
        if self.live.get(job.id) is job:
            del self.live[job.id]

    def _free(self, job: MJob) -> None:
        if job.key and self.keys.get((job.queue, job.key)) is job:
            del self.keys[(job.queue, job.key)]

    def park(self, job_id: str, token: str | None, mono: float) -> None:
        job = self.live.get(job_id)
        if job is None or self._settled(job).state != ACTIVE:
            raise Refused
        if token is not None and (token != job.token or mono >= job.expires):
            raise Refused
        job.busy = True
        needs = [self.live[i] for i in job.depends_on if i in self.live]
        waiters = self._waiters(job)
        job.soon = {n.id for n in needs if n.state in (QUEUED, PARKED, ACTIVE) and n not in waiters}
        self.promise(lambda: self._parked(job), lambda: self._unbusy(job))

    def _waiters(self, job: MJob) -> list[MJob]:
        """Who waits for *job*, perhaps over others, and itself."""
        found = [job]
        for awaited in found:
            found += [j for j in self.live.values() if awaited.id in (j.soon or j.missing) and j not in found]
        return found

    def _parked(self, job: MJob) -> None:
        self._free(job)
        job.busy, job.late_ack, job.connection, job.renewed = False, False, None, False
        job.key_expires = 0.0 if job.key else None
        job.waited, job.soon = job.soon, set()
        job.missing = {i for i in job.waited if i in self.live or i not in self.finished}
        job.state = QUEUED if self._is_free(job) else PARKED

    @staticmethod
    def _is_free(job: MJob) -> bool:
        """Whether a parked job waits for nothing any more; one that parked itself may wait for its first child."""
        return not job.missing and job.waited != set()

    def cancel(self, job_id: str) -> None:
        job = self.live.get(job_id)
        if job is None or self._settled(job).state not in (QUEUED, PARKED):
            raise Refused
        self._end(job, durable=True)

    # many at once

    def drain(self, queue: str) -> int:
        if queue in self.emptying:
            raise Pending
        jobs = [j for j in self.live.values() if j.queue == queue and j.state == QUEUED and not j.busy]
        if jobs:
            self._empty(queue, False, jobs, [])
        return len(jobs)

    def obliterate(self, queue: str) -> None:
        if queue in self.emptying:
            raise Pending
        jobs = [j for j in self.live.values() if j.queue == queue]
        self._empty(queue, True, [j for j in jobs if not j.busy], [j for j in jobs if j.busy])

    def _empty(self, queue: str, whole: bool, held: list[MJob], stragglers: list[MJob]) -> None:
        for job in held:
            job.busy = True
        ids = {job.id for job in stragglers}
        self.emptying[queue] = (whole, held, stragglers)
        self.promise(lambda: self._emptied(queue, ids), lambda: self._not_emptied(queue), name=queue if whole else "")

    def _emptied(self, queue: str, straggler_ids: set[str]) -> None:
        whole, held, _ = self.emptying.pop(queue)
        for job in held:
            self.gone(job)
        if whole:
            self.paused[queue] = False
            ended = {i for i, name in self.done.items() if name == queue} | (straggler_ids - set(self.live))
            for job_id in ended & self.finished:
                self.kept.add(job_id)
                self.finished.discard(job_id)
                self.done.pop(job_id, None)

    def _not_emptied(self, queue: str) -> None:
        for job in self.emptying.pop(queue)[1]:
            self._unbusy(job)

    # lives after the end

    def retry_completed(self, queue: str, job_id: str, wall: float) -> int:
        if job_id in self.live:
            self._settled(self.live[job_id])
            return 0
        if job_id in self.removing:
            raise Pending
        if self.done.get(job_id) != queue:
            return 0
        if queue in self.emptying:
            raise Pending
        old = self.done_jobs[job_id]
        if not self._takes_key(old, wall):
            return 0
        job = replace(old, state=HIDDEN, busy=True, run_at=wall, attempts=0, stalls=0, seq=self._next_seq())
        self._start_over(job)
        self.live[job_id] = job
        self.promise(lambda: self._runs_again(job), lambda: self.gone(job))
        return 1

    def _runs_again(self, job: MJob) -> None:
        job.busy, job.state = False, QUEUED
        self.done.pop(job.id)
        self.finished.discard(job.id)

    def retry_dlq(self, queue: str, job_id: str, wall: float) -> int:
        job = self.live.get(job_id)
        if job is not None and job.state == HIDDEN and job.former is not None and job.former.queue == queue:
            raise Pending
        if job is None or job.state != FAILED or job.queue != queue:
            return 0
        self._settled(job)
        if not self._takes_key(job, wall):
            return 0
        job.busy, seq = True, self._next_seq()
        self.promise(lambda: self._revived(job, wall, seq), lambda: self._not_revived(job))
        return 1

    def _revived(self, job: MJob, wall: float, seq: int) -> None:
        job.busy, job.state, job.run_at, job.seq, job.attempts, job.stalls = False, QUEUED, wall, seq, 0, 0
        self._start_over(job, keys=False)

    def _not_revived(self, job: MJob) -> None:
        job.busy = False
        self._free(job)

    def _start_over(self, job: MJob, *, keys: bool = True) -> None:
        job.token, job.late_ack, job.connection, job.renewed, job.key_expires = None, False, None, False, None
        job.missing, job.waited = set(), None
        if keys and job.key:
            self.keys[(job.queue, job.key)] = job

    def _takes_key(self, job: MJob, wall: float) -> bool:
        holder = self.keys.get((job.queue, job.key)) if job.key else None
        if holder is not None and holder is not job and not (holder.key_expires or float("inf")) <= wall:
            return False
        if job.key:
            self.keys[(job.queue, job.key)] = job
        return True

    def _next_seq(self) -> int:
        self.seq += 1
        return self.seq

    def clean(self, queue: str, job_ids: list[str]) -> None:
        """Remove these queued or failed jobs, all or none."""
        if queue in self.emptying:
            raise Pending
        for job in [self._settled(self.live[job_id]) for job_id in job_ids]:
            self._end(job, durable=True)

    def clean_completed(self, queue: str) -> list[str]:
        """Remove the completed jobs of a queue; returns their ids."""
        if queue in self.emptying:
            raise Pending
        ids = [job_id for job_id, name in self.done.items() if name == queue]
        if self.removing.intersection(ids) or any(i in self.live for i in ids):
            raise Pending
        self.removing.update(ids)
        self.promise(lambda: self._cleaned(ids), lambda: self.removing.difference_update(ids))
        return ids

    def _cleaned(self, ids: list[str]) -> None:
        named = {i for job in self.live.values() if job.state != FAILED for i in job.depends_on}
        self.removing.difference_update(ids)
        for job_id in ids:
            del self.done[job_id]
            if job_id not in named:
                self.finished.discard(job_id)

    def heartbeat(self, job_id: str, token: str | None, mono: float) -> None:
        job = self.live.get(job_id)
        if job is None or job.state != ACTIVE:
            raise Refused
        self._settled(job)
        if token is not None:
            if token != job.token or mono >= job.expires:
                raise Refused
            job.expires, job.renewed = mono + TTL, True

    # losses

    def lose(self, job: MJob, *, stalls: int) -> None:
        """The holder is gone: one attempt charged."""
        job.attempts += 1
        job.stalls += stalls
        if job.attempts >= job.max_attempts or (stalls and job.stalls >= MAX_STALLS):
            self._bury(job)
        else:
            job.state, job.late_ack = QUEUED, True

    def disconnect(self, connection: int) -> None:
        self.connections.discard(connection)
        for job in list(self.live.values()):
            if job.state == ACTIVE and job.connection == connection:
                if job.renewed:
                    job.connection = None
                elif not job.busy:
                    self.lose(job, stalls=0)

    def expire(self, mono: float) -> None:
        for job in list(self.live.values()):
            if job.state == ACTIVE and mono >= job.expires + GRACE:
                self.lose(job, stalls=1)

    def restart(self) -> None:
        """Killed with everything in the file. Of removed completions only those are remembered that somebody names."""
        self.connections.clear()
        named = {i for job in self.live.values() if job.state != FAILED for i in job.depends_on}
        self.finished = {i for i in self.finished if i in self.done or i in named} | (
            self.kept & named - set(self.live)
        )
        self.kept.clear()
        for job in self.live.values():
            if job.state == ACTIVE:
                self.lose(job, stalls=1)
            else:
                job.late_ack = False
            if (
                job.state == PARKED and job.waited is None
            ):  # a dependency that lives again since it completed is waited for again
                job.missing = {i for i in job.depends_on if i in self.live or i not in self.finished}

    def _unbusy(self, job: MJob) -> None:
        job.busy, job.soon = False, set()
        if job.state == PARKED and self._is_free(job):
            job.state = QUEUED
        elif job.state == ACTIVE and job.connection is not None and job.connection not in self.connections:
            self.lose(job, stalls=0)

    def _settled(self, job: MJob) -> MJob:
        if job.busy:
            raise Pending
        return job

    @staticmethod
    def _hidden(job: MJob) -> bool:
        return job.busy and job.state in (HIDDEN, QUEUED, PARKED)

    # what is seen

    def shown(self, job_id: str, wall: float) -> str:
        job = self.live.get(job_id)
        if job is not None and job.state == HIDDEN and job.former is not None:
            job = job.former
        if job is None or job.state == HIDDEN:
            return "completed" if job_id in self.done else "unknown"
        if job.state == QUEUED:
            return "delayed" if job.run_at > wall else "prioritized" if job.priority > 0 else "waiting"
        return {PARKED: "waiting-children"}.get(job.state, job.state)

    def listed(self, queue: str, wall: float) -> dict[str, str]:
        """The state of every job that a list of the queue shows."""
        states = {job_id: "completed" for job_id, name in self.done.items() if name == queue}
        for job in self.live.values():
            seen = job.former if job.state == HIDDEN else job
            if seen is not None and seen.queue == queue:
                states[job.id] = self.shown(job.id, wall)
        return states

    def counts(self, queue: str, wall: float) -> dict[str, int]:
        counts = Counter(self.shown(i, wall) for i, j in self.live.items() if j.queue == queue and not self._hidden(j))
        counts["failed"] += sum(j.former.queue == queue for j in self.live.values() if j.former is not None)
        counts["completed"] = sum(q == queue for q in self.done.values())
        if self.paused.get(queue):
            counts["paused"] = counts.pop("waiting", 0) + counts.pop("prioritized", 0)
        return {name: count for name, count in counts.items() if count}
