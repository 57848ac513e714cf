"""Limits that operators have set for being told: long queues, overloaded workers, much memory, a large file.

Source: HTTP, "Dashboard events"; configuration, the thresholds.
"""

from __future__ import annotations

from itertools import islice

from bunqueue_trio.engine.queue_state import QueueState
from bunqueue_trio.memory import measure_memory
from bunqueue_trio.model.instant import Now
from bunqueue_trio.server.broker import Broker

MB = 1 << 20
REARMED_BELOW = 0.9  # of the limit, so that a value at the limit is told once
WORKERS_LOOKED_AT = 10_000


class Alarms:
    """Tells subscribers what has crossed its limit. A limit of 0 is none.

    Args:
        queue_size: ready jobs of one queue.
        overload_ms: how long a worker may be at its capacity.
        memory_mb: MiB of memory in use.
        storage_mb: MiB of the data file.
    """

    def __init__(
        self, broker: Broker, *, queue_size: int = 0, overload_ms: float = 0, memory_mb: int = 0, storage_mb: int = 0
    ) -> None:
        self._broker = broker
        self._queue_size = queue_size
        self._overload_ms = overload_ms
        self._memory = _Limit(memory_mb)
        self._storage = _Limit(storage_mb)
        self._long_queues: set[str] = set()
        self._full_since_mono_ms: dict[str, float] = {}

    def look_at_queue(self, name: str, queue: QueueState | None) -> None:
        """Something has happened in that queue: tell once when it has grown too long; None: it has gone."""
        if not self._queue_size:
            return
        size = 0 if queue is None else queue.waiting_count + queue.prioritized_count
        if size < self._queue_size:
            self._long_queues.discard(name)
        elif name not in self._long_queues:
            self._long_queues.add(name)
            data = {"queue": name, "size": size, "threshold": self._queue_size}
            self._broker.announce("queue:threshold", data)

    def look_at_server(self, now: Now) -> None:
        """Workers, memory and file, every now and then. O(workers)."""
        queues = self._broker.engine.state.queues
        self._long_queues &= queues.keys()  # names that are gone must not gather
        if self._overload_ms:
            self._look_at_workers(now)
        memory = measure_memory()
        if self._memory.is_crossed(memory.heap_used):
            data = {"heapUsedMB": memory.heap_used, "thresholdMB": self._memory.limit, "rssMB": memory.rss}
            self._broker.announce("server:memory-warning", data)
        file = self._broker.monitoring.file_facts()
        if file is not None and self._storage.is_crossed(size_mb := round(file.data_bytes / MB, 2)):
            self._broker.announce("storage:size-warning", {"sizeMB": size_mb, "thresholdMB": self._storage.limit})

    def forget(self) -> None:
        """Nobody has listened for a while: who comes next is told anew."""
        self._long_queues.clear()
        self._full_since_mono_ms.clear()
        self._memory.is_told = self._storage.is_told = False

    def _look_at_workers(self, now: Now) -> None:
        known, self._full_since_mono_ms = self._full_since_mono_ms, {}
        for worker in islice(self._broker.engine.state.workers.values(), WORKERS_LOOKED_AT):
            if worker.active_jobs < worker.concurrency:
                continue
            since = self._full_since_mono_ms[worker.id] = known.get(worker.id, now.mono_ms)
            if now.mono_ms - since >= self._overload_ms:
                data = {
                    "workerId": worker.id,
                    "name": worker.name,
                    "activeJobs": worker.active_jobs,
                    "concurrency": worker.concurrency,
                    "overloadedSeconds": int((now.mono_ms - since) / 1000),
                }
                self._broker.announce("worker:overloaded", data)


class _Limit:
    """A limit that is told once, and again after the value has been well below it."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.is_told = False

    def is_crossed(self, value: float) -> bool:
        if not self.limit:
            return False
        if value < REARMED_BELOW * self.limit:
            self.is_told = False
        elif value >= self.limit and not self.is_told:
            self.is_told = True
            return True
        return False
