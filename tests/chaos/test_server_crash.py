"""Server crash, CR1 to CR7: SIGKILL at random moments, and a start on the same file, over many cycles (R137 to R143).

Invariant: nothing that was confirmed as durable is lost, a confirmed completion stays one, and no job runs twice at the
same time, whatever moment the process is killed at. A job whose worker or server died may run again: the suite proves
at-least-once delivery, never effects that happen exactly once. Buffered pushes of the last instants before a kill may
be gone, which is the price of their speed; how far back that reached is measured and printed (R197, R198).
"""

from __future__ import annotations

import random
import time
from typing import Any

import pytest

from tests.chaos.actors import LASTING, Producer, Worker, drain, living, look_up, prepare, round_trip, strike_off
from tests.chaos.bounds import BOUNDS
from tests.chaos.ledger import Ledger
from tests.chaos.soak import Soak
from tests.process import Client, ServerProcess, StartServer

KILLS = 10  # in each of two runs with choices of their own
ROWS = 10_000


def start_in_time(server: ServerProcess) -> float:
    """Start after a crash; how long it took until a round trip was answered, s. A restart never wedges (R143)."""
    began = time.monotonic()
    server.start()
    round_trip(server)
    took = time.monotonic() - began
    assert took < BOUNDS.restart_s, server.last_log
    return took


@pytest.mark.parametrize("run", [1, 2])
def test_kills_at_random_moments_lose_nothing_durable(
    run: int, server: ServerProcess, ledger: Ledger, rng: random.Random, soak: Soak
) -> None:
    """CR1: durable and buffered producers and workers at work, killed again and again (R101, R138, R139, R198)."""
    prepare(server)
    kills, buffered, windows_ms, starts_s = 0, 0, [0.0], []
    # One of the two goes on for as long as SOAK says: three suites do, and so many run side by side.
    for number in soak.rounds(KILLS) if run == 1 else range(KILLS):
        producers = [
            Producer(server, ledger, f"durable-{run}-{number}"),
            Producer(server, ledger, f"batch-{run}-{number}", batch=rng.randint(2, 50)),
            Producer(server, ledger, f"buffered-{run}-{number}", durable=False, keeps_moments=True),
        ]
        workers = [Worker(server, ledger, f"worker-{run}-{number}-{n}", count=rng.choice((1, 20))) for n in range(2)]
        with living(*producers, *workers):
            time.sleep(rng.uniform(0.0, 0.5))
            killed_at = time.monotonic()
            server.kill()
        ledger.end_all()
        kills += 1
        starts_s.append(start_in_time(server))

        confirmed_at = producers[-1].acknowledged_at
        buffered += len(confirmed_at)
        last_instants = killed_at - BOUNDS.loss_window_ms / 1_000
        ledger.excuse(*(job_id for job_id, moment in confirmed_at.items() if moment > last_instants))
        states = look_up(server, ledger)
        windows_ms += [(killed_at - confirmed_at[job_id]) * 1_000 for job_id in ledger.missing & confirmed_at.keys()]
        ledger.check()
        assert [job_id for job_id in ledger.completed if states.get(job_id) != "completed"] == []
        ledger.forget(ledger.pushed - states.keys())
        if kills % KILLS == 0:
            strike_off(server, ledger)
    drain(server, ledger)
    assert set(look_up(server, ledger).values()) <= {"completed"}
    with server.connect() as client:
        counted = client.ok("Metrics", queue="q", type="completed")["data"]
    assert counted["meta"]["count"] == sum(counted["data"]) == ledger.found_count
    ledger.remark(
        f"{kills} kills, buffered pushes lost: {len(windows_ms) - 1} of {buffered}, "
        f"the oldest confirmed {max(windows_ms):.1f} ms before its kill; slowest start {max(starts_s):.2f} s"
    )
    server.assert_no_faults()


