"""What the commands about workers must satisfy.

Source: scheduling and flows, "Worker registry", SD-16.
"""

from collections.abc import Callable
from typing import Any, Final

from bunqueue_trio.errors import ValidationError
from bunqueue_trio.model import commands as c
from bunqueue_trio.protocol.fields import number, short, text, text_or_none, texts
from bunqueue_trio.protocol.values import is_truthy

# What is said of a worker is kept, and shown in one list with what is said of all others.
MAX_QUEUES = 1_000
MAX_TEXT_LENGTH = 1_024
MAX_QUEUES_LENGTH = 32_768  # of all names together: ten thousand such workers are 300 MB, not 10 GB


def _check_register(command: c.RegisterWorker) -> None:
    """``hostname`` and ``pid`` stay None where nothing useful was sent: a known worker then keeps its own."""
    if not is_truthy(command.name):
        raise ValidationError("Worker name is required")
    short("name", text("name", command.name), MAX_TEXT_LENGTH)
    command.queues = [] if command.queues is None else texts("queues", command.queues)
    if len(command.queues) > MAX_QUEUES:
        raise ValidationError(f"Too many queues (max {MAX_QUEUES})")
    for index, queue in enumerate(command.queues):
        short(f"queues[{index}]", queue, MAX_TEXT_LENGTH)
    if sum(map(len, command.queues)) > MAX_QUEUES_LENGTH:
        raise ValidationError(f"queues too long (max {MAX_QUEUES_LENGTH} characters together)")
    command.concurrency = 1 if command.concurrency is None else number("concurrency", command.concurrency, 0)
    command.worker_id = short("workerId", text_or_none("workerId", command.worker_id), MAX_TEXT_LENGTH)
    command.hostname = short("hostname", text_or_none("hostname", command.hostname), MAX_TEXT_LENGTH)
    command.pid = None if command.pid is None else number("pid", command.pid, 0) or None
    command.started_at = None if command.started_at is None else number("startedAt", command.started_at, 0)


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
