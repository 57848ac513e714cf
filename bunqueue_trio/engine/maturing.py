"""Delayed jobs become ready when their time has come: on a tick, or when somebody counts them before it."""

from heapq import heappop, heappush

from bunqueue_trio.engine.queue_state import QueueState
from bunqueue_trio.engine.state import State
from bunqueue_trio.model.instant import Now


def mature_due(state: State, now: Now) -> None:
    """Bring every queue up to date that may hold a job which is due. O(log n) for each of those, none for the others.

    Afterwards the counters say what `shown_state` would say of each job (commands 2.1).
    """
    while state.due and state.due[0][0] <= now.wall_ms:
        _, name = heappop(state.due)
        queue = state.queues.get(name)
        if queue is None:
            continue
        if moved := queue.mature(now.wall_ms):
            state.wake(queue, moved)
        see_to_next(state, queue)


def see_to_next(state: State, queue: QueueState) -> None:
    """Have the queue looked at again when its next delayed job is due."""
    if queue.delayed:
        heappush(state.due, (queue.delayed[0][0], queue.name))
