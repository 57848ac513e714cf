"""The only reader of the wall clock and of the monotonic clock.

Whoever needs the time is given a `Clock`; the engine is given the `Now` itself. So one object decides what time it is,
and a test decides it by passing another one.
"""

import time
from typing import Protocol

from bunqueue_trio.model.instant import Now

BEAT_MS = 2_000.0  # twice as long as whoever calls `beat` sleeps at the most


class Clock(Protocol):
    """Where moments come from."""

    def now(self) -> Now:
        """The present moment on both clocks, whole milliseconds as floats. Cost: under 1 µs; never waits."""
        ...

    def stopwatch_ms(self) -> float:
        """Milliseconds with their fractions since some moment: for the length of what takes microseconds."""
        ...

    def beat(self) -> float:
        """The process is alive: to be called once a second. Returns how long it stood still since the last call, ms."""
        ...

    def rest(self) -> None:
        """There will be no more beats."""
        ...


class SystemClock:
    """The clocks of the operating system.

    From the first `beat` on the monotonic one does not count the time in which the process stood still: stopped by a
    signal, frozen with its container, or busy with one thing. Nobody could renew a lease in it.
    """

    __slots__ = ("_lost_ms", "_told_ms", "_trusted_until_ms")

    def __init__(self) -> None:
        self._lost_ms = 0.0
        self._told_ms = 0.0
        self._trusted_until_ms = float("inf")

    def now(self) -> Now:
        """Read both clocks. The two readings are a fraction of a microsecond apart."""
        wall_ms, real_ms = float(time.time_ns() // 1_000_000), float(time.monotonic_ns() // 1_000_000)
        mono_ms = real_ms - self._lost_ms
        if mono_ms > self._trusted_until_ms:
            mono_ms = self._trusted_until_ms
            self._lost_ms = real_ms - mono_ms  # not a sum: other threads look at the clock too
        return Now(wall_ms, mono_ms)

    def stopwatch_ms(self) -> float:
        """Read the finest clock. Cost: 0.1 µs."""
        return time.perf_counter() * 1000

    def beat(self) -> float:
        """From here on so much time counts at the most until the next call."""
        self._trusted_until_ms = self.now().mono_ms + BEAT_MS
        lost_ms, self._told_ms = self._lost_ms - self._told_ms, self._lost_ms
        return lost_ms

    def rest(self) -> None:
        """All time counts again."""
        self._trusted_until_ms = float("inf")


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

    def beat(self) -> float:
        """It never stands still by itself."""
        return 0.0

    def rest(self) -> None:
        """Nor does this change anything."""

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

    def beat(self) -> float:
        """It never stands still."""
        return 0.0

    def rest(self) -> None:
        """Nor does this change anything."""

    def skew(self, ms: float) -> None:
        """Make the wall clock jump by *ms*, forwards or backwards. Trio's clock stays."""
        self._offset_ms += ms
