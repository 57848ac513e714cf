"""Unique keys and custom ids against a small model: who answers for a push, and what every way out gives back.

``BUNQUEUE_STATEFUL_EXAMPLES`` and ``BUNQUEUE_STATEFUL_STEPS`` make the search larger, and different in every run.

Every change is committed, or refused by the file, before the next; so the model is a table of keys and a dozen rules.
Which of the expired jobs a pull meets is left to the engine: the model looks where they went.
"""

import copy
import os
import random
from dataclasses import dataclass
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from bunqueue_trio.engine.state import FactsNeededError
from bunqueue_trio.errors import CommandError
from bunqueue_trio.ids import Ids
from bunqueue_trio.server.startup import load_engine
from bunqueue_trio.storage import reads, writes
from bunqueue_trio.storage.connection import open_writer
from tests.engine_harness import SECRET, EngineHarness

QUEUES = ("q", "r")
BLOCKER = "blocker"  # what parked jobs wait for; never runs
QUEUED, PARKED, ACTIVE, FAILED, DONE, GONE = "queued", "parked", "active", "failed", "completed", "unknown"
LIVE = (QUEUED, PARKED, ACTIVE)
SHOWN = {"waiting": QUEUED, "delayed": QUEUED, "waiting-children": PARKED}
NEVER = float("inf")
LOCK_MS, LONG_LOCK_MS = 60_000, 3_600_000
MAX_STALLS = 3

# Few alternatives, and those that matter often: a model of rare events finds nothing.
queues = st.sampled_from(["q", "q", "q", "q", "r"])
numbers = st.integers(0, 30)
successes = st.sampled_from([True, True, False])
dedups = st.sampled_from(
    [
        {},
        {"ttl": 0},
        {"ttl": 1_000},
        {"ttl": 300_000},
        {"extend": True},
        {"extend": True, "ttl": 1_000},
        {"extend": True, "ttl": 300_000},
        {"replace": True},
        {"replace": True, "ttl": 1_000},
        {"replace": True, "extend": True, "ttl": 300_000},
    ]
)
kinds = st.sampled_from(
    [
        {},
        {},
        {},
        {"maxAttempts": 1},
        {"removeOnComplete": True},
        {"removeOnFail": True, "maxAttempts": 1},
        {"delay": 50_000},
        {"dependsOn": [BLOCKER]},
        {"ttl": 1_500},
        {"debounceId": "k", "debounceTtl": 10_000},
        {"uniqueKey": None},
    ]
)


def given_by(key: str | None, custom: str | None, dedup: dict[str, Any], kind: dict[str, Any], durable: bool) -> Any:
    more: dict[str, Any] = {"durable": True} if durable else {}
    return {"uniqueKey": key, "custom": custom, "dedup": dedup, **kind, **more}


pushes = st.builds(
    given_by,
    st.sampled_from(["k", "k", "k", "l"]),
    st.sampled_from([None, None, None, "c", "d"]),
    dedups,
    kinds,
    st.booleans(),
)


@dataclass(eq=False)
class MJob:
    id: str
    queue: str
    key: str | None = None
    until: float = NEVER
    max_attempts: int = 3
    remove_on_complete: bool = False
    remove_on_fail: bool = False
    dies: float = NEVER
    state: str = QUEUED
    attempts: int = 0
    stalls: int = 0


