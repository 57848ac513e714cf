"""Clients that live on threads of their own and keep the books: producers and workers of the fault-injection suites.

They end when told to, or with their connection. What else goes wrong, such as a reply that does not come in time, is
kept and raised by `finish`.
"""

from __future__ import annotations

import itertools
import random
import socket
import struct
import threading
import time
from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from tests.chaos.ledger import Ledger
from tests.process import Client, ServerProcess, wait_until

QUEUE = "q"
# A job must be able to lose its worker as often as the suite likes.
LASTING = {"maxAttempts": 1_000, "backoff": 0}
PAUSE_S = 0.01


def prepare(server: ServerProcess, queue: str = QUEUE) -> None:
    """Let no number of stalls bury a job."""
    with server.connect() as client:
        client.ok("SetStallConfig", queue=queue, config={"maxStalls": 0})


class Actor(threading.Thread):
    """One client program.

    Args:
        reconnects: whether it comes back after the server has gone.
    """

    def __init__(self, server: ServerProcess, ledger: Ledger, name: str, *, reconnects: bool = False) -> None:
        super().__init__(name=name, daemon=True)
        self.server = server
        self.ledger = ledger
        self.reconnects = reconnects
        self.has_ended = threading.Event()
        self._fault: BaseException | None = None
        self._client: Client | None = None
        self._alive = threading.Lock()
        self._cut = threading.Event()

    def run(self) -> None:
        """Live."""
        try:
            while not self.has_ended.is_set():
                try:
                    self._connect_and_live()
                except ConnectionError:
                    if not self.reconnects:
                        return
                    time.sleep(PAUSE_S)
        except BaseException as fault:
            if not self._cut.is_set():
                self._fault = fault

    def _connect_and_live(self) -> None:
        with self.server.connect(timeout_s=30.0) as client:
            with self._alive:
                self._client = client
            while not self.has_ended.is_set():
                self.act(client)

    def act(self, client: Client) -> None:
        """One thing; it must not take long."""
        raise NotImplementedError

    def cut(self) -> None:
        """Die like a process that is killed: the connection is reset, and nothing is said or done any more."""
        with self._alive:
            self.ledger.end_all(self.name)
            if self._client is not None and self._client.socket.fileno() != -1:
                # The thread closes it: only the last close resets, and this wakes the thread wherever it waits.
                self._client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self._client.socket.shutdown(socket.SHUT_RD)
            self._cut.set()
            self.has_ended.set()

    def _wait(self, seconds: float) -> None:
        """Wait, but not beyond the cut. Who is only asked to end finishes what it does."""
        self._cut.wait(seconds)

    def stop(self) -> None:
        """Ask it to end after what it is doing."""
        self.has_ended.set()

    def finish(self) -> None:
        """Wait for its end, and raise what went wrong."""
        self.join(60)
        assert not self.is_alive(), f"{self.name} has not ended"
        if self._fault is not None:
            raise AssertionError(f"{self.name}: {self._fault!r}") from self._fault


