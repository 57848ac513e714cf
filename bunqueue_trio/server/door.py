"""What the doors of the server have in common: they accept, count, and turn away whoever is one too many."""

from __future__ import annotations

import errno
import socket
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import Generic, TypeVar

import trio
from msgspec import Struct

from bunqueue_trio.logs import get_logger

S = TypeVar("S")

BACKLOG = 1_024
OUT_OF_DESCRIPTORS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
ACCEPT_PAUSE_S = 0.25  # without descriptors: four tries a second cost nothing and notice a free one at once
COMPLAIN_EVERY_S = 10.0


class Tally(Struct, gc=False):
    """How many connections of a door are open, and how many it has turned away since start."""

    connection_count: int = 0
    refused_count: int = 0


class Door(ABC, Generic[S]):
    """Takes connections from listening sockets, up to a limit.

    Args:
        name: the component of the log.
        sessions: where connections live.
        limit: so many may be open at a time.
        farewell: what somebody beyond that is sent; empty: nothing.
    """

    def __init__(
        self, name: str, sessions: trio.Nursery, limit: int, farewell: bytes, *, tally: Tally | None = None
    ) -> None:
        self.tally = Tally() if tally is None else tally
        self._sessions = sessions
        self._limit = limit
        self._farewell = farewell
        self._log = get_logger(name)
        self._complained_at_s = float("-inf")

    @abstractmethod
    def open_stream(self, sock: socket.socket) -> S:
        """Set up an accepted socket.

        Raises:
            OSError: the peer has gone again already.
        """

    @abstractmethod
    async def serve(self, stream: S) -> None:
        """See a connection through to its end, and close it."""

    async def accept_from(self, listener: trio.SocketListener) -> None:
        """Accept until cancelled, and close the listener then."""
        async with listener:
            while True:
                try:
                    accepted = await listener.socket.accept()
                except OSError as error:
                    await self._pause_after(error)
                    continue
                self.take(socket.socket(fileno=accepted[0].detach()))

    def take(self, sock: socket.socket) -> None:
        """Serve an accepted socket, or turn it away."""
        if self.tally.connection_count >= self._limit:
            self.tally.refused_count += 1
            self._complain("Too many connections", limit=self._limit)
            self._turn_away(sock)
            return
        try:
            stream = self.open_stream(sock)
        except OSError:
            sock.close()
            return
        self.tally.connection_count += 1
        self._sessions.start_soon(self._serve, stream)

    async def _serve(self, stream: S) -> None:
        try:
            await self.serve(stream)
        finally:
            self.tally.connection_count -= 1

    def _turn_away(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        if self._farewell:
            with suppress(OSError):  # it did not wait for the answer
                sock.send(self._farewell)
        sock.close()

    async def _pause_after(self, error: OSError) -> None:
        """Out of descriptors or memory: old clients go on; new ones are looked at again soon (T5)."""
        if error.errno not in OUT_OF_DESCRIPTORS:
            await trio.lowlevel.checkpoint()
            return
        self._complain("Cannot accept connections", error=str(error))
        await trio.sleep(ACCEPT_PAUSE_S)

    def _complain(self, message: str, **details: object) -> None:
        now_s = trio.current_time()
        if now_s >= self._complained_at_s + COMPLAIN_EVERY_S:
            self._complained_at_s = now_s
            self._log.warning(message, **details)
