"""The command ``backup``: works on the data file and the bucket itself, and needs no server.

Prints the message and the data as JSON, or with ``--json`` both in one object. Exit code 0, or 1 for everything else.

Source: S3 backup and restore, "Command line", BD-3, BD-6, BD-12; R215 to R220, R334 to R343, K5.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import click
import msgspec
import outcome
import trio
from msgspec import Struct, structs

from bunqueue_trio import __version__, logs
from bunqueue_trio.backup.keeper import Backups
from bunqueue_trio.backup.log_naming import shared_text, shared_with
from bunqueue_trio.backup.naming import iso, made_at, newest_first, parse_moment
from bunqueue_trio.backup.object_store import ObjectStore, StoredObject
from bunqueue_trio.backup.patience import Patience
from bunqueue_trio.backup.record import BackupLock, read_record, write_record
from bunqueue_trio.backup.replaying import Reached, Span, rehearse_to, restore_to, spans
from bunqueue_trio.backup.restoring import Restored, rehearse, restore
from bunqueue_trio.backup.settings import BackupSettings
from bunqueue_trio.backup.stopping import run_stoppable
from bunqueue_trio.clock import Clock, SystemClock
from bunqueue_trio.config import SETTINGS, Config
from bunqueue_trio.errors import BackupError, ConfigError, StorageError
from bunqueue_trio.model.backup import BackupRecord

T = TypeVar("T")
MEGABYTE = 1_048_576
MAX_MINUTES = 1e9
LATEST = "latest"
SUBCOMMANDS = "now, list, restore, status"  # Wire: the text is the reference's; `verify` is ours


class Outcome(Struct, frozen=True):
    """What a call has come to. ``is_usage``: said on stderr, as the call was wrong."""

    is_success: bool
    message: str
    data: Any = None
    is_usage: bool = False


class Interrupted(Exception):
    """A signal has ended the command; its number."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


_UNCONFIRMED = Outcome(
    False,
    "Restore will OVERWRITE the current database. Use --force (-f) to confirm.\n"
    "WARNING: Stop the server before restoring!",
)


