"""What clients, operators, time and the disk do next: one step at a time, by chance; and a good end."""

from __future__ import annotations

from collections.abc import Callable

from bunqueue_trio.server.flusher import MAX_RETRY_S, SPACE_CHECK_S, WINDOW_MS
from tests.simulation.actor import QUEUES
from tests.simulation.disk import Trouble
from tests.simulation.model import ACTIVE, Op, Violation, require
from tests.simulation.operators import CRON, DAY_MS, Operators
from tests.simulation.producers import Producers
from tests.simulation.simulation import Simulation

STEPS = 70
ALONE_SHARE = 0.3
NOTICED_MS = (SPACE_CHECK_S * 1000) + 2 * WINDOW_MS
RETRIED_MS = (MAX_RETRY_S * 1000) + 2 * WINDOW_MS
ROUNDS_MAX = 20
LONG_MS = 30_000
JUMPS_MS = (-21_600_000, -3_600_017, -1_500, 700, 3_600_011, 21_600_000)


class Clients(Producers, Operators):
    """Everybody who uses the server, and the circumstances."""

    def __init__(self, simulation: Simulation) -> None:
        super().__init__(simulation)
        weights: dict[Callable[[], None], int] = {
            self.push: 14,
            self.push_many: 4,
            self.push_child: 3,
            self.push_flow: 3,
            self.usurp: 3,
            self.pull: 18,
            self.pull_many: 3,
            self.ack: 20,
            self.ack_many: 3,
            self.fail: 12,
            self.heartbeat: 4,
            self.progress: 2,
            self.reconnect: 3,
            self.give_back: 3,
            self.pause: 3,
            self.configure: 2,
            self.keep_letters: 2,
            self.cancel: 2,
            self.change: 4,
            self.discard: 1,
            self.retry_dead: 5,
            self.retry_completed: 4,
            self.purge: 1,
            self.clean: 2,
            self.drain: 1,
            self.obliterate: 1,
            self.expire: 1,
            self.put_cron: 2,
            self.pass_time: 10,
            self.jump: 2,
            self.begin_flush: 8,
            self.end_flush: 14,
            self.checkpoint: 3,
            self.trouble: 3,
            self.no_trouble: 3,
            self.plan_end: 4,
        }
        self._steps, self._weights = list(weights), list(weights.values())

    def live(self) -> None:
        """The whole story of the seed.

        Raises:
            Violation: the server has broken a promise.
        """
        sim = self.sim
        try:
            if self.chance.random() < 0.3:
                sim.plan_end()
            sim.start()
            for _ in range(STEPS):
                self._step()
            self._finish()
        except Violation:
            raise
        except Exception as error:
            raise Violation(f"unexpected {type(error).__name__}: {error}") from error
        finally:
            sim.close()

    def _step(self) -> None:
        sim = self.sim
        [step] = self.chance.choices(self._steps, self._weights)
        sim.say(step.__name__)
        sim.note_promises()
        step()
        if not sim.disk.has_ended:
            is_alone = bool(sim.pending) and sim.node.can_commit_here and self.chance.random() < ALONE_SHARE
            sim.node.after_turn(notes_changes=not is_alone)
            if is_alone:
                sim.commit_here()
        sim.live_on()

    def usurp(self) -> None:
        """A push takes the unique key of a job that runs and is about to end."""
        sim = self.sim
        held = [f for f in sim.world.jobs.values() if f.state == ACTIVE and f.holds_key and f.id not in sim.busy]
        if held:
            fact = self.chance.choice(held)
            options = {"uniqueKey": fact.key, "dedup": {"replace": True}}
            self.push_to(fact.queue, options, self.chance.choice((None, True, "fsync")))
            self.ack_one(fact, fact.token)

    # time, flushes and the disk

    def pass_time(self) -> None:
        self._advance(self.chance.choice((1, 10, 10, 300, 2_100, 7_000, LONG_MS)))

    def _advance(self, ms: float) -> None:
        sim = self.sim
        if self._meets_changes(ms):
            sim.settle()
        sim.say(f"  {ms} ms")
        sim.advance(ms)

    def _meets_changes(self, ms: float) -> bool:
        """Whether that time would end something that has to wait for a commit, and is looked at again much later."""
        sim = self.sim
        end, busy = sim.clock.now().mono_ms + ms, sim.busy
        due = [fact for fact in sim.world.jobs.values() if min(fact.deadline, fact.silent_at) <= end]
        return any(fact.id in busy or fact.parent in busy for fact in due) or self._ends_letters(ms)

    def jump(self) -> None:
        """The wall clock is set."""
        ms = self.chance.choice(JUMPS_MS)
        self._skew(ms)

    def _skew(self, ms: float) -> None:
        if self._ends_letters(ms) or self._meets_changes(0):
            self.sim.settle()
        self.sim.say(f"  by {ms} ms")
        self.sim.skew(ms)

    def _ends_letters(self, ms: float) -> bool:
        """Whether a dead letter ends in that time of which a change waits for its commit."""
        end, busy = self.sim.clock.now().wall_ms + ms, self.sim.busy
        return any(fact.id in busy and fact.letter_ends <= end for fact in self.sim.world.jobs.values())

    def begin_flush(self) -> None:
        self.sim.flush_begin()

    def end_flush(self) -> None:
        sim = self.sim
        sim.flush_begin()
        sim.flush_end()
        if self.chance.random() < 0.2:
            sim.compare_engine()

    def checkpoint(self) -> None:
        self.sim.node.checkpoint(self.chance.choice(("PASSIVE", "PASSIVE", "TRUNCATE")))

    def trouble(self) -> None:
        kind, calls = self.chance.choice(list(Trouble)), self.chance.choice((0, 0, self.chance.randrange(12)))
        self.sim.say(f"  {kind.value} in {calls} calls")
        self.sim.disk.plan_trouble(kind, calls)

    def no_trouble(self) -> None:
        self.sim.disk.recover()
        if self.chance.random() < 0.5:
            self._recover()

    def _recover(self) -> None:
        """The disk takes writes again: with no help but time, everything is in the file soon."""
        sim, node = self.sim, self.sim.node
        limit_ms = NOTICED_MS if node.health.is_disk_full else RETRIED_MS
        waited_ms = 0.0
        while True:
            node.go_on()
            while sim.flying is not None:
                sim.flush_end()
            if node.is_clean:
                break
            ms = node.pause_ms
            waited_ms += ms
            require(waited_ms <= limit_ms, f"the disk is well, and in {waited_ms} ms not everything is in the file")
            if self._meets_changes(ms):
                sim.settle()  # time has to pass without them
                break
            sim.say(f"  the flusher waits for {ms} ms")
            sim.advance(ms)
        sim.books["recoveries"] += waited_ms > 0

    def plan_end(self) -> None:
        self.sim.plan_end()

    # the end

    def _finish(self) -> None:
        """All is well again: every job that can be worked is worked, and an orderly stop loses nothing."""
        sim = self.sim
        sim.say("finish")
        sim.note_promises()
        sim.disk.recover()
        self._recover()
        sim.live_on()
        sim.disk.recover()
        sim.disk.forget_end()
        sim.settle()
        require(sim.node.health.error is None, "a healthy disk does not make the server healthy")
        for queue in sorted(set(QUEUES)):
            sim.command(None, "Resume", Op("resume", lambda w, q=queue: w.paused.discard(q)), queue=queue)
        if CRON in sim.world.crons:
            sim.command(None, "CronDelete", Op("no cron", lambda w: w.crons.pop(CRON)), name=CRON)
        sim.settle()
        self._skew(DAY_MS)  # the time of what is delayed since the clock was put back
        self._work_all()
        sim.compare_engine()
        sim.node.engine.check_invariants()
        sim.stop_in_order()

    def _work_all(self) -> None:
        sim = self.sim
        for _ in range(ROUNDS_MAX):
            sim.settle()
            left = [fact for fact in sim.world.jobs.values() if fact.is_live and not fact.missing]
            if not left:
                return
            for queue in sorted(set(QUEUES)):
                while self._work_one(queue):
                    pass
            self._advance(LONG_MS)
        raise Violation(f"{[fact.id for fact in left]} can never be completed")

    def _work_one(self, queue: str) -> bool:
        sim, connection = self.sim, self.connection()
        sim.clock.advance(1)
        reply = sim.command(connection, "PULL", queue=queue, owner="w", lockTtl=LONG_MS)
        if reply.job is None:
            return False
        job_id = reply.job.id
        self._got(reply.job, reply.token, queue, connection, LONG_MS)
        op = Op(f"completion of {job_id}", lambda w: w.complete(job_id, None), frozenset({job_id}), book="completed")
        done = sim.command(None, "ACK", op, id=job_id, token=reply.token)
        require(self.is_promised(done), f"in the end, the ack of {job_id}: {self.told(done)}")
        return True
