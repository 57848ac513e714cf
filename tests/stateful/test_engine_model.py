"""The engine against a small independent model, with SQLite behind it: flushed, refused, crashed and recovered.

``BUNQUEUE_STATEFUL_EXAMPLES`` and ``BUNQUEUE_STATEFUL_STEPS`` make the search larger, and different in every run;
``BUNQUEUE_NO_SHRINK`` shows the first failure as it was found.
"""

import os
import random
from typing import Any

import msgspec
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from bunqueue_trio.engine.reading import ReadNeededError
from bunqueue_trio.engine.state import FactsNeededError, PendingChangeError
from bunqueue_trio.errors import CommandError
from bunqueue_trio.ids import Ids
from bunqueue_trio.model.job import Job, JobRecord, JobState
from bunqueue_trio.server.startup import load_engine
from bunqueue_trio.storage import lists, reads, writes
from bunqueue_trio.storage.connection import open_writer
from tests.engine_harness import SECRET, EngineHarness, Flight
from tests.stateful.engine_model import ACTIVE, FAILED, QUEUED, MJob, Model, Pending, Refused

QUEUES = ("q", "r")
LIVE_STATES = ["waiting", "prioritized", "delayed", "active", "waiting-children", "failed", "paused"]
OTHER_TOKEN = "00000000-0000-4000-a000-000000000000"

ids_of_jobs = st.integers(0, 50)
backoffs = st.sampled_from([0, 0, {"type": "fixed", "delay": 1_000}])
options = st.fixed_dictionaries(
    {"backoff": backoffs, "maxAttempts": st.integers(1, 4)},
    optional={
        "priority": st.integers(-1, 2),
        "delay": st.sampled_from([0, 0, 0, 5, 2_000, 50_000]),
        "lifo": st.just(True),
        "groupId": st.sampled_from(["g", "h"]),
        "uniqueKey": st.sampled_from(["k", "k", "k", "l"]),
        "dedup": st.fixed_dictionaries(
            {}, optional={"ttl": st.sampled_from([0, 1_000, 40_000]), "replace": st.booleans(), "extend": st.booleans()}
        ),
        "removeOnComplete": st.just(True),
        "removeOnFail": st.just(True),
        "durable": st.just(True),
        "name": st.sampled_from(["n", "default"]),
    },
)
targets = st.sampled_from(["running"] * 5 + ["leased before"] * 3 + ["any"])
token_kinds = st.sampled_from(["last"] * 8 + ["first", "other", "none"])
queues = st.sampled_from([QUEUES[0], QUEUES[0], QUEUES[0], QUEUES[1]])
pushes = st.tuples(
    queues,
    options,
    st.sampled_from([None, None, "c", "c", "d"]),
    st.one_of(st.just([]), st.just([]), st.lists(ids_of_jobs, max_size=2)),
)


