"""How much reads cost when there is a lot to read: p50 per command over a thousand jobs and over a million.

    python scripts/readbench.py [--jobs 1000000] [--rounds 200] [--start 'python -m bunqueue_trio']

Two servers of their own, one small and one large, are asked in turns, so that a machine that gets slower does so for
both. Each has three queues: in ``listed`` a few jobs of every kind stand before and behind many waiting ones, ``done``
holds as many completed ones, and ``aside`` has a few of every kind for itself. Exit code 1 if any command takes more
than twice as long over many jobs. Commands that the server does not know yet are named and left out.
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import socket
import sqlite3
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import msgpack

FEW = 100
PUSHES_IN_FLIGHT = 8
BATCH = 1_000
MAX_RATIO = 2.0
TRIES = 3  # what is slow because the machine is busy is so once or twice, what scans is so always
STATES = ("waiting", "prioritized", "delayed", "active", "waiting-children", "failed", "completed", None)
QUEUES = ("listed", "done", "aside")
T0 = 1_700_000_000_000
UNKNOWN = ("Unknown command", "Internal server error")


class Client:
    """A connection that asks one thing after the other."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), 10)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.settimeout(120)

    def send(self, **command: Any) -> None:
        body = msgpack.packb(command)
        self._socket.sendall(struct.pack(">I", len(body)) + body)

    def frame(self) -> bytes:
        (length,) = struct.unpack(">I", self._exactly(4))
        return self._exactly(length)

    def ask(self, **command: Any) -> dict[str, Any]:
        """The reply, which may be a refusal."""
        self.send(**command)
        reply: dict[str, Any] = msgpack.unpackb(self.frame(), ext_hook=lambda _code, _data: None)
        return reply

    def must(self, **command: Any) -> dict[str, Any]:
        reply = self.ask(**command)
        if not reply["ok"]:
            raise RuntimeError(f"{command['cmd']}: {reply['error']}")
        return reply

    def time_ms(self, **command: Any) -> float:
        """How long the reply takes to arrive; it is not decoded."""
        began = time.perf_counter()
        self.send(**command)
        self.frame()
        return (time.perf_counter() - began) * 1_000

    def _exactly(self, length: int) -> bytes:
        parts = []
        while length:
            part = self._socket.recv(min(length, 1 << 20))
            if not part:
                raise EOFError("the server has closed the connection")
            parts.append(part)
            length -= len(part)
        return b"".join(parts)


class Server:
    """A server process with *job_count* jobs waiting and as many completed. ``sample`` has an id of each state."""

    def __init__(self, start: str, folder: Path, job_count: int) -> None:
        self._start = start
        self._path = folder / f"{job_count}.db"
        self._process: subprocess.Popen[bytes] | None = None
        self.sample: dict[str, str] = {}
        self._run()
        self._stop()
        store_completed(self._path, "done", job_count)
        self._run()
        self._fill("aside", 0)
        self._fill("listed", job_count)

    def _run(self) -> None:
        port, http_port = free_ports(2)
        env = {
            **os.environ,
            "HOST": "127.0.0.1",
            "TCP_PORT": str(port),
            "HTTP_PORT": str(http_port),
            "BUNQUEUE_DATA_PATH": str(self._path),
            "RATE_LIMIT_MAX_REQUESTS": "1000000000",
            "LOG_LEVEL": "warn",
        }
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self._process = subprocess.Popen(shlex.split(self._start), env=env, **quiet)
        deadline = time.monotonic() + 120
        while True:
            try:
                self.client = Client(port)
                return
            except OSError:
                if time.monotonic() > deadline or self._process.poll() is not None:
                    raise
                time.sleep(0.05)

    def _stop(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(60)

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def _fill(self, queue: str, waiting_count: int) -> None:
        """A few of every kind, the waiting ones, and again a few."""
        # What is active stays so, however long the filling takes.
        self.client.must(cmd="SetStallConfig", queue=queue, config={"enabled": False})
        self._few(queue)
        batches = [min(BATCH, waiting_count - done) for done in range(0, waiting_count, BATCH)]
        in_flight = 0
        for count in batches:
            self.client.send(cmd="PUSHB", queue=queue, jobs=[{"data": {"n": 1}} for _ in range(count)])
            in_flight += 1
            if in_flight == PUSHES_IN_FLIGHT:
                self.client.frame()
                in_flight -= 1
        for _ in range(in_flight):
            self.client.frame()
        self._few(queue)

    def _few(self, queue: str) -> None:
        """Fewer than a page of every kind; the worker's jobs come from the front of the queue."""
        must, sample = self.client.must, self.sample

        def push(**options: Any) -> list[str]:
            jobs = [{"data": {"n": 1}, **options} for _ in range(FEW)]
            ids: list[str] = must(cmd="PUSHB", queue=queue, jobs=jobs)["ids"]
            return ids

        def pull() -> list[str]:
            jobs = must(cmd="PULLB", queue=queue, count=FEW)["jobs"]
            return [job["id"] for job in jobs]

        push(priority=9)
        sample["completed"] = (done := pull())[0]
        must(cmd="ACKB", ids=done, results=[1] * FEW)
        push(priority=9, maxAttempts=1)
        sample["failed"] = (failed := pull())[0]
        for job_id in failed:
            must(cmd="FAIL", id=job_id, error="no")
        push(priority=9)
        sample["active"] = pull()[0]
        sample["prioritized"] = push(priority=1)[0]
        sample["delayed"] = push(delay=86_400_000)[0]
        sample["waiting-children"] = push(dependsOn=[sample["delayed"]])[0]
        sample["waiting"] = push()[0]


def store_completed(path: Path, queue: str, count: int) -> None:
    """Completed jobs as the server would have left them, without running each."""
    with sqlite3.connect(path) as connection:
        connection.execute(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?)"
            " INSERT INTO jobs(id, queue, data, created_at, run_at, completed_at, state, progress, timeline)"
            " SELECT printf('done-%08d', i), ?, x'81a16e01', ? + i, ? + i, ? + i, 'completed', 100, x'90' FROM n",
            (count, queue, T0, T0, T0),
        )
    connection.close()


