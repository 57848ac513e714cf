"""The keeper that moves dirty records into the file: swap, commit, settle; back off when the file refuses.

A flush starts at once when somebody waits for it or 100 rows are buffered, else 10 ms after the first buffered row.
While one commits, everything that arrives fills the next: group commit needs no timer. A failed flush goes back in
front of newer changes and is tried again after 100 ms, doubling to 30 s, for as long as the process lives; regular
flushing pauses meanwhile. Nothing is given up before shutdown.

Source: design, "What ok means"; R11 to R16, R84 to R90, K20, PD-6.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import trio
from msgspec import Struct

from bunqueue_trio.errors import StorageError
from bunqueue_trio.logs import get_logger
from bunqueue_trio.model.changes import Changes
from bunqueue_trio.model.job import Job
from bunqueue_trio.server.broker import ROWS_AT_ONCE, Broker
from bunqueue_trio.server.spill import spill, unwritten_jobs
from bunqueue_trio.server.store import Store
from bunqueue_trio.server.tickets import Ticket
from bunqueue_trio.server.unborn import forget_unborn
from bunqueue_trio.server.writer import Call
from bunqueue_trio.storage.batch import PROBE_ID, CommitReport
from bunqueue_trio.storage.snapshot import Snapshot, take_snapshot

log = get_logger("Storage")

WINDOW_MS = 10  # the loss window that buffered mode is allowed (R13)
FIRST_RETRY_S = 0.1
MAX_RETRY_S = 30.0
MAX_DOUBLINGS = 20  # far beyond 30 s; a disk may stay full until 2.0 ** failures is no float any more
RETRIES_BEFORE_ALARM = 10
FINAL_RETRY_S = 0.2
SPACE_CHECK_S = 1.0
SPACE_WORTH_A_TRY_BYTES = 65_536
PATIENCE_S = 0.002  # a small commit takes 0.1 to 0.5 ms
COMMITS_WITHOUT_PATIENCE = 64  # after one that took longer

CriticalHook = Callable[[list[Job], StorageError, int], None]


def log_critical(jobs: list[Job], error: StorageError, attempts: int) -> None:
    """The default hook: say which jobs are in memory only. They are kept and tried on."""
    log.error(
        "CRITICAL: jobs cannot be stored; they are kept in memory and tried on",
        jobCount=len(jobs),
        attempts=attempts,
        error=str(error),
        ids=[job.record.id for job in jobs[:100]],
    )


class _Flight(Struct, frozen=True, gc=False):
    """A flush under way: what it carries, and who waits for it."""

    ticket: Ticket
    changes: Changes
    snapshot: Snapshot
    row_count: int


class Flusher:
    """Owns the way from the engine to the file."""

    def __init__(self, broker: Broker, store: Store, on_critical: CriticalHook = log_critical) -> None:
        self._broker = broker
        self._store = store
        self._on_critical = on_critical
        self._failures = 0
        self._has_alarmed = False
        self._begun: tuple[_Flight, Call[CommitReport]] | None = None  # by `commit_here`, and to be ended by `run`
        self._owes_pause = False  # after a failure, whoever began that flush
        self._impatient_commits = 0
        self._has_warned_of_wal = False
        broker.commit_here = self.commit_here
        self._turn = broker.flush_turn  # the run loop and a stopping server never flush at the same time
        self.flush_count = 0
        self.failed_count = 0
        self.critical_count = 0
        self.last_commit_ms = 0.0

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Flush until cancelled. What is dirty then is left to `finish`."""
        task_status.started()
        while True:
            is_flush_due = await self._wait()
            await self._end_begun()
            if is_flush_due:
                if self._broker.storage_health.is_disk_full:
                    await self._make_room()
                await self._flush()
            if self._failures:
                self._owes_pause = False
                await self._back_off()
            else:
                await self._tend_wal()

    def commit_here(self, *, is_small: bool = True) -> bool:
        """Commit what is dirty while the caller's client, who is alone, waits for it: to sleep would cost more.

        Blocks the loop for `PATIENCE_S` at the most; what takes longer is left to `run`, and so are the next commits.

        Args:
            is_small: False for one that will take longer in any case: it is begun, and the loop goes on.

        Returns:
            False: not begun.
        """
        if is_small and self._impatient_commits:
            self._impatient_commits -= 1
            return False
        is_busy = self._failures or self._begun is not None or self._store.is_checkpointing
        if is_busy or not self._try_turn():
            return False
        flight = self._take_off()
        try:
            call = self._store.begin_commit(flight.snapshot.batch)
            if not is_small or not call.is_over_within(PATIENCE_S):
                self._begun = flight, call
                if is_small:
                    self._impatient_commits = COMMITS_WITHOUT_PATIENCE
                self._broker.flush_wanted.set()
                return True
            report = call.result()
        except StorageError as error:
            self._fail(flight, error)
        except BaseException:
            self._call_off(flight)
            self._turn.release()
            raise
        else:
            self._land(flight, report)
        self._turn.release()
        if self._has_chores:
            self._broker.flush_wanted.set()
        return True

    async def flush_all(self) -> None:
        """Commit everything that is dirty, now, and fold the WAL in as far as possible. Raises no StorageError."""
        await self._end_begun()
        while self._broker.engine.state.changes and not await self._flush():
            if self._failures:
                return
        await self._tend_wal(force=True)

    async def finish(self, timeout_s: float) -> int:
        """The last flush, tried until the file takes it or *timeout_s* is over.

        Returns:
            How many jobs had to be given up; they are in a spill file beside the data file.
        """
        try:
            with trio.move_on_after(timeout_s) as patience:
                await self._end_begun()
                while self._broker.engine.state.changes:
                    if not await self._flush():
                        await trio.sleep(FINAL_RETRY_S)
        except Exception:  # a defect of ours must not cost anybody's jobs
            spill(self._store.path, self._broker.engine.state.changes, self._broker.clock.now())
            raise
        if not patience.cancelled_caught or not self._broker.engine.state.changes:
            return 0
        return spill(self._store.path, self._broker.engine.state.changes, self._broker.clock.now())

    @property
    def _is_retry_due(self) -> bool:
        """Whether the pause after a failure is over: try, even if only to learn that the file takes writes again."""
        return self._failures > 0 and not self._owes_pause

    @property
    def _has_chores(self) -> bool:
        return self._begun is not None or self._owes_pause or self._store.is_checkpoint_due

    async def _wait(self) -> bool:
        """Wait until there is something to do. Returns whether it is a flush."""
        broker = self._broker
        is_flush_due = self._is_retry_due  # before any chore: a full disk leaves a WAL that cannot be folded in either
        while not is_flush_due and not self._has_chores:
            changes = broker.engine.state.changes
            deadline_s = float("inf")
            if changes:
                first = broker.first_dirty_mono_ms
                left_ms = WINDOW_MS if first is None else first + WINDOW_MS - broker.clock.now().mono_ms
                deadline_s = left_ms / 1000
            is_wanted = changes and (broker.ticket.is_awaited or changes.new_count >= ROWS_AT_ONCE)
            is_flush_due = bool(is_wanted or self._is_retry_due or deadline_s <= 0)
            if not is_flush_due:
                # A WAL that a reader pins, or whose disk was sick, is folded in after the last commit as well.
                with trio.move_on_after(min(deadline_s, self._store.checkpoint_due_in_s)):
                    await broker.flush_wanted.wait()
            broker.flush_wanted = trio.Event()
        return is_flush_due

    async def _flush(self) -> bool:
        """One attempt at everything dirty. Returns True when it is in the file.

        Cancel: before the commit begins, or not at all; what has not begun is dirty again.
        """
        await self._end_begun()
        if not self._try_turn():
            await self._turn.acquire()
        try:
            flight = self._take_off()
            try:
                report = await self._store.commit(flight.snapshot.batch)
            except StorageError as error:
                self._fail(flight, error)
                return False
            except BaseException:
                self._call_off(flight)
                raise
            self._land(flight, report)
            return True
        finally:
            self._turn.release()

    async def _end_begun(self) -> None:  # noqa: ASYNC910  (mostly there is nothing to do)
        """See what `commit_here` had to leave to its end."""
        if self._begun is None:
            return
        (flight, call), self._begun = self._begun, None
        try:
            report = await call.wait()
        except StorageError as error:
            self._fail(flight, error)
        except BaseException:
            self._call_off(flight)
            raise
        else:
            self._land(flight, report)
        finally:
            self._turn.release()

    def _try_turn(self) -> bool:
        """Take the turn if it is free. No checkpoint: whoever waits for the commit has waited long enough."""
        try:
            self._turn.acquire_nowait()
        except trio.WouldBlock:
            return False
        return True

    def _take_off(self) -> _Flight:
        """Take what is dirty; from here on new changes fill the next flush."""
        broker = self._broker
        ticket, broker.ticket = broker.ticket, Ticket()
        broker.first_dirty_mono_ms = None
        broker.is_flushing = True
        changes = broker.engine.take_changes()
        row_count = changes.row_count
        snapshot = take_snapshot(changes, broker.clock.now().wall_ms)
        if self._failures:
            # An empty transaction succeeds on a full disk too: write and take back a row, or its success shows nothing.
            snapshot.batch.finished.append(PROBE_ID)
            snapshot.batch.finished_gone.append(PROBE_ID)
        broker.batch_in_flight = snapshot.batch
        return _Flight(ticket, changes, snapshot, row_count)

    def _land(self, flight: _Flight, report: CommitReport) -> None:
        """It has committed: its changes take effect, and everybody is told."""
        broker = self._broker
        now = broker.clock.now()
        broker.batch_in_flight = None
        broker.is_flushing = False
        goes_on_early = not broker.events.is_listened_to  # else events are told first, and then what has caused them
        if goes_on_early:
            self._confirm(flight.ticket)  # it is in the file: those who wait go on while we see to the rest
        broker.engine.committed(flight.changes, now, missing=report.missing, kept=report.kept)
        broker.engine.forgotten(report.forgotten)
        self.flush_count += 1
        broker.flush_figures.succeeded(flight.row_count, report.duration_ms)
        self.last_commit_ms = report.duration_ms
        if report.has_mended:
            log.warning("Damaged indexes of the data file have been built anew: look at the disk")
        self._failures = 0
        self._owes_pause = False
        self._has_alarmed = False
        was_full = broker.storage_health.is_disk_full
        if broker.storage_health.succeeded():
            log.info(
                ("Disk full condition" if was_full else "Trouble with the file") + " cleared - writes succeeding again"
            )
        if not goes_on_early:
            self._confirm(flight.ticket)
        broker.flush_ended(now)

    def _confirm(self, ticket: Ticket) -> None:
        ticket.settle()
        self._broker.note_committed(ticket)

    def _fail(self, flight: _Flight, error: StorageError) -> None:
        """The file has refused it: what must be kept goes back in front of what is newer, the others are told no."""
        broker = self._broker
        broker.batch_in_flight = None
        broker.is_flushing = False
        self._settle_failure(flight.changes, flight.snapshot, error)
        flight.ticket.refuse(str(error))
        # Durable and admin commands fail fast: those that came meanwhile were dropped along with the others.
        newer, broker.ticket = broker.ticket, Ticket()
        newer.refuse(str(error))
        broker.flush_ended(broker.clock.now())
        self._owes_pause = True
        broker.flush_wanted.set()  # `run` may be asleep, with nothing left to write that would wake it

    def _call_off(self, flight: _Flight) -> None:
        """It has not begun, and we are cancelled, or it has met a defect: the next flush, or the last, carries it."""
        broker = self._broker
        broker.batch_in_flight = None
        broker.is_flushing = False
        broker.engine.put_back(flight.changes, lambda: flight.snapshot.restore(broker.engine.state.changes))
        newer, broker.ticket = broker.ticket, flight.ticket
        flight.ticket.absorb(newer)

    def _settle_failure(self, changes: Changes, snapshot: Snapshot, error: StorageError) -> None:
        broker = self._broker
        now = broker.clock.now()
        self._failures += 1
        self.failed_count += 1
        broker.flush_figures.failed_count += 1
        was_degraded = broker.storage_health.is_degraded
        broker.storage_health.failed(error, now.wall_ms)
        broker.engine.rejected(changes, lambda: snapshot.restore(broker.engine.state.changes), now, error=str(error))
        forget_unborn(broker.engine.state.changes)
        if broker.storage_health.is_disk_full and not was_degraded:
            log.error("DISK FULL: SQLite cannot write, persistence degraded", error=str(error))
        log.error(
            "Write buffer flush failed",
            jobCount=len(broker.engine.state.changes.jobs),
            error=str(error),
            diskFull=broker.storage_health.is_disk_full,
        )
        if not error.transient and error.row_id is not None:
            ejected = broker.engine.eject(error.row_id)
            if ejected is not None:
                self.critical_count += 1
                self._on_critical([ejected], error, self._failures)
        if self._failures > RETRIES_BEFORE_ALARM and not self._has_alarmed:
            affected = unwritten_jobs(broker.engine.state.changes)
            if affected:
                self._has_alarmed = True
                self.critical_count += 1
                self._on_critical(affected, error, self._failures)

    async def _back_off(self) -> None:
        """Let the pause after a failure pass, whatever arrives meanwhile (R88).

        Space that is freed ends it early, and so does a flush of somebody else that succeeds.

        During the pause everything that promises a commit is refused at once. After it the next one is tried for real:
        only a write can show that the trouble is over.
        """
        health = self._broker.storage_health
        pause_s = min(FIRST_RETRY_S * 2.0 ** min(self._failures - 1, MAX_DOUBLINGS), MAX_RETRY_S)
        health.is_pausing = True
        try:
            free_then = self._store.free_bytes()
            until = trio.current_time() + pause_s
            while self._failures and (left_s := until - trio.current_time()) > 0:
                await trio.sleep(min(left_s, SPACE_CHECK_S))
                if health.is_disk_full and self._store.free_bytes() > free_then + SPACE_WORTH_A_TRY_BYTES:
                    break
        finally:
            health.is_pausing = False

    async def _make_room(self) -> None:
        """Fold the WAL in before anything is tried on a full disk: what it holds can then be written over.

        The other way round a flush would take the space that was freed, and the WAL could never be folded in again.
        """
        with suppress(StorageError):  # still too little; the flush will say so
            await self._store.checkpoint("PASSIVE")

    async def _tend_wal(self, *, force: bool = False) -> None:
        is_due = force or self._store.is_checkpoint_due
        try:
            if force:
                await self._store.checkpoint("TRUNCATE")
            else:
                await self._store.tend_wal()
        except StorageError as error:
            if not self._has_warned_of_wal:  # it is tried again every second
                log.warning("WAL checkpoint failed", error=str(error))
            self._has_warned_of_wal = True
        else:
            self._has_warned_of_wal = self._has_warned_of_wal and not is_due
