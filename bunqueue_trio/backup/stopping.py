"""Blocking work in a thread, which ends when its task is cancelled."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final, TypeVar

import outcome
import trio

from bunqueue_trio.backup.patience import Patience
from bunqueue_trio.errors import BackupStoppedError

GRACE_S: Final = 6.0
"""How long work that was told to stop is waited for: it may take back what it has begun, two requests at most."""

NICENESS: Final = 10
"""Of 19: a tenth of the weight of the server's other threads, where there are fewer processors than work."""

T = TypeVar("T")


async def run_stoppable(
    work: Callable[[], T], patience: Patience, *, limiter: trio.CapacityLimiter | None = None, is_gentle: bool = False
) -> T:
    """Call *work* in a thread; when cancelled, tell it to stop and wait until it has.

    Args:
        is_gentle: the system gives its thread time only when others do not want it. It is none of Trio's then.

    Cancel: work that does not end within `GRACE_S` (name resolution cannot be interrupted) is left behind; it meets the
    stop at its next step.
    """
    grace = trio.CancelScope(shield=True)
    captured: outcome.Outcome[T] | None = None

    async def watch() -> None:
        try:
            await trio.sleep_forever()
        finally:
            patience.stop()
            grace.deadline = trio.current_time() + GRACE_S

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        with grace:
            captured = await trio.to_thread.run_sync(
                lambda: outcome.capture(_gently, work) if is_gentle else outcome.capture(work),
                abandon_on_cancel=True,
                limiter=limiter,
            )
        nursery.cancel_scope.cancel(reason="the work has ended")
    await trio.lowlevel.checkpoint_if_cancelled()
    if captured is None:
        raise BackupStoppedError("Backup was stopped")
    return captured.unwrap()


def _gently(work: Callable[[], T]) -> T:
    """In a thread that ends with the work: the priority that it gives up cannot be had back."""
    captured: list[outcome.Outcome[T]] = []

    def run() -> None:
        if sys.platform == "linux":  # elsewhere priorities are those of processes
            thread_id = threading.get_native_id()
            with suppress(OSError):
                niceness = max(NICENESS, os.getpriority(os.PRIO_PROCESS, thread_id))
                os.setpriority(os.PRIO_PROCESS, thread_id, niceness)
        captured.append(outcome.capture(work))

    thread = threading.Thread(target=run, name="bunqueue-backup", daemon=True)
    thread.start()
    thread.join()
    return captured[0].unwrap()
