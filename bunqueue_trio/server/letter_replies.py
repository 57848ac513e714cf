"""Dlq with many dead letters: encoded a few at a time, so that ten thousand of them hold up nobody."""

from __future__ import annotations

from typing import Any

import trio
from msgspec import UNSET, Raw, msgpack
from msgspec.structs import replace

from bunqueue_trio.engine.job_forms import given_letter
from bunqueue_trio.engine.letter_views import LETTERS_AT_ONCE, LongReplyError
from bunqueue_trio.model.replies import LettersReply


async def long_reply(wanted: LongReplyError) -> LettersReply:
    """The reply to a Dlq that means many, as of the moment when it was executed.

    Cancel: nothing has changed.
    """
    jobs: list[Any] = []
    entries: list[Any] = []
    for start in range(0, len(wanted.entries), LETTERS_AT_ONCE):
        for entry in wanted.entries[start : start + LETTERS_AT_ONCE]:
            shown: Any = given_letter(entry, is_newer=wanted.is_newer)
            job = Raw(msgpack.encode(shown.job))
            jobs.append(job)
            if wanted.shows_entries:
                entries.append(Raw(msgpack.encode(replace(shown, job=job))))
        await trio.lowlevel.checkpoint()
    return LettersReply(jobs=jobs, entries=entries if wanted.shows_entries else UNSET)
