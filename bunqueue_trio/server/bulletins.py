"""What subscribers are told of the server as a whole: counts of queues that change, snapshots, idle queues.

Nothing of it is looked at or made while nobody has subscribed; webhooks alone are no reason.

Source: HTTP, "Heartbeat and periodic events" and "Dashboard events".
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any

import trio

from bunqueue_trio.engine.maturing import mature_due
from bunqueue_trio.engine.queue_state import QueueState
from bunqueue_trio.model import commands as c
from bunqueue_trio.model.events import Event, JobEvent
from bunqueue_trio.model.instant import Now
from bunqueue_trio.protocol.values import wire_number
from bunqueue_trio.server.alarms import Alarms
from bunqueue_trio.server.broker import Broker

COUNTS_PAUSE_S = 0.01  # events of one queue inside this time share their counts
SNAPSHOT_PERIOD_S = 5.0
IDLE_EVERY, STORAGE_EVERY = 2, 6  # of those periods
QUEUES_SHOWN = 1_000
"""Queues of one snapshot, and of one round of idle ones."""


async def run_bulletins(broker: Broker, *, idle_threshold_ms: float, alarms: Alarms | None = None) -> None:
    """Tell subscribers, for as long as there are any. Returns only when cancelled.

    Args:
        idle_threshold_ms: how long a queue must have had nothing to do to be told of; 0: no queue is.
        alarms: the limits to watch; without them there are none.
    """
    alarms = Alarms(broker) if alarms is None else alarms
    async with trio.open_nursery() as nursery:
        nursery.start_soon(QueueCounts(broker, alarms).run)
        await _run_periodic(broker, IdleQueues(broker, idle_threshold_ms), alarms)


class QueueCounts:
    """Tells the counts of a queue soon after something has happened to one of its jobs."""

    def __init__(self, broker: Broker, alarms: Alarms) -> None:
        self._broker = broker
        self._alarms = alarms
        self._changed: dict[str, None] = {}
        self._has_changed = trio.Event()
        broker.events.add_follower(self)

    def take(self, events: Sequence[Event]) -> None:
        """Note whose queues the events are. Cost: some 0.1 µs per event."""
        before = len(self._changed)
        self._changed.update(dict.fromkeys([event.queue for event in events if isinstance(event, JobEvent)]))
        if self._changed and not before:
            self._has_changed.set()

    async def run(self) -> None:
        """Tell until cancelled."""
        while True:
            await self._has_changed.wait()
            self._has_changed = trio.Event()
            await trio.sleep(COUNTS_PAUSE_S)
            changed, self._changed = self._changed, {}
            mature_due(self._broker.engine.state, self._broker.clock.now())
            for name in changed:
                queue = self._broker.engine.state.queues.get(name)
                self._broker.announce("queue:counts", queue_counts(name, queue))
                if self._broker.events.subscriber_count:
                    self._alarms.look_at_queue(name, queue)


def queue_counts(name: str, queue: QueueState | None) -> dict[str, Any]:
    """Exact counts, whether the queue is paused or not; zeros for one that has gone."""
    if queue is None:
        queue = QueueState(name)
    return {"queue": name, **queue.raw_counts()}


class IdleQueues:
    """Finds queues with nothing to do. One that has just been found so counts as idle from then on."""

    def __init__(self, broker: Broker, threshold_ms: float) -> None:
        self._broker = broker
        self._threshold_ms = threshold_ms
        self._idle_since_mono_ms: dict[str, float] = {}

    def tell(self, now: Now) -> None:
        """One round. O(queues), the first thousand of them."""
        if not self._threshold_ms:
            return
        queues = self._broker.engine.state.queues
        known, self._idle_since_mono_ms = self._idle_since_mono_ms, {}
        for name, queue in islice(queues.items(), QUEUES_SHOWN):
            if not queue.is_known or queue.active_count or queue.waiting_count or queue.prioritized_count:
                continue
            since = self._idle_since_mono_ms[name] = known.get(name, now.mono_ms)
            if now.mono_ms - since >= self._threshold_ms:
                seconds = int((now.mono_ms - since) / 1000)
                self._broker.announce("queue:idle", {"queue": name, "idleSeconds": seconds})

    def forget(self) -> None:
        """Nobody has looked for a while: what was idle then may have been busy since."""
        self._idle_since_mono_ms.clear()


async def _run_periodic(broker: Broker, idle: IdleQueues, alarms: Alarms) -> None:
    round_number = 0
    while True:
        await trio.sleep(SNAPSHOT_PERIOD_S)
        round_number += 1
        if not broker.events.subscriber_count:
            idle.forget()
            alarms.forget()
            continue
        now = broker.clock.now()
        broker.announce("stats:snapshot", stats_snapshot(broker, now))
        if round_number % IDLE_EVERY == 0:
            idle.tell(now)
            alarms.look_at_server(now)
        if round_number % STORAGE_EVERY == 0:
            broker.announce("storage:status", storage_status(broker))


def stats_snapshot(broker: Broker, now: Now) -> dict[str, Any]:
    """The server at a glance, with its first thousand queues."""
    monitoring, state = broker.monitoring, broker.engine.state
    stats = monitoring.stats(c.Stats(), now).stats
    known = (queue for queue in state.queues.values() if queue.is_known)
    totals = state.totals
    return {
        **{name: stats[name] for name in ("waiting", "active", "delayed", "completed", "dlq")},
        "totalPushed": wire_number(totals.pushed),
        "totalCompleted": wire_number(totals.completed),
        "totalFailed": wire_number(totals.failed),
        **{name: stats[name] for name in ("pushPerSec", "pullPerSec", "uptime")},
        "queues": {queue.name: _glance(queue) for queue in islice(known, QUEUES_SHOWN)},
        "workers": monitoring.worker_counts(now),
        "cronJobs": len(state.crons),
    }


def _glance(queue: QueueState) -> dict[str, Any]:
    return {
        "waiting": queue.waiting_count,
        "active": queue.active_count,
        "delayed": queue.delayed_count,
        "dlq": len(queue.letters),
        "paused": queue.settings.paused,
    }


def storage_status(broker: Broker) -> dict[str, Any]:
    """Sizes of what the engine holds, and whether the disk is full."""
    return {"collections": broker.monitoring.collections(), "diskFull": broker.storage_health.is_disk_full}
