"""A relay between clients and a server that can vanish, hold back bytes, or cut: a network that fails."""

from __future__ import annotations

import selectors
import socket
import struct
import threading
from dataclasses import dataclass, field
from typing import Self

CHUNK = 65_536


@dataclass(eq=False)
class _End:
    """One side of a relayed connection."""

    socket: socket.socket
    is_client: bool
    other: _End | None = field(default=None, repr=False)


class Proxy:
    """Relays every connection to *port* of this machine.

    - `vanish`: from now on nothing gets through in either direction, and nobody is told.
    - `cut`: connections are reset on both sides; new ones are relayed again.
    - `pass_bytes`: only so many further bytes of the clients get through, then it vanishes.
    """

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._selector = selectors.DefaultSelector()
        self._wake_up, self._woken = socket.socketpair()
        self._lock = threading.Lock()
        self._has_vanished = False
        self._allowance: int | None = None
        self._ends: list[_End] = []
        self._is_closing = False
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._relay, daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._is_closing = True
        self._wake_up.send(b"x")
        self._thread.join(10)
        with self._lock:
            self._drop_all()
        for one in (self._listener, self._wake_up, self._woken, self._selector):
            one.close()

    def vanish(self) -> None:
        """Let nothing through any more."""
        with self._lock:
            self._has_vanished = True

    def pass_bytes(self, count: int) -> None:
        """Let so many bytes of clients through, then vanish."""
        with self._lock:
            self._allowance = count

    def cut(self) -> None:
        """Reset all connections, on both sides."""
        with self._lock:
            self._drop_all()
            self._has_vanished = False
            self._allowance = None

    def _drop_all(self) -> None:
        for end in self._ends:
            self._forget(end)
        self._ends.clear()

    def _forget(self, end: _End) -> None:
        if end.socket.fileno() != -1:
            self._selector.unregister(end.socket)
            end.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            end.socket.close()

    def _relay(self) -> None:
        while not self._is_closing:
            for key, _ in self._selector.select():
                with self._lock:
                    if key.fileobj is self._listener:
                        self._accept()
                    elif isinstance(key.data, _End) and key.data.socket.fileno() != -1:
                        self._carry(key.data)

    def _accept(self) -> None:
        near, _ = self._listener.accept()
        far = socket.create_connection(("127.0.0.1", self._target))
        client, server = _End(near, is_client=True), _End(far, is_client=False)
        client.other, server.other = server, client
        for end in (client, server):
            end.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._selector.register(end.socket, selectors.EVENT_READ, end)
            self._ends.append(end)

    def _carry(self, end: _End) -> None:
        try:
            data = end.socket.recv(CHUNK)
        except ConnectionError:
            data = b""
        if data and end.is_client and self._allowance is not None:
            self._has_vanished = self._has_vanished or len(data) > self._allowance
            data, self._allowance = data[: self._allowance], max(0, self._allowance - len(data))
            self._send(end, data)
        elif data and not self._has_vanished:
            self._send(end, data)
        elif not data:
            self._part(end)

    def _send(self, end: _End, data: bytes) -> None:
        assert end.other is not None
        try:
            end.other.socket.sendall(data)
        except OSError:
            self._part(end)

    def _part(self, end: _End) -> None:
        """A side has closed: so does the other one, unless the network is gone."""
        assert end.other is not None
        self._forget(end)
        if not self._has_vanished:
            self._forget(end.other)
