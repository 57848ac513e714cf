"""A TCP connection as the session needs it: read when there is something, write at once if the kernel takes it.

Plain non-blocking calls on the socket, with Trio's readiness waits only where they are needed: a reply to an idle
client costs one system call and no checkpoint.
"""

from __future__ import annotations

import socket
import struct
from contextlib import suppress

import trio

READ_BYTES = 131_072  # one read may bring some 700 small frames: enough to share a flush, too few to stall others
_RESET = struct.pack("ii", 1, 0)


class TcpStream:
    """One accepted connection. Owned by one task; `send_nowait` may be called by whoever runs on the loop."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sock = sock
        self.is_closed = False

    async def receive(self, max_bytes: int = READ_BYTES) -> bytes:
        """Wait for bytes; empty at the end of the stream, or when the peer reset it.

        Cancel: nothing has been read. Always a checkpoint.
        """
        while not self.is_closed:
            try:
                await trio.lowlevel.wait_readable(self._sock)
                return self._sock.recv(max_bytes)
            except BlockingIOError:
                continue
            except (OSError, trio.ClosedResourceError):
                break
        return b""

    def receive_nowait(self, max_bytes: int = READ_BYTES) -> bytes | None:
        """The bytes that are there; None when there are none yet, empty at the end of the stream."""
        try:
            return self._sock.recv(max_bytes)
        except BlockingIOError:
            return None
        except OSError:
            return b""

    def send_nowait(self, data: bytes | bytearray | memoryview) -> int:
        """Write as much as the kernel takes now; returns how many bytes that was.

        Raises:
            OSError: the connection is gone.
        """
        try:
            return self._sock.send(data)
        except BlockingIOError:
            return 0

    async def wait_writable(self) -> None:
        """Wait until `send_nowait` will take something."""
        await trio.lowlevel.wait_writable(self._sock)

    def close(self) -> None:
        """Close in order: what was written still arrives."""
        self._close()

    def abort(self) -> None:
        """Cut the connection with a reset; what was not taken yet is lost."""
        if not self.is_closed:
            with suppress(OSError):  # gone already
                self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            self._close()

    def _close(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            trio.lowlevel.notify_closing(self._sock)
            self._sock.close()
