"""Payloads: job data, results and messages, which the server stores and returns as the bytes they came in.

A payload is *canonical* when no client of any language can stumble over it: every str is valid UTF-8, every map key
a str, no integer has a 64-bit form, nesting is bounded, and the only extensions are ``undefined`` and timestamps.
Ordinary payloads are recognised by one call into C; what that call refuses is looked at more closely, and what does
not pass is rewritten once, at the door, or refused (P-28).
"""

from typing import Annotated, Any, Final

import msgpack
import msgspec
from msgspec import Meta, Raw

from bunqueue_trio.errors import MalformedFrameError, ValidationError
from bunqueue_trio.model.commands import ABSENT
from bunqueue_trio.protocol.scanning import is_canonical
from bunqueue_trio.protocol.values import INT_MAX, INT_MIN, UNDEFINED, wire_tree

MAX_DEPTH = 512
MAX_JSON_UNITS = 10_485_760  # Wire: the greatest job data, measured as JSON text in UTF-16 units
INVALID_FORMAT = "Invalid command format"

UNDECODABLE: Final = (
    msgspec.MsgspecError,
    msgpack.exceptions.UnpackException,
    ValueError,
    TypeError,
    OverflowError,
    RecursionError,
    MemoryError,
)
"""What decoders raise for bytes from outside; a MemoryError answers a length that lies."""

_ORDINARY_DEPTH = 7  # the type below doubles with each level; deeper payloads take the slower way
_JSON_BYTES_PER_BYTE = 6  # ``false`` and a comma, or ``\\u0001``, for a single byte: no value grows more


def _ordinary_type(integer: Any) -> Any:
    """The type of a payload without binary and extensions, unrolled: msgspec knows no recursive aliases."""
    scalar = None | bool | integer | float | str
    nested = scalar
    for _ in range(_ORDINARY_DEPTH):
        nested = scalar | list[nested] | dict[str, nested]  # type: ignore[valid-type]
    return nested


def undefined_is_none(code: int, _body: memoryview) -> None:
    """For typed decoders: the only extension that fields may hold is undefined, and it means absent."""
    if code != UNDEFINED.code:
        raise ValueError(f"unknown extension type {code}")


check_ordinary = msgspec.msgpack.Decoder(_ordinary_type(int)).decode
_check_narrow = msgspec.msgpack.Decoder(_ordinary_type(Annotated[int, Meta(ge=INT_MIN, le=INT_MAX)])).decode
_decode_any = msgspec.msgpack.Decoder(ext_hook=undefined_is_none).decode
_encode = msgspec.msgpack.Encoder().encode
_encode_json = msgspec.json.Encoder().encode
_UNDEFINED_BYTES: Final = _encode(UNDEFINED)


def canonical(raw: Raw) -> Raw:
    """The canonical form of a payload: the bytes as they came when they are canonical, else rewritten.

    Bad UTF-8 becomes U+FFFD, keys become strings, 64-bit integers float64. The result owns its bytes. An empty
    payload (absent) stays empty.

    Raises:
        MalformedFrameError: not one complete value, nested beyond 512 levels, a container as a map key, or an
            extension other than undefined and a timestamp of the years 1 to 9999.

    Cost: about 0.5 µs for ordinary payloads; some 0.4 µs per value for those with binary, or deeper than 7 levels.
    """
    return _canonical(bytes(raw))


def received(raw: Raw, may_be_wide: bool) -> Raw:
    """`canonical` for a payload cut out of a frame, where a top-level undefined means that it is absent.

    Args:
        may_be_wide: False when the whole frame is known to hold none of the bytes that head 64-bit integers.
    Raises:
        MalformedFrameError: as `canonical`.
    """
    if not may_be_wide:
        try:
            check_ordinary(raw)
        except UNDECODABLE:
            pass
        else:
            return raw.copy()
    data = bytes(raw)
    return ABSENT if data == _UNDEFINED_BYTES else _canonical(data)


def _canonical(data: bytes) -> Raw:
    if not data:
        return ABSENT
    # These bytes head uint64 and int64, or belong to a text or a float.
    may_be_wide = 0xCF in data or 0xD3 in data
    if _is_minimal(data) if may_be_wide else _is_ordinary(data):
        return Raw(data)
    if is_canonical(data, MAX_DEPTH):
        return Raw(data)
    try:
        tree = unpack_leniently(data)
        return Raw(_encode(wire_tree(tree, MAX_DEPTH)))
    except UNDECODABLE:
        raise MalformedFrameError(INVALID_FORMAT) from None


