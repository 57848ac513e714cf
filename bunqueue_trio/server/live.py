"""All who watch the server live: readers of server-sent events and WebSockets, over the one stream of events.

An event is put into words once (`Telling`) and handed to everybody it concerns; who reads too slowly is dropped or
skipped, never waited for.

Source: HTTP, "Server-Sent Events", "WebSocket"; HD-13, HD-14.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import trio

from bunqueue_trio.config import Config
from bunqueue_trio.errors import LimitError
from bunqueue_trio.model.events import Event, SystemEvent
from bunqueue_trio.model.health import HealthReport
from bunqueue_trio.server.facts import LiveFacts
from bunqueue_trio.server.feed import Reader
from bunqueue_trio.server.live_socket import LiveSocket
from bunqueue_trio.server.pace import Pace
from bunqueue_trio.server.replay import Replay
from bunqueue_trio.server.roles import Role
from bunqueue_trio.server.telling import Telling

if TYPE_CHECKING:
    from bunqueue_trio.server.broker import Broker

MAX_READERS = 1_000  # Wire
MAX_SOCKETS = 1_000  # Wire
HEARTBEAT_S = 30.0
HEALTH_S = 10.0
STALLED_S = 60.0  # a write that takes so long goes to nobody
KEEP_S = 300.0  # events go on being kept for readers that may come back (HD-14)
WATCH_S = 5.0
HEARTBEAT = b":heartbeat\n\n"


class Live:
    """The listener behind all streams. `run` must run for them to be served.

    Args:
        new_id: names a reader; epoch ms in, UUIDv7 out.
        health: one look at the server.
    """

    def __init__(
        self, broker: Broker, config: Config, new_id: Callable[[float], str], health: Callable[[], HealthReport]
    ) -> None:
        self._broker = broker
        self._config = config
        self._new_id = new_id
        self._health = health
        self._pace = Pace(broker.clock.stopwatch_ms)
        self._readers: dict[Reader, None] = {}
        self._sockets: dict[LiveSocket, None] = {}
        # Epoch microseconds: no number of an earlier run can be taken for one of this (HD-14).
        self._replay = Replay(int(broker.clock.now().wall_ms) * 1_000)
        self._keeps_until_s: float | None = None
        """None: nothing is kept; infinity: somebody reads."""
        self.is_closed = False
        """From the stop on there are no server-sent events; sockets go on."""
        self._skipped_count = 0
        broker.monitoring.live_facts = self._facts
        broker.monitoring.sized_rooms.append(self._sizes)

    @property
    def reader_count(self) -> int:
        """Open streams of server-sent events."""
        return len(self._readers)

    @property
    def socket_count(self) -> int:
        """Open WebSockets."""
        return len(self._sockets)

    @property
    def member_count(self) -> int:
        """All who watch. Once the server stops only WebSockets do."""
        return len(self._sockets) + (0 if self.is_closed else len(self._readers))

    def _facts(self) -> LiveFacts:
        skipped = self._skipped_count + sum(socket.skipped_count for socket in self._sockets)
        return LiveFacts(sse=self.reader_count, ws=self.socket_count, skipped=skipped)

    def _sizes(self) -> dict[str, int]:
        return {
            "readers": len(self._readers),
            "sockets": len(self._sockets),
            "replay": len(self._replay),
            "pace": len(self._pace),
        }

    # who watches

    def open_reader(
        self, queue: str | None, last_number: int | None, cut: Callable[[], None], roles: Role = Role.ALL
    ) -> Reader:
        """A new stream; `close_reader` must follow.

        Args:
            last_number: the last event it knows of, None for none.
            cut: ends its connection, also in the middle of a write.
            roles: what its token allows.
        Raises:
            LimitError: there are too many.
        """
        if len(self._readers) >= MAX_READERS:
            raise LimitError("Too many SSE connections")
        reader = Reader(queue, roles, self._pace, cut, self._greeting(queue, last_number))
        if self.is_closed:
            reader.close()
            return reader
        self._readers[reader] = None
        self._keeps_until_s = math.inf
        self._listen()
        return reader

    def _greeting(self, queue: str | None, last_number: int | None) -> list[bytes]:
        name = self._new_id(self._broker.clock.now().wall_ms)
        greeting = [b'retry: 3000\ndata: {"connected":true,"clientId":"%b"}\n\n' % name.encode()]
        if last_number is None:
            return greeting
        missed = self._replay.since(last_number)
        if missed.has_gap:
            # It has to look anew; the number goes on from here, or from before what is still there.
            number = missed.events[0].id - 1 if missed.events else self._replay.last_id
            greeting.append(b'id: %d\nevent: reset\ndata: {"lastEventId":%d}\n\n' % (number, last_number))
        tellings = [Telling(item.event, item.id) for item in missed.events]
        return greeting + [telling.record for telling in tellings if telling.concerns(queue)]

    def close_reader(self, reader: Reader) -> None:
        """The stream is over, whoever has ended it."""
        reader.close()
        if reader not in self._readers:
            return
        del self._readers[reader]
        self._broker.events.cut_off_count += reader.was_too_slow
        if not self._readers:
            self._keeps_until_s = trio.current_time() + KEEP_S

    @contextmanager
    def open_socket(
        self, queue: str | None, granted: Role, on_slot: Callable[[], None], cut: Callable[[], None]
    ) -> Iterator[LiveSocket]:
        """A new WebSocket for the time of the block: when it ends, its jobs are released and its workers leave.

        Raises:
            LimitError: there are too many.
        """
        if len(self._sockets) >= MAX_SOCKETS:
            raise LimitError("Too many WebSocket connections")
        socket = LiveSocket(self._broker, self._config, self._pace, queue, granted, on_slot, cut)
        self._sockets[socket] = None
        self._listen()
        socket.session.open()
        try:
            yield socket
        finally:
            del self._sockets[socket]
            self._skipped_count += socket.skipped_count
            socket.session.close()
            self._rest()

    def _listen(self) -> None:
        self._broker.publish_events()  # to those who have listened so far
        self._broker.events.add_audience(self)

    def _rest(self) -> None:
        """Listen no longer if there is nobody to tell, and nothing to keep."""
        if self._keeps_until_s is not None and trio.current_time() >= self._keeps_until_s:
            self._keeps_until_s = None
            self._replay.pause()
        if self._keeps_until_s is None and not self._sockets:
            self._broker.events.remove_audience(self)

    def close(self) -> None:
        """The server stops: the streams of server-sent events end."""
        self.is_closed = True
        for reader in tuple(self._readers):
            reader.close()

    def cut_all(self) -> None:
        """The server ends now: writes that wait for a client fail, since nothing else ends them."""
        for reader in tuple(self._readers):
            reader.close()
            if reader.writing_since_s is not None:
                reader.cut()
        for socket in tuple(self._sockets):
            if socket.writing_since_s is not None:
                socket.cut()

    # what they are told

    def take(self, events: Sequence[Event]) -> None:
        """Tell everybody whom it concerns. Cost: a few µs per event, 0.5 µs per event and watcher."""
        for event in events:
            self._tell_readers(event)
        if self._sockets:
            for event in events:
                self._tell_sockets(event)

    def _tell_readers(self, event: Event) -> None:
        if self._keeps_until_s is None:
            return
        [numbered] = self._replay.record([event])
        if self._readers:
            telling = Telling(event, numbered.id)
            for reader in tuple(self._readers):
                if telling.concerns(reader.queue) and telling.is_open_to(reader.roles):
                    reader.offer(telling.record)

    def _tell_sockets(self, event: Event) -> None:
        telling = Telling(event)
        for socket in tuple(self._sockets):
            socket.offer(telling)

    # at intervals

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """See to pace and intervals. Returns only when cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._pace.run)
            for interval_s, act in (
                (HEARTBEAT_S, self._beat),
                (HEALTH_S, self._tell_health),
                (WATCH_S, self._look_after),
            ):
                nursery.start_soon(_every, interval_s, act)
            task_status.started()

    def _beat(self) -> None:
        for reader in tuple(self._readers):
            reader.offer(HEARTBEAT)

    def _tell_health(self) -> None:
        if not self.member_count:
            return
        report = self._health()
        memory = {"rss": report.memory.rss, "heapUsed": report.memory.heap_used}
        data = {"ok": report.ok, "uptime": report.uptime, "memory": memory}
        if self._readers:
            self._tell(self._tell_readers, {**data, "connections": {"sse": len(self._readers)}})
        if self._sockets:
            self._tell(self._tell_sockets, {**data, "connections": {"ws": len(self._sockets)}})

    def _tell(self, to: Callable[[Event], None], data: dict[str, Any]) -> None:
        to(SystemEvent("health:status", self._broker.clock.now().wall_ms, data))

    def _look_after(self) -> None:
        """Cut off those whose last write does not end; stop listening in time."""
        stalled_s = trio.current_time() - STALLED_S
        for reader in tuple(self._readers):
            if reader.writing_since_s is not None and reader.writing_since_s <= stalled_s:
                reader.drop()
        for socket in tuple(self._sockets):
            if socket.writing_since_s is not None and socket.writing_since_s <= stalled_s:
                socket.cut()
        self._rest()


async def _every(interval_s: float, act: Callable[[], None]) -> None:
    while True:
        await trio.sleep(interval_s)
        act()
