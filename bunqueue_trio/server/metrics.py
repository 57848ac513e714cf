"""The metrics of the server for Prometheus: a collector over the engine's counters, and the text of the wire.

Source: HTTP, "GET /prometheus"; HD-8, R264.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate, islice
from typing import Final

from msgspec import Struct
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from bunqueue_trio.engine.queue_state import QueueState
from bunqueue_trio.engine.state import State
from bunqueue_trio.engine.workers import totals
from bunqueue_trio.server.door import Tally
from bunqueue_trio.server.latencies import BOUNDS_MS, Histogram, Latencies

MAX_QUEUES = 1_000  # five series each; queues named after users must not flood the monitoring (HD-8)
_OF_QUEUES: Final[dict[str, tuple[str, Callable[[QueueState], int]]]] = {
    "waiting": ("Ready jobs of priority 0 and below", lambda queue: queue.waiting_count),
    "prioritized": ("Ready jobs of a priority above 0", lambda queue: queue.prioritized_count),
    "delayed": ("Jobs whose run time lies ahead", lambda queue: queue.delayed_count),
    "active": ("Jobs being run", lambda queue: queue.active_count),
    "dlq": ("Dead letters", lambda queue: len(queue.letters)),
}
_LES: Final = [f"{bound:g}" for bound in BOUNDS_MS] + ["+Inf"]


class WebhookFacts(Struct, frozen=True, kw_only=True, gc=False):
    """What there is of webhooks now, and what has become since start of the events meant for them.

    An event counts once per webhook. ``dropped`` are those of ``failed`` for which there was no room.
    """

    total: int = 0
    enabled: int = 0
    waiting: int = 0
    delivered: int = 0
    failed: int = 0
    dropped: int = 0


class Facts(Struct, frozen=True, kw_only=True, gc=False):
    """What the engine does not know."""

    uptime_s: int
    worker_count: int
    active_worker_count: int
    cron_count: int
    webhooks: WebhookFacts
    tallies: dict[str, Tally] = {}


class EngineCollector(Collector):
    """One look at the counters, as families of the official client library. Changes nothing.

    Queues are listed in the order of their first use, 1,000 at the most; ``bunqueue_queues_not_listed`` says how many
    more there are, and is left out while there are none.
    """

    def __init__(self, state: State, latencies: Latencies, facts: Facts) -> None:
        self._state = state
        self._latencies = latencies
        self._facts = facts

    def collect(self) -> Iterator[Metric]:
        """The families in the order of the wire."""
        yield from self._jobs()
        yield from self._server()
        yield from self._queues()
        latencies = self._latencies
        yield _histogram("push_duration_ms", "Time of a push inside the server, its commit included", latencies.push)
        yield _histogram("pull_duration_ms", "Time of a pull that delivered, its wait included", latencies.pull)
        yield _histogram("ack_duration_ms", "Time of an ACK inside the server, its commit included", latencies.ack)
        yield from self._webhook_events()
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
        """Ours, so they come last."""
        facts = self._facts.webhooks
        yield _gauge("webhook_events_waiting", "Events that wait for a receiver or are on their way", facts.waiting)
        yield _counter("webhook_events_delivered_total", "Events that a receiver has taken", facts.delivered)
        yield _counter("webhook_events_failed_total", "Events given up, those without room included", facts.failed)
        yield _counter("webhook_events_dropped_total", "Events for which there was no room", facts.dropped)

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

    def _queues(self) -> Iterator[Metric]:
        listed = list(islice((q for q in self._state.queues.values() if q.is_known), MAX_QUEUES))
        if not listed:
            return
        labels = [{"queue": queue.name} for queue in listed]  # shared, so that each is turned into text once
        for state, (about, count_of) in _OF_QUEUES.items():
            family = GaugeMetricFamily(f"bunqueue_queue_jobs_{state}", f"{about}, by queue", labels=["queue"])
            family.samples = [
                Sample(family.name, label, count_of(queue)) for label, queue in zip(labels, listed, strict=True)
            ]
            yield family
        if len(listed) == MAX_QUEUES and (more := len(self._state.queues) - MAX_QUEUES):
            yield _gauge("queues_not_listed", "Queues beyond those that have series of their own", more)


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


def _histogram(name: str, about: str, histogram: Histogram) -> Metric:
    family = Metric(f"bunqueue_{name}", about, "histogram")
    for le, count in zip(_LES, accumulate(histogram.counts), strict=True):
        family.add_sample(f"{family.name}_bucket", {"le": le}, count)
    family.add_sample(f"{family.name}_sum", {}, histogram.sum_ms)
    family.add_sample(f"{family.name}_count", {}, histogram.count)
    return family
