"""How many jobs a named group may hold: looked at by pushes that say so, before anything changes.

Source: newer clients, 5 (``groupMaxSize``) and 6.1, check 7.
"""

from typing import Any

from bunqueue_trio.engine.state import PendingChangeError, State
from bunqueue_trio.errors import StateError, ValidationError
from bunqueue_trio.model.commands import ABSENT, PushOptions
from bunqueue_trio.model.grouping import takes_turns
from bunqueue_trio.model.job import Job, JobState

MAX_SAFE_INTEGER = 2**53 - 1


def named_group_of(options: PushOptions) -> str | None:
    """The named group that a push puts its job into."""
    return None if options.name is ABSENT else options.group_id


def queued_group_of(job: Job) -> str | None:
    """The named group in which a job is queued."""
    is_queued = job.state in (JobState.READY, JobState.DELAYED)
    return job.record.group_id if is_queued and takes_turns(job.record) else None


def check_max_size(options: PushOptions) -> None:
    """
    Raises:
        ValidationError: ``groupMaxSize`` of a named push is no positive whole number.
    """
    size: Any = options.group_max_size
    if size is None or options.name is ABSENT:
        return
    if type(size) not in (int, float) or not 1 <= size <= MAX_SAFE_INTEGER or size != int(size):
        raise ValidationError("group.maxSize must be a positive safe integer")


class GroupSizes:
    """Follows one command that pushes jobs, one after the other, as far as their groups are concerned."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._come: dict[tuple[str, str], int] = {}

    def admit(self, queue_name: str, options: PushOptions, *, is_queued: bool) -> None:
        """The next job is new, and stands for itself.

        Args:
            is_queued: it takes room; one that has to wait for others does not yet.

        Raises:
            ValidationError: its ``groupMaxSize`` is no positive whole number.
            StateError: its group is full.
            PendingChangeError: whether it is, hangs on pushes that wait for their commit.
        """
        check_max_size(options)
        group_id = named_group_of(options)
        if group_id is None:
            return
        come = self._come.get((queue_name, group_id), 0)
        if options.group_max_size is not None:
            queued, reserved = self._counts(queue_name, group_id)
            if queued + come >= options.group_max_size:
                size = int(options.group_max_size)
                raise StateError(f"Group {group_id} has reached its maximum size of {size}")
            if queued + come + reserved >= options.group_max_size:
                raise PendingChangeError(group_id)
        if is_queued:
            self._come[(queue_name, group_id)] = come + 1

    def free(self, queue_name: str, group_id: str | None) -> None:
        """A queued job of that group makes room for the next one, whose key it holds."""
        if group_id is not None:
            self._come[(queue_name, group_id)] = self._come.get((queue_name, group_id), 0) - 1

    def _counts(self, queue_name: str, group_id: str) -> tuple[int, int]:
        queue = self._state.queues.get(queue_name)
        groups = None if queue is None else queue.named_groups
        group = None if groups is None else groups.get(group_id)
        return (0, 0) if group is None else (group.queued_count, len(group.reserved))
