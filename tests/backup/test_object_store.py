"""One suite for both buckets: that in memory, which other tests use, and a real one."""

import io
import random

import pytest

from bunqueue_trio.backup.object_store import ObjectStore
from bunqueue_trio.errors import ObjectStoreError
from tests.backup.fakes import FakeObjectStore

KEYS = ["plain", "with/slashes/in it", "ä&?%+#=.db", "a" * 200]
MIB = 1 << 20


@pytest.fixture(params=["memory", pytest.param("real", marks=pytest.mark.slow)])
def any_store(request: pytest.FixtureRequest) -> ObjectStore:
    if request.param == "memory":
        return FakeObjectStore()
    return request.getfixturevalue("bucket").store()


@pytest.mark.parametrize("key", KEYS)
def test_what_is_put_is_there(any_store: ObjectStore, key: str):
    any_store.put(key, b"small", content_type="text/plain")

    found = any_store.look(key)

    assert found is not None
    assert (found.key, found.size_bytes) == (key, 5)
    assert found.modified_at is not None
    assert b"".join(any_store.get(key)) == b"small"
    assert [(item.key, item.size_bytes) for item in any_store.list(key[:3])] == [(key, 5)]


def test_an_empty_object_is_one(any_store: ObjectStore):
    any_store.put("empty", b"", content_type="text/plain")

    assert b"".join(any_store.get("empty")) == b""


@pytest.mark.parametrize("size", [0, 1000, 5 * MIB, 5 * MIB + 1, 12 * MIB])
def test_a_stream_is_stored_with_what_is_said_of_it(any_store: ObjectStore, size: int):
    data = random.Random(size).randbytes(size)
    metadata = {"sha256": "abc", "size": "7"}

    any_store.put_stream(
        "stream", io.BytesIO(data), content_type="application/x-sqlite3", metadata=metadata, part_bytes=5 * MIB
    )

    found = any_store.look("stream")
    assert found is not None
    assert (found.size_bytes, found.metadata) == (size, metadata)
    assert b"".join(any_store.get("stream")) == data


def test_a_stream_that_fails_leaves_nothing(any_store: ObjectStore):
    class Broken:
        left = 2

        def read(self, size: int) -> bytes:
            self.left -= 1
            if self.left < 0:
                raise ObjectStoreError("the source")
            return b"x" * size

    with pytest.raises(ObjectStoreError, match=r"^the source$"):
        any_store.put_stream("broken", Broken(), content_type="x/y", metadata={}, part_bytes=5 * MIB)

    assert any_store.look("broken") is None
    assert any_store.list("") == []


def test_what_is_not_there(any_store: ObjectStore):
    assert any_store.look("missing") is None
    assert any_store.list("missing") == []
    any_store.delete("missing")
    with pytest.raises(ObjectStoreError) as refusal:
        list(any_store.get("missing"))
    assert refusal.value.status == 404


def test_what_is_deleted_is_gone(any_store: ObjectStore):
    any_store.put("one", b"1", content_type="x/y")
    any_store.put("two", b"2", content_type="x/y")

    any_store.delete("one")

    assert [item.key for item in any_store.list("")] == ["two"]


def test_a_listing_is_complete_and_sorted(any_store: ObjectStore):
    for index in range(130):
        any_store.put(f"many/{index:03}", b"x", content_type="x/y")

    assert [item.key for item in any_store.list("many/")] == [f"many/{index:03}" for index in range(130)]
