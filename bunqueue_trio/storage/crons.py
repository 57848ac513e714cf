"""The tables ``cron_jobs`` and ``bqt_crons``: a cron to its row and back.

Source: persistence, "cron_jobs"; R51, R52.
"""

import math
from collections.abc import Iterator
from typing import Any, Final

import apsw
import msgspec
from msgspec import Raw
from msgspec.structs import replace

from bunqueue_trio.errors import CorruptDatabaseError
from bunqueue_trio.model.cron_job import CronJob, CronOptions
from bunqueue_trio.model.job import BackoffConfig, Dedup
from bunqueue_trio.storage import faults
from bunqueue_trio.storage.batch import CRON_COLUMNS, Row
from bunqueue_trio.storage.decoding import UNREADABLE, number, text, text_or_none, whole
from bunqueue_trio.storage.payloads import UNDEFINED, checked_payload

NO_DATA: Final = Raw(b"")
_CRONS: Final = (
    f"SELECT {', '.join(f'cron_jobs.{name}' for name in CRON_COLUMNS)}, bqt_crons.job_name FROM cron_jobs"
    " LEFT JOIN bqt_crons ON bqt_crons.name = cron_jobs.name ORDER BY cron_jobs.rowid"
)

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(ext_hook=lambda _code, _data: None).decode


def cron_row(job: CronJob) -> Row:
    """The row of a cron, after `batch.CRON_COLUMNS`. The key that is made of its name is not stored,
    the name of its jobs elsewhere.
    """
    return (
        job.name,
        job.queue,
        bytes(job.data) or UNDEFINED,
        job.schedule,
        job.repeat_every,
        job.priority,
        job.next_run,
        job.executions,
        job.max_limit,
        job.timezone,
        job.unique_key,
        None if job.dedup is None else _encode(job.dedup),
        job.skip_missed_on_restart,
        job.skip_if_no_worker,
        job.prevent_overlap,
        None if job.options is None else _encode(job.options),
    )


def crons(connection: apsw.Connection) -> Iterator[CronJob]:
    """All crons of the file, in the order in which they were made.

    Raises:
        StorageError: the table cannot be read.
    """
    try:
        for row in connection.execute(_CRONS):
            yield replace(cron_from_row(row[:-1]), job_name=row[-1])
    except apsw.Error as error:
        raise faults.from_apsw(error) from error
    except UnicodeDecodeError as error:
        raise CorruptDatabaseError(f"a text of the file is not UTF-8: {error}") from error


def cron_from_row(row: tuple[Any, ...]) -> CronJob:
    """Decode a row; cells that hold something else than their column promises count as their defaults."""
    cells = dict(zip(CRON_COLUMNS, row, strict=True))
    every, limit, next_run = (_finite(cells[name]) for name in ("repeat_every", "max_limit", "next_run"))
    data = None if cells["data"] == UNDEFINED else checked_payload(cells["data"])
    return CronJob(
        name=text(cells["name"]),
        queue=text(cells["queue"]),
        data=NO_DATA if data is None else data,
        schedule=text_or_none(cells["schedule"]) or None,
        repeat_every=every if every is not None and every >= 1 else None,
        priority=whole(cells["priority"], 0),
        next_run=0.0 if next_run is None else float(next_run),
        executions=whole(cells["executions"], 0),
        max_limit=limit if limit is not None and limit > 0 else None,
        timezone=text_or_none(cells["timezone"]) or None,
        unique_key=text_or_none(cells["unique_key"]) or None,
        dedup=_dedup_from(cells["dedup"]),
        skip_missed_on_restart=bool(cells["skip_missed_on_restart"]),
        skip_if_no_worker=bool(cells["skip_if_no_worker"]),
        prevent_overlap=bool(cells["prevent_overlap"]),
        options=_options_from(cells["job_options"]),
    )


def _map_from(blob: Any) -> dict[Any, Any] | None:
    try:
        found = _decode(blob) if isinstance(blob, bytes) else None
    except UNREADABLE:
        return None
    return found if isinstance(found, dict) else None


def _dedup_from(blob: Any) -> Dedup | None:
    given = _map_from(blob)
    if given is None:
        return None
    return Dedup(_positive(given.get("ttl")), bool(given.get("extend")), bool(given.get("replace")))


def _options_from(blob: Any) -> CronOptions | None:
    given = _map_from(blob)
    if given is None:
        return None
    attempts = _positive(given.get("maxAttempts"))
    return CronOptions(
        max_attempts=whole(attempts, 0) if attempts is not None and attempts >= 1 else None,
        backoff=_backoff_from(given.get("backoff")),
        timeout=_positive(given.get("timeout")),
        delay=_positive(given.get("delay")),
        stall_timeout=_positive(given.get("stallTimeout")),
        remove_on_complete=_flag_from(given.get("removeOnComplete")),
        remove_on_fail=_flag_from(given.get("removeOnFail")),
    )


def _backoff_from(value: Any) -> float | int | BackoffConfig | None:
    if not isinstance(value, dict):
        return _positive(value)
    delay, longest = _positive(value.get("delay")), _positive(value.get("maxDelay"))
    if value.get("type") not in ("fixed", "exponential") or delay is None:
        return None
    return BackoffConfig(value["type"], delay) if longest is None else BackoffConfig(value["type"], delay, longest)


def _finite(value: Any) -> float | int | None:
    """A number with which times can be reckoned; None for anything else."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return number(value, 0) if is_number else None


def _positive(value: Any) -> float | int | None:
    """The same, unless it is negative."""
    found = _finite(value)
    return found if found is not None and found >= 0 else None


def _flag_from(value: Any) -> bool | None:
    return None if value is None else bool(value)
