"""Payloads as JSON text, the way JavaScript writes them: webhooks, and whatever else shows payloads over HTTP.

Source: observed bodies. Binary is a map of its bytes by position, undefined leaves a map and is null in a list, numbers
that are not finite are null, whole numbers have no point, times are ISO 8601 with milliseconds.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

import msgspec
from msgspec import Raw

from bunqueue_trio.protocol.values import UNDEFINED

MAX_BINARY_BYTES = 1 << 20  # a byte of binary becomes some 12 of text
_PLAIN_UP_TO = 1e21  # from here on JavaScript writes numbers with an exponent

_UNDEFINED_HERE: Final = object()


class TooMuchBinaryError(ValueError):
    """The payload holds more binary than is written out."""


def _undefined(code: int, _body: memoryview) -> Any:
    if code != UNDEFINED.code:
        raise ValueError(f"unknown extension type {code}")
    return _UNDEFINED_HERE


_decode = msgspec.msgpack.Decoder(ext_hook=_undefined).decode
_encode = msgspec.json.Encoder().encode


def json_text(payload: Raw) -> bytes:
    """The JSON text of a canonical payload, compact, UTF-8.

    Raises:
        TooMuchBinaryError: more than `MAX_BINARY_BYTES` of binary in all.

    Cost: about 0.5 µs per value.
    """
    return _encode(json_tree(_decode(payload)))


def json_number(value: float) -> float:
    """*value* as an int where it is whole, so that it is written without a point."""
    if type(value) is float and value.is_integer() and abs(value) < _PLAIN_UP_TO:
        return int(value)
    return value


def json_tree(root: Any) -> Any:
    """Make a decoded payload fit for JSON, its containers in place; level by level, so that no depth is too deep."""
    top = [root]
    level: list[Any] = [top]
    binary_bytes = 0
    while level:
        below: list[Any] = []
        for container in level:
            is_list = type(container) is list
            for key, value in enumerate(container) if is_list else list(container.items()):
                kind = type(value)
                if kind is str or kind is int or kind is bool or value is None:
                    continue
                if kind is list or kind is dict:
                    below.append(value)
                elif kind is bytes:
                    binary_bytes += len(value)
                    if binary_bytes > MAX_BINARY_BYTES:
                        raise TooMuchBinaryError(f"more than {MAX_BINARY_BYTES} bytes of binary")
                    container[key] = {str(index): byte for index, byte in enumerate(value)}
                elif value is _UNDEFINED_HERE and not is_list:
                    del container[key]
                else:
                    container[key] = _scalar(value)
        level = below
    return top[0]


def _scalar(value: Any) -> Any:
    if isinstance(value, float):
        return json_number(value)
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return None
