"""What live streams cost everybody else: pushes over TCP while many read, and some never read, server-sent events.

    python scripts/livebench.py [--start 'python -m bunqueue_trio'] [--readers 500] [--stuck 20] [--rate 50]
        [--seconds 15]

Prints the times of the pushes, how far the memory of the server grew, and what became of those that never read. The
queue is drained once a second, so that what grows is not the queue.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import selectors
import shlex
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

import msgpack

BOUND_MS = 25.0
REQUEST = b"GET /events HTTP/1.1\r\nHost: x\r\n\r\n"


def free_port() -> int:
    """A port that was free just now."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def wait_for_port(port: int) -> None:
    """Until somebody listens."""
    for _ in range(400):
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise SystemExit("the server does not start")


def open_reader(port: int, receive_bytes: int | None = None) -> socket.socket:
    """A stream whose answer has begun."""
    sock = socket.socket()
    if receive_bytes is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    sock.connect(("127.0.0.1", port))
    sock.sendall(REQUEST)
    return sock


class Readers(threading.Thread):
    """Reads all streams; counts what comes."""

    def __init__(self, sockets: list[socket.socket]) -> None:
        super().__init__(daemon=True)
        self._selector = selectors.DefaultSelector()
        self.events = dict.fromkeys(sockets, 0)
        self.ended = 0
        for sock in sockets:
            self._selector.register(sock, selectors.EVENT_READ)

    def run(self) -> None:
        """Until the process ends."""
        while True:
            for key, _ in self._selector.select():
                sock = key.fileobj
                assert isinstance(sock, socket.socket)
                try:
                    data = sock.recv(65_536)
                except OSError:
                    data = b""
                self.events[sock] += data.count(b"event: job:pushed")
                if not data:
                    self.ended += 1
                    self._selector.unregister(sock)


def push(sock: socket.socket, number: int) -> float:
    """One push; how long its reply took, ms."""
    return ask(sock, {"cmd": "PUSH", "queue": "live", "data": {"n": number}, "reqId": str(number)})


def ask(sock: socket.socket, command: dict[str, object]) -> float:
    """One command; how long its reply took, ms."""
    body = msgpack.packb(command)
    started = time.perf_counter()
    sock.sendall(struct.pack(">I", len(body)) + body)
    head = sock.recv(4, socket.MSG_WAITALL)
    sock.recv(struct.unpack(">I", head)[0], socket.MSG_WAITALL)
    return (time.perf_counter() - started) * 1000


def rss_mib(pid: int) -> float:
    """Memory of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    [line] = [line for line in lines if line.startswith("VmRSS")]
    return int(line.split()[1]) / 1024


def health(port: int) -> dict[str, int]:
    """The server's own count of its connections."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/health") as response:
        counts: dict[str, int] = json.load(response)["connections"]
        return counts


def run(options: argparse.Namespace, tcp: int, http: int, pid: int) -> bool:
    """Returns whether the bound was kept."""
    wait_for_port(http)
    wait_for_port(tcp)
    readers = Readers([open_reader(http) for _ in range(options.readers)])
    readers.start()
    stuck = [open_reader(http, 4_096) for _ in range(options.stuck)]
    producer = socket.create_connection(("127.0.0.1", tcp))
    producer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    time.sleep(2)
    print(f"connections: {health(http)}")
    before = rss_mib(pid)
    count = options.rate * options.seconds
    began = time.perf_counter()
    times = []
    samples = []
    for number in range(count):
        if number % max(1, count // 5) == 0:
            samples.append(f"{rss_mib(pid):.1f}")
        time.sleep(max(0.0, began + number / options.rate - time.perf_counter()))
        times.append(push(producer, number))
        if number % options.rate == options.rate - 1:
            ask(producer, {"cmd": "Drain", "queue": "live"})
    time.sleep(2)
    after = rss_mib(pid)
    times.sort()
    p50, p99 = times[count // 2], times[count * 99 // 100]
    print(f"{count} pushes at {options.rate}/s: p50 {p50:.2f} ms, p99 {p99:.2f} ms, slowest {times[-1]:.2f} ms")
    print(f"memory: {before:.0f} MiB before, {after:.0f} MiB after ({after - before:+.1f}); on the way {samples}")
    told = sorted(readers.events.values())
    print(f"events per reader: {told[0]} to {told[-1]} of {count}; {readers.ended} of {options.readers} readers ended")
    print(f"connections: {health(http)} ({options.stuck} never read)")
    del stuck
    return p99 < BOUND_MS


def main() -> int:
    """Returns the exit code: 1 when the bound was not kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--start", default=f"{sys.executable} -m bunqueue_trio")
    parser.add_argument("--readers", type=int, default=500)
    parser.add_argument("--stuck", type=int, default=20)
    parser.add_argument("--rate", type=int, default=50)
    parser.add_argument("--seconds", type=int, default=15)
    options = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    tcp, http = free_port(), free_port()
    with tempfile.TemporaryDirectory() as folder:
        env = {
            **os.environ,
            "HOST": "127.0.0.1",
            "TCP_PORT": str(tcp),
            "HTTP_PORT": str(http),
            "BUNQUEUE_DATA_PATH": f"{folder}/queue.db",
        }
        server = subprocess.Popen(shlex.split(options.start), env=env, stdout=subprocess.DEVNULL)
        try:
            return 0 if run(options, tcp, http, server.pid) else 1
        finally:
            server.terminate()
            server.wait(60)


if __name__ == "__main__":
    sys.exit(main())
