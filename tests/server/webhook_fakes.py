"""Receivers without sockets: a network that answers as told, a resolver that says what it is told, a poster that
counts. Time is Trio's.
"""

from __future__ import annotations

import ipaddress
import socket
from collections import deque
from collections.abc import Iterable
from typing import Any

import httpcore
import msgpack
import trio
from msgspec import Raw

from bunqueue_trio.clock import TrioClock
from bunqueue_trio.model import commands as c
from bunqueue_trio.model.events import JobEvent
from bunqueue_trio.protocol.webhook_urls import IPAddress, WebhookUrl, parse_url
from bunqueue_trio.protocol.wire import checked
from bunqueue_trio.server.events import Events
from bunqueue_trio.server.webhooks.delivering import Deliveries, Lane, Outcome
from bunqueue_trio.server.webhooks.registry import Webhooks

OK = b"HTTP/1.1 204 No Content\r\n\r\n"
HANG = object()
"""An answer that never comes."""


def answer(status: int, body: bytes = b"", *headers: str) -> bytes:
    """An HTTP response."""
    lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


class Request:
    """What a receiver got: request line, headers in lower case, body."""

    def __init__(self, raw: bytes) -> None:
        head, _, self.body = raw.partition(b"\r\n\r\n")
        self.line, *lines = head.decode().split("\r\n")
        self.headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}

    @property
    def is_complete(self) -> bool:
        return len(self.body) == int(self.headers.get("content-length", -1))


