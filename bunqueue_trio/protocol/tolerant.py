"""The second look at a frame that does not fit its record: a tolerant decode, and the refusals of the spec.

Here belong frames whose ``cmd`` is missing, unknown or no string, bad UTF-8 in a field, integer keys, and payload
lists of the wrong type. Frames that only looked odd are written anew, so that the typed decoder takes them.
"""

from typing import Any, NoReturn

import msgspec
from msgspec import Raw

from bunqueue_trio.errors import MalformedFrameError, UnknownCommandError
from bunqueue_trio.model.commands import PushEntry
from bunqueue_trio.protocol.payloads import INVALID_FORMAT, MAX_DEPTH, UNDECODABLE, unpack_leniently
from bunqueue_trio.protocol.values import UNDEFINED, is_truthy, js_text, wire_tree

NOT_AN_OBJECT = PushEntry()
"""Stands in PushBatch.jobs for an entry that was no map; told apart by identity."""

NOT_A_LIST: list[Raw] = []
"""Stands in AckBatch.results for something that was no list; told apart by identity."""

_ENVELOPE_LEVELS = 3  # a payload lies at most this deep in its frame: command, list, entry
_encode = msgspec.msgpack.Encoder().encode


def rewrite(body: bytes, known_commands: frozenset[str]) -> tuple[bytes, list[int], bool]:
    """Write a frame anew in the form that the typed decoder accepts.

    Returns:
        The new body; the indexes of PUSHB entries that were no maps (empty maps now); whether ACKB's ``results`` was
        no list (null now).
    Raises:
        MalformedFrameError: the frame is no command; the text and the ``reqId`` to echo are those of the spec.
    """
    try:
        tree = wire_tree(unpack_leniently(body), MAX_DEPTH + _ENVELOPE_LEVELS)
    except UNDECODABLE:
        raise MalformedFrameError(INVALID_FORMAT) from None
    if type(tree) is not dict:
        raise MalformedFrameError("Invalid command" if is_truthy(tree) else INVALID_FORMAT)
    command = tree.get("cmd")
    if not isinstance(command, str) or command not in known_commands:
        _refuse(tree, command)
    odd_entries = _replace_odd_entries(tree) if command == "PUSHB" else []
    has_odd_results = command == "ACKB" and _is_odd_list(tree, "results")
    if has_odd_results:
        del tree["results"]
    try:
        return _encode(tree), odd_entries, has_odd_results
    except UNDECODABLE:
        raise MalformedFrameError(INVALID_FORMAT, string_id(tree)) from None


def string_id(tree: dict[str, Any]) -> Raw | None:
    """The ``reqId`` that a refused frame has echoed: only a string (1.2)."""
    req_id = tree.get("reqId")
    return Raw(_encode(req_id)) if isinstance(req_id, str) else None


def _refuse(tree: dict[str, Any], command: Any) -> NoReturn:
    if not is_truthy(command):
        raise MalformedFrameError("Invalid command", string_id(tree))
    # Wire: the reference has accepted the frame by now, so a reqId of any type is echoed.
    req_id = tree.get("reqId", UNDEFINED)
    try:
        echoed = None if req_id is UNDEFINED else Raw(_encode(req_id))
    except UNDECODABLE:
        raise MalformedFrameError(INVALID_FORMAT) from None
    raise UnknownCommandError(f"Unknown command: {js_text(command)}", echoed)


def _replace_odd_entries(tree: dict[str, Any]) -> list[int]:
    """Put empty maps in place of entries that are none. ``jobs`` of another type is taken out: it is as if missing."""
    if _is_odd_list(tree, "jobs"):
        del tree["jobs"]
    jobs = tree.get("jobs")
    if not isinstance(jobs, list):
        return []
    odd_entries = [index for index, entry in enumerate(jobs) if not isinstance(entry, dict)]
    for index in odd_entries:
        jobs[index] = {}
    return odd_entries


def _is_odd_list(tree: dict[str, Any], key: str) -> bool:
    value = tree.get(key)
    if value is UNDEFINED:
        del tree[key]
        return False
    return value is not None and not isinstance(value, list)
