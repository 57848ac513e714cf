"""Gzip and SHA-256 as streams: any way of cutting the bytes gives the same, and damage is seen."""

import gzip
import hashlib
import io
import random
import tracemalloc

import pytest

from bunqueue_trio.backup.packing import BLOCK_BYTES, GzipReader, digest_of, unpacked
from bunqueue_trio.errors import DamagedBackupError

TEXT = b"SQLite format 3\0" + bytes(range(256)) * 300
NOISE = random.Random(1).randbytes(3 * BLOCK_BYTES + 17)


def nothing() -> None:
    pass


def pack(data: bytes, size: int) -> tuple[list[bytes], list[int]]:
    told: list[int] = []
    reader = GzipReader(io.BytesIO(data), check=nothing, ended=told.append)
    parts = []
    while part := reader.read(size):
        parts.append(part)
    return parts, told


def cut(data: bytes, size: int) -> list[bytes]:
    return [data[start : start + size] for start in range(0, len(data), size)]


@pytest.mark.parametrize("data", [b"", b"x", TEXT, NOISE], ids=["empty", "byte", "text", "noise"])
@pytest.mark.parametrize("size", [1, 1000, BLOCK_BYTES, 10_000_000])
def test_what_is_packed_in_any_pieces_is_gzip_of_the_data(data, size):
    if size == 1 and len(data) > 1000:
        size = 7
    parts, told = pack(data, size)

    assert gzip.decompress(b"".join(parts)) == data
    assert all(len(part) == size for part in parts[:-1])
    assert told == [sum(map(len, parts))]


def test_the_end_is_told_before_the_last_piece_is_handed_out():
    told: list[int] = []
    reader = GzipReader(io.BytesIO(NOISE), check=nothing, ended=told.append)
    size = len(NOISE) // 2

    reader.read(size)
    assert told == []
    assert len(reader.read(size)) == size
    reader.read(size)

    assert told == [reader.packed_bytes]


@pytest.mark.parametrize("size", [1, 3, 1000, 10_000_000])
@pytest.mark.parametrize("is_compressed", [True, None])
def test_gzip_in_any_pieces_is_unpacked_when_said_or_seen(size, is_compressed):
    assert b"".join(unpacked(cut(gzip.compress(TEXT), size), is_compressed=is_compressed)) == TEXT


@pytest.mark.parametrize("is_compressed", [False, None])
def test_plain_bytes_are_passed_on(is_compressed):
    assert b"".join(unpacked(cut(TEXT, 1), is_compressed=is_compressed)) == TEXT


def test_gzip_is_passed_on_when_it_is_said_to_be_plain():
    assert b"".join(unpacked([gzip.compress(TEXT)], is_compressed=False)) == gzip.compress(TEXT)


def test_members_one_after_the_other_and_padding_behind_them_are_one_stream():
    data = gzip.compress(b"one ") + gzip.compress(b"two") + b"\0" * 100

    assert b"".join(unpacked(cut(data, 9), is_compressed=None)) == b"one two"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        TEXT,
        gzip.compress(TEXT)[:-1],
        gzip.compress(TEXT)[:40],
        gzip.compress(TEXT)[:-8] + b"\0" * 8,
        gzip.compress(TEXT) + b"and more",
    ],
    ids=["empty", "plain", "cut", "cut short", "wrong sum", "more behind"],
)
def test_what_should_be_gzip_and_is_not_is_refused(data):
    with pytest.raises(DamagedBackupError, match=r"^Backup data is not a valid gzip stream$"):
        list(unpacked([data], is_compressed=True))


def test_no_bytes_at_all_are_plain_unless_said_otherwise():
    assert list(unpacked([], is_compressed=None)) == []


def test_a_little_gzip_that_holds_much_is_unpacked_in_small_blocks():
    data = gzip.compress(b"\0" * 50_000_000)
    tracemalloc.start()
    try:
        size = sum(map(len, unpacked([data], is_compressed=True)))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert size == 50_000_000
    assert peak < 5_000_000


def test_the_digest_is_that_of_all_bytes():
    digest = digest_of(io.BytesIO(NOISE), nothing)

    assert (digest.checksum, digest.size_bytes) == (hashlib.sha256(NOISE).hexdigest(), len(NOISE))


def test_reading_ends_when_it_is_told_to():
    def stop() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        digest_of(io.BytesIO(NOISE), stop)
    with pytest.raises(KeyboardInterrupt):
        GzipReader(io.BytesIO(NOISE), check=stop, ended=lambda _: None).read(1)
