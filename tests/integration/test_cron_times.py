"""How exactly the jobs of crons are there, measured by a worker that waits for them over a real socket.

The bound is on the median, and the best of some rounds counts, so that a machine with something else to do may be late
now and then. Each run is that of a
cron of its own, which fires once: so it is known for which moment a job was meant, however late it comes.

Source: requirements on crons; R178.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Any

import pytest

from tests.process import ServerProcess

FIRINGS = 20
MEDIAN_MS = 20.0
ROUNDS = 4
WORST_MS = 5_000.0  # a machine that is stuck for so long shows nothing about the server


def intervals() -> list[dict[str, Any]]:
    return [{"repeatEvery": 1_000 + 200 * number} for number in range(FIRINGS)]


def seconds() -> list[dict[str, Any]]:
    start = int(time.time()) + 2
    return [{"schedule": f"{(start + number) % 60} * * * * *"} for number in range(FIRINGS // 3)]


def lateness(server: ServerProcess, timings: list[dict[str, Any]]) -> list[float]:
    """For each run, how many ms after its time a pull that waited had its job in hand."""
    found = []
    with server.connect() as worker, server.connect() as admin:
        definition = {"queue": "q", "maxLimit": 1, "preventOverlap": False}
        admin.call_many([{"cmd": "CronDelete", "name": f"c{number}"} for number in range(FIRINGS)])
        commands = [
            {"cmd": "Cron", "name": f"c{number}", "data": number, **definition, **timing}
            for number, timing in enumerate(timings)
        ]
        due = [reply["cron"]["nextRun"] for reply in admin.call_many(commands)]
        for _ in timings:
            reply = worker.ok("PULL", queue="q", owner="w", timeout=30_000)
            found.append(time.time() * 1_000 - due[reply["job"]["data"]])
            worker.ok("ACK", id=reply["job"]["id"], token=reply["token"])
    return found


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.parametrize("timings", [intervals, seconds])
def test_a_job_is_in_the_hands_of_a_worker_within_20_ms_of_its_time(tmp_path: Path, timings) -> None:
    medians = []
    with ServerProcess(tmp_path).start() as server:
        for _ in range(ROUNDS):
            late = lateness(server, timings())
            assert min(late) >= 0, "before its time"
            assert max(late) <= WORST_MS, late
            medians.append(statistics.median(late))
            if medians[-1] <= MEDIAN_MS:
                break
        server.assert_no_faults()

    assert medians[-1] <= MEDIAN_MS, medians
