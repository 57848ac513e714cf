"""The wall clock jumps by hours, in both directions, below the running server and while it is down (R186 to R190).

Invariants: a jump ahead brings each delayed job that has become due once; a jump back brings none before its time, and
what is pushed afterwards flows; a lease is measured on the monotonic clock, so a worker that renews keeps its job
through any jump, and one that is silent loses it in real time; a cron makes up for one run at most, never for each it
has missed, and goes on after a jump back. Nothing is lost, and whatever was done stays done, once.

Jobs that waited when the clock went back wait until it has caught up, as persistence 12.7 records it.

Skipped, loudly, where libfaketime is missing. Source also: K32, K34.
"""

from __future__ import annotations

import json
import signal
import time
from typing import Any

import pytest

from tests.chaos.actors import LASTING, look_up
from tests.chaos.false_clock import HOUR_S, FalseClock, server_time_ms
from tests.chaos.false_clock import false_clock as false_clock
from tests.chaos.leaks import assert_back_at, baseline
from tests.chaos.ledger import Ledger
from tests.process import Client, ServerProcess, StartServer, wait_until

QUEUE = "q"
FAR_S = 6 * HOUR_S
DELAYED = 50
MINUTE_MS = 60_000


@pytest.fixture
def server(start_server: StartServer, false_clock: FalseClock) -> ServerProcess:
    """A server below whose feet the clock can be moved."""
    return start_server(LEASE_GRACE_MS=200, **false_clock.environment)


def push(client: Client, ledger: Ledger, job_id: str, **options: Any) -> str:
    ledger.push(job_id)
    client.ok("PUSH", queue=QUEUE, data=1, jobId=job_id, **{"durable": True, **LASTING, **options})
    ledger.acknowledge(job_id)
    return job_id


def run_ready(client: Client, ledger: Ledger, *, timeout_ms: int = 0, worker: str = "w") -> list[str]:
    """Do whatever is ready; a first pull waits so long."""
    done = []
    wait_ms = timeout_ms
    while True:
        reply = client.ok("PULL", queue=QUEUE, owner=worker, timeout=wait_ms)
        if reply["job"] is None:
            return done
        wait_ms = 0
        job_id = reply["job"]["id"]
        ledger.begin(job_id, worker)
        ledger.end(job_id, worker)
        client.ok("ACK", id=job_id, token=reply["token"])
        ledger.complete(job_id)
        done.append(job_id)


def run_until(client: Client, ledger: Ledger, wanted: set[str], what: str) -> list[str]:
    """Do what becomes ready until all of *wanted* are done."""
    done: list[str] = []

    def is_done() -> bool:
        done.extend(run_ready(client, ledger, timeout_ms=200))
        return wanted <= set(done)

    wait_until(is_done, what)
    return done


