"""Routes about webhooks: the four commands of the wire, with the same maps as JSON.

Source: HTTP, "Resources"; HD-11.
"""

from __future__ import annotations

from quart import Response
from quart_trio import QuartTrio

from bunqueue_trio.model import commands as c
from bunqueue_trio.web.mapped import MappedRoutes, optional_body, required_body

DESCRIPTION = ("url", "events", "queue", "secret")


class WebhookRoutes(MappedRoutes):
    """Adds the routes to an application."""

    def add_to(self, app: QuartTrio) -> None:
        """Register every route of this room."""
        app.add_url_rule("/webhooks", "webhooks", self._list, methods=["GET"])
        app.add_url_rule("/webhooks", "webhook-add", self._add, methods=["POST"])
        app.add_url_rule("/webhooks/<path:webhook_id>", "webhook-remove", self._remove, methods=["DELETE"])
        app.add_url_rule("/webhooks/<path:webhook_id>/enabled", "webhook-switch", self._switch, methods=["PUT"])

    async def _list(self) -> Response:
        return await self.answer(c.ListWebhooks(), 200)

    async def _add(self) -> Response:
        return await self.from_body(required_body, "AddWebhook", DESCRIPTION, 400)

    async def _remove(self, webhook_id: str) -> Response:
        return await self.answer(c.RemoveWebhook(webhook_id=webhook_id), 404)

    async def _switch(self, webhook_id: str) -> Response:
        return await self.from_body(optional_body, "SetWebhookEnabled", ("enabled",), 400, id=webhook_id)
