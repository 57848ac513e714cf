"""The page at ``/ui``: files of the package, kept in memory, served to whoever asks.

It holds no data, so it needs no token; what it shows it asks for like any other client. It has relative addresses
only, and ``/ui`` leads to ``/ui/`` by one too: so it works behind any prefix that a proxy takes away.
"""

from __future__ import annotations

from hashlib import sha256
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Final

from msgspec import Struct
from quart import Response, request
from quart_trio import QuartTrio

from bunqueue_trio.web.paths import segments_of
from bunqueue_trio.web.probes import json_response

SAFE_METHODS: Final = ("GET", "HEAD")
TYPES: Final = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
    "txt": "text/plain; charset=utf-8",
}
# Names and data of jobs are somebody else's text. The page never makes markup of a text, and should it do so by
# mistake, the browser lets nothing in it run (trusted types: will not even make the markup).
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",  # kept, but asked for again: a new server has a new page at once
}


class PageFile(Struct, frozen=True, gc=False):
    """One file of the page."""

    content: bytes
    content_type: str
    etag: str


class Page:
    """Serves the page. Everything is read once, at start; nothing of a request ever becomes a path on the disk."""

    def __init__(self) -> None:
        self.files = _read(files("bunqueue_trio.web") / "ui")
        self.files[""] = self.files["index.html"]

    def add_to(self, app: QuartTrio) -> None:
        """Answer ``/ui`` and what lies below it."""
        app.before_request(self._answer)

    async def _answer(self) -> Response | None:
        segments = segments_of(request.scope)
        if segments[0] != "ui" or request.method not in SAFE_METHODS:
            return None
        if len(segments) == 1:
            return Response(b"", status=302, headers={**HEADERS, "Location": "ui/"})
        file = self.files.get("/".join(segments[1:]))
        if file is None:
            return json_response({"ok": False, "error": "Not found"}, 404)
        response = Response(file.content, content_type=file.content_type, headers=HEADERS)
        if request.if_none_match.contains_weak(file.etag):
            response = Response(b"", status=304, headers=HEADERS)
        response.set_etag(file.etag)
        return response


def _read(directory: Traversable, prefix: str = "") -> dict[str, PageFile]:
    """All files that have a type, by their path below the page."""
    found: dict[str, PageFile] = {}
    for entry in directory.iterdir():
        if entry.is_dir():
            found.update(_read(entry, f"{prefix}{entry.name}/"))
        elif content_type := TYPES.get(entry.name.rpartition(".")[2]):
            content = entry.read_bytes()
            found[prefix + entry.name] = PageFile(content, content_type, sha256(content).hexdigest()[:20])
    return found
