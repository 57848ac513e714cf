"""Jobs per second, smoothed over the readings of those who look.

Source: commands, "Monitoring and dashboards"; HTTP, "GET /stats".
"""

from __future__ import annotations

from bunqueue_trio.engine.holdings import Totals
from bunqueue_trio.model.instant import Now

NEWEST_SHARE = 0.3
SHORTEST_SAMPLE_MS = 100  # whoever asks again sooner gets the same answer


class Rates:
    """Rates of pushes, deliveries, completions and final failures.

    Each reading closes a sample: the count since the last reading by the time since then, smoothed as 0.3 new and 0.7
    old. The first that is not 0 counts whole.
    """

    def __init__(self, totals: Totals, now: Now) -> None:
        self._totals = totals
        self._read_mono_ms = now.mono_ms
        self._counts = _counts(totals)
        self._per_s = [0.0] * len(self._counts)

    def read(self, now: Now) -> dict[str, float]:
        """Shape: ``{"pushPerSec", "pullPerSec", "completePerSec", "failPerSec"}``, two decimals."""
        elapsed_ms = now.mono_ms - self._read_mono_ms
        if elapsed_ms >= SHORTEST_SAMPLE_MS:
            self._read_mono_ms = now.mono_ms
            counts = _counts(self._totals)
            for index, (new, old) in enumerate(zip(counts, self._counts, strict=True)):
                sample = (new - old) * 1000 / elapsed_ms
                rate = self._per_s[index]
                self._per_s[index] = NEWEST_SHARE * sample + (1 - NEWEST_SHARE) * rate if rate else sample
            self._counts = counts
        names = ("pushPerSec", "pullPerSec", "completePerSec", "failPerSec")
        return {name: round(rate, 2) for name, rate in zip(names, self._per_s, strict=True)}


def _counts(totals: Totals) -> tuple[int, int, int, int]:
    return totals.pushed, totals.pulled, totals.completed, totals.failed
