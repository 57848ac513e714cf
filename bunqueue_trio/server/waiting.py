"""Parked pulls: who waits for a job of which queue, in order of arrival, and until when.

A parked pull is data, not a task: when a job arrives the broker serves it on the spot. So it cannot take a job and then
be cancelled, and a connection that closes takes its waiters along in the same breath.
"""

from __future__ import annotations

from collections import OrderedDict
from heapq import heappop, heappush
from typing import Protocol

from bunqueue_trio.model.commands import Pull, PullBatch
from bunqueue_trio.model.replies import JobReply, JobsReply, Reply


class Client(Protocol):
    """Where a parked pull came from."""

    id: int

    @property
    def is_waiting(self) -> bool:
        """True while replies are outstanding."""
        ...

    def answer(self, waiter: Waiter, reply: Reply) -> None:
        """Deliver the reply of a pull that was parked. Must not block."""
        ...


class Waiter:
    """One parked pull. ``client`` is None once it has been answered or given up."""

    __slots__ = ("client", "command", "deadline_mono_ms", "order")

    def __init__(self, client: Client, command: Pull | PullBatch, deadline_mono_ms: float, order: int) -> None:
        self.client: Client | None = client
        self.command = command
        self.deadline_mono_ms = deadline_mono_ms
        self.order = order

    def __lt__(self, other: Waiter) -> bool:
        return (self.deadline_mono_ms, self.order) < (other.deadline_mono_ms, other.order)


class Waiting:
    """All parked pulls."""

    def __init__(self) -> None:
        # Ordered: the first is found, and any one removed, in constant time.
        self._by_queue: dict[str, OrderedDict[Waiter, None]] = {}
        self._deadlines: list[Waiter] = []
        self._order = 0
        self.count = 0

    def park(self, client: Client, command: Pull | PullBatch, deadline_mono_ms: float) -> Waiter:
        """Let a pull wait until then."""
        self._order += 1
        waiter = Waiter(client, command, deadline_mono_ms, self._order)
        self._by_queue.setdefault(command.queue, OrderedDict())[waiter] = None
        heappush(self._deadlines, waiter)
        self.count += 1
        return waiter

    def first(self, queue: str) -> Waiter | None:
        """Who has waited longest for a job of *queue*."""
        waiters = self._by_queue.get(queue)
        return None if waiters is None else next(iter(waiters))

    def release(self, waiter: Waiter) -> Client | None:
        """The wait is over, whatever the reason; returns whom to answer."""
        client, waiter.client = waiter.client, None
        if client is not None:
            self.count -= 1
            name = waiter.command.queue
            waiters = self._by_queue[name]
            del waiters[waiter]
            if not waiters:
                del self._by_queue[name]
            self._sweep()
        return client

    def next_deadline_mono_ms(self) -> float:
        """When the first wait ends without a job; infinity when nobody waits."""
        while self._deadlines and self._deadlines[0].client is None:
            heappop(self._deadlines)
        return self._deadlines[0].deadline_mono_ms if self._deadlines else float("inf")

    def expired(self, mono_ms: float) -> list[Waiter]:
        """Those whose time is over, in the order of their deadlines. They are still to be released."""
        over = []
        while self._deadlines and self._deadlines[0].deadline_mono_ms <= mono_ms:
            waiter = heappop(self._deadlines)
            if waiter.client is not None:
                over.append(waiter)
        return over

    def everyone(self) -> list[Waiter]:
        """All who wait, by queue and arrival."""
        return [waiter for waiters in self._by_queue.values() for waiter in waiters]

    def _sweep(self) -> None:
        """Answered waiters with far deadlines must not pile up: sixty seconds of them are many."""
        if len(self._deadlines) > 1_000 and len(self._deadlines) > 4 * self.count:
            self._deadlines = sorted(w for w in self._deadlines if w.client is not None)


def empty_reply(command: Pull | PullBatch) -> Reply:
    """What a pull gets that found nothing."""
    if isinstance(command, PullBatch):
        return JobsReply(jobs=[]) if command.owner is None else JobsReply(jobs=[], tokens=[])
    return JobReply(job=None) if command.owner is None else JobReply(job=None, token=None)
