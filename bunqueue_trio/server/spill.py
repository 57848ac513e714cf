"""The last resort of a stop whose final flush the file refuses: unwritten jobs go into a file beside it, never silently.

Shape of the file: msgpack, one map per job after another: {"job": job map, "state": str}.
"""

from __future__ import annotations

import os

import msgspec

from bunqueue_trio.logs import get_logger
from bunqueue_trio.model.changes import Changes
from bunqueue_trio.model.instant import Now
from bunqueue_trio.model.job import shown_state

log = get_logger("Storage")
LOGGED_DATA_BYTES = 500


def spill(data_path: str, changes: Changes, now: Now) -> int:
    """Write the jobs of *changes* beside the data file and log each.

    Returns:
        How many jobs there were. They are lost to the data file; the log and the spill file say which.
    """
    encoder = msgspec.msgpack.Encoder()
    jobs = changes.jobs
    path = f"{data_path}.lost-{int(now.wall_ms)}"
    try:
        with open(path, "xb") as file:
            for job in jobs:
                file.write(encoder.encode({"job": job.record, "state": shown_state(job, now.wall_ms)}))
            file.flush()
            os.fsync(file.fileno())
        log.error("CRITICAL: jobs could not be stored before the stop; they are in a spill file", path=path, jobCount=len(jobs))
    except OSError as error:
        log.error("CRITICAL: the spill file cannot be written either", path=path, error=str(error))
    for job in jobs:
        record = job.record
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
