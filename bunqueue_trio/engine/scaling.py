"""How much work a queue has and how many hands: what an autoscaler asks every few seconds.

Source: HTTP, "Autoscaling".
"""

from __future__ import annotations

from typing import Any, Final

from bunqueue_trio.engine.catalog import PRIORITIZED, WAITING
from bunqueue_trio.engine.maturing import mature_due
from bunqueue_trio.engine.queue_state import QueueState
from bunqueue_trio.engine.state import State
from bunqueue_trio.model.instant import Now

_READY: Final = (WAITING, PRIORITIZED)


def scale_of(state: State, name: str, now: Now, worker_timeout_ms: float) -> dict[str, Any]:
    """What there is to run, how long the oldest of it could have run, what runs, and how much could at a time.

    Nothing can run in a paused queue, so its depth is 0: workers would be started for nothing.

    Shape: ``{"depth": int, "oldestAgeMs": ms | None, "busy": int, "capacity": float}``; the age is None without depth.

    Cost: O(1) for depth and busy, a step of 50 to 200 ns per 1,024 jobs that cannot run for the age, and O(workers),
    10,000 at the most, for the capacity.
    """
    mature_due(state, now)
    queue = state.queues.get(name)
    depth = 0
    if queue is not None and not queue.settings.paused:
        depth = queue.waiting_count + queue.prioritized_count
    capacity = sum(
        worker.concurrency
        for worker in state.workers.values()
        if worker.is_alive(now.mono_ms, worker_timeout_ms) and name in worker.queues
    )
    return {
        "depth": depth,
        "oldestAgeMs": None if queue is None or not depth else _age_ms(queue, now),
        "busy": 0 if queue is None else queue.active_count,
        "capacity": capacity,
    }


def _age_ms(queue: QueueState, now: Now) -> float | None:
    """How long the ready job that stands first in lists could have run by now."""
    for job in queue.catalog.page(_READY, 0, 1):
        record = job.record
        return max(0.0, now.wall_ms - max(record.created_at, record.run_at))
    return None
