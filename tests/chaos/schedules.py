"""A server in memory in which one seed decides everything: whose turn it is, how long commits take and which of them
fail, when clients hesitate, and for how long. Time is virtual. The same seed plays the same run, to the last reply.

Trio picks the order of tasks that can run at random; here its dice are ours. It leaves the dice out of it where tasks
become runnable one after the other, so clients hesitate too: for some turns of the loop, or for some time.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import trio
import trio._core._run as trio_run  # type: ignore[import-untyped]
from trio.testing import MockClock

from bunqueue_trio.config import Config
from bunqueue_trio.errors import DiskFullError
from bunqueue_trio.server.reaper import run_reaper
from bunqueue_trio.storage.batch import Batch, CommitReport
from tests.server.fakes import FULL, FakeStore, Rig, Wire

PATIENCE_S = 3_600.0  # virtual
PAUSES_S = (0.0, 0.0001, 0.0005, 0.002, 0.01, 0.03)


class UnsteadyStore(FakeStore):
    """Its commits take none, some or much time. Every *n*-th fails, with ``fail_share`` = 1 / n."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self._rng = rng
        self.fail_share = 0.0

    async def commit(self, batch: Batch) -> CommitReport:
        """As in the writer's thread: a commit that has begun is carried out, whoever is cancelled meanwhile."""
        await trio.lowlevel.checkpoint_if_cancelled()
        with trio.CancelScope(shield=True):
            await trio.sleep(self._rng.choice(PAUSES_S))
        if self._rng.random() < self.fail_share:
            self.fail_next.append(DiskFullError(FULL))
        return await super().commit(batch)


class Stage:
    """One server, and whoever plays on it. ``trace`` is what was said to whom, and when."""

    def __init__(self, seed: int, keepers: trio.Nursery, sessions: trio.Nursery) -> None:
        self.rng = random.Random(seed)
        self.store = UnsteadyStore(self.rng)
        self.rig = Rig(store=self.store, lease_grace_ms=self.rng.choice((0, 5, 50)))
        self.trace: list[tuple[float, str, str]] = []
        self._keepers = keepers
        self._flusher_scope = trio.CancelScope()
        self._flusher_ended = trio.Event()
        self._sessions = sessions
        self._wires: list[Wire] = []

    async def start(self) -> None:
        """Let the keepers run."""
        await self._keepers.start(self._run_flusher)
        interval_ms = Config().worker_cleanup_interval_ms
        self._sessions.start_soon(lambda: run_reaper(self.rig.broker, worker_cleanup_interval_ms=interval_ms))

    async def _run_flusher(self, *, task_status: trio.TaskStatus[None]) -> None:
        with self._flusher_scope:
            await self.rig.flusher.run(task_status=task_status)
        self._flusher_ended.set()

    async def end_flusher(self) -> None:
        """Nobody but the caller flushes from now on."""
        self._flusher_scope.cancel()
        await self._flusher_ended.wait()

    def connect(self, name: str) -> Player:
        """A new client."""
        wire = Wire(self.rig)
        self._wires.append(wire)
        self._sessions.start_soon(wire.serve)
        return Player(self, name, wire)

    async def hesitate(self) -> None:
        """Let others go first, or not."""
        if self.rng.random() < 0.5:
            for _ in range(self.rng.randrange(5)):
                await trio.lowlevel.checkpoint()
        else:
            await trio.sleep(self.rng.choice(PAUSES_S))

    async def together(self, *acts: Callable[[], Awaitable[Any]]) -> list[Any]:
        """Begin all of them, each after a moment of its own; what they return."""
        results: list[Any] = [None] * len(acts)

        async def run(number: int) -> None:
            await self.hesitate()
            results[number] = await acts[number]()

        async with trio.open_nursery() as nursery:
            for number in range(len(acts)):
                nursery.start_soon(run, number)
        return results

    def end_sessions(self) -> None:
        """The server leaves its clients, as it does at the end of its stop."""
        self._sessions.cancel_scope.cancel()

    def close(self) -> None:
        """Let go of all sockets."""
        for wire in self._wires:
            wire.close()
            wire.server_stream.close()


class Player:
    """A client of a `Stage`, with one command under way at most."""

    def __init__(self, stage: Stage, name: str, wire: Wire) -> None:
        self.name = name
        self._stage = stage
        self._wire = wire

    async def call(self, cmd: str, /, **fields: Any) -> dict[str, Any]:
        """A command and its reply.

        Raises:
            ConnectionError, EOFError: the connection has ended.
        """
        await self._wire.send({"cmd": cmd, **fields})
        return await self.reply(cmd)

    async def send(self, cmd: str, /, **fields: Any) -> None:
        """A command; the reply is for `reply`."""
        await self._wire.send({"cmd": cmd, **fields})

    async def reply(self, about: str = "") -> dict[str, Any]:
        """The next reply."""
        reply = await self._wire.reply()
        self._stage.trace.append((trio.current_time(), self.name, f"{about} {reply}"))
        return reply

    async def ok(self, cmd: str, /, **fields: Any) -> dict[str, Any]:
        """A command that must be answered ok."""
        reply = await self.call(cmd, **fields)
        assert reply["ok"] is True, (cmd, fields, reply)
        return reply

    def close(self) -> None:
        """Leave."""
        self._wire.close()


Scenario = Callable[[Stage], Awaitable[None]]


def play(scenario: Scenario, seed: int) -> list[tuple[float, str, str]]:
    """One run of *scenario*; its trace. The engine's books are recounted at the end.

    Raises:
        AssertionError: of the scenario; a note names the seed.
    """

    async def act(stage: Stage) -> None:
        with trio.fail_after(PATIENCE_S):
            await scenario(stage)
        stage.rig.check()
        stage.end_sessions()

    async def main() -> list[tuple[float, str, str]]:
        async with trio.open_nursery() as keepers:
            async with trio.open_nursery() as around, trio.open_nursery() as sessions:
                stage = Stage(seed, keepers, sessions)
                await stage.start()
                around.start_soon(act, stage)
            stage.close()
            keepers.cancel_scope.cancel()
        return stage.trace

    with _our_dice(seed):
        try:
            return trio.run(main, clock=MockClock(autojump_threshold=0))
        except BaseException as error:
            error.add_note(f"{getattr(scenario, '__name__', scenario)}: CHAOS_SEED={seed}")
            raise


@contextmanager
def _our_dice(seed: int) -> Iterator[None]:
    """Trio's order of tasks follows *seed*."""
    dice, was_allowed = trio_run._r, trio_run._ALLOW_DETERMINISTIC_SCHEDULING
    trio_run._r, trio_run._ALLOW_DETERMINISTIC_SCHEDULING = random.Random(seed), True
    try:
        yield
    finally:
        trio_run._r, trio_run._ALLOW_DETERMINISTIC_SCHEDULING = dice, was_allowed
