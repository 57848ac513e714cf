"""A lease: the right of one connection to run one job for a time."""

from enum import Enum

from msgspec import Struct


class TakenBack(Enum):
    """Why a lease ended without its holder finishing the job. Decides what its late ACK may still do."""

    DISCONNECT = "disconnect"
    EXPIRY = "expiry"
    STALL = "stall"
    RESTART = "restart"
    FAIL = "fail"
    TIMEOUT = "timeout"
    MOVED = "moved"


LATE_ACK_COUNTS = frozenset({TakenBack.DISCONNECT, TakenBack.EXPIRY, TakenBack.STALL, TakenBack.RESTART})
"""After these the last holder's ACK completes the job out of the queue, until somebody else leases it (P-18)."""


class Lease(Struct, gc=False, eq=False):
    """The current, or the last, delivery of a job.

    ``token`` is None when the job was pulled without an owner: then nothing fences it and nothing expires.
    All ``*_mono_ms`` are on the monotonic clock, so that a jump of the wall clock moves no lease.
    ``connection_id`` is the session that holds it; None once detached. ``stall_seen_mono_ms`` is when the job was
    first found stalled; it acts on the second look.
    """

    token: str | None
    owner: str | None
    connection_id: int | None
    ttl_ms: float
    started_wall_ms: float
    started_mono_ms: float
    expires_mono_ms: float
    heartbeat_mono_ms: float
    renewal_count: int = 0
    stall_seen_mono_ms: float | None = None
    armed_mono_ms: float = 0.0
    """The deadline for which the engine's timer heap holds an entry; entries for other times are stale."""
    taken_back: TakenBack | None = None
    is_lost: bool = False
    """Its connection is gone, but the end of the job has to wait for a change of the job's parent."""
