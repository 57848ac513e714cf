"""Named groups against a naive model: whose turn it is, what holds a group up, who is woken, over restarts.

The model walks through lists. Pulls that found nothing stay parked and are tried again whenever the engine wakes their
queue, as the server does; one that could be served and is not woken is a failure.
"""

import os
from dataclasses import dataclass, field
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from bunqueue_trio.errors import CommandError
from tests.stored_engine import Stored

GROUPS = ("a", "b")
KINDS: list[dict[str, Any] | None] = [
    None,
    {},
    {"concurrency": 1},
    {"concurrency": 2},
    {"limit": {"max": 1, "duration": 500}},
    {"limit": {"max": 2, "duration": 2_000}},
    {"concurrency": 1, "limit": {"max": 2, "duration": 500}},
    {"affinity": None},
    {"affinity": "a"},
    {"affinity": "b", "concurrency": 1},
    {"affinity": "a", "limit": {"max": 1, "duration": 500}},
]
NO_STALLS = {"enabled": False, "maxStalls": 0}
kinds = st.sampled_from([0, 1, 2, 3, 3, 3, 4, 5, 5, 6, 7, 8, 9, 10])
groups = st.sampled_from(GROUPS)
numbers = st.integers(0, 30)
options = st.fixed_dictionaries(
    {"group": st.sampled_from([*GROUPS, *GROUPS, "a", None]), "named": st.sampled_from([True, True, True, False])},
    optional={
        "priority": st.integers(0, 2),
        "delay": st.sampled_from([0, 10, 700]),
        "groupMaxSize": st.integers(1, 4),
        "lifo": st.just(True),
        "durable": st.just(True),
        "removeOnComplete": st.just(True),
    },
)


@dataclass(eq=False)
class MJob:
    id: str
    seq: int
    group: str | None
    named: bool
    priority: int
    lifo: bool
    run_at: float
    active: bool = False
    token: str | None = None
    leased: int = 0

    @property
    def in_turn(self) -> bool:
        return self.named and self.group is not None

    @property
    def order(self) -> tuple[float, ...]:
        if self.in_turn:
            return (self.priority, self.seq)
        return (-self.priority, self.lifo, -self.seq if self.lifo else self.run_at, self.seq)


@dataclass
class MGroup:
    concurrency: int | None = None
    limit: tuple[int, int] | None = None
    paused: bool = False
    rest: float = 0
    window: tuple[tuple[int, int] | None, float, int] = (None, 0, 0)  # limit, end, hand-outs


@dataclass
class Model:
    jobs: dict[str, MJob] = field(default_factory=dict)
    groups: dict[str, MGroup] = field(default_factory=lambda: {name: MGroup() for name in GROUPS})
    line: list[str] = field(default_factory=list)

    def members(self, group: str, wall: float, *, named: bool) -> list[MJob]:
        """The ready ones."""
        found = [j for j in self.jobs.values() if j.group == group and j.named == named]
        return [j for j in found if not j.active and j.run_at <= wall]

    def active(self, group: str, *, named: bool) -> int:
        return sum(j.active and j.group == group and j.named == named for j in self.jobs.values())

    def queued(self, group: str) -> int:
        return sum(not j.active and j.group == group and j.named for j in self.jobs.values())

    def sync(self, wall: float) -> None:
        """Groups without ready jobs leave the line; new ones come in the order in which their jobs became ready."""
        self.line = [group for group in self.line if self.members(group, wall, named=True)]
        fresh = [j for g in GROUPS if g not in self.line for j in self.members(g, wall, named=True)]
        for job in sorted(fresh, key=lambda j: (j.run_at, j.seq)):
            if job.group not in self.line:
                self.line.append(job.group)

    def best(self, kind: dict[str, Any] | None, wall: float, mono: float) -> MJob | None:
        kind = kind or {}
        affinity = kind.get("affinity", "any")
        if affinity in ("any", None):
            plain = [j for j in self.jobs.values() if not j.in_turn and not j.active and j.run_at <= wall]
            plain = [j for j in plain if j.group is None or not self._is_busy(j.group)]
            if plain:
                return min(plain, key=lambda j: j.order)
        if affinity is None:
            return None
        for group in self.line:
            if affinity in ("any", group) and self._serves(group, kind, mono, wall):
                return min(self.members(group, wall, named=True), key=lambda j: j.order)
        return None

    def _is_busy(self, group: str) -> bool:
        return bool(self.active(group, named=True) or self.active(group, named=False))

    def is_doubtful(self, kind: dict[str, Any] | None, wall: float) -> bool:
        """Whether an unnamed member bars a group from affine pulls depends on whether another pull has met it."""
        affinity = (kind or {}).get("affinity")
        return type(affinity) is str and bool(self.members(affinity, wall, named=False))

    def _serves(self, name: str, kind: dict[str, Any], mono: float, wall: float) -> bool:
        group = self.groups[name]
        if group.paused or group.rest > mono or self.active(name, named=False):
            return False
        if "affinity" not in kind and self.members(name, wall, named=False):
            return False  # it is busy, else that one would be served
        concurrency = kind.get("concurrency")
        if concurrency is not None and self.active(name, named=True) >= (group.concurrency or concurrency):
            return False
        if "limit" in kind:
            limit = self.effective(group, kind)
            known, end, count = group.window
            return not (known == limit and end > mono and count >= limit[0])
        return True

    @staticmethod
    def effective(group: MGroup, kind: dict[str, Any]) -> tuple[int, int]:
        return group.limit or (kind["limit"]["max"], kind["limit"]["duration"])

    def hand_out(self, job: MJob, kind: dict[str, Any] | None, wall: float, mono: float) -> None:
        job.active = True
        if not job.in_turn:
            return
        assert job.group is not None
        group = self.groups[job.group]
        if kind and "limit" in kind:
            limit = self.effective(group, kind)
            known, end, count = group.window
            group.window = (limit, end, count + 1) if known == limit and end > mono else (limit, mono + limit[1], 1)
        self.line.remove(job.group)
        if self.members(job.group, wall, named=True):
            self.line.append(job.group)


