"""Commands about the server itself: totals, rates, latencies, memory, storage, and the overview of all of it.

The engine knows none of this, so the broker lends it these handlers. Whoever shows the same over HTTP asks here too.

Source: commands, "Monitoring and dashboards".
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from bunqueue_trio.engine.maturing import mature_due
from bunqueue_trio.engine.series import Series
from bunqueue_trio.memory import measure_memory
from bunqueue_trio.model import commands as c
from bunqueue_trio.model.entries import WorkerInfo
from bunqueue_trio.model.instant import Now
from bunqueue_trio.model.replies import DataReply, MetricsReply, Reply, StatsReply
from bunqueue_trio.model.transitions import Transition
from bunqueue_trio.protocol.values import wire_number
from bunqueue_trio.server.compaction import Compaction
from bunqueue_trio.server.door import Tally
from bunqueue_trio.server.facts import Facts, FileFacts, LiveFacts, StorageFacts, WebhookFacts
from bunqueue_trio.server.heap import Sizes
from bunqueue_trio.server.histograms import Histogram
from bunqueue_trio.server.metrics import MAX_QUEUES, EngineCollector, exposition
from bunqueue_trio.server.rates import Rates
from bunqueue_trio.storage.batch import FULL_COLUMNS, PLAIN_COLUMNS

if TYPE_CHECKING:
    from bunqueue_trio.backup.keeper import Backups
    from bunqueue_trio.server.broker import Broker

WORKERS_SHOWN = 1_000
CRONS_SHOWN = 1_000
ROWS_WEIGHED = 20_000  # of those that wait for the file: 2 ms; more of them are new only beyond the bounds of PD-6
DATA_COLUMN = PLAIN_COLUMNS.index("data")
assert FULL_COLUMNS[DATA_COLUMN] == "data"
PERCENTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


class Monitoring:
    """Answers those who watch. Nothing here costs more with more jobs.

    Args:
        worker_timeout_ms: a worker not heard of for so long does not count as active.
    """

    def __init__(self, broker: Broker, *, worker_timeout_ms: float) -> None:
        self._broker = broker
        self._state = broker.engine.state
        self._worker_timeout_ms = worker_timeout_ms
        started = broker.clock.now()
        self._started_mono_ms = started.mono_ms
        self._rates = Rates(self._state.totals, started)
        self._compaction = Compaction(self._state)
        self._series = Series(self._state)
        self.webhook_facts: Callable[[], WebhookFacts] = WebhookFacts
        """Set by whoever has webhooks."""
        self.live_facts: Callable[[], LiveFacts] = LiveFacts
        """Set by whoever has live streams."""
        self.file_facts: Callable[[], FileFacts | None] = _no_file
        """Set by whoever has a file."""
        self.backups: Backups | None = None
        """Set by whoever makes backups."""
        self.max_queues = MAX_QUEUES
        """How many queues have metrics of their own."""
        self.sized_rooms: list[Sizes] = []
        """Told the sizes of their collections by whoever has some that grow with use."""
        self.tallies: dict[str, Tally] = {}
        """Connections by transport; set by whoever has doors."""

    @property
    def handlers(self) -> dict[type, Callable[[Any, Now], Reply]]:
        """The commands answered here."""
        return {
            c.Stats: self.stats,
            c.Metrics: self.metrics,
            c.StorageStatus: self.storage_status,
            c.CompactMemory: self.compact_memory,
            c.Prometheus: self.prometheus,
            c.DashboardOverview: self.overview,
        }

    def stats(self, command: c.Stats, now: Now) -> StatsReply:
        """Gauges and rates.

        Wire: ``waiting`` leaves prioritized jobs out, and ``failed`` is the total of final failures.
        """
        mature_due(self._state, now)
        state, gauges, rates = self._state, self._state.gauges, self._rates.read(now)
        return StatsReply(
            stats={
                "waiting": gauges.waiting,
                "active": state.active_count,
                "delayed": gauges.delayed,
                "dlq": gauges.dead,
                "completed": gauges.completed,
                "failed": wire_number(state.totals.failed),
                "uptime": self._uptime_ms(now),
                "pushPerSec": rates["pushPerSec"],
                "pullPerSec": rates["pullPerSec"],
            }
        )

    def metrics(self, command: c.Metrics, now: Now) -> Reply:
        """What has ended in one queue, where one is named, else `totals`.

        Raises:
            ReadNeededError: of a queue, the file must be read.
        """
        return self.totals() if command.kind is None else self._series.metrics(command, now)

    def totals(self) -> MetricsReply:
        """Totals since start; averages in ms, as `latencies` defines them.

        Wire: the last two are 0 on the reference too; /health has the connections and the size of the WAL.
        """
        latencies = self._broker.latencies
        return MetricsReply(
            metrics={
                **self._totals(),
                "avgLatencyMs": round((latencies.push.average + latencies.pull.average) / 2, 2),
                "avgProcessingMs": round(latencies.ack.average, 2),
                "memoryUsageMb": measure_memory().heap_used,
                "sqliteSizeMb": 0,
                "activeConnections": 0,
            }
        )

    def storage_status(self, command: c.StorageStatus, now: Now) -> DataReply:
        """Whether the file takes what is written; ``since`` keeps the time of the last trouble (epoch ms)."""
        return DataReply(data=self._storage())

    def compact_memory(self, command: c.CompactMemory, now: Now) -> Reply:
        """Give back memory, at most once a second."""
        if self._compaction.run(now.mono_ms):
            self._broker.announce("memory:compacted", {})
        return Reply()

    def prometheus(self, command: c.Prometheus, now: Now) -> DataReply:
        """All metrics as Prometheus text."""
        return DataReply(data={"metrics": self.exposition(now)})

    def exposition(self, now: Now) -> str:
        """The text of `prometheus`.

        Cost: 0.4 ms, 10 µs per queue that is listed, and bounded looks at jobs: 5 ms for the oldest, 2 ms for those
        that wait for the file.
        """
        mature_due(self._state, now)
        facts = Facts(
            uptime_s=int((now.mono_ms - self._started_mono_ms) / 1000),
            worker_count=len(self._state.workers),
            active_worker_count=self._active_worker_count(now),
            cron_count=len(self._state.crons),
            webhooks=self.webhook_facts(),
            storage=self._storage_facts(now),
            tallies=self.tallies,
            live=self.live_facts(),
            cut_off_count=self._broker.events.cut_off_count,
            queue_subscriber_count=self._broker.events.queue_events.subscriber_count,
        )
        latencies = self._broker.latencies
        return exposition(EngineCollector(self._state, latencies, facts, now, max_queues=self.max_queues).collect())

    def _storage_facts(self, now: Now) -> StorageFacts:
        broker, state = self._broker, self._state
        backup = None if self.backups is None else self.backups.status()
        proven_ms = None if backup is None else backup.last_proven_at
        point_ms = None if backup is None or backup.log is None else backup.log.recovery_point_at
        changes, flight = state.changes, broker.batch_in_flight
        publishes = (change.job for change in changes.staged if type(change) is Transition)
        jobs = islice(chain(changes.jobs, publishes), ROWS_WEIGHED)
        rows = () if flight is None else islice(chain(flight.plain, flight.full), ROWS_WEIGHED)
        return StorageFacts(
            is_degraded=broker.storage_health.is_degraded,
            backlog_rows=changes.row_count + (0 if state.in_flight is None else state.in_flight.row_count),
            backlog_bytes=sum([len(job.record.data) for job in jobs if not job.is_stored])
            + sum([len(row[DATA_COLUMN]) for row in rows]),
            flushes=broker.flush_figures,
            file=self.file_facts(),
            backup=backup,
            backup_age_s=None if proven_ms is None else max(0.0, now.wall_ms - proven_ms) / 1000,
            recovery_point_age_s=None if point_ms is None else max(0.0, now.wall_ms - point_ms) / 1000,
        )

    def overview(self, command: c.DashboardOverview, now: Now) -> DataReply:
        """Everything about the server at a glance; at most 1,000 workers and 1,000 crons are listed."""
        mature_due(self._state, now)
        memory = measure_memory()
        gauges = self._state.gauges
        stats = {
            "waiting": gauges.waiting,
            "active": self._state.active_count,
            "delayed": gauges.delayed,
            "completed": gauges.completed,
            "dlq": gauges.dead,
            **self._totals(),
            "uptime": self._uptime_ms(now),
        }
        workers = {
            **self.worker_counts(now),
            "list": [_shown(worker) for worker in islice(self._state.workers.values(), WORKERS_SHOWN)],
        }
        return DataReply(
            data={
                "stats": stats,
                "throughput": self._rates.read(now),
                "latency": self._latency(),
                "memory": {"heapUsed": memory.heap_used, "heapTotal": memory.heap_total, "rss": memory.rss},
                "collections": self.collections(),
                "workers": workers,
                "crons": self._crons(),
                "storage": self._storage(),
                "timestamp": now.wall_ms,
            }
        )

    def collections(self) -> dict[str, int]:
        """Sizes of what the engine holds, under the names of the wire; tables that it has no need of count 0.

        Every active job has a lease, so ``jobLocks`` and ``processingTotal`` agree. O(connections).
        """
        state, gauges = self._state, self._state.gauges
        held = [len(jobs) for jobs in state.held.values()]
        return {
            "jobIndex": len(state.jobs) + gauges.completed,
            "completedJobs": gauges.completed,
            "jobResults": len(state.history),
            "jobLogs": len(state.logs),
            "customIdMap": 0,
            "jobLocks": state.active_count,
            "clientJobs": sum(map(bool, held)),
            "clientJobsTotal": sum(held),
            "pendingDepChecks": 0,
            "stalledCandidates": 0,
            "processingTotal": state.active_count,
            "queuedTotal": gauges.queued,
            "waitingDepsTotal": gauges.parked,
            "temporalIndexTotal": 0,
            "delayedHeapTotal": gauges.delayed,
        }

    def worker_counts(self, now: Now) -> dict[str, int]:
        """Shape: ``{"total", "active"}``. O(workers)."""
        return {"total": len(self._state.workers), "active": self._active_worker_count(now)}

    def _totals(self) -> dict[str, float]:
        totals = self._state.totals
        return {
            "totalPushed": wire_number(totals.pushed),
            "totalPulled": wire_number(totals.pulled),
            "totalCompleted": wire_number(totals.completed),
            "totalFailed": wire_number(totals.failed),
        }

    def _latency(self) -> dict[str, Any]:
        latencies = self._broker.latencies
        kinds = {"push": latencies.push, "pull": latencies.pull, "ack": latencies.ack}
        return {
            "averages": {f"{name}Ms": histogram.average for name, histogram in kinds.items()},
            "percentiles": {name: _percentiles(histogram) for name, histogram in kinds.items()},
        }

    def _storage(self) -> dict[str, Any]:
        health = self._broker.storage_health
        return {
            "diskFull": health.is_disk_full,
            "error": None if health.error is None else str(health.error),
            "since": health.last_trouble_wall_ms,
        }

    def _crons(self) -> list[dict[str, Any]]:
        """Crons as the overview lists them, at most 1,000.

        Shape of each: ``{"name", "queue", "schedule": str | None, "repeatEvery": ms | None, "nextRun": epoch ms,
        "executions": int}``.
        """
        return [
            {
                "name": cron.job.name,
                "queue": cron.job.queue,
                "schedule": cron.job.schedule,
                "repeatEvery": cron.job.repeat_every,
                "nextRun": cron.job.next_run,
                "executions": cron.job.executions,
            }
            for cron in islice(self._state.crons.by_name.values(), CRONS_SHOWN)
        ]

    def _active_worker_count(self, now: Now) -> int:
        workers = self._state.workers.values()
        return sum(worker.is_alive(now.mono_ms, self._worker_timeout_ms) for worker in workers)

    def _uptime_ms(self, now: Now) -> float:
        return wire_number(now.mono_ms - self._started_mono_ms)


def _percentiles(histogram: Histogram) -> dict[str, float]:
    return {name: histogram.percentile(share) for name, share in PERCENTILES.items()}


def _shown(worker: WorkerInfo) -> dict[str, Any]:
    return {
        "id": worker.id,
        "name": worker.name,
        "queues": worker.queues,
        "lastSeen": worker.last_seen,
        "activeJobs": worker.active_jobs,
        "processedJobs": worker.processed_jobs,
        "failedJobs": worker.failed_jobs,
    }


def _no_file() -> None:
    return None
