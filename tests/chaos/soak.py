"""How long the suites that are driven by time run: a few seconds, or as long as ``SOAK`` says."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping

UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


class Soak:
    """The length of a run. *seconds* is None for the short form, in which each suite has a length of its own."""

    def __init__(self, seconds: float | None) -> None:
        self.seconds = seconds

    def duration_s(self, short_s: float) -> float:
        """How long to go on; *short_s* if nothing else was asked for."""
        return short_s if self.seconds is None else self.seconds

    def rounds(self, least: int) -> Iterator[int]:
        """Numbers from 0: *least* of them, and more until the time is over."""
        began = time.monotonic()
        number = 0
        while number < least or time.monotonic() - began < (self.seconds or 0):
            yield number
            number += 1


def parse_soak(environment: Mapping[str, str]) -> Soak:
    """Read ``SOAK`` (``30s``, ``10m``, ``24h``, ``2d``; a bare number is seconds) or ``SOAK_SECONDS``.

    Raises:
        ValueError: neither a number nor one of these.
    """
    text = (environment.get("SOAK") or environment.get("SOAK_SECONDS") or "").strip()
    if not text:
        return Soak(None)
    unit = UNITS.get(text[-1])
    try:
        seconds = float(text) if unit is None else float(text[:-1]) * unit
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise ValueError(f"SOAK is {text!r}: give a length such as 30s, 10m or 24h")
    return Soak(seconds)


SOAK = parse_soak(os.environ)
