"""A data file whose change log is shipped by hand: commits, checkpoints, backups and uploads in any order."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw

from bunqueue_trio.backup.chain import Chain, Position
from bunqueue_trio.backup.log_naming import Base, LogListing, sort_out, start_key
from bunqueue_trio.backup.making import Maker
from bunqueue_trio.backup.object_store import ObjectStore
from bunqueue_trio.backup.replaying import Reached, restore_to
from bunqueue_trio.backup.shipping import put_base, upload
from bunqueue_trio.clock import ManualClock
from bunqueue_trio.storage import connection as db
from tests.backup.fakes import FakeObjectStore, patience, settings

PREFIX = "backups/"
Dump = dict[str, list[tuple[Any, ...]]]


class LogRig:
    """One writer, one chain, one bucket; each commit has a millisecond of its own.

    ``states`` holds what every table held at each commit, by the time of the commit.
    """

    def __init__(self, path: Path, store: FakeObjectStore, clock: ManualClock, *, max_bytes: int = 1 << 30) -> None:
        self.path = path
        self.store = store
        self.clock = clock
        self.max_bytes = max_bytes
        self.states: dict[float, Dump] = {}
        self.writer = db.open_writer(str(path))
        self.writer.set_wal_hook(self._note)
        self.chain = self.begin("generation-1")

    def begin(self, generation: str) -> Chain:
        """A new chain."""
        self.clock.advance(2)
        self.chain = Chain(str(self.path), generation, self._wall_ms, max_bytes=self.max_bytes)
        self.chain.begin(self.writer)
        return self.chain

    def commit(self, *statements: str) -> float:
        """One transaction; when it was."""
        self.clock.advance(2)
        with self.writer:
            for statement in statements:
                self.writer.execute(statement)
        self.states[at := self._wall_ms()] = dump(self.path)
        return at

    def add(self, name: str, size: int = 10) -> float:
        """A commit that adds a row."""
        return self.commit(f"INSERT INTO bqt_meta VALUES ('{name}', randomblob({size}))")

    def checkpoint(self, mode: db.CheckpointMode = "TRUNCATE") -> None:
        """As the store does it."""
        self.chain.catch_up()
        db.checkpoint(self.writer, mode, wait_ms=0)

    def seal(self) -> None:
        """End the segment."""
        self.clock.advance(2)
        self.chain.catch_up()
        self.chain.check_owner(self.writer)
        self.chain.seal(self._wall_ms() - 1)

    def ship(self) -> None:
        """Upload all there is."""
        self.seal()
        while (sealed := self.chain.next_sealed()) is not None:
            upload(self.store, PREFIX, self.chain.generation, sealed, patience())
            self.chain.uploaded(sealed)

    def back_up(
        self,
        *,
        before: Callable[[], Any] = lambda: None,
        during: Callable[[], Any] = lambda: None,
        retention: int = 7,
        start: bool = False,
    ) -> str:
        """A backup that the chain can be continued from, or with *start* a snapshot of its own that it begins with.

        *before* runs just before its moment is fixed, *during* while it is copied. Its key.
        """
        self.clock.advance(2)
        witness = _Witness(self.chain, before, during)
        maker = Maker(
            settings(self.path, retention=retention), self.store, patience(), self.clock, version="1", witness=witness
        )
        return (maker.make_start(start_key(PREFIX, self.chain.generation)) if start else maker.make()).key

    def restore(self, at: float | None, target: Path) -> Reached:
        """Make *target* what the file was at that time."""
        self.clock.advance(2)  # what was there before is kept under a name with the time
        return restore_to(self.store, PREFIX, at, str(target), patience(), self.clock)

    def listing(self) -> LogListing:
        """What is in the bucket."""
        return sort_out(PREFIX, self.store.list(PREFIX))

    def segment_keys(self) -> list[str]:
        """In their order, of all chains."""
        return [name.key for names in self.listing().segments.values() for name in names]

    def close(self) -> None:
        """As a server that stops."""
        self.chain.give_up("the end")
        self.writer.close(True)

    def _note(self, _connection: apsw.Connection, _name: str, frames: int) -> int:
        self.chain.note(frames)
        return apsw.SQLITE_OK

    def _wall_ms(self) -> float:
        return self.clock.now().wall_ms


class _Witness:
    def __init__(self, chain: Chain, before: Callable[[], Any], during: Callable[[], Any]) -> None:
        self._chain = chain
        self._before = before
        self._during = during
        self._low = self._high = Position(0, 0, 0.0)

    def before_copy(self) -> None:
        self._low = self._chain.position()
        self._before()

    def pinned(self) -> None:
        self._high = self._chain.position()
        self._during()

    def stored(self, store: ObjectStore, key: str) -> None:
        low, high, generation = self._low, self._high, self._chain.generation
        base = Base(
            snapshot=key, generation=generation, segment=low.segment, holds=low.commit, reaches=high.commit, at=high.at
        )
        put_base(store, PREFIX, base)


def dump(path: Path) -> Dump:
    """Every row of every table, by the table's name."""
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
    try:
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        tables = connection.execute("SELECT name, wr FROM pragma_table_list WHERE schema = 'main' AND type = 'table'")
        found: Dump = {}
        for name, has_no_rowid in tables.fetchall():
            columns = "*" if has_no_rowid else "rowid, *"
            found[name] = sorted(connection.execute(f'SELECT {columns} FROM "{name}"').fetchall(), key=repr)
        return found
    finally:
        connection.close(True)
