"""An engine over a real file: commits go into SQLite, and a restart reads them back."""

import random
from typing import Any

import apsw
import msgpack
import msgspec

from bunqueue_trio.engine.state import FactsNeededError
from bunqueue_trio.ids import Ids
from bunqueue_trio.model.job import JobRecord
from bunqueue_trio.server.startup import load_engine
from bunqueue_trio.storage import reads, writes
from bunqueue_trio.storage.connection import open_writer
from tests.engine_harness import SECRET, EngineHarness, Flight

MAX_LOOK_UPS = 3  # of the job itself, then of its kin


class Stored(EngineHarness):
    """An engine whose every commit goes into a database in memory."""

    def __init__(self) -> None:
        self.file: apsw.Connection = open_writer(":memory:")
        super().__init__()

    def land(self, flight: Flight, **_: Any) -> None:
        report = writes.apply_batch(self.file, flight.batch, ":memory:")
        super().land(flight, missing=report.missing, kept=report.kept)
        self.engine.forgotten(report.forgotten)

    def ask_file(self, cmd: str, /, **fields: Any) -> Any:
        """A command that may need facts of the file."""
        for _ in range(MAX_LOOK_UPS):
            try:
                reply = self.send(cmd, **fields)
            except FactsNeededError as needed:
                self.engine.find_facts({job_id: reads.find_completed(self.file, job_id) for job_id in needed.ids})
            else:
                self.engine.clear_facts()
                return reply
        raise AssertionError(f"{cmd} asks for the same facts again")

    @staticmethod
    def form(record: JobRecord) -> tuple[str | None, Any]:
        """Name and data of a shown record."""
        shown = msgpack.unpackb(msgspec.msgpack.encode(record), ext_hook=lambda _code, _data: "undefined")
        return shown.get("name"), shown.get("data", "no data")

    def restart(self) -> None:
        """Killed now, and started again."""
        ids = Ids(SECRET, random.Random(2))
        self.engine = load_engine(self.file, ids, self.clock, lease_grace_ms=2_000)
        self.engine.check_invariants()
        self.connect(1)

    def rows(self, table: str, column: str = "job_id") -> list[str]:
        return [name for (name,) in self.file.execute(f"SELECT {column} FROM {table} ORDER BY 1")]

    def run(self, job_id: str, queue: str = "q", **options: Any) -> None:
        """A job that completes with a result."""
        self.push(queue, jobId=job_id, **options)
        pulled = self.pull(queue)
        assert pulled is not None
        self.ack(*pulled, result=job_id)

    def bury(self, job_id: str, queue: str = "q", **options: Any) -> None:
        self.push(queue, jobId=job_id, maxAttempts=1, **options)
        self.fail_next(queue)

    def fail_next(self, queue: str = "q") -> None:
        pulled = self.pull(queue)
        assert pulled is not None
        self.fail(*pulled)
