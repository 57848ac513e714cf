"""The sidecar of a backup: what its data must be once unpacked.

Source: S3 backup and restore, "Object layout", BD-10, BD-13; R346, K6.
"""

import re
from typing import Final

import msgspec
from msgspec import Struct

from bunqueue_trio.backup.json_texts import read_json
from bunqueue_trio.errors import DamagedBackupError

CONTENT_TYPE: Final = "application/json;charset=utf-8"
DATA_CONTENT_TYPE: Final = "application/x-sqlite3"  # K1
MAX_SIDECAR_BYTES: Final = 1 << 20


class Sidecar(Struct, frozen=True, rename="camel", gc=False):
    """Shape: ``{"timestamp": ISO, "version", "size": bytes, "compressedSize": bytes, "checksum", "compressed": bool}``.

    Wire: clients of the reference read the keys in this order. ``checksum`` is the SHA-256 of the unpacked bytes, lower
    case hex. All fields may be missing in what others have written.
    """

    timestamp: str | None = None
    version: str | None = None
    size: int | None = None
    compressed_size: int | None = None
    checksum: str | None = None
    compressed: bool | None = None

    def to_json(self) -> bytes:
        """As it is stored: indented by 2."""
        return msgspec.json.format(msgspec.json.encode(self), indent=2)


def read_sidecar(data: bytes) -> Sidecar:
    """Parse a sidecar.

    Raises:
        DamagedBackupError: it is none. A sidecar that cannot be read is no reason to restore unverified.
    """
    try:
        return read_json(data, Sidecar)
    except ValueError as error:
        raise DamagedBackupError("Backup metadata is not valid JSON") from error


def from_object_metadata(metadata: dict[str, str]) -> Sidecar | None:
    """What the object itself says of its data, for a backup whose sidecar is gone; None: nothing."""
    checksum, size = metadata.get("sha256"), metadata.get("size", "")
    if checksum is None:
        return None
    return Sidecar(checksum=checksum, size=int(size) if re.fullmatch(r"\d{1,20}", size, re.ASCII) else None)


def to_object_metadata(checksum: str, size_bytes: int) -> dict[str, str]:
    """The reverse; the store puts ``x-amz-meta-`` in front."""
    return {"sha256": checksum, "size": str(size_bytes)}
