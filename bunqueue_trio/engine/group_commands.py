"""Commands about named groups: how full they are, what limits them, pauses and rests.

Settings are stored, and take effect when they are; windows and rests live in memory only.

Source: newer clients, 8.3.
"""

from math import ceil
from typing import Any

from bunqueue_trio.engine.group_lines import NamedGroup
from bunqueue_trio.engine.named_groups import MAX_IDLE, MAX_SETTINGS
from bunqueue_trio.engine.state import PendingChangeError, State
from bunqueue_trio.errors import StateError
from bunqueue_trio.model.changes import Changes
from bunqueue_trio.model.commands.grouping import (
    GetGroupActiveCount,
    GetGroupConcurrency,
    GetGroupJobsCount,
    GetGroupRateLimit,
    GetGroupRateLimitTtl,
    GetGroupsJobsCount,
    IsGroupPaused,
    PauseGroup,
    RateLimitGroup,
    RemoveGroupConcurrency,
    RemoveGroupRateLimit,
    ResumeGroup,
    SetGroupConcurrency,
    SetGroupRateLimit,
)
from bunqueue_trio.model.grouping import DEFAULT_GROUP_SETTINGS, GroupLimit, GroupSettings
from bunqueue_trio.model.instant import Now
from bunqueue_trio.model.job import replace
from bunqueue_trio.model.replies import DataReply, Reply
from bunqueue_trio.model.transitions import GroupChange, Removal

INT_MAX = 2**32 - 1  # Wire: larger whole numbers travel as floats
NO_WINDOW = -2  # Wire: as Redis says that a key does not exist


