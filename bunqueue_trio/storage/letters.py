"""Dead-letter entries out of their cells, strictly where possible, key by key where not.

Source: persistence, "DLQ entry" and "Recovery at start" 5.
"""

from typing import Any, Final

import msgspec
from msgspec import UNSET, MsgspecError, Raw, Struct

from bunqueue_trio.model.entries import AttemptRecord, DlqEntry
from bunqueue_trio.model.job import JobRecord, TimelineEntry
from bunqueue_trio.model.naming import classed
from bunqueue_trio.storage.decoding import UNREADABLE, timeline_from
from bunqueue_trio.storage.payloads import EMPTY_MAP, NULL, UNDEFINED, without_wide_integers

_strict = msgspec.msgpack.Decoder(DlqEntry)
_by_key = msgspec.msgpack.Decoder(dict[str, Raw])
_items = msgspec.msgpack.Decoder(list[Raw])
_number = msgspec.msgpack.Decoder(float)

_Fields = dict[str, tuple[str, msgspec.msgpack.Decoder[Any], bool]]


def _fields(record: type[Struct]) -> _Fields:
    """Key on the wire: attribute, decoder, and whether it is a count (which may come as a float)."""
    return {
        field.encode_name: (field.name, msgspec.msgpack.Decoder(field.type), field.type is int)
        for field in msgspec.structs.fields(record)
    }


_ENTRY: Final = _fields(DlqEntry)
# msgspec decodes no ``Raw | None``.
_JOB: Final = _fields(JobRecord) | {"progressMessage": ("progress_message", msgspec.msgpack.Decoder(Raw), False)}
_ATTEMPT: Final = _fields(AttemptRecord)


def entry_from_blob(blob: bytes) -> DlqEntry | None:
    """Decode the cell ``dlq.entry``; None when no job can be made out of it.

    64-bit integers become floats, as everywhere. Keys that are missing or unreadable take their defaults, as long as
    the job has an id and a queue.
    """
    try:
        msgspec.msgpack.decode(blob, type=Raw)
        blob = without_wide_integers(blob)
        try:
            entry = _strict.decode(blob)
        except MsgspecError:
            return _lenient_entry(blob)
        if entry.job.own_name is not UNSET:
            entry.job = classed(entry.job)
        return entry
    except UNREADABLE:
        return None


def _lenient_entry(blob: bytes) -> DlqEntry | None:
    cells = _by_key.decode(blob)
    values = _readable(cells, _ENTRY)
    entered_at = values.pop("entered_at", 0.0)
    job = _lenient_job(cells["job"], entered_at) if "job" in cells else None
    if job is None:
        return None
    return DlqEntry(
        job=job,
        entered_at=entered_at,
        reason=values.pop("reason", "unknown"),
        error=values.pop("error", None),
        attempts=_attempts(cells.get("attempts")),
        **{name: value for name, value in values.items() if name not in ("job", "attempts")},
    )


def _lenient_job(cell: Raw, entered_at: float) -> JobRecord | None:
    cells = _by_key.decode(cell)
    values = _readable(cells, _JOB)
    values.pop("state", None)
    if bytes(values.get("progress_message", NULL)) in (NULL, UNDEFINED):
        values.pop("progress_message", None)
    if "id" not in values or "queue" not in values:
        return None
    values.setdefault("data", Raw(EMPTY_MAP))
    created_at = values.setdefault("created_at", entered_at)
    values.setdefault("run_at", created_at)
    values.setdefault("last_heartbeat", created_at)
    if "timeline" not in values and "timeline" in cells:
        values["timeline"] = _timeline(cells["timeline"])
    return classed(JobRecord(**values))


def _timeline(cell: Raw) -> tuple[TimelineEntry, ...]:
    try:
        return timeline_from(bytes(cell))
    except UNREADABLE:
        return ()


def _attempts(cell: Raw | None) -> list[AttemptRecord]:
    found = []
    try:
        items = [] if cell is None else _items.decode(cell)
        for item in items:
            values = _readable(_by_key.decode(item), _ATTEMPT)
            found.append(AttemptRecord(**{**_BLANK_ATTEMPT, **values}))
    except UNREADABLE:
        pass  # what was readable before the damage is better than nothing
    return found


_BLANK_ATTEMPT: Final[dict[str, Any]] = {
    "attempt": 0, "started_at": 0.0, "failed_at": 0.0, "reason": "unknown", "error": None, "duration": 0.0,
}  # fmt: skip


def _readable(cells: dict[str, Raw], fields: _Fields) -> dict[str, Any]:
    """The attributes whose cells can be decoded as their type."""
    values: dict[str, Any] = {}
    for key, cell in cells.items():
        if key not in fields:
            continue
        name, decoder, is_count = fields[key]
        try:
            values[name] = decoder.decode(cell)
        except UNREADABLE:
            if is_count:
                count = _count(cell)
                if count is not None:
                    values[name] = count
    return values


def _count(cell: Raw) -> int | None:
    try:
        return int(_number.decode(cell))
    except UNREADABLE:
        return None
