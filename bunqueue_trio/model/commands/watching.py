"""Commands of those who watch: logs of jobs, statistics, dashboards."""

from typing import Any

from msgspec import Raw, field

from bunqueue_trio.model.commands.base import ABSENT, Command


class AddLog(Command, tag="AddLog"):
    """Append a line to the log of a job."""

    id: Any = None
    message: Raw = ABSENT
    level: Raw = ABSENT


class GetLogs(Command, tag="GetLogs"):
    """Read the log of a job, from line ``start`` to line ``end``, both included."""

    id: Any = None
    start: Any = None
    end: Any = None


class ClearLogs(Command, tag="ClearLogs"):
    """Delete the log of a job but for its newest ``keep_logs`` lines."""

    id: Any = None
    keep_logs: Any = None


class Stats(Command, tag="Stats"):
    """Read the server's gauges and rates."""


class Metrics(Command, tag="Metrics"):
    """Read the server's totals since start; with ``queue`` or ``kind`` how many jobs of a queue ended, by the minute.

    ``kind`` is ``completed`` or ``failed``; ``start`` and ``end`` cut the minutes, the newest of which is 0.
    """

    queue: Any = None
    kind: Any = field(name="type", default=None)
    start: Any = None
    end: Any = None


class StorageStatus(Command, tag="StorageStatus"):
    """Ask whether the file takes what is written."""


class CompactMemory(Command, tag="CompactMemory"):
    """Ask the server to give back memory."""


class Prometheus(Command, tag="Prometheus"):
    """Read the metrics as Prometheus text."""


class DashboardOverview(Command, tag="DashboardOverview"):
    """Read everything a dashboard shows about the server."""


class DashboardQueues(Command, tag="DashboardQueues"):
    """Read what a dashboard shows about all queues."""


class DashboardQueue(Command, tag="DashboardQueue"):
    """Read what a dashboard shows about one queue."""

    queue: Any = None
    include_jobs: Any = None
    jobs_limit: Any = None
