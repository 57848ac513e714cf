"""JSON that others may have written."""

from typing import TypeVar

import msgspec

T = TypeVar("T")


def read_json(data: bytes, kind: type[T]) -> T:
    """Parse *data* as a *kind*.

    Raises:
        ValueError: it is none, whatever is wrong with it.
    """
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:  # nested too deep
        raise ValueError(str(error)) from error
