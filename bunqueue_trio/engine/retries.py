"""What happens to a job whose attempt ended without success: another attempt after a pause, or the dead letters.

An attempt is charged once, at the end of an unsuccessful delivery (K12). A job without attempts left becomes a dead
letter; so does one that stalled too often. Which of the two it was is the entry's reason.
"""

from math import ceil

from bunqueue_trio.engine.state import State
from bunqueue_trio.model.changes import Dirty
from bunqueue_trio.model.instant import Now
from bunqueue_trio.model.job import Job, JobRecord
from bunqueue_trio.model.leases import TakenBack

BACKOFF_CAP_MS = 3_600_000
MAX_DOUBLINGS = 64  # beyond any cap; keeps the arithmetic in floats
MAX_ATTEMPTS_EXCEEDED = "max_attempts_exceeded"
STALLED = "stalled"
WORKER_LOST = "worker_lost"
UNKNOWN = "unknown"


def backoff_ms(record: JobRecord, attempts: int, jitter: float) -> float:
    """The pause before the next attempt, in ms.

    Args:
        attempts: attempts made, the one that just ended included.
        jitter: uniform in [0, 1).

    Fixed: the delay within 20 %. Exponential, and the plain number: ``delay * 2**attempts`` within 50 %. Capped at one
    hour; a ``maxDelay`` of the job's own caps it lower, and then the last 20 % below it stay random, so that jobs that
    failed together do not come back together.

    Source: protocol, "Retry"; P-11.
    """
    config = record.backoff_config
    base = float(record.backoff)
    if config is not None and config.type == "fixed":
        pause = base * (0.8 + 0.4 * jitter)
    else:
        pause = base * 2.0 ** min(attempts, MAX_DOUBLINGS) * (0.5 + jitter)
    if config is not None and isinstance(config.max_delay, (int, float)) and pause > config.max_delay:
        pause = config.max_delay * (0.8 + 0.2 * jitter)
    return min(pause, BACKOFF_CAP_MS)


def retry_at(record: JobRecord, attempts: int, now: Now, jitter: float) -> float:
    """When the next attempt may start, epoch ms, rounded up to a whole one (P-6)."""
    return float(ceil(now.wall_ms + backoff_ms(record, attempts, jitter)))


def verdict(state: State, record: JobRecord, attempts: int, stall_count: int) -> str | None:
    """Why a job that was lost must not run again, or None if it may. The attempts bound is looked at first (K7)."""
    if attempts >= record.max_attempts:
        return MAX_ATTEMPTS_EXCEEDED
    max_stalls = state.queue(record.queue).settings.stall.max_stalls
    if 0 < max_stalls <= stall_count:
        return STALLED
    return None


def take_back(state: State, job: Job, why: TakenBack, now: Now, *, attempts: int, stalls: int, run_at: float) -> None:
    """Return an active job to its queue, its counters raised. Written with the next flush."""
    state.deactivate(job)
    record = job.record
    record.attempts += attempts
    record.stall_count += stalls
    record.started_at = None
    record.last_heartbeat = now.wall_ms
    record.run_at = run_at
    if job.lease is not None:
        job.lease.taken_back = why
    state.enqueue(state.queues[record.queue], job, now)
    state.changes.touch(job, Dirty.STATE)
