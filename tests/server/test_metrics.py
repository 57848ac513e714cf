"""The text for Prometheus: the official parser reads it, and it looks as on the wire."""

from types import SimpleNamespace

import pytest
from msgspec import structs
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.parser import text_string_to_metric_families

from bunqueue_trio.model.backup import BackupStatus
from bunqueue_trio.server.door import Tally
from bunqueue_trio.server.facts import Facts, FileFacts, LiveFacts, StorageFacts, WebhookFacts
from bunqueue_trio.server.flush_figures import FlushFigures
from bunqueue_trio.server.latencies import Latencies
from bunqueue_trio.server.metrics import MAX_QUEUES, EngineCollector, exposition
from tests.engine_harness import EngineHarness

HOOKS = WebhookFacts(total=6, enabled=5, waiting=11, delivered=13, failed=17, dropped=14)
TALLIES = {"tcp": Tally(19, 23), "http": Tally(29, 31)}
FLUSHES = FlushFigures()
FLUSHES.succeeded(3, 20)
FLUSHES.succeeded(200_000, 0.25)
FLUSHES.failed_count = 21
STORAGE = StorageFacts(
    is_degraded=True,
    backlog_rows=31,
    backlog_bytes=32,
    flushes=FLUSHES,
    file=FileFacts(data_bytes=4_096, wal_bytes=8_192, checkpoint_age_s=1.23456),
    backup=BackupStatus(
        bucket="b",
        interval=60_000,
        error="Access Denied",
        last_size=51,
        last_duration=52_345,
        made_count=53,
        failed_count=54,
        rejected_count=55,
    ),
    backup_age_s=77.5,
)
FACTS = Facts(
    uptime_s=12,
    worker_count=3,
    active_worker_count=2,
    cron_count=4,
    webhooks=HOOKS,
    storage=STORAGE,
    cut_off_count=41,
    queue_subscriber_count=45,
    tallies=TALLIES,
    live=LiveFacts(sse=42, ws=43, skipped=44),
)
NAMES = [
    "jobs_waiting gauge", "jobs_prioritized gauge", "jobs_delayed gauge", "jobs_active gauge", "jobs_dlq gauge",
    "jobs_completed gauge", "jobs_pushed_total counter", "jobs_pulled_total counter", "jobs_completed_total counter",
    "jobs_failed_total counter", "uptime_seconds gauge", "cron_jobs_total gauge", "workers_total gauge",
    "workers_active gauge", "workers_processed_total counter", "workers_failed_total counter", "webhooks_total gauge",
    "webhooks_enabled gauge", "queue_jobs_waiting gauge", "queue_jobs_prioritized gauge", "queue_jobs_delayed gauge",
    "queue_jobs_active gauge", "queue_jobs_dlq gauge", "push_duration_ms histogram", "pull_duration_ms histogram",
    "ack_duration_ms histogram", "webhook_events_waiting gauge", "webhook_events_delivered_total counter",
    "webhook_events_failed_total counter", "webhook_events_dropped_total counter",
    "queue_oldest_waiting_age_seconds gauge", "storage_degraded gauge", "write_backlog_rows gauge",
    "write_backlog_bytes gauge", "flush_duration_seconds histogram", "flush_rows histogram",
    "flush_failures_total counter", "data_file_bytes gauge", "wal_bytes gauge", "wal_checkpoint_age_seconds gauge",
    "backup_age_seconds gauge", "backup_failing gauge", "backups_total counter", "backup_failures_total counter",
    "backup_rejections_total counter", "backup_size_bytes gauge", "backup_duration_seconds gauge",
    "jobs_orphaned_total counter", "dlq_evicted_total counter",
    "dlq_expired_total counter", "dlq_auto_retried_total counter", "event_subscribers_cut_off_total counter",
    "tcp_event_subscribers gauge",
    "sse_connections gauge", "ws_connections gauge", "ws_events_skipped_total counter",
    "connections gauge", "connections_refused_total counter",
]  # fmt: skip


@pytest.fixture
def harness() -> EngineHarness:
    return EngineHarness()


def text_of(harness, latencies=None, facts=FACTS, **more) -> str:
    collector = EngineCollector(harness.engine.state, latencies or Latencies(), facts, harness.now, **more)
    return exposition(collector.collect())


def samples(text: str) -> dict[str, float]:
    """What the official parser makes of it, by series."""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = ",".join(f"{key}={value}" for key, value in sample.labels.items())
            found[f"{sample.name.removeprefix('bunqueue_')}{{{labels}}}" if labels else sample.name[9:]] = sample.value
    return found


def test_families_have_help_and_type_and_stand_apart_in_the_order_of_the_wire(harness):
    harness.push()
    text = text_of(harness)

    assert text.endswith("\n")
    blocks = text.removesuffix("\n").split("\n\n")
    types = [block.split("\n")[1] for block in blocks]
    assert types == [f"# TYPE bunqueue_{name}" for name in NAMES]
    for block, name in zip(blocks, NAMES, strict=True):
        assert block.startswith(f"# HELP bunqueue_{name.split()[0]} ")
    assert "\nbunqueue_jobs_waiting 1\n" in text
    assert '\nbunqueue_queue_jobs_waiting{queue="q"} 1\n' in text


