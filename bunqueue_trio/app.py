"""The server: one nursery tree on four floors, and the order in which it starts and stops.

    storage    last to leave: WAL folded in, file closed
      keepers    the flusher
        sessions   connections, HTTP, the reaper, the signal watcher
          doors      the TCP listener, backups

SIGTERM, SIGINT, SIGHUP and SIGQUIT: the doors close and pulls find nothing; what is buffered is flushed and the WAL
folded in, so that an impatient orchestrator finds nothing left to lose; jobs that are running may still be finished
for as long as the timeout allows; then the sessions end, and the rest is flushed. A second signal skips the wait, never
the flush; further ones have no effect.

Source: design, "One nursery tree"; R280 to R291, K21, K22.
"""

from __future__ import annotations

import gc
import os
import signal
import ssl
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, tzinfo
from typing import Literal

import trio

from bunqueue_trio import __version__
from bunqueue_trio.backup.keeper import Backups
from bunqueue_trio.backup.log_keeper import ChangeLog
from bunqueue_trio.backup.opening import open_backups
from bunqueue_trio.backup.settings import BackupSettings
from bunqueue_trio.clock import SystemClock
from bunqueue_trio.config import Config
from bunqueue_trio.engine.cron.zones import find_zone
from bunqueue_trio.errors import BackupError, StorageError, ValidationError
from bunqueue_trio.ids import Ids
from bunqueue_trio.logs import get_logger
from bunqueue_trio.server.alarms import Alarms
from bunqueue_trio.server.broker import Broker
from bunqueue_trio.server.bulletins import run_bulletins
from bunqueue_trio.server.door import Tally
from bunqueue_trio.server.flusher import Flusher
from bunqueue_trio.server.live import Live
from bunqueue_trio.server.reaper import run_reaper
from bunqueue_trio.server.reporting import Reporting
from bunqueue_trio.server.retention import run_retention
from bunqueue_trio.server.startup import load_engine
from bunqueue_trio.server.statistics import run_statistics
from bunqueue_trio.server.storage_health import StorageHealth
from bunqueue_trio.server.store import Store, open_store
from bunqueue_trio.server.tcp import TcpServer
from bunqueue_trio.server.tls import load_tls
from bunqueue_trio.server.webhooks.delivering import Deliveries
from bunqueue_trio.server.webhooks.registry import Webhooks
from bunqueue_trio.server.webhooks.sending import open_sender
from bunqueue_trio.web.answering import CommandRoutes
from bunqueue_trio.web.gate import Gate
from bunqueue_trio.web.live import LiveRoutes
from bunqueue_trio.web.page import Page
from bunqueue_trio.web.serve import serve_http

log = get_logger("Server")

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
FINAL_FLUSH_S = 30.0
DRAIN_WEBHOOKS_S = 5.0  # what a receiver that answers needs at most; others must not hold up the stop
IN_MEMORY_COMPLETED = 50_000
SWITCH_INTERVAL_S = 0.0002  # the writer thread's Python must not keep the loop waiting for the usual 5 ms


class LostJobsError(StorageError):
    """Jobs had to be given up at the stop; they are in a spill file and in the log."""


