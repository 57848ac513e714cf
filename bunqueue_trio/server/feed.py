"""What a reader of server-sent events has still to receive.

Source: HTTP, "Server-Sent Events"; D-044.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import trio

from bunqueue_trio.server.pace import Pace
from bunqueue_trio.server.roles import Role

MAX_BUFFERED = 1_000  # pieces that one reader may be behind; the same bytes for all readers
MAX_BUFFERED_BYTES = 1 << 20
PIECE_BYTES = 65_536  # what is written at once


class Reader:
    """One stream: pieces of text, in order, within a bound.

    A reader that lets them pile up is closed and its connection cut, never waited for.

    Args:
        queue: the only queue it watches, None for all.
        roles: what its token allows.
        cut: ends its connection, also in the middle of a write.
        backlog: what it gets first; takes none of its room.
    """

    def __init__(
        self, queue: str | None, roles: Role, pace: Pace, cut: Callable[[], None], backlog: Sequence[bytes] = ()
    ) -> None:
        self.queue = queue
        self.roles = roles
        self.is_closed = False
        self.was_too_slow = False
        self.writing_since_s: float | None = None
        self._pace = pace
        self.cut = cut
        self._pieces = deque(backlog)
        self._bytes = sum(map(len, backlog))
        self._max_count = MAX_BUFFERED + len(backlog)
        self._max_bytes = MAX_BUFFERED_BYTES + self._bytes
        self._turn = trio.Event()
        self._is_waiting = False

    def offer(self, piece: bytes) -> None:
        """Send *piece*, or end the stream if there is no room for it."""
        if self.is_closed:
            return
        if len(self._pieces) >= self._max_count or self._bytes + len(piece) > self._max_bytes:
            self.drop()
            return
        self._pieces.append(piece)
        self._bytes += len(piece)
        if self._is_waiting and len(self._pieces) == 1:
            self._pace.want(self)

    def drop(self) -> None:
        """It is too slow."""
        self.was_too_slow = True
        self.close()
        self.cut()

    def close(self) -> None:
        """The stream ends; what is buffered is dropped."""
        self.is_closed = True
        self._pieces.clear()
        self._bytes = 0
        self._turn.set()

    def go(self) -> None:
        """`Pace` says that it may send."""
        self._turn.set()

    async def next(self) -> bytes:
        """What to write next; empty once closed.

        Cancel: nothing has been taken. Always a checkpoint.
        """
        self.writing_since_s = None
        if not self.is_closed:
            self._turn = trio.Event()
            self._is_waiting = True
            if self._pieces:
                self._pace.want(self)
        try:
            await self._turn.wait()
        finally:
            self._is_waiting = False
        self.writing_since_s = trio.current_time()
        return self._take()

    def _take(self) -> bytes:
        taken: list[bytes] = []
        room = PIECE_BYTES
        while self._pieces and (not taken or len(self._pieces[0]) <= room):
            piece = self._pieces.popleft()
            self._bytes -= len(piece)
            room -= len(piece)
            taken.append(piece)
        return b"".join(taken)