class Producer(Actor):
    """Pushes jobs as fast as it is answered, as long as no more than *most_open* of all are left to do.

    Ids are *name*-number; numbers go on over reconnections, and a push without an answer is not made again.
    """

    def __init__(
        self,
        server: ServerProcess,
        ledger: Ledger,
        name: str,
        *,
        queue: str = QUEUE,
        durable: bool = True,
        batch: int = 1,
        most_open: int = 2_000,
        pause_s: float = 0.0,
        reconnects: bool = False,
        keeps_moments: bool = False,
    ) -> None:
        super().__init__(server, ledger, name, reconnects=reconnects)
        self.queue = queue
        self.keeps_moments = keeps_moments
        self.durable = durable
        self.batch = batch
        self.most_open = most_open
        self.pause_s = pause_s
        self.acknowledged_at: dict[str, float] = {}
        """When each push was confirmed, on the monotonic clock; with *keeps_moments* only."""
        self._numbers = itertools.count()

    def act(self, client: Client) -> None:
        """Push one batch."""
        if self.ledger.open_count > self.most_open:
            time.sleep(PAUSE_S)
            return
        ids = [f"{self.name}-{next(self._numbers)}" for _ in range(self.batch)]
        self.ledger.push(*ids)
        common = {"data": {"by": self.name}, "durable": self.durable, **LASTING}
        if self.batch == 1:
            reply = client.call("PUSH", queue=self.queue, jobId=ids[0], **common)
        else:
            jobs = [{"customId": job_id, **common} for job_id in ids]
            reply = client.call("PUSHB", queue=self.queue, jobs=jobs)
        if reply["ok"]:
            self.ledger.acknowledge(*ids)
            if self.keeps_moments:
                self.acknowledged_at.update(dict.fromkeys(ids, time.monotonic()))
            time.sleep(self.pause_s)
        else:
            assert reply["error"] == "Server is shutting down", reply
            self.ledger.refuse(*ids)
            time.sleep(PAUSE_S)


class Pinger(Actor):
    """A client that does no harm, and notes how long it is made to wait."""

    def __init__(self, server: ServerProcess, ledger: Ledger, name: str = "pinger", *, every_s: float = 0.1) -> None:
        super().__init__(server, ledger, name)
        self.every_s = every_s
        self.round_trips_ms = array("d")

    def act(self, client: Client) -> None:
        """One round trip."""
        began = time.monotonic()
        client.ok("Ping")
        self.round_trips_ms.append((time.monotonic() - began) * 1_000)
        self.has_ended.wait(self.every_s)

    def percentile_ms(self, share: float) -> float:
        """The round trip that this share of all did not exceed."""
        ordered = sorted(self.round_trips_ms)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


class Worker(Actor):
    """Pulls, works for *work_s*, confirms.

    Args:
        work_s: how long a job takes; a number or a function of nothing.
        beats: whether it sends a heartbeat for each job before it works.
        count: jobs per pull; more than one are confirmed together.
    """

    def __init__(
        self,
        server: ServerProcess,
        ledger: Ledger,
        name: str,
        *,
        queue: str = QUEUE,
        work_s: float | Callable[[], float] = 0.0,
        lock_ttl_ms: int = 60_000,
        beats: bool = False,
        count: int = 1,
        reconnects: bool = False,
    ) -> None:
        super().__init__(server, ledger, name, reconnects=reconnects)
        self.queue = queue
        self.work_s = work_s
        self.lock_ttl_ms = lock_ttl_ms
        self.beats = beats
        self.count = count

    def act(self, client: Client) -> None:
        """Pull, work, confirm."""
        ttl_s = self.lock_ttl_ms / 1_000
        lease_ends = time.monotonic() + ttl_s
        fields = {"queue": self.queue, "owner": self.name, "lockTtl": self.lock_ttl_ms, "timeout": 100}
        reply = client.ok("PULLB", count=self.count, **fields)
        ids, tokens = [job["id"] for job in reply["jobs"]], reply["tokens"]
        if not ids:
            time.sleep(PAUSE_S / 2)
            return
        with self._alive:
            if self._cut.is_set():
                return
            for job_id in ids:
                self.ledger.begin(job_id, self.name, lease_ends=lease_ends)
        if self.beats:
            lease_ends = time.monotonic() + ttl_s
            client.ok("JobHeartbeatB", ids=ids, tokens=tokens)
            for job_id in ids:
                self.ledger.renew(job_id, self.name, lease_ends=lease_ends)
        if wait_s := self.work_s() if callable(self.work_s) else self.work_s:
            self._wait(wait_s)
        if self._cut.is_set():
            return
        for job_id in ids:
            self.ledger.end(job_id, self.name)
        if len(ids) == 1:
            confirmed = client.call("ACK", id=ids[0], token=tokens[0], result={"by": self.name})
        else:
            confirmed = client.call("ACKB", ids=ids, tokens=tokens)
        if confirmed["ok"]:
            self.ledger.complete(*ids, worker=self.name)


