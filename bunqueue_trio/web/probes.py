"""The probes: what monitors and orchestrators ask without a token.

`create_app` is the whole HTTP application; further groups of routes are registered there. Checks stand in one place:
an unknown path or method is 404, an error in a route is logged and answered with 500.
Source: HTTP, "Probes and diagnostics"; R255 to R263, HD-2, K51.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec
from quart import Response
from quart_trio import QuartTrio
from werkzeug.exceptions import HTTPException

from bunqueue_trio.logs import get_logger
from bunqueue_trio.model.health import HealthReport
from bunqueue_trio.web.responses import WholeResponses
from bunqueue_trio.web.transport import Websockets

ANY_METHOD = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT"]
# A body may not fill the memory of a server that nobody has authenticated to; `gate` lets others send more.
MAX_BODY_BYTES = 65_536

log = get_logger("HTTP")


class HealthSource(Protocol):
    """What the probes ask of the server. Both answers are synchronous and cheap."""

    @property
    def is_ready(self) -> bool:
        """Whether commands are served: False during recovery, while stopping and while degraded."""
        ...

    def health(self) -> HealthReport:
        """One look at the server. Cost: must not depend on the number of jobs."""
        ...


class Routes(Protocol):
    """A group of routes in a module of its own."""

    def add_to(self, app: QuartTrio) -> None:
        """Register them."""
        ...


def create_app(source: HealthSource, rooms: Sequence[Routes] = ()) -> QuartTrio:
    """Build the HTTP application.

    Args:
        source: Asked anew for every probe.
        rooms: Further groups of routes; the gate, if there is one, comes first.
    """
    app = QuartTrio("bunqueue_trio")
    app.asgi_http_class = WholeResponses
    app.asgi_websocket_class = Websockets
    app.url_map.merge_slashes = False
    app.config["MAX_CONTENT_LENGTH"] = MAX_BODY_BYTES
    app.register_error_handler(HTTPException, _refuse)
    app.register_error_handler(Exception, _report_error)
    _add_probes(app, source)
    for room in rooms:
        room.add_to(app)
    return app


def json_response(value: Any, status: int = 200) -> Response:
    """Answer with compact JSON. *value* is anything msgspec can encode."""
    return Response(msgspec.json.encode(value), status=status, content_type="application/json")


def _add_probes(app: QuartTrio, source: HealthSource) -> None:
    async def health() -> Response:
        report = source.health()
        # K51: monitors that look at nothing but the status see the trouble too.
        return json_response(report, 200 if report.ok else 503)

    async def alive() -> Response:
        # Says only that the loop turns: an orchestrator restarts what fails here, and no restart empties a disk.
        return Response(b"OK", content_type="text/plain;charset=utf-8")

    async def ready() -> Response:
        is_ready = source.is_ready
        return json_response({"ok": is_ready, "ready": is_ready}, 200 if is_ready else 503)

    for path, view in (("/health", health), ("/healthz", alive), ("/live", alive), ("/ready", ready)):
        app.add_url_rule(path, path, view, methods=ANY_METHOD, provide_automatic_options=False)


async def _refuse(error: HTTPException) -> Response:
    if error.code is None or error.code in (404, 405):
        # Wire: there is no 405; a known path with another method is not found.
        return json_response({"ok": False, "error": "Not found"}, 404)
    return json_response({"ok": False, "error": error.name}, error.code)


async def _report_error(error: Exception) -> Response:
    log.error("Request failed", exc_info=error)
    return json_response({"ok": False, "error": "Internal server error"}, 500)
