"""The way of a response to its client, and what happens when it does not get there."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import trio
from hypercorn.typing import ASGISendCallable, ASGISendEvent
from quart import Request
from quart_trio.asgi import TrioASGIHTTPConnection

from bunqueue_trio.web.transport import carry, with_known_path

T = TypeVar("T")

LARGE_BYTES = 262_144  # some ten thousand values: a few milliseconds
LAST_PIECE_S = 5.0  # so long may a client take to read the end of its answer
_HANDED_OVER = "bunqueue_trio.handed_over"


async def off_loop(size_bytes: int, convert: Callable[[], T]) -> T:
    """What *convert* makes of so many bytes; of many in a thread, so that nobody waits for it."""
    if size_bytes <= LARGE_BYTES:
        return convert()
    return await trio.to_thread.run_sync(convert)


class Undelivered(Protocol):
    """What a response carries that must not be lost with it."""

    def keep(self) -> None:
        """The response is on its way."""
        ...

    def give_back(self) -> None:
        """The client has gone without it."""
        ...


def hand_over(scope: Any, content: Undelivered) -> None:
    """Tie *content* to the response to the request of this scope."""
    scope[_HANDED_OVER] = content


class WholeResponses(TrioASGIHTTPConnection):
    """Lets the last piece of a response pass whole, and gives back what a response carried that could not be sent.

    Cancel: Hypercorn ends a response by telling the application that the client is gone, upon which Quart-Trio cancels
    the request, and with it the very call of Hypercorn that would go on to close the connection or to start the timer
    of an idle one. So each connection would stay open for good.
    """

    def _create_request_from_scope(self, send: ASGISendCallable) -> Request:
        carry(self.scope, send)
        return with_known_path(self.scope, lambda: super(WholeResponses, self)._create_request_from_scope(send))

    async def handle_request(  # type: ignore[override]  # Quart-Trio's own signature, not that of Quart
        self, nursery: trio.Nursery, request: Request, send: ASGISendCallable
    ) -> None:
        """Answer *request*, with the end of the answer shielded from cancellation."""
        is_sent = False

        async def send_whole(message: ASGISendEvent) -> None:
            nonlocal is_sent
            is_last = message["type"] == "http.response.body" and not message.get("more_body", False)
            if is_last:
                await trio.lowlevel.checkpoint_if_cancelled()  # the client may have gone already
            with trio.move_on_after(LAST_PIECE_S if is_last else math.inf, shield=is_last) as patience:
                await send(message)
            is_sent = is_sent or (is_last and not patience.cancelled_caught)

        try:
            await super().handle_request(nursery, request, send_whole)
        finally:
            scope: Any = self.scope
            content: Undelivered | None = scope.pop(_HANDED_OVER, None)
            if content is not None:
                content.keep() if is_sent else content.give_back()
