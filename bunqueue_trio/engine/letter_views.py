"""Looks at the dead letters of a queue: pages of them, with or without a filter, and their statistics.

Source: commands, "Dead letter queue"; newer clients, 12.
"""

from collections.abc import Iterable
from itertools import islice

from msgspec import UNSET

from bunqueue_trio.engine.job_forms import given_letter
from bunqueue_trio.engine.letter_filter import selected
from bunqueue_trio.engine.lists import PAGE_MAX_BYTES, RECORD_BYTES
from bunqueue_trio.engine.queries import Queries
from bunqueue_trio.engine.state import State
from bunqueue_trio.errors import BunqueueError, LimitError
from bunqueue_trio.model.commands import Dlq, GetDlqStats
from bunqueue_trio.model.entries import DlqEntry
from bunqueue_trio.model.instant import Now
from bunqueue_trio.model.replies import DataReply, LettersReply

LETTERS_AT_ONCE = 200  # some 2 ms to encode; a reply of more is made in several turns
TOO_MANY = "Too many dead letters for one reply: use count, or limit and offset of the filter"


class LongReplyError(BunqueueError):
    """So many dead letters are meant that their reply is to be made in several turns.

    Attributes:
        entries: what it is to show, in order; they stay as they are.
        shows_entries: show the entries beside the jobs.
        is_newer: in which form jobs are shown.
    """

    def __init__(self, entries: list[DlqEntry], *, shows_entries: bool, is_newer: bool) -> None:
        super().__init__(f"a reply of {len(entries)} dead letters")
        self.entries = entries
        self.shows_entries = shows_entries
        self.is_newer = is_newer


class LetterViews:
    """Reads dead letters."""

    def __init__(self, state: State, queries: Queries) -> None:
        self._state = state
        self._queries = queries

    def dlq(self, command: Dlq, now: Now) -> LettersReply:
        """Jobs of the dead letters that are meant, oldest first, at most ``count``.

        With their entries when the command has a ``filter``, whatever it holds, or is of a newer client (NC-8).

        Raises:
            LimitError: that many do not fit into one reply.
            LongReplyError: they do, in several turns.

        Cost: a look at each letter until enough are found, some 0.2 µs, and what is in the reply.
        """
        queue = self._state.queues.get(command.queue)
        if queue is None:
            meant: Iterable[DlqEntry] = ()
        else:
            meant = islice(selected(queue, command.selection, now), command.count)
        shows_entries = bool(command.filter or command.is_newer)
        entries = _bounded(meant, 2 if shows_entries else 1)
        if len(entries) > LETTERS_AT_ONCE:
            raise LongReplyError(entries, shows_entries=shows_entries, is_newer=bool(command.is_newer))
        shown = [given_letter(entry, is_newer=command.is_newer) for entry in entries]
        return LettersReply(jobs=[entry.job for entry in shown], entries=shown if shows_entries else UNSET)

    def statistics(self, command: GetDlqStats, now: Now) -> DataReply:
        """How many there are, by reason, with their times. O(dead letters)."""
        return DataReply(data={"stats": self._queries.dead_letter_statistics(command.queue, now)})


def _bounded(entries: Iterable[DlqEntry], copies: int) -> list[DlqEntry]:
    """
    Args:
        copies: how often the reply shows a job.
    Raises:
        LimitError: no client could receive them.
    """
    found: list[DlqEntry] = []
    room = PAGE_MAX_BYTES // copies
    for entry in entries:
        room -= RECORD_BYTES + len(entry.job.data)
        if room < 0:
            raise LimitError(TOO_MANY)
        found.append(entry)
    return found