class BackupCommand:
    """One call of the command.

    Args:
        open_store: makes the store; tests pass one in memory.
    """

    def __init__(
        self, environ: Mapping[str, str], clock: Clock, open_store: Callable[[BackupSettings, Patience], ObjectStore]
    ) -> None:
        self._environ = environ
        self._clock = clock
        self._open_store = open_store

    def run(self, arguments: Sequence[str]) -> Outcome:
        """Carry out ``backup *arguments``; ``--json`` is none of them."""
        arguments, moment = _take_moment(arguments)
        is_forced = bool({"-f", "--force"} & set(arguments))
        words = [word for word in arguments if not word.startswith("-")]
        try:
            settings = self._settings()
        except ConfigError as error:
            return _refused("S3 configuration invalid:", error.problems)
        if not settings.has_database or not (self._names_database or os.path.exists(settings.database)):
            return Outcome(False, "BUNQUEUE_DATA_PATH not set. Backup requires persistent storage.")
        if problems := settings.problems():
            return _refused("S3 configuration invalid:", problems)
        name, key = [*words, "", ""][:2]
        if moment is not None:
            return self._to_moment(settings, name, key, moment, is_forced=is_forced)
        if name in ("restore", "verify") and not key:
            return Outcome(False, "Error: Missing required argument: backup-key", is_usage=True)
        calls: dict[str, Callable[[], Outcome]] = {
            "now": partial(self._now, settings),
            "create": partial(self._now, settings),
            "list": partial(self._list, settings),
            "restore": partial(self._restore, settings, key, is_forced=is_forced),
            "verify": partial(self._verify, settings, key),
            "status": partial(self._status, settings),
        }
        if name not in calls:
            text = f"Error: Unknown backup subcommand: {name or 'undefined'}. Use: {SUBCOMMANDS}"
            return Outcome(False, text, is_usage=True)
        return calls[name]()

    def _settings(self) -> BackupSettings:
        """Only what concerns backups is read: a wrong port is no reason not to restore."""
        names = {
            name
            for setting in SETTINGS
            if setting.field == "data_path" or setting.field.startswith("s3_")
            for name in (setting.variable, *setting.aliases)
        }
        mine = {name: value for name, value in self._environ.items() if name in names}
        return BackupSettings.of(Config.from_environment(mine))

    @property
    def _names_database(self) -> bool:
        (setting,) = (setting for setting in SETTINGS if setting.field == "data_path")
        return setting.find(self._environ, {})[1] is not None

    def _now(self, settings: BackupSettings) -> Outcome:
        began = self._clock.now()

        async def make() -> Any:
            backups = Backups(
                settings,
                self._clock,
                self._open_store,
                version=__version__,
                make_patience=lambda: Patience(self._clock),
            )
            return await backups.make()

        try:
            made = _run(make)
        except (BackupError, StorageError) as error:
            return Outcome(False, f"Backup failed: {error}")
        data = {"key": made.key, "size": _size(made.size_bytes), "duration": self._since(began.mono_ms)}
        return Outcome(True, "Backup created successfully", {**data, "proven": made.is_proven})

    def _list(self, settings: BackupSettings) -> Outcome:
        try:
            found = self._in_thread(settings, lambda store, _patience: self._listed(settings, store))
        except BackupError as error:
            return Outcome(False, f"Backup list failed: {error}")
        message = f"Found {len(found)} backup(s)" if found else "No backups found"
        self._show_spans(settings)
        return Outcome(True, message, [self._shown(item) for item in found])

    def _show_spans(self, settings: BackupSettings) -> None:
        """On stderr: the data is the list, as scripts know it."""
        try:
            found = self._in_thread(settings, lambda store, _patience: self._spans(settings, store))
        except BackupError as error:
            click.echo(f"The change log cannot be read: {error}", err=True)
            return
        for span in found:
            click.echo(f"Any moment from {iso(span.start)} to {iso(span.end)} can be restored (--to)", err=True)
            if span.gap is not None:
                click.echo(f"  {span.gap}", err=True)

    def _restore(self, settings: BackupSettings, key: str, *, is_forced: bool) -> Outcome:
        if not is_forced:
            return _UNCONFIRMED
        began = self._clock.now()
        try:
            restored = self._in_thread(
                settings, lambda store, patience: restore(store, key, settings.database, patience, self._clock)
            )
        except (BackupError, StorageError) as error:
            return Outcome(False, f"Restore failed: {error}")
        _tell_of(restored)
        data = {"key": key, "size": _size(restored.size_bytes), "duration": self._since(began.mono_ms)}
        return Outcome(True, "Restore completed successfully", data)

    def _to_moment(self, settings: BackupSettings, name: str, key: str, moment: str, *, is_forced: bool) -> Outcome:
        if name not in ("restore", "verify") or key:
            return Outcome(False, "Error: --to belongs to `restore` and `verify`, without a key", is_usage=True)
        try:
            at = None if moment.lower() == LATEST else parse_moment(moment)
        except ValueError:
            text = f"Error: --to takes {LATEST}, a time such as 2026-11-30T12:00:00Z, or ms since 1970, not {moment!r}"
            return Outcome(False, text, is_usage=True)
        if name == "restore" and not is_forced:
            return _UNCONFIRMED
        began = self._clock.now()
        way = restore_to if name == "restore" else rehearse_to

        def reach(store: ObjectStore, patience: Patience) -> Reached:
            _warn_if_shared(settings, store)
            return way(store, settings.prefix, at, settings.database, patience, self._clock, tell=_warn)

        try:
            reached = self._in_thread(
                settings,
                reach,
            )
        except (BackupError, StorageError) as error:
            return Outcome(False, f"{'Restore' if name == 'restore' else 'Verification'} failed: {error}")
        if reached.restored is not None:
            _tell_of(reached.restored)
        data = {
            "key": reached.snapshot,
            "size": _size(reached.size_bytes),
            "duration": self._since(began.mono_ms),
            "lastCommit": iso(reached.at),
            "commits": reached.commit_count,
        }
        return Outcome(True, "Restore completed successfully" if reached.restored else "Backup can be restored", data)

    def _verify(self, settings: BackupSettings, key: str) -> Outcome:
        began = self._clock.now()
        try:
            fetched = self._in_thread(
                settings, lambda store, patience: rehearse(store, key, settings.database, patience, self._clock)
            )
        except (BackupError, StorageError) as error:
            return Outcome(False, f"Verification failed: {error}")
        if not fetched.is_verified:
            _warn_unverified()
        elif (at := made_at(settings.prefix, key)) is not None:
            self._remember_proof(settings, key, at)
        data = {"key": key, "size": _size(fetched.digest.size_bytes), "duration": self._since(began.mono_ms)}
        return Outcome(True, "Backup can be restored", data)

    def _remember_proof(self, settings: BackupSettings, key: str, at: float) -> None:
        """A backup that has been rehearsed is as proven as one that the server has read back."""
        with suppress(BackupError, OSError), BackupLock.acquire(settings.database):
            record = read_record(settings.database)
            if record.last_proven_at is None or record.last_proven_at < at:
                write_record(settings.database, structs.replace(record, last_proven_at=at, last_proven_key=key))

    def _status(self, settings: BackupSettings) -> Outcome:
        data: dict[str, Any] = {
            "enabled": settings.is_enabled,
            "bucket": settings.bucket,
            "endpoint": settings.endpoint or "AWS S3",
            "interval": f"{(settings.interval_ms + 30_000) // 60_000} minutes",
            "retention": f"{settings.retention} backups",
            "verify": settings.verify,
            **self._remembered(read_record(settings.database)),
        }
        try:
            found, moments = self._in_thread(
                settings,
                lambda store, _patience: (self._listed(settings, store), self._spans(settings, store)),
            )
        except BackupError as error:
            click.echo(f"The bucket cannot be listed: {error}", err=True)
        else:
            data["lastBackup"] = self._shown(found[0]) if found else None
            data["pointInTime"] = self._reaches(moments[0]) if moments else None
        return Outcome(True, "Backup configuration", data)

    def _reaches(self, span: Span) -> dict[str, Any]:
        return {"from": iso(span.start), "to": iso(span.end), "age": self._age(span.end), "gap": span.gap}

    def _remembered(self, record: BackupRecord) -> dict[str, Any]:
        proven, attempt = record.last_proven_at, record.last_attempt_at
        return {
            "lastProven": None
            if proven is None
            else {"key": record.last_proven_key, "date": iso(proven), "age": self._age(proven)},
            "lastAttempt": None if attempt is None else {"date": iso(attempt), "error": record.error},
        }

    def _listed(self, settings: BackupSettings, store: ObjectStore) -> list[StoredObject]:
        return newest_first(settings.prefix, store.list(settings.prefix))

    def _spans(self, settings: BackupSettings, store: ObjectStore) -> list[Span]:
        _warn_if_shared(settings, store)
        return spans(store, settings.prefix, tell=_warn)

    def _shown(self, item: StoredObject) -> dict[str, Any]:
        """Wire: ``size`` is that of the stored object."""
        at = item.modified_at or 0.0
        return {"key": item.key, "size": _size(item.size_bytes), "date": iso(at), "age": self._age(at)}

    def _in_thread(self, settings: BackupSettings, work: Callable[[ObjectStore, Patience], T]) -> T:
        """So that a signal ends a request that hangs."""
        patience = Patience(self._clock)
        done: list[T] = []

        async def run() -> None:
            await run_stoppable(lambda: done.append(work(self._open_store(settings, patience), patience)), patience)

        try:
            _run(run)
        except Interrupted:
            if not done:
                raise  # or else it came too late: the data file may have been replaced, and that is to be said
        return done[0]

    def _since(self, mono_ms: float) -> str:
        return f"{self._clock.now().mono_ms - mono_ms:.0f}ms"

    def _age(self, wall_ms: float) -> str:
        minutes = int(min(max(0.0, (self._clock.now().wall_ms - wall_ms) / 60_000), MAX_MINUTES))
        days, hours = minutes // 1440, minutes // 60 % 24
        return f"{days}d {hours}h" if days else f"{hours}h {minutes % 60}m" if hours else f"{minutes}m"