def _is_ordinary(data: bytes) -> bool:
    try:
        check_ordinary(data)
    except UNDECODABLE:
        return False
    return True


def _is_minimal(data: bytes) -> bool:
    """True for what our own encoder would write the same way and whose integers fit into 32 bits.

    A text or a float may well contain the bytes 0xCF and 0xD3 (Greek letters do); this tells them from integers
    without a look at each value.
    """
    try:
        return bool(_encode(_check_narrow(data)) == data)
    except UNDECODABLE:
        return False


def unpack_leniently(data: bytes) -> Any:
    """Decode any msgpack: bad UTF-8 becomes U+FFFD, keys may be any scalar, undefined stays an extension.

    Raises:
        Exception: one of `UNDECODABLE`.
    """
    return msgpack.unpackb(
        data, raw=False, unicode_errors="replace", strict_map_key=False, timestamp=0, ext_hook=_undefined_or_refused
    )


def _undefined_or_refused(code: int, _body: bytes) -> Any:
    if code != UNDEFINED.code:
        raise ValueError(f"unknown extension type {code}")
    return UNDEFINED


def json_length_exceeds(raw: Raw, limit: int = MAX_JSON_UNITS) -> bool:
    """Whether the JSON text of a canonical payload is longer than *limit* UTF-16 units.

    Binary counts its own length in bytes (P-10). Small payloads are answered by their size alone.
    """
    if len(raw) * _JSON_BYTES_PER_BYTE <= limit:
        return False
    tree = [to_python(raw)]
    binary_bytes = _take_binary(tree) if _may_hold_binary(bytes(raw)) else 0
    text = _encode_json(tree[0])
    if len(text) + binary_bytes <= limit:
        return False
    # Characters beyond the basic plane count twice; in UTF-8 they are those that begin with 0xF0 to 0xF4.
    units = len(text.decode()) + sum(text.count(lead) for lead in range(0xF0, 0xF5))
    return units + binary_bytes > limit


def _may_hold_binary(data: bytes) -> bool:
    """Whether one of the bytes that head binary occurs, be it within a text or a number."""
    return 0xC4 in data or 0xC5 in data or 0xC6 in data


def _take_binary(tree: list[Any]) -> int:
    """Replace each binary by an empty string; return how many bytes they had, less those of the quotes."""
    total = 0
    level: list[Any] = [tree]
    while level:
        below: list[Any] = []
        for container in level:
            for key, value in enumerate(container) if type(container) is list else container.items():
                kind = type(value)
                if kind is list or kind is dict:
                    below.append(value)
                elif kind is bytes:
                    total += len(value) - 2
                    container[key] = ""
        level = below
    return total


def to_python(raw: Raw) -> Any:
    """Decode a canonical payload: undefined becomes None, a timestamp a datetime, binary bytes. Absent is None."""
    return _decode_any(raw) if len(raw) else None


def from_python(value: Any) -> Raw:
    """Encode a Python value as a canonical payload: what JSON holds, and bytes and datetimes.

    Integers beyond 32 bits become float64, keys strings, lone surrogates U+FFFD.

    Raises:
        ValidationError: the value holds what has no place in a payload.
    """
    try:
        return canonical(Raw(_encode(value)))
    except (OverflowError, UnicodeEncodeError):
        pass  # an integer beyond 64 bits or a lone surrogate: both are legal in JSON text
    except (*UNDECODABLE, MalformedFrameError):
        raise ValidationError("Job data cannot be encoded") from None
    try:
        return canonical(Raw(_encode(_encodable(value))))
    except (*UNDECODABLE, MalformedFrameError):
        raise ValidationError("Job data cannot be encoded") from None


def _encodable(value: Any) -> Any:
    """A copy of *value* without wide integers and lone surrogates."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, int):
        return value if INT_MIN <= value <= INT_MAX else float(value)
    if isinstance(value, dict):
        return {_encodable(key): _encodable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_encodable(item) for item in value]
    return value
