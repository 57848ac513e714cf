"""Commands that change or move single jobs, or remove many."""

from typing import Any

from msgspec import UNSET, Raw, field

from bunqueue_trio.model.commands.base import ABSENT, Command


class Cancel(Command, tag="Cancel"):
    """Remove a job that is not running."""

    id: Any = None


class Update(Command, tag="Update"):
    """Replace the data of an unfinished job."""

    id: Any = None
    data: Raw = ABSENT


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
    count: Any = UNSET


class ChangeDelay(Command, tag="ChangeDelay"):
    """Give a queued or active job another run time."""

    id: Any = None
    delay: Any = None


class MoveToDelayed(Command, tag="MoveToDelayed"):
    """The same, with other refusals."""

    id: Any = None
    delay: Any = None


class MoveToWait(Command, tag="MoveToWait"):
    """Make a job ready from wherever it is."""

    id: Any = None


class Discard(Command, tag="Discard"):
    """Send a job to the dead letters."""

    id: Any = None


class RetryDlq(Command, tag="RetryDlq"):
    """Bring dead letters back."""

    queue: Any = None
    job_id: Any = None
    count: Any = UNSET


class PurgeDlq(Command, tag="PurgeDlq"):
    """Delete dead letters."""

    queue: Any = None


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
    """Run completed jobs again, one by id or all of a queue."""

    queue: Any = None
    id: Any = None
