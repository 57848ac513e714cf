"""The task that lets time pass for the engine: ended leases, stalls, timeouts, due jobs, ended waits."""

from __future__ import annotations

import trio

from bunqueue_trio.server.broker import Broker

MAX_SLEEP_S = 1.0  # so that a jump of the wall clock is noticed within a second


async def run_reaper(broker: Broker, *, worker_cleanup_interval_ms: int) -> None:
    """Call `Broker.tick` whenever something is due, and at least once a second. Returns only when cancelled."""
    next_cleanup_mono_ms = 0.0
    while True:
        now = broker.clock.now()
        if now.mono_ms >= next_cleanup_mono_ms:
            next_cleanup_mono_ms = now.mono_ms + worker_cleanup_interval_ms
            broker.engine.workers.forget_silent(now)
        broker.tick(now)
        broker.timer_moved = trio.Event()
        left_s = (min(broker.next_deadline_mono_ms(now), next_cleanup_mono_ms) - now.mono_ms) / 1000
        with trio.move_on_after(min(max(left_s, 0.0), MAX_SLEEP_S)):
            await broker.timer_moved.wait()
