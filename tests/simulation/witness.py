"""What must be in the file, and in an engine that was recovered from it: by the model, and by what memory held."""

from __future__ import annotations

from typing import Any

import apsw
import msgpack
import msgspec

from bunqueue_trio.engine.core import Engine
from bunqueue_trio.model.entries import DEFAULT_SETTINGS
from bunqueue_trio.model.grouping import DEFAULT_GROUP_SETTINGS, GroupSettings
from bunqueue_trio.model.job import ChildFailures, Job, JobRecord, JobState, Past
from bunqueue_trio.model.transitions import CompletedRemoval, GroupChange, Removal, SettingsChange, Transition
from bunqueue_trio.storage import reads
from tests.simulation.model import ACTIVE, COMPLETED, FAILED, QUEUED, Violation, World, require

STATE_OF = {"waiting": QUEUED, "delayed": QUEUED, "active": ACTIVE, "completed": COMPLETED}
LET_GO = ("depends_on", "run_at", "timeline")
CHARGED = ("attempts", "stall_count", "started_at", "run_at", "last_heartbeat")
JOBS = "SELECT id, queue, state, data, priority, attempts, max_attempts, stall_count, run_at FROM jobs"

Row = tuple[Any, ...]


class FileContent:
    """What the file says, read without the reading code of the product."""

    def __init__(self, connection: apsw.Connection) -> None:
        def rows(sql: str) -> list[Row]:
            return list(connection.execute(sql))

        self.jobs: dict[str, Row] = {row[0]: row[1:] for row in rows(JOBS)}
        self.results = {row[0]: msgpack.unpackb(row[1]) for row in rows("SELECT job_id, result FROM job_results")}
        self.letters = {row[0]: msgpack.unpackb(row[1])["job"] for row in rows("SELECT job_id, entry FROM dlq")}
        self.letter_count = rows("SELECT count(*) FROM dlq")[0][0]
        self.paused = {row[0] for row in rows("SELECT name FROM queue_state WHERE paused")}
        self.crons = dict(rows("SELECT name, executions FROM cron_jobs"))

    @property
    def ids(self) -> set[str]:
        """Of all jobs, dead ones included."""
        return {*self.jobs, *self.letters}

    def difference(self, world: World) -> str | None:
        """The first thing that *world* says otherwise."""
        expected_rows = {i for i, fact in world.jobs.items() if fact.state != FAILED}
        expected_letters = {i for i, fact in world.jobs.items() if fact.state == FAILED}
        if self.jobs.keys() != expected_rows:
            return f"jobs: missing {expected_rows - self.jobs.keys()}, phantoms {self.jobs.keys() - expected_rows}"
        if self.letters.keys() != expected_letters or self.letter_count != len(expected_letters):
            return f"dead letters: {sorted(self.letters)}, not {sorted(expected_letters)}"
        for job_id, fact in world.jobs.items():
            if fact.state == FAILED:
                letter = self.letters[job_id]
                found: Row = (letter["queue"], letter["data"]["n"], letter["attempts"])
                wanted: Row = (fact.queue, fact.number, fact.attempts)
            else:
                queue, state, data, priority, attempts, max_attempts, stalls, run_at = self.jobs[job_id]
                at = None if fact.run_at is None or fact.state != QUEUED else run_at
                number = msgpack.unpackb(data)["n"]
                found = (queue, STATE_OF.get(state, state), number, priority, attempts, max_attempts, stalls, at)
                wanted = (fact.queue, fact.state, fact.number, fact.priority, fact.attempts, fact.max_attempts)
                wanted += (fact.stalls, None if at is None else fact.run_at)
            if found != wanted:
                return f"{job_id}: {found}, not {wanted}"
        results = {i: fact.result for i, fact in world.jobs.items() if fact.result is not None}
        if self.results != results:
            return f"results: {self.results}, not {results}"
        if self.paused != world.paused:
            return f"paused: {self.paused}, not {world.paused}"
        if self.crons != world.crons:
            return f"executions of crons: {self.crons}, not {world.crons}"
        return None


