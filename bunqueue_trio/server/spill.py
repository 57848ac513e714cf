"""The last resort of a stop whose final flush the file refuses: unwritten jobs go into a file beside it.

Where its disk is full or gone, and that is why the flush was refused, they go into the system's temporary folder.

Shape of the file: msgpack, one map per job after another: {"job": job map, "state": str}, for a dead letter also
"reason" and "error".
"""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from typing import Any

import msgspec

from bunqueue_trio.logs import get_logger
from bunqueue_trio.model.changes import Changes
from bunqueue_trio.model.instant import Now
from bunqueue_trio.model.job import Job, JobRecord, JobState, shown_state

log = get_logger("Storage")
LOGGED_DATA_BYTES = 500


def unwritten_jobs(changes: Changes) -> list[Job]:
    """The jobs of *changes*, but for those that were removed, refused when they were pushed, or are dead letters."""
    return [job for job in changes.jobs if job.state is not JobState.GONE]


def _lost(changes: Changes, now: Now) -> list[tuple[JobRecord, dict[str, Any]]]:
    """Each job that will be missing in the file, with what the spill file says of it beside its record."""
    lost: list[tuple[JobRecord, dict[str, Any]]] = [
        (job.record, {"state": shown_state(job, now.wall_ms)}) for job in unwritten_jobs(changes)
    ]
    lost += [(e.job, {"state": "failed", "reason": e.reason, "error": e.error}) for e in changes.letters.values()]
    return lost


def spill(data_path: str, changes: Changes, now: Now) -> int:
    """Write the jobs of *changes* beside the data file, or into the temporary folder, and log each.

    Returns:
        How many jobs there were. They are lost to the data file; the log and the spill file say which.
    """
    jobs = _lost(changes, now)
    if not jobs:
        return 0
    beside = f"{data_path}.lost-{int(now.wall_ms)}"
    is_older = os.path.lexists(beside)
    if not _write(beside, jobs):
        is_saved = _write(os.path.join(tempfile.gettempdir(), os.path.basename(beside)), jobs)
        if is_saved and not is_older:
            with suppress(OSError):
                os.unlink(beside)  # the beginning, if it got so far
    for record, _ in jobs:
        log.error(
            "Lost job (recover from this log if needed)",
            id=record.id,
            queue=record.queue,
            customId=record.custom_id,
            priority=record.priority,
            createdAt=record.created_at,
            attempts=record.attempts,
            data=bytes(record.data)[:LOGGED_DATA_BYTES].hex(),
        )
    return len(jobs)


def _write(path: str, jobs: list[tuple[JobRecord, dict[str, Any]]]) -> bool:
    """Make the spill file, which must not exist. Returns whether all of it is on disk."""
    encoder = msgspec.msgpack.Encoder()
    try:
        with open(path, "xb", opener=_private) as file:
            for record, details in jobs:
                file.write(encoder.encode({"job": record, **details}))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        log.error("CRITICAL: the spill file cannot be written either", path=path, error=str(error))
        return False
    log.error(
        "CRITICAL: jobs could not be stored before the stop; they are in a spill file",
        path=path,
        jobCount=len(jobs),
    )
    return True


def _private(path: str, flags: int) -> int:
    """Everybody may look into a temporary folder."""
    return os.open(path, flags, 0o600)
