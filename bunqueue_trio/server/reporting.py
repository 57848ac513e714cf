"""What the server says of itself: the health report, and whether it is ready."""

from __future__ import annotations

import trio
from msgspec import UNSET

from bunqueue_trio import __version__
from bunqueue_trio.memory import measure_memory
from bunqueue_trio.model.health import (
    ConnectionCounts,
    HealthReport,
    QueueTotals,
    Reason,
    StorageTrouble,
    WalUse,
)
from bunqueue_trio.server.broker import Broker
from bunqueue_trio.server.live import Live
from bunqueue_trio.server.store import Store
from bunqueue_trio.server.tcp import TcpServer


class Reporting:
    """The source of the probes. Costs nothing that grows with the number of jobs."""

    def __init__(self, broker: Broker, store: Store, tcp: TcpServer) -> None:
        self._broker = broker
        self._store = store
        self._tcp = tcp
        self._started_s = trio.current_time()
        self.is_serving = False
        self.live: Live | None = None
        """Set once there is one; it asks for reports itself."""

    @property
    def is_ready(self) -> bool:
        """Whether commands are served: not before the ports are open, not from the stop on, not while degraded."""
        return self.is_serving and not self._broker.is_closing and not self._reasons()

    def health(self) -> HealthReport:
        """One look at the server."""
        reasons = self._reasons()
        health = self._broker.storage_health
        storage: StorageTrouble | None = None
        if health.error is not None:
            storage = StorageTrouble(
                disk_full=health.is_disk_full, error=str(health.error), since=health.last_trouble_wall_ms
            )
        return HealthReport(
            ok=not reasons,
            status="degraded" if reasons else "healthy",
            uptime=int(trio.current_time() - self._started_s),
            version=__version__,
            queues=self._totals(),
            connections=self._connections(),
            memory=measure_memory(),
            wal=UNSET if self._store.is_in_memory else self._wal(),
            reasons=reasons or UNSET,
            storage=UNSET if storage is None else storage,
        )

    def _connections(self) -> ConnectionCounts:
        live = self.live
        return ConnectionCounts(
            tcp=self._tcp.connection_count,
            ws=0 if live is None else live.socket_count,
            sse=0 if live is None else live.reader_count,
        )

    def _wal(self) -> WalUse:
        age_s = trio.current_time() - self._store.checkpointed_mono_s
        return WalUse(
            bytes=self._store.wal_bytes,
            checkpoint_age_seconds=int(age_s),
            backlog=self._broker.engine.state.changes.row_count,
        )

    def _totals(self) -> QueueTotals:
        gauges = self._broker.engine.state.gauges
        return QueueTotals(
            waiting=gauges.waiting,
            active=self._broker.engine.active_count,
            delayed=gauges.delayed,
            completed=gauges.completed,
            dlq=gauges.dead,
        )

    def _reasons(self) -> list[Reason]:
        reasons = []
        health = self._broker.storage_health
        if health.error is not None and health.since_wall_ms is not None:
            code = "storage.diskFull" if health.is_disk_full else "storage.error"
            reasons.append(Reason(code=code, message=str(health.error), since=health.since_wall_ms))
        since = self._broker.internal_error_since_wall_ms
        if since is not None:
            count = self._broker.internal_errors
            message = f"{count} commands met an internal error; the log has the details"
            reasons.append(Reason(code="internal.error", message=message, since=since))
        return reasons
