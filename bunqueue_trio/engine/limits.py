"""The rate limit of a queue: a token bucket on the monotonic clock. (The concurrency limit is a comparison.)"""

from math import ceil

from bunqueue_trio.model.entries import RateLimit
from bunqueue_trio.model.instant import Now


class TokenBucket:
    """At most ``limit`` deliveries per ``duration_ms``: starts full, refills evenly, never above its limit.

    Source: commands, "RateLimit".
    """

    __slots__ = ("_filled_mono_ms", "_rate_per_ms", "_tokens", "capacity", "expires_at")

    def __init__(self, settings: RateLimit, now: Now) -> None:
        self.capacity = float(settings.limit)
        self.expires_at = settings.expires_at
        self._tokens = self.capacity
        self._rate_per_ms = self.capacity / settings.duration_ms
        self._filled_mono_ms = now.mono_ms

    def take(self, now: Now) -> bool:
        """Spend one token if there is a whole one."""
        self._refill(now)
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    def next_token_mono_ms(self, now: Now) -> float | None:
        """When the next delivery may happen; None if never (a limit below one blocks the queue)."""
        if self.capacity < 1:
            return None
        self._refill(now)
        return now.mono_ms + max(0.0, (1 - self._tokens) / self._rate_per_ms)

    def used(self, now: Now) -> int:
        """How many tokens are spent and have not come back whole."""
        self._refill(now)
        return ceil(self.capacity - self._tokens)

    def _refill(self, now: Now) -> None:
        grown = self._tokens + (now.mono_ms - self._filled_mono_ms) * self._rate_per_ms
        self._tokens = min(self.capacity, grown)
        self._filled_mono_ms = now.mono_ms
