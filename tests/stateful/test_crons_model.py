"""Crons against a model of what each commit may do to the file: fired, skipped, refused, killed and recovered.

``BUNQUEUE_STATEFUL_EXAMPLES`` and ``BUNQUEUE_STATEFUL_STEPS`` make the search larger, and different in every run;
``BUNQUEUE_NO_SHRINK`` shows the first failure as it was found.

The file is the witness. Of each commit the rows before and after are compared: a cron has had its turn exactly when the
model says so, its executions grow by as many as it has made jobs, its next run is the first one later than the moment
of the decision, and intervals keep their phase. A commit that is refused, or lost in a kill, changes none of this, so
that nothing is counted that did not happen, and nothing happens that was not counted.
"""

import os
import random
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import msgpack
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from bunqueue_trio.clock import ManualClock
from bunqueue_trio.engine.state import PendingChangeError
from bunqueue_trio.errors import CommandError
from bunqueue_trio.ids import Ids
from bunqueue_trio.model.transitions import CronChange
from bunqueue_trio.server.startup import load_engine
from bunqueue_trio.storage import writes
from bunqueue_trio.storage.connection import open_writer
from tests.engine_harness import SECRET, EngineHarness, Flight

NAMES = ("a", "b", "c")
WORKER_TIMEOUT_MS = 30_000
SMALL_STEP_MS = 60_000
DAY_MS = 86_400_000
ROME = ZoneInfo("Europe/Rome")
GRIDS = {"*/5 * * * * *": (5_000, 0), "* * * * *": (60_000, 0), "30 7 * * * *": (3_600_000, 450_000)}
"""Expressions whose runs are so many ms apart, and how far from the full hour."""
DAILY = "15 30 2 * * *"

gaps = st.sampled_from([0, 3_000, 7_200_000])
jumps = st.sampled_from([-1_500, 1_500, -61_500, 90_000, -3 * 3_600_000, 6 * 3_600_000, 400 * DAY_MS, -400 * DAY_MS])
names = st.sampled_from(NAMES)
timings = st.one_of(
    st.fixed_dictionaries({"repeatEvery": st.sampled_from([1_000, 7_000, 60_000])}),
    st.fixed_dictionaries({"schedule": st.sampled_from(sorted(GRIDS))}),
    st.just({"schedule": DAILY, "timezone": "Europe/Rome"}),
)
switches = st.fixed_dictionaries(
    {
        "maxLimit": st.sampled_from([None, None, 1, 2, 5]),
        "preventOverlap": st.sampled_from([False, False, False, None]),
    },
    optional={
        "immediately": st.just(True),
        "skipMissedOnRestart": st.booleans(),
        "skipIfNoWorker": st.sampled_from([False, False, True]),
    },
)


@dataclass
class Row:
    """A cron as the file has it."""

    next_run: float
    executions: int
    limit: float | None
    schedule: str | None
    every: float | None
    skips_missed: bool
    needs_worker: bool
    is_exclusive: bool

    @property
    def is_exhausted(self) -> bool:
        return self.limit is not None and self.executions >= self.limit


@dataclass
class Turn:
    """What the engine has decided about a cron and not yet written."""

    kind: str  # put, delete, fire, skip, end, move
    now_ms: float
    mono_ms: float
    fields: dict[str, Any] | None = None


