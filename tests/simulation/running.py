"""Running seeds: one in detail, or any number over all processors."""

from __future__ import annotations

import sys
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

from bunqueue_trio import logs
from bunqueue_trio.storage import connection as db
from tests.simulation.clients import Clients
from tests.simulation.disk import VFS_NAME, Disk, simulated_vfs
from tests.simulation.model import Violation
from tests.simulation.node import PATH
from tests.simulation.simulation import Simulation
from tests.simulation.virtual import virtual_time

SEEDS_AT_ONCE = 50
SILENT = 100


@dataclass
class Outcome:
    """What became of some seeds: failures as they are printed, and the books of all."""

    failures: dict[int, str] = field(default_factory=dict)
    books: Counter[str] = field(default_factory=Counter)

    def add(self, other: Outcome) -> None:
        self.failures.update(other.failures)
        self.books.update(other.books)

    def report(self) -> str:
        """The books in one line."""
        return ", ".join(f"{name} {count}" for name, count in self.books.items())


def run_seeds(seeds: Iterable[int], *, is_verbose: bool = False, stops_at_failure: bool = False) -> Outcome:
    """Live through *seeds*, one after the other, in this process."""
    outcome = Outcome()
    with simulated_vfs() as vfs, virtual_time(), _silence():
        db.close_writer(db.open_writer(PATH, vfs=VFS_NAME))
        template = {name: bytes(content) for name, content in vfs.disk.files.items() if content}
        for seed in seeds:
            simulation = Simulation(seed, vfs, template, is_verbose=is_verbose)
            try:
                Clients(simulation).live()
            except Violation as violation:
                outcome.failures[seed] = simulation.failure(violation)
                if is_verbose:
                    traceback.print_exc()
                if stops_at_failure:
                    break
            outcome.books.update(simulation.books)
            vfs.disk = Disk({})
    return outcome


def run_many(first: int, count: int, jobs: int | None) -> Iterator[Outcome]:
    """The same over several processes; an outcome for every few seeds, in their order."""
    chunks = [
        range(start, min(start + SEEDS_AT_ONCE, first + count)) for start in range(first, first + count, SEEDS_AT_ONCE)
    ]
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(run_seeds, chunks)


@contextmanager
def _silence() -> Iterator[None]:
    """Disks that fail fill the log of the server; errors that SQLite can tell nobody fill ours."""
    before, logs._Settings.threshold = logs._Settings.threshold, SILENT
    hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
    try:
        yield
    finally:
        logs._Settings.threshold, sys.unraisablehook = before, hook