@contextmanager
def living(*actors: Actor) -> Iterator[None]:
    """Let them live inside the block; at its end they are asked to end, and have ended."""
    for actor in actors:
        actor.start()
    try:
        yield
    finally:
        for actor in actors:
            actor.stop()
        for actor in actors:
            actor.join(60)
    for actor in actors:
        actor.finish()


def drain(
    server: ServerProcess, ledger: Ledger, queue: str = QUEUE, *, workers: int = 2, timeout_s: float = 60
) -> None:
    """Work off whatever is left of the queue, delayed and leased jobs too."""

    def is_empty() -> bool:
        counts = client.ok("GetJobCounts", queue=queue)["counts"]
        return not any(counts[state] for state in ("waiting", "prioritized", "delayed", "active"))

    crew = [Worker(server, ledger, f"drain-{number}", queue=queue, count=20) for number in range(workers)]
    with living(*crew), server.connect() as client:
        wait_until(is_empty, f"{queue} is empty", timeout_s)


def push_durable(server: ServerProcess, ledger: Ledger, *job_ids: str, queue: str = QUEUE) -> None:
    """Push these jobs one by one; each is in the file."""
    ledger.push(*job_ids)
    with server.connect() as client:
        for job_id in job_ids:
            client.ok("PUSH", queue=queue, data=1, jobId=job_id, durable=True, **LASTING)
            ledger.acknowledge(job_id)


def completed_count(server: ServerProcess, queue: str = QUEUE) -> int:
    """As the counters have it, which also count a completion that happened twice."""
    with server.connect() as client:
        count = client.ok("Metrics", queue=queue, type="completed")["data"]["meta"]["count"]
        assert count == client.ok("GetJobCounts", queue=queue)["counts"]["completed"]
    return int(count)


def look_up(server: ServerProcess, ledger: Ledger, job_ids: Iterable[str] | None = None) -> dict[str, str]:
    """State of each job that was ever pushed, or of these, without the unknown ones. Goes into the books."""
    wanted = sorted(ledger.pushed) if job_ids is None else list(job_ids)
    with server.connect() as client:
        replies = client.call_many([{"cmd": "GetState", "id": job_id} for job_id in wanted])
    states = {job_id: str(reply["state"]) for job_id, reply in zip(wanted, replies, strict=True)}
    states = {job_id: state for job_id, state in states.items() if state != "unknown"}
    ledger.find(states)
    return states


def strike_off(server: ServerProcess, ledger: Ledger, queue: str = QUEUE) -> None:
    """Settle what is complete, and have the server forget it: for long runs, at a moment when nobody works."""
    states = look_up(server, ledger)  # also those whose push was never answered
    done = [job_id for job_id, state in states.items() if state == "completed"]
    ledger.settle(done)
    with server.connect() as client:
        client.ok("Clean", queue=queue, state="completed", grace=0, limit=1_000_000)


def round_trip(server: ServerProcess, queue: str = "round-trip") -> None:
    """Push, pull and confirm a job, and get its result: the server works, from the wire to the file."""
    with server.connect() as client:
        job_id = client.ok("PUSH", queue=queue, data=1, durable=True)["id"]
        pulled = client.ok("PULL", queue=queue, owner="round-trip", timeout=10_000)
        assert pulled["job"]["id"] == job_id
        client.ok("ACK", id=job_id, token=pulled["token"], result="there and back")
        assert client.ok("GetResult", id=job_id)["result"] == "there and back"


def fixed_port(rng: random.Random) -> int:
    """A free port that the system gives to nobody who asks for any: it stays ours while the server is down.

    A client that keeps knocking at a port of the other kind can be given that port itself, and talk to itself.
    """
    for port in rng.sample(range(20_000, 32_000), 1_000):
        with socket.socket() as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                trial.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("no free port between 20000 and 32000")
