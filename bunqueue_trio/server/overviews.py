"""What only HTTP shows: the server and its queues at a glance, cut to what one page holds.

Everything is asked of the rooms that answer the commands of the wire; here it is put into the shapes of HTTP. A shape
is a map that msgpack can encode.

Source: HTTP, "Probes and diagnostics" and "Queues".
"""

from __future__ import annotations

import gc
from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec
import trio
from msgspec import Raw, msgpack, structs

from bunqueue_trio.engine.cron_forecast import runs_ahead
from bunqueue_trio.engine.crons import shown_cron
from bunqueue_trio.engine.job_forms import given_letter
from bunqueue_trio.engine.maturing import mature_due
from bunqueue_trio.engine.scaling import scale_of
from bunqueue_trio.errors import BackupError, StorageError, ValidationError
from bunqueue_trio.memory import measure_memory
from bunqueue_trio.model import commands as c
from bunqueue_trio.model.health import MemoryUse
from bunqueue_trio.model.instant import Now
from bunqueue_trio.protocol.fields import pushed_queue
from bunqueue_trio.protocol.wire import checked
from bunqueue_trio.server.heap import internal_sizes, own_types

if TYPE_CHECKING:
    from bunqueue_trio.server.broker import Broker

LISTED = 100  # workers and crons on the overview
QUEUES_LISTED = 1_000
PAGE_BYTES = 8_388_608  # of dead letters: their payloads are up to 10 MB each, and a page is in memory three times
TYPES_LISTED = 20
OBJECTS_PER_TURN = 20_000  # a millisecond of counting; others get their turn in between
HEAP_PAUSE_S = 1.0  # a look at the heap collects garbage and walks all objects


