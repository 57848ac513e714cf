"""Commands that change or move single jobs, or remove many.

A ``count`` leaves the codec as what was sent, or as `ABSENT`, which means all; null means none.
"""

from typing import Any

from msgspec import Raw, field

from bunqueue_trio.model.commands.base import ABSENT, Command, Undecoded


class Cancel(Command, tag="Cancel"):
    """Remove a job that is not running."""

    id: Any = None


class Update(Command, tag="Update"):
    """Replace the data of an unfinished job."""

    id: Any = None
    data: Raw = ABSENT
    is_newer: Any = field(name="(newer)", default=False)


class ChangePriority(Command, tag="ChangePriority"):
    """Change the priority of a queued job."""

    id: Any = None
    priority: Any = None
    lifo: Any = None


class Promote(Command, tag="Promote"):
    """Make a delayed job ready."""

    id: Any = None


class PromoteJobs(Command, tag="PromoteJobs"):
    """Make delayed jobs of a queue ready."""

    queue: Any = None
    count: Undecoded = ABSENT


class Move(Command):
    """What the moves below have in common. ``token`` is that of the lock, if the job has one.

    ``is_newer`` is set by sessions that speak protocol 3, whatever came over the wire: they must send the token.
    """

    id: Any = None
    token: Any = None
    is_newer: Any = field(name="(newer)", default=False)


class ChangeDelay(Move, tag="ChangeDelay"):
    """Give a queued or active job another run time."""

    delay: Any = None


class MoveToDelayed(Move, tag="MoveToDelayed"):
    """The same, with other refusals."""

    delay: Any = None


class MoveToWait(Move, tag="MoveToWait"):
    """Make a job ready from wherever it is."""


class MoveToWaitingChildren(Move, tag="MoveToWaitingChildren"):
    """Let an active job wait for its children, those that it is going to have included."""


class Discard(Move, tag="Discard"):
    """Send a job to the dead letters."""


class RetryDlq(Command, tag="RetryDlq"):
    """Bring dead letters back."""

    queue: Any = None
    job_id: Any = None
    count: Undecoded = ABSENT
    filter: Raw = ABSENT
    selection: Any = field(name="(selection)", default=None)
    """As of `reading.Dlq`; where it is set, ``job_id`` and ``count`` mean nothing."""


class PurgeDlq(Command, tag="PurgeDlq"):
    """Delete dead letters."""

    queue: Any = None


class RemoveDlqJob(Command, tag="RemoveDlqJob"):
    """Delete one dead letter."""

    queue: Any = None
    job_id: Any = None


class RemoveDeduplicationKey(Command, tag="RemoveDeduplicationKey"):
    """Take a unique key of a queue from its holder."""

    queue: Any = None
    deduplication_id: Any = None


class RemoveJobDeduplicationKey(Command, tag="RemoveJobDeduplicationKey"):
    """Take its unique key from a job."""

    id: Any = None


class UpdateParent(Command, tag="UpdateParent"):
    """Make one job the parent of another.

    ``name_parent`` is set by the checks, whatever came over the wire: what writes the parent into the child's data,
    which the engine does not look into.
    """

    child_id: Any = None
    parent_id: Any = None
    name_parent: Any = field(name="(nameParent)", default=None)


class RemoveChildDependency(Command, tag="RemoveChildDependency"):
    """Let the parent of a job no longer wait for it."""

    id: Any = None


class RemoveUnprocessedChildren(Command, tag="RemoveUnprocessedChildren"):
    """Cancel the children of a job that have not begun."""

    id: Any = None


class RetryCompleted(Command, tag="RetryCompleted"):
    """Run completed jobs again: one by id, or those of a queue; ``timestamp`` is the latest completion that counts."""

    queue: Any = None
    id: Any = None
    count: Undecoded = ABSENT
    timestamp: Any = None
