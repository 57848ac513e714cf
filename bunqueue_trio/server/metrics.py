"""The metrics of the server for Prometheus: a collector over the engine's counters, and the text of the wire.

Source: HTTP, "GET /prometheus"; HD-8, R264.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from bunqueue_trio.engine.ages import Ages
from bunqueue_trio.engine.queue_state import QueueState
from bunqueue_trio.engine.state import State
from bunqueue_trio.engine.workers import totals
from bunqueue_trio.model.instant import Now
from bunqueue_trio.server.facts import Facts
from bunqueue_trio.server.histograms import Histogram
from bunqueue_trio.server.latencies import Latencies

MAX_QUEUES = 1_000  # six series each; queues named after users must not flood the monitoring (HD-8)
LOOKS_MAX = 50_000  # at jobs, for the ages of the oldest: 5 ms
_OF_QUEUES: Final[dict[str, tuple[str, Callable[[QueueState], int]]]] = {
    "waiting": ("Ready jobs of priority 0 and below", lambda queue: queue.waiting_count),
    "prioritized": ("Ready jobs of a priority above 0", lambda queue: queue.prioritized_count),
    "delayed": ("Jobs whose run time lies ahead", lambda queue: queue.delayed_count),
    "active": ("Jobs being run", lambda queue: queue.active_count),
    "dlq": ("Dead letters", lambda queue: len(queue.letters)),
}


class EngineCollector(Collector):
    """One look at the counters, as families of the official client library. Changes nothing.

    Queues are listed in the order of their first use, at most *max_queues*; ``bunqueue_queues_not_listed`` says how
    many more there are, and is left out while there are none.
    """

    def __init__(
        self, state: State, latencies: Latencies, facts: Facts, now: Now, *, max_queues: int = MAX_QUEUES
    ) -> None:
        self._state = state
        self._latencies = latencies
        self._facts = facts
        self._now = now
        self._max_queues = max_queues

    def collect(self) -> Iterator[Metric]:
        """The families in the order of the wire, and ours after them."""
        known = [queue for queue in self._state.queues.values() if queue.is_known]
        listed = known[: self._max_queues]
        labels = [{"queue": queue.name} for queue in listed]  # shared, so that each is turned into text once
        yield from self._jobs()
        yield from self._server()
        yield from self._queues(listed, labels)
        latencies = self._latencies
        yield _histogram("push_duration_ms", "Time of a push inside the server, its commit included", latencies.push)
        yield _histogram("pull_duration_ms", "Time of a pull that delivered, its wait included", latencies.pull)
        yield _histogram("ack_duration_ms", "Time of an ACK inside the server, its commit included", latencies.ack)
        yield from self._webhook_events()
        if len(known) > len(listed):
            about = "Queues beyond those that have series of their own"
            yield _gauge("queues_not_listed", about, len(known) - len(listed))
        yield from self._ages(listed, labels)
        yield from self._storage()
        yield from self._losses()
        yield from self._connections()

    def _jobs(self) -> Iterator[Metric]:
        gauges, totals = self._state.gauges, self._state.totals
        yield _gauge("jobs_waiting", "Ready jobs of priority 0 and below", gauges.waiting)
        yield _gauge("jobs_prioritized", "Ready jobs of a priority above 0", gauges.prioritized)
        yield _gauge("jobs_delayed", "Jobs whose run time lies ahead", gauges.delayed)
        yield _gauge("jobs_active", "Jobs being run", self._state.active_count)
        yield _gauge("jobs_dlq", "Dead letters", gauges.dead)
        yield _gauge("jobs_completed", "Completed jobs kept", gauges.completed)
        yield _counter("jobs_pushed_total", "Jobs accepted since start", totals.pushed)
        yield _counter("jobs_pulled_total", "Deliveries since start", totals.pulled)
        yield _counter("jobs_completed_total", "Completions since start", totals.completed)
        yield _counter("jobs_failed_total", "Final failures since start", totals.failed)

    def _server(self) -> Iterator[Metric]:
        facts = self._facts
        processed, failed = totals(self._state)
        yield _gauge("uptime_seconds", "Seconds since start", facts.uptime_s)
        yield _gauge("cron_jobs_total", "Registered crons", facts.cron_count)
        yield _gauge("workers_total", "Registered workers", facts.worker_count)
        yield _gauge("workers_active", "Workers heard of lately", facts.active_worker_count)
        yield _counter("workers_processed_total", "Jobs that registered workers say they have processed", processed)
        yield _counter("workers_failed_total", "Jobs that registered workers say have failed", failed)
        yield _gauge("webhooks_total", "Webhooks", facts.webhooks.total)
        yield _gauge("webhooks_enabled", "Webhooks that are on", facts.webhooks.enabled)

    def _webhook_events(self) -> Iterator[Metric]:
        facts = self._facts.webhooks
        yield _gauge("webhook_events_waiting", "Events that wait for a receiver or are on their way", facts.waiting)
        yield _counter("webhook_events_delivered_total", "Events that a receiver has taken", facts.delivered)
        yield _counter("webhook_events_failed_total", "Events given up, those without room included", facts.failed)
        yield _counter("webhook_events_dropped_total", "Events for which there was no room", facts.dropped)

    def _storage(self) -> Iterator[Metric]:
        facts = self._facts.storage
        yield _gauge("storage_degraded", "1 while the file refuses writes, else 0", int(facts.is_degraded))
        yield _gauge("write_backlog_rows", "Rows that wait for the file", facts.backlog_rows)
        yield _gauge("write_backlog_bytes", "Payload bytes of jobs that wait for the file", facts.backlog_bytes)
        flushes = facts.flushes
        yield _histogram("flush_duration_seconds", "Time of a transaction that carries changes", flushes.durations)
        yield _histogram("flush_rows", "Rows of a transaction that carries changes", flushes.rows)
        yield _counter("flush_failures_total", "Transactions that the file has refused", flushes.failed_count)
        if facts.file is not None:
            yield _gauge("data_file_bytes", "Size of the data file without its WAL", facts.file.data_bytes)
            yield _gauge("wal_bytes", "Size of the WAL file", facts.file.wal_bytes)
            age_s = round(facts.file.checkpoint_age_s, 3)
            yield _gauge("wal_checkpoint_age_seconds", "Time since the WAL was last folded in as a whole", age_s)
        yield from self._backups()

    def _backups(self) -> Iterator[Metric]:
        """Left out where none are made."""
        backup, age_s = self._facts.storage.backup, self._facts.storage.backup_age_s
        if age_s is not None:
            about = "Time since the last backup was made that was read back and found sound"
            yield _gauge("backup_age_seconds", about, round(age_s, 3))
        if (point_age_s := self._facts.storage.recovery_point_age_s) is not None:
            about = "How much of the last time would be lost with the machine now"
            yield _gauge("backup_recovery_point_age_seconds", about, round(point_age_s, 3))
        if backup is not None and backup.log is not None:
            yield _gauge(
                "backup_log_failing", "1 while changes cannot be uploaded, else 0", int(bool(backup.log.error))
            )
            yield _gauge("backup_log_waiting_bytes", "Changes that are not uploaded yet", backup.log.waiting_bytes)
            yield _counter("backup_log_segments_total", "Pieces of the change log uploaded", backup.log.shipped_count)
            yield _counter("backup_log_breaks_total", "Times the change log had to begin anew", backup.log.broken_count)
        if backup is not None:
            yield _gauge("backup_failing", "1 while the last backup has failed, else 0", int(backup.error is not None))
            yield _counter("backups_total", "Backups stored since start", backup.made_count)
            yield _counter("backup_failures_total", "Backups that failed since start", backup.failed_count)
            about = "Backups refused since start because one was being made"
            yield _counter("backup_rejections_total", about, backup.rejected_count)
            if backup.last_size is not None:
                yield _gauge("backup_size_bytes", "Size of the data file in the last backup", backup.last_size)
            if backup.last_duration is not None:
                about = "Time that the last backup took"
                yield _gauge("backup_duration_seconds", about, round(backup.last_duration / 1000, 3))

    def _losses(self) -> Iterator[Metric]:
        """What operators should hear of before their users do."""
        totals = self._state.totals
        about = "Jobs left waiting for a job that was removed; RemoveChildDependency lets them go"
        yield _counter("jobs_orphaned_total", about, totals.orphaned)
        yield _counter("dlq_evicted_total", "Dead letters that made room for newer ones", totals.letters_evicted)
        yield _counter("dlq_expired_total", "Dead letters that grew too old", totals.letters_expired)
        yield _counter("dlq_auto_retried_total", "Dead letters brought back by policy", totals.letters_retried)
        about = "Subscribers of events that were cut off because they were too slow"
        yield _counter("event_subscribers_cut_off_total", about, self._facts.cut_off_count)
        about = "TCP connections that are sent the events of a queue"
        yield _gauge("tcp_event_subscribers", about, self._facts.queue_subscriber_count)
        live = self._facts.live
        yield _gauge("sse_connections", "Open streams of server-sent events", live.sse)
        yield _gauge("ws_connections", "Open WebSockets", live.ws)
        yield _counter("ws_events_skipped_total", "Events lost by WebSockets that did not read", live.skipped)

    def _connections(self) -> Iterator[Metric]:
        """Ours too; left out where there are no doors."""
        tallies = self._facts.tallies
        if tallies:
            is_open = GaugeMetricFamily("bunqueue_connections", "Open connections", labels=["transport"])
            refused = CounterMetricFamily(
                "bunqueue_connections_refused_total", "Connections turned away as one too many", labels=["transport"]
            )
            for transport, tally in tallies.items():
                is_open.add_metric([transport], tally.connection_count)
                refused.add_metric([transport], tally.refused_count)
            yield is_open
            yield refused

    def _queues(self, listed: list[QueueState], labels: list[dict[str, str]]) -> Iterator[Metric]:
        if listed:
            for state, (about, count_of) in _OF_QUEUES.items():
                yield _by_queue(f"jobs_{state}", f"{about}, by queue", labels, map(count_of, listed))

    def _ages(self, listed: list[QueueState], labels: list[dict[str, str]]) -> Iterator[Metric]:
        if listed:
            ages = Ages(self._now, LOOKS_MAX)
            seconds = [round(ages.oldest_ready_ms(queue) / 1000, 3) for queue in listed]
            about = "Time since the run time of the oldest ready job, 0 if there is none, by queue"
            yield _by_queue("oldest_waiting_age_seconds", about, labels, seconds)


def exposition(families: Iterable[Metric]) -> str:
    """The text of the families, an empty line between them.

    Wire: whole numbers have no decimal point, which the library's own text gives them.
    """
    kept = list(families)
    shown: dict[int, str] = {}  # by identity of the labels, which live as long as the families
    return "\n".join(_text(family, shown) for family in kept)


def _text(family: Metric, shown: dict[int, str]) -> str:
    name = f"{family.name}_total" if family.type == "counter" else family.name
    lines = [f"# HELP {name} {family.documentation}", f"# TYPE {name} {family.type}"]
    for series, labels, value, *_ in family.samples:
        text = shown.get(id(labels))
        if text is None:
            text = shown[id(labels)] = _labels(labels)
        lines.append(f"{series}{text} {_number(value)}")
    return "\n".join(lines) + "\n"


def _labels(labels: dict[str, str]) -> str:
    pairs = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())
    return f"{{{pairs}}}" if pairs else ""


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _number(value: float) -> str:
    if type(value) is int:
        return str(value)
    return str(int(value)) if value.is_integer() else repr(value)


def _gauge(name: str, about: str, value: float) -> Metric:
    return GaugeMetricFamily(f"bunqueue_{name}", about, value)


def _counter(name: str, about: str, value: float) -> Metric:
    return CounterMetricFamily(f"bunqueue_{name}", about, value)


def _by_queue(name: str, about: str, labels: list[dict[str, str]], values: Iterable[float]) -> Metric:
    family = GaugeMetricFamily(f"bunqueue_queue_{name}", about, labels=["queue"])
    family.samples = [Sample(family.name, label, value) for label, value in zip(labels, values, strict=True)]
    return family


def _histogram(name: str, about: str, histogram: Histogram) -> Metric:
    family = Metric(f"bunqueue_{name}", about, "histogram")
    les = [*(f"{bound:g}" for bound in histogram.bounds), "+Inf"]
    for le, count in zip(les, accumulate(histogram.counts), strict=True):
        family.add_sample(f"{family.name}_bucket", {"le": le}, count)
    family.add_sample(f"{family.name}_sum", {}, histogram.sum)
    family.add_sample(f"{family.name}_count", {}, histogram.count)
    return family
