"""How many jobs of a queue have ended, minute by minute: counted with each flush, kept in the file alone.

What a flush carries is counted once, when it is taken, and goes into the file as a difference, in the same transaction
as the jobs themselves: so the file counts what has committed, no more and no less, whatever happens. Memory holds
nothing of it, however many queues there are; who asks has the file read.

Failures are those that ``total_failed`` counts: final ones, by FAIL or at the time limit, and parents that fail with a
child.

Source: newer clients, 13 "Metrics".
"""

from bunqueue_trio.engine.reading import ReadNeededError
from bunqueue_trio.engine.state import State
from bunqueue_trio.model.changes import Changes
from bunqueue_trio.model.commands import Metrics
from bunqueue_trio.model.instant import Now
from bunqueue_trio.model.questions import QueueSeries
from bunqueue_trio.model.replies import DataReply
from bunqueue_trio.model.transitions import Removal, Transition, TransitionKind

MINUTES_KEPT = 20_160  # two weeks
MINUTE_MS = 60_000
COUNT_MAX = 2**32 - 1  # beyond that clients are told floats, as everywhere

_COMPLETE, _BURY = TransitionKind.COMPLETE, TransitionKind.BURY


def count_ends(changes: Changes) -> None:
    """Note in *changes*, which a flush is about to carry, how many jobs of each queue end with it.

    Cost: some 60 ns per staged change.
    """
    if not (changes.staged or changes.failures):
        return
    completed: dict[str, int] = {}
    failed = dict(changes.failures)
    for change in changes.staged:
        if type(change) is Transition:
            kind = change.kind
            if kind is _COMPLETE:
                queue = change.record.queue
                completed[queue] = completed.get(queue, 0) + 1
            elif kind is _BURY:
                queue = change.record.queue
                failed[queue] = failed.get(queue, 0) + 1
        elif type(change) is Removal and change.is_whole:  # what has ended before is forgotten with the queue
            completed.pop(change.queue, None)
            failed.pop(change.queue, None)
    changes.ended = {queue: (completed.get(queue, 0), failed.get(queue, 0)) for queue in completed | failed}


class Series:
    """Answers for single queues; lent to the engine by whoever answers for the server as a whole."""

    def __init__(self, state: State) -> None:
        self._state = state

    def metrics(self, command: Metrics, now: Now) -> DataReply:
        """How many jobs of a queue have completed, or failed for good; the newest minute first, gaps are 0.

        Shape: ``{"meta": {"count": in all, "prevTS": epoch ms of the last one, "prevCount": those of its minute},
        "data": counts from minute ``start`` to ``end``, "count": how many minutes there are}``; 0 where nothing ended.

        Raises:
            ReadNeededError: always, until the file has answered.

        Cost: a look at each of at most 20,160 minutes, 1 ms.
        """
        answer = self._state.answered(command)
        if not isinstance(answer, QueueSeries):
            if not self._state.holds_file:
                raise ReadNeededError
            raise ReadNeededError(QueueSeries(command, command.queue, command.kind))
        return DataReply(data=_shown(answer, command.start, command.end))


def _shown(series: QueueSeries, start: int, end: int) -> dict[str, object]:
    if series.last_ms is None or series.minutes is None:
        return {"meta": {"count": 0, "prevTS": 0, "prevCount": 0}, "data": [], "count": 0}
    newest = int(series.last_ms // MINUTE_MS)
    # Minutes ahead of the last one are of a clock that has been put back since.
    known = [minute for minute in series.minutes if newest - MINUTES_KEPT < minute <= newest]
    length = newest - min(known, default=newest) + 1
    stop = length if end < 0 else min(end + 1, length)
    return {
        "meta": {
            "count": series.total if series.total <= COUNT_MAX else float(series.total),
            "prevTS": series.last_ms,
            "prevCount": series.minutes.get(newest, 0),
        },
        "data": [series.minutes.get(newest - index, 0) for index in range(start, stop)],
        "count": length,
    }
