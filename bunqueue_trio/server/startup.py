"""From the data file to a running engine: reads pages, feeds `Recovery`, in the order of the requirement."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from datetime import UTC, tzinfo
from typing import TYPE_CHECKING

import apsw

from bunqueue_trio.engine.core import Engine
from bunqueue_trio.engine.id_source import IdSource
from bunqueue_trio.engine.recovery import Recovery
from bunqueue_trio.logs import get_logger
from bunqueue_trio.model.entries import DlqEntry
from bunqueue_trio.storage import reads
from bunqueue_trio.storage.crons import crons
from bunqueue_trio.storage.decoding import StoredJob
from bunqueue_trio.storage.repairs import repair_keys, sweep_side_rows

if TYPE_CHECKING:
    from bunqueue_trio.clock import Clock

log = get_logger("Storage")

WORTH_A_LINE = 100_000  # rows; below that a recovery takes less than two seconds


def load_engine(
    connection: apsw.Connection,
    ids: IdSource,
    clock: Clock,
    *,
    lease_grace_ms: float,
    syncs_commits: bool = False,
    worker_timeout_ms: float = 30_000,
    local_zone: tzinfo = UTC,
) -> Engine:
    """Recover the engine from the file. Blocks; nothing else may use *connection*, which may write, meanwhile.

    What recovery has changed (charged attempts, new dead letters) is dirty in the engine and goes to the file with its
    first flush, which has to happen before any port opens.

    Raises:
        StorageError: the file cannot be read, or not be repaired.
    """
    gc.disable()  # a million fresh records and no garbage: collecting would only look at them again and again
    try:
        engine = Engine(
            ids,
            lease_grace_ms=lease_grace_ms,
            syncs_commits=syncs_commits,
            worker_timeout_ms=worker_timeout_ms,
            local_zone=local_zone,
        )
        recovery = _recover(connection, engine, clock)
    finally:
        gc.enable()
    total = recovery.active_count + recovery.pending_count
    if total > WORTH_A_LINE:
        log.info("Recovered jobs", active=recovery.active_count, pending=recovery.pending_count)
    return engine


def _recover(connection: apsw.Connection, engine: Engine, clock: Clock) -> Recovery:
    for key in repair_keys(connection):
        log.warning("A key of the file was no text; it is now", key=key)
    if count := sweep_side_rows(connection):
        log.info("Another server has deleted jobs or crons; what was kept of them is gone too", count=count)
    cron_keys = {(queue, f"cron:{name}") for name, queue in reads.cron_names(connection).items()}
    recovery = Recovery(engine, clock.now(), cron_keys=cron_keys)
    recovery.settings(reads.queue_settings(connection))
    recovery.groups(reads.group_settings(connection))
    recovery.letter_ids(reads.letter_ids(connection))
    recovery.active(reads.active_jobs(connection))
    for page in _pages(reads.pending_jobs(connection)):
        recovery.pending(page, reads.done_among(connection, _dependencies(page)))
    recovery.letters(_sound(reads.letters(connection)))
    recovery.completed(reads.completed_counts(connection).items())
    for name, reason in recovery.crons(crons(connection)).items():
        log.warning("A cron cannot be read; it stays in the file", name=name, reason=reason)
    recovery.finished(reads.finished_ids(connection), reads.max_rowid(connection) + 1)
    return recovery


def _pages(rows: Iterator[StoredJob]) -> Iterator[list[StoredJob]]:
    page: list[StoredJob] = []
    for row in rows:
        page.append(row)
        if len(page) == reads.PAGE_ROWS:
            yield page
            page = []
    if page:
        yield page


def _dependencies(page: list[StoredJob]) -> set[str]:
    return {dependency for row in page for dependency in row.record.depends_on}


def _sound(rows: Iterable[tuple[str, DlqEntry | None, str]]) -> Iterator[tuple[str, DlqEntry]]:
    """Dead letters that can be read; the others stay in the file, and the log names them."""
    for queue, entry, job_id in rows:
        if entry is None:
            log.warning("A dead letter cannot be read; it stays in the file", queue=queue, id=job_id)
        else:
            yield queue, entry