class Memory:
    """What the engine held of each job when a flush took its changes, as it will be should the flush succeed."""

    def __init__(self, engine: Engine, completed: dict[str, JobRecord]) -> None:
        self.live: dict[str, tuple[JobState, JobRecord, int]] = {}
        self.sides: dict[str, Row] = {}
        self.settings = {name: queue.settings for name, queue in engine.state.queues.items()}
        self.groups = _groups(engine)
        self.completed = dict(completed)
        changes = engine.state.in_flight
        assert changes is not None
        going = {id(job) for change in changes.staged if isinstance(change, Removal) for job in change.jobs}
        for change in changes.staged:
            if isinstance(change, CompletedRemoval):
                for job_id in change.ids:
                    self.completed.pop(job_id, None)
            elif isinstance(change, Removal) and change.is_whole:
                self.completed = {i: r for i, r in self.completed.items() if r.queue != change.queue}
                self.settings[change.queue] = DEFAULT_SETTINGS
                self.groups = {key: value for key, value in self.groups.items() if key[0] != change.queue}
            elif isinstance(change, SettingsChange):
                self.settings[change.queue] = change.settings
            elif isinstance(change, GroupChange):
                self.groups[change.queue, change.group_id] = change.settings
        for job_id, job in engine.state.jobs.items():
            if id(job) not in going:
                self._note(job_id, job)

    def _note(self, job_id: str, job: Job) -> None:
        state, record = job.state, job.record
        change = job.staged
        if isinstance(change, Transition):
            if change.is_doomed:
                return
            record, state = change.record, change.state
            if state is JobState.COMPLETED:
                self.completed[job_id] = record
                return
            if change.entry is not None:
                state, record = JobState.FAILED, change.entry.job
            elif state is JobState.GONE:
                return
            elif job.state is JobState.ACTIVE and change.kind.name == "UPDATE":
                state = JobState.ACTIVE
        else:
            self.sides[job_id] = _side(job)
        self.completed.pop(job_id, None)
        self.live[job_id] = (state, msgspec.structs.replace(record), job.seq)

    def compare(self, engine: Engine, connection: apsw.Connection) -> None:
        """The recovered engine knows the same, but for what recovery has to change.

        Raises:
            Violation: it does not.
        """
        jobs = engine.state.jobs
        told = self._parents_told(engine)
        for job_id, (state, record, seq) in self.live.items():
            job = jobs.get(job_id)
            if job is None:
                require(state is JobState.ACTIVE, f"{job_id}, {state.name}, was not recovered")
                continue
            found = job.record
            changed = (CHARGED if state is JobState.ACTIVE else ()) + (LET_GO if job_id in told else ())
            if changed:
                found = msgspec.structs.replace(found, **{name: getattr(record, name) for name in changed})
            if state not in (JobState.ACTIVE, JobState.FAILED) and job_id not in told:
                require(job.seq == seq, f"{job_id} is recovered as number {job.seq}, not {seq}")
            _same(job_id, found, record)
            if job.state is not JobState.FAILED and job_id in self.sides and job_id not in told:
                side = self.sides[job_id]
                require(_side(job) == side, f"{job_id} is recovered with {_side(job)}, not {side}")
        queues = engine.state.queues
        for name, settings in self.settings.items():
            kept = queues[name].settings if name in queues else DEFAULT_SETTINGS
            require(kept == settings, f"queue {name} is recovered with {kept}, not {settings}")
        groups = {key: value for key, value in self.groups.items() if value != DEFAULT_GROUP_SETTINGS}
        require(_groups(engine) == groups, f"groups are recovered with {_groups(engine)}, not {groups}")
        for job_id, record in self.completed.items():
            row = reads.find_completed(connection, job_id)
            require(row is not None, f"the completed {job_id} was not recovered")
            if row is not None:
                _same(job_id, row.record, record)

    def _parents_told(self, engine: Engine) -> set[str | None]:
        """Parents of jobs that recovery has sent to the dead letters."""
        jobs = engine.state.jobs
        active = [record for state, record, _ in self.live.values() if state is JobState.ACTIVE]
        return {r.parent_id for r in active if r.id in jobs and jobs[r.id].state is JobState.FAILED}


def _groups(engine: Engine) -> dict[tuple[str, str], GroupSettings]:
    """What is set for named groups."""
    queues = [queue for queue in engine.state.queues.values() if queue.named_groups is not None]
    found = {(queue.name, group.group_id): group.settings for queue in queues for group in queue.named_groups or ()}
    return {key: value for key, value in found.items() if value != DEFAULT_GROUP_SETTINGS}


def _side(job: Job) -> Row:
    """What no column of the reference holds."""
    return job.key_expires_at, job.is_from_cron, job.past or Past(), job.child_failures or ChildFailures()


def _same(job_id: str, found: JobRecord, expected: JobRecord) -> None:
    if found == expected:
        return
    differences = [
        f"{name}: {getattr(found, name)!r}, not {getattr(expected, name)!r}"
        for name in JobRecord.__struct_fields__
        if _comparable(found, name) != _comparable(expected, name)
    ]
    if differences:
        raise Violation(f"{job_id} is recovered with other values: {'; '.join(differences)}")


def _comparable(record: JobRecord, name: str) -> Any:
    value = getattr(record, name)
    if name == "data":
        return bytes(value)
    if name == "timeline" and value and value[-1].state == "waiting" and value[-1].attempt is not msgspec.UNSET:
        return value[:-1]  # what announces a retry is written with the next change
    return value
