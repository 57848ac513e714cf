"""Those who look after queues: pause, change, discard, bring back, remove; and crons."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from tests.simulation.actor import nothing
from tests.simulation.model import COMPLETED, FAILED, QUEUED, Fact, Letters, Op, World, require
from tests.simulation.workers import Workers

DAY_MS = 86_400_000
CRON, CRON_QUEUE, CRON_MS = "cron", "b", 3_000
STATES = {"completed": COMPLETED, "failed": FAILED, "waiting": QUEUED}
SETTINGS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("SetConcurrency", {"limit": 50}),
    ("ClearConcurrency", {}),
    ("RateLimit", {"limit": 10_000, "duration": 500}),
    ("RateLimitClear", {}),
    ("SetStallConfig", {"config": {"stallInterval": 60_000}}),
    ("SetDlqConfig", {"config": {"maxEntries": 5_000}}),
    ("SetGroupConcurrency", {"groupId": "g", "concurrency": 50}),
    ("RemoveGroupConcurrency", {"groupId": "g"}),
)
"""Far from where they would keep a job from running."""

KEPT = ((8_000, None), (20_000, None), (3_600_000, None), (3_600_000, 1_000), (604_800_000, 5_000))
"""For how long letters are kept, and after what time they come back by themselves; never both at about that time."""


class Operators(Workers):
    """They are answered after the commit."""

    def pause(self) -> None:
        queue, is_pause = self.queue(), self.chance.random() < 0.4
        apply = partial(_pause, queue=queue) if is_pause else partial(_resume, queue=queue)
        cmd = "Pause" if is_pause else "Resume"
        reply = self.sim.command(None, cmd, Op(f"{cmd} {queue}", apply), queue=queue)
        self.sim.say(f"  {cmd} {queue}: {self.told(reply)}")

    def configure(self) -> None:
        """Settings that only have to be there again after a restart."""
        cmd, fields = self.chance.choice(SETTINGS)
        self.sim.command(None, cmd, Op(cmd, nothing), queue=self.queue(), **fields)

    def keep_letters(self) -> None:
        """For how long, and whether they come back by themselves: those that are there keep their times."""
        queue, (age, after) = self.queue(), self.chance.choice(KEPT)
        letters = Letters(age, after)
        config: dict[str, Any] = {"maxAge": age, "autoRetry": after is not None, "maxAutoRetries": letters.max_retries}
        if after is not None:
            config["autoRetryInterval"] = after
        op = Op("keeping of dead letters", lambda world: world.letters.__setitem__(queue, letters))
        self.sim.command(None, "SetDlqConfig", op, queue=queue, config=config)

    # one job

    def cancel(self) -> None:
        fact = self.some(QUEUED)
        if fact is not None:
            self._do("Cancel", fact, lambda world: world.remove([fact.id]))

    def discard(self) -> None:
        fact = self.some(QUEUED, "active")
        if fact is not None and not fact.is_parked:
            ids, moving = self.with_parent(fact, True)
            death = self.sim.world.death(self.sim.clock.now().wall_ms)
            self._do("Discard", fact, lambda world: world.discard(fact.id, death), ids=ids, moving=moving)

    def change(self) -> None:
        """Priority, run time, data."""
        fact, wall_ms = self.some(QUEUED), self.sim.clock.now().wall_ms
        if fact is None or fact.is_parked:
            return
        what = self.chance.choice(("ChangePriority", "ChangeDelay", "Update", "Promote"))
        change: dict[str, Any]
        if what == "ChangePriority":
            fields = change = {"priority": self.chance.randint(0, 3)}
        elif what == "ChangeDelay":
            fields = {"delay": self.chance.choice((0, 1_500))}
            change = {"run_at": wall_ms + fields["delay"]}
        elif what == "Update":
            self.sim.numbers += 1
            fields, change = {"data": {"n": self.sim.numbers}}, {"number": self.sim.numbers}
        elif fact.run_at is not None and fact.run_at > wall_ms:
            fields, change = {}, {"run_at": wall_ms}
        else:
            return
        ids = frozenset({fact.id})
        self._do(what, fact, lambda world: world.change(fact.id, **change), moving=ids, **fields)

    def _do(
        self,
        cmd: str,
        fact: Fact,
        apply: Callable[[World], None],
        *,
        ids: frozenset[str] | None = None,
        moving: frozenset[str] = frozenset(),
        **fields: Any,
    ) -> None:
        """A command that the state of its job allows, so that only a pending change or a bad disk may stop it."""
        sim = self.sim
        may_refuse = fact.id in sim.busy
        op = Op(f"{cmd} {fact.id}", apply, frozenset({fact.id}) if ids is None else ids, moving)
        reply = sim.command(None, cmd, op, id=fact.id, **fields)
        sim.say(f"  {cmd} {fact.id} {fields}: {self.told(reply)}")
        require(reply != "refused" or may_refuse, f"{cmd} of {fact.id} ({fact.state}) is refused")

    def retry_dead(self) -> None:
        self._bring_back(FAILED, "RetryDlq", "jobId")

    def retry_completed(self) -> None:
        self._bring_back(COMPLETED, "RetryCompleted", "id")

    def _bring_back(self, state: str, cmd: str, name: str) -> None:
        fact, run_at = self.some(state), self.sim.clock.now().wall_ms
        if fact is None:
            return
        reply = self.sim.command(None, cmd, queue=fact.queue, **{name: fact.id})
        self.sim.say(f"  {cmd} {fact.id}: {self.told(reply)}")
        if self.is_promised(reply):
            ids = frozenset({fact.id})
            self.sim.promise(Op(f"{cmd} {fact.id}", lambda w: w.start_over(fact.id, run_at=run_at), ids), reply)

    # many

    def purge(self) -> None:
        queue = self.queue()
        ids = [fact.id for fact in self.sim.world.of_queue(queue) if fact.state == FAILED]
        self._remove("PurgeDlq", queue, ids)

    def drain(self) -> None:
        sim, queue = self.sim, self.queue()
        held = sim.busy - sim.moving
        ids = [fact.id for fact in sim.world.of_queue(queue) if fact.is_ready and fact.id not in held]
        self._remove("Drain", queue, ids)

    def _remove(self, cmd: str, queue: str, ids: list[str]) -> None:
        reply = self.sim.command(None, cmd, queue=queue)
        self.sim.say(f"  {cmd} {queue}: {self.told(reply)}")
        if self.is_promised(reply):
            require(reply.count == len(ids), f"{cmd} removes {reply.count} jobs, not {ids}")
            self.sim.promise(Op(f"{cmd} of {ids}", lambda w: w.remove(ids), frozenset(ids)), reply)

    def clean(self) -> None:
        sim, queue, state = self.sim, self.queue(), self.chance.choice(list(STATES))
        if sim.flying is not None:
            return  # it would wait until memory and file belong together
        reply = sim.command(None, "Clean", queue=queue, grace=0, state=state, limit=2)
        if not self.is_promised(reply):
            return
        ids, jobs = list(reply.ids), sim.world.jobs
        wrong = [job_id for job_id in ids if job_id not in jobs or jobs[job_id].state != STATES[state]]
        require(not wrong, f"{wrong} are cleaned as {state}")
        sim.say(f"  {ids} are cleaned")
        sim.promise(Op(f"clean of {ids}", lambda w: w.remove(ids), frozenset(ids)), reply)

    def obliterate(self) -> None:
        sim, queue = self.sim, self.queue()
        if self.chance.random() < 0.6:
            return  # a short story should not lose its people too often
        worlds = [sim.world] if sim.flying is None else [sim.world, sim.flying.world]  # also what is about to be born
        last, ids = sim.numbers, frozenset(fact.id for world in worlds for fact in world.of_queue(queue))

        def apply(world: World) -> None:
            there = [f for f in world.of_queue(queue) if f.number <= last]  # not a new life that was pushed since
            world.remove([f.id for f in there if f.id in ids or f.number])
            world.paused.discard(queue)
            world.letters.pop(queue, None)

        reply = sim.command(None, "Obliterate", Op(f"end of queue {queue}", apply, ids), queue=queue)
        sim.say(f"  {queue}: {self.told(reply)}")

    def expire(self) -> None:
        """The retention of completed jobs: buffered."""
        sim, fact = self.sim, self.some(COMPLETED)
        if fact is not None and fact.id not in sim.busy:
            sim.say(f"  {fact.id} expires")
            sim.node.engine.expire_completed([(fact.id, fact.queue)], sim.clock.now().wall_ms + DAY_MS)
            sim.world.remove([fact.id])

    def put_cron(self) -> None:
        """Made, or defined anew: what it has done so far counts on."""

        def apply(world: World) -> None:
            world.crons.setdefault(CRON, 0)

        self.sim.command(None, "Cron", Op(CRON, apply), name=CRON, queue=CRON_QUEUE, data={"n": 0}, repeatEvery=CRON_MS)


def _pause(world: World, queue: str) -> None:
    world.paused.add(queue)


def _resume(world: World, queue: str) -> None:
    world.paused.discard(queue)