class EngineMachine(RuleBasedStateMachine):
    """Every rule does the same to both and compares what came of it."""

    @initialize()
    def start(self) -> None:
        self.harness = EngineHarness(auto_commit=False)
        self.model = Model()
        self.model.is_row_on_its_way = self.is_row_on_its_way
        self.connection = open_writer(":memory:")
        self.flight: Flight | None = None
        self.names: list[str] = []  # every id that was ever given out
        self.tokens: dict[str, list[str]] = {}
        self.next_connection = 2
        self.restarts = 0
        self.model.connections.add(1)
        for queue in QUEUES:
            self.harness.send("SetStallConfig", queue=queue, config={"enabled": False})
        self.land(self.harness.take())

    def teardown(self) -> None:
        if hasattr(self, "connection"):
            self.settle(success=True)
            self.compare_with_file()
            self.connection.close()

    # doing the same to both

    @property
    def wall(self) -> float:
        return self.harness.now.wall_ms

    @property
    def mono(self) -> float:
        return self.harness.now.mono_ms

    def engine_says(self, cmd: str, connection: int | None = 1, **fields: Any) -> Any:
        """The engine's reply, or `Pending` or `Refused` as a value."""
        for _ in range(3):
            try:
                return self.harness.send(cmd, connection, **fields)
            except PendingChangeError:
                return Pending
            except CommandError:
                return Refused
            except FactsNeededError as needed:
                found = {job_id: reads.find_completed(self.connection, job_id) for job_id in needed.ids}
                self.harness.engine.find_facts(found)
        raise AssertionError("the engine asks for the same facts again")

    def engine_reads(self, cmd: str, **fields: Any) -> Any:
        """The reply to a command that may have to ask the file, at a moment when no flush is under way."""
        engine, command = self.harness.engine, self.harness.command(cmd, **fields)
        for _ in range(3):
            engine.state.holds_file = engine.state.answer is None
            try:
                return engine.execute(command, self.harness.now, 1)
            except PendingChangeError:
                return Pending
            except ReadNeededError as needed:
                if needed.question is not None:
                    lists.answer(self.connection, needed.question)
                    engine.state.answer = needed.question
            finally:
                engine.state.holds_file = False
        raise AssertionError("the engine asks the file the same again")

    @staticmethod
    def model_says(step: Any, *args: Any, **fields: Any) -> Any:
        try:
            return step(*args, **fields)
        except Pending:
            return Pending
        except Refused:
            return Refused

    def both(self, expected: Any, reply: Any) -> bool:
        """True when both said yes; fails when they differ."""
        self.harness.engine.clear_facts()
        verdicts = [value if value in (Pending, Refused) else "ok" for value in (expected, reply)]
        assert verdicts[0] == verdicts[1], (expected, reply)
        return verdicts[0] == "ok"

    def pick(self, number: int) -> str:
        return self.names[number % len(self.names)] if self.names else "nobody"

    def token(self, job_id: str, kind: str) -> str | None:
        """None, a stranger's, or one of those given out for that id."""
        known = self.tokens.get(job_id)
        if kind == "other":
            return OTHER_TOKEN
        if kind == "none" or not known:
            return None
        return known[-1] if kind == "last" else known[0]

    def target(self, kind: str, number: int) -> str:
        """An id: of a running job, of one that runs or ran, or any."""
        if kind == "running":
            ids = [job.id for job in self.model.live.values() if job.state == ACTIVE]
        else:
            ids = list(self.tokens) if kind == "leased before" else self.names
        return ids[number % len(ids)] if ids else self.pick(number)

    # pushes

    @rule(several=st.lists(pushes, min_size=1, max_size=4))
    def push(self, several: list[tuple[str, dict[str, Any], str | None, list[int]]]) -> None:
        for queue, given, custom, needs in several:
            self.push_one(queue, given, custom, list(dict.fromkeys(self.pick(n) for n in needs)))

    def is_row_on_its_way(self, job_id: str) -> bool:
        """What the model cannot know: which rows the flush under way carries. Only durable pushes ask."""
        state = self.harness.engine.state
        job = state.jobs.get(job_id)
        return job is not None and not job.dirty and state.in_flight is not None and job in state.in_flight.jobs

    def push_one(self, queue: str, given: dict[str, Any], custom: str | None, depends_on: list[str]) -> None:
        if "groupId" in given:  # named groups have a model of their own: test_groups_model
            given = {name: value for name, value in given.items() if name != "name"}
        if custom is not None:
            given = {**given, "jobId": custom}
        fields = {**given, "dependsOn": depends_on} if depends_on else given
        job = self.model_job(queue, given, custom)

        dedup = given.get("dedup", {}) if job.key else {}
        expected = self.model_says(
            self.model.push, job, self.wall, durable=bool(given.get("durable")), depends_on=depends_on, dedup=dedup
        )
        reply = self.engine_says("PUSH", queue=queue, data={"n": self.model.seq}, **fields)

        if self.both(expected, reply):
            if expected is not None:
                assert reply.id == expected
            else:
                self.rename(job, reply.id)
                if reply.id not in self.names:
                    self.names.append(reply.id)

    def model_job(self, queue: str, given: dict[str, Any], custom: str | None) -> MJob:
        return MJob(
            id=custom or f"new{self.model.seq}",
            queue=queue,
            seq=0,
            run_at=self.wall + given.get("delay", 0),
            priority=given.get("priority", 0),
            lifo=given.get("lifo", False),
            group=given.get("groupId"),
            key=given.get("uniqueKey"),
            max_attempts=given["maxAttempts"],
            remove_on_complete=given.get("removeOnComplete", False),
            remove_on_fail=given.get("removeOnFail", False),
            custom=custom is not None,
            name=given.get("name"),
        )

    def rename(self, job: MJob, job_id: str) -> None:
        """The model learns the id that the engine has made up."""
        self.model.live[job_id] = self.model.live.pop(job.id)
        job.id = job_id

    @rule(number=ids_of_jobs)
    def add_log(self, number: int) -> None:
        job_id = self.pick(number)
        reborn = list(self.harness.engine.state.changes.reborn)
        reborn += [] if self.flight is None else self.flight.changes.reborn
        if job_id in reborn and self.model.shown(job_id, self.wall) == "unknown":
            return  # it has lived and gone again since, but the file does not know yet
        known = self.model.shown(job_id, self.wall) != "unknown"
        assert self.both("ok" if known else Refused, self.engine_says("AddLog", id=job_id, message=number)) == known

    # pulls and ends

    @rule(queue=queues, count=st.integers(1, 3))
    def pull(self, queue: str, count: int) -> None:
        for _ in range(count):
            self.pull_one(queue)

    @rule(queue=queues, how=st.sampled_from(["ack", "ack", "fail"]), does_flush=st.booleans())
    def work(self, queue: str, how: str, does_flush: bool) -> None:
        """What a worker does all day."""
        job_id = self.pull_one(queue)
        if job_id is not None:
            (self.ack_one if how == "ack" else self.fail_one)(job_id, self.tokens[job_id][-1])
        if does_flush:
            self.settle(success=True)

    def pull_one(self, queue: str) -> str | None:
        self.harness.clock.advance(1)  # two lives of a custom id that begin and start in one millisecond share a token
        connection = max(self.model.connections)
        expected = self.model.best(queue, self.wall)
        pulled = self.harness.pull(queue, connection=connection)

        if expected is None:
            assert pulled is None
            return None
        assert pulled is not None
        job_id, token = pulled
        assert job_id == expected.id
        assert token is not None
        assert token not in self.tokens.get(job_id, [])
        self.tokens.setdefault(job_id, []).append(token)
        self.model.lease(expected, token, connection, self.mono)
        return job_id

    @rule(whom=targets, number=ids_of_jobs, kind=token_kinds)
    def ack(self, whom: str, number: int, kind: str) -> None:
        job_id = self.target(whom, number)
        self.ack_one(job_id, self.token(job_id, kind))

    def ack_one(self, job_id: str, token: str | None) -> None:
        expected = self.model_says(self.model.ack, job_id, token)
        self.both(expected, self.engine_says("ACK", id=job_id, token=token, result=job_id))

    @rule(whom=targets, number=ids_of_jobs, kind=token_kinds)
    def fail(self, whom: str, number: int, kind: str) -> None:
        job_id = self.target(whom, number)
        self.fail_one(job_id, self.token(job_id, kind))

    def fail_one(self, job_id: str, token: str | None) -> None:
        before = self.wall

        def retry_at(job: MJob) -> float:
            if job.id not in self.harness.engine.state.jobs:
                return before  # its queue was obliterated in the same transaction
            record = self.harness.job(job.id).record
            assert 0.8 * record.backoff <= record.run_at - before <= 1.2 * record.backoff + 1
            return record.run_at

        expected = self.model_says(self.model.fail, job_id, token, self.mono, retry_at)
        self.both(expected, self.engine_says("FAIL", id=job_id, token=token, error="e"))

    @rule(whom=targets, number=ids_of_jobs, kind=token_kinds)
    def heartbeat(self, whom: str, number: int, kind: str) -> None:
        job_id = self.target(whom, number)
        token = self.token(job_id, kind)

        expected = self.model_says(self.model.heartbeat, job_id, token, self.mono)
        self.both(expected, self.engine_says("JobHeartbeat", id=job_id, token=token))

    @rule(whom=targets, number=ids_of_jobs, kind=token_kinds)
    def park(self, whom: str, number: int, kind: str) -> None:
        job_id = self.target(whom, number)
        token = self.token(job_id, kind)

        expected = self.model_says(self.model.park, job_id, token, self.mono)
        self.both(expected, self.engine_says("MoveToWaitingChildren", id=job_id, token=token))

    @rule(number=ids_of_jobs)
    def cancel(self, number: int) -> None:
        job_id = self.pick(number)

        expected = self.model_says(self.model.cancel, job_id)
        self.both(expected, self.engine_says("Cancel", id=job_id))

    @rule(queue=queues)
    def drain(self, queue: str) -> None:
        expected = self.model_says(self.model.drain, queue)
        reply = self.engine_says("Drain", queue=queue)
        if self.both(expected, reply):
            assert reply.count == expected

    @precondition(lambda self: len(self.names) > 3)
    @rule(queue=queues)
    def obliterate(self, queue: str) -> None:
        if queue not in self.harness.engine.state.queues:
            return  # forgotten by the sweep: there is nothing to delete, and nothing to wait for
        expected = self.model_says(self.model.obliterate, queue)
        if self.both(expected, self.engine_says("Obliterate", queue=queue)):
            self.harness.send("SetStallConfig", queue=queue, config={"enabled": False})

    @rule(queue=queues, number=ids_of_jobs, cmd=st.sampled_from(["RetryCompleted", "RetryDlq"]))
    def retry(self, queue: str, number: int, cmd: str) -> None:
        job_id = self.pick(number)
        is_dlq = cmd == "RetryDlq"
        step = self.model.retry_dlq if is_dlq else self.model.retry_completed

        expected = self.model_says(step, queue, job_id, self.wall)
        reply = self.engine_says(cmd, queue=queue, **{"jobId" if is_dlq else "id": job_id})
        if self.both(expected, reply):
            assert reply.count == expected

    @rule(queue=queues, state=st.sampled_from(["waiting", "delayed", "prioritized", "failed"]), limit=st.integers(1, 3))
    def clean(self, queue: str, state: str, limit: int) -> None:
        live = self.harness.engine.state
        if state == "failed":
            oldest = list(live.queues[queue].letters)
        else:
            found = [i for i, shown in self.model.listed(queue, self.wall).items() if shown == state]
            oldest = sorted(found, key=lambda i: (live.jobs[i].record.created_at, i))

        expected = self.model_says(self.model.clean, queue, oldest[:limit])
        reply = self.engine_says("Clean", queue=queue, grace=0, state=state, limit=limit)
        if self.both(expected, reply):
            assert reply.ids == oldest[:limit]

    @precondition(lambda self: self.flight is None)
    @rule(queue=queues)
    def clean_completed(self, queue: str) -> None:
        expected = self.model_says(self.model.clean_completed, queue)
        reply = self.engine_reads("Clean", queue=queue, grace=0, state="completed")
        if self.both(expected, reply):
            assert set(reply.ids) == set(expected)

    @rule(queue=queues, paused=st.sampled_from([False, False, False, True]))
    def pause(self, queue: str, paused: bool) -> None:
        model = self.model
        in_flight = any(name == queue for name, _, _ in model.flying)
        staged = any(name == queue for name, _, _ in model.pending)
        expected: Any = Pending if in_flight and not staged else None

        if self.both(expected, self.engine_says("Pause" if paused else "Resume", queue=queue)):
            model.promise(lambda: model.paused.__setitem__(queue, paused), name=queue)

    # connections and time

    @rule()
    def disconnect(self) -> None:
        connection = max(self.model.connections)
        self.model.disconnect(connection)
        self.harness.disconnect(connection)
        self.connect()

    def connect(self) -> None:
        self.harness.connect(self.next_connection)
        self.model.connections.add(self.next_connection)
        self.next_connection += 1

    @rule(ms=st.sampled_from([1, 700, 2_000, 29_999, 32_000, 60_000]), success=st.booleans())
    def advance(self, ms: int, success: bool) -> None:
        self.settle(success=success)
        self.harness.advance(ms)
        self.model.expire(self.mono)

    @rule()
    def tick(self) -> None:
        self.harness.tick()

    # flushes

    @precondition(lambda self: self.flight is None)
    @rule()
    def take(self) -> None:
        self.flight = self.harness.take()
        self.model.take()

    @precondition(lambda self: self.flight is not None)
    @rule(success=st.sampled_from([True, True, False]))
    def end_flight(self, success: bool) -> None:
        flight, self.flight = self.flight, None
        assert flight is not None
        if success:
            self.land(flight)
            self.model.land()
        else:
            self.harness.crash(flight)
            self.model.crash()

    @precondition(lambda self: self.flight is not None)
    @rule()
    def withdraw(self) -> None:
        flight, self.flight = self.flight, None
        assert flight is not None
        self.harness.withdraw(flight)
        self.model.pending = self.model.flying + self.model.pending
        self.model.flying = []

    def land(self, flight: Flight) -> None:
        report = writes.apply_batch(self.connection, flight.batch, ":memory:")
        self.harness.land(flight, missing=report.missing, kept=report.kept)
        self.harness.engine.forgotten(report.forgotten)

    def settle(self, *, success: bool) -> None:
        """No change stays open."""
        if self.flight is not None:
            self.end_flight(success)
        for _ in range(2):  # a commit may make new rows dirty
            if self.harness.engine.state.changes:
                self.take()
                self.end_flight(success)
                success = True

    # restarts

    @precondition(lambda self: self.restarts < 3)
    @rule()
    def restart(self) -> None:
        """Everything is in the file, then the process is killed."""
        self.restarts += 1
        self.settle(success=True)
        self.harness.engine = self.compare_with_file()
        running = [job for job in self.model.live.values() if job.state == ACTIVE]
        self.model.restart()
        self.connect()
        for job in running:
            if job.state == QUEUED:
                job.run_at = self.harness.job(job.id).record.run_at
        self.land(self.harness.take())

    def compare_with_file(self) -> Any:
        """Load a second engine from the file: it equals the live one but for what recovery has to change."""
        live = self.harness.engine.state
        recovered = load_engine(
            self.connection,
            Ids(SECRET, random.Random(f"restart {self.restarts} {self.model.seq}")),
            self.harness.clock,
            lease_grace_ms=2_000,
        )
        recovered.check_invariants()
        state = recovered.state
        assert set(state.jobs) == set(live.jobs)
        assert state.next_seq > max((job.seq for job in live.jobs.values()), default=0)
        for job in live.jobs.values():
            compare_job(job, state.jobs[job.record.id])
        for name, queue in live.queues.items():
            if queue.is_idle:
                continue
            other = state.queues[name]
            assert (other.settings, other.completed_count) == (queue.settings, queue.completed_count)
            survivors = {k: j for k, j in queue.keys.items() if state.jobs[j.record.id].state is not JobState.FAILED}
            for key, job in survivors.items():
                assert other.keys[key].record.id == job.record.id
        return recovered

    # what must hold between any two steps

    @invariant()
    def lists_agree(self) -> None:
        if not hasattr(self, "harness"):
            return
        for queue in QUEUES:
            expected = self.model.listed(queue, self.wall)
            for job_id in expected:
                job = self.harness.engine.state.jobs.get(job_id)
                if job is not None and job.state is JobState.STAGED and job.staged.held_kind == JobState.DELAYED:
                    expected[job_id] = "delayed"  # a list shows it as it was when it was held, for that moment
            if self.flight is None:
                jobs = self.engine_reads("GetJobs", queue=queue, limit=-1).jobs
            else:
                jobs = self.harness.send("GetJobs", queue=queue, state=LIVE_STATES, limit=-1).jobs
                expected = {i: shown for i, shown in expected.items() if shown != "completed"}
            assert {job.id: job.state for job in jobs} == expected
            assert [(job.created_at, job.id) for job in jobs] == sorted((job.created_at, job.id) for job in jobs)
            for state in set(expected.values()) - {"completed"}:
                one = self.harness.send("GetJobs", queue=queue, state=state, limit=-1).jobs
                if not (self.model.paused.get(queue) and state in ("waiting", "prioritized")):
                    assert {job.id for job in one} == {i for i, shown in expected.items() if shown == state}
        self.harness.engine.clear_facts()

    @invariant()
    def what_is_seen_agrees(self) -> None:
        if not hasattr(self, "harness"):
            return
        # Completed jobs of which only the file knows are counted out when it reports their rebirth.
        reborn = list(self.harness.engine.state.changes.reborn)
        reborn += [] if self.flight is None else self.flight.changes.reborn
        for queue in QUEUES:
            seen, expected = self.harness.counts(queue), self.model.counts(queue, self.wall)
            completed, known = seen.pop("completed", 0), expected.pop("completed", 0)
            assert seen == expected
            assert known <= completed <= known + len(reborn)
        for job_id in self.names:
            shown = self.engine_says("GetState", id=job_id).state
            if shown == "completed" and job_id in reborn:
                continue  # it has lived and gone again since, but the file does not know yet
            assert shown == self.model.shown(job_id, self.wall), job_id
        self.harness.engine.clear_facts()
        for job_id, job in self.model.live.items():
            record = self.harness.job(job_id).record
            if job.state == FAILED:
                record = self.harness.engine.state.queues[job.queue].letters[job_id].job
            assert (record.attempts, record.stall_count, record.name) == (job.attempts, job.stalls, job.name), job_id


