"""What all commands share."""

from typing import TYPE_CHECKING, Any

from msgspec import Raw, Struct

ABSENT = Raw(b"")

if TYPE_CHECKING:
    Undecoded = Any
else:
    Undecoded = Raw
"""A field that is taken as bytes, because null means something else there than an absent field; `ABSENT` by default.

The codec leaves in it what `protocol.codec` says for that field.
"""


class Command(Struct, tag_field="cmd", rename="camel", gc=False):
    """Base of all commands; ``req_id`` is echoed unchanged, whatever its type.

    A command whose meaning depends on what its connection speaks has a field ``is_newer``, under a name in brackets
    that is none of the wire: the session sets it for clients that have asked for protocol 3.
    """

    req_id: Raw = ABSENT
