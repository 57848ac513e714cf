"""The checks that come before any route, in their one order: preflight, probes, rate limit, token, foreign pages.

    OPTIONS        answered here                                  no limit, no token
    probes         /health /healthz /live /ready, any method      no limit, no token
    the page       /ui and below, GET and HEAD                    limit, no token: it holds no data
    debugging      POST /gc, GET /heapstats                       no limit, token
    the rest       limit, then token; whether the path exists is nobody's business without one
    /prometheus    as the rest, its token only where METRICS_AUTH asks for it

Source: HTTP, "Order of checks for a request", "Bearer auth", "CORS", "Request rate limit"; HD-3, HD-4.
"""

from __future__ import annotations

import math
import socket
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import urlsplit

from quart import Response, g, request, websocket
from quart_trio import QuartTrio
from quart_trio.wrappers import TrioRequest
from werkzeug.datastructures import Headers

from bunqueue_trio.errors import AuthError
from bunqueue_trio.server.roles import Role, Tokens, permitted, refusal
from bunqueue_trio.server.throttle import ClientThrottles
from bunqueue_trio.web.paths import segments_of
from bunqueue_trio.web.probes import json_response

if TYPE_CHECKING:
    from bunqueue_trio.clock import Clock
    from bunqueue_trio.config import Config

PROBES: Final = frozenset({"health", "healthz", "live", "ready"})
SAFE_METHODS: Final = frozenset({"GET", "HEAD"})
QUIET_PATHS: Final = frozenset({"gc", "heapstats", "ws", "events", "prometheus"})
"""First segments where a missing token is no event."""
ADMITTED_BODY_BYTES = 134_217_728  # Wire: 128 MiB; who has no token gets `MAX_BODY_BYTES`
MAX_KEY_LENGTH = 64
PREFLIGHT: Final = {
    "Access-Control-Allow-Methods": "GET, POST, PUT, DELETE, OPTIONS",
    "Access-Control-Allow-Headers": "Content-Type, Authorization",
    "Access-Control-Max-Age": "86400",
}


class Announcer(Protocol):
    """Whom the gate tells what it has turned away."""

    @property
    def clock(self) -> Clock:
        """The server's clock."""
        ...

    def announce(self, event: str, data: dict[str, Any]) -> None:
        """Something has happened that is about no job."""
        ...


