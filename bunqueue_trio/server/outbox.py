"""What a client has still to receive: written at once when the kernel takes it, else kept in order, within a budget."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import trio

from bunqueue_trio.server.stream import TcpStream


class Outbox:
    """The only writer of one stream.

    A reader that lets more than ``max_bytes`` pile up is dropped, never waited for: ``on_overflow`` is called once, the
    stream is reset and the rest forgotten.
    """

    def __init__(
        self, stream: TcpStream, max_bytes: int, on_overflow: Callable[[], None], nursery: trio.Nursery
    ) -> None:
        """
        Args:
            nursery: where the task runs that writes what the kernel did not take at once; mostly there is none.
        """
        self._stream = stream
        self.max_bytes = max_bytes
        self._on_overflow = on_overflow
        self._nursery = nursery
        self._pending: deque[memoryview] = deque()
        self._drained: trio.Event | None = None
        self.pending_bytes = 0

    def send(self, data: bytes | bytearray) -> None:
        """Send, now or as soon as the kernel takes it. Never blocks; on a dead stream nothing happens."""
        if self._stream.is_closed:
            return
        sent = 0
        if not self._pending:
            try:
                sent = self._stream.send_nowait(data)
            except OSError:
                self._stream.abort()
                return
            if sent == len(data):
                return
        view = memoryview(data)[sent:]
        self._pending.append(view)
        self.pending_bytes += len(view)
        if 0 < self.max_bytes < self.pending_bytes:
            self._give_up()
        elif self._drained is None:
            self._drained = trio.Event()
            self._nursery.start_soon(self._drain, self._drained)

    async def wait_drained(self) -> None:
        """Wait until everything has been handed to the kernel, or the stream is closed."""
        while self._drained is not None:
            await self._drained.wait()

    async def _drain(self, drained: trio.Event) -> None:
        try:
            while self._pending and not self._stream.is_closed:
                await self._stream.wait_writable()
                if not self._pending:  # given up just when the stream became writable
                    break
                self._took(self._stream.send_nowait(self._pending[0]))
        except (OSError, trio.ClosedResourceError):
            self._stream.abort()
        finally:
            self._drained = None
            drained.set()

    def _took(self, sent: int) -> None:
        self.pending_bytes -= sent
        head = self._pending[0]
        if sent == len(head):
            self._pending.popleft()
        else:
            self._pending[0] = head[sent:]

    def _give_up(self) -> None:
        self._pending.clear()
        self.pending_bytes = 0
        self._on_overflow()
        self._stream.abort()
