"""Bytes to commands and replies to bytes. A frame is decoded straight into its record by one call into C.

What does not fit goes through `tolerant`. Every command leaves here with canonical payloads that own their bytes, so
that a stored job never keeps the whole frame alive in which it came.
"""

from collections.abc import Callable
from struct import Struct
from typing import Any, Final, get_args

import msgspec
from msgspec import UNSET, Raw, structs

from bunqueue_trio.errors import MalformedFrameError
from bunqueue_trio.model.commands import (
    ABSENT,
    Ack,
    AckBatch,
    AddLog,
    AnyCommand,
    Cron,
    Dlq,
    Progress,
    PromoteJobs,
    Push,
    PushBatch,
    PushFlow,
    RetryCompleted,
    RetryDlq,
    Update,
)
from bunqueue_trio.model.events import JobEvent
from bunqueue_trio.model.replies import ErrorReply, Reply
from bunqueue_trio.protocol.flow_frames import take_flow
from bunqueue_trio.protocol.framing import MAX_FRAME_BYTES
from bunqueue_trio.protocol.payloads import (
    INVALID_FORMAT,
    UNDECODABLE,
    canonical,
    check_ordinary,
    received,
    undefined_is_none,
    unpack_leniently,
)
from bunqueue_trio.protocol.push_checks import SEEN_PLAIN
from bunqueue_trio.protocol.tolerant import NOT_A_LIST, NOT_AN_OBJECT, rewrite
from bunqueue_trio.protocol.values import UNDEFINED, wire_number

__all__ = ["decode_command", "encode_event", "encode_frame", "string_req_id", "wire_number"]

TOO_LARGE = "Response too large"
_FOUR_KEYS = 0x84  # the first byte of a map with four keys: cmd, queue, data, reqId
_FIVE_KEYS = 0x85  # name, too


class _OnlyId(msgspec.Struct, rename="camel", gc=False):
    req_id: Any = None


class _OnlyGroup(msgspec.Struct, rename="camel", gc=False):
    group_id: Raw = ABSENT


class _OnlyGroups(msgspec.Struct, gc=False):
    jobs: list[_OnlyGroup] = []


NULL_GROUP: Final = b"\xa7groupId\xc0"
"""What a frame holds somewhere if a push in it says null, which for members of named groups is no absent id."""
NOT_A_GROUP: Final = False
"""The id of a group that is null, for whoever checks it."""

_NULL: Final = Raw(b"\xc0")
_group_of = msgspec.msgpack.Decoder(_OnlyGroup).decode
_groups_of = msgspec.msgpack.Decoder(_OnlyGroups).decode
_decode = msgspec.msgpack.Decoder(AnyCommand, ext_hook=undefined_is_none).decode
_decode_only_id = msgspec.msgpack.Decoder(_OnlyId, ext_hook=undefined_is_none).decode
_check_simple = msgspec.msgpack.Decoder(None | bool | int | float | str).decode
_decode_any = msgspec.msgpack.Decoder(ext_hook=undefined_is_none).decode
_decode_text = msgspec.msgpack.Decoder(str).decode
_encode = msgspec.msgpack.Encoder().encode
_pack_length = Struct(">I").pack
_UNDEFINED: Final = Raw(_encode(UNDEFINED))
_EVENT_HEAD: Final = b"\x82" + b"".join(map(_encode, ("type", "event", "event")))
_COMMAND_NAMES: Final = frozenset(str(record.__struct_config__.tag) for record in get_args(AnyCommand))


