"""The request limit of one client: so many in a sliding window. On TCP a client is a connection, over HTTP an address.

Source: HTTP, "Request rate limit"; HD-4.
"""

from collections import OrderedDict, deque

SLICES = 1_000  # the window is exact to a thousandth, and a connection keeps at most this many counters
CLIENT_SLICES = 60  # clients without a connection are many, and stay for a while: 7 KB each at most
MAX_CLIENTS = 10_000


class Throttle:
    """At most ``max_requests`` accepted frames in any ``window_ms``. Refused ones do not count."""

    __slots__ = ("_count", "_max_requests", "_slices", "_step_ms", "_window_ms")

    def __init__(self, max_requests: int, window_ms: int, slices: int = SLICES) -> None:
        self._max_requests = max_requests
        self._window_ms = window_ms
        self._step_ms = max(1.0, window_ms / slices)
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

    def room_in_ms(self, mono_ms: float) -> float:
        """How long the window stays full; asked after a refusal."""
        return self._slices[0][0] + self._window_ms - mono_ms if self._slices else 0.0

    def is_idle(self, mono_ms: float) -> bool:
        """Whether nothing that was counted counts any more."""
        return not self._slices or self._slices[-1][0] <= mono_ms - self._window_ms


class ClientThrottles:
    """A `Throttle` per client that has no connection, at most `MAX_CLIENTS`: beyond them the quietest is forgotten.

    Args:
        cleanup_ms: how often clients are forgotten that have been idle for a whole window.
    """

    def __init__(self, max_requests: int, window_ms: int, cleanup_ms: int) -> None:
        self._max_requests = max_requests
        self._window_ms = window_ms
        self._cleanup_ms = cleanup_ms
        self._next_cleanup_mono_ms = 0.0
        self._clients: OrderedDict[str, Throttle] = OrderedDict()

    @property
    def client_count(self) -> int:
        """How many clients are remembered."""
        return len(self._clients)

    def refusal_ms(self, key: str, mono_ms: float) -> float | None:
        """Count a request. None: it may go on; else it is refused, and after so many ms there is room again."""
        if mono_ms >= self._next_cleanup_mono_ms:
            self._forget_idle(mono_ms)
        throttle = self._clients.get(key)
        if throttle is None:
            if len(self._clients) >= MAX_CLIENTS:
                self._clients.popitem(last=False)
            throttle = self._clients[key] = Throttle(self._max_requests, self._window_ms, CLIENT_SLICES)
        else:
            self._clients.move_to_end(key)
        return None if throttle.admit(mono_ms) else max(0.0, throttle.room_in_ms(mono_ms))

    def _forget_idle(self, mono_ms: float) -> None:
        self._next_cleanup_mono_ms = mono_ms + self._cleanup_ms
        for key in [key for key, throttle in self._clients.items() if throttle.is_idle(mono_ms)]:
            del self._clients[key]