def run_backup(arguments: Sequence[str]) -> int:
    """Carry out ``backup *arguments`` of the command line; the exit code."""
    from bunqueue_trio.backup.s3 import S3Store

    logs.configure("warn")
    is_json = "--json" in arguments
    command = BackupCommand(os.environ, SystemClock(), S3Store)
    try:
        outcome = command.run([word for word in arguments if word != "--json"])
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except Interrupted as error:
        return 128 + error.number
    if is_json:
        answer = {"success": outcome.is_success, "message": outcome.message}
        click.echo(_json(answer if not outcome.is_success else {**answer, "data": outcome.data}))
    else:
        click.echo(outcome.message, err=outcome.is_usage)
        if outcome.is_success:
            click.echo(_json(outcome.data))
    sys.stdout.flush()
    return 0 if outcome.is_success else 1


def _run(work: Callable[[], Awaitable[T]]) -> T:
    """Run *work*; a signal cancels it, so that it takes back what it has begun and leaves nothing beside the data file.

    Raises:
        Interrupted: a signal came before it had ended.
    """
    captured: outcome.Outcome[T] | None = None
    received = 0

    async def watch(scope: trio.CancelScope, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        nonlocal received
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            task_status.started()
            async for number in signals:
                received = number
                scope.cancel(reason="a signal has come")

    async def main() -> None:
        nonlocal captured
        async with trio.open_nursery() as nursery:
            scope = trio.CancelScope()
            await nursery.start(watch, scope)
            with scope:
                try:
                    captured = outcome.Value(await work())
                except (BackupError, StorageError) as error:
                    captured = outcome.Error(error)
            nursery.cancel_scope.cancel(reason="the work has ended")

    trio.run(main)
    if captured is None:
        raise Interrupted(received)
    return captured.unwrap()


def _refused(head: str, problems: list[str]) -> Outcome:
    return Outcome(False, "\n".join([head, *(f"  - {problem}" for problem in problems)]))


def _take_moment(arguments: Sequence[str]) -> tuple[list[str], str | None]:
    """The arguments without ``--to``, and its value."""
    rest: list[str] = []
    moment: str | None = None
    words = iter(arguments)
    for word in words:
        if word == "--to":
            moment = next(words, "")
        elif word.startswith("--to="):
            moment = word.removeprefix("--to=")
        else:
            rest.append(word)
    return rest, moment


def _tell_of(restored: Restored) -> None:
    if not restored.is_verified:
        _warn_unverified()
    if restored.kept_as is not None:
        click.echo(f"The database as it was is kept as {restored.kept_as}", err=True)
    click.echo("Start the server to load it.", err=True)


def _warn(text: str) -> None:
    click.echo(f"WARNING: {text}", err=True)


def _warn_if_shared(settings: BackupSettings, store: ObjectStore) -> None:
    if generations := shared_with(settings.prefix, store.list(settings.prefix), settings.interval_ms):
        _warn(shared_text(settings.prefix, generations))


def _warn_unverified() -> None:
    click.echo("WARNING: there is no checksum to compare with; only the database itself was checked", err=True)


def _json(data: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(data), indent=2).decode()


def _size(size_bytes: int) -> str:
    return f"{size_bytes / MEGABYTE:.2f} MB"
