"""Why a command cannot be executed yet, and what is done about it: the same for every transport.

Whoever executes commands turns the engine's internal exceptions into a `Hold`, and `see_through` waits for what it asks
for and has the commands executed again, until nothing holds them up.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

import trio

from bunqueue_trio.engine.letter_views import LongReplyError
from bunqueue_trio.engine.reading import ReadNeededError
from bunqueue_trio.engine.reruns import PagesNeededError
from bunqueue_trio.engine.state import FactsNeededError, PendingChangeError
from bunqueue_trio.errors import StorageError
from bunqueue_trio.logs import get_logger
from bunqueue_trio.model.instant import Now
from bunqueue_trio.model.replies import Reply
from bunqueue_trio.server.letter_replies import long_reply
from bunqueue_trio.server.rerunning import rerun_completed

if TYPE_CHECKING:
    from bunqueue_trio.model.questions import Question
    from bunqueue_trio.server.broker import Broker

log = get_logger("Queue")

HOLDS: Final = (PendingChangeError, FactsNeededError, PagesNeededError, ReadNeededError, LongReplyError)
"""What `Broker.execute` raises where the command is to be executed again later."""


class Hold:
    """Why a session cannot go on for now.

    ``ids`` must be looked up in the file; None: wait for the flush. With ``yields`` it can go on at once, as soon as
    others have had a turn. With ``work`` the command in front takes several turns: hand it to `Held.do_work`. With
    ``read`` the file has to answer: run the session within `FileReads.answer`, and once more after it; then
    ``read.question`` is what it asks.
    """

    __slots__ = ("ids", "read", "work", "yields")

    def __init__(
        self,
        ids: list[str] | None = None,
        *,
        work: Callable[[], Awaitable[Reply]] | None = None,
        read: ReadNeededError | None = None,
        yields: bool = False,
    ) -> None:
        self.ids = ids
        self.yields = yields
        self.work = work
        self.read = read


class Held(Protocol):
    """Who executes commands, and is held up."""

    def run(self, now: Now) -> Hold | None:
        """Execute as far as possible; None when nothing more is held up."""
        ...

    async def do_work(self, work: Callable[[], Awaitable[Reply]]) -> None:
        """Await the work of a `Hold`: it answers the command in front."""
        ...

    def refuse_next(self, text: str) -> None:
        """The command that is held up cannot be executed."""
        ...


def hold_of(error: Any, broker: Broker) -> Hold:
    """What one of `HOLDS` asks for."""
    if isinstance(error, FactsNeededError):
        return Hold(error.ids)
    if isinstance(error, PagesNeededError):
        return Hold(work=partial(rerun_completed, broker, error.queue, error.count, error.completed_by))
    if isinstance(error, LongReplyError):
        return Hold(work=partial(long_reply, error))
    if isinstance(error, ReadNeededError):
        return Hold(read=error)
    return Hold()


async def see_through(held: Held, broker: Broker, hold: Hold | None) -> None:
    """Wait for what *held* needs and let it go on, until it needs nothing.

    Cancel: what has been staged commits all the same.
    """
    while hold is not None:
        if hold.work is not None:
            await held.do_work(hold.work)
        elif hold.read is not None:
            await _read_file(held, broker)
        elif hold.yields:
            await trio.lowlevel.checkpoint()
        elif hold.ids is None:
            await broker.wait_for_flush()
        elif hold.ids:
            try:
                await broker.learn(hold.ids)
            except StorageError as error:
                _refuse_unread(held, error)
        hold = held.run(broker.clock.now())
        broker.engine.clear_facts()  # a fact is as old as its look-up: the next command makes its own


async def _read_file(held: Held, broker: Broker) -> None:
    """The next command needs an answer from the file."""

    def ask() -> Question | None:
        hold = held.run(broker.clock.now())
        return None if hold is None or hold.read is None else hold.read.question

    try:
        await broker.file_reads.answer(ask)
    except StorageError as error:
        _refuse_unread(held, error)


def _refuse_unread(held: Held, error: StorageError) -> None:
    log.error("The data file cannot be read", error=str(error))
    held.refuse_next(f"Storage unavailable: {error}")
