"""How long pushes, pulls and ACKs take, as histograms over the buckets of the wire.

A duration is what the client waits for inside the server: from the moment its commands were decoded until the replies
of its turn leave; for what is promised (ACK, durable push) until its commit; for a pull that was parked, the time it
was parked. Commands that one read brought share their turn, and so its duration. Waiting behind an earlier command of
the same connection and refused commands are not counted; of pulls only those that delivered are, of ACKs the single
ones.

Source: HTTP, "GET /prometheus"; commands, "Monitoring and dashboards".
"""

from __future__ import annotations

from collections import Counter

from bunqueue_trio.model.commands import Ack, Pull, PullBatch, Push, PushBatch, PushFlow
from bunqueue_trio.server.histograms import Histogram

BOUNDS_MS = (0.1, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10_000)
SINGLES_MAX = 256  # about 0.1 ms to take them all in


class Latencies:
    """The three histograms, and the commands that have been executed since the last `turn_ended`.

    ``executed`` and ``promised`` take the type of each command that was not refused, the latter when its reply waits
    for a commit: an append is all that a command on the hot path pays.
    """

    def __init__(self) -> None:
        self._push, self._pull, self._ack = (Histogram(BOUNDS_MS) for _ in range(3))
        self.executed: list[type] = []
        self.promised: list[type] = []
        self._singles: list[tuple[type, float]] = []
        self._by_kind: dict[type, Histogram] = {
            Push: self._push,
            PushBatch: self._push,
            PushFlow: self._push,
            Pull: self._pull,
            PullBatch: self._pull,
            Ack: self._ack,
        }

    @property
    def push(self) -> Histogram:
        """Durations of PUSH, PUSHB and PUSHF."""
        self._fold()
        return self._push

    @property
    def pull(self) -> Histogram:
        """Durations of PULL and PULLB."""
        self._fold()
        return self._pull

    @property
    def ack(self) -> Histogram:
        """Durations of ACK."""
        self._fold()
        return self._ack

    def turn_ended(self, duration_ms: float) -> list[type]:
        """Note what the turn has executed. Returns what it has promised; that is measured when it has committed."""
        executed = self.executed
        if len(executed) == 1:
            # A client that waits for each reply is kept waiting by whatever follows its reply: put it off.
            self._singles.append((executed.pop(), duration_ms))
            if len(self._singles) >= SINGLES_MAX:
                self._fold()
        elif executed:
            self.observe(executed, duration_ms)
            executed.clear()
        if not self.promised:
            return []
        promised = self.promised.copy()
        self.promised.clear()
        return promised

    def _fold(self) -> None:
        """Take turns of one command each into the histograms."""
        singles, self._singles = self._singles, []
        for kind, duration_ms in singles:
            histogram = self._by_kind.get(kind)
            if histogram is not None:
                histogram.observe(duration_ms)

    def observe(self, kinds: list[type], duration_ms: float) -> None:
        """Note that commands of these types have taken so long. Cost: 0.5 µs where they are all alike, else 3 µs; and
        0.01 to 0.05 µs per command.
        """
        first, count = kinds[0], len(kinds)
        if count == 1 or kinds.count(first) == count:
            histogram = self._by_kind.get(first)
            if histogram is not None:
                histogram.observe(duration_ms, count)
            return
        for kind, times in Counter(kinds).items():
            histogram = self._by_kind.get(kind)
            if histogram is not None:
                histogram.observe(duration_ms, times)
