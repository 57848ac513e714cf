"""Checks of the commands about limits and unique keys of a queue. Ids that are no strings name nothing.

Source: newer clients, 13.
"""

from collections.abc import Callable
from typing import Any, Final

from bunqueue_trio.model import commands as c
from bunqueue_trio.protocol.fields import any_queue, number


def _check_limits(command: c.GetQueueLimits) -> None:
    command.queue = any_queue(command.queue)
    command.max_jobs = None if command.max_jobs is None else number("maxJobs", command.max_jobs, 0)


def _check_queue(command: c.GetDeduplicationJobId | c.RemoveDeduplicationKey) -> None:
    command.queue = any_queue(command.queue)


CHECKS: Final[dict[type, Callable[[Any], None]]] = {
    c.GetQueueLimits: _check_limits,
    c.GetDeduplicationJobId: _check_queue,
    c.RemoveDeduplicationKey: _check_queue,
}
