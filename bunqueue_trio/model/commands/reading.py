"""Commands that only read."""

from typing import Any

from msgspec import Raw, field

from bunqueue_trio.model.commands.base import ABSENT, Command, Undecoded


class GetProgress(Command, tag="GetProgress"):
    """Read what Progress reported."""

    id: Any = None


class GetJob(Command, tag="GetJob"):
    """Read a job in any state."""

    id: Any = None
    is_newer: Any = field(name="(newer)", default=False)


class GetState(Command, tag="GetState"):
    """Read a job's state; unknown ids are no error."""

    id: Any = None


class GetResult(Command, tag="GetResult"):
    """Read a job's result; unknown ids are no error."""

    id: Any = None


class GetJobByCustomId(Command, tag="GetJobByCustomId"):
    """Read a live job by its custom id."""

    custom_id: Any = None
    is_newer: Any = field(name="(newer)", default=False)


class Count(Command, tag="Count"):
    """How many jobs are queued: waiting, prioritized and delayed."""

    queue: Any = None


class GetJobCounts(Command, tag="GetJobCounts"):
    """How many jobs are in each state."""

    queue: Any = None


class ListQueues(Command, tag="ListQueues"):
    """Names of the known queues, in the order of their first use."""


class Dlq(Command, tag="Dlq"):
    """Jobs among the dead letters of a queue; with the entries where ``filter`` is there, whatever it holds (NC-8).

    ``selection`` is set by the checks, whatever came over the wire: the `LetterFilter` out of ``filter``, or None.
    """

    queue: Any = None
    count: Any = None
    filter: Raw = ABSENT
    selection: Any = field(name="(selection)", default=None)
    is_newer: Any = field(name="(newer)", default=False)


class GetDlqStats(Command, tag="GetDlqStats"):
    """Count the dead letters of a queue, by reason and by what time does to them."""

    queue: Any = None


class GetQueueLimits(Command, tag="GetQueueLimits"):
    """Read what limits a queue, and whether ``max_jobs`` have used it up."""

    queue: Any = None
    max_jobs: Any = None


class GetDeduplicationJobId(Command, tag="GetDeduplicationJobId"):
    """Ask who holds a unique key of a queue."""

    queue: Any = None
    deduplication_id: Any = None


class GetJobs(Command, tag="GetJobs"):
    """List jobs of a queue, by ``state`` (a name, several, or all).

    ``asc`` is checked to a bool; `ABSENT` if the key was not sent, which says that the client is an older one.
    """

    queue: Any = None
    state: Any = None
    offset: Any = None
    limit: Any = None
    asc: Undecoded = ABSENT
    is_newer: Any = field(name="(newer)", default=False)


class GetCountsPerPriority(Command, tag="GetCountsPerPriority"):
    """Count the queued jobs of each priority."""

    queue: Any = None


class GetChildrenValues(Command, tag="GetChildrenValues"):
    """Read the results of a job's children."""

    id: Any = None


class GetFailedChildrenValues(Command, tag="GetFailedChildrenValues"):
    """Read the errors of children that failed and let their parent go on."""

    id: Any = None


class GetIgnoredChildrenFailures(Command, tag="GetIgnoredChildrenFailures"):
    """Read the errors of children whose failures their parent ignores."""

    id: Any = None


class WaitJob(Command, tag="WaitJob"):
    """Wait up to ``timeout`` ms for the end of a job."""

    id: Any = None
    timeout: Any = None


class Explain(Command, tag="Explain"):
    """Ask why a job is not running."""

    id: Any = None
