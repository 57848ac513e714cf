"""The metrics keep the names, types and labels that dashboards rely on, and those of our own are named as is usual.

The second half are the rules of ``promtool check metrics``, but for names that the table gives.

Source: HTTP, "GET /prometheus"; R264 to R267.
"""

import re
from collections import Counter

import pytest
from prometheus_client.parser import text_string_to_metric_families

from bunqueue_trio.model.backup import BackupStatus, LogStatus
from bunqueue_trio.server.facts import Facts, FileFacts, StorageFacts, WebhookFacts
from bunqueue_trio.server.flush_figures import FlushFigures
from bunqueue_trio.server.latencies import Latencies
from bunqueue_trio.server.metrics import EngineCollector, exposition
from tests.engine_harness import EngineHarness

TABLE = """
bunqueue_jobs_waiting gauge
bunqueue_jobs_prioritized gauge
bunqueue_jobs_delayed gauge
bunqueue_jobs_active gauge
bunqueue_jobs_dlq gauge
bunqueue_jobs_completed gauge
bunqueue_jobs_pushed_total counter
bunqueue_jobs_pulled_total counter
bunqueue_jobs_completed_total counter
bunqueue_jobs_failed_total counter
bunqueue_uptime_seconds gauge
bunqueue_cron_jobs_total gauge
bunqueue_workers_total gauge
bunqueue_workers_active gauge
bunqueue_workers_processed_total counter
bunqueue_workers_failed_total counter
bunqueue_webhooks_total gauge
bunqueue_webhooks_enabled gauge
bunqueue_queue_jobs_waiting gauge queue
bunqueue_queue_jobs_prioritized gauge queue
bunqueue_queue_jobs_delayed gauge queue
bunqueue_queue_jobs_active gauge queue
bunqueue_queue_jobs_dlq gauge queue
bunqueue_push_duration_ms histogram
bunqueue_pull_duration_ms histogram
bunqueue_ack_duration_ms histogram
"""
LES = ["0.1", "0.5", "1", "2.5", "5", "10", "25", "50", "100", "250", "500", "1000", "2500", "5000", "10000", "+Inf"]
GIVEN = dict(line.split(maxsplit=1) for line in TABLE.strip().splitlines())
UNITS = "milliseconds|minutes|hours|days|kilobytes|megabytes|ms|us|ns|sec|kb|mb|gb|tb|pct|percent|bits|celcius"


@pytest.fixture(scope="module")
def text() -> str:
    """Everything that can be shown at once."""
    harness = EngineHarness()
    for name in ("one", "two", "three"):
        harness.push(name)
    log = LogStatus(
        interval=1, generation="g", recovery_point_at=1, waiting_bytes=0, shipped_count=0, broken_count=0, error=None,
        failing_since=None,
    )  # fmt: skip
    backup = BackupStatus(bucket="b", interval=60_000, last_size=1, last_duration=1, log=log)
    file = FileFacts(data_bytes=1, wal_bytes=1, checkpoint_age_s=1.5)
    storage = StorageFacts(flushes=FlushFigures(), file=file, backup=backup, backup_age_s=1, recovery_point_age_s=2)
    facts = Facts(
        uptime_s=1, worker_count=1, active_worker_count=1, cron_count=1, webhooks=WebhookFacts(), storage=storage
    )
    return exposition(EngineCollector(harness.engine.state, Latencies(), facts, harness.now, max_queues=2).collect())


def types(text: str) -> dict[str, str]:
    """Type by family, as the text names them and in its order."""
    return dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))


def series(text: str) -> list[tuple[str, tuple[str, ...]]]:
    """Name and names of labels of each sample."""
    lines = [line for line in text.split("\n") if line and not line.startswith("#")]
    return [
        (re.split(r"[{ ]", line)[0], tuple(re.findall(r'(\w+)="', line.partition("{")[2].rpartition("}")[0])))
        for line in lines
    ]


def family_of(name: str, known: dict[str, str]) -> str:
    base = re.sub(r"_(bucket|sum|count)$", "", name)
    return base if known.get(base) == "histogram" else name


def test_the_families_of_the_table_come_first_and_in_its_order(text):
    assert list(types(text))[: len(GIVEN)] == list(GIVEN)


def test_each_has_the_type_and_the_labels_of_the_table(text):
    known = types(text)
    labels: dict[str, set[str]] = {}
    for name, names in series(text):
        labels.setdefault(family_of(name, known), set()).update(names)

    for name, rest in GIVEN.items():
        kind, *expected = rest.split()
        assert known[name] == kind
        assert labels[name] - ({"le"} if kind == "histogram" else set()) == set(expected)


@pytest.mark.parametrize("name", ["push", "pull", "ack"])
def test_durations_keep_their_buckets(text, name):
    assert re.findall(rf'^bunqueue_{name}_duration_ms_bucket{{le="(.+)"}} 0$', text, re.MULTILINE) == LES


def test_the_official_parser_reads_every_sample(text):
    families = list(text_string_to_metric_families(text))

    assert sum(len(family.samples) for family in families) == len(series(text))
    assert all(family.type != "unknown" and family.documentation for family in families)


def test_no_family_and_no_series_comes_twice(text):
    lines = [line.rpartition(" ")[0] for line in text.split("\n") if line and not line.startswith("#")]
    heads = re.findall(r"^# (?:HELP|TYPE) \S+", text, re.MULTILINE)

    assert [name for name, count in Counter(lines + heads).items() if count > 1] == []


def test_each_family_has_help_then_type_then_its_samples_and_nothing_else(text):
    known = types(text)
    for block in text.removesuffix("\n").split("\n\n"):
        about, kind, *samples = block.split("\n")
        name = kind.split()[2]
        assert re.fullmatch(rf"# HELP {name} \S.*", about)
        assert samples
        assert {family_of(found, known) for found, _ in series("\n".join(samples))} == {name}


def test_names_of_our_own_are_named_as_is_usual(text):
    ours = {name: kind for name, kind in types(text).items() if name not in GIVEN}
    assert len(ours) > 10

    for name, kind in ours.items():
        assert re.fullmatch(r"bunqueue(_[a-z0-9]+)+", name), name
        assert name.endswith("_total") == (kind == "counter"), name
        assert not re.search(r"_(bucket|sum|count|info|created)$", name), name
        assert not re.search(rf"_({UNITS})(_|$)", name), name  # base units: seconds, bytes
        assert not re.search(r"_(gauge|counter|histogram|summary)(_|$)", name), name


def test_only_the_queue_and_the_bucket_are_labels(text):
    assert {label for _, names in series(text) for label in names} == {"queue", "le"}
