"""One seed, one life of a server: random clients, failing disks, clock jumps, kills, power cuts; checked all the way.

The invariants, after every end of a process, and at the end of the run:

- what was confirmed is there: after a kill every commit that returned, after a power cut every one that was promised to
  be synced (`synchronous` FULL, a push with ``durable: "fsync"``, a complete checkpoint);
- nothing else is there: the file says exactly what the model says after some commit, never a part of one, never a job
  that nobody pushed, each job in one state. A commit whose sync failed is such a commit as well: it was refused, its
  end is in the WAL all the same, and the next start may find it;
- every counter equals its recount (`engine.invariants`), and every field of every record is what memory held;
- a token that is not that of the current lease is refused, before and after recovery, so that no two holders may both
  finish a job; a lease ends when its time is over and not before;
- once the disk takes writes again, everything is in the file within a bounded time, with nobody's help;
- in the end every job that does not wait for others for good, and is not among the dead letters, can be completed.

They never say that an effect happens exactly once: the job of a lost worker is run again.
"""

from __future__ import annotations

from pathlib import Path

from bunqueue_trio.errors import StartError, StorageError
from bunqueue_trio.model.transitions import TransitionKind
from bunqueue_trio.storage import connection as db
from tests.simulation.disk import VFS_NAME, SimulatedVFS
from tests.simulation.machine import Attempt, Machine
from tests.simulation.model import ACTIVE, COMPLETED, FAILED, QUEUED, Fact, Violation, require
from tests.simulation.node import PATH, Node
from tests.simulation.witness import FileContent
from tests.storage.powercut import Loss

STARTS_MAX = 20
KILL_SHARE = 0.35
TAIL = 60
SHOWN = {ACTIVE: ("active",), COMPLETED: ("completed",), FAILED: ("failed",)}
SHOWN_QUEUED = ("waiting", "prioritized", "delayed")
SHOWN_HELD = (*SHOWN_QUEUED, "waiting-children")