def test_kills_during_the_start_neither_wedge_nor_charge_twice(
    server: ServerProcess, ledger: Ledger, rng: random.Random
) -> None:
    """CR7: a start that is killed leaves the next one as much, and active jobs are charged one attempt in all."""
    prepare(server)
    ids = [f"row-{number}" for number in range(ROWS)]
    ledger.push(*ids)
    with server.connect() as client:
        for start in range(0, ROWS, 1_000):
            jobs = [{"customId": job_id, "data": 1, **LASTING} for job_id in ids[start : start + 1_000]]
            ledger.acknowledge(*client.ok("PUSHB", queue="q", jobs=jobs, durable=True)["ids"])
        active = [job["id"] for job in client.ok("PULLB", queue="q", count=20, owner="w", lockTtl=60_000)["jobs"]]
        client.ok("PUSH", queue="other", data=1, durable=True)  # the pull is in the file with it
        server.kill()

    began = time.monotonic()
    server.start()
    whole_start_s = time.monotonic() - began
    with server.connect() as client:
        again = [job["id"] for job in client.ok("PULLB", queue="q", count=20, owner="w", lockTtl=60_000)["jobs"]]
        client.ok("PUSH", queue="other", data=1, durable=True)
    for _ in range(3):
        server.kill()
        server.launch()
        time.sleep(rng.uniform(0.3, 1.1) * whole_start_s)
    server.kill()
    took_s = start_in_time(server)

    assert set(look_up(server, ledger)) == set(ids)
    with server.connect() as client:
        replies = client.call_many([{"cmd": "GetJob", "id": job_id} for job_id in ids])
        counts = client.ok("GetJobCounts", queue="q")["counts"]
    attempts = {reply["job"]["id"]: reply["job"]["attempts"] for reply in replies}
    expected = {job_id: (job_id in active) + (job_id in again) for job_id in ids}
    assert attempts == expected
    assert counts["waiting"] + counts["delayed"] == ROWS
    ledger.remark(f"start with {ROWS} rows {took_s:.2f} s")
    server.assert_no_faults()


def test_pause_dead_letters_and_attempts_come_back_as_they_were(server: ServerProcess) -> None:
    """CR4 to CR6: the pause flag, the dead letters with all they hold, and one attempt for what was active."""
    with server.connect() as client:
        for number in range(5):
            client.ok("PUSH", queue="dead", data={"n": number}, jobId=f"dead-{number}", maxAttempts=1, durable=True)
            pulled = client.ok("PULL", queue="dead", owner="w")
            client.ok("FAIL", id=pulled["job"]["id"], token=pulled["token"], error=f"no {number}", stack=["here"])
        for number, options in enumerate(({}, {"maxAttempts": 7}, {"backoff": 60_000}, {"priority": 3})):
            client.ok("PUSH", queue="busy", data=1, jobId=f"busy-{number}", durable=True, **options)
        pulled = client.ok("PULLB", queue="busy", count=4, owner="w", lockTtl=60_000)
        client.ok("PUSH", queue="held", data=1, jobId="held", durable=True)
        client.ok("Pause", queue="held")
        before = picture(client)
    assert [job["id"] for job in pulled["jobs"]] == ["busy-3", "busy-0", "busy-1", "busy-2"]

    for number in range(2):
        server.crash_and_restart()

        with server.connect() as client:
            after = picture(client)
            assert after["letters"] == before["letters"]
            assert after["paused"] is True
            # Charged by the first start only, since nobody has pulled them again.
            assert after["attempts"] == {job_id: count + 1 for job_id, count in before["attempts"].items()}, number
            assert client.ok("PULL", queue="held", owner="w")["job"] is None
            assert client.state("held") == "waiting"
    with server.connect() as client:
        client.ok("Resume", queue="held")
        assert client.ok("PULL", queue="held", owner="w")["job"]["id"] == "held"
    server.assert_no_faults()


def picture(client: Client) -> dict[str, Any]:
    """What must persist."""
    letters = client.ok("Dlq", queue="dead", count=100)["jobs"]
    assert len(letters) == 5
    jobs = [client.ok("GetJob", id=f"busy-{number}")["job"] for number in range(4)]
    return {
        "letters": letters,
        "paused": client.ok("IsPaused", queue="held")["paused"],
        "attempts": {job["id"]: job["attempts"] for job in jobs},
    }


