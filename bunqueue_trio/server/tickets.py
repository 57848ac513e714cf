"""Promises of a commit: replies that leave when their flush has committed, or say no when it has not."""

from __future__ import annotations

from typing import Protocol

import trio

from bunqueue_trio.model.replies import ErrorReply, Reply


class Confirmable(Protocol):
    """Who waits for a commit."""

    def confirm(self, replies: list[Reply]) -> None:
        """Their commit has come, or failed and the replies say so: deliver them. Must not block."""
        ...


class Ticket:
    """One flush that has not happened yet, and the replies that wait for it."""

    def __init__(self) -> None:
        self._waiting: dict[Confirmable, list[Reply]] = {}
        self._settled = [trio.Event()]  # this one's own first, then those of tickets it has absorbed
        self.is_awaited = False
        self.turns: list[tuple[float, list[type]]] = []
        """When each turn began that waits for this one (stopwatch ms), and the types of the commands it awaits."""

    def sizes(self) -> dict[str, int]:
        """Of each collection; see `server.heap`."""
        return {
            "promised": len(self._waiting),
            "turns": len(self.turns),
            "absorbed": len(self._settled) - 1,
        }

    def add(self, client: Confirmable, reply: Reply) -> None:
        """Deliver *reply* to *client* after the commit."""
        self.is_awaited = True
        waiting = self._waiting.get(client)
        if waiting is None:
            self._waiting[client] = [reply]
        else:
            waiting.append(reply)

    async def wait(self) -> None:
        """Wait until the flush has committed or failed."""
        self.is_awaited = True
        await self._settled[0].wait()

    def settle(self) -> None:
        """The flush has committed."""
        for client, replies in self._waiting.items():
            client.confirm(replies)
        self._end()

    def refuse(self, text: str) -> None:
        """The flush has failed: everybody is told so."""
        for client, replies in self._waiting.items():
            client.confirm([ErrorReply(error=text, req_id=reply.req_id) for reply in replies])
        self._end()

    def absorb(self, newer: Ticket) -> None:
        """The flush was put off: who waited for the next one waits for this one now."""
        for client, replies in newer._waiting.items():
            self._waiting.setdefault(client, []).extend(replies)
        self.is_awaited = self.is_awaited or newer.is_awaited
        newer._waiting.clear()
        self._settled += newer._settled
        self.turns += newer.turns

    def _end(self) -> None:
        self._waiting.clear()
        for settled in self._settled:
            settled.set()


class Verdict:
    """What became of a commit that no connection waits for by itself."""

    def __init__(self) -> None:
        self.reply = Reply()

    def confirm(self, replies: list[Reply]) -> None:
        """The commit has come, or failed."""
        [self.reply] = replies