def delayed_jobs(client: Client, ledger: Ledger) -> set[str]:
    """Fifty that are due within the next six hours, one long after."""
    push(client, ledger, "tomorrow", delay=24 * HOUR_S * 1_000)
    return {
        push(client, ledger, f"delayed-{n}", delay=600_000 + n * (FAR_S * 1_000 - 1_200_000) // DELAYED)
        for n in range(DELAYED)
    }


# below the running server


def test_a_jump_ahead_brings_each_delayed_job_once(
    server: ServerProcess, false_clock: FalseClock, ledger: Ledger
) -> None:
    with server.connect() as client, server.connect() as parked:
        delayed = delayed_jobs(client, ledger)
        assert run_ready(client, ledger) == []
        waiting = parked.send("PULL", queue=QUEUE, owner="parked", timeout=60_000)
        false_clock.jump(server, FAR_S)

        first = parked.wait(waiting)  # a pull that waits is woken by the jump
        ledger.begin(first["job"]["id"], "parked")
        ledger.end(first["job"]["id"], "parked")
        parked.ok("ACK", id=first["job"]["id"], token=first["token"])
        ledger.complete(first["job"]["id"])
        done = [first["job"]["id"], *run_until(client, ledger, delayed - {first["job"]["id"]}, "the delayed jobs ran")]

        assert sorted(done) == sorted(delayed)
        for offset_s in (0, FAR_S, -FAR_S):
            false_clock.jump(server, offset_s)
            assert run_ready(client, ledger, timeout_ms=300) == []
        false_clock.jump(server, 5 * FAR_S)
        assert run_until(client, ledger, {"tomorrow"}, "tomorrow has come") == ["tomorrow"]
    assert set(look_up(server, ledger).values()) == {"completed"}
    server.assert_no_faults()


def test_a_jump_back_runs_nothing_early_and_new_jobs_flow(
    server: ServerProcess, false_clock: FalseClock, ledger: Ledger
) -> None:
    delay_s = 1.5
    with server.connect() as client:
        began_s = time.monotonic()
        soon = {push(client, ledger, f"soon-{n}", delay=int(delay_s * 1_000)) for n in range(20)}
        false_clock.jump(server, -FAR_S)
        run_until(client, ledger, {push(client, ledger, "first", removeOnComplete=True)}, "what is new flows")
        before = baseline(server)
        began_at_s: dict[str, float] = {}

        number = 0
        while time.monotonic() < began_s + delay_s + 2.0:
            new = push(client, ledger, f"new-{number}", removeOnComplete=True)
            sent_s = time.monotonic()
            late = push(client, ledger, f"late-{number}", delay=200, removeOnComplete=True)
            done = run_until(client, ledger, {new, late}, "what is new flows")
            assert time.monotonic() - sent_s >= 0.2, "a delay is a delay, whatever the clock shows"
            began_at_s.update(dict.fromkeys(done, time.monotonic()))
            number += 1
        assert all(at_s - began_s >= delay_s for job_id, at_s in began_at_s.items() if job_id in soon)
        assert_back_at(server, before)

        false_clock.jump(server, 0)
        left = soon - began_at_s.keys()
        if left:
            run_until(client, ledger, left, "the clock is right again")
        ledger.find(job_id for job_id in ledger.pushed if job_id not in soon)  # those were removed when they ended
    look_up(server, ledger)
    assert ledger.completed == ledger.pushed
    server.assert_no_faults()


def test_leases_run_on_real_time_whatever_the_clock_does(
    server: ServerProcess, false_clock: FalseClock, ledger: Ledger
) -> None:
    """Twenty jobs through two jumps: one worker renews, the other is silent and never comes back in time."""
    lease_ms = 2_500
    with server.connect() as renewing, server.connect() as silent, server.connect() as other:
        for n in range(20):
            push(other, ledger, f"leased-{n}")
        held, lost = (
            {job["id"]: token for job, token in zip(reply["jobs"], reply["tokens"], strict=True)}
            for reply in (
                client.ok("PULLB", queue=QUEUE, count=10, owner=name, lockTtl=lease_ms)
                for client, name in ((renewing, "renewing"), (silent, "silent"))
            )
        )
        for name, leases in (("renewing", held), ("silent", lost)):
            for job_id in leases:
                ledger.begin(job_id, name)
        leased_s = time.monotonic()
        silent.ok("JobHeartbeatB", ids=list(lost), tokens=list(lost.values()))  # else its connection would free them
        back: dict[str, float] = {}
        for offset_s in (FAR_S, -FAR_S, 0):
            false_clock.jump(server, offset_s)
            for _ in range(8):
                renewing.ok("JobHeartbeatB", ids=list(held), tokens=list(held.values()))
                reply = other.ok("PULLB", queue=QUEUE, count=20, owner="other", lockTtl=60_000)
                now_s = time.monotonic()
                for job, token in zip(reply["jobs"], reply["tokens"], strict=True):
                    assert job["id"] in lost, "a worker that renews keeps its job"
                    ledger.end(job["id"], "silent")  # its lease is over
                    ledger.begin(job["id"], "other")
                    ledger.end(job["id"], "other")
                    other.ok("ACK", id=job["id"], token=token)
                    ledger.complete(job["id"])
                    back[job["id"]] = now_s
                time.sleep(0.15)
        if len(back) < len(lost):
            wait_until(lambda: len(back) + ready_count(other) >= len(lost), "the silent worker's jobs are free", 30)

        for job_id, token in held.items():
            ledger.end(job_id, "renewing")
            renewing.ok("ACK", id=job_id, token=token)
            ledger.complete(job_id)
        assert all(at_s - leased_s >= lease_ms / 1_000 for at_s in back.values()), "no lease ends before its time"
        for job_id, token in lost.items():
            late = silent.call("ACK", id=job_id, token=token)
            if job_id not in ledger.completed:  # nobody has got it since
                assert late["ok"]
                ledger.complete(job_id)
        run_ready(other, ledger)
        assert other.ok("GetJobCounts", queue=QUEUE)["counts"]["completed"] == 20
    assert set(look_up(server, ledger).values()) == {"completed"}
    server.assert_no_faults()


def ready_count(client: Client) -> int:
    return int(client.ok("GetJobCounts", queue=QUEUE)["counts"]["waiting"])


def runs_of(client: Client, queue: str) -> int:
    """How many jobs a cron has made; each is taken away."""
    count = 0
    while (reply := client.ok("PULL", queue=queue, owner="w"))["job"] is not None:
        client.ok("ACK", id=reply["job"]["id"], token=reply["token"])
        count += 1
    return count


@pytest.mark.parametrize(("hours", "way"), [(6, "running"), (-6, "running"), (6, "killed")])
def test_a_cron_makes_up_for_one_run_at_most_and_goes_on(
    server: ServerProcess, false_clock: FalseClock, ledger: Ledger, hours: int, way: str
) -> None:
    """A run each minute: six hours would be 360 of them."""
    crons = {
        "every": {"repeatEvery": MINUTE_MS},
        "pattern": {"schedule": "* * * * *"},
        "second": {"repeatEvery": 1_000},
    }
    with server.connect() as client:
        for name, fields in crons.items():
            client.ok("Cron", name=name, queue=name, data=1, preventOverlap=False, **fields)
    if way == "running":
        false_clock.jump(server, hours * HOUR_S)
    else:
        end(server, way)
        false_clock.set(hours * HOUR_S)
        server.start()

    with server.connect() as client:
        began_s = time.monotonic()
        counts = dict.fromkeys(crons, 0)
        wait_until(lambda: goes_on(client, counts), "the cron of each second goes on", 20)
        elapsed_s = time.monotonic() - began_s
        for name in ("every", "pattern"):
            # one to make up for the gap, and one for each minute that begins meanwhile
            assert counts[name] <= 2 + elapsed_s // 60, counts
            cron = client.ok("CronGet", name=name)["cron"]
            assert 0 < cron["nextRun"] - server_time_ms(server) <= MINUTE_MS + 1_000, name
        assert counts["second"] <= elapsed_s + 4, counts
    ledger.remark(f"{hours:+d} h, {way}: {json.dumps(counts)} runs in {elapsed_s:.1f} s")
    server.assert_no_faults()


def goes_on(client: Client, counts: dict[str, int]) -> bool:
    for name in counts:
        counts[name] += runs_of(client, name)
    return counts["second"] >= 3


# while it is down


@pytest.mark.parametrize(("hours", "way"), [(6, "stopped"), (-6, "killed")])
def test_a_jump_between_two_runs_loses_and_doubles_nothing(
    server: ServerProcess, false_clock: FalseClock, ledger: Ledger, hours: int, way: str
) -> None:
    with server.connect() as client:
        delayed = delayed_jobs(client, ledger)
        done_before = {push(client, ledger, f"done-{n}") for n in range(5)}
        assert set(run_ready(client, ledger)) == done_before
        active = {push(client, ledger, f"active-{n}") for n in range(5)}
        pulled = client.ok("PULLB", queue=QUEUE, count=5, owner="w", lockTtl=600_000)
        assert {job["id"] for job in pulled["jobs"]} == active
        for job_id in active:
            ledger.begin(job_id, "gone")
        client.ok("Ping")
        ledger.end_all()
        end(server, way)
        false_clock.set(hours * HOUR_S)
        server.start()

    with server.connect() as client:
        new = push(client, ledger, "new")
        done = run_until(client, ledger, {new}, "what is new flows")
        if hours > 0:
            done += run_until(client, ledger, (delayed | active) - set(done), "all that is due runs")
            assert "tomorrow" not in done
        else:
            done += run_ready(client, ledger, timeout_ms=1_500)
            assert not delayed & set(done), "nothing runs early"
            false_clock.jump(server, FAR_S)
            done += run_until(client, ledger, (delayed | active) - set(done), "the clock has caught up")
        assert not done_before & set(done)
        assert sorted(done) == sorted({*delayed, *active, new})
    states = look_up(server, ledger)
    assert {job_id for job_id, state in states.items() if state != "completed"} == {"tomorrow"}
    server.assert_no_faults()


def end(server: ServerProcess, way: str) -> None:
    """Stop it in order, running jobs or not, or kill it."""
    if way == "killed":
        server.kill()
    else:
        server.signal(signal.SIGTERM)
        wait_until(lambda: "shutting down" in server.last_log, "the stop has begun")
        server.signal(signal.SIGTERM)  # nobody waits for the running jobs
        assert server.wait_exit() == 0