class Simulation(Machine):
    """A machine whose process ends again and again, and is started again.

    Args:
        template: the files of an empty database, for all seeds but those that begin with none.
    """

    def __init__(self, seed: int, vfs: SimulatedVFS, template: dict[str, bytes], *, is_verbose: bool = False) -> None:
        super().__init__(seed, vfs, template if seed % 20 else {}, is_verbose=is_verbose)
        self.given: dict[str, dict[str, int]] = {}
        """By job the tokens of its deliveries, oldest first, with the attempts that were charged before."""
        self.numbers = 0
        """Payloads, in the order of pushes."""
        self._erased: dict[str, int] = {}
        self._plan: Loss | None = None
        """How the end that is planned will come. None: a kill, which loses nothing that was written."""
        self._was_cut = False
        self._promised = (0, 0)
        """Which attempt must survive a kill at least, and which one a power cut."""

    # ends

    def plan_end(self) -> None:
        """A kill or a power cut at one of the next calls of SQLite, or right now."""
        self._plan = None if self.chance.random() < KILL_SHARE else self.chance.choice(list(Loss))
        calls = self.chance.choice((-1, self.chance.randrange(6), self.chance.randrange(60)))
        self.disk.plan_end(calls)
        self.say(f"  {_named(self._plan)} in {calls} calls")

    def note_promises(self) -> None:
        """Something is about to happen; when it brings the end, only what was promised before counts."""
        kept = max(number for number, attempt in enumerate(self.attempts) if attempt.is_kept)
        synced = max(number for number, attempt in enumerate(self.attempts) if attempt.is_synced)
        self._promised = (kept, synced)

    def live_on(self) -> None:
        """If the end has come: everything since the call at which it did was seen by nobody."""
        if not self.disk.has_ended:
            return
        lost = [promise.op.what for promise in self.pending if promise.verdict]
        require(not lost, f"confirmed, and not even on the way to the disk: {lost}")
        self._end()
        self.start()

    def _end(self) -> None:
        self.node.close()
        self.flying, self.pending, self.connections = None, [], []
        self._pass_on_disk()

    def _pass_on_disk(self) -> None:
        disk, loss, self._plan = self.disk, self._plan, None
        self.books["kills" if loss is None else "power cuts"] += 1
        kept, synced = self._promised
        self.say(f"=== {_named(loss)}; to be kept {kept}, synced {synced}")
        for number, attempt in enumerate(self.attempts):
            attempt.is_kept = attempt.is_kept and number <= kept
            attempt.is_synced = attempt.is_synced and number <= synced
        self._was_cut = loss is not None
        seed = self.chance.randrange(1 << 30)
        self.vfs.disk = disk.after_kill() if loss is None else disk.after_power_cut(loss, seed)

    # starts

    def start(self) -> None:
        """Start until the server serves; the process may end and the disk may fail on the way."""
        for _ in range(STARTS_MAX):
            self.clock.advance(self.chance.choice((50, 50, 1_000, 40_000)))
            if self._start_once():
                self.connect()
                return
        raise Violation(f"the server does not start in {STARTS_MAX} tries")

    def _start_once(self) -> bool:
        if self.chance.random() < 0.1:
            self.plan_end()
        try:
            self._node = Node(self, self.clock, self.synchronous, f"{self.seed} {len(self.trace)}")
        except (StartError, StorageError) as error:
            self._note_refusal(error)
            return False
        self._recovered()
        self.note_promises()
        has_written = not self.node.engine.state.changes
        if not has_written:
            self.flush_begin()
            has_written = self.flush_end()
        if has_written and not self.disk.has_ended:
            return True
        if not self.disk.has_ended:  # a server that cannot write at its start gives up, and is started again
            self.note_promises()
            self.disk.recover()
            self._plan = None
            self.disk.plan_end(-1)
        self._end()
        return False

    def _note_refusal(self, error: Exception) -> None:
        require(self.disk.trouble is not None, f"the server does not start on a healthy disk: {error}")
        self.say(f"  start refused: {error}")
        self.books["refused starts"] += 1
        self.disk.recover()
        if self.disk.has_ended:
            self._pass_on_disk()

    def _recovered(self) -> None:
        """Compare what is there with what may be there, and go on from it."""
        node = self.node
        require(node.connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)], "the file is damaged")
        kept, synced = self._promised
        number = self._found(synced if self._was_cut else kept)
        self.books["commits that a cut undid"] += max(0, kept - number)
        attempt = self.attempts[number]
        node.engine.check_invariants()
        self.completed = {} if attempt.memory is None else dict(attempt.memory.completed)
        self._go_on_from(attempt)
        self.compare_engine()

    def _found(self, least: int) -> int:
        """The number of the attempt that the file shows: the newest, where several look alike."""
        node, content = self.node, FileContent(self.node.connection)
        other_values: Violation | None = None
        for number in range(len(self.attempts) - 1, least - 1, -1):
            attempt = self.attempts[number]
            if attempt.is_void or content.difference(attempt.world) is not None:
                continue
            try:
                if attempt.memory is not None:
                    attempt.memory.compare(node.engine, node.connection)
            except Violation as violation:
                other_values = other_values or violation
            else:
                self.say(f"  recovered commit {number} of {least}..{len(self.attempts) - 1}")
                return number
        if other_values is not None:
            raise other_values
        self.books["lost"] += len(self.attempts[least].world.jobs.keys() - content.ids)
        before = [n for n in range(least) if content.difference(self.attempts[n].world) is None]
        differences = [
            f"{n}{' (void)' if self.attempts[n].is_void else ''}: {content.difference(self.attempts[n].world)}"
            for n in range(least, len(self.attempts))
        ]
        found = f"commit {before[-1]} is" if before else "no commit is"
        raise Violation(f"commit {least} or a later one must be there, {found}\n" + "\n".join(differences))

    def _go_on_from(self, attempt: Attempt) -> None:
        self.world = attempt.world.copy()
        self.world.restart(self.clock.now().wall_ms)
        self._erased = {token: attempts for tokens in self.given.values() for token, attempts in tokens.items()}
        if self._was_cut:
            self.attempts.clear()  # what is there now is on the disk
        self.attempts.append(Attempt(attempt.world, attempt.memory, is_kept=True, is_synced=self._was_cut))

    def may_be_erased(self, fact: Fact, token: str) -> bool:
        """Whether that token may be of a delivery that a crash has erased, so that its ACK may count or not.

        Nobody can have been given the job since, and no attempt charged.
        """
        return fact.is_ready and fact.token is None and self._erased.get(token) == fact.attempts

    def stop_in_order(self) -> None:
        """The last flush has been; the WAL is folded in, and the file alone says everything."""
        db.close_writer(self.node.connection)
        require(not self.disk.files.get(f"{Path(PATH).name}-wal"), "an orderly stop leaves a WAL")
        reader = db.open_writer(PATH, synchronous=self.synchronous, vfs=VFS_NAME)
        try:
            difference = FileContent(reader).difference(self.world)
        finally:
            reader.close(True)
        require(difference is None, f"after an orderly stop: {difference}")

    def close(self) -> None:
        """Nothing stays open."""
        if self._node is not None:
            self._node.close()

    # comparing

    def compare_engine(self) -> None:
        """The engine tells clients what the model expects."""
        wall_ms, busy = self.clock.now().wall_ms, self.busy
        for fact in self.world.jobs.values():
            shown = self.node.execute(None, "GetState", id=fact.id).state
            # A queued job that is held for a commit is shown as it was then.
            expected = SHOWN_HELD if fact.state == QUEUED and fact.id in busy else _shown(fact, wall_ms)
            require(shown in expected, f"{fact.id} is shown as {shown}, not {' or '.join(expected)}")
            if fact.state == QUEUED and fact.id not in busy:
                missing = self.node.engine.state.jobs[fact.id].missing or set()
                require(missing == fact.missing, f"{fact.id} waits for {missing}, not {set(fact.missing)}")
        jobs = self.node.engine.state.jobs
        unborn = {i for i, job in jobs.items() if job.staged and job.staged.kind is TransitionKind.PUBLISH}
        strangers = sorted(jobs.keys() - self.world.jobs.keys() - unborn)
        require(not strangers, f"the engine knows {strangers}, which nobody has pushed")

    def failure(self, violation: BaseException) -> str:
        """What to print: the seed, the tail of the story, the difference."""
        tail = "\n".join(self.trace[-TAIL:])
        return f"seed {self.seed} (synchronous {self.synchronous})\n{tail}\n>>> {violation}"


def _named(loss: Loss | None) -> str:
    return "kill" if loss is None else f"power cut, loss {loss.value}"


def _shown(fact: Fact, wall_ms: float) -> tuple[str, ...]:
    if fact.is_parked:
        return ("waiting-children",)
    if fact.state == QUEUED and fact.run_at is not None:
        ready = "prioritized" if fact.priority > 0 else "waiting"
        return ("delayed" if fact.run_at > wall_ms else ready,)
    return SHOWN.get(fact.state, SHOWN_QUEUED)
