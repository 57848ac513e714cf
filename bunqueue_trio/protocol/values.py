"""How single values behave on the wire: numbers, truth, text, and whole trees of them. JavaScript set the rules."""

import math
from typing import Any

from msgpack import Timestamp
from msgspec.msgpack import Ext

UNDEFINED = Ext(0, b"\x00")
"""JavaScript's ``undefined``: extension type 0. Clients send it for every option they left unset."""

INT_MIN, INT_MAX = -(2**31), 2**32 - 1
_TIMESTAMP_MIN_S, _TIMESTAMP_MAX_S = -62_135_596_800, 253_402_300_799  # years 1 to 9999: what every client can decode
_EXPONENT_FROM = 1e21  # from here on JavaScript writes numbers with an exponent
_OBJECT_TEXT = "[object Object]"


def wire_number(value: float) -> float:
    """The form in which *value* may leave: an int within -2**31..2**32-1, anything else as float.

    Wire: JavaScript decodes 64-bit integers to a type that its arithmetic rejects. Negative zero becomes 0.
    """
    if type(value) is float:
        return int(value) if INT_MIN <= value <= INT_MAX and value.is_integer() else value
    return value if INT_MIN <= value <= INT_MAX else float(value)


def is_truthy(value: Any) -> bool:
    """JavaScript's idea of truth: empty lists, maps and binaries are true, NaN is false."""
    if value is None or isinstance(value, str | int):
        return bool(value)
    if isinstance(value, float):
        return value != 0 and not math.isnan(value)
    return not (isinstance(value, Ext) and value.code == 0)


def js_text(value: Any) -> str:
    """What JavaScript prints for *value*: ``null``, ``true``, digits, lists joined by commas."""
    if isinstance(value, str):
        return value
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return _float_text(value)
    if isinstance(value, list):
        # Flat on purpose: a nested list or map is a client's mistake, and its depth must cost us nothing.
        return ",".join(_OBJECT_TEXT if isinstance(item, list | dict) else js_text(item) for item in value)
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, int):
        return str(value)
    return "undefined" if isinstance(value, Ext) and value.code == 0 else _OBJECT_TEXT


def _float_text(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return str(int(value)) if value.is_integer() and abs(value) < _EXPONENT_FROM else repr(value)


def is_sound_timestamp(body: bytes) -> bool:
    """Whether *body* is a timestamp extension's content that no client's decoder stumbles over."""
    try:
        stamp = Timestamp.from_bytes(body)
    except ValueError:
        return False
    return bool(_TIMESTAMP_MIN_S <= stamp.seconds <= _TIMESTAMP_MAX_S)


def wire_tree(root: Any, max_depth: int) -> Any:
    """Make a decoded value fit to be sent, in place: keys become strings, wide integers floats.

    Args:
        root: What a generic decoder made: dicts, lists and scalars. Its containers are changed.
        max_depth: How many containers may lie within each other.
    Returns:
        *root*, or its replacement where it is a scalar itself.
    Raises:
        ValueError: nested too deep, a key that cannot become a string, a timestamp out of range.

    Goes level by level instead of calling itself, so that no depth can exhaust the stack.
    """
    top = [root]
    level: list[Any] = [top]
    depth = 0
    while level:
        if depth > max_depth:
            raise ValueError("nested too deep")
        below: list[Any] = []
        for container in level:
            items = enumerate(container) if type(container) is list else _text_keyed(container).items()
            for key, value in items:
                kind = type(value)
                if kind is list or kind is dict:
                    below.append(value)
                elif kind is int:
                    if not INT_MIN <= value <= INT_MAX:
                        container[key] = float(value)
                elif kind is Timestamp:
                    container[key] = _sound_timestamp(value)
        level = below
        depth += 1
    return top[0]


def _text_keyed(container: dict[Any, Any]) -> dict[Any, Any]:
    """The same dict, its keys turned into strings; where two then agree, the later one wins."""
    if not all(type(key) is str for key in container):
        items = [(_key_text(key), value) for key, value in container.items()]
        container.clear()
        container.update(items)
    return container


def _key_text(key: Any) -> str:
    if key is None or isinstance(key, str | int | float | bytes):
        return js_text(key)
    raise ValueError("a map key must be a scalar")


def _sound_timestamp(stamp: Timestamp) -> Ext:
    if not _TIMESTAMP_MIN_S <= stamp.seconds <= _TIMESTAMP_MAX_S:
        raise ValueError("timestamp out of range")
    return Ext(-1, stamp.to_bytes())
