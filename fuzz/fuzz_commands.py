"""Fuzz target: commands, from bytes on the wire to rows in the file. Only refusals may come out, and the books balance.

An input is a series of decisions: commands with likely and odd fields, time that passes, commits that succeed, fail or
are lost, restarts. After each restart and in the end everything is recounted.
"""

from __future__ import annotations

from typing import Any, get_args

import msgpack
from harness import Choices, instrumented, run

with instrumented():
    from bunqueue_trio.engine.reading import ReadNeededError
    from bunqueue_trio.engine.state import FactsNeededError, PendingChangeError
    from bunqueue_trio.errors import CommandError, ProtocolError
    from bunqueue_trio.model.commands import AnyCommand
    from bunqueue_trio.protocol.codec import decode_command, encode_frame
    from bunqueue_trio.protocol.wire import checked
    from bunqueue_trio.storage import lists, reads
    from tests.stored_engine import Stored

MAX_STEPS = 60
MAX_LOOK_UPS = 8
RECORDS = sorted(get_args(AnyCommand), key=lambda record: str(record.__struct_config__.tag))
OFTEN = [
    record for record in RECORDS if record.__struct_config__.tag in ("PUSH", "PUSHB", "PULL", "PULLB", "ACK", "FAIL")
]
IDS = ("a", "b", "c", "d")
LIKELY: dict[str, tuple[Any, ...]] = {
    "queue": ("q", "r"),
    "id": IDS,
    "jobId": IDS,
    "customId": IDS,
    "parentId": IDS,
    "childId": IDS,
    "dependsOn": ([], ["a"], ["b", "c"]),
    "childrenIds": ([], ["a"], ["b"]),
    "ids": (["a"], ["a", "b"], ["c", "a", "c"]),
    "owner": ("w",),
    "timeout": (0,),
    "count": (1, 2, 10),
    "delay": (0, 5, 5_000),
    "priority": (0, 1, 5, -1),
    "maxAttempts": (1, 2),
    "uniqueKey": ("k", "l"),
    "groupId": ("g", "h"),
    "durable": (True, False, "fsync"),
    "backoff": (0, {"type": "fixed", "delay": 100}),
    "dedup": ({}, {"ttl": 100}, {"replace": True}, {"extend": True, "ttl": 50}),
    "repeat": ({"every": 100, "limit": 2}, {"pattern": "* * * * *"}),
    "schedule": ("* * * * *", "0 0 1 1 *"),
    "repeatEvery": (1_000,),
    "state": ("waiting", "active", "completed", "failed", "delayed"),
    "limit": (1, 100),
    "name": ("n", "m"),
    "data": (1, {"a": 1}),
}


def check(data: bytes) -> int:
    """Play one series; returns how many commands were carried out.

    Raises:
        Exception: whatever is no refusal, InvariantError among them: a defect.
    """
    choices = Choices(data)
    store = Stored()
    store.checks = store.auto_commit = False
    tokens: dict[str, str | None] = {}
    done = 0
    for _ in range(MAX_STEPS):
        if choices.is_over:
            break
        kind = choices.number(16)
        if kind < 12:
            done += _command(store, choices, tokens)
        elif kind == 12:
            store.commit()
        elif kind == 13:
            store.reject()
        elif kind == 14:
            store.clock.advance(choices.pick((1, 10, 200, 6_000, 40_000, 90_000_000)))
            store.engine.tick(store.now)
        else:
            store.restart()
    store.engine.check_invariants()
    store.commit()
    store.restart()
    return done


def _command(store: Stored, choices: Choices, tokens: dict[str, str | None]) -> bool:
    record = choices.pick(OFTEN) if choices.number(2) else choices.pick(RECORDS)
    fields = _fields(record, choices, tokens)
    try:
        command = decode_command(msgpack.packb(fields, unicode_errors="surrogatepass"))
        checked(command)
        if not store.engine.knows(command):
            return False
        reply = _execute(store, command)
    except (CommandError, ProtocolError):
        return False
    if reply is not None:
        encode_frame(reply)
        job, token = getattr(reply, "job", None), getattr(reply, "token", None)
        if job is not None and isinstance(token, str):
            tokens[job.id] = token
    return True


def _execute(store: Stored, command: Any) -> Any:
    """Carry it out as the server would, with whatever it needs from the file; None also when that has no end."""
    state = store.engine.state
    try:
        for _ in range(MAX_LOOK_UPS):
            try:
                return store.engine.execute(command, store.now, 1)
            except PendingChangeError:
                store.commit()
            except FactsNeededError as needed:
                store.engine.find_facts({job_id: reads.find_completed(store.file, job_id) for job_id in needed.ids})
            except ReadNeededError as needed:
                question, state.holds_file = needed.question, needed.question is None
                if question is not None:
                    lists.answer(store.file, question)
                    state.answer = question
    finally:
        state.holds_file = False
        store.engine.clear_facts()
    raise AssertionError(f"{command} finds no end")


def _fields(record: Any, choices: Choices, tokens: dict[str, str | None]) -> dict[str, Any]:
    fields: dict[str, Any] = {"cmd": record.__struct_config__.tag}
    for name in record.__struct_encode_fields__:
        how = choices.number(8)
        if name in ("queue", "id", "data", "owner") and how < 7:
            how = 1
        if how in (1, 2) and name in LIKELY:
            fields[name] = choices.pick(LIKELY[name])
        elif how == 7:
            fields[name] = choices.value()
    if "token" in record.__struct_encode_fields__ and choices.number(4):
        fields["token"] = tokens.get(fields.get("id")) if isinstance(fields.get("id"), str) else None
    if fields["cmd"] == "PUSHB" and choices.number(4):
        entry = next(kind for kind in OFTEN if kind.__struct_config__.tag == "PUSH")
        fields["jobs"] = [
            {key: value for key, value in _fields(entry, choices, tokens).items() if key not in ("cmd", "queue")}
            for _ in range(choices.number(4))
        ]
    return fields


if __name__ == "__main__":
    run("commands", check)
