"""Sizes of everything in the server that grows with use, for whoever looks for a leak.

What belongs to one connection goes with it, and is not listed; how many objects of each of our types are alive shows
whether it does. `tests/contract/test_heap.py` knows every collection that there is.

Source: R154, R272, K33.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

import trio

from bunqueue_trio.engine.sizes import queue_sizes, state_sizes

if TYPE_CHECKING:
    from bunqueue_trio.server.broker import Broker

QUEUES_PER_TURN: Final = 500
Sizes = Callable[[], Mapping[str, int]]
"""Tells the sizes of what a room of the server holds, each under a name that no other room uses."""


async def internal_sizes(broker: Broker) -> dict[str, int]:
    """Every collection by name. Cost: some µs per queue, a millisecond at a time; others get their turn in between."""
    queues = list(broker.engine.state.queues.values())
    sums = queue_sizes(())
    for start in range(0, len(queues), QUEUES_PER_TURN):
        sums.update(queue_sizes(queues[start : start + QUEUES_PER_TURN]))
        await trio.lowlevel.checkpoint()
    sizes = {**state_sizes(broker.engine.state), **sums, **_broker_sizes(broker)}
    for own_sizes in broker.monitoring.sized_rooms:
        sizes.update(own_sizes())
    return sizes


def own_types(counts: Mapping[type, int]) -> dict[str, int]:
    """How many objects of each of our types there are, of those that the collector knows."""
    ours: Counter[str] = Counter()
    for kind, count in counts.items():
        if str(kind.__module__).partition(".")[0] == "bunqueue_trio":  # some types have no text there
            ours[kind.__name__] += count
    return dict(sorted(ours.items()))


def _broker_sizes(broker: Broker) -> dict[str, int]:
    return {
        **{f"pull.{name}": size for name, size in broker.waiting.sizes().items()},
        **{f"jobWait.{name}": size for name, size in broker.job_waits.sizes().items()},
        **broker.ticket.sizes(),
        **broker.events.sizes(),
        **{f"open.{transport}": tally.connection_count for transport, tally in broker.monitoring.tallies.items()},
    }
