"""The last resort of a stop whose final flush the file refuses: unwritten jobs go into a file beside it.

Shape of the file: msgpack, one map per job after another: {"job": job map, "state": str}, for a dead letter also
"reason" and "error".
"""

from __future__ import annotations

import os
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
    """Write the jobs of *changes* beside the data file and log each.

    Returns:
        How many jobs there were. They are lost to the data file; the log and the spill file say which.
    """
    encoder = msgspec.msgpack.Encoder()
    jobs = _lost(changes, now)
    if not jobs:
        return 0
    path = f"{data_path}.lost-{int(now.wall_ms)}"
    try:
        with open(path, "xb") as file:
            for record, details in jobs:
                file.write(encoder.encode({"job": record, **details}))
            file.flush()
            os.fsync(file.fileno())
        log.error(
            "CRITICAL: jobs could not be stored before the stop; they are in a spill file",
            path=path,
            jobCount=len(jobs),
        )
    except OSError as error:
        log.error("CRITICAL: the spill file cannot be written either", path=path, error=str(error))
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