def test_without_queues_there_are_no_families_of_queues(harness):
    harness.send("Pause", queue="only paused")

    assert "bunqueue_queue" not in text_of(harness)


def test_every_figure_is_that_of_the_engine(harness):
    harness.push_many("a", [{}] * 5 + [{"priority": 1}] * 4 + [{"delay": 9_000}] * 3)
    harness.push_many("b", [{"maxAttempts": 1}, {}, {}, {}])
    harness.fail(*harness.pull("b"))
    harness.ack(*harness.pull("b"))
    harness.pull("b")
    worker = harness.ask("RegisterWorker", name="w", queues=["a"])["data"]["workerId"]
    harness.send("Heartbeat", id=worker, processed=7, failed=2)
    found = samples(text_of(harness))

    expected = {
        "jobs_waiting": 6, "jobs_prioritized": 4, "jobs_delayed": 3, "jobs_active": 1, "jobs_dlq": 1,
        "jobs_completed": 1, "jobs_pushed_total": 16, "jobs_pulled_total": 3, "jobs_completed_total": 1,
        "jobs_failed_total": 1, "uptime_seconds": 12, "cron_jobs_total": 4, "workers_total": 3, "workers_active": 2,
        "workers_processed_total": 7, "workers_failed_total": 2, "webhooks_total": 6, "webhooks_enabled": 5,
        "webhook_events_waiting": 11, "webhook_events_delivered_total": 13, "webhook_events_failed_total": 17,
        "webhook_events_dropped_total": 14,
        "connections{transport=tcp}": 19, "connections{transport=http}": 29,
        "connections_refused_total{transport=tcp}": 23, "connections_refused_total{transport=http}": 31,
        "queue_jobs_waiting{queue=a}": 5, "queue_jobs_waiting{queue=b}": 1,
        "queue_jobs_prioritized{queue=a}": 4, "queue_jobs_prioritized{queue=b}": 0,
        "queue_jobs_delayed{queue=a}": 3, "queue_jobs_delayed{queue=b}": 0,
        "queue_jobs_active{queue=a}": 0, "queue_jobs_active{queue=b}": 1,
        "queue_jobs_dlq{queue=a}": 0, "queue_jobs_dlq{queue=b}": 1,
        "queue_oldest_waiting_age_seconds{queue=a}": 0, "queue_oldest_waiting_age_seconds{queue=b}": 0,
        "storage_degraded": 1, "write_backlog_rows": 31, "write_backlog_bytes": 32, "flush_failures_total": 21,
        "data_file_bytes": 4_096, "wal_bytes": 8_192, "wal_checkpoint_age_seconds": 1.235, "backup_age_seconds": 77.5,
        "backup_failing": 1, "backups_total": 53, "backup_failures_total": 54, "backup_rejections_total": 55,
        "backup_size_bytes": 51,
        "jobs_orphaned_total": 0, "dlq_evicted_total": 0, "dlq_expired_total": 0, "dlq_auto_retried_total": 0,
        "event_subscribers_cut_off_total": 41,
        "tcp_event_subscribers": 45,
        "sse_connections": 42,
        "ws_connections": 43,
        "ws_events_skipped_total": 44,
    }  # fmt: skip
    counted = {name: value for name, value in found.items() if "duration" not in name and "flush_rows" not in name}
    assert counted == expected


def test_totals_of_what_went_wrong_are_those_of_the_engine(harness):
    totals = harness.engine.state.totals
    totals.orphaned, totals.letters_evicted, totals.letters_expired, totals.letters_retried = 5, 6, 7, 8

    found = samples(text_of(harness))

    names = ("jobs_orphaned_total", "dlq_evicted_total", "dlq_expired_total", "dlq_auto_retried_total")
    assert [found[name] for name in names] == [5, 6, 7, 8]


def test_what_there_is_not_has_no_metric(harness):
    storage = StorageFacts(flushes=FlushFigures())
    found = samples(text_of(harness, facts=structs.replace(FACTS, storage=storage)))

    assert found["storage_degraded"] == 0
    for name in ("data_file_bytes", "wal_bytes", "wal_checkpoint_age_seconds", "backup_age_seconds"):
        assert name not in found
    assert not [name for name in found if name.startswith("backup")]


def test_before_the_first_backup_there_is_neither_age_nor_size(harness):
    storage = StorageFacts(flushes=FlushFigures(), backup=BackupStatus(bucket="b", interval=60_000))
    found = samples(text_of(harness, facts=structs.replace(FACTS, storage=storage)))

    shown = {name: value for name, value in found.items() if name.startswith("backup")}
    assert shown == {"backup_failing": 0, "backups_total": 0, "backup_failures_total": 0, "backup_rejections_total": 0}


def test_the_last_backup_has_its_duration(harness):
    assert samples(text_of(harness))["backup_duration_seconds"] == 52.345


