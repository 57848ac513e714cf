"""The HTTP application over a rig, without a socket."""

from __future__ import annotations

import random
from typing import Any

from quart_trio import QuartTrio

from bunqueue_trio.config import Config
from bunqueue_trio.ids import Ids
from bunqueue_trio.model.health import HealthReport
from bunqueue_trio.server.live import Live
from bunqueue_trio.web.answering import CommandRoutes
from bunqueue_trio.web.gate import Gate
from bunqueue_trio.web.live import LiveRoutes
from bunqueue_trio.web.page import Page
from bunqueue_trio.web.probes import create_app
from tests.server.fakes import SECRET, Rig


class Source:
    """A healthy server."""

    is_ready = True

    def health(self) -> HealthReport:
        return HealthReport(uptime=1, version="1")


def app_of(rig: Rig, config: Config | None = None, live: Live | None = None) -> QuartTrio:
    """The application as the server serves it."""
    config = config or Config()
    gate = Gate(config, rig.broker)
    rooms = [
        gate,
        CommandRoutes(rig.broker, gate),
        LiveRoutes(rig.broker, live or live_of(rig, config)),
        Page(),
    ]
    return create_app(Source(), rooms)


def live_of(rig: Rig, config: Config | None = None) -> Live:
    """All who watch, nobody yet."""
    return Live(rig.broker, config or Config(), Ids(SECRET, random.Random(2)).client_id, Source().health)


class Http:
    """A client of the application.

    Args:
        peer: the address it comes from; None for a Unix socket.
    """

    def __init__(self, rig: Rig, config: Config | None = None, *, peer: str | None = "127.0.0.1") -> None:
        self.live = live_of(rig, config)
        self.app = app_of(rig, config, self.live)
        self.peer = peer
        self.headers: dict[str, str] = {}
        """Of the last response, names in lower case."""

    async def ask(self, method: str, path: str, *, headers: dict[str, str] | None = None, **body: Any) -> Any:
        """Status and decoded JSON body of one request; *body* as Quart's client takes it: ``json`` or ``data``.

        The path goes out as it is written here, escapes included.
        """
        raw, _, query = path.partition("?")
        client = None if self.peer is None else (self.peer, 5)
        response = await self.app.test_client().open(
            path=raw,
            method=method,
            headers=headers,
            query_string=None,
            scope_base={
                "raw_path": raw.encode(),
                "query_string": query.encode(),
                "client": client,
            },
            **body,
        )
        self.headers = {name.lower(): value for name, value in response.headers.items()}
        text = await response.get_data(as_text=False)
        if self.headers.get("content-type") == "application/json":
            return response.status_code, await response.get_json()
        return response.status_code, text.decode()

    async def reply(self, method: str, path: str, **options: Any) -> Any:
        """The body of a request that must be answered with 200."""
        status, body = await self.ask(method, path, **options)
        assert status == 200, body
        return body
