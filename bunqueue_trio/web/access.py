"""Who may use the routes that change or show jobs: whoever presents one of the tokens."""

import hmac

from quart import Response, g, request

from bunqueue_trio.web.probes import json_response


class Access:
    """Checks the request at hand.

    Args:
        tokens: one of them must be presented as ``Authorization: Bearer <token>``; empty: nobody has to.
    """

    def __init__(self, tokens: tuple[str, ...]) -> None:
        self._tokens = tuple(token.encode() for token in tokens)

    @property
    def is_granted(self) -> bool:
        """Whether the request may go on. Who has passed the gate has shown a token there, of whatever role."""
        if not self._tokens or g.get("roles") is not None:
            return True
        given = request.headers.get("Authorization", "").replace("Bearer ", "", 1).encode("utf-8", "surrogateescape")
        return any([hmac.compare_digest(given, token) for token in self._tokens])


def unauthorized() -> Response:
    """The answer to whoever presents none."""
    return json_response({"ok": False, "error": "Unauthorized"}, 401)
