"""What dashboards show of a queue and of a job: a few fields, in the order and spelling of the wire."""

from msgspec import Raw, Struct


class QueueGlance(Struct, frozen=True, gc=False):
    """One line of DashboardQueues. Raw counts: a pause moves none of them."""

    name: str
    waiting: int
    prioritized: int
    delayed: int
    active: int
    dlq: int
    paused: bool


class JobGlance(Struct, frozen=True, gc=False, rename="camel"):
    """A job in the lists of DashboardQueue; times epoch ms."""

    id: str
    priority: float | int
    created_at: float
    run_at: float
    attempts: int
    progress: float | int


class LetterGlance(Struct, frozen=True, gc=False, rename="camel"):
    """A dead letter in the preview of DashboardQueue; ``created_at`` epoch ms."""

    id: str
    data: Raw
    attempts: int
    created_at: float
