"""A thread of our own for blocking work: one call at a time, in order, never abandoned.

Trio's thread pool would do as well; it costs some 60 µs a call, of which half is starting and naming what is a new job
to it. A commit of one row takes 100 µs, and a worker that pulls and acknowledges one job at a time waits for each.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

import outcome
import trio

T = TypeVar("T")


class Call(Generic[T]):
    """A call that has been handed to the thread, and will be made whatever becomes of who waits for it."""

    __slots__ = ("_claim", "_function", "_is_over", "_result", "_task", "_token")

    def __init__(self, function: Callable[[], T], token: trio.lowlevel.TrioToken) -> None:
        self._function = function
        self._token = token
        self._task: trio.lowlevel.Task | None = None
        self._result: outcome.Outcome[T]
        self._is_over = threading.Lock()
        self._is_over.acquire()
        self._claim = threading.Lock()  # whoever takes it first, thread or waiter, need not be told by the other

    def is_over_within(self, patience_s: float) -> bool:
        """Whether `result` is there by then. Blocks the loop meanwhile. To be called once, before `wait`."""
        return self._is_over.acquire(timeout=patience_s)

    def result(self) -> T:
        """What it returned, once it is over; raises what it raised. Once per call, instead of `wait`."""
        return self._result.unwrap()

    async def wait(self) -> T:
        """Wait for the result or error. Once per call, instead of `result`.

        Cancel: not before it is over, for it will be made in any case. No checkpoint when it is over already.
        """
        self._task = trio.lowlevel.current_task()
        if self._claim.acquire(blocking=False):
            await trio.lowlevel.wait_task_rescheduled(lambda _: trio.lowlevel.Abort.FAILED)
        return self._result.unwrap()

    def make(self) -> None:
        """In the thread."""
        self._result = outcome.capture(self._function)
        self._is_over.release()
        if not self._claim.acquire(blocking=False):
            assert self._task is not None
            self._token.run_sync_soon(trio.lowlevel.reschedule, self._task)


class WorkThread:
    """Runs what it is given, in the order of the calls. Started at once; ends with `stop`."""

    def __init__(self, name: str) -> None:
        self._calls: SimpleQueue[Call[Any] | None] = SimpleQueue()
        self._token = trio.lowlevel.current_trio_token()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    async def run(self, function: Callable[[], T]) -> T:
        """Call *function* in the thread and wait for its result or error.

        Cancel: before it is handed over, or not at all; once handed over it is waited for.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        return await self.hand_over(function).wait()

    def hand_over(self, function: Callable[[], T]) -> Call[T]:
        """Have *function* called in the thread, and go on."""
        call = Call(function, self._token)
        self._calls.put(call)
        return call

    def stop(self) -> None:
        """End the thread; what was handed over before is still done. Blocks until then."""
        self._calls.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call.make()