class Server:
    """One run of the server."""

    def __init__(
        self,
        config: Config,
        store: Store,
        broker: Broker,
        deliveries: Deliveries,
        ids: Ids,
        *,
        signals: AsyncIterator[int],
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.config = config
        self._signals = signals
        self._ids = ids
        self.tls = tls
        self.store = store
        self.broker = broker
        self.flusher = Flusher(broker, store)
        self.stop_requested = trio.Event()
        self.stop_signal: str | None = None
        """The name of the signal that has asked for the stop."""
        self.stop_now = trio.Event()
        self.quiesced = trio.Event()
        self.deliveries = deliveries
        self.http_tally = Tally()
        self.broker.monitoring.backups = self.backups = open_backups(
            BackupSettings.of(config),
            broker.clock,
            version=__version__,
            flush=self.flush_for_backup,
            announce=broker.announce,
            in_writer=store.in_writer,
            attach=store.follow,
        )

    async def serve(self, task_status: trio.TaskStatus[tuple[int, int]]) -> None:
        """Run keepers, sessions and doors; returns when the last session has ended."""
        async with trio.open_nursery() as keepers:
            await keepers.start(self._run_flusher)
            await self.flusher.flush_all()  # what recovery has changed is in the file before any port opens
            if self.backups is not None and self.backups.changes is not None:
                keepers.start_soon(self._run_changes, self.backups.changes)
            async with trio.open_nursery() as sessions:
                sessions.start_soon(self._run_reaper)
                tcp = TcpServer(self.broker, self.config, sessions, tls=self.tls)
                self.broker.monitoring.tallies = {"tcp": tcp.tally, "http": self.http_tally}
                reporting = Reporting(self.broker, self.store, tcp)
                live = Live(self.broker, self.config, self._ids.client_id, reporting.health)
                reporting.live = live
                await sessions.start(live.run)
                await sessions.start(self._run_queue_events)
                sessions.start_soon(self._run_statistics, tcp, live)
                sessions.start_soon(self._run_retention)
                sessions.start_soon(self._run_bulletins)
                await sessions.start(self._run_webhooks)
                sessions.start_soon(self._watch_signals)  # not a door: a second signal is heard while quiescing
                http_port = await sessions.start(self._serve_http, reporting, live)
                async with trio.open_nursery() as doors:
                    tcp_port = await doors.start(tcp.run)
                    if self.backups is not None:
                        doors.start_soon(self._run_backups, self.backups)
                    reporting.is_serving = True
                    self._announce(tcp_port, http_port)
                    task_status.started((tcp_port, http_port))
                    await self.stop_requested.wait()
                    live.close()
                    self.broker.stop_pulls()
                    doors.cancel_scope.cancel(reason="stop requested")
                await self._quiesce()
                self.broker.announce("server:shutdown", {"signal": self.stop_signal})
                self.broker.has_ended = True
                self.quiesced.set()
                self.broker.events.queue_events.send_all()
                live.cut_all()
                sessions.cancel_scope.cancel(reason="quiesced")
            keepers.cancel_scope.cancel(reason="sessions ended")

    async def finish(self) -> None:
        """The last flush, after the last session.

        Raises:
            LostJobsError: the file would not take some jobs.
        """
        lost_count = await self.flusher.finish(FINAL_FLUSH_S)
        if self.backups is not None and self.backups.changes is not None:
            await self.backups.changes.finish(max(1.0, self.config.shutdown_timeout_ms / 1000))
        if lost_count:
            raise LostJobsError(f"{lost_count} jobs could not be stored before the stop")

    async def _quiesce(self) -> None:
        """Let running jobs be finished, but no longer than the timeout, and not at all after a second signal."""
        with trio.move_on_after(self.config.shutdown_timeout_ms / 1000) as patience:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._cut_short, patience)
                await self.flusher.flush_all()
                if self.broker.engine.active_count:
                    log.info(f"Waiting for {self.broker.engine.active_count} active jobs...")
                await self.broker.wait_idle()
                with trio.move_on_after(DRAIN_WEBHOOKS_S):
                    await self.deliveries.drain()
                nursery.cancel_scope.cancel(reason="idle")

    async def _cut_short(self, patience: trio.CancelScope) -> None:
        await self.stop_now.wait()
        patience.cancel(reason="second signal")

    async def _watch_signals(self) -> None:
        async for number in self._signals:
            if self.stop_requested.is_set():
                self.stop_now.set()
            else:
                self.stop_signal = signal.Signals(number).name
                log.info(f"Received {self.stop_signal}, shutting down...")
                self.stop_requested.set()

    @contextmanager
    def _ends_with_the_server(self) -> Iterator[None]:
        """A keeper that fails stops the server: its connections end without releasing anything, the file keeps all."""
        try:
            yield
        except Exception:
            self.broker.has_ended = True
            raise

    async def _run_flusher(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        with self._ends_with_the_server():
            await self.flusher.run(task_status=task_status)

    async def _run_reaper(self) -> None:
        with self._ends_with_the_server():
            await run_reaper(self.broker, worker_cleanup_interval_ms=self.config.worker_cleanup_interval_ms)

    async def _run_statistics(self, tcp: TcpServer, live: Live) -> None:
        await run_statistics(
            self.broker,
            tcp,
            live,
            interval_ms=self.config.stats_interval_ms,
            worker_timeout_ms=self.config.worker_timeout_ms,
        )

    async def _run_retention(self) -> None:
        max_count = self.config.completed_retention_count
        if max_count is None and self.store.is_in_memory:
            max_count = IN_MEMORY_COMPLETED  # in memory nothing else bounds what is finished
        await run_retention(self.broker, self.store, max_age_ms=self.config.completed_retention_ms, max_count=max_count)

    async def _run_bulletins(self) -> None:
        with self._ends_with_the_server():
            config = self.config
            alarms = Alarms(
                self.broker,
                queue_size=config.queue_size_threshold,
                overload_ms=config.worker_overload_threshold_ms,
                memory_mb=config.memory_warning_mb,
                storage_mb=config.storage_warning_mb,
            )
            await run_bulletins(self.broker, idle_threshold_ms=config.queue_idle_threshold_ms, alarms=alarms)

    async def _run_queue_events(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        with self._ends_with_the_server():
            await self.broker.events.queue_events.run(task_status=task_status)

    async def _run_changes(self, changes: ChangeLog) -> None:
        with self._ends_with_the_server():
            await changes.run()

    async def _run_backups(self, backups: Backups) -> None:
        with self._ends_with_the_server():
            await backups.run()

    async def flush_for_backup(self) -> None:
        """What has been answered is in the file before the copy begins, and out of its WAL if readers allow (K2).

        Raises:
            BackupError: the file refuses it.
        """
        await self.flusher.flush_all()
        if (error := self.broker.storage_health.error) is not None:
            raise BackupError(f"The write buffer cannot be flushed: {error}")
        self.store.check_identity()

    async def _run_webhooks(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        with self._ends_with_the_server():
            await self.deliveries.run(task_status=task_status)

    async def _serve_http(
        self, reporting: Reporting, live: Live, *, task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED
    ) -> None:
        gate = Gate(self.config, self.broker)
        self.broker.monitoring.sized_rooms.append(gate.sizes)
        with self._ends_with_the_server():
            await serve_http(
                reporting,
                self.config.bind_host,
                self.config.http_port,
                self.quiesced,
                self.config.shutdown_timeout_ms / 1000,
                path=self.config.http_socket_path,
                closing=self.stop_requested,
                rooms=[
                    gate,
                    CommandRoutes(self.broker, gate),
                    LiveRoutes(self.broker, live),
                    Page(),
                ],
                tls=self.tls,
                limit=self.config.http_max_connections,
                tally=self.http_tally,
                task_status=task_status,
            )

    def _announce(self, tcp_port: int, http_port: int) -> None:
        """The addresses actually bound: a port of 0 was chosen by the system."""
        log.info(
            "Server started",
            version=__version__,
            tcp=f"{self.config.bind_host}:{tcp_port}",
            http=self.config.http_socket_path or f"{self.config.bind_host}:{http_port}",
            data=self.config.data_path,
        )


async def run_server(
    config: Config, *, task_status: trio.TaskStatus[tuple[int, int]] = trio.TASK_STATUS_IGNORED
) -> None:
    """Own every task of the process; return once the last row is on disk.

    Args:
        task_status: ``started`` gets the bound TCP and HTTP ports once both accept; 0 for a Unix socket.
    Raises:
        StartError: the data file, or a file of TLS, cannot be used.
        OSError: a port cannot be bound.
        LostJobsError: the file refused the final flush; the jobs are in a spill file.
    """
    tls = load_tls(config)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    with ExitStack() as until_the_end:
        await _run_server(config, tls, until_the_end, task_status)
    log.info("Shutdown complete")


async def _run_server(
    config: Config, tls: ssl.SSLContext | None, until_the_end: ExitStack, task_status: trio.TaskStatus[tuple[int, int]]
) -> None:
    async with open_store(config.data_path, synchronous=_synchronous(config)) as store:
        clock = SystemClock()
        ids = Ids(store.lease_secret)
        engine = await store.recover(
            lambda connection: load_engine(
                connection,
                ids,
                clock,
                lease_grace_ms=config.lease_grace_ms,
                syncs_commits=config.sqlite_synchronous == "FULL",
                worker_timeout_ms=config.worker_timeout_ms,
                local_zone=local_zone(os.environ.get("TZ")),
            )
        )
        gc.freeze()
        gc.set_threshold(50_000, 20, 50)  # what lives long is frozen; what is made per command has no cycles
        health = StorageHealth(
            max_backlog_jobs=config.write_backlog_max_jobs, max_backlog_bytes=config.write_backlog_max_bytes
        )
        broker = Broker(engine, clock, store.find_completed, health, store, worker_timeout_ms=config.worker_timeout_ms)
        async with open_sender(allows_internal=config.webhook_allow_internal) as sender:
            deliveries = Deliveries(
                sender,
                clock,
                max_tries=config.webhook_max_retries,
                retry_delay_ms=config.webhook_retry_delay_ms,
            )
            webhooks = Webhooks(ids, clock, deliveries, broker.events, allows_internal=config.webhook_allow_internal)
            broker.rooms.update(webhooks.handlers)
            broker.monitoring.webhook_facts = webhooks.facts
            broker.monitoring.sized_rooms.append(webhooks.sizes)
            broker.monitoring.file_facts = store.facts
            broker.monitoring.max_queues = config.metrics_max_queues
            signals = until_the_end.enter_context(_own_signals())
            server = Server(config, store, broker, deliveries, ids, signals=signals, tls=tls)
            try:
                await server.serve(task_status)
            finally:
                with trio.CancelScope(shield=True):
                    await server.finish()


@contextmanager
def _own_signals() -> Iterator[AsyncIterator[int]]:
    """The signals that ask for a stop, from the end of the recovery until the file is closed.

    Whoever repeats his signal until the process has gone must not cut the last flush short, nor change the exit code:
    one that comes when nobody listens any more has no effect, for the rest of the process.
    """
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)  # what comes back when the receiver goes
    with trio.open_signal_receiver(*STOP_SIGNALS) as signals:
        yield signals


def _synchronous(config: Config) -> Literal["NORMAL", "FULL"]:
    return "FULL" if config.sqlite_synchronous == "FULL" else "NORMAL"


def local_zone(name: str | None) -> tzinfo:
    """The zone of cron expressions that name none: that of ``TZ``, else UTC, whatever the machine is set to."""
    if not name:
        return UTC
    try:
        return find_zone(name)
    except ValidationError:
        log.warning("TZ names no IANA zone: cron expressions without a zone are read in UTC", TZ=name)
        return UTC
