"""An engine under test: commands go in as on the wire, commits happen at once or when the test says so."""

import random
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgpack
import msgspec
import pytest
from msgspec import Raw

from bunqueue_trio.clock import ManualClock
from bunqueue_trio.engine.core import Engine
from bunqueue_trio.engine.history import History
from bunqueue_trio.engine.reading import ReadNeededError
from bunqueue_trio.engine.state import FactsNeededError
from bunqueue_trio.errors import CommandError
from bunqueue_trio.ids import Ids
from bunqueue_trio.model.changes import Changes
from bunqueue_trio.model.entries import CompletedJob, QueueSettings
from bunqueue_trio.model.instant import Now
from bunqueue_trio.model.job import Job, JobState
from bunqueue_trio.model.replies import Reply
from bunqueue_trio.model.transitions import SettingsChange
from bunqueue_trio.protocol.codec import decode_command
from bunqueue_trio.protocol.wire import checked
from bunqueue_trio.storage.batch import Batch
from bunqueue_trio.storage.snapshot import Snapshot, take_snapshot

SECRET = b"x" * 32
QUEUE = "q"
TICKS_MAX = 10_000


def raw(value: Any) -> Raw:
    """A payload as the engine holds it."""
    return Raw(msgspec.msgpack.encode(value))


class Flight:
    """A flush under way: what was taken, and the rows made of it."""

    def __init__(self, changes: Changes, snapshot: Snapshot) -> None:
        self.changes = changes
        self.snapshot = snapshot

    @property
    def batch(self) -> Batch:
        return self.snapshot.batch


