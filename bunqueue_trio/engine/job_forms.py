"""How a job is shown, depending on its name and on what the client speaks. Nothing here changes a record.

Two forms. The *E form* is for everybody who has not asked for protocol 3: an unnamed job as it was pushed; a named one
with its name inside its data, where all clients look for it, if the data are a map that has no such key; else with the
name beside them, where only newer clients look. The *3 form* has the name beside the data always, so that of an unnamed
job is taken out of them.

    pushed             E form                  3 form
    data               data                    name (from the data, or "default"), data without it
    name, map          data plus name          name, data
    name, other data   name, data              name, data
    name alone         name                    name

Cost: an unnamed job in the E form is shown as it is, after one comparison; a name is put into the data by writing a
new header in front of them. Only the 3 form of unnamed jobs decodes the first level of their data.

Source: newer clients, 3.2 to 3.5; NC-1 to NC-3.
"""

from copy import copy
from functools import lru_cache
from typing import Final

import msgspec
from msgspec import UNSET, Raw, UnsetType

from bunqueue_trio.model.entries import DlqEntry
from bunqueue_trio.model.job import EnvelopeRecord, JobRecord, ReadRecord
from bunqueue_trio.model.naming import DEFAULT_NAME, NO_DATA, text_name_in

_FIXMAP_MAX: Final = 15
_MAP16, _MAP32 = 0xDE, 0xDF

_encode = msgspec.msgpack.Encoder().encode
_by_key = msgspec.msgpack.Decoder(dict[str, Raw]).decode


def given(record: JobRecord, *, is_newer: bool) -> JobRecord:
    """*record* in the form for pulls and dead letters: the 3 form if *is_newer*, else the E form."""
    name = record.own_name
    if name is UNSET:
        return _with_name_beside(record) if is_newer else record
    if record.data == NO_DATA:
        bare = copy(record)
        bare.data = UNSET  # type: ignore[assignment]
        return bare
    if is_newer or type(record) is not EnvelopeRecord:
        return record
    envelope = copy(record)
    envelope.data = put_in(name, record.data)
    envelope.own_name = UNSET
    return envelope


def given_letter(entry: DlqEntry, *, is_newer: bool) -> DlqEntry:
    """A dead letter with its job in that form."""
    job = given(entry.job, is_newer=is_newer)
    return entry if job is entry.job else msgspec.structs.replace(entry, job=job)


def read(record: JobRecord, result: Raw | None, *, is_newer: bool, has_more: bool = False) -> JobRecord:
    """*record* in the form for queries: of a named job also the result and the last error, if there are any.

    Args:
        result: what the job has returned, None: nothing.
        has_more: show them of an unnamed job as well, as *is_newer* does.
    """
    shown = given(record, is_newer=is_newer)
    if not (is_newer or has_more or record.own_name is not UNSET):
        return shown
    error = last_error(record)
    if result is None and error is UNSET:
        return shown
    more = ReadRecord(*msgspec.structs.astuple(shown))
    more.returnvalue = UNSET if result is None else result
    more.failed_reason = error
    return more


def last_error(record: JobRecord) -> str | UnsetType:
    """The error of the last failure that has one, also of a job that is to be tried again."""
    for step in reversed(record.timeline):
        if step.state == "failed" and step.error is not UNSET:
            return step.error
    return UNSET


def put_in(name: str, data: Raw) -> Raw:
    """A map without a key ``name``, with it. Cost: a copy of the bytes."""
    packed = bytes(data)
    head = packed[0]
    if head < 0x80 | _FIXMAP_MAX:  # most are
        return Raw(bytes((head + 1,)) + _key_and(name) + packed[1:])
    if head == _MAP32:
        count, rest = int.from_bytes(packed[1:5]), packed[5:]
    elif head == _MAP16:
        count, rest = int.from_bytes(packed[1:3]), packed[3:]
    else:
        count, rest = head & 0x0F, packed[1:]
    return Raw(_map_header(count + 1) + _key_and(name) + rest)


def taken_out(name: str | None, data: Raw) -> Raw:
    """*data* without the name that `put_in` has put into them, as a client writes them back; any others as they are."""
    return data if name is None or text_name_in(data) != name else _without_name(data)


@lru_cache(1_024)
def _key_and(name: str) -> bytes:
    return b"\xa4name" + _encode(name)


def _map_header(count: int) -> bytes:
    return bytes((_MAP16,)) + count.to_bytes(2) if count < 1 << 16 else bytes((_MAP32,)) + count.to_bytes(4)


def _without_name(data: Raw) -> Raw:
    return Raw(_encode({key: value for key, value in _by_key(data).items() if key != "name"}))


def _with_name_beside(record: JobRecord) -> JobRecord:
    shown = copy(record)
    name = text_name_in(record.data)
    if name is None:
        shown.own_name = DEFAULT_NAME
    else:
        shown.own_name = name
        shown.data = _without_name(record.data)
    return shown
