"""Routes about workers: the four commands of the wire, with the same maps as JSON.

A worker that was registered here belongs to no connection: it stays until it is withdrawn or silent for too long.

Source: HTTP, "Resources"; scheduling and flows, "Worker registry".
"""

from __future__ import annotations

from quart import Response
from quart_trio import QuartTrio

from bunqueue_trio.model import commands as c
from bunqueue_trio.web.mapped import MappedRoutes, lenient_body, required_body

DESCRIPTION = ("name", "queues", "concurrency", "workerId", "hostname", "pid", "startedAt")
COUNTERS = ("activeJobs", "processed", "failed")


class WorkerRoutes(MappedRoutes):
    """Adds the routes to an application."""

    def add_to(self, app: QuartTrio) -> None:
        """Register every route of this room."""
        app.add_url_rule("/workers", "workers", self._list, methods=["GET"])
        app.add_url_rule("/workers", "worker-register", self._register, methods=["POST"])
        app.add_url_rule("/workers/<path:worker_id>", "worker-unregister", self._unregister, methods=["DELETE"])
        app.add_url_rule("/workers/<path:worker_id>/heartbeat", "worker-heartbeat", self._heartbeat, methods=["POST"])

    async def _list(self) -> Response:
        return await self.answer(c.ListWorkers(), 200)

    async def _register(self) -> Response:
        return await self.from_body(required_body, "RegisterWorker", DESCRIPTION, 400)

    async def _unregister(self, worker_id: str) -> Response:
        return await self.answer(c.UnregisterWorker(worker_id=worker_id), 404)

    async def _heartbeat(self, worker_id: str) -> Response:
        return await self.from_body(lenient_body, "Heartbeat", COUNTERS, 200, id=worker_id)
