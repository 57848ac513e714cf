"""What all commands share."""

from msgspec import Raw, Struct

ABSENT = Raw(b"")


class Command(Struct, tag_field="cmd", rename="camel", gc=False):
    """Base of all commands; ``req_id`` is echoed unchanged, whatever its type."""

    req_id: Raw = ABSENT