def free_ports(count: int) -> list[int]:
    """Ports that nobody uses right now."""
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def reads(sample: dict[str, str]) -> dict[str, dict[str, Any]]:
    """What is measured, by the name that the table gives it."""
    found: dict[str, dict[str, Any]] = {}
    for queue in QUEUES:
        for state in STATES:
            asked = {} if state is None else {"state": state}
            for order, more in (("", {}), (" newest", {"asc": False})):
                found[f"GetJobs {state or '(all)'}{order} {queue}"] = {
                    "cmd": "GetJobs",
                    "queue": queue,
                    **asked,
                    **more,
                }
        for cmd in ("GetJobCounts", "GetCountsPerPriority", "Count", "IsPaused", "DashboardQueue"):
            found[f"{cmd} {queue}"] = {"cmd": cmd, "queue": queue}
        found[f"DashboardQueue jobs {queue}"] = {"cmd": "DashboardQueue", "queue": queue, "includeJobs": True}
        found[f"Dlq {queue}"] = {"cmd": "Dlq", "queue": queue, "count": 50}
    for cmd in ("GetState", "GetJob", "GetResult"):
        for state, job_id in sample.items():
            found[f"{cmd} {state}"] = {"cmd": cmd, "id": job_id}
    found["GetJob completed in the file"] = {"cmd": "GetJob", "id": "done-00000001"}
    found["GetState unknown"] = {"cmd": "GetState", "id": "nobody"}
    found["GetProgress"] = {"cmd": "GetProgress", "id": sample["active"]}
    for cmd in ("ListQueues", "Stats", "Metrics", "DashboardQueues", "DashboardOverview"):
        found[cmd] = {"cmd": cmd}
    return found


def cleans() -> dict[str, dict[str, Any]]:
    """Commands that remove ten jobs each, so that they can be measured a few times only."""
    return {
        f"Clean {state} {queue}": {"cmd": "Clean", "queue": queue, "state": state, "grace": 0, "limit": 10}
        for queue, state in (
            ("listed", "waiting"),
            ("listed", "delayed"),
            ("listed", "failed"),
            ("listed", "completed"),
            ("aside", "waiting"),
            ("aside", "completed"),
            ("done", "completed"),
        )
    }


def measure(small: Server, large: Server, name: str, rounds: int) -> tuple[float, float] | None:
    """p50 of both, ms; None for a command that is not known."""
    commands = [{**reads(server.sample), **cleans()}[name] for server in (small, large)]
    reply = small.client.ask(**commands[0])
    if not reply["ok"]:  # the large server is not even asked: a defect makes it recount everything
        if str(reply["error"]).startswith(UNKNOWN):
            return None
        raise RuntimeError(f"{name}: {reply['error']}")
    large.client.must(**commands[1])
    best = (1.0, float("inf"))
    for _ in range(TRIES):
        times: tuple[list[float], list[float]] = ([], [])
        for _ in range(rounds):
            for server, command, taken in zip((small, large), commands, times, strict=True):
                taken.append(server.client.time_ms(**command))
        found = statistics.median(times[0]), statistics.median(times[1])
        best = min(best, found, key=lambda pair: pair[1] / pair[0])
        if best[1] / best[0] <= MAX_RATIO:
            break
    return best


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1_000_000)
    parser.add_argument("--few", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--only", default="")
    parser.add_argument("--start", default=f"{sys.executable} -m bunqueue_trio")
    options = parser.parse_args()
    servers: list[Server] = []
    with tempfile.TemporaryDirectory(prefix="readbench-") as folder:
        try:
            servers += [Server(options.start, Path(folder), count) for count in (options.few, options.jobs)]
            return report(servers[0], servers[1], options.only, options.rounds)
        finally:
            for server in servers:
                server.close()


def report(small: Server, large: Server, only: str, rounds: int) -> int:
    """Print the table; returns the exit code."""
    slow, unknown = [], []
    print(f"{'command':45} {'few':>9} {'many':>9} {'ratio':>6}   (p50, ms)")
    for name in [*reads(small.sample), *cleans()]:
        if only not in name:
            continue
        taken = measure(small, large, name, 15 if name.startswith("Clean") else rounds)
        if taken is None:
            unknown.append(name)
            continue
        ratio = taken[1] / taken[0]
        print(f"{name:45} {taken[0]:9.3f} {taken[1]:9.3f} {ratio:6.2f}{' <--' if ratio > MAX_RATIO else ''}")
        if ratio > MAX_RATIO:
            slow.append(name)
    if unknown:
        print(f"not known yet: {', '.join(unknown)}")
    print(f"{len(slow)} over {MAX_RATIO}" + (f": {', '.join(slow)}" if slow else ""))
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