class Model:
    """Jobs by id, of any state, and the holders of keys."""

    def __init__(self) -> None:
        self.jobs: dict[str, MJob] = {}
        self.keys: dict[tuple[str, str], MJob] = {}
        self.lives_before: dict[str, MJob] = {}
        """Of the ids that a durable batch at hand brings to life: one that it replaces again never was."""

    def holder(self, queue: str, key: str | None, now: float) -> MJob | None:
        held = self.keys.get((queue, key or ""))
        return None if held is None or now >= held.until else held

    def answer(self, queue: str, given: dict[str, Any], now: float, *, in_batch: bool) -> tuple[MJob | None, str]:
        """Who stands for the push, or None for itself, and the outcome; ``refused`` when the client is told no."""
        known = self.jobs.get(given["custom"])
        if known is not None and known.state in LIVE:
            return known, "existing"
        dedup = given.get("dedup", {})
        holder = self.holder(queue, given["uniqueKey"], now)
        if holder is None:
            return None, "created"
        if dedup.get("replace"):
            if holder.state == QUEUED:
                self.end(holder, GONE)
                before = self.lives_before.pop(holder.id, None)
                if before is not None:
                    self.jobs[holder.id] = before
            return None, "replaced"
        if dedup.get("extend") and dedup.get("ttl"):
            holder.until = now + dedup["ttl"]
            if holder.state != QUEUED and not in_batch:
                return holder, "refused"
        return holder, "existing"

    def admit(self, queue: str, job_id: str, given: dict[str, Any], now: float) -> None:
        ttl = given.get("dedup", {}).get("ttl")
        job = MJob(
            job_id,
            queue,
            given["uniqueKey"],
            NEVER if ttl is None else now + ttl,
            given.get("maxAttempts", 3),
            given.get("removeOnComplete", False),
            given.get("removeOnFail", False),
            now + given.get("ttl", NEVER),
            PARKED if "dependsOn" in given else QUEUED,
        )
        self.jobs[job_id] = job
        if job.key:
            self.keys[(queue, job.key)] = job

    def end(self, job: MJob, state: str) -> None:
        """The job is over, so it gives back its key, unless another holds that by now."""
        job.state = state
        if job.key and self.keys.get((job.queue, job.key)) is job:
            del self.keys[(job.queue, job.key)]

    def lose(self, job: MJob) -> None:
        job.attempts += 1
        job.stalls += 1
        if job.attempts >= job.max_attempts or job.stalls >= MAX_STALLS:
            self.end(job, FAILED)
        else:
            job.state = QUEUED

    def comes_back(self, job: MJob, now: float) -> bool:
        """A dead letter or a completed job starts over, unless its key has gone to another (CD-13)."""
        holder = self.holder(job.queue, job.key, now)
        if holder is not None and holder is not job:
            return False
        job.state, job.attempts, job.stalls, job.until = QUEUED, 0, 0, NEVER
        if job.key:
            self.keys[(job.queue, job.key)] = job
        return True


