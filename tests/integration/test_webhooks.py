"""Webhooks over real sockets: a receiver on loopback, reached only with the operator's switch.

Source: scheduling and flows, "Delivery", SD-11.
"""

import hashlib
import hmac
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import trio

from bunqueue_trio.clock import SystemClock
from bunqueue_trio.model import commands as c
from bunqueue_trio.server.events import Events
from bunqueue_trio.server.webhooks.delivering import Deliveries
from bunqueue_trio.server.webhooks.registry import Webhooks
from bunqueue_trio.server.webhooks.sending import open_sender
from tests.server.webhook_fakes import event, payload


class Receiver(ThreadingHTTPServer):
    """Remembers what it gets; its first answers are those of ``statuses``, all others 200."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.got: list[tuple[str, dict[str, str], bytes]] = []
        self.statuses: list[int] = []

    @property
    def url(self) -> str:
        return f"http://localhost:{self.server_port}/hook?a=1"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        server = self.server
        body = self.rfile.read(int(self.headers["Content-Length"]))
        server.got.append((self.path, {name.lower(): value for name, value in self.headers.items()}, body))
        self.send_response(server.statuses.pop(0) if server.statuses else 200)
        self.send_header("Location", "http://127.0.0.1:1/")
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    def log_message(self, *args) -> None:
        pass


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


async def deliver(ids, url: str, *, registered_as_internal: bool = True, may_reach_internal: bool = True) -> dict:
    """Register *url*, let a job complete, wait for the outcome; the webhook as it is shown then."""
    done = trio.Event()
    clock, events = SystemClock(), Events()
    async with open_sender(allows_internal=may_reach_internal) as sender, trio.open_nursery() as nursery:
        deliveries = Deliveries(sender, clock, max_tries=2, retry_delay_ms=1)
        webhooks = Webhooks(ids, clock, deliveries, events, allows_internal=registered_as_internal)
        await nursery.start(deliveries.run)
        webhooks.add(c.AddWebhook(url=url, events=["job.completed"], secret="s3"), clock.now())
        deliveries.on_outcome = lambda outcome: done.set()

        events.publish([event("completed", data=payload({"sum": 3}))])
        with trio.fail_after(20):
            await done.wait()
        nursery.cancel_scope.cancel()
    return webhooks.list(c.ListWebhooks(), clock.now()).data["webhooks"][0]


async def test_a_receiver_gets_the_call(ids, receiver):
    shown = await deliver(ids, receiver.url)

    [(path, headers, body)] = receiver.got
    assert path == "/hook?a=1"
    assert json.loads(body) == {
        "event": "job.completed",
        "timestamp": 5,
        "jobId": "j1",
        "queue": "q",
        "data": {"sum": 3},
    }
    assert headers["host"] == f"localhost:{receiver.server_port}"
    assert headers["x-webhook-signature"] == hmac.new(b"s3", body, hashlib.sha256).hexdigest()
    assert (shown["successCount"], shown["failureCount"]) == (1, 0)


async def test_a_redirect_is_a_failed_try_and_the_next_one_counts(ids, receiver):
    receiver.statuses = [302]

    shown = await deliver(ids, receiver.url)

    assert len(receiver.got) == 2
    assert receiver.got[0] == receiver.got[1]
    assert (shown["successCount"], shown["failureCount"]) == (1, 0)


async def test_without_the_switch_nothing_on_this_machine_is_reached(ids, receiver):
    shown = await deliver(ids, receiver.url, may_reach_internal=False)

    assert receiver.got == []
    assert (shown["successCount"], shown["failureCount"]) == (0, 1)


async def test_a_closed_port_is_a_failure(ids, receiver):
    receiver.server_close()

    shown = await deliver(ids, receiver.url)

    assert (shown["successCount"], shown["failureCount"]) == (0, 1)