def test_flushes_are_counted_by_duration_and_by_rows(harness):
    text = text_of(harness)

    assert 'bunqueue_flush_duration_seconds_bucket{le="0.0005"} 1\n' in text
    assert 'bunqueue_flush_duration_seconds_bucket{le="0.01"} 1\n' in text
    assert 'bunqueue_flush_duration_seconds_bucket{le="0.025"} 2\n' in text
    assert "bunqueue_flush_duration_seconds_sum 0.02025\nbunqueue_flush_duration_seconds_count 2\n" in text
    assert 'bunqueue_flush_rows_bucket{le="5"} 1\nbunqueue_flush_rows_bucket{le="10"} 1\n' in text
    assert 'bunqueue_flush_rows_bucket{le="100000"} 1\nbunqueue_flush_rows_bucket{le="+Inf"} 2\n' in text
    assert "bunqueue_flush_rows_sum 200003\nbunqueue_flush_rows_count 2\n" in text


def test_histograms_are_cumulative_and_shown_when_empty(harness):
    latencies = Latencies()
    latencies.push.observe(0.3, times=2)
    latencies.push.observe(20_000)
    text = text_of(harness, latencies)

    assert 'bunqueue_push_duration_ms_bucket{le="0.1"} 0\nbunqueue_push_duration_ms_bucket{le="0.5"} 2\n' in text
    assert 'bunqueue_push_duration_ms_bucket{le="10000"} 2\nbunqueue_push_duration_ms_bucket{le="+Inf"} 3\n' in text
    assert "bunqueue_push_duration_ms_sum 20000.6\nbunqueue_push_duration_ms_count 3\n" in text
    assert 'bunqueue_ack_duration_ms_bucket{le="+Inf"} 0\n' in text
    assert "bunqueue_ack_duration_ms_sum 0\nbunqueue_ack_duration_ms_count 0\n" in text


@pytest.mark.parametrize("name", ['say "hi"', "back\\slash", "two\nlines", "ünï", 'all "\\\n" of it'])
def test_odd_names_of_queues_come_out_as_they_went_in(harness, name):
    state = harness.engine.state
    state.queue(name).is_known = True

    assert samples(text_of(harness))[f"queue_jobs_waiting{{queue={name}}}"] == 0


def test_queues_beyond_the_thousandth_are_counted_only(harness):
    state = harness.engine.state
    for n in range(MAX_QUEUES):
        state.queue(f"q{n}").is_known = True
    found = samples(text_of(harness))
    assert sum(name.startswith("queue_jobs_dlq{") for name in found) == MAX_QUEUES
    assert "queues_not_listed" not in found

    for n in range(5):
        state.queue(f"more{n}").is_known = True

    found = samples(text_of(harness))
    assert sum(name.startswith("queue_jobs_dlq{") for name in found) == MAX_QUEUES
    assert "queue_jobs_dlq{queue=q0}" in found
    assert "queue_jobs_dlq{queue=more0}" not in found
    assert found["queues_not_listed"] == 5


@pytest.mark.parametrize("max_queues", [0, 1, 3, 4])
def test_the_number_of_queues_with_series_is_a_setting(harness, max_queues):
    for name in ("a", "b", "c"):
        harness.push(name)
    harness.send("Pause", queue="only paused")  # a name that nobody has pushed to is no queue to count

    found = samples(text_of(harness, max_queues=max_queues))

    listed = ["a", "b", "c"][:max_queues]
    for family in ("jobs_waiting", "oldest_waiting_age_seconds"):
        prefix = f"queue_{family}{{queue="
        assert [name.removeprefix(prefix)[:-1] for name in found if name.startswith(prefix)] == listed
    assert found.get("queues_not_listed", 0) == 3 - len(listed)


def test_whole_numbers_have_no_point_and_others_keep_theirs(harness):
    families = [GaugeMetricFamily("g", "about", value) for value in (0, 3.0, 2.5, 1e15)]

    lines = exposition(families).split("\n")

    assert [line for line in lines if line.startswith("g ")] == ["g 0", "g 3", "g 2.5", "g 1000000000000000"]


def test_the_collector_serves_the_official_registry_too(harness):
    harness.push()
    registry = CollectorRegistry()
    registry.register(EngineCollector(harness.engine.state, Latencies(), FACTS, harness.now))

    assert samples(generate_latest(registry).decode()) == samples(text_of(harness))


def test_a_worker_that_reports_nonsense_breaks_nothing(harness):
    harness.engine.state.workers["w"] = SimpleNamespace(processed_jobs=1e308 * 10, failed_jobs=0)

    assert samples(text_of(harness))["workers_processed_total"] == float("inf")


def test_connections_are_shown_by_transport(harness):
    text = text_of(harness)

    assert 'bunqueue_connections{transport="tcp"} 19\nbunqueue_connections{transport="http"} 29\n' in text
    assert 'bunqueue_connections_refused_total{transport="tcp"} 23\n' in text
    assert 'bunqueue_connections_refused_total{transport="http"} 31\n' in text
