"""Families of jobs against a small model: linked, failed, completed, let go, refused by the file and recovered.

``BUNQUEUE_STATEFUL_EXAMPLES`` and ``BUNQUEUE_STATEFUL_STEPS`` make the search larger, and different in every run.

The model knows two kinds of jobs: children, and parents that wait for some of them; running ones of both kinds may park
themselves. After every step each parent is where the model says; after every restart too.
"""

import os
import random
from dataclasses import dataclass, field
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
from tests.flows import CONTINUE, FAIL_PARENT, IGNORE, POLICIES, REMOVE

CHILDREN, PARENTS = "c", "p"
numbers = st.integers(0, 30)
policies = st.lists(st.sampled_from(POLICIES), max_size=2, unique=True)


def queue_of(job_id: str) -> str:
    return CHILDREN if job_id.startswith("k") else PARENTS


def flow_entry(job: "MJob") -> dict[str, Any]:
    """The job in a PUSHF."""
    data: dict[str, Any] = {"__childrenIds": job.children} if job.children else {}
    options = {"dependsOn": job.depends_on, "childrenIds": job.children, **dict.fromkeys(job.policies, True)}
    if job.id.startswith("k"):
        options["maxAttempts"] = 1
    if job.parent is not None:
        options["parentId"] = job.parent
        data |= {"__parentId": job.parent, "__parentQueue": queue_of(job.parent)}
    return {"id": job.id, "queue": queue_of(job.id), "input": {"name": "n", "data": data, **options}}


@dataclass(eq=False)
class MJob:
    id: str
    policies: list[str]
    parent: "str | None" = None
    waits_for: set[str] = field(default_factory=set)
    depends_on: list[str] = field(default_factory=list)
    children: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    ignored: dict[str, str] = field(default_factory=dict)
    state: str = "waiting"


