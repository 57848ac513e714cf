"""What the engine asks of the file when memory does not hold it: a question, in which the answer comes back.

Asked and answered as of one moment between two commits; `engine.state.ReadNeededError` says how.
"""

from __future__ import annotations

from typing import Any

from msgspec import Raw, Struct, field

from bunqueue_trio.model.job import JobRecord


class CompletedPage(Struct, eq=False):
    """A page over the completed jobs of a queue and some live ones together, createdAt then id.

    With ``newest_first`` everything here is in the reverse order; without ``wants_completed`` only the live ones count.
    ``live`` are live jobs as they stand in the list of all that are asked for, without the first ``skipped``: all that
    may be on the page. ``over`` are ids whose rows do not count.
    The answer, ``page``, is in order; records of completed jobs come from the file. It is None when their data, and the
    ``results`` that they have, exceed ``max_bytes``. Results are those of completed jobs with a name of their own, or
    of all with ``wants_results``, and of the live jobs ``rerun``.
    """

    command: Any
    queue: str
    offset: int
    limit: int
    max_bytes: int
    live: list[JobRecord]
    skipped: int
    over: list[str]
    newest_first: bool = False
    wants_completed: bool = True
    wants_results: bool = False
    rerun: frozenset[str] = frozenset()
    page: list[JobRecord] | None = None
    results: dict[str, Raw] = field(default_factory=dict)


class OldestCompleted(Struct, eq=False):
    """The ids of those jobs of a queue that completed first, at ``until`` (epoch ms) at the latest.

    At most ``limit``, none of ``over``. The answer is ``ids``, oldest first.
    """

    command: Any
    queue: str
    until: float
    limit: int
    over: list[str]
    ids: list[str] | None = None


class QueueSeries(Struct, eq=False):
    """How many jobs of a queue have ended in one way, ``kind`` of the wire, in all and by the minute.

    The answer: ``total``, ``last_ms``, epoch ms of the last one and None where there was none, and ``minutes``, a count
    by minutes since the epoch.
    """

    command: Any
    queue: str
    kind: str
    total: int = 0
    last_ms: float | None = None
    minutes: dict[int, int] | None = None


Question = CompletedPage | OldestCompleted | QueueSeries
