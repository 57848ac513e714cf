"""What backups need of a bucket. `s3` is the real one; tests have one in memory that passes the same suite."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from msgspec import Struct


class StoredObject(Struct, frozen=True, gc=False):
    """An object as a listing or a look at it shows it.

    ``modified_at`` is epoch ms, ``metadata`` the part under ``x-amz-meta-``, without that and in lower case; a listing
    has none.
    """

    key: str
    size_bytes: int
    modified_at: float | None = None
    metadata: dict[str, str] = {}


class Unfinished(Struct, frozen=True, gc=False):
    """An upload in parts that has begun and neither been completed nor taken back. ``begun_at`` is epoch ms."""

    key: str
    upload_id: str
    begun_at: float


class Readable(Protocol):
    """Where the bytes of an upload come from."""

    def read(self, size: int, /) -> bytes:
        """The next *size* bytes, fewer only at the end."""
        ...


class ObjectStore(Protocol):
    """One bucket. All methods block, and raise `ObjectStoreError`, or `BackupStoppedError` when told to stop."""

    def put(self, key: str, data: bytes, *, content_type: str) -> None:
        """Store a small object."""
        ...

    def put_stream(
        self, key: str, source: Readable, *, content_type: str, metadata: dict[str, str], part_bytes: int
    ) -> None:
        """Store an object of any size; nobody sees it before *source* has been read to its end and all is there.

        Memory: some *part_bytes*.
        """
        ...

    def look(self, key: str) -> StoredObject | None:
        """What there is under *key*; None: nothing, or no such bucket."""
        ...

    def get(self, key: str) -> Iterator[bytes]:
        """Its bytes, in blocks. Nothing there is an error."""
        ...

    def list(self, prefix: str) -> list[StoredObject]:
        """All objects whose key begins so. All of them, or an error."""
        ...

    def delete(self, key: str) -> None:
        """Delete; what is not there is deleted already."""
        ...

    def unfinished(self, prefix: str) -> Sequence[Unfinished]:
        """Uploads under *prefix* that have not ended: the first thousand at most."""
        ...

    def abandon(self, upload: Unfinished) -> None:
        """Take back what there is of it."""
        ...
