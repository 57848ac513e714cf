"""Parked commands: who waits for a job of which queue, or for the end of which job, in what order, and until when.

What is parked is data, not a task: when a job arrives, or ends, the broker serves it on the spot. So a pull cannot take
a job and then be cancelled, and a connection that closes takes its waiters along in the same breath.

Pulls of one queue that say different things about groups wait in lanes of their own: one that cannot be served holds up
nobody in another lane.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from heapq import heappop, heappush
from typing import Protocol

from bunqueue_trio.model.commands import ABSENT, Pull, PullBatch, WaitJob
from bunqueue_trio.model.flow_replies import WaitReply
from bunqueue_trio.model.grouping import PullGroup
from bunqueue_trio.model.replies import JobReply, JobsReply, Reply

MAX_PARKED = 50  # commands of one connection that may wait at once (protocol 1.5)


class Client(Protocol):
    """Where a parked command came from. ``id`` is None for somebody without a connection, who can hold nothing."""

    @property
    def id(self) -> int | None:
        """What jobs are leased to, and workers belong to."""
        ...

    @property
    def is_waiting(self) -> bool:
        """True while replies are outstanding."""
        ...

    def answer(self, waiter: Waiter, reply: Reply) -> None:
        """Deliver the reply of a command that was parked. Must not block."""
        ...


Parkable = Pull | PullBatch | WaitJob
Key = str | tuple[str, PullGroup]
"""The id of a job; a queue; or a queue and what a pull of it says about groups."""


class Waiter:
    """One parked command. ``client`` is None once it has been answered or given up; ``key`` is what it waits for."""

    __slots__ = ("client", "command", "deadline_mono_ms", "key", "order")

    def __init__(self, client: Client, command: Parkable, deadline_mono_ms: float, order: int) -> None:
        self.client: Client | None = client
        self.command = command
        self.key: Key = _key_of(command)
        self.deadline_mono_ms = deadline_mono_ms
        self.order = order

    def __lt__(self, other: Waiter) -> bool:
        return (self.deadline_mono_ms, self.order) < (other.deadline_mono_ms, other.order)


class Parked:
    """Returned for a command that waits: its reply comes later, through `Client.answer`."""

    __slots__ = ("waiter",)

    def __init__(self, waiter: Waiter) -> None:
        self.waiter = waiter


class Waiting:
    """Parked commands of one kind: pulls by queue, or waits for jobs by id."""

    def __init__(self) -> None:
        # Ordered: the first is found, and any one removed, in constant time.
        self._by_key: dict[Key, OrderedDict[Waiter, None]] = {}
        self._lanes: dict[str, dict[Key, None]] = {}
        self._deadlines: list[Waiter] = []
        self._order = 0
        self.count = 0

    def park(self, client: Client, command: Parkable, deadline_mono_ms: float) -> Waiter:
        """Let a command wait until then."""
        self._order += 1
        waiter = Waiter(client, command, deadline_mono_ms, self._order)
        key = waiter.key
        self._by_key.setdefault(key, OrderedDict())[waiter] = None
        if type(key) is tuple:
            self._lanes.setdefault(key[0], {})[key] = None
        heappush(self._deadlines, waiter)
        self.count += 1
        return waiter

    def sizes(self) -> dict[str, int]:
        """Of each collection; see `server.heap`."""
        return {
            "waiting": self.count,
            "keys": len(self._by_key),
            "lanes": sum(map(len, self._lanes.values())),
            "deadlines": len(self._deadlines),
        }

    def has_lanes(self, queue: str) -> bool:
        """Whether pulls of the queue wait that say something about groups."""
        return queue in self._lanes

    def lanes(self, queue: str) -> Iterable[Key]:
        """What different pulls of the queue wait for."""
        own = self._lanes.get(queue, ())
        return [queue, *own] if queue in self._by_key else list(own)

    def first(self, key: Key) -> Waiter | None:
        """Who has waited longest for *key*: a job of that queue, or the end of that job."""
        waiters = self._by_key.get(key)
        return None if waiters is None else next(iter(waiters))

    def release(self, waiter: Waiter) -> Client | None:
        """The wait is over, whatever the reason; returns whom to answer."""
        client, waiter.client = waiter.client, None
        if client is not None:
            self.count -= 1
            name = waiter.key
            waiters = self._by_key[name]
            del waiters[waiter]
            if not waiters:
                del self._by_key[name]
                if type(name) is tuple:
                    self._leave_lane(name[0], name)
            self._sweep()
        return client

    def _leave_lane(self, queue: str, key: Key) -> None:
        lanes = self._lanes[queue]
        del lanes[key]
        if not lanes:
            del self._lanes[queue]

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
        """All who wait, by what for and arrival."""
        return [waiter for waiters in self._by_key.values() for waiter in waiters]

    def _sweep(self) -> None:
        """Answered waiters with far deadlines must not pile up: sixty seconds of them are many."""
        if len(self._deadlines) > 1_000 and len(self._deadlines) > 4 * self.count:
            self._deadlines = sorted(w for w in self._deadlines if w.client is not None)


def _key_of(command: Parkable) -> Key:
    if isinstance(command, WaitJob):
        job_id: str = command.id
        return job_id
    queue: str = command.queue
    return queue if command.group is ABSENT else (queue, command.group)


def empty_reply(command: Parkable) -> Reply:
    """What a pull gets that found nothing, and a wait that did not see its job complete."""
    if isinstance(command, WaitJob):
        return WaitReply()
    if isinstance(command, PullBatch):
        return JobsReply(jobs=[]) if command.owner is None else JobsReply(jobs=[], tokens=[])
    return JobReply(job=None) if command.owner is None else JobReply(job=None, token=None)
