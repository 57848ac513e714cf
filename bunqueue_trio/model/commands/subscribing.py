"""Commands about the events of one queue, for clients of protocol 3."""

from typing import Any

from bunqueue_trio.model.commands.base import Command


class SubscribeEvents(Command, tag="SubscribeEvents"):
    """Have the events of a queue sent to this connection, in place of those of another queue."""

    queue: Any = None


class UnsubscribeEvents(Command, tag="UnsubscribeEvents"):
    """Have no more events sent to this connection."""


class TrimEvents(Command, tag="TrimEvents"):
    """Shorten the journal of a queue's events to its newest ``max_length``."""

    queue: Any = None
    max_length: Any = None
