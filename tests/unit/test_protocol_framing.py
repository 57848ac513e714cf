"""Frames out of a byte stream: order, caps, and what is held of an incomplete one."""

import struct

import pytest

from bunqueue_trio.errors import FrameTooLargeError
from bunqueue_trio.protocol.framing import FrameBuffer


def frame(body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + body


def test_frames_of_one_segment_come_out_in_order():
    buffer = FrameBuffer()

    bodies = buffer.feed(frame(b"one") + frame(b"") + frame(b"two"))

    assert bodies == [b"one", b"", b"two"]
    assert not buffer.has_partial
    assert buffer.buffered_bytes == 0


def test_a_frame_cut_at_every_byte_comes_out_whole():
    buffer = FrameBuffer()
    stream = frame(b"one") + frame(b"two")

    bodies = [body for value in stream for body in buffer.feed(bytes([value]))]

    assert bodies == [b"one", b"two"]


@pytest.mark.parametrize("held", [1, 3, 4, 5, 8])
def test_an_incomplete_frame_is_counted_with_its_header(held):
    buffer = FrameBuffer()

    assert buffer.feed(frame(b"12345")[:held]) == []

    assert buffer.has_partial
    assert buffer.buffered_bytes == held


def test_a_piece_may_end_one_frame_and_begin_the_next():
    buffer = FrameBuffer()
    stream = frame(b"a" * 10_000) + frame(b"b" * 10_000)

    assert buffer.feed(stream[:9_000]) == []
    assert buffer.feed(stream[9_000:15_000]) == [b"a" * 10_000]
    assert buffer.buffered_bytes == 15_000 - 10_004
    assert buffer.feed(stream[15_000:]) == [b"b" * 10_000]


def test_good_frames_before_an_oversize_header_are_returned():
    buffer = FrameBuffer(max_frame_bytes=10)

    bodies = buffer.feed(frame(b"good") + frame(b"x" * 11))

    assert bodies == [b"good"]
    assert isinstance(buffer.fault, FrameTooLargeError)
    assert buffer.fault.length_bytes == 11
    assert str(buffer.fault) == "Frame too large: 11 bytes exceeds maximum 10"


def test_nothing_is_taken_after_a_fault():
    buffer = FrameBuffer(max_frame_bytes=10)
    buffer.feed(frame(b"x" * 11))

    assert buffer.feed(frame(b"good")) == []
    assert not buffer.has_partial


def test_an_oversize_header_is_refused_before_its_body_arrives():
    buffer = FrameBuffer()

    buffer.feed(b"\x04\x00\x00")
    assert buffer.fault is None
    buffer.feed(b"\x01")

    assert str(buffer.fault) == "Frame too large: 67108865 bytes exceeds maximum 67108864"


def test_the_greatest_length_is_waited_for():
    buffer = FrameBuffer()

    assert buffer.feed(b"\x04\x00\x00\x00") == []

    assert buffer.fault is None
    assert buffer.has_partial


def test_a_raised_cap_counts_for_the_next_header():
    buffer = FrameBuffer(max_frame_bytes=4)
    assert buffer.feed(frame(b"auth")) == [b"auth"]

    buffer.max_frame_bytes = 8

    assert buffer.feed(frame(b"12345678")) == [b"12345678"]


def test_text_of_http_is_refused_as_oversize():
    buffer = FrameBuffer()

    buffer.feed(b"GET / HTTP/1.1\r\n\r\n")

    assert buffer.fault is not None
    assert buffer.fault.length_bytes == 1_195_725_856


def test_a_trickle_of_small_pieces_is_gathered():
    buffer = FrameBuffer()
    body = bytes(range(256)) * 64
    stream = frame(body)

    for value in stream[:-1]:
        assert buffer.feed(bytes([value])) == []

    assert len(buffer._pieces) == 1  # one list entry per byte would cost forty times the frame
    assert buffer.feed(stream[-1:]) == [body]


def test_small_and_large_pieces_keep_their_order():
    buffer = FrameBuffer()
    parts = [b"a" * 10, b"b" * 5_000, b"c" * 10, b"d" * 20, b"e" * 6_000, b"f"]
    stream = frame(b"".join(parts))
    buffer.feed(stream[:4])

    bodies = [body for part in parts for body in buffer.feed(part)]

    assert bodies == [b"".join(parts)]