class DedupMachine(RuleBasedStateMachine):
    """Every rule does the same to both and compares what came of it."""

    @initialize()
    def start(self) -> None:
        self.harness = EngineHarness(auto_commit=False)
        self.connection = open_writer(":memory:")
        self.model = Model()
        self.tokens: dict[str, str | None] = {}
        self.restarts = 0
        self.harness.push("b", jobId=BLOCKER, delay=31_000_000_000)
        self.flush()

    def teardown(self) -> None:
        if hasattr(self, "connection"):
            self.connection.close()

    @property
    def wall(self) -> float:
        return self.harness.now.wall_ms

    def flush(self, *, success: bool = True) -> None:
        while self.harness.engine.state.changes:
            flight = self.harness.take()
            if success:
                report = writes.apply_batch(self.connection, flight.batch, ":memory:")
                self.harness.land(flight, missing=report.missing, kept=report.kept)
                self.harness.engine.forgotten(report.forgotten)
            else:
                self.harness.crash(flight)
                success = True

    def ask(self, cmd: str, **fields: Any) -> Any:
        """The reply; None when it was refused."""
        for _ in range(3):
            try:
                reply = self.harness.send(cmd, **fields)
            except FactsNeededError as needed:
                found = {job_id: reads.find_completed(self.connection, job_id) for job_id in needed.ids}
                self.harness.engine.find_facts(found)
            except CommandError:
                return None
            else:
                self.harness.engine.clear_facts()
                return reply
        raise AssertionError("the engine asks for the same facts again")

    def pick(self, number: int, *states: str) -> MJob | None:
        found = [job for job in self.model.jobs.values() if job.state in states]
        return found[number % len(found)] if found else None

    # pushes

    @rule(queue=queues, given=pushes, success=successes)
    def push(self, queue: str, given: dict[str, Any], success: bool) -> None:
        before = copy.deepcopy(self.model)
        stands, outcome = self.model.answer(queue, given, self.wall, in_batch=False)
        fields = {**{k: v for k, v in given.items() if k != "custom"}, "jobId": given["custom"]}
        reply = self.ask("PUSH", queue=queue, data={}, receipt=True, **fields)

        assert (reply is None) == (outcome == "refused")
        if reply is not None:
            self.compare(queue, given, (stands, outcome), (reply.id, reply.outcome))
            assert reply.durability == ("committed" if "durable" in given else "buffered")
        success = success or "durable" not in given or stands is not None
        if not success:
            self.model = before  # nothing of a durable push may remain
        self.flush(success=success)

    @rule(queue=queues, several=st.lists(pushes, min_size=2, max_size=4), success=successes)
    def push_batch(self, queue: str, several: list[dict[str, Any]], success: bool) -> None:
        before = copy.deepcopy(self.model)
        jobs = [{**{k: v for k, v in given.items() if k != "custom"}, "customId": given["custom"]} for given in several]
        reply = self.ask("PUSHB", queue=queue, jobs=[{"data": {}, **job} for job in jobs], receipt=True)

        is_durable = any("durable" in given for given in several)
        for given, job_id, outcome in zip(several, reply.ids, reply.outcomes, strict=True):
            if is_durable:
                before_it = self.model.jobs.get(job_id)
                if before_it is not None and before_it.state in (FAILED, DONE):
                    self.model.lives_before.setdefault(job_id, before_it)
            expected = self.model.answer(queue, given, self.wall, in_batch=True)
            self.compare(queue, given, expected, (job_id, outcome))
        self.model.lives_before = {}
        extends = any(given.get("dedup", {}).get("extend") for given in several)  # that stays, come what may
        if not success and is_durable and not extends:
            self.model = before
            self.flush(success=False)
        else:
            self.flush()

    def compare(
        self, queue: str, given: dict[str, Any], expected: tuple[MJob | None, str], got: tuple[str, str]
    ) -> None:
        stands, outcome = expected
        assert got[1] == outcome
        if stands is not None:
            assert got[0] == stands.id
            return
        assert given["custom"] in (None, got[0])
        assert given["custom"] is not None or got[0] not in self.model.jobs
        self.model.admit(queue, got[0], given, self.wall)

    # ways out, and back

    @rule(queue=queues, long=st.booleans(), count=st.integers(1, 2))
    def pull(self, queue: str, long: bool, count: int) -> None:
        for _ in range(count):
            self.pull_one(queue, long)

    def pull_one(self, queue: str, long: bool) -> None:
        pulled = self.harness.pull(queue, lockTtl=LONG_LOCK_MS if long else LOCK_MS)
        for job in list(self.model.jobs.values()):
            if job.state == QUEUED and job.queue == queue and self.wall > job.dies:
                assert pulled is None or job.id != pulled[0]
                if self.ask("GetState", id=job.id).state == GONE:
                    self.model.end(job, GONE)
        if pulled is not None:
            self.model.jobs[pulled[0]].state = ACTIVE
            self.tokens[pulled[0]] = pulled[1]
        self.flush()

    @rule(queue=queues, how=st.sampled_from(["ack", "fail", "final"]), success=successes)
    def work(self, queue: str, how: str, success: bool) -> None:
        """What a worker does all day."""
        self.pull_one(queue, long=False)
        self.finish_one(-1, how, success)

    @rule(number=numbers, how=st.sampled_from(["ack", "ackb", "fail", "final"]), success=successes)
    def finish(self, number: int, how: str, success: bool) -> None:
        self.finish_one(number, how, success)

    def finish_one(self, number: int, how: str, success: bool) -> None:
        job = self.pick(number, ACTIVE)
        if job is None:
            return
        token = self.tokens[job.id]
        if how == "ack":
            self.ask("ACK", id=job.id, token=token)
        elif how == "ackb":
            self.ask("ACKB", ids=[job.id], tokens=[token])
        else:
            self.ask("FAIL", id=job.id, token=token, unrecoverable=how == "final")
        self.flush(success=success)
        if not success:
            return
        if how in ("ack", "ackb"):
            self.model.end(job, GONE if job.remove_on_complete else DONE)
            return
        job.attempts += 1
        if job.attempts >= job.max_attempts or how == "final":
            self.model.end(job, GONE if job.remove_on_fail else FAILED)
        else:
            job.state = QUEUED  # P-14: a job that will be retried keeps its key

    @rule(number=numbers, cmd=st.sampled_from(["Cancel", "Discard"]), success=successes)
    def withdraw(self, number: int, cmd: str, success: bool) -> None:
        job = self.pick(number, *LIVE)
        if job is None:
            return
        reply = self.ask(cmd, id=job.id)
        assert (reply is not None) == (job.state in ((QUEUED, PARKED) if cmd == "Cancel" else (QUEUED, ACTIVE)))
        self.flush(success=success)
        if reply is not None and success:
            self.model.end(job, GONE if cmd == "Cancel" else FAILED)

    @rule(queue=queues, key=st.sampled_from(["k", "k", "l"]), number=numbers, by_job=st.booleans(), success=successes)
    def free_key(self, queue: str, key: str, number: int, by_job: bool, success: bool) -> None:
        """A key is taken away, from whoever holds it or from one job: that one lives on without it."""
        job = self.pick(number, *LIVE, FAILED) if by_job else None
        if job is not None:
            queue, key = job.queue, job.key or ""
        holder = self.model.holder(queue, key, self.wall)
        shown = self.ask("GetDeduplicationJobId", queue=queue, deduplicationId=key).data["jobId"]
        assert shown == (None if holder is None else holder.id)
        if job is None:
            reply = self.ask("RemoveDeduplicationKey", queue=queue, deduplicationId=key)
            assert reply.data == {"count": int(holder is not None)}
        else:
            reply = self.ask("RemoveJobDeduplicationKey", id=job.id)
            assert reply.data == {"removed": holder is job}
        self.flush(success=success)
        if success and holder is not None and job in (None, holder):
            del self.model.keys[(queue, key)]

    @rule(number=numbers, cmd=st.sampled_from(["MoveToWait", "MoveToDelayed"]), success=successes)
    def move(self, number: int, cmd: str, success: bool) -> None:
        job = self.pick(number, ACTIVE)
        if job is None:
            return
        self.ask(cmd, id=job.id, **({"delay": 100} if cmd == "MoveToDelayed" else {}))
        self.flush(success=success)
        if success:
            job.state = QUEUED

    @rule(
        queue=queues,
        cmd=st.sampled_from(["Drain", "Clean", "CleanFailed", "PurgeDlq", "Obliterate"]),
        success=successes,
        seldom=st.integers(0, 3),
    )
    def empty(self, queue: str, cmd: str, success: bool, seldom: int) -> None:
        if seldom:
            return
        if cmd == "CleanFailed":
            self.ask("Clean", queue=queue, grace=0, state="failed")
        else:
            self.ask(cmd, queue=queue, **({"grace": 0} if cmd == "Clean" else {}))
        self.flush(success=success)
        going = {"Drain": (QUEUED,), "Clean": (QUEUED,), "Obliterate": (*LIVE, FAILED, DONE)}.get(cmd, (FAILED,))
        for job in self.model.jobs.values():
            if success and job.queue == queue and job.state in going:
                self.model.end(job, GONE)

    @rule(number=numbers, success=successes)
    def retry(self, number: int, success: bool) -> None:
        job = self.pick(number, FAILED) or self.pick(number, DONE)
        if job is None:
            return
        before = copy.deepcopy(self.model)
        if job.state == FAILED:
            reply = self.ask("RetryDlq", queue=job.queue, jobId=job.id)
        else:
            reply = self.ask("RetryCompleted", queue=job.queue, id=job.id)
        assert reply.count == int(self.model.comes_back(job, self.wall))
        if not success:
            self.model = before
        self.flush(success=success)

    # losses

    @rule(ms=st.sampled_from([1, 600, 600, 200_000]))
    def advance(self, ms: int) -> None:
        """The longest lets every lock end and every worker fall silent."""
        self.harness.advance(ms)
        self.flush()
        if ms == 200_000:
            for job in [job for job in self.model.jobs.values() if job.state == ACTIVE]:
                self.model.lose(job)

    @rule()
    def disconnect(self) -> None:
        self.harness.disconnect(1)
        self.harness.connect(1)
        self.flush()
        for job in [job for job in self.model.jobs.values() if job.state == ACTIVE]:
            self.model.lose(job)

    @rule()
    def restart(self) -> None:
        self.restarts += 1
        ids = Ids(SECRET, random.Random(f"restart {self.restarts}"))
        self.harness.engine = load_engine(self.connection, ids, self.harness.clock, lease_grace_ms=2_000)
        self.harness.connect(1)
        self.flush()
        for job in [job for job in self.model.jobs.values() if job.state == ACTIVE]:
            self.model.lose(job)

    # what must hold

    @invariant()
    def they_agree(self) -> None:
        if not hasattr(self, "harness"):
            return
        state = self.harness.engine.state
        for job in self.model.jobs.values():
            shown = self.ask("GetState", id=job.id).state
            assert SHOWN.get(shown, shown) == job.state, job
        held = {
            (name, key): job.record.id
            for name, queue in state.queues.items()
            for key, job in queue.keys.items()
            if job.key_expires_at is None or self.wall < job.key_expires_at
        }
        assert held == {place: job.id for place, job in self.model.keys.items() if self.wall < job.until}


DedupMachine.TestCase.settings = settings(
    max_examples=int(os.environ.get("BUNQUEUE_STATEFUL_EXAMPLES", "100")),
    stateful_step_count=int(os.environ.get("BUNQUEUE_STATEFUL_STEPS", "40")),
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize="BUNQUEUE_STATEFUL_EXAMPLES" not in os.environ,
    database=None,
)
TestDeduplication = DedupMachine.TestCase
