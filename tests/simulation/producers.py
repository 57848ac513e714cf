"""Clients that push: single jobs, batches, children and flows; buffered, durable or synced; with keys and ids."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.simulation.actor import CUSTOM_IDS, Actor, nothing
from tests.simulation.machine import PENDING, REFUSED
from tests.simulation.model import COMPLETED, NEVER, POLICIES, STALL_INTERVAL_MS, Fact, Op, World, require

PLAIN_SHARE = 0.4
OPTIONS: tuple[tuple[str, tuple[Any, ...], float], ...] = (
    ("priority", (-1, 1, 2), 0.3),
    ("delay", (5, 2_000, 50_000), 0.2),
    ("lifo", (True,), 0.1),
    ("removeOnComplete", (True,), 0.15),
    ("removeOnFail", (True,), 0.15),
    ("timeout", (300, 3_000), 0.15),
    ("ttl", (864_000_000,), 0.05),
    ("stallTimeout", (1_500, 1_500, 6_000, 86_400_000), 0.4),
    ("groupId", ("g", "h"), 0.15),
    ("tags", (["x", "y"],), 0.1),
    ("stackTraceLimit", (3,), 0.1),
    ("name", ("n", "default"), 0.2),
)
DEDUPS: tuple[dict[str, Any] | None, ...] = (None, {"ttl": 1_500}, {"replace": True}, {"replace": True})


class Producers(Actor):
    """They know what they were told of each push."""

    def push(self) -> None:
        options = self._options()
        if self.chance.random() < 0.35:
            options["jobId"] = self._custom_id()
        if self.chance.random() < 0.05:
            options["repeat"] = {"every": 500, "limit": 2}
        if self.chance.random() < 0.3:
            options["uniqueKey"] = self.chance.choice(("k", "k", "l"))
            dedup = self.chance.choice(DEDUPS)
            if dedup is not None:
                options["dedup"] = dedup
        self._push(options)

    def push_child(self) -> None:
        """A job that waits for others."""
        others = [f.id for f in self.sim.world.jobs.values() if f.id not in CUSTOM_IDS and not f.is_from_cron]
        if others:
            options = self._options()
            options["dependsOn"] = self.chance.sample(others, min(len(others), self.chance.randint(1, 2)))
            self._push(options)

    def _push(self, options: dict[str, Any]) -> None:
        self.push_to(self.queue(), options, self._durability())

    def push_to(self, queue: str, options: dict[str, Any], durable: Any) -> None:
        """One job, or another that stands for it."""
        sim = self.sim
        fact = self._fact(queue, options)
        fields = options if durable is None else {**options, "durable": durable}
        reply = sim.command(None, "PUSH", queue=queue, data={"n": fact.number}, **fields)
        sim.say(f"  {fact.number} to {queue} {fields}: {getattr(reply, 'id', reply)}")
        if reply is REFUSED or reply is PENDING:
            return
        op = self._birth(reply.id, fact, options)
        if op is None:
            if sim.waits:
                sim.promise(Op("existing", nothing), reply)
            return
        sim.books["pushed"] += 1
        require(sim.waits == (durable is not None), f"{reply.id} waits for its commit if it is durable, and only then")
        if sim.waits:
            sim.promise(op, reply, asks_sync=durable == "fsync")
        else:
            op.apply(sim.world)
            sim.books["acknowledged"] += 1

    def push_many(self) -> None:
        """All or none of them."""
        sim, queue, durable = self.sim, self.queue(), self._durability()
        facts, jobs = [], []
        for _ in range(self.chance.randint(1, 4)):
            options = self._options()
            facts.append(self._fact(queue, options))
            jobs.append({"data": {"n": facts[-1].number}, **options})
        if durable is not None:
            jobs[0]["durable"] = durable
        reply = sim.command(None, "PUSHB", queue=queue, jobs=jobs)
        sim.say(f"  {[f.number for f in facts]} to {queue}, durable {durable}: {getattr(reply, 'ids', reply)}")
        if reply is not REFUSED and reply is not PENDING:
            born = [replace(fact, id=job_id) for fact, job_id in zip(facts, reply.ids, strict=True)]
            self._births(born, reply, durable)

    def push_flow(self) -> None:
        """A parent and its children, all or none."""
        sim = self.sim
        parent_id, parent_queue = f"p{sim.chance.randrange(1 << 30)}", self.queue()
        kin = {"__parentId": parent_id, "__parentQueue": parent_queue}
        facts, jobs = [], []
        for index in range(self.chance.randint(1, 3)):
            options, queue = self._options(), self.queue()
            options = {name: value for name, value in options.items() if name not in ("name", "groupId")}
            policy = self.chance.choice((None, *POLICIES))
            if policy is not None:
                options[policy] = True
            fact = self._fact(queue, options, id=f"{parent_id}-{index}", parent=parent_id, policy=policy)
            facts.append(fact)
            jobs.append(_flow_job(fact, {"n": fact.number, **kin}, {**options, "parentId": parent_id}))
        ids = [fact.id for fact in facts]
        options = {"dependsOn": ids, "childrenIds": ids}
        facts.append(self._fact(parent_queue, options, id=parent_id))
        jobs.append(_flow_job(facts[-1], {"n": facts[-1].number, "__childrenIds": ids}, options))
        reply = sim.command(None, "PUSHF", jobs=jobs)
        sim.say(f"  {[(f.id, f.policy) for f in facts]}: {self.told(reply)}")
        if reply is not REFUSED and reply is not PENDING:
            self._births(facts, reply, True)

    # what they push

    def _options(self) -> dict[str, Any]:
        chance = self.chance
        options: dict[str, Any] = {}
        if chance.random() < PLAIN_SHARE:
            return options
        options["maxAttempts"] = chance.randint(1, 3)
        options["backoff"] = chance.choice((0, 100, {"type": "fixed", "delay": 1_000}))
        for name, values, odds in OPTIONS:
            if chance.random() < odds:
                options[name] = chance.choice(values)
        if "groupId" in options and "name" in options:
            options.pop("priority", None)  # members of named groups have none below 0
        return options

    def _custom_id(self) -> str:
        """Rather one whose job has ended: it gets a new life."""
        jobs = self.sim.world.jobs
        ended = [job_id for job_id in CUSTOM_IDS if job_id in jobs and not jobs[job_id].is_live]
        return self.chance.choice(ended if ended and self.chance.random() < 0.7 else CUSTOM_IDS)

    def _durability(self) -> Any:
        return self.chance.choice((None, None, True, True, "fsync"))

    def _fact(self, queue: str, options: dict[str, Any], **fields: Any) -> Fact:
        sim = self.sim
        sim.numbers += 1
        wall_ms, jobs = sim.clock.now().wall_ms, sim.world.jobs
        dedup = options.get("dedup", {})
        return Fact(
            id=fields.pop("id", ""),
            queue=queue,
            number=sim.numbers,
            run_at=wall_ms + options.get("delay", 0),
            priority=options.get("priority", 0),
            max_attempts=options.get("maxAttempts", 3),
            removes_completed=options.get("removeOnComplete", False),
            removes_failed=options.get("removeOnFail", False),
            key=options.get("uniqueKey"),
            holds_key="uniqueKey" in options,
            key_expires=wall_ms + dedup["ttl"] if "ttl" in dedup else NEVER,
            timeout=options.get("timeout"),
            silence=options.get("stallTimeout", STALL_INTERVAL_MS),
            missing=frozenset(i for i in options.get("dependsOn", ()) if i not in jobs or jobs[i].state != COMPLETED),
            **fields,
        )

    # what becomes of it

    def _birth(self, job_id: str, fact: Fact, options: dict[str, Any]) -> Op | None:
        """The birth of a job, or None when another stands for the push."""
        world = self.sim.world
        known = world.jobs.get(job_id)
        if known is not None and known.is_live:
            is_same = options.get("jobId") == job_id or (fact.key is not None and known.key == fact.key)
            require(is_same, f"{job_id} stands for a push that is not its own")
            return None
        former = self._holder(fact)
        if former is not None:
            is_given_up = former.key_expires <= self.sim.clock.now().wall_ms or options.get("dedup", {}).get("replace")
            require(is_given_up, f"{job_id} got the key of {former.id}")
        ids = {job_id}
        if former is not None and former.is_ready and former.key_expires > self.sim.clock.now().wall_ms:
            ids.add(former.id)
        born = replace(fact, id=job_id)

        def apply(world: World) -> None:
            if former is not None and former.id in ids:
                world.remove([former.id])
            elif former is not None and former.id in world.jobs:
                world.change(former.id, holds_key=False)
            world.add(born)

        return Op(f"birth of {job_id}", apply, frozenset(ids), book="acknowledged")

    def _holder(self, fact: Fact) -> Fact | None:
        if fact.key is None:
            return None
        others = self.sim.world.of_queue(fact.queue)
        return next((f for f in others if f.is_live and f.holds_key and f.key == fact.key), None)

    def _births(self, born: list[Fact], reply: Any, durable: Any) -> None:
        def apply(world: World) -> None:
            for fact in born:
                world.add(fact)

        sim = self.sim
        sim.books["pushed"] += len(born)
        require(sim.waits == (durable is not None), "a push waits for its commit if it is durable, and only then")
        if sim.waits:
            ids = frozenset(fact.id for fact in born)
            op = Op(f"births of {sorted(ids)}", apply, ids, book="acknowledged", weight=len(ids))
            sim.promise(op, reply, asks_sync=durable == "fsync")
        else:
            apply(sim.world)
            sim.books["acknowledged"] += len(born)


def _flow_job(fact: Fact, data: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    return {"id": fact.id, "queue": fact.queue, "input": {"name": "n", "data": data, **options}}
