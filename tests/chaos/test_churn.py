"""Sustained churn: endless traffic, and every 400 ms a worker's socket is cut and a new worker starts (R152 to R156).

Invariant: nothing that was pushed is lost, each job completes, and none runs twice at the same time; once the work is
done, every internal collection has its former size, whatever was cut. The server answers others all the while. Jobs
whose worker was cut run again: delivery is at least once. ``SOAK`` says how long it goes on; what was checked is
settled on the way, so that a day needs no more memory than a minute.
"""

from __future__ import annotations

import itertools
import random
import time

from tests.chaos.actors import Pinger, Producer, Worker, drain, living, look_up, prepare
from tests.chaos.bounds import BOUNDS, COMPLETED_CAP
from tests.chaos.leaks import RssWatch, assert_back_at, baseline, heapstats
from tests.chaos.ledger import Ledger
from tests.chaos.soak import Soak
from tests.process import ServerProcess, StartServer

CUT_EVERY_S = 0.4
CREW = 6
SETTLE_EVERY_S = 5.0
SHORT_S = 12.0
LEASE_MS = 1_000  # of workers that send heartbeats: their jobs come back when it ends


def test_cut_sockets_lose_nothing_and_leave_nothing_behind(
    start_server: StartServer, ledger: Ledger, rng: random.Random, soak: Soak
) -> None:
    server = start_server(COMPLETED_RETENTION_MS=600_000, LEASE_GRACE_MS=200)
    prepare(server)
    warm_up(server, ledger)
    before = baseline(server)
    rss = RssWatch(server)
    # A pace that a day's file can hold; the workers keep up with it.
    producers = [
        Producer(server, ledger, "durable", pause_s=0.01, most_open=1_000),
        Producer(server, ledger, "batch", batch=10, durable=False, pause_s=0.05, most_open=1_000),
    ]
    pinger = Pinger(server, ledger)
    numbers = itertools.count()
    cuts, settled_at = 0, time.monotonic()
    ends = time.monotonic() + soak.duration_s(SHORT_S)

    with living(*producers, pinger):
        crew = [hire(server, ledger, rng, next(numbers)) for _ in range(CREW)]
        while time.monotonic() < ends:
            time.sleep(CUT_EVERY_S)
            dying = crew.pop(0)
            dying.cut()
            crew.append(hire(server, ledger, rng, next(numbers)))
            dying.finish()
            cuts += 1
            if time.monotonic() - settled_at > SETTLE_EVERY_S:
                settle(server, ledger)
                rss.note()
                settled_at = time.monotonic()
        for producer in producers:
            producer.stop()
            producer.finish()
        for worker in crew:
            worker.cut()
            worker.finish()
        drain(server, ledger)

    assert set(look_up(server, ledger).values()) <= {"completed"}
    p99_ms = pinger.percentile_ms(0.99)
    ledger.remark(f"{cuts} cuts, ping p99 {p99_ms:.1f} ms, slowest {max(pinger.round_trips_ms):.1f} ms")
    assert p99_ms < BOUNDS.ping_p99_ms
    assert max(pinger.round_trips_ms) < BOUNDS.ping_timeout_s * 1_000
    assert_back_at(server, before)
    if len(rss.samples) > 4:
        rss.assert_flat()
    server.assert_no_faults()


def hire(server: ServerProcess, ledger: Ledger, rng: random.Random, number: int) -> Worker:
    """A new worker of some kind."""
    beats = rng.random() < 0.3
    slow_s = rng.choice((0.0, 0.02, 0.2))
    worker = Worker(
        server,
        ledger,
        f"worker-{number}",
        beats=beats,
        lock_ttl_ms=LEASE_MS if beats else 60_000,
        count=rng.choice((1, 1, 10)),
        work_s=slow_s,
    )
    worker.start()
    return worker


def warm_up(server: ServerProcess, ledger: Ledger) -> None:
    """One of everything: what is made once and kept is no leak."""
    producer = Producer(server, ledger, "warm-up", most_open=100)
    crew = [Worker(server, ledger, f"warm-up-worker-{n}", count=n, beats=n > 1) for n in (1, 10)]
    with living(producer, *crew):
        time.sleep(0.5)
        crew[0].cut()
    drain(server, ledger)


def settle(server: ServerProcess, ledger: Ledger) -> None:
    """Check what has been pushed so far, and strike off what is complete.

    That may be more than the books say, for a worker that is cut never hears of its last completion.
    """
    confirmed = ledger.completed & ledger.acknowledged
    pushed = list(ledger.acknowledged)
    states = look_up(server, ledger, pushed)
    assert [job_id for job_id in pushed if job_id not in states] == [], "lost"
    assert [job_id for job_id in confirmed if states[job_id] != "completed"] == [], "runs again"
    ledger.settle([job_id for job_id, state in states.items() if state == "completed"])


def test_what_is_kept_of_completed_jobs_has_a_cap(start_server: StartServer, ledger: Ledger) -> None:
    """R155: more ids of finished jobs than the cap pass through; what is remembered of them never exceeds it."""
    server = start_server()
    most, batch = 0, 1_000
    with server.connect() as client:
        for start in range(0, COMPLETED_CAP + 3 * batch, batch):
            ids = [f"job-{number}" for number in range(start, start + batch)]
            ledger.push(*ids)
            jobs = [{"customId": job_id, "data": 1, "removeOnComplete": True} for job_id in ids]
            ledger.acknowledge(*client.ok("PUSHB", queue="q", jobs=jobs)["ids"])
            pulled = client.ok("PULLB", queue="q", count=batch, owner="w", lockTtl=60_000)
            done = [job["id"] for job in pulled["jobs"]]
            assert len(done) == batch
            for job_id in done:
                ledger.begin(job_id, "w")
                ledger.end(job_id, "w")
            client.ok("ACKB", ids=done, tokens=pulled["tokens"])
            ledger.complete(*done)
            if start % (10 * batch) == 0 or start >= COMPLETED_CAP:
                most = max(most, heapstats(server)["internals"]["finishedIds"])
        assert most == COMPLETED_CAP
        assert not any(client.ok("GetJobCounts", queue="q")["counts"].values())  # gone by the user's wish
    ledger.find(ledger.completed)
    server.assert_no_faults()
