"""The change log on Trio: ships every few seconds, says when a snapshot is due to begin a chain with, and how it goes.

Source: point-in-time recovery; D-150 to D-153.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, TypeVar

import apsw
import trio

from bunqueue_trio.backup.chain import Chain, Position, sweep_log
from bunqueue_trio.backup.log_naming import Base, new_generation, start_key
from bunqueue_trio.backup.making import Witness
from bunqueue_trio.backup.object_store import ObjectStore
from bunqueue_trio.backup.patience import Patience
from bunqueue_trio.backup.settings import BackupSettings
from bunqueue_trio.backup.shipping import clean_log, prove, put_base, upload
from bunqueue_trio.backup.stopping import run_stoppable
from bunqueue_trio.errors import BackupError, StorageError
from bunqueue_trio.logs import get_logger
from bunqueue_trio.model.backup import LogStatus

if TYPE_CHECKING:
    from bunqueue_trio.clock import Clock

log = get_logger("Backup")

MAX_SEALED: Final = 2
"""While so many segments wait for the bucket, further changes go into one that stays open."""
FINAL_S: Final = 10.0
"""How long a server that stops tries to upload its last changes."""
HOPELESS_S: Final = 2.0
"""The same while uploads fail."""

LOOK_PERIOD_MS: Final = 60_000.0
BACK_MS: Final = 5_000.0
"""How far the clock may be put back before the times of the commits of a chain are worth nothing."""

T = TypeVar("T")
OpenStore = Callable[[BackupSettings, Patience], ObjectStore]
InWriter = Callable[[Callable[[apsw.Connection], T]], Awaitable[T]]
Attach = Callable[[Chain | None], None]


class ChangeLog:
    """Uploads what is committed, in chains that begin with a backup.

    Args:
        in_writer: calls a function with the writing connection, in its thread, between two commits.
        attach: tells the owner of the connection which chain wants to hear of commits and checkpoints; called in that
            thread.
        make_patience: for each upload a new one.
    """

    def __init__(
        self,
        settings: BackupSettings,
        clock: Clock,
        open_store: OpenStore,
        *,
        in_writer: InWriter[None],
        attach: Attach,
        make_patience: Callable[[], Patience] | None = None,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._open_store = open_store
        self._in_writer = in_writer
        self._attach = attach
        # The next upload is the next try.
        self._make_patience = make_patience or (lambda: Patience(clock, retry_pauses_s=()))
        self._limiter = trio.CapacityLimiter(1)
        self._database = os.path.realpath(settings.database)
        self._chain: Chain | None = None
        self._is_based = False
        self._shipped_count = 0
        self._broken_count = 0
        self._error: str | None = None
        self._failing_since: float | None = None
        self._base_key = ""
        self._look_mono_ms = 0.0
        self.snapshot_wanted = trio.Event()
        """Set once only a snapshot lets the log go on; a new one for each that does."""
        sweep_log(self._database)

    @property
    def needs_snapshot(self) -> bool:
        """Whether no chain can be restored that goes on: only a backup, or a snapshot of its own, begins one."""
        return self._chain is None or not self._is_based

    def status(self, last_backup_at: float | None) -> LogStatus:
        """How it goes. *last_backup_at*: when the last backup was made, which is what there is without a chain."""
        chain, at = self._chain, last_backup_at
        if chain is not None and self._is_based:
            unshipped_at = chain.unshipped_at
            at = self._clock.now().wall_ms if unshipped_at is None else unshipped_at
        return LogStatus(
            interval=self._settings.log_interval_ms,
            generation=None if chain is None else chain.generation,
            recovery_point_at=at,
            waiting_bytes=0 if chain is None else chain.held_bytes,
            shipped_count=self._shipped_count,
            broken_count=self._broken_count,
            error=self._error,
            failing_since=self._failing_since,
        )

    async def run(self) -> None:
        """Ship every interval. Returns only when cancelled."""
        interval_s = self._settings.log_interval_ms / 1000
        due_s = trio.current_time()
        while True:
            due_s = max(due_s + interval_s, trio.current_time())
            await trio.sleep_until(due_s)
            await self.ship()

    async def ship(self) -> None:
        """Upload what is committed. What cannot be uploaded is kept for the next time, and remembered as a failure.

        Cancel: an upload is there as a whole or not at all, and will be made again.
        """
        chain = self._chain
        if chain is None:
            await trio.lowlevel.checkpoint()
            return
        has_news = chain.unshipped_at is not None
        if chain.broken is None and (has_news or self._is_look_due):
            if has_news:
                await self._seal(chain)
            await self._upload(chain)
        if chain.broken is not None:
            await self._break(chain, chain.broken)
        elif chain.position().at > self._clock.now().wall_ms + BACK_MS:
            await self._break(chain, "the clock was put back")

    async def finish(self, limit_s: float = FINAL_S) -> None:
        """Ship what the last flush has written, and end. Call it with nothing else going on.

        It takes *limit_s* at most, and less where the bucket has not answered before either.
        """
        chain = self._chain
        with trio.move_on_after(min(limit_s, FINAL_S if self._error is None else HOPELESS_S)):
            await self.ship()
        if chain is not None and self._chain is chain:
            if chain.unshipped_at is not None:
                log.warning("The last changes are not in the bucket; the next start makes a backup", error=self._error)
            await self._detach(chain, "the server has stopped")

    def start_key(self) -> str:
        """Where the snapshot goes that the chain begins with; only after `witness`."""
        assert self._chain is not None
        return start_key(self._settings.prefix, self._chain.generation)

    async def witness(self) -> Witness | None:
        """Follows the backup that is made next, and begins a chain where there is none. None: no chain can begin."""
        chain = self._chain
        if chain is None or chain.broken is not None:
            chain = Chain(
                self._database,
                new_generation(self._clock.now().wall_ms, os.urandom(4)),
                lambda: self._clock.now().wall_ms,
                max_bytes=self._settings.log_max_bytes,
            )
            try:
                await self._in_writer(lambda connection: self._begin(chain, connection))
            except StorageError as error:
                self.note_failure(f"The change log cannot begin: {error}")
                return None
            self._chain, self._is_based = chain, False
        return _ChainWitness(self, chain)

    def clean(self, store: ObjectStore, patience: Patience) -> None:
        """Apply the retention. In the thread of a backup. What cannot be deleted is left for the next time."""
        chain = self._chain
        try:
            clean_log(
                store,
                self._settings.prefix,
                patience,
                current=None if chain is None else chain.generation,
                retention=self._settings.retention,
                base=self._base_key,
                interval_ms=self._settings.interval_ms,
            )
        except BackupError as error:
            patience.check()
            log.warning("Failed to clean up the change log", error=str(error))

    def put_base(self, store: ObjectStore, key: str, chain: Chain, low: Position, high: Position) -> None:
        """A backup of *chain* is stored. In the thread of the backup."""
        base = Base(
            snapshot=key,
            generation=chain.generation,
            segment=low.segment,
            holds=low.commit,
            reaches=high.commit,
            at=high.at,
        )
        try:
            put_base(store, self._settings.prefix, base)
        except BackupError as error:
            self.note_failure(f"The change log cannot begin: {error}")
            self._look_soon()  # the retention may take the backup that the chain is restored from so far
            return
        if chain is self._chain:
            self._base_key, self._look_mono_ms = key, self._clock.now().mono_ms + LOOK_PERIOD_MS
            self._is_based, self.snapshot_wanted = True, trio.Event()
            if chain.broken is None:
                self._error = self._failing_since = None

    async def position(self, chain: Chain) -> Position:
        """Exactly where *chain* is."""
        found: list[Position] = []
        await self._in_writer(lambda _connection: found.append(chain.position()))
        return found[0]

    def _begin(self, chain: Chain, connection: apsw.Connection) -> None:
        chain.begin(connection)
        self._attach(chain)

    async def _seal(self, chain: Chain) -> None:
        if chain.sealed_count >= MAX_SEALED:
            return
        until = self._clock.now().wall_ms - 1  # in this very millisecond there may be more
        await trio.to_thread.run_sync(chain.catch_up, limiter=self._limiter)
        await self._in_writer(chain.check_owner)
        await trio.to_thread.run_sync(chain.seal, until, limiter=self._limiter)

    async def _upload(self, chain: Chain) -> None:
        patience, is_gone = self._make_patience(), False

        def work() -> None:
            nonlocal is_gone
            store: ObjectStore | None = None
            while (sealed := chain.next_sealed()) is not None:
                patience.check()
                store = store or self._open_store(self._settings, patience)
                try:
                    key = upload(store, self._settings.prefix, chain.generation, sealed, patience)
                    if self._settings.verify != "off":
                        prove(store, key, sealed, patience)
                except OSError as error:
                    chain.give_up(f"{sealed.path}: {error.strerror}")
                    return
                chain.uploaded(sealed)
                self._shipped_count += 1
            if self._is_look_due:
                is_gone = not self._look_for_base(store or self._open_store(self._settings, patience))

        try:
            await run_stoppable(work, patience, limiter=self._limiter)
        except BackupError as error:
            self.note_failure(f"Changes cannot be uploaded: {error}")
            self._look_soon()  # it may be another bucket of that name which takes them next
        else:
            if is_gone:
                self._is_based = False
                self.note_failure(f"The backup that the change log begins with is gone: {self._base_key}")
                self.snapshot_wanted.set()
            if self._is_based and chain.broken is None:
                self._error = self._failing_since = None

    @property
    def _is_look_due(self) -> bool:
        return self._is_based and self._clock.now().mono_ms >= self._look_mono_ms

    def _look_for_base(self, store: ObjectStore) -> bool:
        """Whether it is still there: another program may have made so many backups that the retention took it."""
        key = self._base_key
        self._look_mono_ms = self._clock.now().mono_ms + LOOK_PERIOD_MS
        return store.look(key) is not None or key != self._base_key

    def _look_soon(self) -> None:
        self._look_mono_ms = self._clock.now().mono_ms

    async def _break(self, chain: Chain, reason: str) -> None:
        self._broken_count += 1
        self.note_failure(f"The change log has ended: {reason}")
        await self._detach(chain, reason)

    async def _detach(self, chain: Chain, reason: str) -> None:
        await trio.to_thread.run_sync(chain.give_up, reason)
        self._chain, self._is_based = None, False
        self.snapshot_wanted.set()
        await self._in_writer(lambda _connection: self._attach(None))

    def note_failure(self, text: str) -> None:
        """Changes are not safe, for that reason."""
        if self._failing_since is None:
            self._failing_since = self._clock.now().wall_ms
        if text != self._error:
            log.warning(text)
        self._error = text


class _ChainWitness:
    """See `Witness`: between which two positions of the chain a backup lies."""

    def __init__(self, changes: ChangeLog, chain: Chain) -> None:
        self._changes = changes
        self._chain = chain
        self._low = self._high = Position(0, 0, 0.0)
        self._token = trio.lowlevel.current_trio_token()  # the thread of a backup is none of Trio's

    def before_copy(self) -> None:
        self._low = self._chain.position()

    def pinned(self) -> None:
        self._high = trio.from_thread.run(self._changes.position, self._chain, trio_token=self._token)

    def stored(self, store: ObjectStore, key: str) -> None:
        self._changes.put_base(store, key, self._chain, self._low, self._high)
