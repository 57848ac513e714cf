"""A segment of the change log is read as it was written, or refused.

Source: point-in-time recovery; D-151.
"""

import hashlib
import io
from pathlib import Path
from typing import Any

import pytest

from bunqueue_trio.backup.segments import COMMIT, MAGIC, PageWriter, SegmentHead, SegmentReader, SegmentWriter
from bunqueue_trio.errors import DamagedBackupError
from bunqueue_trio.storage.wal_tail import FRAME_HEAD, Commit

HEAD = SegmentHead("gen", 3, "ab", 7)
PAGE_BYTES = 512


def frame(page: int, pages_after: int, *, fill: bytes = b"p", salts: tuple[int, int] = (1, 2)) -> bytes:
    return FRAME_HEAD.pack(page, pages_after, *salts, 0, 0) + fill * PAGE_BYTES


def written(*commits: list[bytes]) -> bytes:
    """A segment of these commits, numbered from 7, one each second."""
    file = io.BytesIO()
    writer = SegmentWriter(file, HEAD)
    for index, frames in enumerate(commits):
        writer.begin_commit(Commit(7 + index, 1_000.0 * index, 0), PAGE_BYTES, len(frames))
        for data in frames:
            writer.write(data)
    assert len(writer.end()) == 64
    return file.getvalue()


def read(data: bytes, step: int = 100) -> tuple[SegmentReader, list[Any]]:
    """All of it, in blocks of *step*."""
    reader = SegmentReader((data[at : at + step] for at in range(0, len(data), step)), "it")
    return reader, [(commit.number, commit.wall_ms, list(reader.frames())) for commit in reader.commits()]


def test_what_is_written_is_read():
    data = written([frame(1, 0), frame(2, 2, fill=b"q")], [frame(3, 3)])

    reader, commits = read(data)

    assert reader.head == HEAD
    assert commits == [
        (7, 0.0, [(1, 0, b"p" * 512), (2, 2, b"q" * 512)]),
        (8, 1_000.0, [(3, 3, b"p" * 512)]),
    ]
    assert reader.checksum == data[-32:].hex() == hashlib.sha256(data[:-32]).hexdigest()


def test_commits_that_nobody_takes_are_passed_over_and_still_checked():
    data = written([frame(1, 1)], [frame(2, 2)])
    reader = SegmentReader([data], "it")

    assert [commit.number for commit in reader.commits()] == [7, 8]
    assert reader.checksum is not None


def test_every_torn_tail_is_refused():
    data = written([frame(1, 0), frame(2, 2)], [frame(3, 3)])
    for end in range(len(data)):
        with pytest.raises(DamagedBackupError):
            read(data[:end])


def test_every_flipped_byte_is_refused():
    data = written([frame(1, 0), frame(2, 2)], [frame(3, 3)])
    for at in range(0, len(data), 3):
        changed = bytearray(data)
        changed[at] ^= 0x20
        with pytest.raises(DamagedBackupError):
            read(bytes(changed))


@pytest.mark.parametrize(
    ("frames", "what"),
    [
        ([frame(0, 1)], "a frame of another log"),
        ([frame(1, 0), frame(2, 2, salts=(1, 3))], "a frame of another log"),
        ([frame(1, 0)], "a commit without an end"),
    ],
)
def test_frames_that_make_no_commit_are_refused(frames: list[bytes], what: str):
    with pytest.raises(DamagedBackupError, match=f"Change log segment it holds {what}"):
        read(written(frames))


def test_what_follows_the_end_is_refused():
    with pytest.raises(DamagedBackupError, match="not what was uploaded"):
        read(written([frame(1, 1)]) + b"x")


@pytest.mark.parametrize("page_bytes", [0, 100, 513, 1 << 17])
def test_impossible_pages_are_refused(page_bytes: int):
    body = MAGIC + b'{"generation":"g","number":0,"previous":"","first":1}\n'
    body += COMMIT.pack(b"C", 1, 0.0, page_bytes, 1)

    with pytest.raises(DamagedBackupError, match="impossible pages"):
        read(body)


@pytest.mark.parametrize("line", [b"x" * 5_000, b"[]\n", b"\xff\n", b'{"generation":1}\n'])
def test_a_first_line_that_is_none_is_refused(line: bytes):
    with pytest.raises(DamagedBackupError, match="is no segment of a change log"):
        read(MAGIC + line)


def test_pages_go_where_they_belong_and_the_file_gets_its_size(tmp_path: Path):
    path = tmp_path / "file"
    path.write_bytes(bytes(16) + PAGE_BYTES.to_bytes(2, "big") + bytes(4 * PAGE_BYTES - 18))
    reader = SegmentReader([written([frame(2, 0, fill=b"a"), frame(3, 3, fill=b"b")], [frame(2, 2, fill=b"c")])], "it")
    writer = PageWriter(str(path))

    for commit in reader.commits():
        writer.apply(reader, commit)
    writer.finish()
    writer.close()

    assert path.read_bytes()[PAGE_BYTES:] == b"c" * PAGE_BYTES


def test_pages_of_another_size_are_refused(tmp_path: Path):
    path = tmp_path / "file"
    path.write_bytes(bytes(16) + (4096).to_bytes(2, "big") + bytes(4096))
    reader = SegmentReader([written([frame(1, 1)])], "it")
    writer = PageWriter(str(path))

    with pytest.raises(DamagedBackupError, match="pages of 512 bytes, not 4096"):
        writer.apply(reader, next(reader.commits()))
    writer.close()
