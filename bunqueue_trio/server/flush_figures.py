"""How long commits take and how many rows they carry."""

from __future__ import annotations

from bunqueue_trio.server.histograms import Histogram

DURATIONS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
ROWS = (1, 2, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 100_000)


class FlushFigures:
    """``durations`` in s and ``rows`` of flushes that succeeded, and how many have failed."""

    __slots__ = ("durations", "failed_count", "rows")

    def __init__(self) -> None:
        self.durations = Histogram(DURATIONS_S)
        self.rows = Histogram(ROWS)
        self.failed_count = 0

    def succeeded(self, row_count: int, duration_ms: float) -> None:
        """A transaction has committed."""
        self.rows.observe(row_count)
        self.durations.observe(duration_ms / 1000)