class FakeStream(httpcore.AsyncNetworkStream):
    """A connection whose far end answers each complete request."""

    def __init__(self, network: FakeNetwork) -> None:
        self._network = network
        self._received = b""
        self._out: deque[Any] = deque()
        self.is_closed = False
        self.server_hostname: str | None = None
        self.read_bytes = 0
        self.largest_read = 0

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109
        await trio.lowlevel.checkpoint()
        self._received += buffer
        if b"\r\n\r\n" in self._received and (request := Request(self._received)).is_complete:
            self._received = b""
            self._network.requests.append(request)
            self._network.tries_s.append(trio.current_time())
            answers = self._network.answers
            self._out.append(answers.popleft() if answers else self._network.default)

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109
        await trio.lowlevel.checkpoint()
        if not self._out or self._out[0] is HANG:
            await trio.sleep_forever()
        item = self._out.popleft()
        if isinstance(item, Exception):
            raise item
        if self._network.trickle_s:
            await trio.sleep(self._network.trickle_s)
            max_bytes = 1
        if len(item) > max_bytes:
            self._out.appendleft(item[max_bytes:])
        data = bytes(item[:max_bytes])
        self.read_bytes += len(data)
        self.largest_read = max(self.largest_read, len(data))
        return data

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()
        self.is_closed = True

    async def start_tls(
        self,
        ssl_context: Any,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> httpcore.AsyncNetworkStream:
        await trio.lowlevel.checkpoint()
        self.server_hostname = server_hostname
        return self

    def get_extra_info(self, info: str) -> Any:
        return None


class FakeNetwork(httpcore.AsyncNetworkBackend):
    """Every address answers, unless it is among the ``silent`` or ``dead`` ones.

    ``answers`` are those of the next requests, ``default`` that of all further ones: bytes, `HANG` or an exception.
    """

    def __init__(self) -> None:
        self.dialled: list[tuple[str, int]] = []
        self.streams: list[FakeStream] = []
        self.requests: list[Request] = []
        self.tries_s: list[float] = []
        self.answers: deque[Any] = deque()
        self.default: Any = OK
        self.trickle_s = 0.0
        """Pause before each single byte of an answer; 0: they come in one piece."""
        self.silent: set[str] = set()
        self.dead: set[str] = set()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        self.dialled.append((host, port))
        await trio.lowlevel.checkpoint()
        if host in self.silent:
            await trio.sleep_forever()
        if host in self.dead:
            raise httpcore.ConnectError("connection refused")
        stream = FakeStream(self)
        self.streams.append(stream)
        return stream

    async def sleep(self, seconds: float) -> None:
        await trio.sleep(seconds)


class FakeResolver:
    """Answers from a table; a list of lists gives one answer after the other, the last one for ever."""

    def __init__(self, **names: list[str] | list[list[str]]) -> None:
        self.names = {name.replace("_", "."): value for name, value in names.items()}
        self.asked: list[str] = []
        self.hangs = False

    async def __call__(self, host: str, port: int) -> list[IPAddress]:
        self.asked.append(host)
        await trio.lowlevel.checkpoint()
        if self.hangs:
            await trio.sleep_forever()
        if host not in self.names:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        found: Any = self.names[host]
        if found and isinstance(found[0], list):
            found = found.pop(0) if len(found) > 1 else found[0]
        return [ipaddress.ip_address(address) for address in found]


class FakePoster:
    """Posts nowhere. ``results`` are those of the next tries, ``default`` that of all further ones.

    ``hanging`` hosts never answer; a try on them lasts ``patience_s`` and fails.
    """

    def __init__(self) -> None:
        self.posts: list[tuple[float, WebhookUrl, list[tuple[str, str]], bytes]] = []
        self.results: deque[str | Exception | None] = deque()
        self.default: str | Exception | None = None
        self.hanging: set[str] = set()
        self.patience_s = 10.0
        self.under_way = 0
        self.most_under_way = 0

    async def post(self, url: WebhookUrl, headers: list[tuple[str, str]], body: bytes) -> str | None:
        self.posts.append((trio.current_time(), url, headers, body))
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            await trio.lowlevel.checkpoint()
            if url.host in self.hanging:
                await trio.sleep(self.patience_s)
                return "no answer"
        finally:
            self.under_way -= 1
        result = self.results.popleft() if self.results else self.default
        if isinstance(result, Exception):
            raise result
        return result

    def hosts(self) -> list[str]:
        """Where each try went."""
        return [url.host for _, url, _, _ in self.posts]


class Hooks:
    """Registry, deliveries and fan-out over a `FakePoster`, under Trio's clock."""

    def __init__(
        self,
        ids: Any,
        *,
        max_tries: int = 3,
        retry_delay_ms: float = 1_000,
        internal: bool = False,
        events: Events | None = None,
    ) -> None:
        self.clock = TrioClock()
        self.poster = FakePoster()
        self.events = Events(self._note_listening) if events is None else events
        self.listening: list[bool] = []
        self.deliveries = Deliveries(self.poster, self.clock, max_tries=max_tries, retry_delay_ms=retry_delay_ms)
        self.webhooks = Webhooks(ids, self.clock, self.deliveries, self.events, allows_internal=internal)

    def _note_listening(self, is_listened_to: bool) -> None:
        self.listening.append(is_listened_to)

    def call(self, command: Any) -> Any:
        """Check and carry out; the data of the reply."""
        checked(command)
        reply = self.webhooks.handlers[type(command)](command, self.clock.now())
        return getattr(reply, "data", None)

    def add(self, url: str = "http://example.com/h", events: Any = ("job.pushed",), **fields: Any) -> str:
        """A webhook; its id."""
        data = self.call(c.AddWebhook(url=url, events=list(events), **fields))
        return str(data["webhookId"])

    def shown(self) -> list[dict[str, Any]]:
        """The webhooks as ListWebhooks shows them."""
        self.webhooks.check_invariants()
        return list(self.call(c.ListWebhooks())["webhooks"])

    def happen(self, *events: JobEvent) -> None:
        """The broker publishes."""
        self.events.publish(list(events))


def payload(value: Any) -> Raw:
    """A payload of a job."""
    return Raw(msgpack.packb(value))


def event(event_type: str = "pushed", queue: str = "q", job_id: str = "j1", timestamp: float = 5.0, **more: Any) -> Any:
    """An event of a job."""
    return JobEvent(event_type, queue, job_id, timestamp, **more)


def lane(name: str = "w", url: str = "http://example.com/", secret: str | None = None) -> Lane:
    """A webhook as the deliveries see it."""
    return Lane(name, parse_url(url), secret)


def collect(deliveries: Deliveries) -> list[Outcome]:
    """All outcomes from now on."""
    outcomes: list[Outcome] = []
    deliveries.on_outcome = outcomes.append
    return outcomes
