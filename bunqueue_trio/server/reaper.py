"""The task that lets time pass for the engine: ended leases, stalls, timeouts, due jobs, ended waits."""

from __future__ import annotations

import trio

from bunqueue_trio.logs import get_logger
from bunqueue_trio.model.instant import Now
from bunqueue_trio.server.broker import Broker

log = get_logger("Server")

MAX_SLEEP_S = 1.0  # so that a jump of the wall clock is noticed within a second
JUMP_MS = 1_000  # clocks that are merely adjusted drift by less than a millisecond a second


async def run_reaper(broker: Broker, *, worker_cleanup_interval_ms: int) -> None:
    """Call `Broker.tick` whenever something is due, and at least once a second. Returns only when cancelled."""
    try:
        await _reap(broker, worker_cleanup_interval_ms)
    finally:
        broker.clock.rest()


async def _reap(broker: Broker, worker_cleanup_interval_ms: int) -> None:
    next_cleanup_mono_ms = 0.0
    offset_ms = _offset_ms(broker.clock.now())
    while True:
        stood_still_ms = broker.clock.beat()
        now = broker.clock.now()
        was_ms, offset_ms = offset_ms + stood_still_ms, _offset_ms(now)
        if stood_still_ms:
            log.warning("The process stood still; leases do not count that time", forMs=stood_still_ms)
        if abs(offset_ms - was_ms) >= JUMP_MS:
            log.warning("The wall clock has jumped", byMs=offset_ms - was_ms)
        if now.mono_ms >= next_cleanup_mono_ms:
            next_cleanup_mono_ms = now.mono_ms + worker_cleanup_interval_ms
            broker.engine.workers.forget_silent(now)
        broker.tick(now)
        broker.timer_moved = trio.Event()
        left_s = (min(broker.next_deadline_mono_ms(now), next_cleanup_mono_ms) - now.mono_ms) / 1000
        with trio.move_on_after(min(max(left_s, 0.0), MAX_SLEEP_S)):
            await broker.timer_moved.wait()


def _offset_ms(now: Now) -> float:
    """How far one clock is from the other: it changes when the wall clock is set, and when the machine has slept."""
    return now.wall_ms - now.mono_ms