def compare_job(live: Job, recovered: Job) -> None:
    """A job before and after a restart."""
    assert recovered.record.id == live.record.id
    if live.state is JobState.FAILED:
        assert recovered.state is JobState.FAILED
        assert comparable(recovered.record) == comparable(live.record)
        return
    if live.state is JobState.ACTIVE:
        assert recovered.record.attempts == live.record.attempts + 1
        assert recovered.record.stall_count == live.record.stall_count + 1
        assert recovered.state in (JobState.READY, JobState.DELAYED, JobState.FAILED)
        changed = ("attempts", "stall_count", "started_at", "run_at", "last_heartbeat")
        same = {name: getattr(live.record, name) for name in changed}
        assert comparable(msgspec.structs.replace(recovered.record, **same)) == comparable(live.record)
        return
    assert (recovered.state, recovered.seq) == (live.state, live.seq)
    assert recovered.key_expires_at == live.key_expires_at
    assert (recovered.missing or set()) == (live.missing or set())
    assert comparable(recovered.record) == comparable(live.record)


def comparable(record: JobRecord) -> dict[str, Any]:
    """All that a client sees; without the entry that announces a retry, which the next write brings into the file."""
    fields = msgspec.to_builtins(msgspec.structs.replace(record, data=bytes(record.data)))
    last = fields["timeline"][-1]
    if last["state"] == "waiting" and "attempt" in last:
        fields["timeline"] = fields["timeline"][:-1]
    return fields


EngineMachine.TestCase.settings = settings(
    max_examples=int(os.environ.get("BUNQUEUE_STATEFUL_EXAMPLES", "300")),
    stateful_step_count=int(os.environ.get("BUNQUEUE_STATEFUL_STEPS", "40")),
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize="BUNQUEUE_STATEFUL_EXAMPLES" not in os.environ,
    database=None,
    phases=[Phase.generate] if "BUNQUEUE_NO_SHRINK" in os.environ else list(Phase),
)
TestEngine = EngineMachine.TestCase
