"""When a cron will run: what people are shown, not what is waited for."""

from collections.abc import Iterator

from bunqueue_trio.engine.cron_table import Cron
from bunqueue_trio.model.instant import Now


def runs_ahead(cron: Cron, now: Now) -> Iterator[float]:
    """The runs to come, as epoch ms: the one waited for, then those after it, as if each came in time.

    Ends with the pattern or with the last run that the cron's limit allows; else it never ends. A run that is overdue
    is the first. What skips a run (no worker, overlap) is not known ahead.

    Cost: of each run a search of its pattern, usually 0.1 ms, 1 ms for one that comes round every few years.
    """
    job, timing = cron.job, cron.timing
    left = None if job.max_limit is None else job.max_limit - job.executions
    due: float | None = job.next_run
    while due is not None and (left is None or left > 0):
        yield due
        left = None if left is None else left - 1
        due = timing.run_after(due, max(due, now.wall_ms))
