"""Commands about the server itself, as a client sees them."""

import pytest
import trio

from bunqueue_trio.errors import StorageError
from bunqueue_trio.model import commands as c
from bunqueue_trio.server.monitoring import WORKERS_SHOWN
from tests.server.fakes import FULL, QUEUE, FakeBackups, Rig, pull, pushes, settle_down

OURS = {c.Stats, c.Metrics, c.StorageStatus, c.CompactMemory, c.Prometheus, c.DashboardOverview}


@pytest.fixture
async def busy(rig: Rig) -> Rig:
    """Two jobs wait, one is urgent, two delayed, one parked, one active, one dead, one completed.

    Needs ``autojump_clock``, which a test asks for itself.
    """
    talker = rig.talker()
    talker.segment(*pushes(["a", "b", "c", "d", "e"]), pull(), pull(), pull())
    first, second, _ = talker.take()[5:]
    talker.say("FAIL", id="a", token=first["token"], unrecoverable=True)
    talker.say("ACK", id="b", token=second["token"])
    await settle_down()
    talker.segment(*pushes(["f"], priority=3), *pushes(["g", "h"], delay=60_000), *pushes(["i"], dependsOn=["h"]))
    await trio.sleep(0.5)
    return rig


async def test_the_broker_lends_its_own_commands_to_the_engine(rig: Rig):
    lent = {kind for kind in OURS if rig.engine.knows(kind())}

    assert lent == OURS
    assert set(rig.broker.monitoring.handlers) == OURS


async def test_stats(busy: Rig, autojump_clock):
    stats = busy.call("Stats")["stats"]

    assert (stats.pop("pushPerSec"), stats.pop("pullPerSec")) == (18, 6)
    assert stats == {"waiting": 2, "active": 1, "delayed": 2, "dlq": 1, "completed": 1, "failed": 1, "uptime": 500}


async def test_a_delay_that_has_run_out_counts_as_waiting_at_once(start_rig, autojump_clock):
    rig = await start_rig(reaper=False)
    rig.push("a", delay=1_000)
    await trio.sleep(1)

    for stats in (rig.call("Stats")["stats"], rig.call("DashboardOverview")["data"]["stats"]):
        assert (stats["waiting"], stats["delayed"]) == (1, 0)
    assert "bunqueue_jobs_waiting 1\n" in rig.call("Prometheus")["data"]["metrics"]


async def test_a_pull_that_waits_gets_what_counting_has_found_ready(start_rig, autojump_clock):
    rig = await start_rig(reaper=False)
    rig.push("a", delay=1_000)
    waiting = rig.talker()
    waiting.say("PULL", queue=QUEUE, timeout=60_000)
    await trio.sleep(1)
    rig.call("Prometheus")

    assert waiting.take()[0]["job"]["id"] == "a"


async def test_metrics(busy: Rig, autojump_clock):
    metrics = busy.call("Metrics")["metrics"]

    assert metrics.pop("memoryUsageMb") > 0
    assert metrics == {
        "totalPushed": 9, "totalPulled": 3, "totalCompleted": 1, "totalFailed": 1,
        "avgLatencyMs": 0, "avgProcessingMs": 0, "sqliteSizeMb": 0, "activeConnections": 0,
    }  # fmt: skip


async def test_averages_are_those_of_the_histograms(rig: Rig):
    rig.broker.latencies.push.observe(2)
    rig.broker.latencies.pull.observe(3.333)
    rig.broker.latencies.ack.observe(7.777)

    metrics = rig.call("Metrics")["metrics"]
    assert (metrics["avgLatencyMs"], metrics["avgProcessingMs"]) == (2.67, 7.78)


async def test_storage_is_well(rig: Rig):
    assert rig.call("StorageStatus") == {"ok": True, "data": {"diskFull": False, "error": None, "since": None}}


async def test_a_full_disk_shows_and_its_time_stays(rig: Rig, autojump_clock):
    rig.store.fill_disk()
    rig.push("a")
    await trio.sleep(0.05)
    full = rig.call("StorageStatus")["data"]
    rig.store.heal()
    await trio.sleep(5)
    healed = rig.call("StorageStatus")["data"]

    assert (full["diskFull"], full["error"]) == (True, FULL)
    assert rig.clock.now().wall_ms - 6_000 < full["since"] < rig.clock.now().wall_ms
    assert healed == {"diskFull": False, "error": None, "since": full["since"]}


async def test_other_trouble_is_no_full_disk(rig: Rig, autojump_clock):
    rig.store.fail_always = StorageError("disk I/O error")
    rig.push("a")
    await trio.sleep(0.05)

    storage = rig.call("StorageStatus")["data"]
    assert (storage["diskFull"], storage["error"]) == (False, "disk I/O error")
    assert rig.call("DashboardOverview")["data"]["storage"] == storage
    rig.store.heal()


async def test_compacting_shows_nowhere(busy: Rig, autojump_clock):
    before = busy.call("Stats")

    assert busy.call("CompactMemory") == {"ok": True}
    assert busy.call("Stats") == before


