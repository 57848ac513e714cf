"""Numbers for events, and the newest of them kept, so that a stream that was cut off can go on where it stopped.

A client that comes back names the last number it has seen. It is given what was kept since, or told that there is a
gap: when more has happened than is kept, when nobody recorded for a while, or when the number is of another life of
the server. For the last case numbers must not begin anew with each start: see ``first_id``.

Knows nothing of the engine, of connections or of time: whoever owns streams records while there are any and for a while
after the last has gone, and calls `pause` when that while is over. So a server without streams makes no events.

Source: HTTP, "Replay"; HD-14.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from msgspec import UNSET, Struct, structs

from bunqueue_trio.model.events import Event, JobEvent

MAX_KEPT = 1_000
MAX_DIGITS = 20
MAX_KEPT_BYTES = 1 << 20  # of errors: most events have none


class Numbered(Struct, frozen=True, gc=False):
    """An event and its number, which is that of no other event of any life of the server."""

    id: int
    event: Event

    @property
    def payload_bytes(self) -> int:
        """As that of the event."""
        return self.event.payload_bytes


class Missed(Struct, frozen=True, gc=False):
    """What a client has missed, oldest first; ``has_gap``: and more that is not known any more."""

    events: list[Numbered]
    has_gap: bool


class Replay:
    """The numbers, and a bounded ring of job events without their payloads.

    Args:
        first_id: the number before the first. Let it rise from one start of the server to the next, by more than any
            life has events: epoch microseconds do, and stay below 2**53.
    """

    def __init__(self, first_id: int = 0, *, max_events: int = MAX_KEPT, max_bytes: int = MAX_KEPT_BYTES) -> None:
        self.last_id = first_id
        """The newest number."""
        self._max_events = max_events
        self._max_bytes = max_bytes
        self._kept: deque[Numbered] = deque()
        self._kept_bytes = 0
        self._complete_from = first_id
        """Whoever has seen this number or a later one has missed nothing that is not kept."""

    def __len__(self) -> int:
        return len(self._kept)

    def record(self, events: Sequence[Event]) -> list[Numbered]:
        """Number *events*, in order, and keep those about jobs. Cost: about 1 µs per event."""
        numbered = []
        for event in events:
            self.last_id += 1
            numbered.append(Numbered(self.last_id, event))
            if isinstance(event, JobEvent):
                self._keep(numbered[-1], event)
        return numbered

    def pause(self) -> None:
        """Nobody records from now on: forget everything, for what comes in between will be unknown."""
        self._kept.clear()
        self._kept_bytes = 0
        # A number that no client has seen; else one that was up to date would seem to have missed nothing.
        self.last_id += 1
        self._complete_from = self.last_id

    def since(self, last_seen_id: int, wants: Callable[[Event], bool] | None = None) -> Missed:
        """What came after *last_seen_id*.

        Args:
            wants: says whether an event concerns the client.

        Cost: O(kept events).
        """
        if not self._complete_from <= last_seen_id <= self.last_id:
            # Of a number from the future nothing can be said but that it is not ours: all that is kept may be news.
            kept: Iterator[Numbered] = iter(self._kept)
            has_gap = True
        else:
            start = bisect_right(self._kept, last_seen_id, key=_id)
            kept = islice(self._kept, start, None)
            has_gap = False
        return Missed([item for item in kept if wants is None or wants(item.event)], has_gap)

    def _keep(self, item: Numbered, event: JobEvent) -> None:
        if event.data is not UNSET:  # streams do not show it, and the ring must not keep it alive
            item = Numbered(item.id, structs.replace(event, data=UNSET))
        self._kept.append(item)
        self._kept_bytes += item.payload_bytes
        while len(self._kept) > self._max_events or self._kept_bytes > self._max_bytes:
            gone = self._kept.popleft()
            self._kept_bytes -= gone.payload_bytes
            self._complete_from = gone.id


def parse_last_id(text: str | None) -> int | None:
    """The number in a ``Last-Event-ID``, or None when it asks for nothing.

    Wire: a leading whole number counts, whatever follows; 0, less, or none is no request.
    """
    digits = ""
    for character in (text or "").strip():
        if not character.isascii() or not character.isdigit():
            break
        digits += character
    number = int(digits[:MAX_DIGITS] or 0)
    return number or None


def _id(item: Numbered) -> int:
    return item.id