def decode_command(body: bytes) -> AnyCommand:
    """Decode the body of a frame.

    The fields of the command are as they came, but for payloads (canonical, absent where they were undefined),
    ``req_id`` (canonical), the ``name`` of a push (see `PushOptions`) and some counts (see `commands.managing`);
    `wire.checked` checks the rest. An absent payload, id, name or count is the object `ABSENT`.

    Raises:
        MalformedFrameError: with the text and the ``req_id`` of the spec. Nothing else, whatever the bytes.

    Cost: about 1.5 µs for an ordinary PUSH, 1 µs for a small command. Source: protocol 1.1, 1.2, 1.6.
    """
    try:
        command = _decode(body)
    except UNDECODABLE:
        command, body = _decode_again(body)
    may_be_wide = 0xCF in body or 0xD3 in body
    if type(command) is Push:
        if command.name is not ABSENT:
            command.name = _received_name(command.name)
            if command.group_id is None and NULL_GROUP in body and _group_of(body).group_id == _NULL:
                command.group_id = NOT_A_GROUP
        if not may_be_wide and _take_ordinary(command, body):
            return command
    if command.req_id is not ABSENT:
        command.req_id = _received_id(command.req_id, may_be_wide)
    if type(command) is Push:
        command.is_plain = False
        if command.data is not ABSENT:
            command.data = received(command.data, may_be_wide)
    else:
        take_payloads = _PAYLOADS.get(type(command))
        if take_payloads is not None and take_payloads(command, may_be_wide) and NULL_GROUP in body:
            _mark_null_groups(command, body)
    return command


def _take_ordinary(command: Push, body: bytes) -> bool:
    """The short way for pushes whose id and data need no closer look. False, and nothing has changed, for others."""
    req_id, data = command.req_id, command.data
    try:
        _check_simple(req_id)
        check_ordinary(data)
    except UNDECODABLE:
        return False  # absent, or something that the long way knows to judge
    command.req_id, command.data = req_id.copy(), data.copy()
    # A map of four keys that holds these four holds no option, nor does one of five that also holds a name. Saves
    # looking at thirty fields.
    is_short = body[0] == (_FOUR_KEYS if command.name is ABSENT else _FIVE_KEYS)
    command.is_plain = SEEN_PLAIN if is_short and type(command.queue) is str else False
    return True


def encode_frame(reply: Reply) -> bytes:
    """Encode a reply with its length prefix. One too long for any client becomes ``Response too large`` (P-3).

    Cost: about 0.4 µs for a small reply.
    """
    body = _encode(reply)
    if len(body) > MAX_FRAME_BYTES:
        body = _encode(ErrorReply(error=TOO_LARGE, req_id=reply.req_id))
    return _pack_length(len(body)) + body


def encode_event(event: JobEvent) -> bytes:
    """An event as the frame that subscribers are sent: ``{"type": "event", "event": {...}}``.

    One too long for any client leaves without what makes it so, its data and the text of its error.

    Cost: about 0.6 µs without a payload.
    """
    body = _encode(event)
    if len(_EVENT_HEAD) + len(body) > MAX_FRAME_BYTES:
        error = event.error if event.error is UNSET else TOO_LARGE
        body = _encode(structs.replace(event, data=UNSET, error=error))
    return _pack_length(len(_EVENT_HEAD) + len(body)) + _EVENT_HEAD + body


def encode_reply(reply: Reply) -> tuple[Reply, bytes]:
    """The reply that is sent, and its bytes without a length prefix; the bound is that of `encode_frame`."""
    body = _encode(reply)
    if len(body) > MAX_FRAME_BYTES:
        reply = ErrorReply(error=TOO_LARGE, req_id=reply.req_id)
        body = _encode(reply)
    return reply, body


def string_req_id(body: bytes) -> Raw | None:
    """The ``reqId`` of a frame that is refused undecoded (rate limit): only a string is echoed. Never raises."""
    try:
        req_id = _decode_only_id(body).req_id
    except UNDECODABLE:
        return None
    return Raw(_encode(req_id)) if isinstance(req_id, str) else None


def _decode_again(body: bytes) -> tuple[AnyCommand, bytes]:
    """Decode what the typed decoder refused; also return the body from which the command was made."""
    body, odd_entries, has_odd_results = rewrite(body, _COMMAND_NAMES)
    try:
        command = _decode(body)
    except UNDECODABLE:
        raise MalformedFrameError(INVALID_FORMAT, string_req_id(body)) from None
    if type(command) is PushBatch and command.jobs is not None:
        for index in odd_entries:
            command.jobs[index] = NOT_AN_OBJECT
    elif type(command) is AckBatch and has_odd_results:
        command.results = NOT_A_LIST
    return command, body


