"""Parked WaitJobs: they are answered when their job ends, wherever in the engine that happens.

The engine is told which ids are awaited and notes when one of them ends (`State.note_end`); so nothing is looked at
while nobody waits. D-020.
"""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING

from bunqueue_trio.model.commands import WaitJob
from bunqueue_trio.server.waiting import Client, Waiter, Waiting

if TYPE_CHECKING:
    from bunqueue_trio.engine.state import State


class JobWaits:
    """Clients that wait for the ends of jobs. Keeps ``state.awaited``, and empties ``state.ended``."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._waiting = Waiting()

    @property
    def count(self) -> int:
        """How many wait."""
        return self._waiting.count

    def sizes(self) -> dict[str, int]:
        """Of each collection; see `server.heap`."""
        return self._waiting.sizes()

    def park(self, client: Client, command: WaitJob, deadline_mono_ms: float) -> Waiter:
        """Let a client wait until then."""
        self._state.awaited.add(command.id)
        return self._waiting.park(client, command, deadline_mono_ms)

    def release(self, waiter: Waiter) -> Client | None:
        """The wait is over, whatever the reason; returns whom to answer."""
        client = self._waiting.release(waiter)
        if client is not None and self._waiting.first(waiter.key) is None:
            self._state.awaited.discard(waiter.key)
        return client

    def answer_ended(self) -> None:
        """Tell everybody whose job has ended since the last call."""
        ended, self._state.ended = self._state.ended, {}
        for job_id, reply in ended.items():
            while (waiter := self._waiting.first(job_id)) is not None:
                client = self.release(waiter)
                assert client is not None
                client.answer(waiter, copy(reply))  # each goes out under a request id of its own

    def next_deadline_mono_ms(self) -> float:
        """When the first wait is over; infinity when nobody waits."""
        return self._waiting.next_deadline_mono_ms()

    def expired(self, mono_ms: float) -> list[Waiter]:
        """Those whose time is over. They are still to be released."""
        return self._waiting.expired(mono_ms)

    def everyone(self) -> list[Waiter]:
        """All who wait."""
        return self._waiting.everyone()