class EngineHarness:
    """An engine, a clock that stands still, and one open connection (1).

    With ``auto_commit`` what a command has staged is committed before the call returns, as a client sees it that waits
    for its reply. ``batches`` are all batches that were committed, newest last. With ``speaks_3`` commands come from
    connections that have asked for protocol 3.
    """

    def __init__(
        self,
        *,
        engine: Engine | None = None,
        clock: ManualClock | None = None,
        seed: int = 1,
        lease_grace_ms: float = 2_000,
        history: History | None = None,
        auto_commit: bool = True,
        checks: bool = True,
    ) -> None:
        self.clock = clock or ManualClock()
        self.engine = engine or Engine(Ids(SECRET, random.Random(seed)), lease_grace_ms=lease_grace_ms, history=history)
        self.auto_commit = auto_commit
        self.checks = checks
        self.speaks_3 = False
        self.batches: list[Batch] = []
        self.connect(1)

    # the wire

    def _command(self, cmd: str, fields: dict[str, Any]) -> Any:
        command = self.command(cmd, **fields)
        if self.speaks_3 and hasattr(command, "is_newer"):
            command.is_newer = True
        return command

    @staticmethod
    def command(cmd: str, **fields: Any) -> Any:
        """A command as a client sends it, decoded and checked. Names of fields are the wire's."""
        command = decode_command(msgpack.packb({"cmd": cmd, **fields}))
        checked(command)
        return command

    def send(self, cmd: str, /, connection: int | None = 1, **fields: Any) -> Any:
        """Execute a command; returns the reply record, None for a pull that found nothing."""
        reply = self.engine.execute(self._command(cmd, fields), self.now, connection)
        self._after()
        return reply

    def question(self, cmd: str, /, connection: int | None = 1, **fields: Any) -> tuple[Any, Any]:
        """A command that only the file can answer, and what it asks the file; no flush may be under way."""
        command, state = self._command(cmd, fields), self.engine.state
        with pytest.raises(ReadNeededError) as unprepared:
            self.engine.execute(command, self.now, connection)
        assert unprepared.value.question is None
        assert state.in_flight is None
        state.holds_file = True
        with pytest.raises(ReadNeededError) as needed:
            self.engine.execute(command, self.now, connection)
        state.holds_file = False
        return command, needed.value.question

    def answered(self, command: Any, question: Any, connection: int | None = 1) -> Any:
        """The reply to a command whose question has been answered."""
        self.engine.state.answer = question
        try:
            reply = self.engine.execute(command, self.now, connection)
        finally:
            self.engine.clear_facts()
        self._after()
        return reply

    def refusal(self, cmd: str, /, connection: int | None = 1, **fields: Any) -> str:
        """The text with which the engine refuses a command; nothing may be left staged or dirty by it."""
        state = self.engine.state
        before = (list(state.changes.jobs), list(state.changes.staged))
        try:
            reply = self.engine.execute(self._command(cmd, fields), self.now, connection)
        except CommandError as error:
            assert (list(state.changes.jobs), list(state.changes.staged)) == before
            return str(error)
        raise AssertionError(f"{cmd} was not refused: {reply}")

    def ask(self, cmd: str, /, connection: int | None = 1, **fields: Any) -> dict[str, Any]:
        """Execute a command; returns the reply as the client decodes it."""
        return decoded(self.send(cmd, connection, **fields))

    # shorthands

    def push(self, queue: str = QUEUE, /, **options: Any) -> str:
        """PUSH; returns the id."""
        return self.send("PUSH", queue=queue, **{"data": {"n": 1}, **options}).id

    def push_many(self, queue: str, jobs: Iterable[dict[str, Any]], **fields: Any) -> list[str]:
        """PUSHB; returns the ids."""
        return self.send("PUSHB", queue=queue, jobs=[{"data": 1, **job} for job in jobs], **fields).ids

    def pull(self, queue: str = QUEUE, /, connection: int | None = 1, **fields: Any) -> tuple[str, str | None] | None:
        """PULL with an owner; returns id and token, or None."""
        reply = self.send("PULL", connection, **{"queue": queue, "owner": "w", **fields})
        return None if reply is None else (reply.job.id, reply.token)

    def pull_id(self, queue: str = QUEUE, /, **fields: Any) -> str | None:
        """PULL with an owner; returns the id or None."""
        pulled = self.pull(queue, **fields)
        return None if pulled is None else pulled[0]

    def pull_all(self, queue: str = QUEUE, /) -> list[str]:
        """Pull until nothing is ready; returns the ids in their order."""
        return list(iter(lambda: self.pull_id(queue), None))

    def ack(self, job_id: str, token: str | None = None, **fields: Any) -> Reply:
        return self.send("ACK", id=job_id, token=token, **fields)

    def fail(self, job_id: str, token: str | None = None, **fields: Any) -> Reply:
        return self.send("FAIL", id=job_id, token=token, **fields)

    def state(self, job_id: str) -> str:
        """GetState."""
        return self.send("GetState", id=job_id).state

    def shown(self, job_id: str) -> dict[str, Any]:
        """GetJob, as the client decodes it."""
        return self.ask("GetJob", id=job_id)["job"]

    def timeline(self, job_id: str) -> list[str]:
        """The states of the job's timeline."""
        return [entry["state"] for entry in self.shown(job_id)["timeline"]]

    def counts(self, queue: str = QUEUE, /) -> dict[str, int]:
        """GetJobCounts without the zeros."""
        return {name: count for name, count in self.send("GetJobCounts", queue=queue).counts.items() if count}

    def dead_letters(self, queue: str = QUEUE, /) -> list[tuple[str, str, str | None]]:
        """(id, reason, error) of the dead letters, oldest first."""
        known = self.engine.state.queues.get(queue)
        letters = [] if known is None else known.letters.values()
        return [(entry.job.id, entry.reason, entry.error) for entry in letters]

    def job(self, job_id: str) -> Job:
        """The job in memory."""
        return self.engine.state.jobs[job_id]

    def set(self, queue: str = QUEUE, /, **settings: Any) -> None:
        """Change settings for which there is no command yet, the way commands do."""
        queue_state = self.engine.state.queue(queue)
        changed = msgspec.structs.replace(queue_state.settings, **settings)
        self.engine.state.stage(SettingsChange(queue, changed))
        self._after()

    # connections and time

    @property
    def now(self) -> Now:
        return self.clock.now()

    def connect(self, *connections: int) -> None:
        for connection in connections:
            self.engine.connect(connection)

    def disconnect(self, connection: int = 1) -> None:
        self.engine.disconnect(connection, self.now)
        self._after()

    def advance(self, ms: float) -> None:
        """Let time pass, ticking at every deadline on the way, as the reaper does."""
        end = self.now.mono_ms + ms
        for _ in range(TICKS_MAX):
            deadline = self.engine.next_deadline_mono_ms(self.now)
            step = max(0.0, min(deadline, end) - self.now.mono_ms)
            self.clock.advance(step)
            self.tick()
            if self.now.mono_ms >= end:
                return
        raise AssertionError("the engine keeps naming a deadline that it does nothing about")

    def skew(self, ms: float) -> None:
        """Let the wall clock jump, and tick."""
        self.clock.skew(ms)
        self.tick()

    def tick(self) -> None:
        self.engine.tick(self.now)
        self._after()

    def wakes(self) -> dict[str, int]:
        """Queues with something new for waiting pulls, since the last call."""
        state = self.engine.state
        wakes, state.wakes = dict(state.wakes), {}
        return wakes

    # flushes

    def take(self) -> Flight:
        """Begin a flush."""
        changes = self.engine.take_changes()
        return Flight(changes, take_snapshot(changes, self.now.wall_ms))

    def land(self, flight: Flight, *, missing: Sequence[str] = (), kept: Sequence[str] = ()) -> None:
        """The flush has committed."""
        self.engine.committed(flight.changes, self.now, missing=missing, kept=kept)
        self.batches.append(flight.batch)
        self._check()

    def crash(self, flight: Flight) -> None:
        """The flush has failed."""
        self.engine.rejected(flight.changes, lambda: flight.snapshot.restore(self.engine.state.changes), self.now)
        self._check()

    def withdraw(self, flight: Flight) -> None:
        """The flush was cancelled before it began."""
        self.engine.put_back(flight.changes, lambda: flight.snapshot.restore(self.engine.state.changes))
        self._check()

    def commit(self) -> Batch:
        """Flush everything with success; returns the rows."""
        flight = self.take()
        self.land(flight)
        return flight.batch

    def reject(self) -> None:
        """Flush everything without success."""
        self.crash(self.take())

    @contextmanager
    def pending(self) -> Iterator[None]:
        """Inside, nothing is committed unless the test does it."""
        self.auto_commit, before = False, self.auto_commit
        yield
        self.auto_commit = before

    def _after(self) -> None:
        if self.auto_commit and self.engine.state.changes.staged:
            self.commit()
        self._check()

    def _check(self) -> None:
        if self.checks:
            self.engine.check_invariants()