def test_a_completion_that_was_confirmed_is_never_handed_out_again(start_server: StartServer, ledger: Ledger) -> None:
    """CR2: confirmed means flushed, so the kill may come at once (R139)."""
    server = start_server()
    for number in range(2):
        ids = [f"{number}-{n}" for n in range(20)]
        ledger.push(*ids)
        with server.connect() as client:
            client.ok("PUSHB", queue="q", jobs=[{"data": 1, "customId": job_id} for job_id in ids])
            pulled = client.ok("PULLB", queue="q", count=20, owner="w", lockTtl=60_000)
            acks = [
                {"cmd": "ACK", "id": job["id"], "token": token, "result": job["id"]}
                for job, token in zip(pulled["jobs"], pulled["tokens"], strict=True)
            ]
            for job_id in ids:
                ledger.begin(job_id, number)
                ledger.end(job_id, number)
            replies = client.call_many(acks)
            server.kill()
        assert all(reply["ok"] for reply in replies)
        ledger.acknowledge(*ids)  # a confirmed completion confirms its push
        ledger.complete(*ids)
        server.start()
        assert set(look_up(server, ledger, ids).values()) == {"completed"}
        with server.connect() as client:
            assert client.ok("PULLB", queue="q", count=20, owner="w", timeout=100)["jobs"] == []
            assert [client.ok("GetResult", id=job_id)["result"] for job_id in ids] == ids
    server.assert_no_faults()


def test_a_kill_right_after_the_reply_undoes_nothing_that_was_promised(server: ServerProcess) -> None:
    for number in range(2):
        ids = [f"{number}-{letter}" for letter in "abcd"]
        with server.connect() as client:
            client.ok("PUSHB", queue=f"q{number}", jobs=[{"data": 1, "customId": i, "backoff": 60_000} for i in ids])
            pulled = client.ok("PULLB", queue=f"q{number}", count=3, owner="w", lockTtl=60_000)
            tokens = pulled["tokens"]
            client.ok("ACKB", ids=ids[:1], tokens=tokens[:1], results=["kept"])
            client.ok("FAIL", id=ids[1], token=tokens[1], error="again", stack=["here"])
            client.ok("FAIL", id=ids[2], token=tokens[2], unrecoverable=True)
            client.ok("Cancel", id=ids[3])
            client.ok("Pause", queue=f"q{number}")
            durable = client.ok("PUSH", queue=f"q{number}", data=2, durable=True)["id"]
            server.kill()
        server.start()
        with server.connect() as client:
            states = [client.state(job_id) for job_id in [*ids, durable]]
            assert states == ["completed", "delayed", "failed", "unknown", "waiting"]
            assert client.ok("GetResult", id=ids[0])["result"] == "kept"
            job = client.ok("GetJob", id=ids[1])["job"]
            assert (job["attempts"], job["stacktrace"]) == (1, ["here"])
            assert client.ok("IsPaused", queue=f"q{number}")["paused"] is True
    server.assert_no_faults()


def test_an_ack_that_is_confirmed_counts_although_its_pull_was_never_written(server: ServerProcess) -> None:
    """The pull is written with the next flush: a kill within its 10 ms leaves the job waiting, but its worker goes on.

    What the worker then confirms with the token that it got may not be answered ok and forgotten.
    """
    unwritten = 0
    for number in range(3):
        job_id = f"j{number}"
        with server.connect() as client:
            client.ok("PUSH", queue="q", data=1, jobId=job_id, durable=True)
            token = client.ok("PULL", queue="q", owner="w", lockTtl=60_000)["token"]
            server.kill()
        server.start()
        with server.connect() as client:
            unwritten += client.ok("GetJob", id=job_id)["job"]["attempts"] == 0
            assert confirms(client, job_id, token)
            assert client.state(job_id) == "completed"
            assert client.ok("GetResult", id=job_id)["result"] == "done"
            assert client.ok("PULL", queue="q", owner="w", timeout=200)["job"] is None
    assert unwritten
    server.assert_no_faults()


def confirms(client: Client, job_id: str, token: str) -> bool:
    return client.call("ACK", id=job_id, token=token, result="done")["ok"] is True