async def test_prometheus_text(busy: Rig, autojump_clock):
    busy.talker().say("RegisterWorker", name="w", queues=[QUEUE], workerId="w")
    await trio.sleep(2.6)
    text = busy.call("Prometheus")["data"]["metrics"]

    for line in ("uptime_seconds 3", "jobs_waiting 2", "workers_total 1", "workers_active 1", "cron_jobs_total 0"):
        assert f"\nbunqueue_{line}\n" in text
    assert "\nbunqueue_push_duration_ms_count 9\n" in text
    assert "\nbunqueue_pull_duration_ms_count 3\n" in text
    assert "\nbunqueue_ack_duration_ms_count 1\n" in text


async def test_the_overview(busy: Rig, autojump_clock):
    busy.talker().say("RegisterWorker", name="w", queues=[QUEUE], workerId="silent")
    await trio.sleep(29.5)
    busy.talker().say("RegisterWorker", name="v", queues=["a", "b"], workerId="alive")
    await trio.sleep(0.5)
    busy.talker().say("Heartbeat", id="alive", activeJobs=1, processed=5, failed=2)
    busy.call("AddLog", id="c", message="x")
    now = busy.clock.now().wall_ms
    data = busy.call("DashboardOverview")["data"]

    assert data.pop("memory").keys() == {"heapUsed", "heapTotal", "rss"}
    latency = data.pop("latency")
    assert latency == {
        "averages": {"pushMs": 0, "pullMs": 0, "ackMs": 0},
        "percentiles": {kind: {"p50": 0.1, "p95": 0.1, "p99": 0.1} for kind in ("push", "pull", "ack")},
    }
    workers = data.pop("workers")
    assert (workers["total"], workers["active"]) == (2, 1)
    assert [worker["id"] for worker in workers["list"]] == ["silent", "alive"]
    assert workers["list"][1] == {
        "id": "alive", "name": "v", "queues": ["a", "b"], "lastSeen": now, "activeJobs": 1, "processedJobs": 5,
        "failedJobs": 2,
    }  # fmt: skip
    collections = data.pop("collections")
    assert data == {
        "stats": {
            "waiting": 2, "active": 1, "delayed": 2, "completed": 1, "dlq": 1, "totalPushed": 9, "totalPulled": 3,
            "totalCompleted": 1, "totalFailed": 1, "uptime": 30_500,
        },
        "throughput": {"pushPerSec": 0.3, "pullPerSec": 0.1, "completePerSec": 0.03, "failPerSec": 0.03},
        "crons": [],
        "storage": {"diskFull": False, "error": None, "since": None},
        "timestamp": now,
    }  # fmt: skip
    assert collections == {
        "jobIndex": 9, "completedJobs": 1, "jobResults": 1, "jobLogs": 1, "customIdMap": 0, "jobLocks": 1,
        "clientJobs": 1, "clientJobsTotal": 1, "pendingDepChecks": 0, "stalledCandidates": 0, "processingTotal": 1,
        "queuedTotal": 5, "waitingDepsTotal": 1, "temporalIndexTotal": 0, "delayedHeapTotal": 2,
    }  # fmt: skip


async def test_latencies_of_an_idle_server_are_zero(rig: Rig):
    latency = rig.call("DashboardOverview")["data"]["latency"]

    assert latency["percentiles"]["ack"] == {"p50": 0, "p95": 0, "p99": 0}
    assert latency["averages"] == {"pushMs": 0, "pullMs": 0, "ackMs": 0}


async def test_percentiles_are_told_apart(rig: Rig):
    for histogram, scale in ((rig.broker.latencies.push, 1), (rig.broker.latencies.pull, 10)):
        histogram.observe(0.4 * scale, times=90)
        histogram.observe(4 * scale, times=8)
        histogram.observe(40 * scale, times=2)

    latency = rig.call("DashboardOverview")["data"]["latency"]
    assert latency["percentiles"]["push"] == {"p50": 0.5, "p95": 5, "p99": 50}
    assert latency["percentiles"]["pull"] == {"p50": 5, "p95": 50, "p99": 500}
    assert latency["averages"]["pullMs"] == pytest.approx(14.8)


async def test_the_list_of_workers_is_bounded(rig: Rig):
    talker = rig.talker()
    for n in range(WORKERS_SHOWN + 1):
        talker.say("RegisterWorker", name="w", queues=[], workerId=f"w{n}")

    workers = rig.call("DashboardOverview")["data"]["workers"]
    assert (workers["total"], len(workers["list"])) == (WORKERS_SHOWN + 1, WORKERS_SHOWN)


async def test_numbers_beyond_32_bits_leave_as_floats(rig: Rig):
    totals = rig.engine.state.totals
    totals.pushed = totals.pulled = totals.completed = totals.failed = 2**40

    for found in (rig.call("Metrics")["metrics"], rig.call("DashboardOverview")["data"]["stats"]):
        for name in ("totalPushed", "totalPulled", "totalCompleted", "totalFailed"):
            assert (type(found[name]), found[name]) == (float, 2.0**40)
    assert type(rig.call("Stats")["stats"]["failed"]) is float