class Overviews:
    """Looks at the server. Nothing here costs more with more jobs, but for `heap`, which says so."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._heap_at_s = float("-inf")
        self._heap: dict[str, Any] = {}
        self._heap_turn = trio.Lock()

    def metrics(self) -> dict[str, Any]:
        """Totals since start."""
        return {"ok": True, "metrics": self._totals()}

    def stats(self) -> dict[str, Any]:
        """Gauges, totals and rates of all queues together; ``uptime`` in ms."""
        data = self._overview()
        state = self._broker.engine.state
        crons = [cron.job for cron in state.crons.by_name.values()]
        gauges = data["stats"]
        stats = {
            "waiting": gauges["waiting"],
            "prioritized": state.gauges.prioritized,
            "delayed": gauges["delayed"],
            "active": gauges["active"],
            "dlq": gauges["dlq"],
            "completed": gauges["completed"],
            "waiting-children": state.gauges.parked,
            **self._totals(),
            "uptime": int(gauges["uptime"]),
            "cronJobs": len(crons),
            "cronPending": sum(cron.max_limit is None or cron.executions < cron.max_limit for cron in crons),
            **data["throughput"],
        }
        memory = {**data["memory"], "external": 0, "arrayBuffers": 0}
        return {"ok": True, "stats": stats, "memory": memory, "collections": data["collections"]}

    def dashboard(self) -> dict[str, Any]:
        """The overview of the wire, its lists cut at `LISTED`."""
        data = self._overview()
        workers, crons = data["workers"], data["crons"]
        cron_count = len(self._broker.engine.state.crons)
        backups = self._broker.monitoring.backups
        return {
            "ok": True,
            **data,
            **({} if backups is None else {"backups": msgspec.to_builtins(backups.status())}),
            "workers": {**workers, "list": workers["list"][:LISTED], "truncated": workers["total"] > LISTED},
            "crons": {"total": cron_count, "list": crons[:LISTED], "truncated": cron_count > LISTED},
        }

    def backups(self) -> dict[str, Any]:
        """How backups have gone since the start; null where the server makes none. Moments are epoch ms."""
        backups = self._broker.monitoring.backups
        return {"ok": True, "backups": None if backups is None else msgspec.to_builtins(backups.status())}

    async def back_up(self) -> dict[str, Any]:
        """Make a backup now, and answer when it is stored and, if that is set, read back.

        Cancel: the backup goes on; `backups` shows how it went.
        """
        backups = self._broker.monitoring.backups
        if backups is None:
            raise ValidationError("This server makes no backups: S3_BACKUP_ENABLED is off, or its settings are invalid")
        try:
            made = await backups.make_on_request()
        except (BackupError, StorageError) as error:
            return {"ok": False, "error": str(error)}
        return {
            "ok": True,
            "key": made.key,
            "size": made.size_bytes,
            "compressedSize": made.packed_bytes,
            "proven": made.is_proven,
        }

    def dashboard_queues(self, limit: int, offset: int) -> dict[str, Any]:
        """One line per queue, in the order of their first use."""
        now = self._mature()
        known = [queue for queue in self._broker.engine.state.queues.values() if queue.is_known]
        lines = [
            {
                "name": queue.name,
                "waiting": queue.waiting_count,
                "delayed": queue.delayed_count,
                "active": queue.active_count,
                "dlq": len(queue.letters),
                "paused": queue.settings.paused,
            }
            for queue in known[offset : offset + limit]
        ]
        return {
            "ok": True,
            "queues": lines,
            "total": len(known),
            "limit": limit,
            "offset": offset,
            "timestamp": now.wall_ms,
        }

    def dashboard_queue(self, name: str, *, includes_jobs: bool) -> dict[str, Any]:
        """One queue; an unknown one is empty.

        Raises:
            ValidationError: no name that a queue can have.
        """
        command = c.DashboardQueue(queue=pushed_queue(name), include_jobs=includes_jobs)
        checked(command)
        reply: Any = self._broker.engine.execute(command, self._broker.clock.now())
        return {"ok": True, **reply.data}

    async def dashboard_crons(self, limit: int, offset: int, runs: int) -> dict[str, Any]:
        """Crons in the order in which they were made, each with its next *runs* moments as ``nextRuns``, epoch ms.

        Cost: as `runs_ahead` for each; others get their turn after every cron.
        """
        now = self._broker.clock.now()
        table = self._broker.engine.state.crons.by_name
        crons = list(islice(table.values(), offset, offset + limit))
        shown = []
        for cron in crons:
            next_runs = list(islice(runs_ahead(cron, now), runs))
            shown.append({**msgspec.to_builtins(shown_cron(cron.job)), "nextRuns": next_runs})
            await trio.lowlevel.checkpoint()
        return {
            "ok": True,
            "crons": shown,
            "total": len(table),
            "limit": limit,
            "offset": offset,
            "timestamp": now.wall_ms,
        }

    def summary(self, limit: int, offset: int) -> list[dict[str, Any]]:
        """Name and counts of each queue, as if none were paused."""
        self._mature()
        known = (queue for queue in self._broker.engine.state.queues.values() if queue.is_known)
        return [
            {
                "name": queue.name,
                "paused": queue.settings.paused,
                "counts": queue.raw_counts(),
            }
            for queue in islice(known, offset, offset + limit)
        ]

    def workers_of(self, queue: str) -> dict[str, Any]:
        """The workers of a queue that were heard of lately. O(workers)."""
        timeout_ms = self._broker.engine.workers.timeout_ms
        now = self._broker.clock.now()
        found = (
            worker
            for worker in self._broker.engine.state.workers.values()
            if queue in worker.queues and worker.is_alive(now.mono_ms, timeout_ms)
        )
        shown = [
            {
                "id": worker.id,
                "name": worker.name,
                "queues": worker.queues,
                "concurrency": worker.concurrency,
                "registeredAt": worker.registered_at,
                "lastSeen": worker.last_seen,
                "activeJobs": worker.active_jobs,
                "processedJobs": worker.processed_jobs,
                "failedJobs": worker.failed_jobs,
            }
            for worker in islice(found, QUEUES_LISTED)
        ]
        return {"ok": True, "workers": shown}

    def scale(self, queue: str) -> dict[str, Any]:
        """What an autoscaler wants to know of a queue; an unknown one has nothing to do. Cost: see `scale_of`."""
        engine = self._broker.engine
        found = scale_of(engine.state, queue, self._broker.clock.now(), engine.workers.timeout_ms)
        return {"ok": True, "queue": queue, **found}

    def dead_letters(self, queue: str, limit: int, offset: int) -> dict[str, Any]:
        """Entries of a queue, oldest first, with what the wire does not show of them.

        The page ends before it would be longer than `PAGE_BYTES`, though it has an entry if there is one; ``total``
        shows that there are more. O(page), and O(dead letters) to get there.
        """
        entries = self._broker.engine.queries.dead_letters(queue)
        page: list[Raw] = []
        room = PAGE_BYTES
        for entry in islice(entries, offset, offset + limit):
            body = msgpack.encode(given_letter(entry, is_newer=False))
            room -= len(body)
            if room < 0 and page:
                break
            page.append(Raw(body))
        return {"ok": True, "entries": page, "total": len(entries)}

    def dead_letter_stats(self, queue: str) -> dict[str, Any]:
        """Their number by reason, and their times."""
        stats = self._broker.engine.queries.dead_letter_statistics(queue, self._broker.clock.now())
        return {"ok": True, "stats": stats}

    def prometheus(self) -> str:
        """All metrics as Prometheus text."""
        return self._broker.monitoring.exposition(self._broker.clock.now())

    # debugging

    def compact(self) -> dict[str, Any]:
        """Give back memory, at most once a second; what the process uses before and after."""
        before = measure_memory()
        now = self._broker.clock.now()
        self._broker.monitoring.compact_memory(c.CompactMemory(), now)
        return {"ok": True, "before": _memory(before), "after": _memory(measure_memory())}

    async def heap(self) -> dict[str, Any]:
        """What lies in memory, by type; a look that is less than a second old is shown again.

        ``internals`` are the sizes of what the server holds, by our names, ``ownTypes`` how many objects there are of
        our types; ``protectedCount`` is how many objects the collector no longer looks at, ``globalCount`` how many
        modules are loaded.

        Cost: a garbage collection, and 50 ns per tracked object, a millisecond at a time.
        """
        async with self._heap_turn:
            if trio.current_time() >= self._heap_at_s + HEAP_PAUSE_S:
                self._heap = await self._look_at_heap()
                self._heap_at_s = trio.current_time()
        return self._heap

    async def _look_at_heap(self) -> dict[str, Any]:
        gc.collect()
        objects = gc.get_objects()
        types: Counter[type] = Counter()
        for start in range(0, len(objects), OBJECTS_PER_TURN):
            types.update(map(type, objects[start : start + OBJECTS_PER_TURN]))
            await trio.lowlevel.checkpoint()
        object_count = len(objects)
        del objects  # else what ends meanwhile would be kept alive
        counts: Counter[str] = Counter()
        for kind, count in types.items():
            counts[kind.__name__] += count
        return {
            "ok": True,
            "memory": _memory(measure_memory()),
            "heap": {
                "objectCount": object_count,
                "protectedCount": gc.get_freeze_count(),
                "globalCount": counts["module"],
                "generations": gc.get_stats(),
            },
            "collections": self._broker.monitoring.collections(),
            "internals": await internal_sizes(self._broker),
            "topObjectTypes": [{"type": name, "count": count} for name, count in counts.most_common(TYPES_LISTED)],
            "ownTypes": own_types(types),
        }

    def _overview(self) -> dict[str, Any]:
        now = self._broker.clock.now()
        return self._broker.monitoring.overview(c.DashboardOverview(), now).data

    def _mature(self) -> Now:
        """Let what has become due by now count as ready."""
        now = self._broker.clock.now()
        mature_due(self._broker.engine.state, now)
        return now

    def _totals(self) -> dict[str, float]:
        metrics = self._broker.monitoring.totals().metrics
        return {name: metrics[name] for name in ("totalPushed", "totalPulled", "totalCompleted", "totalFailed")}


def _memory(use: MemoryUse) -> dict[str, int]:
    shown = structs.asdict(use)
    return {"heapUsed": shown["heap_used"], "heapTotal": shown["heap_total"], "rss": shown["rss"]}
