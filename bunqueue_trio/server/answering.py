"""One command of somebody without a connection: HTTP, and whatever else asks once and goes away.

It is executed, held up and parked as a connection's commands are. What it is given belongs to nobody: no end of a
connection releases it. Only until the answer has been handed over a pulled job belongs to the request, so that it goes
back if nobody is there to take it.

Source: HTTP, "Jobs"; HD-1.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import count
from typing import TYPE_CHECKING, Any

import trio

from bunqueue_trio.errors import CommandError, InvariantError
from bunqueue_trio.model.commands import Pull, PullBatch
from bunqueue_trio.model.instant import Now
from bunqueue_trio.model.replies import ErrorReply, Reply
from bunqueue_trio.protocol.codec import encode_reply
from bunqueue_trio.server.holding import HOLDS, Hold, hold_of, see_through
from bunqueue_trio.server.waiting import Waiter

if TYPE_CHECKING:
    from bunqueue_trio.server.broker import Broker

INTERNAL_ERROR = "Internal server error"
_ids = count(-1, -1)  # those of connections count upwards


class Request:
    """A client with one command.

    `keep` or `give_back` must follow `carry_out`, whatever became of it. ``reply`` and ``body``, the same as msgpack,
    are there afterwards. The body is made at once, since records of jobs go on changing.
    """

    is_waiting = True

    def __init__(self, broker: Broker, command: Any) -> None:
        # Workers that are registered without a connection belong to none; only what is pulled can be given back.
        self.id: int | None = next(_ids) if isinstance(command, Pull | PullBatch) else None
        self._broker = broker
        self._command = command
        self._waiter: Waiter | None = None
        self._is_executed = False
        self._settled = trio.Event()
        self.reply: Reply = ErrorReply(error=INTERNAL_ERROR)
        self.body = b""

    async def carry_out(self) -> Reply:
        """Execute the command; wait for its commit, its job or its time, whichever it needs.

        Returns:
            Its reply, an `ErrorReply` when it was refused.

        Cancel: what is staged commits all the same. A pull that was parked takes nothing any more.
        """
        if self.id is not None:
            self._broker.engine.connect(self.id)
        await see_through(self, self._broker, Hold([]))
        await self._settled.wait()
        return self.reply

    def keep(self) -> None:
        """The answer is with whoever asked."""
        if self.id is not None:
            self._broker.engine.let_go(self.id)
            self.id = None

    def give_back(self) -> None:
        """Nobody is there to take the answer: what was pulled returns to its queue, and no attempt is counted."""
        waiter, self._waiter = self._waiter, None
        if waiter is not None:
            self._broker.send_nobody(waiter)  # first, or it would be the one to get what comes back
        if self.id is not None:
            self._broker.take_undelivered(self.id)
            self.id = None

    # executing

    def run(self, now: Now) -> Hold | None:
        """Execute the command, unless that is done."""
        if self._is_executed:
            return None
        broker = self._broker
        started_ms = broker.clock.stopwatch_ms()
        hold = None
        try:
            self._execute(now)
        except HOLDS as needed:
            hold = hold_of(needed, broker)
        except CommandError as error:
            self._settle(ErrorReply(error=str(error)))
        except InvariantError:
            raise
        except Exception as error:
            broker.report_defect(error, self._command)
            self._settle(ErrorReply(error=INTERNAL_ERROR))
        broker.after_turn(now, started_ms)
        return hold

    def _execute(self, now: Now) -> None:
        broker = self._broker
        reply = broker.execute(self._command, self, now)
        self._is_executed = True
        if not isinstance(reply, Reply):
            self._waiter = reply.waiter
        elif broker.waits_for_commit:
            broker.ticket.add(self, reply)
        else:
            self._settle(reply)

    async def do_work(self, work: Callable[[], Awaitable[Reply]]) -> None:
        """Await what takes several turns; its reply is that of the command."""
        try:
            reply = await work()
        except InvariantError:
            raise
        except Exception as error:
            self._broker.report_defect(error, self._command)
            reply = ErrorReply(error=INTERNAL_ERROR)
        self._settle(reply)

    def refuse_next(self, text: str) -> None:
        """The command cannot be executed."""
        self._settle(ErrorReply(error=text))

    # replies

    def answer(self, waiter: Waiter, reply: Reply) -> None:
        """A parked command has its reply."""
        self._waiter = None
        self._settle(reply)

    def confirm(self, replies: list[Reply]) -> None:
        """The commit has come, or failed."""
        [reply] = replies
        self._settle(reply)

    def _settle(self, reply: Reply) -> None:
        self._is_executed = True
        self.reply, self.body = encode_reply(reply)
        self._settled.set()
