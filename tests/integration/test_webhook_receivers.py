"""Receivers that misbehave, against a real server: it stays fast, a receiver that answers gets everything, and a stop
stays within its time.

Source: scheduling and flows, "Delivery", SD-12.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from tests.process import Client, ServerProcess, StartServer, wait_until

pytestmark = pytest.mark.slow

JOBS = 100
SECRET = "s3cret"
ALL = ["job.pushed", "job.started", "job.completed", "job.failed", "job.progress"]


class Receiver:
    """A port at which *behave* serves each connection, in a thread of its own, until the test ends."""

    def __init__(self, behave: Callable[[Receiver, socket.socket], None]) -> None:
        self._behave = behave
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=200)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}/hook"
        self.is_over = threading.Event()
        self.bodies: list[tuple[dict[str, str], bytes]] = []
        self._threads: list[threading.Thread] = []
        self._listener.settimeout(0.1)
        self._start(self._accept)

    def _start(self, target: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=target, args=args)
        thread.start()
        self._threads.append(thread)

    def _accept(self) -> None:
        while not self.is_over.is_set():
            try:
                connection, _ = self._listener.accept()
            except TimeoutError:
                continue
            except OSError:  # closed
                return
            self._start(self._serve, connection)

    def _serve(self, connection: socket.socket) -> None:
        connection.settimeout(0.2)
        with connection:
            try:
                self._behave(self, connection)
            except OSError:
                return

    def read(self, connection: socket.socket) -> bool:
        """The next request, kept in ``bodies``; False when none comes any more."""
        data = b""
        while b"\r\n\r\n" not in data:
            piece = self._piece(connection)
            if not piece:
                return False
            data += piece
        head, _, body = data.partition(b"\r\n\r\n")
        lines = (line.partition(": ") for line in head.decode().split("\r\n")[1:])
        headers = {name.lower(): value for name, _, value in lines}
        while len(body) < int(headers["content-length"]):
            body += self._piece(connection)
        self.bodies.append((headers, body))
        return True

    def _piece(self, connection: socket.socket) -> bytes:
        while not self.is_over.is_set():
            try:
                return connection.recv(65_536)
            except TimeoutError:
                continue
        return b""

    def close(self) -> None:
        self.is_over.set()
        self._listener.close()
        for thread in self._threads:
            thread.join()


def answers(receiver: Receiver, connection: socket.socket) -> None:
    while receiver.read(connection):
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")


def fails(receiver: Receiver, connection: socket.socket) -> None:
    while receiver.read(connection):
        connection.sendall(b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n")


def hangs(receiver: Receiver, connection: socket.socket) -> None:
    receiver.read(connection)
    receiver.is_over.wait()


def reads_nothing(receiver: Receiver, connection: socket.socket) -> None:
    receiver.is_over.wait()


def trickles(receiver: Receiver, connection: socket.socket) -> None:
    receiver.read(connection)
    connection.sendall(b"HTTP/1.1 200 OK\r\nX: ")
    while not receiver.is_over.wait(0.1):
        connection.sendall(b"x")


def never_comes_to_the_point(receiver: Receiver, connection: socket.socket) -> None:
    receiver.read(connection)
    pour(receiver, connection, b"HTTP/1.1 100 Continue\r\n\r\n" * 2_000)


def answers_without_end(receiver: Receiver, connection: socket.socket) -> None:
    receiver.read(connection)
    connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    pour(receiver, connection, b"3e8\r\n" + b"x" * 1_000 + b"\r\n")


def pour(receiver: Receiver, connection: socket.socket, data: bytes) -> None:
    while not receiver.is_over.is_set():
        if select.select([], [connection], [], 0.1)[1]:
            connection.send(data)


def redirects(receiver: Receiver, connection: socket.socket) -> None:
    while receiver.read(connection):
        connection.sendall(b"HTTP/1.1 307 No\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n")


OpenReceiver = Callable[[Callable[[Receiver, socket.socket], None]], Receiver]


@pytest.fixture
def open_receiver() -> Iterator[OpenReceiver]:
    receivers: list[Receiver] = []

    def make(behave: Callable[[Receiver, socket.socket], None]) -> Receiver:
        receivers.append(Receiver(behave))
        return receivers[-1]

    yield make
    for receiver in receivers:
        receiver.close()


def add(client: Client, url: str, events: list[str], **fields: str) -> str:
    return str(client.ok("AddWebhook", url=url, events=events, **fields)["data"]["webhookId"])


def shown(client: Client) -> dict[str, dict[str, object]]:
    return {hook["id"]: hook for hook in client.ok("ListWebhooks")["data"]["webhooks"]}


BAD = [fails, hangs, reads_nothing, trickles, never_comes_to_the_point, answers_without_end, redirects]


def work(client: Client, jobs: int) -> None:
    """So many jobs from push to completion, and one that fails."""
    for number in range(jobs):
        job_id = client.ok("PUSH", queue="q", data={"n": number}, maxAttempts=1)["id"]
        lease = client.ok("PULL", queue="q", owner="w")
        if number == 0:
            client.ok("Progress", id=job_id, progress=50, message="half")
            client.ok("FAIL", id=job_id, token=lease["token"], error="boom")
        else:
            client.ok("ACK", id=job_id, token=lease["token"], result={"n": number})


@pytest.fixture
def inside(start_server: StartServer) -> ServerProcess:
    """A server whose webhooks may reach this machine."""
    return start_server(
        WEBHOOK_ALLOW_INTERNAL="on", WEBHOOK_MAX_RETRIES=2, WEBHOOK_RETRY_DELAY_MS=50, SHUTDOWN_TIMEOUT_MS=3_000
    )


@pytest.mark.alone
def test_the_server_stays_fast_and_stops_in_time_whatever_receivers_do(
    inside: ServerProcess, open_receiver: OpenReceiver
) -> None:
    good = open_receiver(answers)
    times: list[float] = []
    with inside.connect() as client, inside.connect() as watching:
        well = add(client, good.url, ALL, secret=SECRET)
        bad = {add(client, open_receiver(behave).url, ["job.pushed"]): behave for behave in BAD}
        stop = threading.Event()

        def ping() -> None:
            while not stop.wait(0.01):
                asked = time.monotonic()
                watching.ok("Ping")
                times.append(time.monotonic() - asked)

        pinging = threading.Thread(target=ping)
        pinging.start()
        began = time.monotonic()
        work(client, JOBS)
        worked_s = time.monotonic() - began
        wait_until(lambda: shown(client)[well]["successCount"] == 3 * JOBS + 1, "the good receiver has got all")
        time.sleep(1)
        stop.set()
        pinging.join()
        counts = shown(client)

    # Receivers and clients share one interpreter here; on a quiet machine it is 3 s, and 20 ms.
    assert worked_s < 30
    times.sort()
    assert times[len(times) * 95 // 100] < 0.5
    for webhook_id, behave in bad.items():
        is_answered = behave is answers_without_end  # the status was a 200, whatever came behind it
        if not is_answered:
            assert counts[webhook_id]["successCount"] == 0, behave.__name__
    assert counts[well]["failureCount"] == 0
    check_calls(good)

    began = time.monotonic()
    assert inside.terminate() == 0
    assert time.monotonic() - began < 3 + 3  # SHUTDOWN_TIMEOUT_MS, and what a busy machine needs to end a process
    inside.assert_no_faults()


def check_calls(receiver: Receiver) -> None:
    """Every call is what the spec says, to the byte: header, body and signature."""
    seen: dict[str, int] = dict.fromkeys(ALL, 0)
    for headers, body in receiver.bodies:
        told = json.loads(body)
        seen[told["event"]] += 1
        assert body == json.dumps(told, separators=(",", ":")).encode()
        assert list(told)[:4] == ["event", "timestamp", "jobId", "queue"]
        assert headers["content-type"] == "application/json"
        assert headers["x-webhook-event"] == told["event"]
        assert headers["x-webhook-timestamp"] == str(told["timestamp"])
        assert headers["x-webhook-signature"] == hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()
        extra = {name: value for name, value in told.items() if name not in ("event", "timestamp", "jobId", "queue")}
        if told["event"] == "job.failed":
            assert extra == {"data": {"n": 0}, "error": "boom"}
        elif told["event"] == "job.progress":
            assert extra == {"progress": 50}
        elif told["event"] == "job.completed":
            assert list(extra) == ["data"]
        else:
            assert extra == {}
    assert seen == {
        "job.pushed": JOBS,
        "job.started": JOBS,
        "job.completed": JOBS - 1,
        "job.failed": 1,
        "job.progress": 1,
    }


@pytest.mark.alone
def test_a_stop_gives_a_receiver_that_answers_what_is_left_and_none_its_time_for_ever(
    inside: ServerProcess, open_receiver: OpenReceiver
) -> None:
    def slowly(receiver: Receiver, connection: socket.socket) -> None:
        while receiver.read(connection):
            time.sleep(0.2)
            connection.sendall(b"HTTP/1.1 204 OK\r\n\r\n")

    slow, dead = open_receiver(slowly), open_receiver(hangs)
    with inside.connect() as client:
        add(client, slow.url, ["job.pushed"])
        client.ok("PUSHB", queue="q", jobs=[{"data": n} for n in range(8)])
        add(client, dead.url, ["job.pushed"])
        client.ok("PUSH", queue="q", data=8)
        began = time.monotonic()
        assert inside.terminate() == 0

    assert time.monotonic() - began < 3 + 3
    assert len(slow.bodies) == 9
    assert "Webhook deliveries were given up at the stop" in inside.log
    inside.assert_no_faults()
