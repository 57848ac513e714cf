"""The keys of a job's data by which newer clients tie it to its kin: ``__parentId``, ``__parentQueue``,
``__childrenIds``.

Source: newer clients, "Child of an existing parent" and 6.1.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct, field

from bunqueue_trio.model.commands import ABSENT, ParentLink, PushOptions
from bunqueue_trio.model.naming import NO_DATA, is_map
from bunqueue_trio.protocol.payloads import UNDECODABLE

CHILDREN_IDS: Final = "__childrenIds"
_NULL: Final = Raw(b"\xc0")


class _Kin(Struct):
    """The keys; nothing else of the data is looked into."""

    parent_id: str | None = field(name="__parentId", default=None)
    parent_queue: str | None = field(name="__parentQueue", default=None)
    children_ids: list[str] | None = field(name=CHILDREN_IDS, default=None)


class _OddKin(Struct):
    """The same of data in which one of them is something else."""

    parent_id: Raw = field(name="__parentId", default=ABSENT)
    parent_queue: Raw = field(name="__parentQueue", default=ABSENT)
    children_ids: Raw = field(name=CHILDREN_IDS, default=ABSENT)


_decode_kin = msgspec.msgpack.Decoder(_Kin).decode
_decode_odd_kin = msgspec.msgpack.Decoder(_OddKin).decode
_decode_text = msgspec.msgpack.Decoder(str).decode
_decode_texts = msgspec.msgpack.Decoder(list[str]).decode
_decode_members = msgspec.msgpack.Decoder(dict[str, Raw]).decode
_encode = msgspec.msgpack.Encoder().encode


def named_kin(data: Raw) -> tuple[tuple[str | None, str | None], list[str] | None]:
    """What the data of a job, which are a map, say of its parent (id and queue) and of its children.

    None for what is not there, or is neither a text nor a list of texts. Cost: the other members are passed over.
    """
    try:
        kin = _decode_kin(data)
    except UNDECODABLE:
        odd = _decode_odd_kin(data)
        parent = _decoded(_decode_text, odd.parent_id), _decoded(_decode_text, odd.parent_queue)
        return parent, _decoded(_decode_texts, odd.children_ids)
    return (kin.parent_id, kin.parent_queue), kin.children_ids


def _decoded(decode: Callable[[Raw], Any], raw: Raw) -> Any:
    try:
        return decode(raw)
    except UNDECODABLE:
        return None


def parent_link(options: PushOptions) -> ParentLink | None:
    """The link that a push with a ``parentId`` asks for: a named one whose data name the same parent and its queue."""
    if options.name is ABSENT or not is_map(options.data):
        return None
    (parent_id, parent_queue), _ = named_kin(options.data)
    if parent_id != options.parent_id or not parent_queue:
        return None
    return ParentLink(parent_queue, name_children)


def name_children(data: Raw, children: Sequence[str]) -> Raw:
    """The data of a parent with the ids of its children.

    A job without data, or with null, gets a map. Other data that are no map have no keys, and stay as they are.
    Cost: the members are not looked into.
    """
    if data in (NO_DATA, _NULL):
        members: dict[str, Raw] = {}
    elif is_map(data):
        members = _decode_members(data)
    else:
        return data
    members[CHILDREN_IDS] = Raw(_encode(children))
    return Raw(_encode(members))
