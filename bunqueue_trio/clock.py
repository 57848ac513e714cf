"""The only reader of the wall clock and of the monotonic clock.

Whoever needs the time is given a `Clock`; the engine is given the `Now` itself. So one object decides what time it is,
and a test decides it by passing another one.
"""

import time
from typing import Protocol

from bunqueue_trio.model.instant import Now


class Clock(Protocol):
    """Where moments come from."""

    def now(self) -> Now:
        """The present moment on both clocks, whole milliseconds as floats. Cost: under 1 µs; never waits."""
        ...

    def stopwatch_ms(self) -> float:
        """Milliseconds with their fractions since some moment: for the length of what takes microseconds."""
        ...


class SystemClock:
    """The clocks of the operating system."""

    __slots__ = ()

    def now(self) -> Now:
        """Read both clocks. The two readings are a fraction of a microsecond apart."""
        return Now(float(time.time_ns() // 1_000_000), float(time.monotonic_ns() // 1_000_000))

    def stopwatch_ms(self) -> float:
        """Read the finest clock. Cost: 0.1 µs."""
        return time.perf_counter() * 1000


class ManualClock:
    """A clock for tests: it moves only when told to.

    Args:
        wall_ms: Where the wall clock stands, epoch ms.
        mono_ms: Where the monotonic clock stands.
    """

    __slots__ = ("_mono_ms", "_wall_ms")

    def __init__(self, wall_ms: float = 1_800_000_000_000, mono_ms: float = 1_000_000) -> None:
        self._wall_ms = float(wall_ms)
        self._mono_ms = float(mono_ms)

    def now(self) -> Now:
        """The same moment until `advance` or `skew` is called."""
        return Now(self._wall_ms, self._mono_ms)

    def stopwatch_ms(self) -> float:
        """The monotonic clock."""
        return self._mono_ms

    def advance(self, ms: float) -> Now:
        """Let *ms* milliseconds pass on both clocks.

        Raises:
            ValueError: *ms* is negative; a monotonic clock does not go back.
        """
        if ms < 0:
            raise ValueError(f"time does not go back: {ms} ms")
        self._wall_ms += ms
        self._mono_ms += ms
        return self.now()

    def skew(self, ms: float) -> Now:
        """Make the wall clock jump by *ms*, forwards or backwards. The monotonic clock stays."""
        self._wall_ms += ms
        return self.now()


class TrioClock:
    """A clock for tests that follows Trio's: with ``autojump_clock``, sleeps, leases and stamps agree.

    ``mono_ms`` is Trio's time since this clock was made, ``wall_ms`` the same plus an offset that `skew` moves. Usable
    in Trio only.

    Args:
        wall_ms: Where the wall clock stands when this clock is made, epoch ms.
    """

    __slots__ = ("_current_time", "_offset_ms", "_origin_s")

    def __init__(self, wall_ms: float = 1_800_000_000_000) -> None:
        # Imported here: the module serves synchronous code too.
        import trio

        self._current_time = trio.current_time
        self._origin_s = trio.current_time()
        self._offset_ms = float(wall_ms)

    def now(self) -> Now:
        """The present moment of the running Trio loop, whole milliseconds."""
        # Virtual times are sums of fractions of seconds; rounding keeps 0.1 s + 0.2 s at 300 ms.
        mono_ms = float(round((self._current_time() - self._origin_s) * 1000))
        return Now(mono_ms + self._offset_ms, mono_ms)

    def stopwatch_ms(self) -> float:
        """Trio's time, not rounded."""
        return self._current_time() * 1000

    def skew(self, ms: float) -> None:
        """Make the wall clock jump by *ms*, forwards or backwards. Trio's clock stays."""
        self._offset_ms += ms
