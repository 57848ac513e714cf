"""What may be a name, and whether older clients can find it inside the data."""

import msgpack
import pytest
from msgspec import Raw

from bunqueue_trio.errors import ValidationError
from bunqueue_trio.model.job import EnvelopeRecord, JobRecord
from bunqueue_trio.model.naming import (
    NO_DATA,
    check_name,
    classed,
    fits_inside,
    is_name,
    record_class,
    text_name_in,
    with_data,
)
from tests.storage.samples import job, raw


@pytest.mark.parametrize("value", ["a", " ", "é😀", "x" * 256, "é" * 256, "😀" * 128])
def test_a_string_of_up_to_256_units_is_a_name(value):
    assert is_name(value)
    check_name(value)


@pytest.mark.parametrize("value", ["", "x" * 257, "😀" * 128 + "x", "é" * 257, None, 5, True, b"a", ["a"], {"a": 1}])
def test_anything_else_is_none(value):
    assert not is_name(value)
    with pytest.raises(ValidationError, match=r"^Job name must be a non-empty string of at most 256 characters$"):
        check_name(value)


@pytest.mark.parametrize(
    ("data", "found"),
    [
        ({"name": "leg", "z": 1}, "leg"),
        ({"z": {"name": "inner"}}, None),
        ({"name": 7}, None),
        ({"name": None}, None),
        ({"name": ""}, None),
        ({"name": "x" * 257}, None),
        ({"z": 1}, None),
        ("name", None),
        (["name", "x"], None),
        (None, None),
    ],
)
def test_the_name_that_older_clients_take_out_of_data(data, found):
    assert text_name_in(raw(data)) == found


@pytest.mark.parametrize("size", [0, 1, 14, 15, 16, 65_535, 65_536])
def test_a_name_fits_into_a_map_without_one_whatever_its_size(size):
    data = {f"k{number}": number for number in range(size)}

    assert fits_inside("send", raw(data))
    assert not fits_inside("send", raw({**data, "name": None}))


@pytest.mark.parametrize("data", [None, "text", 5, -5, 2.5, True, [], [1], list(range(20)), b"name", "x" * 70_000])
def test_a_name_fits_into_nothing_but_a_map(data):
    assert not fits_inside("send", Raw(msgpack.packb(data)))


def test_a_map_whose_keys_are_no_strings_keeps_out_of_it():
    data = Raw(msgpack.packb({1: "a"}))

    assert not fits_inside("send", data)
    assert text_name_in(data) is None


def test_the_default_name_is_never_put_into_data():
    assert record_class("default", raw({})) is JobRecord
    assert record_class("send", raw({})) is EnvelopeRecord
    assert record_class(None, raw({})) is JobRecord
    assert record_class("send", NO_DATA) is JobRecord


def test_other_data_decide_anew():
    record = classed(job("a", data=raw({"to": 1}), own_name="send"))

    texts = with_data(record, raw("text"))

    assert [type(r) for r in (record, texts, with_data(texts, raw({})))] == [EnvelopeRecord, JobRecord, EnvelopeRecord]
    assert {r.name for r in (record, texts)} == {"send"}
    assert bytes(texts.data) == bytes(raw("text"))
    assert with_data(job("b"), raw({})).name is None
