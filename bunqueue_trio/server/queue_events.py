"""The events of single queues, as frames for the connections that have subscribed to them.

An event is encoded once, however many hear of it; all that has happened to a queue in one turn is one piece, the same
bytes for all its subscribers. A piece leaves at once. Only where sending takes long, because the subscribers are many,
do events wait for each other, so that they get no more than a third of the loop; what comes up meanwhile leaves in the
same write. Who does not read is cut by the write budget of its connection.

Source: newer clients, "Events"; D-105.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Sequence
from typing import Protocol

import trio

from bunqueue_trio.errors import LimitError
from bunqueue_trio.model.events import Event, JobEvent
from bunqueue_trio.protocol.codec import encode_event

MAX_SUBSCRIBERS = 10_000  # as many as there may be connections, by default
MAX_WAITING_BYTES = 8 << 20  # of events that wait for their turn; beyond it they do not wait
SLICE_MS = 1.0  # so long events are sent in a row
LOOK_EVERY = 16  # pieces between two looks at the clock
REST_FACTOR = 2.0


class Receiver(Protocol):
    """A connection that may subscribe."""

    def tell(self, frames: bytes) -> None:
        """Send *frames*, each complete, behind what has been sent so far. Must not block."""
        ...


class _Seat:
    """One subscription. ``skip`` is how many of the frames that wait in its room are older than it."""

    __slots__ = ("is_open", "receiver", "room", "skip")

    def __init__(self, receiver: Receiver, room: _Room) -> None:
        self.receiver = receiver
        self.room = room
        self.skip = len(room.frames)
        self.is_open = True


class _Room:
    """A queue somebody has subscribed to, and what is still to be sent of it."""

    __slots__ = ("frames", "queue", "seats")

    def __init__(self, queue: str) -> None:
        self.queue = queue
        self.frames: list[bytes] = []
        self.seats: dict[_Seat, None] = {}


class QueueEvents:
    """Who has subscribed to which queue, each to one at most.

    Args:
        stopwatch_ms: real time, to measure how long sending takes.
    """

    def __init__(self, stopwatch_ms: Callable[[], float], *, max_subscribers: int = MAX_SUBSCRIBERS) -> None:
        self._stopwatch_ms = stopwatch_ms
        self._max_subscribers = max_subscribers
        self._seats: dict[Receiver, _Seat] = {}
        self._rooms: dict[str, _Room] = {}
        self._filled: deque[_Room] = deque()
        """Rooms in which frames wait."""
        self._pieces: deque[tuple[_Seat, bytes]] = deque()
        """What is left of the room whose turn it is."""
        self._waiting_bytes = 0
        self._rests_until_ms = 0.0
        self._wanted = trio.Event()

    @property
    def subscriber_count(self) -> int:
        """How many there are."""
        return len(self._seats)

    @property
    def queues(self) -> Container[str]:
        """The queues somebody has subscribed to, now and whenever it is asked."""
        return self._rooms

    def sizes(self) -> dict[str, int]:
        """Of each collection; see `server.heap`."""
        return {
            "seats": len(self._seats),
            "rooms": len(self._rooms),
            "roomsFilled": len(self._filled),
            "frames": sum([len(room.frames) for room in self._filled]),
            "pieces": len(self._pieces),
        }

    def subscribe(self, receiver: Receiver, queue: str) -> None:
        """*receiver* gets all that happens to jobs of *queue* from now on, and nothing of another queue any more.

        Raises:
            LimitError: there are too many subscribers. Nothing has changed.
        """
        if receiver not in self._seats and len(self._seats) >= self._max_subscribers:
            raise LimitError(f"Too many event subscribers (max {self._max_subscribers})")
        self.unsubscribe(receiver)
        room = self._rooms.get(queue)
        if room is None:
            room = self._rooms[queue] = _Room(queue)
        seat = self._seats[receiver] = _Seat(receiver, room)
        room.seats[seat] = None

    def unsubscribe(self, receiver: Receiver) -> None:
        """*receiver* gets nothing more; one that has not subscribed is no error."""
        seat = self._seats.pop(receiver, None)
        if seat is None:
            return
        seat.is_open = False
        room = seat.room
        del room.seats[seat]
        if not room.seats:
            del self._rooms[room.queue]

    # sending

    def take(self, events: Sequence[Event]) -> None:
        """Send what concerns subscribers.

        Cost: a look-up per event; 1 µs for each that somebody hears of, and a write for each who does.
        """
        rooms = self._rooms
        for event in events:
            if isinstance(event, JobEvent) and (room := rooms.get(event.queue)) is not None:
                frame = encode_event(event)
                if not room.frames:
                    self._filled.append(room)
                room.frames.append(frame)
                self._waiting_bytes += len(frame)
        if self._waiting_bytes > MAX_WAITING_BYTES:
            self.send_all()
        elif self._filled:
            if self._stopwatch_ms() >= self._rests_until_ms:
                self._send(SLICE_MS)
            else:
                self._wanted.set()

    def send_all(self) -> None:
        """Let nothing wait any longer."""
        self._send(float("inf"))

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Send what had to wait. Returns only when cancelled."""
        task_status.started()
        while True:
            await self._wanted.wait()
            self._wanted = trio.Event()
            await trio.sleep(max(0.0, self._rests_until_ms - self._stopwatch_ms()) / 1000)
            self._send(SLICE_MS)

    def _send(self, slice_ms: float) -> None:
        started_ms = now_ms = self._stopwatch_ms()
        pieces = self._pieces
        while now_ms - started_ms < slice_ms and (pieces or self._next_room()):
            for _ in range(min(LOOK_EVERY, len(pieces))):
                seat, frames = pieces.popleft()
                if seat.is_open:
                    seat.receiver.tell(frames)
            now_ms = self._stopwatch_ms()
        self._rests_until_ms = now_ms + (now_ms - started_ms) * REST_FACTOR
        if pieces or self._filled:
            self._wanted.set()

    def _next_room(self) -> bool:
        """Whose turn comes next; False when there is nothing to send."""
        if not self._filled:
            return False
        room = self._filled.popleft()
        frames, room.frames = room.frames, []
        whole = frames[0] if len(frames) == 1 else b"".join(frames)
        self._waiting_bytes -= len(whole)
        for seat in room.seats:
            skip, seat.skip = seat.skip, 0
            if skip < len(frames):
                self._pieces.append((seat, b"".join(frames[skip:]) if skip else whole))
        return True