async def test_a_server_that_runs_for_months_has_a_sound_uptime(rig: Rig, mock_clock):
    mock_clock.jump(90 * 86_400)

    uptime = rig.call("Stats")["stats"]["uptime"]
    assert (type(uptime), uptime) == (float, 90 * 86_400_000.0)


async def test_readings_wait_for_what_this_connection_has_asked_for(rig: Rig, autojump_clock):
    talker = rig.talker()
    hold = talker.segment(*pushes(["a"], durable=True), {"cmd": "Stats"})
    assert hold is not None
    await settle_down()
    talker.go_on()

    assert talker.take()[-1]["stats"]["waiting"] == 1


# storage in the metrics


def shown(rig: Rig) -> dict[str, float]:
    """The samples of the metrics without labels."""
    lines = rig.call("Prometheus")["data"]["metrics"].split("\n")
    samples = (line.split(" ") for line in lines if line and not line.startswith("#"))
    return {name.removeprefix("bunqueue_"): float(value) for name, value in samples if "{" not in name}


async def test_what_waits_for_the_file_is_counted_also_while_it_is_written(rig: Rig, autojump_clock):
    rig.store.close_gate()
    rig.push("a", data="x" * 1_000)
    before = shown(rig)
    await trio.sleep(0.05)
    rig.push("b", data="x" * 500)
    during = shown(rig)
    rig.store.open_gate()
    await trio.sleep(0.05)
    after = shown(rig)

    assert before["write_backlog_rows"] == 1
    assert 1_000 < before["write_backlog_bytes"] < 1_010
    assert during["write_backlog_rows"] == 2
    assert 1_500 < during["write_backlog_bytes"] < 1_520
    assert (after["write_backlog_rows"], after["write_backlog_bytes"]) == (0, 0)


async def test_a_durable_push_weighs_while_it_waits(rig: Rig, autojump_clock):
    rig.store.close_gate()
    rig.push("a")
    await trio.sleep(0.05)
    rig.talker().segment(*pushes(["b"], durable=True, data="x" * 1_000))
    during = shown(rig)
    rig.store.open_gate()
    await trio.sleep(0.05)

    assert during["write_backlog_rows"] == 2
    assert 1_000 < during["write_backlog_bytes"] < 1_020
    assert shown(rig)["write_backlog_bytes"] == 0


async def test_changes_of_stored_jobs_weigh_nothing(rig: Rig, autojump_clock):
    rig.push("a", data="x" * 1_000)
    await trio.sleep(0.05)
    rig.store.close_gate()
    rig.talker().say("PULL", queue=QUEUE, owner="w")

    found = shown(rig)
    rig.store.open_gate()

    assert (found["write_backlog_rows"], found["write_backlog_bytes"]) == (1, 0)


async def test_flushes_are_counted_with_their_rows(rig: Rig, autojump_clock):
    rig.talker().segment(*pushes(["a", "b", "c"]))
    await trio.sleep(0.05)
    rig.push("d")
    await trio.sleep(0.05)

    found = shown(rig)

    assert (found["flush_rows_count"], found["flush_rows_sum"]) == (2, 4)
    assert found["flush_duration_seconds_count"] == 2
    assert 0 < found["flush_duration_seconds_sum"] < 10
    assert found["flush_failures_total"] == 0


async def test_a_flush_that_fails_is_counted_as_such(rig: Rig, autojump_clock):
    rig.store.fill_disk()
    rig.push("a")
    await trio.sleep(0.05)
    full = shown(rig)
    rig.store.heal()
    await trio.sleep(5)
    healed = shown(rig)

    assert (full["storage_degraded"], full["flush_failures_total"], full["flush_rows_count"]) == (1, 1, 0)
    assert (healed["storage_degraded"], healed["flush_failures_total"], healed["flush_rows_count"]) == (0, 1, 1)


async def test_the_age_of_the_backup_is_shown_once_there_is_one(rig: Rig, autojump_clock):
    assert "backup_age_seconds" not in shown(rig)

    rig.broker.monitoring.backups = FakeBackups(last_proven_at=rig.clock.now().wall_ms)
    await trio.sleep(90)

    assert shown(rig)["backup_age_seconds"] == 90


async def test_the_age_of_the_oldest_job_follows_the_clock(rig: Rig, autojump_clock):
    rig.push("a")
    await trio.sleep(2.5)

    text = rig.call("Prometheus")["data"]["metrics"]

    assert 'bunqueue_queue_oldest_waiting_age_seconds{queue="q"} 2.5\n' in text


async def test_a_subscriber_that_was_cut_off_is_counted(rig: Rig, autojump_clock):
    with rig.broker.events.subscribe(max_events=1):
        rig.push("a")
        rig.push("b")

    assert shown(rig)["event_subscribers_cut_off_total"] == 1
