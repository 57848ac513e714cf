"""Named groups: jobs with a name of their own and a ``groupId``, which take turns with those of other groups.

Source: newer clients, 8; NC-5.
"""

from __future__ import annotations

from msgspec import UNSET, Struct, UnsetType

from bunqueue_trio.model.job import JobRecord


class GroupLimit(Struct, frozen=True, gc=False):
    """At most ``max`` jobs handed out per window of ``duration`` ms, which starts with the first of them."""

    max: float | int
    duration: float | int


class GroupSettings(Struct, frozen=True, gc=False, omit_defaults=True):
    """What operators set on one group. The same map is the cell ``bqt_groups.settings``.

    ``concurrency`` and ``limit`` take the place of what a pull brings of that kind; a pull that brings none is not
    bound by them.
    """

    concurrency: float | int | None = None
    limit: GroupLimit | None = None
    paused: bool = False


DEFAULT_GROUP_SETTINGS = GroupSettings()


class PullGroup(Struct, frozen=True, gc=False):
    """The ``group`` of a pull. ``affinity`` names the only group that is wanted, or with None those without group."""

    concurrency: float | int | None = None
    limit: GroupLimit | None = None
    affinity: str | UnsetType | None = UNSET


def takes_turns(record: JobRecord) -> bool:
    """Whether a job belongs to a named group; members of a group without a name of their own follow protocol 2."""
    return record.group_id is not None and record.own_name is not UNSET
