"""All who watch the server live: readers of server-sent events and WebSockets, over the one stream of events.

An event is put into words once (`Telling`) and handed to everybody it concerns; who reads too slowly is dropped or
skipped, never waited for. What is told at intervals is made here too, and only while somebody watches.

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
from bunqueue_trio.model import commands as c
from bunqueue_trio.model.events import Event, SystemEvent
from bunqueue_trio.model.health import HealthReport
from bunqueue_trio.server.feed import Kept, Reader
from bunqueue_trio.server.live_socket import LiveSocket
from bunqueue_trio.server.overviews import Overviews
from bunqueue_trio.server.pace import Pace
from bunqueue_trio.server.roles import Role
from bunqueue_trio.server.telling import Telling

if TYPE_CHECKING:
    from bunqueue_trio.server.broker import Broker

MAX_READERS = 1_000  # Wire
MAX_SOCKETS = 1_000  # Wire
HEARTBEAT_S = 30.0
STATS_S = 5.0
HEALTH_S = 10.0
STORAGE_S = 30.0
COUNTS_AFTER_S = 0.01  # Wire: events of the same queue within that time share one queue:counts
COUNTS_AT_ONCE = 100  # queues told of in one go; the others a moment later
QUEUES_SHOWN = 1_000
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
        self._overviews = Overviews(broker)
        self._pace = Pace(broker.clock.stopwatch_ms)
        self._readers: dict[Reader, None] = {}
        self._sockets: dict[LiveSocket, None] = {}
        self._kept = Kept()
        self._keeps_until_s: float | None = None
        """None: nothing is kept; infinity: somebody reads."""
        self._uncounted: dict[str, None] = {}
        self._counts_wanted = trio.Event()
        self.is_closed = False
        """From the stop on there are no server-sent events; sockets go on."""
        self.dropped_count = 0
        """Readers that were too slow."""
        self._skipped_count = 0

    @property
    def reader_count(self) -> int:
        """Open streams of server-sent events."""
        return len(self._readers)

    @property
    def socket_count(self) -> int:
        """Open WebSockets."""
        return len(self._sockets)

    @property
    def skipped_count(self) -> int:
        """Events that WebSockets have lost because they did not read. O(sockets)."""
        return self._skipped_count + sum(socket.skipped_count for socket in self._sockets)

    # who watches

    def open_reader(self, queue: str | None, last_number: int, cut: Callable[[], None]) -> Reader:
        """A new stream; `close_reader` must follow.

        Args:
            last_number: the last event it knows of, 0 for none.
            cut: ends its connection, also in the middle of a write.
        Raises:
            LimitError: there are too many.
        """
        if len(self._readers) >= MAX_READERS:
            raise LimitError("Too many SSE connections")
        reader = Reader(queue, self._pace, cut, self._greeting(queue, last_number))
        if self.is_closed:
            reader.close()
            return reader
        self._readers[reader] = None
        self._keeps_until_s = math.inf
        self._listen()
        return reader

    def _greeting(self, queue: str | None, last_number: int) -> list[bytes]:
        name = self._new_id(self._broker.clock.now().wall_ms)
        greeting = [b'retry: 3000\ndata: {"connected":true,"clientId":"%b"}\n\n' % name.encode()]
        if last_number > 0:
            missed = self._kept.since(last_number, queue)
            if missed is None:
                # HD-14: it has to look anew, and the number goes on from here.
                number = self._kept.last_number
                missed = [b'id: %d\nevent: reset\ndata: {"lastEventId":%d}\n\n' % (number, last_number)]
            greeting += missed
        return greeting

    def close_reader(self, reader: Reader) -> None:
        """The stream is over, whoever has ended it."""
        reader.close()
        if reader not in self._readers:
            return
        del self._readers[reader]
        self.dropped_count += reader.was_too_slow
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
        self._broker.events.add(self)

    def _rest(self) -> None:
        """Listen no longer if there is nobody to tell, and nothing to keep."""
        if self._keeps_until_s is not None and trio.current_time() >= self._keeps_until_s:
            self._keeps_until_s = None
            self._kept.forget()
        if self._keeps_until_s is None and not self._sockets:
            self._broker.events.remove(self)

    def close(self) -> None:
        """The server stops: the streams of server-sent events end."""
        self.is_closed = True
        for reader in tuple(self._readers):
            reader.close()

    def cut_all(self) -> None:
        """The server ends now: whoever is still connected is cut off, also in the middle of a write."""
        for reader in tuple(self._readers):
            reader.close()
            reader.cut()
        for socket in tuple(self._sockets):
            socket.cut()

    # what they are told

    def take(self, events: Sequence[Event]) -> None:
        """Tell everybody whom it concerns. Cost: a few µs per event, 0.5 µs per event and watcher."""
        for event in events:
            telling = Telling(event)
            self._tell_readers(telling)
            self._tell_sockets(telling)
            if telling.is_of_job and telling.queue is not None and telling.queue not in self._uncounted:
                self._uncounted[telling.queue] = None
                self._counts_wanted.set()

    def _tell_readers(self, telling: Telling) -> None:
        if self._keeps_until_s is None:
            return
        self._kept.number(telling)
        if self._readers:
            record = telling.record
            for reader in tuple(self._readers):
                if telling.concerns(reader.queue):
                    reader.offer(record)

    def _tell_sockets(self, telling: Telling) -> None:
        for socket in tuple(self._sockets):
            socket.offer(telling)

    def _announce(self, name: str, data: dict[str, Any]) -> None:
        # Not by way of the broker: nobody but those here is to be told.
        telling = self._system(name, data)
        self._tell_readers(telling)
        self._tell_sockets(telling)

    def _system(self, name: str, data: dict[str, Any]) -> Telling:
        return Telling(SystemEvent(name, self._broker.clock.now().wall_ms, data))

    # at intervals

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """See to pace and intervals. Returns only when cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._pace.run)
            nursery.start_soon(self._tell_counts)
            for interval_s, act in (
                (HEARTBEAT_S, self._beat),
                (STATS_S, self._tell_stats),
                (HEALTH_S, self._tell_health),
                (STORAGE_S, self._tell_storage),
                (WATCH_S, self._look_after),
            ):
                nursery.start_soon(_every, interval_s, act)
            task_status.started()

    async def _tell_counts(self) -> None:
        while True:
            await self._counts_wanted.wait()
            await trio.sleep(COUNTS_AFTER_S)
            for queue in list(self._uncounted)[:COUNTS_AT_ONCE]:
                del self._uncounted[queue]
                if self._is_watched:
                    self._announce("queue:counts", self._overviews.raw_counts(queue))
            if not self._uncounted:
                self._counts_wanted = trio.Event()

    @property
    def _is_watched(self) -> bool:
        return bool(self._sockets or (self._readers and not self.is_closed))

    def _beat(self) -> None:
        for reader in tuple(self._readers):
            reader.offer(HEARTBEAT)

    def _tell_stats(self) -> None:
        if self._is_watched:
            self._announce("stats:snapshot", self._snapshot())

    def _tell_health(self) -> None:
        if not self._is_watched:
            return
        report = self._health()
        memory = {"rss": report.memory.rss, "heapUsed": report.memory.heap_used}
        data = {"ok": report.ok, "uptime": report.uptime, "memory": memory}
        if self._readers:
            sse = {"sse": len(self._readers)}
            self._tell_readers(self._system("health:status", {**data, "connections": sse}))
        if self._sockets:
            ws = {"ws": len(self._sockets)}
            self._tell_sockets(self._system("health:status", {**data, "connections": ws}))

    def _tell_storage(self) -> None:
        if self._is_watched:
            is_full = self._broker.storage_health.is_disk_full
            data = {"collections": self._broker.monitoring.collections(), "diskFull": is_full}
            self._announce("storage:status", data)

    def _snapshot(self) -> dict[str, Any]:
        data = self._broker.monitoring.overview(c.DashboardOverview(), self._broker.clock.now()).data
        stats, rates = data["stats"], data["throughput"]
        names = ("waiting", "active", "delayed", "completed", "dlq", "totalPushed", "totalCompleted", "totalFailed")
        lines = self._overviews.dashboard_queues(QUEUES_SHOWN, 0)["queues"]
        shown = ("waiting", "active", "delayed", "dlq", "paused")
        return {
            **{name: stats[name] for name in names},
            "pushPerSec": rates["pushPerSec"],
            "pullPerSec": rates["pullPerSec"],
            "uptime": int(stats["uptime"]),
            "queues": {line["name"]: {name: line[name] for name in shown} for line in lines},
            "workers": {"total": data["workers"]["total"], "active": data["workers"]["active"]},
            "cronJobs": len(self._broker.engine.state.crons),
        }

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
