"""The request limit of one connection: so many frames in a sliding window."""

from collections import deque

SLICES = 1_000  # the window is exact to a thousandth, and a connection keeps at most this many counters


class Throttle:
    """At most ``max_requests`` accepted frames in any ``window_ms``. Refused ones do not count."""

    __slots__ = ("_count", "_max_requests", "_slices", "_step_ms", "_window_ms")

    def __init__(self, max_requests: int, window_ms: int) -> None:
        self._max_requests = max_requests
        self._window_ms = window_ms
        self._step_ms = max(1.0, window_ms / SLICES)
        self._slices: deque[list[float]] = deque()
        self._count = 0

    def admit(self, mono_ms: float, count: int = 1) -> int:
        """Count frames that have arrived together; returns how many of them the window has room for."""
        slices = self._slices
        while slices and slices[0][0] <= mono_ms - self._window_ms:
            self._count -= int(slices.popleft()[1])
        admitted = min(count, self._max_requests - self._count)
        if admitted <= 0:
            return 0
        self._count += admitted
        if slices and mono_ms < slices[-1][0] + self._step_ms:
            slices[-1][1] += admitted
        else:
            slices.append([mono_ms, admitted])
        return admitted
