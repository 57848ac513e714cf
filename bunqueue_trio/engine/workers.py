"""The registry of workers: information only, it decides nothing about who may pull.

A worker belongs to the connection that registered it last, and goes with it; one that belongs to none (HTTP) stays
until it is withdrawn or has been silent for too long. What it said it has done stays in the sums. In memory only.

Source: scheduling and flows, "Worker registry"; SD-15, SD-16.
"""

from typing import Any

from bunqueue_trio.engine import happenings
from bunqueue_trio.engine.state import State
from bunqueue_trio.errors import LimitError, NotFoundError
from bunqueue_trio.model.commands import ListWorkers, RegisterWorker, UnregisterWorker, WorkerHeartbeat
from bunqueue_trio.model.entries import WorkerInfo
from bunqueue_trio.model.events import Event
from bunqueue_trio.model.instant import Now
from bunqueue_trio.model.replies import DataReply

MAX_WORKERS = 10_000
DEFAULT_TIMEOUT_MS = 30_000
MAX_WHOLE = 2**32 - 1
FORGET_FACTOR = 3
"""So many times the timeout may a worker be silent before it is dropped."""


class Workers:
    """Registers workers and lists them.

    ``timeout_ms``: a worker not heard of for so long is shown as stale.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self.timeout_ms: float = DEFAULT_TIMEOUT_MS

    def register(self, command: RegisterWorker, connection_id: int | None, now: Now) -> DataReply:
        """Announce a worker, or renew what is known of it; it now belongs to this connection.

        Raises:
            LimitError: there are `MAX_WORKERS` others.
        """
        state = self._state
        worker_id = command.worker_id or state.ids.worker_id(now.wall_ms)
        worker = state.workers.get(worker_id)
        if worker is None:
            if len(state.workers) >= MAX_WORKERS:
                raise LimitError(f"Too many workers (max {MAX_WORKERS})")
            worker = state.workers[worker_id] = _described(command, worker_id, now)
        else:
            worker.queues = command.queues
            worker.concurrency = 1 if command.concurrency is None else command.concurrency
            worker.hostname = command.hostname or worker.hostname
            worker.pid = command.pid or worker.pid
            _note_seen(worker, now)
        _let_go(state, worker)
        worker.connection_id = connection_id
        if connection_id is not None:
            state.workers_of.setdefault(connection_id, {})[worker_id] = worker
            state.orderly.discard(connection_id)
        if state.events is not None:
            _tell_of_arrival(state.events, worker, now)
        return DataReply(data={"workerId": worker.id, **_shown(worker, "active")})

    def unregister(self, command: UnregisterWorker, connection_id: int | None, now: Now) -> DataReply:
        """Withdraw a worker: its connection is about to close in an orderly way.

        Raises:
            NotFoundError: no such worker.
        """
        worker = self._find(command.worker_id)
        if connection_id is not None and worker.connection_id == connection_id:
            self._state.orderly.add(connection_id)
        _forget(self._state, worker)
        self._tell("disconnected", now, worker)
        return DataReply(data={"removed": True})

    def heartbeat(self, command: WorkerHeartbeat, now: Now) -> DataReply:
        """Show that a worker is alive, with its own counters.

        Raises:
            NotFoundError: no such worker; it has to register again.
        """
        worker = self._find(command.id)
        _note_seen(worker, now)
        for name in ("active_jobs", "processed", "failed"):
            value = getattr(command, name)
            if value is not None:
                setattr(worker, _COUNTERS[name], value)
        self._tell("heartbeat", now, worker)
        return DataReply(data={"ok": True})

    def list(self, command: ListWorkers, now: Now) -> DataReply:
        """All workers in the order of their registration, and sums; those who left keep their share of what is done.

        Shape: ``{"workers": [{"id", ..., "status": "active" | "stale", "uptime": ms}], "stats": {"total", "active",
        "totalProcessed", "totalFailed", "activeJobs"}}``

        Cost: O(workers), about 1 µs each.
        """
        workers = self._state.workers.values()
        alive = [worker.is_alive(now.mono_ms, self.timeout_ms) for worker in workers]
        processed, failed = totals(self._state)
        return DataReply(
            data={
                "workers": [
                    {
                        "id": worker.id,
                        **_shown(worker, "active" if is_alive else "stale"),
                        "uptime": now.wall_ms - worker.registered_at,
                    }
                    for worker, is_alive in zip(workers, alive, strict=True)
                ],
                "stats": {
                    "total": len(workers),
                    "active": sum(alive),
                    "totalProcessed": processed,
                    "totalFailed": failed,
                    "activeJobs": _number(sum(worker.active_jobs for worker in workers)),
                },
            }
        )

    def forget_silent(self, now: Now) -> None:
        """Drop the workers that have been silent for more than `FORGET_FACTOR` times the timeout. O(workers)."""
        state = self._state
        silent_since = now.mono_ms - FORGET_FACTOR * self.timeout_ms
        for worker in [w for w in state.workers.values() if w.seen_mono_ms < silent_since]:
            _forget(state, worker)
            if state.events is not None:
                happenings.about_worker(state.events, "removed-stale", now, workerId=worker.id, name=worker.name)

    def _find(self, worker_id: Any) -> WorkerInfo:
        worker = self._state.workers.get(worker_id) if isinstance(worker_id, str) else None
        if worker is None:
            raise NotFoundError("Worker not found")
        return worker

    def _tell(self, what: str, now: Now, worker: WorkerInfo) -> None:
        events = self._state.events
        if events is not None:
            happenings.about_worker(events, what, now, workerId=worker.id)


def disconnect(state: State, connection_id: int, now: Now) -> None:
    """A connection has closed: its workers are gone."""
    for worker in list(state.workers_of.get(connection_id, {}).values()):
        _forget(state, worker)
        if state.events is not None:
            happenings.about_worker(
                state.events, "disconnected", now, workerId=worker.id, name=worker.name, clientId=str(connection_id)
            )


def totals(state: State) -> tuple[float, float]:
    """What workers say they have processed, and how much of it failed: those who left included. O(workers)."""
    workers = state.workers.values()
    return (
        _number(state.left_processed + sum(worker.processed_jobs for worker in workers)),
        _number(state.left_failed + sum(worker.failed_jobs for worker in workers)),
    )


def _note_seen(worker: WorkerInfo, now: Now) -> None:
    worker.last_seen, worker.seen_mono_ms = now.wall_ms, now.mono_ms


def _tell_of_arrival(events: list[Event], worker: WorkerInfo, now: Now) -> None:
    happenings.about_worker(
        events,
        "connected",
        now,
        workerId=worker.id,
        name=worker.name,
        queues=list(worker.queues),
        hostname=worker.hostname,
        pid=worker.pid,
    )


def _number(value: float) -> float:
    # Wire: whole numbers beyond 32 bits travel as float64.
    return value if value <= MAX_WHOLE else float(value)


def _described(command: RegisterWorker, worker_id: str, now: Now) -> WorkerInfo:
    return WorkerInfo(
        id=worker_id,
        name=command.name,
        queues=command.queues,
        concurrency=1 if command.concurrency is None else command.concurrency,
        hostname=command.hostname or "unknown",
        pid=command.pid or 0,
        registered_at=now.wall_ms if command.started_at is None else command.started_at,
        last_seen=now.wall_ms,
        seen_mono_ms=now.mono_ms,
    )


def _forget(state: State, worker: WorkerInfo) -> None:
    del state.workers[worker.id]
    _let_go(state, worker)
    state.left_processed += worker.processed_jobs
    state.left_failed += worker.failed_jobs


def _let_go(state: State, worker: WorkerInfo) -> None:
    """*worker* no longer belongs to its connection."""
    connection_id = worker.connection_id
    if connection_id is None:
        return
    held = state.workers_of[connection_id]
    del held[worker.id]
    if not held:
        del state.workers_of[connection_id]


def _shown(worker: WorkerInfo, status: str) -> dict[str, Any]:
    return {
        "name": worker.name,
        "queues": worker.queues,
        "concurrency": worker.concurrency,
        "hostname": worker.hostname,
        "pid": worker.pid,
        "status": status,
        "registeredAt": worker.registered_at,
        "lastSeen": worker.last_seen,
        "activeJobs": worker.active_jobs,
        "processedJobs": worker.processed_jobs,
        "failedJobs": worker.failed_jobs,
        "currentJob": None,
    }


_COUNTERS = {"active_jobs": "active_jobs", "processed": "processed_jobs", "failed": "failed_jobs"}
