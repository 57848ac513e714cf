"""The figures of the fault-injection suites: what "bounded" and "responsive" mean, once for all of them (K46).

Suites fail on what is lost or doubled; the figures here are for the few rows of the failure table that speak of time or
memory. They are wide: a machine of the class that does other things besides must not break them, a defect must.
``CHAOS_MACHINE`` names the class; without it the number of processors decides.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

MIB = 1_048_576


@dataclass(frozen=True)
class Bounds:
    """What a machine of one class must manage."""

    restart_s: float
    """From the start of the process until a round trip is answered, with up to 10,000 rows (R143)."""
    refusal_s: float
    """Until a server that cannot open its file has said so and ended (R185)."""
    loss_window_ms: float
    """How long before a hard kill a buffered push may have been confirmed and yet be gone: 10 ms, and what a busy
    machine takes for a flush (R197)."""
    stop_s: float
    """From SIGTERM to the end, with nothing active (R174)."""
    ping_p99_ms: float
    """A healthy client's round trip while others misbehave or churn (R156, R167)."""
    ping_timeout_s: float
    """No round trip takes longer (R156)."""
    recovery_factor: float
    """The median after a spike, as a multiple of the median before it (R169)."""
    rss_bytes: int
    """Resident memory under any abuse (R166)."""
    rss_growth_bytes: int
    """Resident memory that may stay behind after a suite."""
    job_bytes: int
    """Resident memory per waiting job with little data."""


SMALL = Bounds(
    restart_s=30.0,
    refusal_s=30.0,
    loss_window_ms=1_000.0,
    stop_s=30.0,
    ping_p99_ms=1_000.0,
    ping_timeout_s=15.0,
    recovery_factor=2.0,
    rss_bytes=768 * MIB,
    rss_growth_bytes=64 * MIB,
    job_bytes=4_096,
)
"""Up to four processors, which the suites share with the server."""

LARGE = Bounds(
    restart_s=10.0,
    refusal_s=10.0,
    loss_window_ms=250.0,
    stop_s=10.0,
    ping_p99_ms=100.0,
    ping_timeout_s=5.0,
    recovery_factor=2.0,
    rss_bytes=768 * MIB,
    rss_growth_bytes=64 * MIB,
    job_bytes=4_096,
)

CLASSES = {"small": SMALL, "large": LARGE}

MACHINE = os.environ.get("CHAOS_MACHINE") or ("small" if (os.cpu_count() or 1) <= 4 else "large")
BOUNDS = CLASSES[MACHINE]

# A cap of the server itself, beyond which the suites drive it.
COMPLETED_CAP = 50_000
