"""Sums over all queues, kept in step with the counters of each, so that nobody has to walk through the queues.

A counter that changes in many rooms is a `Summed` one, and dead letters live in `Letters`: both carry the sum along,
whoever changes them. Ready and delayed jobs are counted by `QueueState` alone, which does it by hand: that is the hot
path, and a descriptor costs a tenth of a microsecond.
"""

from __future__ import annotations

from typing import Any

from bunqueue_trio.model.entries import DlqEntry

_NOTHING: Any = object()


class Gauges:
    """How many jobs are in each state, over all queues; active ones are counted by `State`.

    ``completed`` counts the jobs that the file keeps, ``dead`` the dead letters.
    """

    __slots__ = ("completed", "dead", "delayed", "parked", "prioritized", "waiting")

    def __init__(self) -> None:
        self.waiting = self.prioritized = self.delayed = self.parked = self.completed = self.dead = 0

    @property
    def queued(self) -> int:
        """Waiting, prioritized and delayed together."""
        return self.waiting + self.prioritized + self.delayed


class Summed:
    """A counter of one queue whose changes reach the gauge of the same name.

    The owner has ``gauges``, and a slot ``_<name>_count`` that starts at 0.
    """

    __slots__ = ("_gauge", "_slot")

    def __init__(self, gauge: str) -> None:
        self._gauge = gauge
        self._slot = f"_{gauge}_count"

    def __get__(self, queue: Any, owner: type | None = None) -> int:
        count: int = getattr(queue, self._slot)
        return count

    def __set__(self, queue: Any, count: int) -> None:
        gauges = queue.gauges
        setattr(gauges, self._gauge, getattr(gauges, self._gauge) + count - getattr(queue, self._slot))
        setattr(queue, self._slot, count)


class Letters(dict[str, DlqEntry]):
    """The dead letters of one queue by id, oldest first; their number is part of ``gauges.dead``.

    Filled and emptied entry by entry: ``update``, ``setdefault`` and ``|=`` would pass the gauge by.
    """

    __slots__ = ("gauges",)

    def __init__(self, gauges: Gauges) -> None:
        super().__init__()
        self.gauges = gauges

    def __setitem__(self, job_id: str, entry: DlqEntry) -> None:
        self.gauges.dead += job_id not in self
        super().__setitem__(job_id, entry)

    def __delitem__(self, job_id: str) -> None:
        super().__delitem__(job_id)
        self.gauges.dead -= 1

    def pop(self, job_id: str, default: Any = _NOTHING) -> Any:
        """As of any dict."""
        self.gauges.dead -= job_id in self
        return super().pop(job_id) if default is _NOTHING else super().pop(job_id, default)

    def clear(self) -> None:
        """As of any dict."""
        self.gauges.dead -= len(self)
        super().clear()
