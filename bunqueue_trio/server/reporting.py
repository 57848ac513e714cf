"""What the server says of itself: the health report, and whether it is ready."""

from __future__ import annotations

import trio
from msgspec import UNSET

from bunqueue_trio import __version__
from bunqueue_trio.memory import measure_memory
from bunqueue_trio.model.backup import BackupStatus, LogStatus
from bunqueue_trio.model.health import (
    BackupAge,
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

LOG_PATIENCE_MS = 15_000


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
        """Whether commands are served: not before the ports are open, not from the stop on, not while degraded.

        A backup that fails is a reason to look, not to send clients elsewhere: there is nobody else.
        """
        return self.is_serving and not self._broker.is_closing and not self._reasons_to_refuse()

    def health(self) -> HealthReport:
        """One look at the server."""
        backups = self._broker.monitoring.backups
        backup = None if backups is None else backups.status()
        reasons = self._reasons_to_refuse()
        if backup is not None and backup.error is not None and backup.failing_since is not None:
            reasons.append(Reason(code="backup.failing", message=backup.error, since=backup.failing_since))
        if backup is not None and backup.log is not None:
            reasons += self._log_reasons(backup.log)
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
            backup=UNSET if backup is None else self._backup_age(backup),
            storage=UNSET if storage is None else storage,
        )

    def _backup_age(self, backup: BackupStatus) -> BackupAge:
        age_s: int | None = None
        if backup.last_proven_at is not None:
            age_s = int(max(0.0, self._broker.clock.now().wall_ms - backup.last_proven_at) / 1000)
        return BackupAge(
            proven_age_seconds=age_s,
            proven_key=backup.last_proven_key,
            last_success_at=backup.last_success_at,
            last_attempt_at=backup.last_attempt_at,
            error=backup.error,
            recovery_point_age_seconds=UNSET if backup.log is None else self._recovery_point_age_s(backup.log),
        )

    def _log_reasons(self, status: LogStatus) -> list[Reason]:
        """A single upload that fails is made up for by the next: not before more is at stake than promised."""
        since, now_ms = status.failing_since, self._broker.clock.now().wall_ms
        if status.error is None or since is None or now_ms - since < LOG_PATIENCE_MS:
            return []
        return [Reason(code="backup.log_failing", message=status.error, since=since)]

    def _recovery_point_age_s(self, status: LogStatus) -> float | None:
        if status.recovery_point_at is None:
            return None
        return round(max(0.0, self._broker.clock.now().wall_ms - status.recovery_point_at) / 1000, 3)

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

    def _reasons_to_refuse(self) -> list[Reason]:
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
