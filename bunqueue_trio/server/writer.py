"""A thread of our own for blocking work: one call at a time, in order, never abandoned.

Trio's thread pool would do as well; it costs some 60 µs a call, of which half is starting and naming what is a new job
to it. A commit of one row takes 100 µs, and a worker that pulls and acknowledges one job at a time waits for each.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

import outcome
import trio

T = TypeVar("T")
Call = tuple[Callable[[], Any], Callable[[Any], None]]


class WorkThread:
    """Runs what `run` is given, in the order of the calls. Started at once; ends with `stop`."""

    def __init__(self, name: str) -> None:
        self._calls: SimpleQueue[Call | None] = SimpleQueue()
        self._token = trio.lowlevel.current_trio_token()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    async def run(self, function: Callable[[], T]) -> T:
        """Call *function* in the thread and wait for its result or error.

        Cancel: before it is handed over, or not at all; once handed over it is waited for.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        task = trio.lowlevel.current_task()

        def finish(result: outcome.Outcome[T]) -> None:
            trio.lowlevel.reschedule(task, result)

        self._calls.put((function, finish))
        value: T = await trio.lowlevel.wait_task_rescheduled(lambda _: trio.lowlevel.Abort.FAILED)
        return value

    def stop(self) -> None:
        """End the thread; what was handed over before is still done. Blocks until then."""
        self._calls.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            function, finish = call
            self._token.run_sync_soon(finish, outcome.capture(function))
