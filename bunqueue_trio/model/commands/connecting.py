"""Commands about the connection itself, and about the workers behind it."""

from typing import Any

from bunqueue_trio.model.commands.base import Command


class RegisterWorker(Command, tag="RegisterWorker"):
    """Announce a worker; it belongs to the connection."""

    name: Any = None
    queues: Any = None
    concurrency: Any = None
    worker_id: Any = None
    hostname: Any = None
    pid: Any = None
    started_at: Any = None


class UnregisterWorker(Command, tag="UnregisterWorker"):
    """Withdraw a worker."""

    worker_id: Any = None


class WorkerHeartbeat(Command, tag="Heartbeat"):
    """Show that a worker is alive, with its own counters."""

    id: Any = None
    active_jobs: Any = None
    processed: Any = None
    failed: Any = None


class ListWorkers(Command, tag="ListWorkers"):
    """Read the registered workers and what they have done."""


class Auth(Command, tag="Auth"):
    """Authenticate the connection. Answered by the session, not by the engine."""

    token: Any = None


class Hello(Command, tag="Hello"):
    """Ask for the server's protocol and version. Answered by the session."""

    protocol_version: Any = None
    capabilities: Any = None


class Ping(Command, tag="Ping"):
    """Ask for a sign of life and the server's clock."""