class GroupsMachine(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        self.harness = Stored()
        self.harness.send("SetStallConfig", queue="q", config=NO_STALLS)
        self.model = Model()
        self.parked: set[int] = set()
        self.count = 0
        self.lease_count = 0

    def teardown(self) -> None:
        if hasattr(self, "harness"):
            self.harness.file.close()

    @property
    def wall(self) -> float:
        return self.harness.now.wall_ms

    @property
    def mono(self) -> float:
        return self.harness.now.mono_ms

    def nth(self, number: int, *, active: bool) -> MJob | None:
        found = [job for job in self.model.jobs.values() if job.active == active]
        return found[number % len(found)] if found else None

    # what clients do

    @rule(several=st.lists(options, min_size=1, max_size=4))
    def push(self, several: list[dict[str, Any]]) -> None:
        for given in several:
            self.push_one(dict(given))

    def push_one(self, given: dict[str, Any]) -> None:
        self.count += 1
        group, named, size = given.pop("group"), given.pop("named"), given.get("groupMaxSize")
        job = MJob(
            id=f"j{self.count}",
            seq=self.count,
            group=group,
            named=named,
            priority=given.get("priority", 0),
            lifo=given.get("lifo", False),
            run_at=self.wall + given.get("delay", 0),
        )
        fields = {**given, "jobId": job.id, "maxAttempts": 1_000, "backoff": {"type": "fixed", "delay": 0}}
        fields |= ({"name": "n"} if named else {}) | ({"groupId": group} if group else {})
        is_full = bool(job.in_turn and size and self.model.queued(str(group)) >= size)
        try:
            self.harness.push(**fields)
        except CommandError:
            assert is_full
        else:
            assert not is_full
            self.model.jobs[job.id] = job
            self.model.sync(self.wall)

    @rule(kind=kinds, count=st.sampled_from([1, 3, 6]))
    def pull(self, kind: int, count: int) -> None:
        for _ in range(count):
            self.serve_parked()
            if not self.pull_one(kind):
                self.parked.add(kind)

    @rule(
        several=st.lists(options, min_size=3, max_size=5),
        kind=kinds,
        count=st.integers(2, 6),
        numbers=st.lists(numbers, min_size=1, max_size=2),
        other=kinds,
    )
    def work(self, several: list[dict[str, Any]], kind: int, count: int, numbers: list[int], other: int) -> None:
        """What producers and workers do all day; the other rules get in their way."""
        self.push(several)
        self.pull(kind, count)
        self.end(numbers, "ACK")
        self.who_waits_is_served_when_he_can_be()
        self.pull(other, 2)

    def pull_one(self, kind: int) -> bool:
        expected = self.model.best(KINDS[kind], self.wall, self.mono)
        fields = {} if KINDS[kind] is None else {"group": KINDS[kind]}
        pulled = self.harness.pull(lockTtl=5_000, **fields)

        if pulled is None and self.model.is_doubtful(KINDS[kind], self.wall):
            return False
        assert (pulled and pulled[0]) == (expected and expected.id), KINDS[kind]
        if expected is None or pulled is None:
            return False
        self.lease_count += 1
        expected.token, expected.leased = pulled[1], self.lease_count
        self.model.hand_out(expected, KINDS[kind], self.wall, self.mono)
        return True

    def serve_parked(self) -> None:
        """What the server does when the engine has woken the queue."""
        while self.harness.wakes():
            for kind in sorted(self.parked):
                if self.pull_one(kind):
                    self.parked.discard(kind)

    @rule(numbers=st.lists(numbers, min_size=1, max_size=3), how=st.sampled_from(["ACK", "ACK", "FAIL"]))
    def end(self, numbers: list[int], how: str) -> None:
        for number in numbers:
            self.end_one(number, how)

    def end_one(self, number: int, how: str) -> None:
        job = self.nth(number, active=True)
        if job is None:
            return
        self.harness.send(how, id=job.id, token=job.token)
        if how == "ACK":
            del self.model.jobs[job.id]
        else:
            self.comes_back(job)
        self.model.sync(self.wall)

    def comes_back(self, job: MJob) -> None:
        job.active, job.run_at = False, self.harness.job(job.id).record.run_at

    @rule(number=numbers, delay=st.sampled_from([0, 300]))
    def move(self, number: int, delay: int) -> None:
        job = self.nth(number, active=True)
        if job is not None:
            self.harness.send("MoveToDelayed", id=job.id, delay=delay)
            self.comes_back(job)
            self.model.sync(self.wall)

    @rule(number=numbers, priority=st.integers(0, 2))
    def change_priority(self, number: int, priority: int) -> None:
        job = self.nth(number, active=False)
        if job is not None:
            self.leaves_for_a_moment(job)
            self.harness.send("ChangePriority", id=job.id, priority=priority)
            job.priority = priority
            self.model.sync(self.wall)

    @rule(number=numbers, delay=st.sampled_from([0, 300]))
    def change_delay(self, number: int, delay: int) -> None:
        job = self.nth(number, active=False)
        if job is not None:
            self.leaves_for_a_moment(job)
            self.harness.send("ChangeDelay", id=job.id, delay=delay)
            self.comes_back(job)
            self.model.sync(self.wall)

    def leaves_for_a_moment(self, job: MJob) -> None:
        """A queued job is out of its place until the change has committed: the last of its group loses the turn."""
        job.active = True
        self.model.sync(self.wall)
        job.active = False

    @rule(number=numbers)
    def cancel(self, number: int) -> None:
        job = self.nth(number, active=False)
        if job is not None:
            self.harness.send("Cancel", id=job.id)
            del self.model.jobs[job.id]
            self.model.sync(self.wall)

    @precondition(lambda self: self.count > 6)
    @rule()
    def drain(self) -> None:
        self.harness.send("Drain", queue="q")
        self.model.jobs = {job.id: job for job in self.model.jobs.values() if job.active}
        self.model.sync(self.wall)

    @precondition(lambda self: self.count > 12)
    @rule()
    def obliterate(self) -> None:
        self.harness.send("Obliterate", queue="q")
        self.harness.send("SetStallConfig", queue="q", config=NO_STALLS)
        self.model = Model()

    @rule(number=numbers, how=st.sampled_from(["ACK", "FAIL", "Cancel", "PUSH", "PauseGroup"]), group=groups)
    def is_refused_by_the_file(self, number: int, how: str, group: str) -> None:
        """Nothing of it happens; a queued job comes back into its place."""
        job = self.nth(number, active=how in ("ACK", "FAIL"))
        if job is None:
            return
        fields = {
            "PUSH": {"queue": "q", "name": "n", "data": 1, "groupId": group, "durable": True},
            "PauseGroup": {"queue": "q", "groupId": group},
        }
        with self.harness.pending():
            if how == "Cancel":
                self.leaves_for_a_moment(job)
            self.harness.send(how, **fields.get(how, {"id": job.id, "token": job.token}))
            self.harness.reject()
        self.model.sync(self.wall)

    # what operators do

    @rule(group=groups, number=st.integers(0, 2))
    def set_concurrency(self, group: str, number: int) -> None:
        known = self.model.groups[group]
        if number:
            self.harness.send("SetGroupConcurrency", queue="q", groupId=group, concurrency=number)
        else:
            reply = self.harness.send("RemoveGroupConcurrency", queue="q", groupId=group)
            assert reply.data == {"removed": int(known.concurrency is not None)}
        known.concurrency = number or None

    @rule(group=groups, limit=st.sampled_from([None, None, (1, 500), (3, 1_000)]))
    def set_rate_limit(self, group: str, limit: tuple[int, int] | None) -> None:
        known = self.model.groups[group]
        if limit is not None:
            self.harness.send("SetGroupRateLimit", queue="q", groupId=group, max=limit[0], duration=limit[1])
        else:
            reply = self.harness.send("RemoveGroupRateLimit", queue="q", groupId=group)
            assert reply.data == {"removed": int(known.limit is not None)}
        if limit is not None or known.limit is not None:
            known.window = (None, 0, 0)
        known.limit = limit

    @rule(group=groups, paused=st.booleans())
    def switch(self, group: str, paused: bool) -> None:
        known = self.model.groups[group]
        reply = self.harness.send("PauseGroup" if paused else "ResumeGroup", queue="q", groupId=group)
        assert reply.data == {"changed": known.paused is not paused}
        known.paused = paused

    @rule(group=groups, duration=st.sampled_from([100, 800]))
    def rest(self, group: str, duration: int) -> None:
        self.harness.send("RateLimitGroup", queue="q", groupId=group, duration=duration)
        self.model.groups[group].rest = self.mono + duration

    # what happens

    @rule(ms=st.sampled_from([1, 10, 400, 900]))
    def wait(self, ms: int) -> None:
        for _ in range(ms // 100 or 1):
            self.harness.advance(min(ms, 100))
            self.notice_expired()
            self.model.sync(self.wall)
            self.serve_parked()

    def notice_expired(self) -> None:
        for job in self.model.jobs.values():
            if job.active and self.harness.state(job.id) != "active":
                self.comes_back(job)

    @rule()
    def disconnect(self) -> None:
        self.harness.disconnect()
        self.harness.connect(1)
        back = sorted((job for job in self.model.jobs.values() if job.active), key=lambda job: job.leased)
        for job in back:
            self.comes_back(job)
            self.model.sync(self.wall)

    @precondition(lambda self: self.count > 3)
    @rule()
    def restart(self) -> None:
        self.harness.commit()
        self.harness.restart()
        self.parked.clear()
        started = {job.id: self.lease_start(job) for job in self.model.jobs.values() if job.active}
        for group in self.model.groups.values():
            group.rest, group.window = 0, (None, 0, 0)
        self.model.line = []
        waiting = [job for job in self.model.jobs.values() if not job.active]
        running = sorted((j for j in self.model.jobs.values() if j.active), key=lambda j: (started[j.id], j.seq))
        for job in running:
            self.comes_back(job)
        for job in [*running, *sorted(waiting, key=lambda j: j.seq)]:
            if job.in_turn and job.run_at <= self.wall and job.group not in self.model.line:
                self.model.line.append(str(job.group))
        self.harness.commit()

    def lease_start(self, job: MJob) -> float:
        """As the file had it: the start of the delivery that the restart has ended."""
        lease = self.harness.job(job.id).lease
        assert lease is not None
        return lease.started_wall_ms

    # what has to hold

    @invariant()
    def who_waits_is_served_when_he_can_be(self) -> None:
        if not hasattr(self, "harness"):
            return
        self.serve_parked()
        for kind in self.parked:
            if not self.model.is_doubtful(KINDS[kind], self.wall):
                assert self.model.best(KINDS[kind], self.wall, self.mono) is None, KINDS[kind]

    @invariant()
    def counts_agree(self) -> None:
        if not hasattr(self, "harness"):
            return
        self.harness.engine.check_invariants()
        for name, group in self.model.groups.items():
            said = {cmd: self.harness.send(cmd, queue="q", groupId=name).data for cmd in READS}
            end = group.window[1]
            ttl = group.rest - self.mono if group.rest > self.mono else end - self.mono if end > self.mono else -2
            assert said == {
                "GetGroupJobsCount": {"count": self.model.queued(name)},
                "GetGroupActiveCount": {"count": self.model.active(name, named=True)},
                "IsGroupPaused": {"paused": group.paused},
                "GetGroupConcurrency": {"concurrency": group.concurrency},
                "GetGroupRateLimitTtl": {"ttl": ttl},
            }
        total = sum(self.model.queued(name) for name in GROUPS)
        assert self.harness.send("GetGroupsJobsCount", queue="q").data == {"count": total}


READS = ("GetGroupJobsCount", "GetGroupActiveCount", "IsGroupPaused", "GetGroupConcurrency", "GetGroupRateLimitTtl")
GroupsMachine.TestCase.settings = settings(
    max_examples=int(os.environ.get("BUNQUEUE_STATEFUL_EXAMPLES", "60")),
    stateful_step_count=int(os.environ.get("BUNQUEUE_STATEFUL_STEPS", "40")),
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize="BUNQUEUE_STATEFUL_EXAMPLES" not in os.environ,
    database=None,
    phases=[Phase.generate] if "BUNQUEUE_NO_SHRINK" in os.environ else list(Phase),
)
TestGroups = GroupsMachine.TestCase
