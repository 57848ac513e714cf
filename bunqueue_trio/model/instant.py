"""One moment on both clocks. Whoever calls the engine brings it; the engine never reads a clock."""

import msgspec


class Now(msgspec.Struct, frozen=True, gc=False):
    """A moment: the wall clock for stamps, run times and cron, the monotonic one for leases and timeouts.

    Both are whole milliseconds held as floats, because that is how time stamps travel on the wire.
    ``wall_ms`` counts from the Unix epoch and may jump; ``mono_ms`` has an arbitrary origin and never goes back.
    """

    wall_ms: float
    mono_ms: float
