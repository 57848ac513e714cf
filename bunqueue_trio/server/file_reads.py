"""What memory does not hold is read from the file, as it is at one moment between two commits.

The engine says what it needs by `ReadNeededError`. Whoever executes commands then awaits `FileReads.answer` and
executes once more; nothing but its own later commands waits for that. A flush waits only while the snapshot is taken,
the read itself goes on beside it.

    memory    ---- commit N ----|  asked here  |---- commit N + 1 ----
    snapshot                      taken here  |=== read ===|  answered, executed again
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import apsw
import trio

from bunqueue_trio.engine.state import State
from bunqueue_trio.model.entries import CompletedJob
from bunqueue_trio.model.questions import Question
from bunqueue_trio.storage import lists


class PinnedReader(Protocol):
    """What `FileReads` needs of a store."""

    async def read_pinned(self, function: Callable[[apsw.Connection], None], pinned: Callable[[], None]) -> None:
        """Call *function* with a connection that sees the file as it is now; *pinned* when commits may go on.

        Cancel: before it starts, or not at all.
        Raises:
            StorageError: the file cannot be read.
        """
        ...


class FileReader(PinnedReader, Protocol):
    """What the broker needs of a store, beside what every session may look up."""

    async def read_completed(self, queue: str, after_seq: int, limit: int) -> list[tuple[int, CompletedJob]]:
        """Completed jobs of *queue* behind a sequence number, in their order, with their own.

        Raises:
            StorageError: the file cannot be read.
        """
        ...


class FileReads:
    """Answers questions, one after the other.

    Args:
        turn: held by the flusher during each flush.
    """

    def __init__(self, state: State, turn: trio.Semaphore, reader: PinnedReader) -> None:
        self._state = state
        self._turn = turn
        self._holds_turn = False
        self._reader = reader
        self._one_at_a_time = trio.Lock()
        self.answered_count = 0

    async def answer(self, ask: Callable[[], Question | None]) -> None:
        """Have a question answered; the command that asks it is to be executed again afterwards, without delay.

        Args:
            ask: executes the command, at a moment when memory and file belong together, and returns the question that
                it raises; None when it needs no answer any more.
        Raises:
            StorageError: the file cannot be read.
        """
        async with self._one_at_a_time:
            question = await self._read(ask)
        if question is not None:
            self.answered_count += 1
            self._state.answer = question

    async def _read(self, ask: Callable[[], Question | None]) -> Question | None:
        await self._turn.acquire()
        self._holds_turn = True
        try:
            question = self._ask(ask)
            if question is None:
                return None
            asked = question
            await self._reader.read_pinned(lambda connection: lists.answer(connection, asked), self._let_flush)
        finally:
            self._let_flush()
        return question

    def _ask(self, ask: Callable[[], Question | None]) -> Question | None:
        self._state.holds_file = True
        try:
            return ask()
        finally:
            self._state.holds_file = False

    def _let_flush(self) -> None:
        if self._holds_turn:
            self._holds_turn = False
            self._turn.release()
