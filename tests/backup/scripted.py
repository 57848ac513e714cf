"""A small S3 server on loopback that answers by script and notes what it was asked."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from msgspec import Struct


class Seen(Struct):
    """One request. ``at_s`` is on the monotonic clock, when its headers had come."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    at_s: float


class Answer(Struct):
    """What to do with a request: answer, or ``close`` without one, or ``hang`` until the end of the server."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = {}
    close: bool = False
    hang: bool = False
    trickle: bool = False
    """Send the headers of an answer a byte at a time, for ever."""


def error(status: int, code: str, message: str) -> Answer:
    """An error as S3 words it."""
    body = f'<?xml version="1.0"?><Error><Code>{code}</Code><Message>{message}</Message></Error>'
    return Answer(status, body.encode(), {"Content-Type": "application/xml"})


class Scripted:
    """Answers with what *script* makes of the request and its number, from 0."""

    def __init__(self, script: Callable[[Seen, int], Answer]) -> None:
        self.seen: list[Seen] = []
        self.script = script
        self.has_ended = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_one_request(self) -> None:
                try:
                    super().handle_one_request()
                except OSError:
                    self.close_connection = True

            def _answer(self) -> None:
                at_s = time.monotonic()
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                seen = Seen(self.command, self.path, dict(self.headers.items()), body, at_s)
                number = len(outer.seen)
                outer.seen.append(seen)
                answer = outer.script(seen, number)
                if answer.trickle:
                    while not outer.has_ended.wait(0.02):
                        self.wfile.write(b"H")
                if answer.hang:
                    outer.has_ended.wait()
                if answer.close or answer.hang or answer.trickle:
                    self.close_connection = True
                    return
                self.send_response(answer.status)
                for name, value in {"Content-Length": str(len(answer.body)), **answer.headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(answer.body)

            do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = _answer

            def log_message(self, *_args: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            block_on_close = False

        self._server = Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @contextmanager
    def running(self) -> Iterator[Scripted]:
        """Serve inside."""
        self._thread.start()
        try:
            yield self
        finally:
            self.has_ended.set()
            self._server.shutdown()
            self._server.server_close()
            self._thread.join()
