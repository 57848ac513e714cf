"""Blocking clients of the live streams, for tests against a real process."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from typing import Any, Self

from wsproto import ConnectionType, WSConnection
from wsproto.events import (
    AcceptConnection,
    BytesMessage,
    CloseConnection,
    Message,
    Ping,
    RejectConnection,
    RejectData,
    Request,
    TextMessage,
)

PATIENCE_S = 30.0


Door = int | str | socket.socket
"""A port, the path of a Unix socket, or a connection that is open already."""


def dial(door: Door, *, receive_bytes: int | None = None) -> socket.socket:
    """A connection; with *receive_bytes* the kernel takes no more than about that before it is read."""
    if isinstance(door, socket.socket):
        return door
    sock = socket.socket(socket.AF_INET if isinstance(door, int) else socket.AF_UNIX)
    if receive_bytes is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    sock.settimeout(PATIENCE_S)
    sock.connect(("127.0.0.1", door) if isinstance(door, int) else door)
    return sock


class EventReader:
    """A reader of server-sent events."""

    def __init__(
        self, door: Door, path: str = "/events", *, receive_bytes: int | None = None, headers: Mapping[str, str] = {}
    ) -> None:
        self.socket = dial(door, receive_bytes=receive_bytes)
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self.socket.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n{lines}\r\n".encode())
        self._raw = b""
        self._text = b""
        while b"\r\n\r\n" not in self._raw:
            self._raw += self.socket.recv(65_536)
        head, _, self._raw = self._raw.partition(b"\r\n\r\n")
        self.status = int(head.split()[1])
        self.headers = {
            name.lower(): value.strip() for name, _, value in (x.partition(":") for x in head.decode().split("\r\n"))
        }

    def block(self) -> dict[str, str]:
        """The next block, its fields by name; a comment is under the empty name. ``EOFError`` at the end."""
        while b"\n\n" not in self._text:
            self._text += self._chunk()
        block, _, self._text = self._text.partition(b"\n\n")
        return {name: value.lstrip() for name, _, value in (x.partition(":") for x in block.decode().split("\n"))}

    def event(self, name: str) -> dict[str, Any]:
        """The data of the next event of that name; others are skipped."""
        while (block := self.block()).get("event") != name:
            pass
        data: dict[str, Any] = json.loads(block["data"])
        return data

    def _chunk(self) -> bytes:
        while b"\r\n" not in self._raw or len(self._raw) < self._chunk_end():
            received = self.socket.recv(65_536)
            if not received:
                raise EOFError
            self._raw += received
        start, end = self._raw.index(b"\r\n") + 2, self._chunk_end()
        chunk, self._raw = self._raw[start : end - 2], self._raw[end:]
        if not chunk:
            raise EOFError
        return chunk

    def _chunk_end(self) -> int:
        size, _, _ = self._raw.partition(b"\r\n")
        return len(size) + 2 + int(size, 16) + 2

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave."""
        self.socket.close()


class WebSocketClient:
    """A WebSocket. ``closed`` is the code and the reason with which the server has closed it."""

    def __init__(
        self,
        door: Door,
        path: str = "/ws",
        *,
        headers: Mapping[str, str] = {},
        receive_bytes: int | None = None,
        extensions: Any = (),
        subprotocols: Any = (),
    ) -> None:
        self.socket = dial(door, receive_bytes=receive_bytes)
        self._connection = WSConnection(ConnectionType.CLIENT)
        self._messages: list[Any] = []
        self._partial = ""
        self.accepted: AcceptConnection | None = None
        self.refused: int | None = None
        self.refusal = b""
        self.closed: tuple[int, str | None] | None = None
        self.ping_count = 0
        extra = [(name.encode(), value.encode()) for name, value in headers.items()]
        request = Request(
            host="x", target=path, extra_headers=extra, extensions=list(extensions), subprotocols=list(subprotocols)
        )
        self.socket.sendall(self._connection.send(request))
        while self.accepted is None and self.refused is None:
            self._read()

    def send(self, message: Any) -> None:
        """One message: text or bytes as they are, anything else as JSON."""
        if isinstance(message, bytes):
            self.socket.sendall(self._connection.send(BytesMessage(data=message)))
        else:
            text = message if isinstance(message, str) else json.dumps(message)
            self.socket.sendall(self._connection.send(TextMessage(data=text)))

    def receive(self) -> Any:
        """The next message, decoded; ``EOFError`` once the server has closed."""
        while not self._messages:
            if self.closed is not None:
                raise EOFError
            self._read()
        return self._messages.pop(0)

    def drain(self) -> None:
        """Receive until the server has closed, whichever way."""
        try:
            while True:
                self.receive()
        except (EOFError, ConnectionResetError):
            pass

    def call(self, cmd: str, /, **fields: Any) -> Any:
        """One command; what comes before its reply stays to be received."""
        self.send({"cmd": cmd, **fields, "reqId": "call"})
        before = []
        while not isinstance(message := self.receive(), dict) or message.get("reqId") != "call":
            before.append(message)
        self._messages[:0] = before
        return message

    def _read(self) -> None:
        data = self.socket.recv(65_536)
        self._connection.receive_data(data or None)
        for event in self._connection.events():
            if isinstance(event, AcceptConnection):
                self.accepted = event
            elif isinstance(event, RejectConnection):
                self.refused = event.status_code
            elif isinstance(event, RejectData):
                self.refusal += event.data
            elif isinstance(event, Message):
                self._partial += event.data
                if event.message_finished:
                    self._messages.append(json.loads(self._partial))
                    self._partial = ""
            elif isinstance(event, Ping):
                self.ping_count += 1
            elif isinstance(event, CloseConnection):
                self.closed = (event.code, event.reason)
        if not data and self.closed is None:
            self.closed = (1006, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave without a word."""
        self.socket.close()
