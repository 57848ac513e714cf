"""What the commands about workers must satisfy.

Source: scheduling and flows, "Worker registry", SD-16.
"""

from collections.abc import Callable
from typing import Any, Final

from bunqueue_trio.errors import ValidationError
from bunqueue_trio.model import commands as c
from bunqueue_trio.protocol.fields import number, text, text_or_none, texts
from bunqueue_trio.protocol.values import is_truthy

# What is said of a worker is kept, and shown in one list with what is said of all others.
MAX_QUEUES = 1_000
MAX_TEXT_LENGTH = 1_024


def _check_register(command: c.RegisterWorker) -> None:
    """``hostname`` and ``pid`` stay None where nothing useful was sent: a known worker then keeps its own."""
    if not is_truthy(command.name):
        raise ValidationError("Worker name is required")
    _short("name", text("name", command.name))
    command.queues = [] if command.queues is None else texts("queues", command.queues)
    if len(command.queues) > MAX_QUEUES:
        raise ValidationError(f"Too many queues (max {MAX_QUEUES})")
    for index, queue in enumerate(command.queues):
        _short(f"queues[{index}]", queue)
    command.concurrency = 1 if command.concurrency is None else number("concurrency", command.concurrency, 0)
    command.worker_id = _short("workerId", text_or_none("workerId", command.worker_id))
    command.hostname = _short("hostname", text_or_none("hostname", command.hostname))
    command.pid = None if command.pid is None else number("pid", command.pid, 0) or None
    command.started_at = None if command.started_at is None else number("startedAt", command.started_at, 0)


def _short(name: str, value: str | None) -> str | None:
    if value is not None and len(value) > MAX_TEXT_LENGTH:
        raise ValidationError(f"{name} too long (max {MAX_TEXT_LENGTH} characters)")
    return value


def _check_heartbeat(command: c.WorkerHeartbeat) -> None:
    command.id = command.id if type(command.id) is str else None
    for name, wire_name in (("active_jobs", "activeJobs"), ("processed", "processed"), ("failed", "failed")):
        value = getattr(command, name)
        if value is not None:
            setattr(command, name, number(wire_name, value, 0))


def _check_unregister(command: c.UnregisterWorker) -> None:
    command.worker_id = command.worker_id if type(command.worker_id) is str else None


CHECKS: Final[dict[type, Callable[[Any], None]]] = {
    c.RegisterWorker: _check_register,
    c.UnregisterWorker: _check_unregister,
    c.WorkerHeartbeat: _check_heartbeat,
}
