"""From the bytes of PUSHF to the jobs of a flow, their data canonical.

What is no list of jobs has no typed form; the refusal, in the words of the wire, travels along in the plan until the
command is checked, for a client that may not send it at all is to hear of that first.

Source: newer clients, 6.1.
"""

from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from bunqueue_trio.model.commands import ABSENT, FlowEntry, FlowPlan, PushFlow
from bunqueue_trio.protocol.payloads import UNDECODABLE, canonical, received, undefined_is_none
from bunqueue_trio.protocol.values import js_text

MAX_JOBS = 10_000
TOO_MANY = f"flow exceeds the {MAX_JOBS} job limit"
_DECODED_MAX = 2 * MAX_JOBS
"""Longer lists are refused by their length alone: up to here what is refused first is what comes first (6.1)."""
_FIX_ARRAYS: Final = range(0x90, 0xA0)
_LONG_ARRAYS: Final = {0xDC: 2, 0xDD: 4}  # first byte: how many bytes of length follow
_REPLACEMENT: Final = "\ufffd"


class _Shape(Struct):
    id: Any = None
    input: Raw = ABSENT


_decode_entries = msgspec.msgpack.Decoder(list[FlowEntry], ext_hook=undefined_is_none).decode
_decode_raws = msgspec.msgpack.Decoder(list[Raw]).decode
_decode_entry = msgspec.msgpack.Decoder(FlowEntry, ext_hook=undefined_is_none).decode
_decode_shape = msgspec.msgpack.Decoder(_Shape, ext_hook=undefined_is_none).decode


def take_flow(command: PushFlow, may_be_wide: bool) -> None:
    """Put the plan of a PUSHF in the place of its bytes.

    Raises:
        MalformedFrameError: the data of a job are no payload.
    """
    raw, command.jobs = command.jobs, ABSENT
    command.plan = _plan(raw, may_be_wide)


def _plan(raw: Raw, may_be_wide: bool) -> FlowPlan:
    count = _length(raw)
    if count is None:
        return FlowPlan([], fault="flow jobs must be an array")
    if count > _DECODED_MAX:
        return FlowPlan([], fault=TOO_MANY)
    try:
        entries = _decode_entries(raw)
    except UNDECODABLE:
        raw = canonical(raw)
        may_be_wide = False
        found = _decoded_slowly(raw)
        if isinstance(found, str):
            return FlowPlan([], fault=found)
        entries = found
    size_bytes = len(raw)
    for entry in entries:
        options = entry.input
        if options is None:
            return FlowPlan([], fault=_no_input(entry.id))
        if options.data is not ABSENT:
            size_bytes -= len(options.data)
            options.data = received(options.data, may_be_wide)
            size_bytes += len(options.data)
    return FlowPlan(entries, size_bytes)


def _length(raw: Raw) -> int | None:
    """How many jobs the list announces; None when it is no list."""
    if not len(raw):
        return None
    view = memoryview(raw)
    if view[0] in _FIX_ARRAYS:
        return view[0] & 0x0F
    width = _LONG_ARRAYS.get(view[0])
    return None if width is None else int.from_bytes(view[1 : 1 + width])


def _decoded_slowly(raw: Raw) -> list[FlowEntry] | str:
    """The jobs one by one; or the refusal of the first that is none."""
    entries = []
    for index, item in enumerate(_decode_raws(raw)):
        try:
            entry = _decode_entry(item)
        except UNDECODABLE:
            try:
                shape = _decode_shape(item)
            except UNDECODABLE:
                return f"flow jobs[{index}] must be an object"
            return _no_input(shape.id)
        if entry.input is None:
            return _no_input(entry.id)
        if type(entry.id) is str and _REPLACEMENT in entry.id:
            entry.id = ""  # it was no well-formed text, and is refused like an empty one
        entries.append(entry)
    return entries


def _no_input(job_id: Any) -> str:
    return f"flow job input is invalid: {'undefined' if job_id is None else js_text(job_id)}"
