"""Backups on Trio: the schedule, one at a time, never on the loop, and ended when the server ends.

Source: S3 backup and restore, "Scheduler", BD-12; R70, R354 to R356, K43.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar

import outcome
import trio
from msgspec import structs

from bunqueue_trio.backup.log_keeper import ChangeLog
from bunqueue_trio.backup.making import Made, Maker, Witness, check_source
from bunqueue_trio.backup.object_store import ObjectStore
from bunqueue_trio.backup.patience import Patience
from bunqueue_trio.backup.record import IN_PROGRESS, BackupLock, read_record, write_record
from bunqueue_trio.backup.settings import BackupSettings
from bunqueue_trio.backup.stopping import run_stoppable
from bunqueue_trio.errors import BackupBusyError, BackupError, BackupStoppedError, StorageError
from bunqueue_trio.logs import get_logger
from bunqueue_trio.model.backup import BackupRecord, BackupStatus

if TYPE_CHECKING:
    from bunqueue_trio.clock import Clock
    from bunqueue_trio.model.instant import Now

log = get_logger("Backup")

FIRST_S: Final = 60.0
BEGIN_LOG_S: Final = 2.0
"""A change log begins with a snapshot; a server that fails at once, again and again, need not make one each time."""
RETRY_S: Final = 30.0
"""Between two snapshots that are to begin a change log; doubled each time, until one has lasted."""
MAX_RETRY_S: Final = 600.0
LIMIT_S: Final = 6 * 3600.0
"""No backup lasts longer, however slowly the bytes move."""

REST_SHARE: Final = 1.0
"""A backup takes twice as long as it could: those who push and pull must not notice it."""
ROUNDING_S: Final = 0.001

NOT_NOW: Final = "No backup is made while the server starts or stops"

T = TypeVar("T")
OpenStore = Callable[[BackupSettings, Patience], ObjectStore]


class _Request:
    """A backup that somebody has asked for, and what became of it."""

    def __init__(self) -> None:
        self.is_over = trio.Event()
        self.result: outcome.Value[Made] | outcome.Error = outcome.Error(BackupStoppedError(NOT_NOW))


class Backups:
    """Makes the backups of one data file and knows how they went.

    Args:
        flush: brings what the server holds into the file; raises `BackupError` if it cannot.
        announce: tells whoever listens.
        make_patience: for each backup a new one.
        changes: the log of what changes between backups; None: there is none.
    """

    def __init__(
        self,
        settings: BackupSettings,
        clock: Clock,
        open_store: OpenStore,
        *,
        version: str,
        flush: Callable[[], Awaitable[None]] | None = None,
        announce: Callable[[str, dict[str, Any]], None] | None = None,
        make_patience: Callable[[], Patience] | None = None,
        changes: ChangeLog | None = None,
    ) -> None:
        self.changes = changes
        self.settings = settings
        self._clock = clock
        self._open_store = open_store
        self._version = version
        self._flush = flush
        self._announce = announce
        self._make_patience = make_patience or (lambda: Patience(clock, rest_share=REST_SHARE))
        self._limiter = trio.CapacityLimiter(1)
        self._database = os.path.realpath(settings.database)
        remembered = read_record(self._database)
        # What went wrong before this start says nothing about now; what was proven still is.
        self._record = structs.replace(remembered, error=None, failing_since=None)
        self._warning: str | None = None
        self._warned_at = 0.0
        self._copying = trio.Lock()
        self._is_running = False
        self._on_request: trio.Nursery | None = None  # while `run` runs
        self._made_count = 0
        self._failed_count = 0
        self._rejected_count = 0

    def status(self) -> BackupStatus:
        """How it goes."""
        record = self._record
        if record.error is None and self._warning is not None:
            record = structs.replace(record, error=self._warning, failing_since=self._warned_at)
        return BackupStatus(
            bucket=self.settings.bucket,
            interval=self.settings.interval_ms,
            is_running=self._is_running,
            made_count=self._made_count,
            failed_count=self._failed_count,
            rejected_count=self._rejected_count,
            log=None if self.changes is None else self.changes.status(self._record.last_success_at),
            **structs.asdict(record),
        )

    async def run(self) -> None:
        """Make one a minute after the start, one every interval after the start, and those that are asked for. Returns
        only when cancelled.

        One that lasts longer than the interval is not interrupted; what has become due meanwhile is left out. Where
        there is a change log, snapshots that it begins with are made in between, when it needs one.
        """
        async with trio.open_nursery() as self._on_request:
            try:
                await self._keep_to_schedule()
            finally:
                self._on_request = None

    async def _keep_to_schedule(self) -> None:
        started_s, interval_s = trio.current_time(), self.settings.interval_ms / 1000
        due_s, begin_s, pause_s = started_s + min(FIRST_S, interval_s), started_s + BEGIN_LOG_S, RETRY_S
        while True:
            if await self._wait_until_due(due_s, begin_s):
                with suppress(BackupError, StorageError):  # said and remembered; the next one is tried as ever
                    await self.make()
                passed_s = trio.current_time() - started_s
                due_s = started_s + interval_s * ((passed_s + ROUNDING_S) // interval_s + 1)
                continue
            if trio.current_time() > begin_s + MAX_RETRY_S:
                pause_s = RETRY_S
            await self._begin_log()
            begin_s, pause_s = trio.current_time() + pause_s, min(pause_s * 2, MAX_RETRY_S)

    async def _wait_until_due(self, due_s: float, begin_s: float) -> bool:
        """True once a backup is due, False once the change log needs a snapshot, and not before *begin_s*."""
        with trio.move_on_at(due_s):
            while self.changes is not None:
                if not self.changes.needs_snapshot:
                    await self.changes.snapshot_wanted.wait()
                await trio.sleep_until(begin_s)
                if self.changes.needs_snapshot:
                    return False
            await trio.sleep_forever()
        return True

    async def make_on_request(self) -> Made:
        """Make a backup now, for somebody who may not wait to the end: it takes minutes, and clients give up sooner.

        Cancel: the backup goes on; `status` and the log tell how it went.

        Raises:
            BackupBusyError: one is being made, here or by another process.
            BackupError, StorageError: it has failed, or the server starts or stops.
        """
        request = _Request()
        if self._on_request is not None:
            self._on_request.start_soon(self._serve, request)
            await request.is_over.wait()
        return request.result.unwrap()

    async def _serve(self, request: _Request) -> None:
        try:
            request.result = outcome.Value(await self.make())
        except (BackupError, StorageError) as error:  # said and remembered
            request.result = outcome.Error(error)
        except Exception as error:
            log.error("Internal error in a backup", exc_info=error)  # whoever asked for it may have left
            request.result = outcome.Error(error)
        finally:
            request.is_over.set()

    async def make(self) -> Made:
        """Make a backup now.

        Cancel: ends it; nothing half made is listed in the bucket, nothing is left beside the data file.

        Raises:
            BackupBusyError: one is being made, here or by another process.
            BackupError, StorageError: it has failed.
        """
        if self._is_running:
            self._rejected_count += 1
            raise BackupBusyError(IN_PROGRESS)
        self._is_running = True
        try:
            async with self._copying:  # what the log begins with is nothing that anybody asked for: it is waited for
                return await self._make()
        finally:
            self._is_running = False

    async def _make(self) -> Made:
        began = self._clock.now()
        self._tell("storage:backup-started", {"bucket": self.settings.bucket})
        try:
            made = await self._within_limit(lambda witness: self._make_in_thread(began, witness))
        except BackupBusyError:
            self._rejected_count += 1
            log.warning("Backup skipped: another process makes one")
            raise
        except (BackupError, StorageError) as error:
            self._note_failure(str(error), began.wall_ms)
            raise
        self._made_count += 1
        if self._warning is None:
            self._warned_at = began.wall_ms
        self._warning = made.warning
        self._tell("storage:backup-completed", {"bucket": self.settings.bucket, "key": made.key})
        return made

    async def _begin_log(self) -> None:
        """Make the snapshot that the change log begins with. It is none of the backups: it is not listed, and pushes
        none of them out. A failure is that of the log."""
        changes = self.changes
        assert changes is not None

        async def make(witness: Witness | None) -> None:
            if witness is not None:
                await self._in_thread(witness, lambda maker: maker.make_start(changes.start_key()), is_for_log=True)

        try:
            async with self._copying:
                if changes.needs_snapshot:
                    await self._within_limit(make)
        except BackupBusyError:
            return  # another process makes one; the next try comes
        except (BackupError, StorageError) as error:
            changes.note_failure(f"The change log cannot begin: {error}")

    async def _within_limit(self, make: Callable[[Witness | None], Awaitable[T]]) -> T:
        if self._flush is not None:
            await self._flush()
        witness = None if self.changes is None else await self.changes.witness()
        with trio.move_on_after(LIMIT_S):
            return await make(witness)
        raise BackupError(f"Backup was given up after {LIMIT_S:.0f} s")

    async def _make_in_thread(self, began: Now, witness: Witness | None) -> Made:
        def make(maker: Maker) -> Made:
            made = maker.make()
            self._record = _after(read_record(self._database), made, began, self._clock.now())
            write_record(self._database, self._record)
            return made

        return await self._in_thread(witness, make)

    async def _in_thread(
        self, witness: Witness | None, make: Callable[[Maker], Made], *, is_for_log: bool = False
    ) -> Made:
        patience = self._make_patience()

        def work() -> Made:
            check_source(self.settings.database)  # before a lock is put where there is nothing
            with BackupLock.acquire(self._database, is_for_log=is_for_log, pause=patience.pause):
                try:
                    store = self._open_store(self.settings, patience)
                    proven = read_record(self._database).last_proven_key
                    maker = Maker(
                        self.settings,
                        store,
                        patience,
                        self._clock,
                        version=self._version,
                        witness=witness,
                        spared=() if proven is None else (proven,),
                    )
                    made = make(maker)
                    if self.changes is not None:
                        self.changes.clean(store, patience)
                    return made
                except OSError as error:
                    raise BackupError(f"{error.filename or self._database}: {error.strerror}") from error

        return await run_stoppable(work, patience, limiter=self._limiter, is_gentle=True)

    def _note_failure(self, text: str, began_wall_ms: float) -> None:
        self._failed_count += 1
        since = self._record.failing_since
        changed = structs.replace(
            self._record,
            last_attempt_at=began_wall_ms,
            error=text,
            failing_since=began_wall_ms if since is None else since,
        )
        self._record = changed
        log.error("Backup failed", error=text)
        self._tell("storage:backup-failed", {"bucket": self.settings.bucket, "error": text})
        try:
            write_record(self._database, changed)  # a few hundred bytes, and only after a failure
        except OSError as error:
            log.warning("How the backup went cannot be remembered", error=str(error))

    def _tell(self, event: str, data: dict[str, Any]) -> None:
        if self._announce is not None:
            self._announce(event, data)


def _after(record: BackupRecord, made: Made, began: Now, ended: Now) -> BackupRecord:
    proven: dict[str, Any] = {}
    if made.is_proven:
        proven = {"last_proven_at": made.made_at, "last_proven_key": made.key}
    return structs.replace(
        record,
        last_attempt_at=began.wall_ms,
        last_success_at=made.made_at,
        last_key=made.key,
        last_size=made.size_bytes,
        last_duration=ended.mono_ms - began.mono_ms,
        error=None,
        failing_since=None,
        **proven,
    )
