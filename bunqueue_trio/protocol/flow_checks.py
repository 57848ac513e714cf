"""Checks of the commands about flows and waits, and the two keys by which a child's data name its parent.

Source: commands, "WaitJob", "UpdateParent" and CD-1.
"""

from collections.abc import Callable
from typing import Any, Final

import msgspec
from msgspec import Raw

from bunqueue_trio.errors import ValidationError
from bunqueue_trio.model import commands as c
from bunqueue_trio.protocol.fields import number, text
from bunqueue_trio.protocol.values import js_text

MAX_WAIT_MS = 600_000
DEFAULT_WAIT_MS = 30_000
PARENT_ID, PARENT_QUEUE = "__parentId", "__parentQueue"

_members = msgspec.msgpack.Decoder(dict[str, Raw])
_encode = msgspec.msgpack.Encoder().encode
_LIST_HEADS: Final = frozenset({*range(0x90, 0xA0), 0xDC, 0xDD})


def name_parent(data: Raw, parent_id: str, parent_queue: str | None, own_queue: str) -> Raw | None:
    """The data of a child with the keys that name its parent; None when the data are neither a map nor a list.

    Args:
        parent_queue: None when nobody knows the parent; then a queue named already stays, else it is *own_queue*.

    A list has no keys and stays as it is (Wire). Cost: the members of a map are not looked into.
    """
    if len(data) and memoryview(data)[0] in _LIST_HEADS:
        return data
    try:
        members = _members.decode(data)
    except msgspec.MsgspecError:
        return None
    members[PARENT_ID] = Raw(_encode(parent_id))
    if parent_queue is not None:
        members[PARENT_QUEUE] = Raw(_encode(parent_queue))
    else:
        members.setdefault(PARENT_QUEUE, Raw(_encode(own_queue)))
    return Raw(_encode(members))


def _check_wait(command: c.WaitJob) -> None:
    timeout = command.timeout
    command.timeout = DEFAULT_WAIT_MS if timeout is None else number("timeout", timeout, 0, MAX_WAIT_MS)


def _check_update_parent(command: c.UpdateParent) -> None:
    if not text("parentId", command.parent_id):
        raise ValidationError("parentId is required")
    command.name_parent = name_parent


def _check_child(command: c.RemoveChildDependency) -> None:
    """Wire: the text names whatever was sent."""
    if type(command.id) is not str:
        raise ValidationError(f"Job not found: {'undefined' if command.id is None else js_text(command.id)}")


CHECKS: Final[dict[type, Callable[[Any], None]]] = {
    c.WaitJob: _check_wait,
    c.UpdateParent: _check_update_parent,
    c.RemoveChildDependency: _check_child,
}
"""What `wire.checked` does with each of these commands."""
