"""Paths of requests: split and resolved as they were sent, decoded only once a route has matched.

An encoded slash is part of a name, so nothing may be decoded before the path is split.

Source: HTTP, "Path parameters"; HD-5, HD-6.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final, Generic, TypeVar
from urllib.parse import unquote_to_bytes, urlsplit

T = TypeVar("T")

_BAD_ESCAPE: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")
_ONE_DOT: Final = frozenset({".", "%2e"})
_TWO_DOTS: Final = frozenset({"..", ".%2e", "%2e.", "%2e%2e"})


def segments_of(scope: Any) -> tuple[str, ...]:
    """The segments of the path an ASGI scope asks for, not decoded, dots resolved; ``/`` is one empty segment."""
    target = bytes(scope.get("raw_path") or scope["path"].encode()).decode("latin-1")
    if not target.startswith("/"):
        try:
            target = urlsplit(target).path
        except ValueError:
            target = ""
    segments: list[str] = []
    last = ""
    for last in target.partition("?")[0].split("/")[1:]:
        if last.lower() in _TWO_DOTS:
            del segments[-1:]
        elif last.lower() not in _ONE_DOT:
            segments.append(last)
    if last.lower() in _ONE_DOT | _TWO_DOTS:
        segments.append("")  # "/a/." is "/a/"
    return tuple(segments) or ("",)


def decoded(segment: str) -> str:
    """A segment as text.

    Raises:
        ValueError: an escape that is none, or bytes that are not UTF-8.
    """
    if _BAD_ESCAPE.search(segment):
        raise ValueError("bad escape")
    return unquote_to_bytes(segment.encode("latin-1")).decode()


class PathTable(Generic[T]):
    """Finds what belongs to a method and a path. In a pattern ``:name`` stands for any one segment that is not empty.

    A literal segment wins over a parameter.
    """

    def __init__(self) -> None:
        self._patterns: dict[tuple[str, int], list[tuple[tuple[str, ...], T]]] = {}

    def add(self, method: str, pattern: str, target: T) -> None:
        """Enter one row."""
        segments = tuple(pattern.split("/")[1:])
        rows = self._patterns.setdefault((method, len(segments)), [])
        rows.append((segments, target))
        rows.sort(key=lambda row: [segment.startswith(":") for segment in row[0]])

    def find(self, method: str, segments: Sequence[str]) -> tuple[T, dict[str, str]] | None:
        """What belongs to that path, with its parameters, not decoded; None for an unknown path."""
        for pattern, target in self._patterns.get((method, len(segments)), ()):
            pairs = list(zip(pattern, segments, strict=True))
            if all(segment if part[:1] == ":" else part == segment for part, segment in pairs):
                return target, {part[1:]: segment for part, segment in pairs if part[:1] == ":"}
        return None
