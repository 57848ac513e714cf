"""Commands that change a queue as a whole."""

from typing import Any

from bunqueue_trio.model.commands.base import Command


class Pause(Command, tag="Pause"):
    """Stop handing out jobs of a queue."""

    queue: Any = None


class Resume(Command, tag="Resume"):
    """Go on handing out jobs of a queue."""

    queue: Any = None


class IsPaused(Command, tag="IsPaused"):
    """Ask whether a queue is paused."""

    queue: Any = None


class SetStallConfig(Command, tag="SetStallConfig"):
    """Merge the given keys into the queue's stall policy."""

    queue: Any = None
    config: Any = None


class GetStallConfig(Command, tag="GetStallConfig"):
    """Read the queue's stall policy."""

    queue: Any = None


class RateLimit(Command, tag="RateLimit"):
    """Limit deliveries of a queue per time."""

    queue: Any = None
    limit: Any = None
    duration: Any = None
    ttl: Any = None


class RateLimitClear(Command, tag="RateLimitClear"):
    """Lift the rate limit."""

    queue: Any = None


class SetConcurrency(Command, tag="SetConcurrency"):
    """Limit how many jobs of a queue run at a time."""

    queue: Any = None
    limit: Any = None


class ClearConcurrency(Command, tag="ClearConcurrency"):
    """Lift the concurrency limit."""

    queue: Any = None


class Drain(Command, tag="Drain"):
    """Delete the queued jobs of a queue."""

    queue: Any = None


class Obliterate(Command, tag="Obliterate"):
    """Delete a queue with everything in it."""

    queue: Any = None


class Clean(Command, tag="Clean"):
    """Delete jobs of one state that are at least ``grace`` ms old, oldest first, at most ``limit``."""

    queue: Any = None
    grace: Any = None
    state: Any = None
    limit: Any = None


class SetDlqConfig(Command, tag="SetDlqConfig"):
    """Change what happens to the dead letters of a queue."""

    queue: Any = None
    config: Any = None


class GetDlqConfig(Command, tag="GetDlqConfig"):
    """Ask what happens to the dead letters of a queue."""

    queue: Any = None