class GroupCommands:
    """Reads and sets."""

    def __init__(self, state: State) -> None:
        self._state = state

    def jobs_count(self, command: GetGroupJobsCount, now: Now) -> DataReply:
        """How many of its jobs are ready or delayed. Members without a name of their own count in no group."""
        group = self._find(command)
        return DataReply(data={"count": 0 if group is None else group.queued_count})

    def all_jobs_count(self, command: GetGroupsJobsCount, now: Now) -> DataReply:
        """The same over all groups of the queue."""
        queue = self._state.queues.get(command.queue)
        groups = None if queue is None else queue.named_groups
        return DataReply(data={"count": 0 if groups is None else groups.queued_count})

    def active_count(self, command: GetGroupActiveCount, now: Now) -> DataReply:
        """How many of its jobs run."""
        group = self._find(command)
        return DataReply(data={"count": 0 if group is None else group.active_count})

    def concurrency(self, command: GetGroupConcurrency, now: Now) -> DataReply:
        """The concurrency that was set for it."""
        return DataReply(data={"concurrency": self._settings(command).concurrency})

    def set_concurrency(self, command: SetGroupConcurrency, now: Now) -> Reply:
        """Let it take the place of what pulls bring.

        Raises:
            StateError: too many groups of the queue have settings.
        """
        self._set(command, concurrency=command.concurrency)
        return Reply()

    def remove_concurrency(self, command: RemoveGroupConcurrency, now: Now) -> DataReply:
        """Let what pulls bring count again."""
        is_there = self._settled(command).concurrency is not None
        if is_there:
            self._set(command, concurrency=None)
        return DataReply(data={"removed": int(is_there)})

    def rate_limit(self, command: GetGroupRateLimit, now: Now) -> DataReply:
        """The rate limit that was set for it."""
        limit = self._settings(command).limit
        shown = None if limit is None else {"max": limit.max, "duration": limit.duration}
        return DataReply(data={"limit": shown})

    def set_rate_limit(self, command: SetGroupRateLimit, now: Now) -> Reply:
        """Let it take the place of what pulls bring. The next hand-out opens a new window.

        Raises:
            StateError: too many groups of the queue have settings.
        """
        self._set(command, limit=GroupLimit(command.max, command.duration))
        return Reply()

    def remove_rate_limit(self, command: RemoveGroupRateLimit, now: Now) -> DataReply:
        """Let what pulls bring count again, in a new window."""
        is_there = self._settled(command).limit is not None
        if is_there:
            self._set(command, limit=None)
        return DataReply(data={"removed": int(is_there)})

    def rate_limit_ttl(self, command: GetGroupRateLimitTtl, now: Now) -> DataReply:
        """Ms that its rest lasts; without one, those of its window, or 0 while that has seen fewer than ``maxJobs``
        hand-outs, or -2 when none is open."""
        group, ttl = self._find(command), NO_WINDOW
        if group is not None and group.rests_until_mono_ms > now.mono_ms:
            ttl = ceil(group.rests_until_mono_ms - now.mono_ms)
        elif group is not None and group.window_ends_mono_ms > now.mono_ms:
            has_room = command.max_jobs is not None and group.window_count < command.max_jobs
            ttl = 0 if has_room else ceil(group.window_ends_mono_ms - now.mono_ms)
        return DataReply(data={"ttl": ttl if ttl <= INT_MAX else float(ttl)})

    def pause(self, command: PauseGroup, now: Now) -> DataReply:
        """Hand out nothing of it, whatever pulls say. Survives a restart.

        Raises:
            StateError: too many groups of the queue have settings.
        """
        return self._switch(command, paused=True)

    def resume(self, command: ResumeGroup, now: Now) -> DataReply:
        """Go on; every waiting pull that can be served is."""
        return self._switch(command, paused=False)

    def is_paused(self, command: IsGroupPaused, now: Now) -> DataReply:
        """Whether it is paused."""
        return DataReply(data={"paused": self._settings(command).paused})

    def let_rest(self, command: RateLimitGroup, now: Now) -> Reply:
        """Hand out nothing of it for ``duration`` ms. A restart ends it.

        Raises:
            StateError: too many groups of the queue that hold nothing else are resting.
        """
        queue = self._state.queue(command.queue)
        groups = queue.with_groups()
        if groups.get(command.group_id) is None and groups.is_full:
            raise StateError(f"Too many groups of this queue are resting (max {MAX_IDLE})")
        queue.is_known = True
        groups.let_rest(command.group_id, now.mono_ms + command.duration)
        self._state.wake_all(queue)  # an earlier rest may have been longer
        return Reply()

    # settings

    def _switch(self, command: Any, *, paused: bool) -> DataReply:
        is_new = self._settled(command).paused is not paused
        if is_new:
            self._set(command, paused=paused)
        return DataReply(data={"changed": is_new})

    def _set(self, command: Any, **fields: Any) -> None:
        old = self._settled(command)
        settings = replace(old, **fields)
        if old == DEFAULT_GROUP_SETTINGS and settings != DEFAULT_GROUP_SETTINGS:
            self._check_room(command.queue)
        change = GroupChange(command.queue, command.group_id, settings, closes_window="limit" in fields)
        self._state.stage(change)

    def _check_room(self, queue_name: str) -> None:
        queue = self._state.queues.get(queue_name)
        groups = None if queue is None else queue.named_groups
        if groups is not None and groups.settings_count >= MAX_SETTINGS:
            raise StateError(f"Too many groups of this queue have settings (max {MAX_SETTINGS})")

    def _settled(self, command: Any) -> GroupSettings:
        """The settings that the next change starts from.

        Raises:
            PendingChangeError: a change of them waits for its commit.
        """
        state = self._state
        if _concerns(state.changes, command) or (state.in_flight is not None and _concerns(state.in_flight, command)):
            raise PendingChangeError(command.queue)
        return self._settings(command)

    def _settings(self, command: Any) -> GroupSettings:
        group = self._find(command)
        return DEFAULT_GROUP_SETTINGS if group is None else group.settings

    def _find(self, command: Any) -> NamedGroup | None:
        queue = self._state.queues.get(command.queue)
        groups = None if queue is None else queue.named_groups
        return None if groups is None else groups.get(command.group_id)


def _concerns(changes: Changes, command: Any) -> bool:
    """Whether one of these changes sets the group's settings, or ends them with their queue."""
    for change in changes.staged:
        if isinstance(change, GroupChange):
            if change.group_id == command.group_id and change.queue == command.queue:
                return True
        elif isinstance(change, Removal) and change.is_whole and change.queue == command.queue:
            return True
    return False


def apply_group_change(state: State, change: GroupChange) -> None:
    """New settings of a group are in the file: let them hold, and pulls that wait try again."""
    queue = state.queue(change.queue)
    queue.is_known = True
    queue.with_groups().set(change.group_id, change.settings, closes_window=change.closes_window)
    state.wake_all(queue)
