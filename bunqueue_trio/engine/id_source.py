"""What the engine has made for it outside, so that it is reproducible."""

from typing import Protocol


class IdSource(Protocol):
    """Ids, tokens and chance, made outside so that the engine is reproducible."""

    def job_id(self, wall_ms: float) -> str:
        """A new UUIDv7, greater than all before."""
        ...

    def lease_token(self, job_id: str, seq: int, started_at: float, attempts: int) -> str:
        """The secret of one delivery; the same values give the same token, also after a restart."""
        ...

    def lease_start(self, token: str) -> float | None:
        """When the delivery of a token began; None for what cannot be one."""
        ...

    def jitter(self) -> float:
        """A number in [0, 1)."""
        ...

    def worker_id(self, wall_ms: float) -> str:
        """An id for a worker that brought none."""
        ...
