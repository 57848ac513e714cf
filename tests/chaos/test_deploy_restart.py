"""Deploy restart, U1 to U3: SIGTERM and a start on the same file, eight times in a row and more (R174 to R176).

Invariant: an orderly stop loses nothing that was confirmed, buffered pushes included, whoever goes on pushing while it
happens; jobs that wait, stored results, the pause flag and the dead letters come back unchanged. A job that was being
run when the stop ended its wait may run again, one run after the other.
"""

from __future__ import annotations

import random
import signal
import sqlite3
import time
from contextlib import closing
from typing import Any

from tests.chaos.actors import Producer, Worker, drain, fixed_port, living, look_up, prepare, round_trip, strike_off
from tests.chaos.bounds import BOUNDS
from tests.chaos.ledger import Ledger
from tests.chaos.soak import Soak
from tests.process import Client, ServerProcess, StartServer

CYCLES = 8
BUFFERED = 99  # one row less than what begins a flush at once


def stop_in_order(server: ServerProcess) -> float:
    """SIGTERM; the process must end well, soon, and leave one file. Returns when it was sent, monotonic clock."""
    server.signal(signal.SIGTERM)
    sent_at = time.monotonic()
    assert server.wait_exit(BOUNDS.stop_s) == 0, server.last_log
    wal = server.data_path.with_name(server.data_path.name + "-wal")
    assert not wal.exists() or wal.stat().st_size == 0
    return sent_at


def test_restarts_under_a_client_that_keeps_pushing_lose_nothing(
    start_server: StartServer, ledger: Ledger, rng: random.Random, soak: Soak
) -> None:
    """U1 and U3: producers that reconnect, workers that are sent home by each stop, and a picture that stays."""
    server = start_server(TCP_PORT=fixed_port(rng))
    prepare(server)
    with server.connect() as client:
        arrange(client)
        before = picture(client)
    producers = [
        Producer(server, ledger, "durable", pause_s=0.002, reconnects=True),
        Producer(server, ledger, "buffered", pause_s=0.002, durable=False, reconnects=True),
        Producer(server, ledger, "batch", batch=20, pause_s=0.05, durable=False, reconnects=True),
    ]
    cycles = 0
    with living(*producers):
        for number in soak.rounds(CYCLES):
            workers = [Worker(server, ledger, f"worker-{number}-{n}", count=rng.choice((1, 20))) for n in range(2)]
            with living(*workers):
                time.sleep(rng.uniform(0.05, 0.4))
                stop_in_order(server)
            ledger.end_all()
            assert rows_of_missing(server, ledger) == set()
            server.start()
            round_trip(server)
            with server.connect() as client:
                assert picture(client) == before
            cycles += 1
            if cycles % CYCLES == 0:
                strike_off(server, ledger)
    drain(server, ledger)

    assert set(look_up(server, ledger).values()) <= {"completed"}
    ledger.remark(f"{cycles} cycles on one file")
    server.assert_no_faults()


def rows_of_missing(server: ServerProcess, ledger: Ledger) -> set[str]:
    """What the producers were told is safe and the file of the stopped server does not have."""
    confirmed = set(ledger.acknowledged)
    with closing(sqlite3.connect(f"file:{server.data_path}?immutable=1", uri=True)) as connection:
        return confirmed - {job_id for (job_id,) in connection.execute("SELECT id FROM jobs WHERE queue = 'q'")}


def arrange(client: Client) -> None:
    """Some of everything that has to come back."""
    for number in range(10):
        options = ({}, {"priority": 5}, {"delay": 3_600_000}, {"tags": ["a"]}, {"lifo": True})[number % 5]
        client.ok("PUSH", queue="kept", data={"n": number}, jobId=f"kept-{number}", durable=number % 2 == 0, **options)
    for number in range(5):
        client.ok("PUSH", queue="done", data=number, jobId=f"done-{number}")
        pulled = client.ok("PULL", queue="done", owner="w")
        client.ok("ACK", id=f"done-{number}", token=pulled["token"], result={"n": [number, None]})
        client.ok("PUSH", queue="dead", data=number, jobId=f"dead-{number}", maxAttempts=1)
        pulled = client.ok("PULL", queue="dead", owner="w")
        client.ok("FAIL", id=f"dead-{number}", token=pulled["token"], error=f"no {number}", stack=["here"])
    client.ok("PUSH", queue="held", data=1, jobId="held")
    client.ok("Pause", queue="held")


def picture(client: Client) -> dict[str, Any]:
    """Jobs that wait, results, the pause flag, the dead letters."""
    queues = ("kept", "done", "dead", "held")
    return {
        "waiting": [client.ok("GetJob", id=f"kept-{number}")["job"] for number in range(10)],
        "results": [client.ok("GetResult", id=f"done-{number}")["result"] for number in range(5)],
        "paused": [client.ok("IsPaused", queue=queue)["paused"] for queue in queues],
        "letters": client.ok("Dlq", queue="dead", count=100)["jobs"],
        "counts": [client.ok("GetJobCounts", queue=queue)["counts"] for queue in queues],
    }


def test_buffered_pushes_of_the_last_instant_are_in_the_file(server: ServerProcess, ledger: Ledger) -> None:
    """U2: 99 buffered pushes, and SIGTERM before the ten milliseconds of their buffer are over (R175)."""
    delays_ms = []
    for number in range(2):
        ids = [f"{number}-{i}" for i in range(BUFFERED)]
        ledger.push(*ids)
        with server.connect() as client:
            numbers = client.send_many([{"cmd": "PUSH", "queue": "q", "data": i, "jobId": i} for i in ids])
            confirmed = [client.wait(sent)["id"] for sent in numbers[:1]]
            first_at = time.monotonic()
            confirmed += [client.wait(sent)["id"] for sent in numbers[1:]]
            delays_ms.append((stop_in_order(server) - first_at) * 1_000)
        assert confirmed == ids
        ledger.acknowledge(*ids)
        assert rows_of_missing(server, ledger) == set()
        server.start()
        assert look_up(server, ledger, ids) == dict.fromkeys(ids, "waiting")
    look_up(server, ledger)
    ledger.remark(f"SIGTERM {max(delays_ms):.1f} ms after the first reply at the latest")
    server.assert_no_faults()


def test_a_stop_during_the_start_harms_nothing(server: ServerProcess, ledger: Ledger, rng: random.Random) -> None:
    """A roll-out that changes its mind: the signal comes at any moment of the start, and the next one is a good one."""
    ids = [f"job-{number}" for number in range(1_000)]
    ledger.push(*ids)
    with server.connect() as client:
        jobs = [{"customId": job_id, "data": 1} for job_id in ids]
        ledger.acknowledge(*client.ok("PUSHB", queue="q", jobs=jobs)["ids"])
        held = client.ok("PULLB", queue="q", count=10, owner="w", lockTtl=60_000)["jobs"]
        assert len(held) == 10
    # The connection is gone, so the jobs wait again, with an attempt charged.
    stop_in_order(server)
    began = time.monotonic()
    server.start()
    whole_start_s = time.monotonic() - began
    stop_in_order(server)

    codes = []
    for _ in range(3):
        server.launch()
        time.sleep(rng.uniform(0.2, 1.1) * whole_start_s)
        server.signal(signal.SIGTERM)
        codes.append(server.wait_exit(BOUNDS.stop_s))
    # Before the program has taken the signal over, the system ends it.
    assert set(codes) <= {0, -signal.SIGTERM}
    server.start()
    round_trip(server)

    assert look_up(server, ledger) == dict.fromkeys(ids, "waiting")
    ledger.remark(f"exit codes {codes}")
    server.assert_no_faults()
