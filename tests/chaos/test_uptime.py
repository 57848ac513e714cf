"""What only shows after months: drift, caps that leak, dead letters that pile up (R177 to R180).

Invariants: run n of a cron is due at start + n intervals, to the millisecond, or at the instants that its expression
names, once each; no cache is ever larger than its cap, and the idempotency of a live id does not hang on a cache; a
queue in which everything fails keeps the newest dead letters, in memory and in the file, and each can be retried.
After all of it the engine holds what it held before.

Time is virtual: an engine over a real database, and a clock that is told to move. So the months pass in seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Sized
from datetime import UTC, date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from bunqueue_trio.clock import ManualClock
from bunqueue_trio.engine import history as history_module
from bunqueue_trio.engine import repeat_patterns
from bunqueue_trio.engine.history import History, KeptResults
from bunqueue_trio.engine.job_logs import JobLogs
from bunqueue_trio.engine.repeat_patterns import RepeatPatterns
from bunqueue_trio.engine.sizes import queue_sizes, state_sizes
from bunqueue_trio.model.entries import LogLine
from bunqueue_trio.model.events import JobEvent
from bunqueue_trio.model.instant import Now
from bunqueue_trio.model.job import RepeatConfig
from bunqueue_trio.protocol import fields as wire_fields
from bunqueue_trio.server import throttle
from bunqueue_trio.server.replay import Replay
from bunqueue_trio.server.throttle import ClientThrottles
from tests.chaos.leaks import CAPPED
from tests.chaos.ledger import Ledger
from tests.chaos.soak import Soak
from tests.engine_harness import completed, raw
from tests.stored_engine import Stored

MINUTE = 60_000
CAP = 10
TENFOLD = 10 * CAP
ZONES = [
    ("Europe/Berlin", 2, 30, 2),
    ("America/New_York", 2, 30, 1),
    ("America/New_York", 1, 30, 1),
    ("Australia/Sydney", 2, 30, 2),
    ("Europe/London", 1, 30, 2),
    ("Pacific/Chatham", 2, 50, 2),
    ("UTC", 2, 30, 0),
]
"""Zone, local time, and how often a year that time is there twice or not at all."""
YEARS = 1


class Months(Stored):
    """An engine for whose months we have a moment; recounting everything at each step would take longer."""

    def __init__(self, wall_ms: float | None = None) -> None:
        super().__init__()
        self.checks = False
        if wall_ms is not None:
            self.clock = ManualClock(wall_ms)

    def commit(self) -> Any:
        """As ever, until nothing is left to be written."""
        batch = super().commit()
        while self.engine.state.changes:
            super().commit()
        return batch

    def sizes(self) -> dict[str, int]:
        """What the engine holds, without the caches, and what only a broker takes away."""
        state = self.engine.state
        sizes = {**state_sizes(state), **queue_sizes(list(state.queues.values()))}
        return {name: size for name, size in sizes.items() if name not in (*CAPPED, "timers", "wakes")}

    def assert_no_more_than(self, before: dict[str, int] | None) -> None:
        """Nothing has grown since."""
        assert before is not None
        assert {name: size for name, size in self.sizes().items() if size > before[name]} == {}

    def work_off(self, ledger: Ledger) -> list[dict[str, Any]]:
        """Run whatever is ready; the jobs."""
        done = []
        while (pulled := self.pull()) is not None:
            job_id, token = pulled
            ledger.begin(job_id, "w")
            done.append(self.shown(job_id))
            ledger.end(job_id, "w")
            self.ack(job_id, token)
            ledger.complete(job_id)
        return done


# L1


@pytest.mark.parametrize("restarts_every", [None, 100])
@pytest.mark.parametrize("fields", [{"repeatEvery": 90_000}, {"schedule": "*/2 * * * *"}])
def test_a_thousand_ticks_do_not_drift(fields: dict[str, Any], restarts_every: int | None, ledger: Ledger) -> None:
    harness = Months()
    interval = fields.get("repeatEvery", 2 * MINUTE)
    cron = harness.ask("Cron", name="c", queue="q", data=1, **fields)["cron"]
    start = cron["nextRun"]
    before = None

    for n in range(1_000):
        due = start + n * interval
        harness.advance(due - 1 - harness.now.wall_ms)
        assert harness.work_off(ledger) == []
        harness.advance(1 + n % 7)  # the reaper is late, by a little
        ledger.push(*harness.engine.state.jobs)
        [job] = harness.work_off(ledger)
        assert due <= job["createdAt"] <= due + n % 7, n
        assert harness.ask("CronGet", name="c")["cron"]["nextRun"] == due + interval, n
        if restarts_every and n % restarts_every == restarts_every - 1:
            harness.commit()
            harness.restart()
        if n == 10:
            harness.commit()
            before = harness.sizes()

    harness.commit()
    assert harness.ask("CronGet", name="c")["cron"]["executions"] == 1_000
    assert len(harness.rows("jobs", "id")) == 1_000
    harness.assert_no_more_than(before)
    harness.engine.check_invariants()
    ledger.remark("1,000 ticks")


# L2


@pytest.mark.parametrize(("zone_name", "hour", "minute", "changes_a_year"), ZONES)
def test_a_daily_run_is_one_a_day_through_all_changes_of_the_clocks(
    zone_name: str, hour: int, minute: int, changes_a_year: int, ledger: Ledger
) -> None:
    zone = ZoneInfo(zone_name)
    start = datetime(2026, 1, 1, 12, tzinfo=UTC)
    harness = Months(start.timestamp() * 1_000)
    harness.send("Cron", name="c", queue="q", schedule=f"{minute} {hour} * * *", timezone=zone_name, data=1)
    changes = 0
    days: list[date] = []
    last_ms = harness.now.wall_ms

    for _ in range(365 * YEARS):
        due = harness.ask("CronGet", name="c")["cron"]["nextRun"]
        assert due > last_ms, "a run is later than the one before it"
        last_ms = due
        harness.advance(due - MINUTE - harness.now.wall_ms)
        assert harness.work_off(ledger) == []
        harness.advance(MINUTE)
        ledger.push(*harness.engine.state.jobs)
        assert len(harness.work_off(ledger)) == 1
        moment = datetime.fromtimestamp(due / 1_000, UTC).astimezone(zone)
        days.append(moment.date())
        named = datetime(moment.year, moment.month, moment.day, hour, minute, tzinfo=zone)
        exists = named.astimezone(UTC).astimezone(zone).replace(tzinfo=None) == named.replace(tzinfo=None)
        changes += not exists or named.replace(fold=1).utcoffset() != named.utcoffset()
        if exists:
            assert (moment.hour, moment.minute) == (hour, minute), moment

    assert days == [days[0] + timedelta(days=n) for n in range(len(days))]
    assert changes == changes_a_year * YEARS
    ledger.remark(f"{len(days)} days, {changes} changes of the clocks")


# L3


def test_the_window_of_finished_jobs_never_exceeds_its_cap(monkeypatch: pytest.MonkeyPatch, ledger: Ledger) -> None:
    monkeypatch.setattr(history_module, "MAX_FINISHED_IDS", CAP)
    harness = Months()
    harness.engine.state.history = History(max_jobs=CAP)
    most_kept = most_ids = 0
    before = None

    for n in range(TENFOLD):
        for job_id, is_removed in ((f"kept-{n}", False), (f"gone-{n}", True)):
            ledger.push(job_id)
            harness.push(jobId=job_id, removeOnComplete=is_removed)
            ledger.acknowledge(job_id)
            harness.work_off(ledger)
        harness.commit()
        sizes = state_sizes(harness.engine.state)
        most_kept, most_ids = max(most_kept, sizes["history"]), max(most_ids, sizes["finishedIds"])
        before = before or harness.sizes()

    assert (most_kept, most_ids) == (CAP, CAP)
    harness.assert_no_more_than(before)
    assert harness.ask_file("GetResult", id="kept-0") is not None  # the file knows what memory has let go
    assert harness.rows("jobs", "id") == sorted(f"kept-{n}" for n in range(TENFOLD))
    ledger.find([*harness.rows("jobs", "id"), *(f"gone-{n}" for n in range(TENFOLD))])


def test_a_thousand_live_ids_stay_unique_with_caches_of_ten(monkeypatch: pytest.MonkeyPatch, ledger: Ledger) -> None:
    """K23: an id is idempotent for as long as its job lives, whatever any cache holds."""
    monkeypatch.setattr(history_module, "MAX_FINISHED_IDS", CAP)
    harness = Months()
    harness.engine.state.history = History(max_jobs=CAP)
    ids = [f"live-{n}" for n in range(1_000)]
    for n in range(TENFOLD):  # the file has finished jobs that memory does not know
        harness.push(jobId=f"old-{n}")
        ledger.push(f"old-{n}")
    harness.work_off(ledger)
    harness.commit()

    for again in (False, True):
        for n, job_id in enumerate(ids):
            ledger.push(job_id)
            reply = harness.ask_file("PUSH", queue="q", data={"n": n, "again": again}, jobId=job_id)
            assert reply.id == job_id
            ledger.acknowledge(job_id)
        harness.commit()
        if not again:
            harness.restart()
            harness.engine.state.history = History(max_jobs=CAP)
            harness.engine.state.history.has_evicted = True

    assert harness.counts()["waiting"] == len(ids)
    assert [harness.shown(job_id)["data"] for job_id in ids] == [{"n": n, "again": False} for n in range(len(ids))]
    assert [job_id for job_id in harness.rows("jobs", "id") if job_id.startswith("live-")] == sorted(ids)
    ledger.find(harness.rows("jobs", "id"))


class LeastRecentlyUsed:
    """One cache: how to put entry *n* into it, and how many it has."""

    def __init__(self, cache: Sized | Callable[[], int], put: Callable[[int], Any]) -> None:
        self.size = cache if callable(cache) else cache.__len__
        self.put = put


def job_logs(_patch: pytest.MonkeyPatch) -> LeastRecentlyUsed:
    logs = JobLogs(max_jobs=CAP)
    return LeastRecentlyUsed(logs, lambda n: logs.add(str(n), LogLine(0.0, raw("info"), raw("line"))))


def kept_results(_patch: pytest.MonkeyPatch) -> LeastRecentlyUsed:
    results = KeptResults(max_bytes=CAP * len(raw("result")))
    return LeastRecentlyUsed(results, lambda n: results.keep(str(n), raw("result")))


def completed_jobs(_patch: pytest.MonkeyPatch) -> LeastRecentlyUsed:
    window = History(max_jobs=CAP)
    return LeastRecentlyUsed(window, lambda n: window.add(completed(str(n))))


def known_queues(patch: pytest.MonkeyPatch) -> LeastRecentlyUsed:
    patch.setattr(wire_fields, "_KNOWN_QUEUES_MAX", CAP)
    wire_fields.known_queues.clear()
    return LeastRecentlyUsed(wire_fields.known_queues, lambda n: wire_fields.pushed_queue(f"queue-{n}"))


def repeat_rules(patch: pytest.MonkeyPatch) -> LeastRecentlyUsed:
    patch.setattr(repeat_patterns, "MAX_KNOWN", CAP)
    patterns = RepeatPatterns(UTC)
    now = Now(1_800_000_000_000.0, 0.0)
    return LeastRecentlyUsed(patterns, lambda n: patterns.check(RepeatConfig(pattern=f"{n % 60} {n // 60} * * *"), now))


def http_clients(patch: pytest.MonkeyPatch) -> LeastRecentlyUsed:
    patch.setattr(throttle, "MAX_CLIENTS", CAP)
    clients = ClientThrottles(100, 60_000, 60_000)
    return LeastRecentlyUsed(lambda: clients.client_count, lambda n: clients.refusal_ms(f"10.0.0.{n}", float(n)))


def replayed_events(_patch: pytest.MonkeyPatch) -> LeastRecentlyUsed:
    replay = Replay(max_events=CAP)
    return LeastRecentlyUsed(replay, lambda n: replay.record([JobEvent("pushed", "q", "j", float(n))]))


@pytest.mark.parametrize(
    "make",
    [job_logs, kept_results, completed_jobs, known_queues, repeat_rules, http_clients, replayed_events],
    ids=lambda make: make.__name__,
)
def test_a_cache_driven_to_ten_times_its_cap_stays_at_it(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = make(monkeypatch)
    most = 0

    for n in range(TENFOLD):
        cache.put(n)
        most = max(most, cache.size())

    assert most == CAP
    assert cache.size() > 0


# L4


@pytest.mark.parametrize("restarts", [False, True])
def test_a_queue_where_everything_fails_keeps_the_newest_letters(restarts: bool, soak: Soak, ledger: Ledger) -> None:
    cap = 40
    harness = Months()
    harness.send("SetDlqConfig", queue="q", config={"maxEntries": cap, "maxAge": None})
    before = None

    for number in soak.rounds(1):
        names = [f"f{number}-{n:03}" for n in range(3 * cap)]
        for n, name in enumerate(names):
            ledger.push(name)
            harness.push(jobId=name, maxAttempts=1 + n % 3, backoff=0)
            for attempt in range(1 + n % 3):
                pulled = harness.pull()
                assert pulled is not None
                assert pulled[0] == name
                ledger.begin(name, attempt)
                ledger.end(name, attempt)
                harness.fail(*pulled, error="always")
            harness.commit()
            ledger.acknowledge(name)
            letters = [letter[0] for letter in harness.dead_letters()]
            assert len(letters) <= cap
            assert harness.rows("dlq") == sorted(letters)
            if restarts and n % 50 == 49:
                harness.restart()

        kept = names[-cap:]
        assert [letter[0] for letter in harness.dead_letters()] == kept
        assert [job_id for job_id in harness.rows("jobs", "id") if job_id in names] == []  # they are letters now
        assert harness.state(names[0]) == "unknown"
        ledger.excuse(*names[:-cap])
        ledger.find(harness.rows("dlq"))
        chosen = kept[cap // 2]
        assert harness.send("RetryDlq", queue="q", jobId=chosen).count == 1
        assert [job["id"] for job in harness.work_off(ledger)] == [chosen]
        assert harness.state(chosen) == "completed"
        assert harness.send("PurgeDlq", queue="q").count == cap - 1
        harness.commit()
        assert harness.rows("dlq") == []
        before = before or harness.sizes()
        harness.assert_no_more_than(before)
        harness.engine.check_invariants()
