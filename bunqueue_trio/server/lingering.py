"""Whether to look for the next request at once instead of going to sleep for it.

A client that sends one request after the other answers a reply within some 50 to 120 µs. Falling asleep for it and
being woken costs about as much, and leaves the caches cold for the work itself. So a connection that is the only busy
one looks again for a moment before it waits. It stops doing so as soon as that does not pay, and it yields to the event
loop after a few turns in any case (D-011).
"""

from __future__ import annotations

from time import perf_counter

from bunqueue_trio.server.stream import TcpStream

LINGER_S = 150e-6  # a Python client on the same machine needs 50 to 120 µs from a reply to its next request
TURNS_WITHOUT_CHECKPOINT = 8  # about a millisecond at the most before everybody else gets a turn
TRUST_MAX = 4
TURNS_UNTIL_NEXT_TRY = 64


class Lingering:
    """Decides and does it, for one connection."""

    __slots__ = ("_streak", "_trust", "_turns_off")

    def __init__(self) -> None:
        self._trust = 1
        self._turns_off = 0
        self._streak = 0

    @property
    def owes_checkpoint(self) -> bool:
        """True after so many turns that everybody else is due for one before the next `try_receive`."""
        return self._streak >= TURNS_WITHOUT_CHECKPOINT

    def owe_checkpoint(self) -> None:
        """The turn has taken long: everybody else is due at once."""
        self._streak = TURNS_WITHOUT_CHECKPOINT

    def try_receive(self, stream: TcpStream, max_bytes: int) -> bytes | None:
        """The next bytes if they come within a moment; None: wait for them properly.

        Not a checkpoint. Blocks the loop for `LINGER_S` at the most.
        """
        if self._trust <= 0:
            self._turns_off += 1
            if self._turns_off < TURNS_UNTIL_NEXT_TRY:
                return None
            self._trust, self._turns_off = 1, 0
        self._streak = 1 if self.owes_checkpoint else self._streak + 1
        until = perf_counter() + LINGER_S
        while (data := stream.receive_nowait(max_bytes)) is None:
            if perf_counter() > until:
                self._trust -= 1
                self._streak = 0
                return None
        if self._trust < TRUST_MAX:
            self._trust += 1
        return data