class CronMachine(RuleBasedStateMachine):
    """Time passes, clocks jump, files refuse, processes die."""

    @initialize(
        start=st.sampled_from(["2026-03-28T20:00", "2026-10-24T20:00", "2027-01-15T08:00"]),
        crons=st.tuples(*[st.tuples(timings, switches)] * 2),
    )
    def start(self, start: str, crons: tuple[tuple[dict[str, Any], dict[str, Any]], ...]) -> None:
        wall_ms = datetime.fromisoformat(start).replace(tzinfo=UTC).timestamp() * 1_000
        self.harness = EngineHarness(auto_commit=False, clock=ManualClock(wall_ms))
        self.connection = open_writer(":memory:")
        self.flight: Flight | None = None
        self.turns: dict[str, Turn] = {}
        self.fired_mono: dict[str, float] = {}
        self.seen_mono: float | None = None
        self.kills = 0
        self.harness.tick()
        for name, (timing, fields) in zip(NAMES, crons, strict=False):
            self.put(name, timing, fields)
        self.flush()

    def teardown(self) -> None:
        if hasattr(self, "connection"):
            self.connection.close()

    @property
    def wall(self) -> float:
        return self.harness.now.wall_ms

    # the file

    def rows(self) -> dict[str, Row]:
        columns = (
            "name, next_run, executions, max_limit, schedule, repeat_every, skip_missed_on_restart, "
            "skip_if_no_worker, prevent_overlap"
        )
        return {
            name: Row(float(run), done, limit, schedule, every, bool(missed), bool(worker), bool(alone))
            for name, run, done, limit, schedule, every, missed, worker, alone in self.connection.execute(
                f"SELECT {columns} FROM cron_jobs"
            )
        }

    def write(self, flight: Flight) -> None:
        before, made_before = self.rows(), self.made()
        writes.apply_batch(self.connection, flight.batch, ":memory:")
        after, made_after = self.rows(), self.made()
        carried = {change.name for change in flight.changes.staged if isinstance(change, CronChange)}
        for name in NAMES:
            made = len(made_after[name] - made_before[name])
            if name in carried:
                self.check_turn(self.turns[name], before.get(name), after.get(name), made)
            else:
                assert before.get(name) == after.get(name)
                assert made == 0, "a job without its count"

    def made(self) -> dict[str, set[str]]:
        """Ids of the jobs of each cron, those among the dead letters included, which end some day."""
        found: dict[str, set[str]] = {name: set() for name in NAMES}
        for job_id, data in self.connection.execute("SELECT id, data FROM jobs"):
            found[msgpack.unpackb(data)["name"]].add(job_id)
        for (entry,) in self.connection.execute("SELECT entry FROM dlq"):
            job = msgpack.unpackb(entry)["job"]
            found[job["data"]["name"]].add(job["id"])
        return found

    def check_turn(self, turn: Turn, old: Row | None, new: Row | None, made: int) -> None:
        if turn.kind == "put":
            assert new is not None
            assert made == 0
            assert new.executions == (0 if old is None else old.executions)
            is_at_once = old is None and turn.fields is not None and turn.fields.get("immediately")
            if is_at_once:
                assert new.next_run == turn.now_ms
            else:
                self.check_next(new, None, turn.now_ms)
            return
        assert old is not None
        if turn.kind in ("delete", "end"):
            assert (new, made) == (None, 0)
            assert turn.kind == "delete" or old.is_exhausted
            return
        assert new is not None
        if turn.kind == "fire":
            assert not old.is_exhausted
            assert old.next_run <= turn.now_ms, "before its time"
            assert new.executions == old.executions + 1
            assert made == 1 or (made == 0 and old.is_exclusive)
        else:
            assert (new.executions, made) == (old.executions, 0)
        if turn.kind == "boot" and old.next_run <= turn.now_ms:
            assert old.skips_missed or old.needs_worker
            old = None  # an interval starts anew
        self.check_next(new, old, turn.now_ms)

    @staticmethod
    def check_next(new: Row, old: Row | None, now_ms: float) -> None:
        """The next run is the first one later than *now_ms*; an interval that has an *old* run keeps its phase."""
        assert new.next_run > now_ms
        if new.schedule == DAILY:
            local = datetime.fromtimestamp(new.next_run / 1_000, ROME)
            assert (local.minute, local.second) == (30, 15)
            assert local.hour == 2 or (local.hour, local.month) == (3, 3)
            assert new.next_run <= now_ms + DAY_MS + 3_600_000
            return
        period, offset = GRIDS[new.schedule] if new.schedule else (new.every, None)
        assert period is not None
        assert new.next_run <= now_ms + period
        if offset is not None:
            assert (new.next_run - offset) % period == 0
        elif old is None:
            assert new.next_run == now_ms + period
        else:
            assert (new.next_run - old.next_run) % period == 0

    # flushes

    def take(self) -> Flight | None:
        return self.harness.take() if self.harness.engine.state.changes else None

    def settle(self, flight: Flight, *, success: bool) -> None:
        if success:
            self.write(flight)
            for name, turn in list(self.turns.items()):
                if any(isinstance(change, CronChange) and change.name == name for change in flight.changes.staged):
                    self.took_place(name, turn)
                    del self.turns[name]
            self.harness.land(flight)
        else:
            self.harness.crash(flight)
            self.turns.clear()  # those that came meanwhile are dropped along with it

    def took_place(self, name: str, turn: Turn) -> None:
        if turn.kind == "fire":
            self.fired_mono[name] = turn.mono_ms
        elif turn.kind in ("put", "delete", "end"):
            self.fired_mono.pop(name, None)

    def flush(self) -> None:
        """Until nothing is left."""
        if self.flight is not None:
            flight, self.flight = self.flight, None
            self.settle(flight, success=True)
        while (flight := self.take()) is not None:
            self.settle(flight, success=True)

    @precondition(lambda self: self.flight is None)
    @rule()
    def begin_flush(self) -> None:
        self.flight = self.take()

    @precondition(lambda self: self.flight is not None)
    @rule(success=st.booleans())
    def end_flush(self, success: bool) -> None:
        flight, self.flight = self.flight, None
        assert flight is not None
        self.settle(flight, success=success)

    @rule(success=st.sampled_from([True, True, False]))
    def flush_once(self, success: bool) -> None:
        if self.flight is None and (flight := self.take()) is not None:
            self.settle(flight, success=success)

    # commands

    def ask(self, cmd: str, **fields: Any) -> bool:
        """Whether the command was carried out; it may have to wait for a flush."""
        for _ in range(2):
            try:
                self.harness.send(cmd, **fields)
            except PendingChangeError:
                self.flush()
            except CommandError:
                return False
            else:
                return True
        raise AssertionError("a change is under way for ever")

    @rule(name=names, timing=timings, fields=switches)
    def put(self, name: str, timing: dict[str, Any], fields: dict[str, Any]) -> None:
        assert self.ask("Cron", name=name, queue="q", data={"name": name}, **timing, **fields)
        self.turns[name] = Turn("put", self.wall, self.harness.now.mono_ms, fields)

    @rule(name=names)
    def delete(self, name: str) -> None:
        is_done = self.ask("CronDelete", name=name)
        if is_done:
            self.turns[name] = Turn("delete", self.wall, self.harness.now.mono_ms)
        else:
            assert name not in self.rows()

    # workers

    @rule()
    def come_or_go(self) -> None:
        if self.seen_mono is None:
            self.harness.send("RegisterWorker", name="w", workerId="w", queues=["q"])
            self.seen_mono = self.harness.now.mono_ms
        else:
            self.ask("UnregisterWorker", workerId="w")
            self.seen_mono = None

    @rule(is_done=st.booleans())
    def work(self, is_done: bool) -> None:
        self.flush()
        if not is_done:
            self.harness.pull(lockTtl=DAY_MS)
            return
        while (pulled := self.harness.pull(lockTtl=DAY_MS)) is not None:
            self.harness.ack(*pulled)
            self.flush()

    @rule(cmd=st.sampled_from(["Pause", "Resume"]))
    def switch(self, cmd: str) -> None:
        self.ask(cmd, queue="q")

    # time

    def expected(self, name: str, row: Row, now_ms: float, mono_ms: float) -> str | None:
        """What a look at a cron that has no change under way has to bring; None: nothing."""
        if now_ms < row.next_run:
            return None
        if row.is_exhausted:
            return "end"
        if row.needs_worker and (self.seen_mono is None or mono_ms - self.seen_mono >= WORKER_TIMEOUT_MS):
            return "skip"
        fired = self.fired_mono.get(name)
        if not row.schedule and fired is not None and row.every is not None and mono_ms - fired < 0.8 * row.every:
            return "skip"
        return "fire"

    def tick(self) -> None:
        """Let the engine look at the clock; each decision must be the model's."""
        rows, table = self.rows(), self.harness.engine.state.crons
        pending = set(table.pending)
        waits = {name for name, cron in table.by_name.items() if cron.place is not None and cron.place[0] > self.wall}
        self.harness.tick()
        now_ms, mono_ms = self.wall, self.harness.now.mono_ms
        for name, row in rows.items():
            if name in pending:
                continue
            kind = self.expected(name, row, now_ms, mono_ms)
            if name in table.pending:
                changed = table.pending[name]
                if kind is None:  # the clock was set back: it may come sooner, and far sooner only
                    assert changed is not None
                    assert row.next_run - changed.job.next_run > SMALL_STEP_MS
                    kind = "move"
                self.turns[name] = Turn(kind, now_ms, mono_ms)
            else:  # due, but after a commit that failed it waits a second; or for a change of the job with its key
                assert kind is None or name in waits or self.waits_for_key(name)
        assert set(table.pending) <= set(self.turns)

    def waits_for_key(self, name: str) -> bool:
        cron = self.harness.engine.state.crons.by_name[name]
        key = cron.job.effective_key
        return key is not None and cron.place is not None and 0 < cron.place[0] - self.wall <= 20

    @rule(ms=st.sampled_from([0, 1, 500, 1_000, 1_000, 5_000, 20_000]))
    def pause(self, ms: float) -> None:
        """Time passes unnoticed, as in a process that is held up; then one look."""
        self.harness.clock.advance(ms)
        self.tick()

    @rule(
        success=st.sampled_from([False, False, True]),
        dies=st.sampled_from([False, False, True]),
        back_ms=st.sampled_from([0, -1_500]),
    )
    def run_next(self, success: bool, dies: bool, back_ms: float) -> None:
        """Whatever is due next becomes due; its commit succeeds, fails, or dies with the process; the clock is set."""
        self.flush()
        due_ms = self.harness.engine.state.crons.next_due_ms()
        if due_ms < self.wall + 2 * DAY_MS:
            self.harness.clock.advance(max(0.0, due_ms - self.wall))
            self.tick()
            if dies:
                self.kill_now(is_written=success)
            elif (flight := self.take()) is not None:
                self.settle(flight, success=success)
        self.jump(back_ms)

    @rule(ms=st.sampled_from([1_000, 10_000, 61_000]), beats=st.booleans())
    def live(self, ms: float, beats: bool) -> None:
        """Time passes as in a healthy server."""
        self.flush()
        end = self.harness.now.mono_ms + ms
        while True:
            left = end - self.harness.now.mono_ms
            step = max(0.0, min(self.harness.engine.next_deadline_mono_ms(self.harness.now) - end + left, left, 10_000))
            self.harness.clock.advance(step)
            if beats and self.seen_mono is not None and self.ask("Heartbeat", id="w"):
                self.seen_mono = self.harness.now.mono_ms
            self.tick()
            self.flush()
            if left <= 0:
                return

    @rule(
        ms=st.sampled_from([-1_500, 1_500, -61_500, 90_000, -3 * 3_600_000, 6 * 3_600_000, 400 * DAY_MS, -400 * DAY_MS])
    )
    def jump(self, ms: float) -> None:
        """The wall clock is set: at most one run makes up for what was missed, and nothing falls silent."""
        self.flush()
        done_before = {name: row.executions for name, row in self.rows().items()}
        self.harness.clock.skew(ms)
        self.tick()
        self.flush()
        self.tick()
        self.flush()
        for name, row in self.rows().items():
            assert row.executions - done_before[name] <= 1
            period = GRIDS[row.schedule][0] if row.schedule in GRIDS else row.every or DAY_MS + 3_600_000
            waits = self.harness.engine.state.crons.by_name[name].place
            assert waits is not None
            assert max(waits[0], row.next_run) <= self.wall + period + SMALL_STEP_MS, "it has fallen silent"
            assert self.wall < row.next_run or waits[0] > self.wall

    # ends

    @rule(
        is_written=st.booleans(),
        down_ms=st.sampled_from([0, 3_000, 7_200_000]),
        jump_ms=st.sampled_from([0, 0, -5_000]),
    )
    def kill(self, is_written: bool, down_ms: float, jump_ms: float) -> None:
        self.kill_now(is_written, down_ms, jump_ms)

    def kill_now(self, is_written: bool, down_ms: float = 0, jump_ms: float = 0) -> None:
        """The process dies on either side of its commit; what was not written has not happened."""
        flight = self.flight if self.flight is not None else self.take()
        if flight is not None and is_written:
            self.write(flight)
        self.flight, self.seen_mono, self.kills = None, None, self.kills + 1
        self.turns.clear()
        self.fired_mono.clear()
        now = self.harness.clock.advance(down_ms)
        self.harness.clock = ManualClock(now.wall_ms + jump_ms)
        ids = Ids(SECRET, random.Random(f"life {self.kills}"))  # else ids of the first life come again
        self.harness.engine = load_engine(self.connection, ids, self.harness.clock, lease_grace_ms=2_000)
        self.harness.connect(1)
        crons, rows = self.harness.engine.state.crons, self.rows()
        assert list(crons.by_name) == list(rows)
        for name, row in rows.items():
            next_run = crons.by_name[name].job.next_run
            if next_run != row.next_run:
                self.turns[name] = Turn("boot", self.wall, self.harness.now.mono_ms)
                assert name in crons.pending
            if row.next_run <= self.wall and (row.skips_missed or row.needs_worker):
                assert next_run > self.wall, "a missed run is made up for"
            elif row.next_run <= self.wall:
                assert next_run == row.next_run, "a missed run is lost"
        self.flush()
        self.tick()

    # what must hold

    @invariant()
    def memory_and_file_agree(self) -> None:
        if not hasattr(self, "harness"):
            return
        self.harness.engine.check_invariants()
        rows, table = self.rows(), self.harness.engine.state.crons
        assert list(table.by_name) == list(rows)
        for name, row in rows.items():
            job = table.by_name[name].job
            assert (job.next_run, job.executions, job.max_limit) == (row.next_run, row.executions, row.limit)


CronMachine.TestCase.settings = settings(
    max_examples=int(os.environ.get("BUNQUEUE_STATEFUL_EXAMPLES", "60")),
    stateful_step_count=int(os.environ.get("BUNQUEUE_STATEFUL_STEPS", "40")),
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate] if "BUNQUEUE_NO_SHRINK" in os.environ else list(Phase),
    derandomize="BUNQUEUE_STATEFUL_EXAMPLES" not in os.environ,
    database=None,
)
TestCrons = CronMachine.TestCase
