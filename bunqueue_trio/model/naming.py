"""The name of a job, which newer clients send beside its data and older ones inside it.

A job is named when its push, or its cron, brought a name of its own. Name and data are stored apart, the data exactly
as pushed. Older clients look for the name inside the data; whether it can be put there is decided here, once, when the
data is stored, and kept as the class of the record.

Source: newer clients, 3; NC-1.
"""

from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from bunqueue_trio.errors import ValidationError
from bunqueue_trio.model.job import EnvelopeRecord, JobRecord

MAX_NAME_UNITS: Final = 256
DEFAULT_NAME: Final = "default"
"""What clients call a job without a name; they send it, too, when their user has given none."""
NO_DATA: Final = Raw(b"\xd4\x00\x00")
"""The data of a job that was pushed with a name and without data: the "undefined" of the wire, never shown."""
BAD_NAME: Final = "Job name must be a non-empty string of at most 256 characters"

_UNREADABLE: Final = (msgspec.MsgspecError, ValueError, RecursionError)


class _NameKey(Struct, gc=False):
    """A map, of which only the key ``name`` is looked at."""

    name: Raw = Raw(b"")


_name_key = msgspec.msgpack.Decoder(_NameKey).decode
_text = msgspec.msgpack.Decoder(str).decode


def is_name(value: Any) -> bool:
    """Whether *value* may be the name of a job: a string of 1 to 256 UTF-16 units."""
    if type(value) is not str or not 0 < len(value) <= MAX_NAME_UNITS:
        return False
    return value.isascii() or len(value) + sum(c > "\uffff" for c in value) <= MAX_NAME_UNITS


def check_name(value: Any) -> None:
    """
    Raises:
        ValidationError: *value* can be no name of a job.
    """
    if not is_name(value):
        raise ValidationError(BAD_NAME)


def is_map(data: Raw) -> bool:
    """Whether a payload is a map."""
    if not len(data):
        return False
    head = memoryview(data)[0]
    return 0x80 <= head <= 0x8F or head == 0xDE or head == 0xDF


def name_in(data: Raw) -> Raw:
    """What a map holds under the key ``name``; empty when it has no such key.

    Raises:
        MsgspecError, ValueError, RecursionError: it is no map whose keys are strings.

    Cost: a walk over the bytes in C, without decoding them.
    """
    return _name_key(data).name


def text_name_in(data: Raw) -> str | None:
    """The name that older clients take out of *data*: that of a map with a valid string ``name``."""
    if not is_map(data):
        return None
    try:
        found = _text(name_in(data))
    except _UNREADABLE:
        return None
    return found if is_name(found) else None


def fits_inside(name: str, data: Raw) -> bool:
    """Whether older clients find the name when it is added to *data*: a map without a key ``name``.

    ``default`` needs no adding, for they call a job without a name so.
    """
    if name == DEFAULT_NAME or not is_map(data):
        return False
    try:
        return not len(name_in(data))
    except _UNREADABLE:
        return False


def record_class(name: str | None, data: Raw) -> type[JobRecord]:
    """The class of the record of a job of that name (None: unnamed) with these data."""
    return EnvelopeRecord if name is not None and fits_inside(name, data) else JobRecord


def named(record: JobRecord, name: str) -> JobRecord:
    """The record of a named job, made of that of a new one without any options. Its data may be empty: it has none."""
    data = record.data or NO_DATA
    kind = EnvelopeRecord if fits_inside(name, data) else JobRecord
    at = record.created_at
    new = kind(record.id, record.queue, data, at, at, at, record.timeline)
    new.own_name = name
    return new


def with_data(record: JobRecord, data: Raw) -> JobRecord:
    """A copy of *record* with other data, under the same name."""
    return classed(msgspec.structs.replace(record, data=data))


def classed(record: JobRecord) -> JobRecord:
    """*record*, or a copy of it, in the class that belongs to its name and data."""
    kind = record_class(record.name, record.data)
    return record if type(record) is kind else kind(*msgspec.structs.astuple(record))
