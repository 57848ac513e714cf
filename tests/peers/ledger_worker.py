"""A worker of the ledger test: the published Worker, which writes down each run and each confirmed ACK.

Usage: python -m tests.peers.ledger_worker PORT QUEUE LEDGER

Runs until its standard input is closed.
"""

from __future__ import annotations

import sys
import time

from bunqueue import Job, Worker

from tests.peers.ledger import Ledger


def main(port: int, queue_name: str, path: str) -> None:
    """Work until told to stop."""
    ledger = Ledger(path)

    def process(job: Job) -> dict[str, int]:
        ledger.note(job.id, f"run:{job.attempts}")
        number = job.data["number"]
        time.sleep(0.1 if number % 10 == 0 else 0.01)
        return {"number": number}

    worker = Worker(
        queue_name, process, host="127.0.0.1", port=port, concurrency=8, poll_timeout_ms=1_000, heartbeat_interval_s=1
    )
    worker.on("completed", lambda job, _result: ledger.note(job.id, "ack"))
    sys.stdin.read()
    worker.close(timeout=20)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3])
