"""Has everything gone again? Compares what the server holds after a suite with what it held before.

Invariant: once the work is done and the clients are gone, every collection of the server has its former size, no object
of its types is left over, and no descriptor is open that was not. Caches with a cap may stay filled, and heaps that are
swept from some size on may keep less than that.

`RssWatch` is for memory: rounds of the same work must not need more and more of it. The first rounds are left out, for
an allocator keeps what it has once needed.

Source: R154, R166.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Container, Mapping
from typing import Any, Final
from weakref import WeakKeyDictionary

from bunqueue_trio.engine.holdings import DUE_SWEPT_FROM, TIMERS_SWEPT_FROM
from bunqueue_trio.server.overviews import HEAP_PAUSE_S
from tests.chaos.bounds import BOUNDS, MIB
from tests.process import PATIENCE_S, ServerProcess

CAPPED: Final = frozenset({"history", "finishedIds", "logs", "replay"})
"""Caches: what they may grow to is tested elsewhere, that they do not grow beyond it in the uptime suite."""
SWEPT: Final = {
    "timers": TIMERS_SWEPT_FROM,
    "due": DUE_SWEPT_FROM,
    "lettersDue": DUE_SWEPT_FROM,
    "pull.deadlines": 1_000,
    "jobWait.deadlines": 1_000,
    "queue.ready": 64,
    "queue.delayed": 64,
    "queue.listed": 64,
    "queue.blocks": 1,
    "queue.timed": 64,
}
"""Heaps and lists with entries that stand for nothing: so many may be left."""
TYPES_LEFT: Final = 8
"""So many objects of a type may be left: of whatever is under way when we look."""

_looked_at_s: WeakKeyDictionary[ServerProcess, float] = WeakKeyDictionary()


class Baseline:
    """What a server held at one moment."""

    def __init__(self, stats: Mapping[str, Any], descriptor_count: int) -> None:
        self.internals: dict[str, int] = stats["internals"]
        self.own_types: dict[str, int] = stats["ownTypes"]
        self.descriptor_count = descriptor_count

    def left_over(self, now: Baseline, *, but: Container[str] = ()) -> dict[str, tuple[int, int]]:
        """What there is more of in *now*, before and after, except what is named in *but*."""
        left = {}
        for name, count in now.internals.items():
            before = self.internals.get(name, 0)
            if name not in CAPPED and name not in but and count > before + SWEPT.get(name, 0):
                left[name] = (before, count)
        for name, count in now.own_types.items():
            before = self.own_types.get(name, 0)
            if name not in but and count > before + TYPES_LEFT:
                left[name] = (before, count)
        if now.descriptor_count > self.descriptor_count + TYPES_LEFT:
            left["descriptors"] = (self.descriptor_count, now.descriptor_count)
        return left


def baseline(server: ServerProcess, *, token: str | None = None) -> Baseline:
    """What *server* holds now. Take it before the work, after one round of it: what is made once is no leak."""
    return Baseline(heapstats(server, token=token), server.descriptor_count())


def assert_back_at(
    server: ServerProcess,
    before: Baseline,
    *,
    but: Container[str] = (),
    token: str | None = None,
    timeout_s: float = PATIENCE_S,
) -> None:
    """Wait until nothing is left over.

    Args:
        but: collections or types that the suite leaves something in on purpose.
    Raises:
        AssertionError: something stays; it names what, with the counts before and after.
    """
    deadline_s = time.monotonic() + timeout_s
    while left := before.left_over(baseline(server, token=token), but=but):
        assert time.monotonic() < deadline_s, f"left over, before and after: {left}"


def heapstats(server: ServerProcess, *, token: str | None = None) -> dict[str, Any]:
    """A fresh look at what the server holds. It shows a look of the last second again, so we let that pass."""
    time.sleep(max(0.0, _looked_at_s.get(server, 0.0) + HEAP_PAUSE_S + 0.05 - time.monotonic()))
    status, body = server.request(
        "GET", "/heapstats", headers={} if token is None else {"Authorization": f"Bearer {token}"}
    )
    _looked_at_s[server] = time.monotonic()
    assert status == 200, body
    stats: dict[str, Any] = json.loads(body)
    return stats


class RssWatch:
    """Resident memory of a server, from round to round.

    Args:
        warm_up: so many rounds do not count.
    """

    def __init__(self, server: ServerProcess, *, warm_up: int = 2) -> None:
        self._server = server
        self._warm_up = warm_up
        self.samples: list[int] = []

    def note(self) -> None:
        """A round is over."""
        self.samples.append(self._server.rss_bytes())

    @property
    def growth_bytes(self) -> float:
        """How much more the last third of the rounds needed than the first third after the warm-up."""
        counted = self.samples[self._warm_up :]
        third = max(1, len(counted) // 3)
        return statistics.median(counted[-third:]) - statistics.median(counted[:third])

    def assert_flat(self, max_growth_bytes: float = BOUNDS.rss_growth_bytes) -> None:
        """
        Raises:
            AssertionError: memory grew with the rounds, or was above the ceiling.
        """
        shown = [f"{sample / MIB:.0f}" for sample in self.samples]
        assert len(self.samples) > self._warm_up + 1, "too few rounds to say anything"
        assert self.growth_bytes <= max_growth_bytes, f"resident memory after each round, MiB: {shown}"
        assert max(self.samples) <= BOUNDS.rss_bytes, f"resident memory after each round, MiB: {shown}"