class FlowMachine(RuleBasedStateMachine):
    """Every change is committed, or refused by the file, before the next."""

    @initialize()
    def start(self) -> None:
        self.harness = EngineHarness(auto_commit=False)
        self.connection = open_writer(":memory:")
        self.jobs: dict[str, MJob] = {}
        self.leases: dict[str, str | None] = {}

    def teardown(self) -> None:
        if hasattr(self, "connection"):
            self.connection.close()

    def pick(self, number: int, kind: str) -> MJob | None:
        found = [job for job in self.jobs.values() if job.id.startswith(kind)]
        return found[number % len(found)] if found else None

    def flush(self, *, success: bool = True) -> None:
        while self.harness.engine.state.changes:
            flight = self.harness.take()
            if success:
                report = writes.apply_batch(self.connection, flight.batch, ":memory:")
                self.harness.land(flight)
                self.harness.engine.forgotten(report.forgotten)
            else:
                self.harness.crash(flight)
                success = True

    def ask(self, cmd: str, **fields: Any) -> Any:
        """The reply, committed; None when it was refused."""
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

    # the model's rules

    def end(self, job: MJob, error: str) -> None:
        """*job* has failed for good."""
        job.state = "failed"
        self.leases.pop(job.id, None)
        self.failure_of(job, error, set())

    def failure_of(self, job: MJob, error: str, met: set[str]) -> None:
        parent = self.jobs.get(job.parent or "")
        met.add(job.id)
        if parent is None or parent.id in met or parent.state not in ("waiting", "waiting-children"):
            return
        key = f"{CHILDREN if job.id.startswith('k') else PARENTS}:{job.id}"
        if FAIL_PARENT in job.policies:
            parent.state, parent.failed, parent.ignored, parent.waits_for = "failed", {}, {}, set()
            self.failure_of(parent, f"Child job {job.id} failed: {error}", met)
        elif CONTINUE in job.policies:
            parent.failed[key] = error
            parent.waits_for, parent.state = set(), "waiting"
        elif IGNORE in job.policies or REMOVE in job.policies:
            if IGNORE in job.policies:
                parent.ignored[key] = error
            self.let_go(job.id, parent)

    def let_go(self, child_id: str, parent: MJob) -> None:
        if child_id in parent.depends_on:
            parent.depends_on.remove(child_id)
        self.met(child_id, parent)

    def met(self, child_id: str, parent: MJob) -> None:
        """A parent that waits for nobody waits for its first child."""
        if child_id in parent.waits_for:
            parent.waits_for.discard(child_id)
            if parent.state == "waiting-children" and not parent.waits_for:
                parent.state = "waiting"

    def complete(self, job: MJob) -> None:
        job.state = "completed"
        job.failed, job.ignored = {}, {}
        self.leases.pop(job.id, None)
        for parent in self.jobs.values():
            self.met(job.id, parent)

    # what clients do

    @rule(flags=policies, durable=st.booleans())
    def push_child(self, flags: list[str], durable: bool) -> None:
        job = MJob(f"k{len(self.jobs)}", flags)
        fields = dict.fromkeys(flags, True)
        self.ask("PUSH", queue=CHILDREN, data={}, jobId=job.id, maxAttempts=1, durable=durable, **fields)
        self.jobs[job.id] = job
        self.flush()

    @rule(flags=policies, which=st.lists(numbers, max_size=3), above=st.none() | numbers, kinds=st.sampled_from("kkkp"))
    def push_parent(self, flags: list[str], which: list[int], above: int | None, kinds: str) -> None:
        picked = [job for number in which if (job := self.pick(number, kinds)) is not None]
        needs = list(dict.fromkeys(job.id for job in picked if job.state != "gone"))
        upper = None if above is None else self.pick(above, "p")
        job = MJob(f"p{len(self.jobs)}", flags, parent=None if upper is None else upper.id)
        fields = {**dict.fromkeys(flags, True), "parentId": job.parent, "dependsOn": needs, "childrenIds": needs}
        self.ask("PUSH", queue=PARENTS, data={}, jobId=job.id, **fields)
        job.depends_on, job.children = list(needs), list(needs)
        job.waits_for = {need for need in needs if self.jobs[need].state != "completed"}
        job.state = "waiting-children" if job.waits_for else "waiting"
        self.jobs[job.id] = job
        self.flush()

    @rule(
        flags=st.lists(st.none() | st.sampled_from(POLICIES), min_size=3, max_size=3),
        taken=st.none() | numbers,
        order=st.permutations(range(4)),
        success=st.sampled_from([True, True, False]),
    )
    def push_flow(self, flags: list[str | None], taken: int | None, order: list[int], success: bool) -> None:
        """Two children of a parent, the second after the first, and its parent; perhaps under an id that is taken."""
        known = None if taken is None else self.pick(taken, "k")
        count = len(self.jobs)
        first, second, middle, top = f"k{count}a", f"k{count}b", f"p{count}a", f"p{count}b"
        if known is not None:
            first = known.id
        shape = [
            (first, middle, [], []),
            (second, middle, [first], []),
            (middle, top, [first, second], [first, second]),
        ]
        jobs = [MJob(name, [], above, set(needs), list(needs), kids) for name, above, needs, kids in shape]
        jobs.append(MJob(top, [], None, {middle}, [middle], [middle]))
        for job, flag in zip(jobs, flags, strict=False):
            job.policies = [] if flag is None else [flag]
        reply = self.ask("PUSHF", jobs=[flow_entry(jobs[n]) for n in order])
        assert (reply is None) == (known is not None and known.state != "gone")
        self.flush(success=success)
        if reply is not None and success:
            for job in (jobs[n] for n in order):
                job.state = "waiting-children" if job.waits_for else "waiting"
                self.jobs[job.id] = job

    @rule(flags=policies, parent=numbers, kind=st.sampled_from("pppk"), success=st.sampled_from([True, True, False]))
    def adopt(self, flags: list[str], parent: int, kind: str, success: bool) -> None:
        """A child of a parent that is there already."""
        other = self.pick(parent, kind)
        if other is None:
            return
        job = MJob(f"k{len(self.jobs)}", flags, parent=other.id)
        data = {"__parentId": other.id, "__parentQueue": queue_of(other.id)}
        fields = {"parentId": other.id, "maxAttempts": 1, **dict.fromkeys(flags, True)}
        reply = self.ask("PUSH", queue=CHILDREN, name="n", data=data, jobId=job.id, **fields)
        assert (reply is not None) == (other.state in ("waiting", "waiting-children"))
        self.flush(success=success)
        if reply is not None and success:
            self.jobs[job.id] = job
            other.children.append(job.id)
            other.depends_on.append(job.id)
            other.waits_for.add(job.id)
            other.state = "waiting-children"

    @rule(child=numbers, parent=numbers, kind=st.sampled_from("kkkp"), success=st.sampled_from([True, True, False]))
    def link(self, child: int, parent: int, kind: str, success: bool) -> None:
        one, other = self.pick(child, kind), self.pick(parent, "p")
        if one is None or other is None or "gone" in (one.state, other.state):
            return
        reply = self.ask("UpdateParent", childId=one.id, parentId=other.id)
        assert (reply is None) == (one is other)
        self.flush(success=success)
        if reply is None or not success:
            return
        one.parent = other.id
        if one.id not in other.children:
            other.children.append(one.id)
        if one.state == "failed":
            self.failure_of(one, "Child job failed", set())

    @rule(queue=st.sampled_from([CHILDREN, CHILDREN, PARENTS]))
    def pull(self, queue: str) -> None:
        pulled = self.harness.pull(queue, lockTtl=600_000)
        if pulled is not None:
            self.jobs[pulled[0]].state = "active"
            self.leases[pulled[0]] = pulled[1]
        self.flush()

    @rule(number=numbers, how=st.sampled_from(["ack", "fail", "fail", "lost"]), success=st.sampled_from([True, False]))
    def finish(self, number: int, how: str, success: bool) -> None:
        if not self.leases:
            return
        job_id = list(self.leases)[number % len(self.leases)]
        job, token = self.jobs[job_id], self.leases[job_id]
        if how == "lost":
            self.lose_connection()
            return
        if how == "ack":
            self.ask("ACK", id=job_id, token=token, result=1)
        else:
            self.ask("FAIL", id=job_id, token=token, error="e", unrecoverable=True)
        self.flush(success=success)
        if success and how == "ack":
            self.complete(job)
        elif success:
            self.end(job, "e")

    def lose_connection(self) -> None:
        """Children die of it; parents, which have attempts left, come back."""
        lost = [self.jobs[job_id] for job_id in self.leases]
        self.harness.disconnect(1)
        self.harness.connect(1)
        self.flush()
        for job in lost:
            # In the order in which they were pulled: a parent that is back already may hear of a child that dies next.
            if self.harness.state(job.id) == "failed" and job.id.startswith("k"):
                self.end(job, "Connection lost while the job was active")
            else:
                job.state = "waiting"
                self.leases.pop(job.id)

    @rule(number=numbers, success=st.sampled_from([True, True, False]))
    def park(self, number: int, success: bool) -> None:
        if not self.leases:
            return
        job = self.jobs[list(self.leases)[number % len(self.leases)]]
        assert self.ask("MoveToWaitingChildren", id=job.id, token=self.leases[job.id]) is not None
        self.flush(success=success)
        if success:
            del self.leases[job.id]
            open_states = ("waiting", "waiting-children", "active")
            job.waits_for = {need for need in job.depends_on if self.jobs[need].state in open_states}
            job.state = "waiting-children"

    @rule(number=numbers, kind=st.sampled_from("kkp"), success=st.sampled_from([True, True, False]))
    def discard(self, number: int, kind: str, success: bool) -> None:
        job = self.pick(number, kind)
        if job is None:
            return
        reply = self.ask("Discard", id=job.id)
        assert (reply is not None) == (job.state in ("waiting", "active"))
        self.flush(success=success)
        if reply is not None and success:
            job.failed, job.ignored = {}, {}
            self.end(job, "unknown error")

    @rule(number=numbers, kind=st.sampled_from("kkp"))
    def cancel(self, number: int, kind: str) -> None:
        job = self.pick(number, kind)
        if job is not None and self.ask("Cancel", id=job.id) is not None:
            assert job.state in ("waiting", "waiting-children")
            job.state = "gone"
        self.flush()

    @rule(number=numbers, kind=st.sampled_from("kkp"), success=st.sampled_from([True, True, False]))
    def remove_dependency(self, number: int, kind: str, success: bool) -> None:
        job = self.pick(number, kind)
        if job is None:
            return
        reply = self.ask("RemoveChildDependency", id=job.id)
        self.flush(success=success)
        if reply is None or not success:
            return
        waiting = ("waiting", "waiting-children")
        if job.state == "gone":
            parents = [one for one in self.jobs.values() if job.id in one.depends_on]
        else:
            parents = [one for one in self.jobs.values() if one.id == job.parent]
        assert reply.removed == any(one.state in waiting for one in parents)
        for parent in parents:
            if parent.state in waiting:
                self.let_go(job.id, parent)

    @rule(number=numbers, success=st.sampled_from([True, False]))
    def remove_unprocessed(self, number: int, success: bool) -> None:
        job = self.pick(number, "p")
        if job is None:
            return
        self.ask("RemoveUnprocessedChildren", id=job.id)
        self.flush(success=success)
        if success and job.state != "gone":
            for child in map(self.jobs.get, job.children):
                if child is not None and child is not job and child.state in ("waiting", "waiting-children"):
                    child.state = "gone"

    @rule()
    def restart(self) -> None:
        """Every leased child has used its only attempt; the file says the same about all others."""
        self.flush()
        ids = Ids(SECRET, random.Random(len(self.jobs)))
        self.harness.engine = load_engine(self.connection, ids, self.harness.clock, lease_grace_ms=2_000)
        self.harness.connect(1)
        children = [self.jobs[job_id] for job_id in self.leases if job_id.startswith("k")]
        for job_id in self.leases:
            if job_id.startswith("p"):
                self.jobs[job_id].state = "waiting"
        for job in children:
            job.state = "failed"
        for job in children:
            self.end(job, "Job reached max attempts (1) during startup recovery")
        self.leases.clear()
        self.flush()
        self.harness.advance(5_000)
        self.flush()

    # what must hold

    @invariant()
    def they_agree(self) -> None:
        if not hasattr(self, "harness"):
            return
        self.harness.engine.check_invariants()
        for job in self.jobs.values():
            shown = self.ask("GetState", id=job.id).state
            expected = "unknown" if job.state == "gone" else job.state
            assert shown.replace("delayed", "waiting") == expected, job
            if job.id.startswith("p") and job.state not in ("gone", "failed", "completed"):
                record = self.harness.job(job.id).record
                assert list(record.depends_on) == job.depends_on
                assert list(record.children_ids) == job.children
                assert self.ask("GetFailedChildrenValues", id=job.id).values == job.failed
                assert self.ask("GetIgnoredChildrenFailures", id=job.id).values == job.ignored


FlowMachine.TestCase.settings = settings(
    max_examples=int(os.environ.get("BUNQUEUE_STATEFUL_EXAMPLES", "60")),
    stateful_step_count=int(os.environ.get("BUNQUEUE_STATEFUL_STEPS", "40")),
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize="BUNQUEUE_STATEFUL_EXAMPLES" not in os.environ,
    database=None,
)
TestFlows = FlowMachine.TestCase
