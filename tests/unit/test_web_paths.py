"""Paths: split and resolved as they were sent, decoded only afterwards."""

import pytest

from bunqueue_trio.web.paths import PathTable, decoded, segments_of


@pytest.mark.parametrize(
    ("target", "segments"),
    [
        ("/", ("",)),
        ("/a", ("a",)),
        ("/a/", ("a", "")),
        ("//a", ("", "a")),
        ("/a/./b", ("a", "b")),
        ("/a/../b", ("b",)),
        ("/a/..", ("",)),
        ("/a/b/..", ("a", "")),
        ("/..", ("",)),
        ("/../../a", ("a",)),
        ("/a/%2E%2e/b", ("b",)),
        ("/a/.%2e/%2E/b", ("b",)),
        ("/a/...", ("a", "...")),
        ("/a%2Fb", ("a%2Fb",)),
        ("/a?b/../c", ("a",)),
        ("http://host/a/b?x", ("a", "b")),
        ("http://[", ("",)),
        ("*", ("",)),
    ],
)
def test_how_a_target_is_split(target, segments):
    assert segments_of({"raw_path": target.encode(), "path": "/unused"}) == segments


def test_without_a_raw_path_the_decoded_one_is_used():
    assert segments_of({"path": "/a b"}) == ("a b",)


@pytest.mark.parametrize(
    ("segment", "text"), [("a%20b", "a b"), ("%C3%BC", "ü"), ("a+b", "a+b"), ("%2F", "/"), ("", "")]
)
def test_how_a_segment_is_decoded(segment, text):
    assert decoded(segment) == text


@pytest.mark.parametrize("segment", ["%", "%2", "%zz", "%ZZ", "%ff", "%ED%A0%80", "\xff"])
def test_what_is_no_text_is_refused(segment):
    with pytest.raises(ValueError):  # noqa: PT011  (any will do)
        decoded(segment)


def test_a_literal_wins_over_a_parameter_whatever_the_order():
    table: PathTable[str] = PathTable()
    table.add("GET", "/jobs/:id/state", "state")
    table.add("GET", "/jobs/custom/:name", "custom")
    table.add("POST", "/jobs/:id", "any")

    assert table.find("GET", ("jobs", "custom", "state")) == ("custom", {"name": "state"})
    assert table.find("GET", ("jobs", "x", "state")) == ("state", {"id": "x"})
    assert table.find("GET", ("jobs", "", "state")) is None
    assert table.find("GET", ("jobs", "x")) is None
    assert table.find("POST", ("jobs", "x")) == ("any", {"id": "x"})
