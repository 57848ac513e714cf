"""The task that lets completed jobs go when they are too old or too many, also without any traffic."""

from __future__ import annotations

import trio

from bunqueue_trio.errors import StorageError
from bunqueue_trio.logs import get_logger
from bunqueue_trio.server.broker import Broker
from bunqueue_trio.server.store import Store
from bunqueue_trio.storage import reads

log = get_logger("Storage")

PERIOD_S = 5.0
ROWS_PER_STEP = 1_000  # one flush of deletions takes some 20 ms; others get their turn in between


async def run_retention(broker: Broker, store: Store, *, max_age_ms: int | None, max_count: int | None) -> None:
    """Look every five seconds; returns only when cancelled, or at once when nothing is limited.

    Args:
        max_age_ms: how long a completed job is kept; None: for ever.
        max_count: how many are kept over all queues; None: any number.
    """
    if max_age_ms is None and max_count is None:
        return
    while True:
        await trio.sleep(PERIOD_S)
        try:
            while await _step(broker, store, max_age_ms, max_count):
                pass
        except StorageError as error:
            log.warning("Completed jobs cannot be looked up; they are kept for now", error=str(error))


async def _step(broker: Broker, store: Store, max_age_ms: int | None, max_count: int | None) -> bool:
    """Remove up to a thousand. Returns, when that has committed, True if there may be more.

    Until then the file would give the same rows again, and they would be counted out twice.
    """
    async with broker.flush_turn:  # else what a commit removes meanwhile would be counted out twice
        now = broker.clock.now()
        excess = 0 if max_count is None else broker.engine.completed_count - max_count
        before_ms = None if max_age_ms is None else now.wall_ms - max_age_ms
        if before_ms is None and excess <= 0:
            return False
        limit = min(ROWS_PER_STEP, excess) if excess > 0 else ROWS_PER_STEP
        cutoff = None if excess > 0 else before_ms
        found = await store.read(lambda connection: reads.oldest_completed(connection, cutoff, limit))
        broker.engine.expire_completed(found, now.wall_ms)
    broker.note_changes(broker.clock.now())
    while broker.engine.state.changes.expired:
        await broker.ticket.wait()
    return len(found) == ROWS_PER_STEP
