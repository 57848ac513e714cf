"""Worker death while holding a lease, C1 to C4, and crons under clock skew, C5a to C5c (R144 to R151; K30).

Invariant of C1 to C4: a job whose worker dies is not lost, another worker gets it, and never while the first one may
still run it: at once when the connection of a worker that only pulled is gone, at the end of its lease when it had sent
heartbeats or when the network swallowed the connection. Delivery is at least once; effects may happen again.

Invariant of C5: whatever the wall clock does, the next run of a cron lies ahead and later than the one before, is an
instant that exists, and no run happens twice.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from bunqueue_trio.clock import ManualClock
from tests.chaos.actors import Worker, living, look_up, push_durable
from tests.chaos.ledger import Ledger
from tests.chaos.proxy import Proxy
from tests.engine_harness import EngineHarness
from tests.process import ROOT, Client, ServerProcess, StartServer, wait_until

SHORT_TTL_MS = 1_200
MINUTE = 60_000
HOUR = 3_600_000

# C1 to C4: a worker dies


def take(client: Client, ledger: Ledger, worker: str, *, timeout: int = 30_000, lock_ttl: int = 60_000) -> Any:
    """Pull one job; job and token, or None."""
    reply = client.ok("PULL", queue="q", owner=worker, timeout=timeout, lockTtl=lock_ttl)
    if reply["job"] is None:
        return None
    ledger.begin(reply["job"]["id"], worker)
    return reply["job"], reply["token"]


def complete(client: Client, ledger: Ledger, worker: str, job_id: str, token: str) -> None:
    ledger.end(job_id, worker)
    client.ok("ACK", id=job_id, token=token, result=worker)
    ledger.complete(job_id)


def only_completed_count(server: ServerProcess) -> int:
    with server.connect() as client:
        counts = client.ok("GetJobCounts", queue="q")["counts"]
        assert not any(counts[state] for state in ("waiting", "delayed", "active", "failed"))
        return int(counts["completed"])


def die_by_reset(client: Client) -> None:
    client.reset()


def die_within_a_frame(client: Client) -> None:
    client.send_bytes(b"\x00\x00\x01\x00\x81\xa3cmd")
    client.reset()


def die_with_unread_replies(client: Client) -> None:
    """The kernel resets a connection that is closed with something left to read."""
    client.send_many([{"cmd": "Ping"}] * 10)
    wait_until(lambda: client.socket.recv(1), "a reply has come")
    client.close()


@pytest.mark.parametrize("die", [die_by_reset, die_within_a_frame, die_with_unread_replies])
def test_another_worker_gets_the_job_of_one_whose_socket_is_gone(
    server: ServerProcess, ledger: Ledger, die: Callable[[Client], None]
) -> None:
    """C1: at once, although the lease has a minute to go (R144, R145, R148)."""
    push_durable(server, ledger, "job")
    with server.connect() as second:
        first = server.connect()
        _, token = take(first, ledger, "first")
        assert take(second, ledger, "second", timeout=200) is None

        ledger.end_all("first")
        die(first)

        job, second_token = take(second, ledger, "second")
        assert (job["id"], job["attempts"]) == ("job", 1)
        with server.connect() as late:
            assert late.error("ACK", id="job", token=token) == "Invalid or expired lock token for job job"
        complete(second, ledger, "second", "job", second_token)
    assert look_up(server, ledger) == {"job": "completed"}
    assert only_completed_count(server) == 1
    server.assert_no_faults()


WORKER = """
import sys
from tests.process import Client
client = Client(int(sys.argv[1]))
client.ok("PULL", queue="q", owner="process", lockTtl=60_000, timeout=30_000)
print("has it", flush=True)
sys.stdin.read()
"""


def test_another_worker_gets_the_job_of_a_process_that_is_killed(server: ServerProcess, ledger: Ledger) -> None:
    """C1 once more, with kill -9."""
    push_durable(server, ledger, "job")
    with subprocess.Popen(
        [sys.executable, "-c", WORKER, str(server.tcp_port)], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"has it\n"
        ledger.begin("job", "process")
        with server.connect() as second:
            assert take(second, ledger, "second", timeout=200) is None

            ledger.end_all("process")
            process.send_signal(signal.SIGKILL)

            _, token = take(second, ledger, "second")
            complete(second, ledger, "second", "job", token)
    assert look_up(server, ledger) == {"job": "completed"}


@pytest.mark.parametrize("way", ["JobHeartbeat", "JobHeartbeatB", "ExtendLock"])
def test_only_its_lease_takes_a_job_from_a_worker_that_had_shown_life(
    server: ServerProcess, ledger: Ledger, way: str
) -> None:
    """C2: the first worker may still be at work although its connection is gone, so nobody else may be (R146)."""
    push_durable(server, ledger, "job")
    with server.connect() as second:
        first = server.connect()
        _, token = take(first, ledger, "first", lock_ttl=SHORT_TTL_MS)
        renewed_at = time.monotonic()
        if way == "JobHeartbeat":
            first.ok(way, id="job", token=token)
        elif way == "JobHeartbeatB":
            first.ok(way, ids=["job"], tokens=[token])
        else:
            first.ok(way, id="job", token=token, duration=SHORT_TTL_MS)
        first.reset()

        # Its handler stops where its lease ends, which is when the books close its run.
        reply = second.ok("PULL", queue="q", owner="second", timeout=30_000, lockTtl=60_000)
        assert time.monotonic() >= renewed_at + SHORT_TTL_MS / 1_000
        ledger.end_all("first")
        assert reply["job"]["id"] == "job"
        ledger.begin("job", "second")
        complete(second, ledger, "second", "job", reply["token"])
    assert look_up(server, ledger) == {"job": "completed"}
    assert only_completed_count(server) == 1


def test_a_network_that_vanishes_costs_a_lease_and_no_job(server: ServerProcess, ledger: Ledger) -> None:
    """C2 once more: the server hears nothing of the end, and what the worker says afterwards does not arrive."""
    push_durable(server, ledger, "job")
    with Proxy(server.tcp_port) as proxy, Client(proxy.port) as first, server.connect() as second:
        asked_at = time.monotonic()
        _, token = take(first, ledger, "first", lock_ttl=SHORT_TTL_MS)
        proxy.vanish()
        first.send("ACK", id="job", token=token, result="never seen")

        reply = second.ok("PULL", queue="q", owner="second", timeout=30_000, lockTtl=60_000)

        assert time.monotonic() >= asked_at + SHORT_TTL_MS / 1_000
        ledger.end_all("first")
        assert (reply["job"]["id"], reply["job"]["attempts"]) == ("job", 1)
        ledger.begin("job", "second")
        complete(second, ledger, "second", "job", reply["token"])
        assert second.ok("GetResult", id="job")["result"] == "second"
    assert look_up(server, ledger) == {"job": "completed"}
    assert only_completed_count(server) == 1


def test_twenty_jobs_that_were_pulled_and_abandoned_all_complete(
    server: ServerProcess, ledger: Ledger, rng: random.Random
) -> None:
    """C3: some with heartbeats, some without, pulled one by one and together (R147, R148)."""
    ids = [f"job-{number}" for number in range(20)]
    push_durable(server, ledger, *ids)
    clients = [server.connect() for _ in range(4)]
    for number, client in enumerate(clients):
        pulled = client.ok("PULLB", queue="q", count=5, owner=f"w{number}", lockTtl=SHORT_TTL_MS)
        held = [job["id"] for job in pulled["jobs"]]
        assert len(held) == 5
        for job_id in held:
            ledger.begin(job_id, f"w{number}")
        beaten = rng.sample(range(5), rng.randint(1, 4))
        client.ok("JobHeartbeatB", ids=[held[n] for n in beaten], tokens=[pulled["tokens"][n] for n in beaten])

    for number, client in enumerate(clients):
        ledger.end_all(f"w{number}")
        client.reset()

    crew = [Worker(server, ledger, f"second-{number}", count=3) for number in range(2)]
    with living(*crew):
        wait_until(lambda: len(ledger.completed) == 20, "all are completed")
    assert look_up(server, ledger) == dict.fromkeys(ids, "completed")
    assert only_completed_count(server) == 20
    with server.connect() as client:
        jobs = [client.ok("GetJob", id=job_id)["job"] for job_id in ids]
    assert {job["attempts"] for job in jobs} == {1}
    server.assert_no_faults()


def test_a_worker_that_dies_again_and_again_takes_its_job_to_the_dead_letters(
    start_server: StartServer, ledger: Ledger
) -> None:
    """C4: found there, with its reason, and not delivered for ever."""
    server = start_server()
    ledger.push("job")
    with server.connect() as client:
        client.ok("PUSH", queue="q", data=1, jobId="job", durable=True, maxAttempts=3)
        ledger.acknowledge("job")
        for number in range(3):
            worker = server.connect()
            assert take(worker, ledger, f"w{number}") is not None
            ledger.end_all(f"w{number}")
            worker.reset()
        wait_until(lambda: client.state("job") == "failed", "it is a dead letter")
        assert take(client, ledger, "last", timeout=200) is None
        [letter] = client.ok("Dlq", queue="q", count=10)["jobs"]
        assert (letter["id"], letter["attempts"]) == ("job", 3)
        client.ok("RetryDlq", queue="q", jobId="job")
        _, token = take(client, ledger, "last")
        complete(client, ledger, "last", "job", token)
    assert look_up(server, ledger) == {"job": "completed"}


# C5: crons and the wall clock

ZONES = ("Europe/Berlin", "America/New_York", "Australia/Sydney")
CHANGES = {  # instants at which the offset changes: forward, back
    "Europe/Berlin": (datetime(2026, 3, 29, 1, tzinfo=UTC), datetime(2026, 10, 25, 1, tzinfo=UTC)),
    "America/New_York": (datetime(2026, 3, 8, 7, tzinfo=UTC), datetime(2026, 11, 1, 6, tzinfo=UTC)),
    "Australia/Sydney": (datetime(2026, 10, 3, 16, tzinfo=UTC), datetime(2026, 4, 4, 16, tzinfo=UTC)),
}
PATTERNS = ("* * * * *", "*/7 * * * *", "30 2 * * *", "0 */3 * * *", "15 1-3 * * 0,6", "59 23 * * *")


class Skewed:
    """One cron on a clock that the test moves. Each look checks what must hold whatever the clock has done."""

    def __init__(self, zone: str, start: datetime, **definition: Any) -> None:
        self.zone = ZoneInfo(zone)
        self.harness = EngineHarness(clock=ManualClock(start.timestamp() * 1_000), checks=False)
        self.harness.send("Cron", name="c", queue="q", timezone=zone, preventOverlap=False, **definition)
        self.runs = 0
        self.last_run = 0.0
        self.was_set_back = False
        self.next_run = self._ask()["nextRun"]

    def _ask(self) -> dict[str, Any]:
        cron: dict[str, Any] = self.harness.ask("CronGet", name="c")["cron"]
        return cron

    @property
    def wall_ms(self) -> float:
        return self.harness.now.wall_ms

    def look(self) -> None:
        """Let the scheduler see the time; then compare."""
        self.harness.tick()
        cron = self._ask()
        jobs = list(iter(self.harness.pull, None))
        for job_id, token in jobs:
            self.harness.ack(job_id, token)
        fired = cron["executions"] - self.runs
        assert len(jobs) == fired <= 1, "what was missed is not made up for, and nothing fires twice"
        if fired:
            assert self.next_run <= self.wall_ms, "never early"
            self.last_run, self.was_set_back = self.next_run, False
            self.runs += 1
        assert cron["nextRun"] > self.wall_ms, "ahead"
        if not self.was_set_back:
            assert cron["nextRun"] > self.last_run, "later than the run before"
        elif self.next_run > self.wall_ms:
            assert cron["nextRun"] <= self.next_run, "set back: looked for anew, and not put off"
        self.next_run = cron["nextRun"]

    def jump(self, ms: float) -> None:
        """Set the wall clock."""
        # Beyond a minute back a cron looks for its next run anew: by the new clock, the old runs lie ahead.
        self.was_set_back = self.was_set_back or ms < 0
        self.harness.clock.skew(ms)

    def pass_until_due(self) -> None:
        self.harness.clock.advance(max(0.0, self.next_run - self.wall_ms))


@pytest.mark.parametrize("zone", ZONES)
def test_the_next_run_lies_ahead_whatever_the_clock_does(zone: str, rng: random.Random) -> None:
    """C5a: jumps of seconds, hours and days in both directions, around the changes of the offset too (R149, R150)."""
    for _ in range(20):
        start = rng.choice(CHANGES[zone]) - timedelta(minutes=rng.randint(0, 2_000))
        pattern = rng.choice((*PATTERNS, None))
        cron = Skewed(zone, start, **({"repeatEvery": 7 * MINUTE} if pattern is None else {"schedule": pattern}))
        for _ in range(40):
            choice = rng.random()
            if choice < 0.5:
                cron.pass_until_due()
            elif choice < 0.7:
                cron.harness.clock.advance(rng.randint(0, 3 * HOUR))
            elif choice < 0.9:
                cron.jump(-rng.choice((1_000, 30_000, MINUTE, HOUR, 6 * HOUR, 30 * HOUR)))
            else:
                cron.jump(rng.choice((1_000, 90_000, HOUR, 6 * HOUR, 40 * HOUR)))
            cron.look()


@pytest.mark.parametrize("back_ms", [1, 999, 30_000, MINUTE])
def test_a_clock_that_is_put_right_a_little_repeats_no_run(back_ms: int) -> None:
    """C5a: the minute that has been served is not served again when it comes a second time."""
    cron = Skewed("Europe/Berlin", datetime(2026, 5, 5, 12, 0, 30, tzinfo=UTC), schedule="* * * * *")
    cron.pass_until_due()
    cron.look()
    assert cron.runs == 1

    cron.harness.clock.skew(-back_ms)
    for _ in range(10):
        cron.look()
        cron.harness.clock.advance(back_ms / 10)
    cron.look()

    assert cron.runs == 1
    cron.pass_until_due()
    cron.look()
    assert cron.runs == 2


@pytest.mark.parametrize("direction", ["forward", "back"])
@pytest.mark.parametrize("zone", ZONES)
def test_at_half_past_two_a_cron_fires_once_on_either_day_of_change(zone: str, direction: str) -> None:
    """C5b, C5c: at an instant that exists and lies ahead, once a day (R151)."""
    change = CHANGES[zone][direction == "back"]
    start = (change - timedelta(hours=40)).astimezone(ZoneInfo(zone))
    cron = Skewed(zone, start, schedule="30 2 * * *")
    fired: list[datetime] = []
    for _ in range(4 * 24 * 12):  # four days in steps of five minutes
        before = cron.runs
        cron.look()
        if cron.runs > before:
            fired.append(datetime.fromtimestamp(cron.last_run / 1_000, UTC).astimezone(ZoneInfo(zone)))
        cron.harness.clock.advance(5 * MINUTE)

    days = [moment.date() for moment in fired]
    assert days == [days[0] + timedelta(days=number) for number in range(4)]
    changed = change.astimezone(ZoneInfo(zone)).date()
    assert changed in days
    for moment in fired:
        is_in_gap = direction == "forward" and moment.date() == changed
        assert (moment.hour, moment.minute) == ((3, 30) if is_in_gap else (2, 30))
        assert moment.astimezone(UTC).astimezone(ZoneInfo(zone)) == moment
