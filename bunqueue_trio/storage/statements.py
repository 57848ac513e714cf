"""Statements over lists of ids, in a few texts that are made once and that apsw keeps prepared."""

from collections.abc import Sequence
from typing import Any, Final

import apsw

CHUNK: Final = 100

# Lists of ids are padded with their last one up to one of these, so that a few texts serve every length.
_LIST_SIZES: Final = (1, 2, 4, 8, 16, 32, 64, CHUNK)
_LIST_SIZE: Final = tuple(next(size for size in _LIST_SIZES if size >= count) for count in range(1, CHUNK + 1))


class ListStatement:
    """A statement with one list of up to 100 ids."""

    __slots__ = ("_texts",)

    def __init__(self, template: str) -> None:
        self._texts = {size: template.format(ids=",".join("?" * size)) for size in _LIST_SIZES}

    def run(self, connection: apsw.Connection, ids: Sequence[str]) -> list[tuple[Any, ...]]:
        """Execute it over *ids*; returns the rows of its RETURNING or SELECT."""
        found: list[tuple[Any, ...]] = []
        for start in range(0, len(ids), CHUNK):
            part = tuple(ids[start : start + CHUNK])
            size = _LIST_SIZE[len(part) - 1]
            found += connection.execute(self._texts[size], part + part[-1:] * (size - len(part))).fetchall()
        return found
