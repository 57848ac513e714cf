"""Routes about crons: the four commands of the wire, with the same maps as JSON.

Source: HTTP, "Crons"; scheduling and flows, "Commands and reply shapes".
"""

from __future__ import annotations

from quart import Response
from quart_trio import QuartTrio

from bunqueue_trio.model import commands as c
from bunqueue_trio.web.mapped import MappedRoutes, required_body

DEFINITION = (
    *("name", "queue", "data", "schedule", "repeatEvery", "priority", "maxLimit", "timezone", "uniqueKey", "dedup"),
    *("skipMissedOnRestart", "immediately", "skipIfNoWorker", "preventOverlap", "jobOptions"),
)


class CronRoutes(MappedRoutes):
    """Adds the routes to an application."""

    def add_to(self, app: QuartTrio) -> None:
        """Register every route of this room."""
        app.add_url_rule("/crons", "crons", self._list, methods=["GET"])
        app.add_url_rule("/crons", "crons-put", self._put, methods=["POST"])
        app.add_url_rule("/crons/<path:name>", "cron", self._get, methods=["GET"])
        app.add_url_rule("/crons/<path:name>", "cron-delete", self._delete, methods=["DELETE"])

    async def _list(self) -> Response:
        return await self.answer(c.CronList(), 400)

    async def _put(self) -> Response:
        return await self.from_body(required_body, "Cron", DEFINITION, 400)

    async def _get(self, name: str) -> Response:
        return await self.answer(c.CronGet(name=name), 404)

    async def _delete(self, name: str) -> Response:
        return await self.answer(c.CronDelete(name=name), 404)
