"""How much the engine holds, collection by collection, for whoever looks for a leak.

A size is that of the collection itself: a heap counts with the entries that stand for nothing any more, until it is
swept. The names are ours, and no promise.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence, Sized

from bunqueue_trio.engine.queue_state import QueueState
from bunqueue_trio.engine.state import State
from bunqueue_trio.model.changes import Changes


def state_sizes(state: State) -> dict[str, int]:
    """Everything but what single queues hold. Cost: O(connections)."""
    return {
        "jobs": len(state.jobs),
        "queues": len(state.queues),
        "dependents": len(state.dependents),
        "keptFinished": len(state.kept_finished),
        "keptResults": len(state.kept_results),
        "connections": len(state.connections),
        "orderly": len(state.orderly),
        "held": len(state.held),
        "heldJobs": sum(map(len, state.held.values())),
        "workers": len(state.workers),
        "workersOf": len(state.workers_of),
        "timers": len(state.timers),
        "due": len(state.due),
        "wakes": len(state.wakes),
        "lettersDue": len(state.letters_due),
        "facts": len(state.facts),
        "oldResults": len(state.old_results),
        "removing": len(state.removing),
        "amending": len(state.amending),
        "settingsInFlight": len(state.settings_in_flight),
        "countedOut": len(state.counted_out),
        "awaited": len(state.awaited),
        "ended": len(state.ended),
        "successors": len(state.successors),
        "events": len(state.events or ()),
        "history": len(state.history),
        "finishedIds": state.history.finished_count,
        "logs": len(state.logs),
        "crons": len(state.crons.by_name),
        "cronsPending": len(state.crons.pending),
        "cronsDue": len(state.crons.due),
        "changes": _change_count(state.changes),
        "changesInFlight": 0 if state.in_flight is None else _change_count(state.in_flight),
    }


def queue_sizes(queues: Sequence[QueueState]) -> Counter[str]:
    """The sums over *queues*. Cost: some µs per queue, and a step per group and per thousand jobs."""
    grouped = [queue.named_groups for queue in queues if queue.named_groups is not None]
    sums = Counter(
        {
            "queue.ready": sum([len(queue.ready) for queue in queues]),
            "queue.delayed": sum([len(queue.delayed) for queue in queues]),
            "queue.keys": sum([len(queue.keys) for queue in queues]),
            "queue.letters": sum([len(queue.letters) for queue in queues]),
            "queue.priorities": sum([len(queue.priorities) for queue in queues]),
            "queue.groups": sum([len(queue.groups) for queue in queues]),
            "queue.aside": sum([len(group.aside) for queue in queues for group in queue.groups.values()]),
            "queue.blocks": sum([len(queue.catalog.blocks) for queue in queues]),
            "queue.listed": sum([queue.catalog.entry_count for queue in queues]),
        }
    )
    for name in ("namedGroups", "lines", "standing", "timed", "idle"):
        sums[f"queue.{name}"] = 0
    for groups in grouped:
        sums.update({f"queue.{name}": count for name, count in groups.sizes().items()})
    return sums


def _change_count(changes: Changes) -> int:
    """Entries of all kinds."""
    collections: tuple[Sized, ...] = (
        changes.jobs,
        changes.staged,
        changes.reborn,
        changes.letters,
        changes.letters_gone,
        changes.expired,
        changes.finished,
        changes.finished_gone,
        changes.failures,
        changes.ended,
    )
    return sum([len(collection) for collection in collections])
