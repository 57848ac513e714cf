"""Trio and the thread of the writer as the flusher knows them, in one thread and in virtual time.

Nothing goes on by itself: what is awaited is handed to whoever drives the coroutine, who decides when it is over.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

import outcome
import trio

from bunqueue_trio.clock import ManualClock
from bunqueue_trio.server import flusher as flusher_module
from bunqueue_trio.server import store as store_module

T = TypeVar("T")
COMMITS_WITHOUT_PATIENCE = 2  # or a story would have one slow commit


class Nap:
    """A wait for an event, for a moment, or for either."""

    def __init__(self, until_s: float, event: Event | None = None) -> None:
        self.until_s = until_s
        self._event = event

    @property
    def is_over(self) -> bool:
        return VIRTUAL.current_time() >= self.until_s or (self._event is not None and self._event.is_set)


class Call(Generic[T]):
    """A call in the writer's thread: made when it is looked for, if the thread is quick, or by whoever drives."""

    def __init__(self, function: Callable[[], T], *, is_quick: bool) -> None:
        self._function = function
        self._is_quick = is_quick
        self._result: outcome.Outcome[T] | None = None

    def make(self) -> None:
        if self._result is None:
            self._result = outcome.capture(self._function)

    def is_over_within(self, patience_s: float) -> bool:
        if self._is_quick:
            self.make()
        return self._is_quick

    def result(self) -> T:
        assert self._result is not None
        return self._result.unwrap()

    async def wait(self) -> T:
        await _stop_at(self)
        self.make()
        return self.result()


Stop = Nap | Call[Any]


@types.coroutine
def _stop_at(stop: Stop) -> Generator[Stop, None, None]:
    yield stop


class Thread:
    """In the place of `WorkThread`. Whether it is quick is a matter of chance."""

    def __init__(self, name: str) -> None:
        self.is_quick: Callable[[], bool] = bool

    async def run(self, function: Callable[[], T]) -> T:
        return await self.hand_over(function).wait()

    def hand_over(self, function: Callable[[], T]) -> Call[T]:
        return Call(function, is_quick=self.is_quick())


class WalSync:
    """In the place of the thread that syncs the WAL: what it does promises nothing, so it may as well do nothing."""

    is_running = False

    def __init__(self, path: str) -> None:
        pass

    def keep_up(self, frames: int) -> None:
        pass


class Event:
    """In the place of Trio's."""

    def __init__(self) -> None:
        self.is_set = False

    def set(self) -> None:
        self.is_set = True

    async def wait(self) -> None:
        await _stop_at(Nap(VIRTUAL.deadline_s, self))


class Turn:
    """In the place of the semaphore around each flush: nobody may want it who would have to wait."""

    def __init__(self) -> None:
        self._is_taken = False

    def locked(self) -> bool:
        return self._is_taken

    def acquire_nowait(self) -> None:
        if self._is_taken:
            raise trio.WouldBlock
        self._is_taken = True

    async def acquire(self) -> None:
        raise AssertionError("two flushes at the same time")

    def release(self) -> None:
        assert self._is_taken, "the turn was given back twice"
        self._is_taken = False


class _Lowlevel:
    async def checkpoint_if_cancelled(self) -> None:
        pass


class VirtualTrio:
    """What flusher and store use of Trio. Its time is that of the simulation's clock, and may be ahead of it."""

    WouldBlock, Cancelled = trio.WouldBlock, trio.Cancelled
    Event = Event
    lowlevel = _Lowlevel()

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.ahead_s = 0.0
        self.deadline_s = float("inf")
        """Of the block of `move_on_after` that is being entered."""

    def current_time(self) -> float:
        return self.clock.now().mono_ms / 1000 + self.ahead_s

    async def sleep(self, seconds: float) -> None:
        await _stop_at(Nap(self.current_time() + seconds))

    @contextmanager
    def move_on_after(self, seconds: float) -> Iterator[None]:
        """Good for one event, on which nothing follows in the block."""
        self.deadline_s = self.current_time() + seconds
        try:
            yield
        finally:
            self.deadline_s = float("inf")


VIRTUAL = VirtualTrio()


@contextmanager
def virtual_time() -> Iterator[None]:
    """Within it flusher and store know no other Trio, and no threads."""
    places: tuple[tuple[Any, dict[str, Any]], ...] = (
        (flusher_module, {"trio": VIRTUAL, "COMMITS_WITHOUT_PATIENCE": COMMITS_WITHOUT_PATIENCE}),
        (store_module, {"trio": VIRTUAL, "WorkThread": Thread, "WalSync": WalSync}),
        (store_module, {"PASSIVE_ABOVE_FRAMES": store_module.PASSIVE_ABOVE_FRAMES}),  # each node has its own
    )
    before = [(module, name, getattr(module, name)) for module, names in places for name in names]
    for module, names in places:
        for name, value in names.items():
            setattr(module, name, value)
    try:
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)