def _received_id(raw: Raw, may_be_wide: bool) -> Raw:
    """The id to echo: most are short strings or numbers, which need no closer look."""
    if not may_be_wide:
        try:
            _check_simple(raw)
        except UNDECODABLE:
            pass
        else:
            return raw.copy()
    return ABSENT if raw == _UNDEFINED else canonical(raw)


def _received_name(raw: Raw) -> Any:
    """The name that a push brings; None for what is no string, null among it, which whoever checks it refuses."""
    if raw == _UNDEFINED:
        return ABSENT
    try:
        return _decode_text(raw)
    except UNDECODABLE:
        pass
    try:
        value = unpack_leniently(raw)  # bad UTF-8 is no reason to refuse a text (1.6)
    except UNDECODABLE:
        return None
    return value if type(value) is str else None


def _take_entries(command: PushBatch, may_be_wide: bool) -> bool:
    """True when a named entry has no group: it may have said null."""
    may_be_null = False
    for entry in command.jobs or ():
        if entry.name is not ABSENT:
            entry.name = _received_name(entry.name)
            may_be_null = may_be_null or entry.group_id is None
        if entry.data is not ABSENT:
            entry.data = received(entry.data, may_be_wide)
    return may_be_null


def _mark_null_groups(command: Any, body: bytes) -> None:
    for entry, sent in zip(command.jobs or (), _groups_of(body).jobs, strict=True):
        if sent.group_id == _NULL and entry.name is not ABSENT:
            entry.group_id = NOT_A_GROUP


def _take_flow(command: PushFlow, may_be_wide: bool) -> None:
    take_flow(command, may_be_wide)
    for entry in command.plan.jobs:
        if entry.input.name is not ABSENT:
            entry.input.name = _received_name(entry.input.name)


def _take_result(command: Ack, may_be_wide: bool) -> None:
    if command.result is not ABSENT:
        command.result = received(command.result, may_be_wide)


def _take_results(command: AckBatch, may_be_wide: bool) -> None:
    if command.results:
        command.results = [received(result, may_be_wide) for result in command.results]


def _take_message(command: Progress, may_be_wide: bool) -> None:
    if command.message is not ABSENT:
        command.message = received(command.message, may_be_wide)


def _take_data(command: Update | Cron, may_be_wide: bool) -> None:
    if command.data is not ABSENT:
        command.data = received(command.data, may_be_wide)


def _take_line(command: AddLog, may_be_wide: bool) -> None:
    if command.message is not ABSENT:
        command.message = received(command.message, may_be_wide)
    if command.level is not ABSENT:
        command.level = received(command.level, may_be_wide)


def _take_count(command: PromoteJobs | RetryCompleted | RetryDlq, may_be_wide: bool) -> None:
    if command.count is not ABSENT:
        command.count = _received_count(command.count)


def _received_count(raw: Raw) -> Any:
    """What was sent for a count: undefined counts as absent, null does not. None for what nobody can read."""
    if raw == _UNDEFINED:
        return ABSENT
    try:
        return _decode_any(raw)
    except UNDECODABLE:
        return None


def _take_filter(command: Dlq | RetryDlq, may_be_wide: bool) -> None:
    """No payload, but that it is there means something by itself, even as undefined (NC-8)."""
    command.filter = command.filter.copy()


def _take_selection(command: RetryDlq, may_be_wide: bool) -> None:
    _take_count(command, may_be_wide)
    _take_filter(command, may_be_wide)


_PAYLOADS: Final[dict[type, Callable[[Any, bool], bool | None]]] = {
    PushBatch: _take_entries,
    PushFlow: _take_flow,
    Ack: _take_result,
    AckBatch: _take_results,
    Progress: _take_message,
    Update: _take_data,
    Cron: _take_data,
    AddLog: _take_line,
    PromoteJobs: _take_count,
    RetryCompleted: _take_count,
    Dlq: _take_filter,
    RetryDlq: _take_selection,
}
"""What to do with the payloads of a command, other than PUSH, which is the hot path above."""
