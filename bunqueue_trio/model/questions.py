"""What the engine asks of the file when memory does not hold it: a question, in which the answer comes back.

Asked and answered as of one moment between two commits; `engine.state.ReadNeededError` says how.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from bunqueue_trio.model.job import JobRecord


class CompletedPage(Struct, eq=False):
    """A page over the completed jobs of a queue and some live ones together, createdAt then id.

    ``live`` are live jobs as they stand in the list of all that are asked for, without the first ``skipped``: all that
    may be on the page. ``over`` are ids whose rows do not count.
    The answer, ``page``, is in order; records of completed jobs come from the file. It is None when their data exceeds
    ``max_bytes``.
    """

    command: Any
    queue: str
    offset: int
    limit: int
    max_bytes: int
    live: list[JobRecord]
    skipped: int
    over: list[str]
    page: list[JobRecord] | None = None


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


Question = CompletedPage | OldestCompleted
