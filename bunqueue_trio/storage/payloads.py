"""msgpack bytes that the server stores without decoding them: are they whole, and can every client read them."""

from typing import Final

import msgpack
import msgspec
from msgspec import Raw

EMPTY_MAP: Final = b"\x80"
NULL: Final = b"\xc0"
UNDEFINED: Final = b"\xd4\x00\x00"  # fixext 1 of type 0, as the reference writes it

_WHOLE = msgspec.msgpack.Decoder(Raw)
_ANYTHING = msgspec.msgpack.Decoder()
_WIDE_INTEGERS: Final = (0xCF, 0xD3)

# Bytes of a token whose length its first byte fixes: containers count as their header alone, since their members are
# tokens of their own. 0 marks the forms that carry a length.
_FIXED: Final = {
    0xC0: 1, 0xC2: 1, 0xC3: 1, 0xCA: 5, 0xCB: 9, 0xCC: 2, 0xCD: 3, 0xCE: 5, 0xCF: 9, 0xD0: 2, 0xD1: 3, 0xD2: 5,
    0xD3: 9, 0xD4: 3, 0xD5: 4, 0xD6: 6, 0xD7: 10, 0xD8: 18, 0xDC: 3, 0xDD: 5, 0xDE: 3, 0xDF: 5,
}  # fmt: skip
# Forms with a length: (bytes of the length, bytes before the content).
_SIZED: Final = {
    0xC4: (1, 2), 0xC5: (2, 3), 0xC6: (4, 5), 0xC7: (1, 3), 0xC8: (2, 4), 0xC9: (4, 6), 0xD9: (1, 2), 0xDA: (2, 3),
    0xDB: (4, 5),
}  # fmt: skip


def checked_payload(blob: object) -> Raw | None:
    """The payload in *blob*, or None when it is not exactly one msgpack value.

    64-bit integer forms become float64: JavaScript clients would decode them as big integers and fail. Texts that are
    no UTF-8 get U+FFFD where they are not: Python clients would fail, and take the whole batch along. Everything else,
    "undefined" and unknown extensions included, stays as it is.

    Cost: about 1 µs for an ordinary payload.
    """
    if not isinstance(blob, bytes):
        return None
    try:
        _ANYTHING.decode(blob)
    except (msgspec.MsgspecError, ValueError, TypeError, RecursionError):
        try:
            _WHOLE.decode(blob)
        except (msgspec.MsgspecError, RecursionError):
            return None
        blob = _legible(blob)
    return Raw(without_wide_integers(blob))


def _legible(data: bytes) -> bytes:
    """*data*, a whole msgpack value, with texts that every client can decode; as it is if it has other trouble."""
    try:
        value = msgpack.unpackb(data, unicode_errors="replace", strict_map_key=False)
        packed: bytes = msgpack.packb(value)
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException):
        return data
    return packed


def without_wide_integers(data: bytes) -> bytes:
    """*data*, a whole msgpack value, with each 64-bit integer rewritten as float64, which takes as many bytes.

    Cost: two searches for the bytes 0xCF and 0xD3; only when one occurs a walk over the tokens.
    """
    if b"\xcf" not in data and b"\xd3" not in data:
        return data
    patched: bytearray | None = None
    for position in _wide_integers(data):
        if patched is None:
            patched = bytearray(data)
        raw = data[position + 1 : position + 9]
        number = int.from_bytes(raw, "big", signed=data[position] == 0xD3)
        patched[position : position + 9] = msgspec.msgpack.encode(float(number))
    return data if patched is None else bytes(patched)


def _wide_integers(data: bytes) -> list[int]:
    """Where the 64-bit integers of *data* begin."""
    found = []
    position, end = 0, len(data)
    while position < end:
        first = data[position]
        if first < 0xA0 or first >= 0xE0:  # small numbers, headers of small maps and lists
            position += 1
        elif first < 0xC0:
            position += 1 + (first & 0x1F)
        elif first in _SIZED:
            width, head = _SIZED[first]
            position += head + int.from_bytes(data[position + 1 : position + 1 + width], "big")
        else:
            if first in _WIDE_INTEGERS:
                found.append(position)
            position += _FIXED[first]
    return found
