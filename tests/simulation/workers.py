"""Clients that pull, finish, fail, prolong and forget; with the right token, an old one, or none."""

from __future__ import annotations

from typing import Any

from tests.simulation.actor import Actor
from tests.simulation.machine import PENDING, REFUSED
from tests.simulation.model import ACTIVE, COMPLETED, FAILED, QUEUED, Fact, Op, World, require
from tests.simulation.node import Connection
from tests.simulation.simulation import Simulation

TTLS_MS = (500, 5_000, 20_000)
OTHER_TOKEN = "00000000-0000-4000-a000-000000000000"


class Workers(Actor):
    """They know their leases, and are told at each end of an attempt whether it counts."""

    def __init__(self, simulation: Simulation) -> None:
        super().__init__(simulation)
        self._results = 0

    def pull(self) -> None:
        sim, queue, ttl, connection = self.sim, self.queue(), self.chance.choice(TTLS_MS), self.connection()
        sim.clock.advance(1)
        reply = sim.command(connection, "PULL", queue=queue, owner="w", lockTtl=ttl)
        if reply.job is not None:
            self._got(reply.job, reply.token, queue, connection, ttl)

    def pull_many(self) -> None:
        sim, queue, ttl, connection = self.sim, self.queue(), self.chance.choice(TTLS_MS), self.connection()
        sim.clock.advance(1)
        reply = sim.command(connection, "PULLB", queue=queue, count=3, owner="w", lockTtl=ttl)
        for job, token in zip(reply.jobs, reply.tokens or [], strict=True):
            self._got(job, token, queue, connection, ttl)

    def _got(self, job: Any, token: str, queue: str, connection: Connection, ttl: float) -> None:
        sim, now = self.sim, self.sim.clock.now()
        fact = sim.world.jobs.get(job.id)
        sim.say(f"  connection {connection.id} gets {job.id} for {ttl} ms")
        if fact is None or not fact.is_ready:
            require(False, f"{job.id} is handed out, but it is {fact}")
            return
        require(job.id not in sim.busy, f"{job.id} is handed out, but a change of it waits for its commit")
        require(fact.queue == queue and queue not in sim.world.paused, f"{job.id} is handed out from a paused queue")
        require(fact.run_at is None or fact.run_at <= now.wall_ms, f"{job.id} runs too early")
        require(job.attempts == fact.attempts, f"{job.id}: {job.attempts} attempts, not {fact.attempts}")
        given = sim.given.setdefault(job.id, {})
        require(token not in given, f"two leases of {job.id} have the same token")
        sim.books["runs"] += 1
        sim.books["run again"] += bool(given)
        given[token] = fact.attempts
        lease = {"token": token, "connection": connection.id, "is_renewed": False, "is_late_ack_good": False}
        times = {"ttl": float(ttl), "started": now.mono_ms, "expires": now.mono_ms + ttl, "heard": now.mono_ms}
        sim.world.change(job.id, state=ACTIVE, **lease, **times)

    # ends

    def ack(self) -> None:
        fact = self._target()
        if fact is not None:
            self.ack_one(fact, self._token(fact))

    def ack_one(self, fact: Fact, token: str | None) -> None:
        """With a result, or none."""
        sim, result = self.sim, self._result()
        fields = {} if result is None else {"result": result}
        reply = sim.command(None, "ACK", id=fact.id, token=token, **fields)
        whose = "its token" if token == fact.token else "another token"
        sim.say(f"  {fact.id} ({fact.state}, {whose}): {self.told(reply)}")
        if reply is not PENDING and self._counts(fact, token, reply):
            ids = frozenset({fact.id})
            op = Op(f"completion of {fact.id}", lambda world: world.complete(fact.id, result), ids, book="completed")
            sim.promise(op, reply)

    def _counts(self, fact: Fact, token: str | None, reply: Any) -> bool:
        """Whether this ACK completes the job; strict wherever the model can know that."""
        is_promised, is_refused = self.is_promised(reply), reply is REFUSED
        what = f"ack of {fact.id} ({fact.state})"
        if fact.state == ACTIVE:
            is_right = is_promised if token == fact.token else is_refused
            require(is_right, f"{what} with {'its' if token == fact.token else 'another'} token: {self.told(reply)}")
        elif token is None:
            require(is_refused, f"{what} without a token: {self.told(reply)}")
        elif fact.is_ready and fact.is_late_ack_good and token == fact.token:
            require(is_promised, f"late {what} does not count")
        elif not self.sim.may_be_erased(fact, token):
            require(not is_promised, f"{what} counts, with the token of another delivery")
        return is_promised

    def ack_many(self) -> None:
        """In one transaction."""
        sim = self.sim
        facts = [f for f in sim.world.jobs.values() if f.state == ACTIVE and f.id not in sim.busy][:3]
        if not facts:
            return
        results = [self._result() for _ in facts]
        sent = [0 if result is None else result for result in results]
        reply = sim.command(None, "ACKB", ids=[f.id for f in facts], tokens=[f.token for f in facts], results=sent)
        sim.say(f"  {[f.id for f in facts]}: {self.told(reply)}")
        if reply is PENDING:
            return
        require(self.is_promised(reply), f"the right tokens do not count: {self.told(reply)}")

        def apply(world: World) -> None:
            for fact, result in zip(facts, sent, strict=True):
                world.complete(fact.id, result)

        ids = frozenset(f.id for f in facts)
        sim.promise(Op(f"completions of {sorted(ids)}", apply, ids, book="completed", weight=len(ids)), reply)

    def fail(self) -> None:
        fact = self._target()
        if fact is None:
            return
        sim, token, is_final = self.sim, self._token(fact), self.chance.random() < 0.2
        fields: dict[str, Any] = {"unrecoverable": True} if is_final else {}
        if self.chance.random() < 0.5:
            fields["stack"] = ["at a", "at b"]
        reply = sim.command(None, "FAIL", id=fact.id, token=token, error="e", **fields)
        sim.say(f"  {fact.id} ({fact.state}): {self.told(reply)}")
        if reply is PENDING:
            return
        is_holder = fact.state == ACTIVE and token == fact.token and sim.clock.now().mono_ms < fact.expires
        is_right = self.is_promised(reply) == is_holder
        require(is_right, f"fail of {fact.id} ({fact.state}), {is_holder=}: {self.told(reply)}")
        if is_holder:
            sim.promise(self._failure(fact, is_final), reply)

    def _failure(self, fact: Fact, is_final: bool) -> Op:
        is_end = is_final or fact.attempts + 1 >= fact.max_attempts
        ids, moving = self.with_parent(fact, is_end)
        death = self.sim.world.death(self.sim.clock.now().wall_ms)
        return Op(f"failure of {fact.id}", lambda w: w.fail(fact.id, is_final=is_final, death=death), ids, moving)

    def with_parent(self, fact: Fact, is_end: bool) -> tuple[frozenset[str], frozenset[str]]:
        """Which jobs the end of this one concerns, and which of them stay queued."""
        parent = self.sim.world.affected_parent(fact) if is_end else None
        if parent is None:
            return frozenset({fact.id}), frozenset()
        stays = frozenset({parent.id}) if fact.policy != "failParentOnFailure" else frozenset[str]()
        return frozenset({fact.id, parent.id}), stays

    def give_back(self) -> None:
        """A worker cannot go on with a job now; nothing is charged."""
        fact = self.some(ACTIVE)
        token = None if fact is None else self._token(fact)
        if fact is None or token is None:
            return
        sim, now, delay = self.sim, self.sim.clock.now(), self.chance.choice((None, 0, 3_000))
        if delay is None:
            reply = sim.command(None, "MoveToWait", id=fact.id, token=token)
        else:
            reply = sim.command(None, "MoveToDelayed", id=fact.id, token=token, delay=delay)
        sim.say(f"  {fact.id}, delay {delay}: {self.told(reply)}")
        if reply is PENDING:
            return
        is_holder = token == fact.token and now.mono_ms < fact.expires
        require(self.is_promised(reply) == is_holder, f"{fact.id} is given back, {is_holder=}: {self.told(reply)}")
        if is_holder:
            run_at = now.wall_ms + (delay or 0)
            ids = frozenset({fact.id})
            op = Op(f"return of {fact.id}", lambda w: w.requeue(fact.id, run_at=run_at, is_late_ack_good=False), ids)
            sim.promise(op, reply)

    # signs of life

    def heartbeat(self) -> None:
        fact = self._target()
        token = None if fact is None else self._token(fact)
        if fact is None or token is None:
            return
        sim, mono_ms = self.sim, self.sim.clock.now().mono_ms
        if fact.silent_at <= mono_ms:
            return  # too late to tell whether it is heard before the second look, or after
        reply = sim.command(None, self.chance.choice(("JobHeartbeat", "ExtendLock")), id=fact.id, token=token)
        if reply is PENDING:
            return
        is_holder = fact.state == ACTIVE and token == fact.token and mono_ms < fact.expires
        require((reply is not REFUSED) == is_holder, f"heartbeat of {fact.id} ({fact.state}): {self.told(reply)}")
        if is_holder:
            sim.say(f"  {fact.id} is prolonged")
            sim.world.change(fact.id, is_renewed=True, expires=mono_ms + fact.ttl, heard=mono_ms)

    def progress(self) -> None:
        fact = self.some(ACTIVE)
        mono_ms = self.sim.clock.now().mono_ms
        if fact is not None and mono_ms < fact.silent_at:
            message = {"message": "half way"} if self.chance.random() < 0.5 else {}
            reply = self.sim.command(None, "Progress", id=fact.id, progress=self.chance.randrange(100), **message)
            if reply is not PENDING and reply is not REFUSED:
                self.sim.world.change(fact.id, heard=mono_ms)

    def reconnect(self) -> None:
        """A connection is lost, and with it a worker."""
        sim, connection = self.sim, self.connection()
        assert connection.id is not None
        held = [f for f in sim.world.jobs.values() if f.state == ACTIVE and f.connection == connection.id]
        if any(fact.parent in sim.busy for fact in held):
            sim.settle()  # else their end would have to wait for that change
        sim.say(f"  connection {connection.id} is lost")
        sim.connections.remove(connection)
        sim.node.broker.disconnect(connection, [])
        sim.world.disconnect(connection.id, sim.busy, sim.clock.now().wall_ms)

    # choosing

    def _target(self) -> Fact | None:
        is_usual = self.chance.random() < 0.65
        return self.some(ACTIVE) if is_usual else self.some(ACTIVE, QUEUED, COMPLETED, FAILED)

    def _token(self, fact: Fact) -> str | None:
        """Mostly the right one."""
        fate, given = self.chance.random(), list(self.sim.given.get(fact.id, ()))
        if fate < 0.75 or not given:
            return fact.token if fate < 0.95 else None
        return self.chance.choice(given) if fate < 0.95 else OTHER_TOKEN

    def _result(self) -> int | None:
        self._results += 1
        return self._results if self.chance.random() < 0.8 else None
