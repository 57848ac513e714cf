"""Lets those who have events to send go one after the other, so that nobody else waits for all of them at once.

An event for a thousand readers makes a thousand tasks runnable, and the loop would look at nothing else until each has
written to its socket: a tenth of a second. Here they go a few at a time, and the loop rests from them in between; what
comes up meanwhile leaves in the same write.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

import trio

AT_ONCE = 8  # writes of 0.1 ms each: under a millisecond in a row
STEPS = 5  # checkpoints on the way of a write
REST_FACTOR = 2.0  # events get a third of the loop, at most
SHORTEST_REST_MS = 1.0
LONGEST_REST_MS = 50.0


class Member(Protocol):
    """Who has something to send."""

    def go(self) -> None:
        """It is your turn. Must not block."""
        ...


class Pace:
    """A queue of those who want to send, first come, first served.

    Args:
        stopwatch_ms: real time, to measure how long they take.
    """

    def __init__(self, stopwatch_ms: Callable[[], float]) -> None:
        self._stopwatch_ms = stopwatch_ms
        self._queue: deque[Member] = deque()
        self._wanted = trio.Event()

    def __len__(self) -> int:
        """How many wait for their turn."""
        return len(self._queue)

    def want(self, member: Member) -> None:
        """Call ``member.go`` when it is its turn; once per call."""
        self._queue.append(member)
        self._wanted.set()

    async def run(self) -> None:
        """Give turns. Returns only when cancelled."""
        queue = self._queue
        while True:
            await self._wanted.wait()
            started_ms = self._stopwatch_ms()
            for _ in range(min(AT_ONCE, len(queue))):
                queue.popleft().go()
            if not queue:
                self._wanted = trio.Event()
            for _ in range(STEPS):
                await trio.lowlevel.checkpoint()
            rest_ms = (self._stopwatch_ms() - started_ms) * REST_FACTOR
            await trio.sleep(min(max(rest_ms, SHORTEST_REST_MS), LONGEST_REST_MS) / 1000)
