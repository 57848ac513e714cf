"""One backup, from the data file to the bucket and, if wanted, back again. Blocks; runs in a thread.

    snapshot   a copy of one moment beside the data file, found sound
    upload     gzip on the fly; the sidecar goes up before the last part, so a cut upload is never listed as a backup
    proof      read back, unpacked, checked
    retention  only after all that: a failed backup never costs an older one

Source: S3 backup and restore, "Taking a backup", BD-1, BD-9, BD-10; R71 to R77, R210, R227, K2, K49.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Protocol

from msgspec import Struct, structs

from bunqueue_trio.backup.checking import SPARE_BYTES, check_database, fetch
from bunqueue_trio.backup.log_naming import is_of_the_log, shared_text, shared_with
from bunqueue_trio.backup.naming import SIDECAR_SUFFIX, iso, key_of, made_at, surplus
from bunqueue_trio.backup.object_store import ObjectStore
from bunqueue_trio.backup.packing import Digest, GzipReader, digest_of
from bunqueue_trio.backup.patience import Patience
from bunqueue_trio.backup.scratch import scratch_path, sweep
from bunqueue_trio.backup.settings import BackupSettings
from bunqueue_trio.backup.sidecar import CONTENT_TYPE, DATA_CONTENT_TYPE, Sidecar, to_object_metadata
from bunqueue_trio.errors import BackupError, DamagedBackupError, UnprovenBackupError
from bunqueue_trio.logs import get_logger
from bunqueue_trio.storage.copying import copy_database
from bunqueue_trio.storage.wal import wal_bytes

if TYPE_CHECKING:
    from bunqueue_trio.clock import Clock

log = get_logger("Backup")

PART_BYTES: Final = 5 << 20  # the least that S3 takes
MAX_PARTS: Final = 9_000  # S3 takes 10,000; what cannot be compressed grows a little
PROVEN_BELOW_BYTES: Final = 1 << 30
ABANDONED_MS: Final = 86_400_000.0
"""A day: no backup may last so long, and clocks may differ."""


class Made(Struct, frozen=True, kw_only=True, gc=False):
    """A backup that is in the bucket. ``made_at`` is the time in its key, epoch ms; sizes are bytes. ``warning`` says
    what is wrong though nothing has failed."""

    key: str
    made_at: float
    size_bytes: int
    packed_bytes: int
    is_proven: bool
    warning: str | None = None


class Witness(Protocol):
    """Follows a backup, so as to know later which moment it shows. Called in the thread that makes it."""

    def before_copy(self) -> None:
        """The moment is to come."""
        ...

    def pinned(self) -> None:
        """The moment is fixed."""
        ...

    def stored(self, store: ObjectStore, key: str) -> None:
        """The backup is in the bucket and, if that is wanted, proven."""
        ...


class Maker:
    """Makes backups of one data file. Whoever calls holds its `BackupLock`.

    Args:
        spared: keys that the retention leaves alone, unless a backup is proven that comes after them.
    """

    def __init__(
        self,
        settings: BackupSettings,
        store: ObjectStore,
        patience: Patience,
        clock: Clock,
        *,
        version: str,
        witness: Witness | None = None,
        spared: Iterable[str] = (),
    ) -> None:
        self._witness = witness
        self._spared = tuple(spared)
        self._settings = settings
        self._database = os.path.realpath(settings.database)
        self._store = store
        self._patience = patience
        self._clock = clock
        self._version = version

    def make(self) -> Made:
        """Make one, and apply the retention.

        Raises:
            BackupError: it is not there, or could not be proven. A damaged one has been deleted again, and so has one
                that the bucket does not list.
            StorageError: the data file cannot be read, or there is no space for a copy of it.
        """
        try:
            made = self._make(None)
        except UnprovenBackupError as error:
            # It is there and may be sound: where nothing can be read back, the bucket must not fill up.
            self._clean_up({*self._spared, error.key})
            raise
        spared = {made.key} if made.is_proven else {*self._spared, made.key}
        return structs.replace(made, warning=self._clean_up(spared, expected=made.key))

    def make_start(self, key: str) -> Made:
        """Make one under *key* that is no backup of its own but what a change log begins with; raises as `make`."""
        try:
            return self._make(key)
        except UnprovenBackupError as error:
            self._take_back(error.key)
            raise

    def _make(self, key: str | None) -> Made:
        check_source(self._settings.database)
        sweep(self._database)
        self._check_space()
        made_at = self._clock.now().wall_ms
        if key is None:
            # Before the work: a bucket that cannot be asked need not be copied for.
            key, made_at = self._free_key(made_at)
        with scratch_path(self._database, "backup", made_at) as path:
            self._copy(path)
            check_database(path, self._patience)
            with open(path, "rb") as file:
                digest = digest_of(file, self._patience.breathe)
            packed_bytes = self._upload(key, path, digest)
        made = Made(
            key=key,
            made_at=made_at,
            size_bytes=digest.size_bytes,
            packed_bytes=packed_bytes,
            is_proven=self._is_proof_wanted(digest),
        )
        if made.is_proven:
            self._prove(made, digest)
        if self._witness is not None:
            self._witness.stored(self._store, key)
        return made

    def _copy(self, path: str) -> None:
        witness = self._witness
        if witness is not None:
            witness.before_copy()
        copy_database(
            self._database,
            path,
            check=self._patience.check,  # no rest: the copy holds the WAL
            pinned=None if witness is None else lambda _connection: witness.pinned(),
        )

    def _check_space(self) -> None:
        """Later, SQLite would say so too, but by then the disk would be full for the server as well."""
        needed = os.stat(self._database).st_size
        with suppress(FileNotFoundError):
            needed += os.stat(self._database + "-wal").st_size
        free = shutil.disk_usage(os.path.dirname(self._database)).free
        if free < needed + SPARE_BYTES:
            raise BackupError(f"Not enough disk space for a snapshot: {needed} bytes needed, {free} free")

    def _free_key(self, wall_ms: float) -> tuple[str, float]:
        """A key that nobody has: the clock may have been put back, or another server share the prefix."""
        while self._store.look(key := key_of(self._settings.prefix, wall_ms)) is not None:
            wall_ms += 1
        return key, wall_ms

    def _upload(self, key: str, path: str, digest: Digest) -> int:
        has_sidecar = False

        def put_sidecar(packed_bytes: int) -> None:
            nonlocal has_sidecar
            has_sidecar = True
            sidecar = Sidecar(
                timestamp=iso(self._clock.now().wall_ms),
                version=self._version,
                size=digest.size_bytes,
                compressed_size=packed_bytes,
                checksum=digest.checksum,
                compressed=True,
            )
            self._store.put(key + SIDECAR_SUFFIX, sidecar.to_json(), content_type=CONTENT_TYPE)

        try:
            with open(path, "rb") as file:
                source = GzipReader(file, check=self._patience.breathe, ended=put_sidecar)
                self._store.put_stream(
                    key,
                    source,
                    content_type=DATA_CONTENT_TYPE,
                    metadata=to_object_metadata(digest.checksum, digest.size_bytes),
                    part_bytes=part_bytes(digest.size_bytes),
                )
            stored = self._store.look(key)
            if stored is None or stored.size_bytes != source.packed_bytes:
                raise DamagedBackupError(f"The bucket has not kept what was uploaded: {key}")
        except BackupError:
            if has_sidecar:
                self._take_back(key)
            raise
        return source.packed_bytes

    def _take_back(self, key: str) -> None:
        with self._patience.parting(), suppress(BackupError):  # a sidecar without data is no backup
            self._store.delete(key)
            self._store.delete(key + SIDECAR_SUFFIX)

    def _is_proof_wanted(self, digest: Digest) -> bool:
        verify = self._settings.verify
        return verify == "on" or (verify == "auto" and digest.size_bytes < PROVEN_BELOW_BYTES)

    def _prove(self, made: Made, digest: Digest) -> None:
        """Read it back.

        Raises:
            UnprovenBackupError: it could not be read, and may be sound.
            DamagedBackupError: it is damaged, and has been deleted again.
        """
        with scratch_path(self._database, "verify", made.made_at) as path:
            try:
                fetched = fetch(self._store, made.key, path, self._patience)
                if fetched.digest != digest:
                    raise DamagedBackupError("it holds other bytes than were uploaded")
            except DamagedBackupError as error:
                self._take_back(made.key)
                raise DamagedBackupError(f"Backup verification failed: {error}") from error
            except BackupError as error:
                self._patience.check()
                raise UnprovenBackupError(f"Backup verification failed: {error}", key=made.key) from error

    def _clean_up(self, spared: set[str], *, expected: str | None = None) -> str | None:
        """Apply the retention; keys of *spared* stay. What cannot be listed or deleted is left for the next time.

        Returns why nothing was deleted, where that is for somebody to put right.

        Raises:
            BackupError: there is a listing, and *expected* is not in it.
        """
        settings = self._settings
        try:
            objects = self._store.list(settings.prefix)
        except BackupError as error:
            self._patience.check()
            log.warning("Failed to clean up old backups", error=str(error))
            return None
        if expected is not None and all(item.key != expected for item in objects):
            # Some stores give another name to what begins with a slash: nobody would find it when it is needed.
            self._take_back(expected)
            raise BackupError(f"The bucket does not list {expected}: choose another S3_BACKUP_PREFIX")
        if generations := shared_with(settings.prefix, objects, settings.interval_ms):
            log.warning(text := shared_text(settings.prefix, generations))
            return text
        for key in surplus(settings.prefix, objects, settings.retention, spared=spared):
            try:
                self._store.delete(key)
            except BackupError as error:
                self._patience.check()
                log.warning("Failed to delete old backup", key=key, error=str(error))
        self._sweep_uploads()
        return None

    def _sweep_uploads(self) -> None:
        """Take back what killed processes have left of uploads, for which stores charge though nobody sees it.

        Only what bears a name of ours, and is so old that nobody can still be at it.
        """
        prefix, before = self._settings.prefix, self._clock.now().wall_ms - ABANDONED_MS
        try:
            for upload in self._store.unfinished(prefix):
                is_ours = made_at(prefix, upload.key) is not None or is_of_the_log(prefix, upload.key)
                if is_ours and upload.begun_at < before:
                    self._store.abandon(upload)
                    log.info("An upload that was never completed has been taken back", key=upload.key)
        except BackupError as error:  # not every store can tell, nor every key pair may ask
            self._patience.check()
            log.debug("Unfinished uploads cannot be swept", error=str(error))


def check_source(database: str) -> None:
    """Make sure that there is something to back up.

    Raises:
        BackupError: there is no file, or nothing in it: a touched or lost one must not push out sound backups.
    """
    try:
        size = os.stat(database).st_size
    except (FileNotFoundError, NotADirectoryError):
        raise BackupError(f"Database file not found: {database}") from None
    except OSError as error:
        raise BackupError(f"{database}: {error.strerror}") from error
    if size == 0 and not wal_bytes(os.path.realpath(database)):
        raise BackupError(f"Database file is empty: {database}")


def part_bytes(size_bytes: int) -> int:
    """The size of the parts of an upload: all but the last have the same, which some stores insist on."""
    mebibyte = 1 << 20
    return max(PART_BYTES, -(-size_bytes // MAX_PARTS // mebibyte) * mebibyte)
