"""The producer of the ledger test: pushes jobs with the published client and writes down each confirmed push.

Usage: python -m tests.peers.ledger_producer PORT QUEUE COUNT LEDGER

The moment of a line is when the push was sent: sent before the server ended and confirmed, it was confirmed by that
run of the server. A push that was refused or not answered is made anew, as another job: ids come from the server, so a
reply lost in a crash leaves at most an unknown extra job.
"""

from __future__ import annotations

import sys
import time

from bunqueue import BunqueueError, Queue

from tests.peers.ledger import Ledger

BLOCK = 5  # so many durable pushes, then so many buffered ones


def main(port: int, queue_name: str, count: int, path: str) -> None:
    """Push until *count* pushes are confirmed."""
    ledger = Ledger(path)
    queue = Queue(queue_name, host="127.0.0.1", port=port)
    for number in range(count):
        durable = number // BLOCK % 2 == 1
        job_id, moment_ns = push(queue, number, durable)
        ledger.note(job_id, "durable" if durable else "buffered", moment_ns)
    queue.close()


def push(queue: Queue, number: int, durable: bool) -> tuple[str, int]:
    """Push until confirmed; the id, and when the confirmed push was sent."""
    while True:
        moment_ns = time.monotonic_ns()
        try:
            job = queue.add("count", {"number": number}, durable=durable or None, attempts=50, backoff=20)
            return job.id, moment_ns
        except BunqueueError:
            time.sleep(0.05)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4])
