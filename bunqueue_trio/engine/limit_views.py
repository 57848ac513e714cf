"""What limits a queue right now, for those who ask.

Source: newer clients, 13 "GetQueueLimits".
"""

from math import ceil
from typing import Any

from bunqueue_trio.engine.limits import TokenBucket
from bunqueue_trio.engine.queue_state import QueueState
from bunqueue_trio.engine.state import State
from bunqueue_trio.model.commands import GetQueueLimits
from bunqueue_trio.model.entries import RateLimit
from bunqueue_trio.model.instant import Now
from bunqueue_trio.model.replies import DataReply

NO_LIMIT = -2  # Wire: what clients are told where there is nothing to wait for
NO_END = -1  # a limit below one lets nothing out, ever


class LimitViews:
    """Reads limits."""

    def __init__(self, state: State) -> None:
        self._state = state

    def get_queue_limits(self, command: GetQueueLimits, now: Now) -> DataReply:
        """The limits of a queue, whether another job could be handed out, and in how many ms if not.

        Shape: ``{"limits": {"rateLimit": {"max", "duration"} or None, "rateLimitTtl": ms, "concurrencyLimit": number or
        None, "maxed": bool}}``. ``rateLimitTtl``: -2 without a limit; the rest of a limit that lifts itself; else 0 or
        the time until the next token, -1 if there will be none.
        """
        queue = self._state.queues.get(command.queue) or QueueState(command.queue)
        rate, bucket = queue.settings.rate_limit, queue.bucket
        if rate is not None and rate.expires_at is not None and rate.expires_at <= now.wall_ms:
            rate = None
        shown: dict[str, Any] | None = None
        ttl: float = NO_LIMIT
        if rate is not None and bucket is not None:
            shown = {"max": rate.limit, "duration": rate.duration_ms}
            ttl = _rest_ms(rate, bucket, command.max_jobs, now)
        limit = queue.settings.concurrency_limit
        limits = {
            "rateLimit": shown,
            "rateLimitTtl": ttl,
            "concurrencyLimit": limit,
            "maxed": limit is not None and queue.active_count >= limit,
        }
        return DataReply(data={"limits": limits})


def _rest_ms(rate: RateLimit, bucket: TokenBucket, max_jobs: float | None, now: Now) -> float:
    if rate.expires_at is not None:
        return ceil(rate.expires_at - now.wall_ms)
    if max_jobs is not None and bucket.used(now) < max_jobs:
        return 0
    next_mono_ms = bucket.next_token_mono_ms(now)
    return NO_END if next_mono_ms is None else ceil(next_mono_ms - now.mono_ms)
