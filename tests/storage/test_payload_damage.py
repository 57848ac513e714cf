"""A stored payload in which a disk has turned a byte: it must not fail the client that gets it. Source: P-28, R185."""

import msgpack
import pytest

from bunqueue_trio.storage.payloads import checked_payload

WHOLE = {
    "name": "mail",
    "list": [1, 2.5, None, True, b"\xff"],
    "when": msgpack.Timestamp(5),
    "ext": msgpack.ExtType(7, b"x"),
}


@pytest.mark.parametrize(
    ("damaged", "mended"),
    [
        (b"\xa3a\x87b", "a\ufffdb"),
        (b"\x81\xa1\xff\x01", {"\ufffd": 1}),
        (b"\x92\xa1\xc3\xcf\x00\x00\x00\x00\x00\x00\x00\x07", ["\ufffd", 7]),
    ],
)
def test_text_that_is_no_utf8_is_made_legible(damaged, mended):
    payload = checked_payload(damaged)

    assert payload is not None
    assert msgpack.unpackb(bytes(payload)) == mended


def test_whatever_is_legible_stays_as_it_is():
    stored = msgpack.packb(WHOLE)

    assert bytes(checked_payload(stored) or b"") == stored


@pytest.mark.parametrize("odd", [b"\xd4\x00\x00", b"\x81\x91\x01\x02", b"\x81\x80\x01"])
def test_odd_but_legible_values_stay_as_they_are(odd):
    assert bytes(checked_payload(odd) or b"") == odd


@pytest.mark.parametrize("broken", [b"", b"\xa3ab", b"\x01\x01", "text", None])
def test_what_is_not_one_value_is_no_payload(broken):
    assert checked_payload(broken) is None