class Gate:
    """Lets requests in, or answers them itself. What it lets in has ``g.roles``: what its token allows."""

    def __init__(self, config: Config, server: Announcer) -> None:
        self._tokens = Tokens(config)
        self._server = server
        self._metrics_auth = config.metrics_auth
        self._origins = config.cors_allow_origin
        self._names = {"localhost", socket.gethostname().lower(), (config.host or "").lower()}
        self._proxies = [ip_network(network) for network in config.trusted_proxies]
        self._throttles = ClientThrottles(
            config.rate_limit_max_requests, config.rate_limit_window_ms, config.rate_limit_cleanup_ms
        )

    def sizes(self) -> dict[str, int]:
        """Of each collection; see `server.heap`."""
        return {"throttledClients": self._throttles.client_count}

    def add_to(self, app: QuartTrio) -> None:
        """Put the gate in front of every route of *app*, also of those that are added later."""
        app.request_class = self._sized_request()
        app.before_request(self._admit_request)
        app.before_websocket(self._admit_websocket)
        app.after_request(self._share)
        app.register_error_handler(AuthError, _refuse_role)

    def _sized_request(self) -> type[TrioRequest]:
        """A class of requests that keep only a small body of somebody who may not send one."""
        gate = self

        class SizedRequest(TrioRequest):
            def __init__(self, *args: Any, **options: Any) -> None:
                headers = args[4]
                if gate._roles_of(headers) is not None:
                    options["max_content_length"] = ADMITTED_BODY_BYTES
                super().__init__(*args, **options)

        return SizedRequest

    async def _admit_request(self) -> Response | None:
        if request.method == "OPTIONS":
            return Response(b"", status=204, headers=PREFLIGHT)
        segments = segments_of(request.scope)
        if len(segments) == 1 and segments[0] in PROBES:
            return None
        if segments[0] == "ui" and request.method in SAFE_METHODS:
            return self._limit(request.scope, request.headers)
        refused = self._check(request.method, segments, request.scope, request.headers)
        if refused is None and request.method == "HEAD":
            return json_response({"ok": False, "error": "Not found"}, 404)
        return refused

    async def _admit_websocket(self) -> Response | None:
        # A page from elsewhere may open a socket as it likes and read it: more than it could do by posting.
        # Every socket is one below /ws, whatever the path looks like with its dots resolved.
        return self._check("POST", ("ws",), websocket.scope, websocket.headers)

    def _check(self, method: str, segments: tuple[str, ...], scope: Any, headers: Headers) -> Response | None:
        is_debug = segments in (("gc",), ("heapstats",)) and (method == "POST") == (segments == ("gc",))
        if not is_debug and (refused := self._limit(scope, headers)) is not None:
            return refused
        roles = self._roles_of(headers)
        if roles is None and segments == ("prometheus",) and method == "GET" and not self._metrics_auth:
            roles = Role.READ
        if roles is None:
            if segments[0] not in QUIET_PATHS:
                self._server.announce("auth:failed", {"transport": "http"})
            return json_response({"ok": False, "error": "Unauthorized"}, 401)
        if method not in SAFE_METHODS and self.is_foreign(headers):
            return refuse_foreign()
        g.roles = roles
        return None

    def _roles_of(self, headers: Headers) -> Role | None:
        if self._tokens.is_empty:
            return Role.ALL
        presented = headers.get("Authorization", "").replace("Bearer ", "", 1)
        return self._tokens.roles_of(presented.encode("latin-1", "replace"))

    # who asks

    def _limit(self, scope: Any, headers: Headers) -> Response | None:
        key = self._client_key(scope, headers)
        wait_ms = self._throttles.refusal_ms(key, self._server.clock.now().mono_ms)
        if wait_ms is None:
            return None
        self._server.announce("ratelimit:hit", {"clientId": key})
        response = json_response({"ok": False, "error": "Rate limit exceeded"}, 429)
        response.headers["Retry-After"] = str(max(1, math.ceil(wait_ms / 1000)))
        return response

    def _client_key(self, scope: Any, headers: Headers) -> str:
        """The address of the client: of the peer, or where that is a trusted proxy, of whom it names.

        Whoever may open our Unix socket is such a proxy: it has no address, and the file's mode says who that is.
        """
        client = scope.get("client")
        peer = "unknown" if client is None else str(client[0])
        if client is not None and not self._is_proxy(peer):
            return _bucket(peer)
        # Each proxy appends whom it has seen: from the right, the first one that is no proxy of ours is the client.
        chain = [name.strip() for name in ",".join(headers.getlist("X-Forwarded-For")).split(",")]
        clients = [name for name in chain if name and not self._is_proxy(name)]
        return _bucket(clients[-1] if clients else headers.get("X-Real-IP", "").strip() or peer)

    def _is_proxy(self, address: str) -> bool:
        if not self._proxies:
            return False
        parsed = _parsed(address)
        return parsed is not None and any(parsed in network for network in self._proxies)

    def is_foreign(self, headers: Headers) -> bool:
        """Whether a browser sends this for a page of somebody else. Only without tokens, which no such page has."""
        if not self._tokens.is_empty or "*" in self._origins:
            return False
        origin = headers.get("Origin")
        if origin is None:
            return headers.get("Sec-Fetch-Site") in ("cross-site", "same-site")
        if origin in self._origins:
            return False
        try:
            parts = urlsplit(origin)
            name = parts.hostname or ""
        except ValueError:
            return True
        # A name of somebody else may be made to lead here (DNS rebinding); then Origin and Host agree.
        is_ours = name in self._names or _parsed(name) is not None
        return not is_ours or parts.netloc != headers.get("Host")

    # who may read the answer

    async def _share(self, response: Response) -> Response:
        """Say which pages may read the answer; every answer, also a refusal (HD-3)."""
        origins = self._origins
        if "*" in origins:
            response.headers["Access-Control-Allow-Origin"] = "*"
        elif len(origins) == 1:
            response.headers["Access-Control-Allow-Origin"] = origins[0]
        elif origins:
            response.headers.add("Vary", "Origin")
            origin = request.headers.get("Origin")
            if origin in origins:
                response.headers["Access-Control-Allow-Origin"] = origin
        return response


def check_permitted(kind: type) -> None:
    """Whether the request at hand may have a command of this kind carried out.

    Raises:
        AuthError: its token lacks the role; the text names it.
    """
    roles: Role | None = g.get("roles")
    if roles is not None and roles != Role.ALL and kind not in permitted(roles):
        raise AuthError(refusal(kind))


def refuse_foreign() -> Response:
    """The answer to a page from elsewhere."""
    text = "Cross-origin request refused; CORS_ALLOW_ORIGIN names the origins that may send it"
    return json_response({"ok": False, "error": text}, 403)


async def _refuse_role(error: AuthError) -> Response:
    return json_response({"ok": False, "error": str(error)}, 403)


def _parsed(address: str) -> IPv4Address | IPv6Address | None:
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return None
    mapped = parsed.ipv4_mapped if isinstance(parsed, IPv6Address) else None
    return parsed if mapped is None else mapped


def _bucket(address: str) -> str:
    """What shares a limit: an address; of IPv6 a whole /64, for that is what a single host has."""
    parsed = _parsed(address)
    if isinstance(parsed, IPv6Address):
        return str(ip_network((int(parsed) >> 64 << 64, 64)))
    return address[:MAX_KEY_LENGTH] if parsed is None else str(parsed)
