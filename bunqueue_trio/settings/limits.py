"""What clients may take of the server: requests, connections, bytes."""

from msgspec import Struct

from bunqueue_trio.setting_values import whole
from bunqueue_trio.settings.setting import Setting

MAX_FRAME_BYTES = 67_108_864  # the protocol's cap: a larger frame is never accepted


class LimitSettings(Struct, frozen=True, kw_only=True, gc=False):
    """Limits of what clients may take. Durations are ms, sizes bytes."""

    rate_limit_max_requests: int = 10_000
    """The reference's value. 0 would refuse everything, so the smallest legal value is 1."""

    rate_limit_window_ms: int = 60_000
    """The reference's value."""

    rate_limit_cleanup_ms: int = 60_000
    """The reference's value."""

    tcp_idle_timeout_ms: int = 60_000
    """The reference's value: an honest client finishes a frame within a minute."""

    tcp_max_write_queue_bytes: int = 67_108_864
    """The reference's value: one frame of the largest legal size."""

    max_connections: int = 10_000
    """Some 10 KB each: 100 MB, which a small machine still has."""

    http_max_connections: int = 10_000
    """Some 20 KB each while nothing is asked."""

    preauth_max_frame_bytes: int = 65_536
    """Room for any token, no room for strangers to make the server hold much."""


LIMITS = (
    Setting(
        "RATE_LIMIT_MAX_REQUESTS",
        "rate_limit_max_requests",
        whole("requests", 1),
        "Requests of one client per window; at least 1",
    ),
    Setting("RATE_LIMIT_WINDOW_MS", "rate_limit_window_ms", whole("milliseconds", 1), "That window, ms"),
    Setting(
        "RATE_LIMIT_CLEANUP_MS",
        "rate_limit_cleanup_ms",
        whole("milliseconds", 1),
        "How often clients of HTTP that have gone quiet are forgotten, ms",
    ),
    Setting(
        "TCP_IDLE_TIMEOUT_MS",
        "tcp_idle_timeout_ms",
        whole("milliseconds", 0, zero=" (0: off)"),
        "A connection that began a frame and makes no progress for so long is closed, ms; 0: never",
    ),
    Setting(
        "TCP_MAX_WRITE_QUEUE_BYTES",
        "tcp_max_write_queue_bytes",
        whole("bytes", 0, zero=" (0: off)"),
        "A connection with more unsent bytes than this is dropped; 0: never",
    ),
    Setting(
        "MAX_CONNECTIONS",
        "max_connections",
        whole("connections", 1),
        "Further TCP connections get one error and are closed",
    ),
    Setting(
        "HTTP_MAX_CONNECTIONS",
        "http_max_connections",
        whole("connections", 1),
        "Further HTTP connections are answered with 503 and closed",
    ),
    Setting(
        "PREAUTH_MAX_FRAME_BYTES",
        "preauth_max_frame_bytes",
        whole("bytes", 64, MAX_FRAME_BYTES),
        "Largest frame before authentication; a larger one is refused and the connection closed",
    ),
)
"""One row for each."""
