"""One try: one POST, and whether its answer counts. No retries, no redirects, no proxies, no cookies.

httpcore is used without httpx on top: what that adds (redirects, proxies from the environment, cookies, decoding) is
what must not happen here.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpcore
import trio

from bunqueue_trio import __version__
from bunqueue_trio.protocol.webhook_urls import DEFAULT_PORTS, WebhookUrl
from bunqueue_trio.server.webhooks.dialing import CheckedBackend, SystemResolver

TRY_TIMEOUT_S = 10.0  # promised: from the look-up of the name to the status of the answer
MAX_CONNECTIONS = 128
MAX_IDLE_CONNECTIONS = 32
IDLE_CONNECTION_S = 4.0  # common servers close an idle connection after 5 s; a POST into that moment is lost
REST_OF_ANSWER_BYTES = 16_384  # read so that the connection can be used again; a longer answer costs it
REST_OF_ANSWER_S = 0.5
NO_CONTENT = 204


class Sender:
    """Sends over a pool of connections; close it.

    Args:
        backend: the network, which decides what may be reached.
        tls: for tests; by default certificates are checked against the usual authorities.
    """

    def __init__(self, backend: httpcore.AsyncNetworkBackend, tls: ssl.SSLContext | None = None) -> None:
        self._backend = backend
        self._tls = tls
        self._pool: httpcore.AsyncConnectionPool | None = None

    async def post(self, url: WebhookUrl, headers: list[tuple[str, str]], body: bytes) -> str | None:
        """Try once.

        Returns:
            None when the receiver has answered with a 2xx within `TRY_TIMEOUT_S`; else what went wrong, in words that
            hold no payload, and of the URL at most the host.

        Cancel: the receiver may have got everything, or nothing.
        """
        with trio.move_on_after(TRY_TIMEOUT_S) as patience:
            try:
                status = await self._post(url, headers, body, patience)
            except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException, OSError) as error:
                return str(error) or type(error).__name__
            return None if 200 <= status < 300 else f"HTTP {status}"
        return f"no answer within {TRY_TIMEOUT_S:g} s"

    async def _post(
        self, url: WebhookUrl, headers: list[tuple[str, str]], body: bytes, patience: trio.CancelScope
    ) -> int:
        pool = await self._open_pool()
        where = httpcore.URL(
            scheme=url.scheme.encode(), host=url.host.encode(), port=url.port, target=url.target.encode()
        )
        async with pool.stream("POST", where, headers=_all_headers(url, headers, body), content=body) as response:
            # The answer is there, in time: what follows must not turn it into a failure.
            patience.deadline = float("inf")
            await _skip_rest(response)
            return response.status

    async def _open_pool(self) -> httpcore.AsyncConnectionPool:
        """The pool, made at the first use: most servers have no webhook, and the authorities take 20 ms to load."""
        if self._tls is None:
            self._tls = await trio.to_thread.run_sync(httpcore.default_ssl_context)
        if self._pool is None:
            self._pool = httpcore.AsyncConnectionPool(
                ssl_context=self._tls,
                network_backend=self._backend,
                max_connections=MAX_CONNECTIONS,
                max_keepalive_connections=MAX_IDLE_CONNECTIONS,
                keepalive_expiry=IDLE_CONNECTION_S,
            )
        return self._pool

    async def aclose(self) -> None:
        """Close every connection. Shielded; takes a second at most."""
        if self._pool is not None:
            with trio.move_on_after(1, shield=True):
                await self._pool.aclose()


@asynccontextmanager
async def open_sender(*, allows_internal: bool) -> AsyncIterator[Sender]:
    """A sender over the real network, closed at the end."""
    backend = CheckedBackend(SystemResolver(), httpcore.TrioBackend(), allows_internal=allows_internal)
    sender = Sender(backend)
    try:
        yield sender
    finally:
        await sender.aclose()


def _all_headers(url: WebhookUrl, headers: list[tuple[str, str]], body: bytes) -> list[tuple[str, str]]:
    host = f"[{url.host}]" if ":" in url.host else url.host
    if url.port != DEFAULT_PORTS[url.scheme]:
        host = f"{host}:{url.port}"
    complete = [("Host", host), *headers, ("Content-Length", str(len(body)))]
    complete += [("User-Agent", f"bunqueue-trio/{__version__}"), ("Accept", "*/*")]
    if url.authorization is not None:
        complete.append(("Authorization", url.authorization))
    return complete


async def _skip_rest(response: httpcore.Response) -> None:
    """Read the answer's body if it is short and comes at once. The status decides, whatever becomes of the rest.

    A body of unknown length is not begun: leaving one half read would leave httpcore's generators to the collector.
    """
    if _announced_bytes(response) > REST_OF_ANSWER_BYTES:
        return
    with trio.move_on_after(REST_OF_ANSWER_S):
        try:
            await response.aread()
        except (httpcore.NetworkError, httpcore.ProtocolError, OSError):
            return


def _announced_bytes(response: httpcore.Response) -> float:
    if response.status == NO_CONTENT:
        return 0
    for name, value in response.headers:
        # h11 has made sure that it is one number of at most 20 digits.
        if name.lower() == b"content-length":
            return int(value)
    return float("inf")
