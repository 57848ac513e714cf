"""Commands about the named groups of a queue."""

from typing import Any

from bunqueue_trio.model.commands.base import ABSENT, Command, Undecoded


class GroupCommand(Command):
    """What all of them have in common. ``group_id`` leaves the checks as a string."""

    queue: Any = None
    group_id: Undecoded = ABSENT


class GetGroupJobsCount(GroupCommand, tag="GetGroupJobsCount"):
    """How many jobs of a group are ready or delayed."""


class GetGroupsJobsCount(Command, tag="GetGroupsJobsCount"):
    """The same for all groups of a queue. ``max_count`` means nothing."""

    queue: Any = None
    max_count: Any = None


class GetGroupActiveCount(GroupCommand, tag="GetGroupActiveCount"):
    """How many jobs of a group run."""


class SetGroupConcurrency(GroupCommand, tag="SetGroupConcurrency"):
    """At most so many active jobs of this group, for pulls that bring such a limit."""

    concurrency: Any = None


class GetGroupConcurrency(GroupCommand, tag="GetGroupConcurrency"):
    """The number that was set, or null."""


class RemoveGroupConcurrency(GroupCommand, tag="RemoveGroupConcurrency"):
    """Forget it."""


class SetGroupRateLimit(GroupCommand, tag="SetGroupRateLimit"):
    """At most ``max`` hand-outs per ``duration`` ms, for pulls that bring such a limit."""

    max: Any = None
    duration: Any = None


class GetGroupRateLimit(GroupCommand, tag="GetGroupRateLimit"):
    """The limit that was set, or null."""


class RemoveGroupRateLimit(GroupCommand, tag="RemoveGroupRateLimit"):
    """Forget it."""


class GetGroupRateLimitTtl(GroupCommand, tag="GetGroupRateLimitTtl"):
    """How long the group has to wait; with ``max_jobs``: 0 while its window has seen fewer hand-outs."""

    max_jobs: Any = None


class PauseGroup(GroupCommand, tag="PauseGroup"):
    """Hand out no more jobs of a group."""


class ResumeGroup(GroupCommand, tag="ResumeGroup"):
    """Go on handing them out."""


class IsGroupPaused(GroupCommand, tag="IsGroupPaused"):
    """Whether it is paused."""


class RateLimitGroup(GroupCommand, tag="RateLimitGroup"):
    """Let a group rest for ``duration`` ms."""

    duration: Any = None
