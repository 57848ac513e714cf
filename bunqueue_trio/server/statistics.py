"""The line of statistics in the log, every few minutes: for operators who have nothing but the log."""

from __future__ import annotations

from datetime import UTC, datetime

import trio

from bunqueue_trio.logs import get_logger
from bunqueue_trio.memory import measure_memory
from bunqueue_trio.server.broker import Broker
from bunqueue_trio.server.live import Live
from bunqueue_trio.server.tcp import TcpServer

log = get_logger("Stats")


async def run_statistics(
    broker: Broker, tcp: TcpServer, live: Live, *, interval_ms: int, worker_timeout_ms: int
) -> None:
    """Log one line per interval. Returns only when cancelled.

    Source: configuration, "Lines worth keeping word for word".
    """
    while True:
        await trio.sleep(interval_ms / 1000)
        state = broker.engine.state
        now = broker.clock.now()
        gauges = state.gauges
        memory = measure_memory()
        alive = sum(worker.is_alive(now.mono_ms, worker_timeout_ms) for worker in state.workers.values())
        log.info(
            "Queue statistics",
            time=datetime.fromtimestamp(now.wall_ms / 1000, UTC).strftime("%H:%M:%S"),
            waiting=gauges.waiting + gauges.prioritized,
            active=state.active_count,
            delayed=gauges.delayed,
            completed=broker.engine.completed_count,
            dlq=gauges.dead,
            tcp=tcp.connection_count,
            ws=live.socket_count,
            sse=live.reader_count,
            workers=f"{alive}/{len(state.workers)}",
            mem=f"{memory.heap_used}MB/{memory.heap_total}MB",
            rss=f"{memory.rss}MB",
            idx=len(state.jobs),
            locks=sum(len(held) for held in state.held.values()),
            clients=sum(bool(held) for held in state.held.values()),
        )