def decoded(reply: Reply | None) -> Any:
    """A reply as the client decodes it; without what is undefined."""
    return msgpack.unpackb(msgspec.msgpack.encode(reply), ext_hook=lambda _code, _data: None)


def needs_facts(harness: EngineHarness, cmd: str, /, **fields: Any) -> list[str]:
    """The ids that the engine wants looked up in the file for this command."""
    try:
        harness.send(cmd, **fields)
    except FactsNeededError as needed:
        return needed.ids
    raise AssertionError(f"{cmd} needed no facts")


def snapshot_of(engine: Engine) -> dict[str, Any]:
    """Everything that clients can see, as plain values: two engines with equal ones cannot be told apart."""
    state = engine.state
    jobs = {
        job.record.id: (job.state.name, msgspec.msgpack.encode(job.record), job.seq)
        for job in state.jobs.values()
        if job.state is not JobState.STAGED
    }
    queues = {
        name: (
            queue.settings,
            queue.waiting_count,
            queue.prioritized_count,
            queue.delayed_count,
            queue.parked_count,
            queue.active_count,
            queue.completed_count,
            list(queue.letters),
            {key: job.record.id for key, job in queue.keys.items()},
        )
        for name, queue in state.queues.items()
        if not queue.is_idle
    }
    return {"jobs": jobs, "queues": queues}


def completed(job_id: str, queue: str = QUEUE, **fields: Any) -> CompletedJob:
    """A completed job as the file would tell of it."""
    from bunqueue_trio.model.job import JobRecord

    return CompletedJob(JobRecord(job_id, queue, raw(1), 1.0, 1.0, 1.0, completed_at=2.0, **fields), raw("r"))


def settings(**fields: Any) -> QueueSettings:
    """Settings with these fields changed."""
    return QueueSettings(**fields)
