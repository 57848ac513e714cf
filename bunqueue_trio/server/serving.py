"""Answers those who are parked: pulls when there is a job for them, waits when their job has ended, all of them when
their time is over or the server stops.

Synchronous: between taking a job and handing its reply over nothing can be cancelled.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from bunqueue_trio.model.commands import WaitJob
from bunqueue_trio.server.job_waits import JobWaits
from bunqueue_trio.server.waiting import Client, Waiter, Waiting, empty_reply

if TYPE_CHECKING:
    from bunqueue_trio.engine.core import Engine
    from bunqueue_trio.model.instant import Now
    from bunqueue_trio.server.latencies import Latencies


class Serving:
    """Parked pulls and waits of one server, and the way from the engine to them."""

    def __init__(self, engine: Engine, latencies: Latencies) -> None:
        self.waiting = Waiting()
        self.job_waits = JobWaits(engine.state)
        self._engine = engine
        self._latencies = latencies
        engine.state.has_parked_pull = lambda queue: bool(self.waiting.lanes(queue))

    def serve_pulls(self, now: Now) -> None:
        """Give runnable jobs to parked pulls, in the order of their arrival."""
        wakes = self._engine.state.wakes
        if not self.waiting.count:
            wakes.clear()
            return
        while wakes:
            name, count = wakes.popitem()
            if self.waiting.has_lanes(name):
                self._serve_lanes(name, count, now)
                continue
            while count and (waiter := self.waiting.first(name)) is not None and self._serve(waiter, now):
                count -= 1

    def release(self, waiter: Waiter) -> Client | None:
        """The wait is over, whatever the reason; returns whom to answer."""
        waits = self.job_waits if isinstance(waiter.command, WaitJob) else self.waiting
        return waits.release(waiter)

    def end_expired(self, mono_ms: float) -> None:
        """Answer those whose time is over."""
        self._send_away(self.waiting.expired(mono_ms) + self.job_waits.expired(mono_ms))

    def end_all(self) -> None:
        """Answer everybody: the server stops."""
        self._send_away(self.waiting.everyone() + self.job_waits.everyone())

    def next_deadline_mono_ms(self) -> float:
        """When `end_expired` is due; infinity when nobody waits."""
        return min(self.waiting.next_deadline_mono_ms(), self.job_waits.next_deadline_mono_ms())

    def _serve_lanes(self, queue: str, count: int, now: Now) -> None:
        """The same where pulls wait that say different things about groups. Cost: a look at the first of each lane."""
        waiting = self.waiting
        heads = [(waiter.order, waiter) for key in waiting.lanes(queue) if (waiter := waiting.first(key)) is not None]
        heapify(heads)
        while count and heads:
            _, waiter = heappop(heads)
            if waiter.client is None or not self._serve(waiter, now):
                continue
            count -= 1
            heir = waiting.first(waiter.key)
            if heir is not None:
                heappush(heads, (heir.order, heir))

    def _serve(self, waiter: Waiter, now: Now) -> bool:
        """Answer a pull that waits, if there is anything for it."""
        assert waiter.client is not None
        reply = self._engine.execute(waiter.command, now, waiter.client.id)
        if reply is None:
            return False
        client = self.waiting.release(waiter)
        assert client is not None
        parked_mono_ms = waiter.deadline_mono_ms - waiter.command.timeout
        self._latencies.pull.observe(now.mono_ms - parked_mono_ms)
        client.answer(waiter, reply)
        return True

    def _send_away(self, waiters: list[Waiter]) -> None:
        """Answer those who wait no longer, and got nothing."""
        for waiter in waiters:
            client = self.release(waiter)
            if client is not None:
                client.answer(waiter, empty_reply(waiter.command))
