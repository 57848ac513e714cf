"""What those who run the server are told, and from when on."""

from bunqueue_trio.setting_values import whole
from bunqueue_trio.settings.limits import LimitSettings
from bunqueue_trio.settings.setting import Setting


class WatchSettings(LimitSettings, frozen=True, kw_only=True, gc=False):
    """Thresholds of warnings and periods of reports; durations are ms."""

    metrics_max_queues: int = 1_000
    """Six series each, some 0.5 MB of text: what a scraper takes in every few seconds (HD-8)."""

    queue_idle_threshold_ms: int = 30_000
    """The reference's value."""

    queue_size_threshold: int = 0
    """0: none, as in the reference."""

    worker_overload_threshold_ms: int = 30_000
    """The reference's value."""

    memory_warning_mb: int = 0
    """0: none, as in the reference."""

    storage_warning_mb: int = 0
    """0: none, as in the reference."""

    stats_interval_ms: int = 300_000
    """The reference's value; at least a second, for a line of log each."""


WATCHING = (
    Setting(
        "METRICS_MAX_QUEUES",
        "metrics_max_queues",
        whole("queues", 0, 100_000),
        "Queues with metrics of their own, in the order of first use; `bunqueue_queues_not_listed` counts the others",
    ),
    Setting(
        "QUEUE_IDLE_THRESHOLD_MS",
        "queue_idle_threshold_ms",
        whole("milliseconds", 0, zero=" (0: off)"),
        "A queue with nothing ready or active for so long is announced as idle, ms; 0: never",
    ),
    Setting(
        "QUEUE_SIZE_THRESHOLD",
        "queue_size_threshold",
        whole("jobs", 0, zero=" (0: off)"),
        "A queue with so many ready jobs is announced; 0: never",
    ),
    Setting(
        "WORKER_OVERLOAD_THRESHOLD_MS",
        "worker_overload_threshold_ms",
        whole("milliseconds", 0, zero=" (0: off)"),
        "A worker at its capacity for so long is announced, ms; 0: never",
    ),
    Setting(
        "MEMORY_WARNING_MB",
        "memory_warning_mb",
        whole("MiB", 0, zero=" (0: off)"),
        "Memory in use from which subscribers are warned, MiB; 0: never",
    ),
    Setting(
        "STORAGE_WARNING_MB",
        "storage_warning_mb",
        whole("MiB", 0, zero=" (0: off)"),
        "Size of the data file from which subscribers are warned, MiB; 0: never",
    ),
    Setting(
        "STATS_INTERVAL_MS",
        "stats_interval_ms",
        whole("milliseconds", 1_000),
        "Period of the line of statistics in the log, ms; at least 1000",
    ),
)
"""One row for each."""
