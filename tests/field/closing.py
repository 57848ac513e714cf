"""The closing check of every scenario, and small helpers that several of them need."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Collection, Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import msgpack

from tests.process import Client, ServerProcess

QUEUED = frozenset({"waiting", "prioritized", "delayed"})


def check_closing(server: ServerProcess, queues: Iterable[str], accepted: Collection[str]) -> None:
    """Sum of all states = jobs accepted; each id in one state only; after one more SIGTERM restart the same picture; no
    traceback in the log. Stops the server.

    Args:
        accepted: ids of all jobs that should still be known.
    """
    names = list(queues)
    before = _picture(server, names, accepted)
    server.restart()
    after = _picture(server, names, accepted)
    assert after == before
    assert server.terminate() == 0
    _check_file(server.data_path, before[0])
    server.assert_no_faults()


def _picture(
    server: ServerProcess, queues: list[str], accepted: Collection[str]
) -> tuple[dict[str, str], dict[str, int]]:
    """State of each job and number of jobs by state. Time moves jobs among the queued states, so these are one here."""
    with server.connect() as client:
        replies = client.call_many([{"cmd": "GetState", "id": job_id} for job_id in accepted])
        states = {reply["id"]: _coarse(reply["state"]) for reply in replies}
        counts: Counter[str] = Counter()
        for name in queues:
            for state, count in client.ok("GetJobCounts", queue=name)["counts"].items():
                counts[_coarse(state)] += count
    assert "unknown" not in states.values()
    assert len(states) == len(accepted)
    assert Counter(states.values()) == +counts
    return states, dict(+counts)


def _coarse(state: str) -> str:
    return "queued" if state in QUEUED or state == "paused" else state


def _check_file(path: Path, states: dict[str, str]) -> None:
    """Each id is in one place of the file, and in the one that its state says."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        rows = [(job_id, _coarse(state)) for job_id, state in connection.execute("SELECT id, state FROM jobs")]
        letters = [job_id for (job_id,) in connection.execute("SELECT job_id FROM dlq")]
    assert len(letters) == len(set(letters))
    assert sorted(letters) == sorted(job_id for job_id, state in states.items() if state == "failed")
    assert dict(rows) == {job_id: state for job_id, state in states.items() if state != "failed"}


def dead_letters(server: ServerProcess) -> dict[str, dict[str, Any]]:
    """The entries of the file, by job id; with all that the wire does not show."""
    with closing(sqlite3.connect(f"file:{server.data_path}?mode=ro", uri=True)) as connection:
        found = connection.execute("SELECT job_id, entry FROM dlq").fetchall()
    return {job_id: msgpack.unpackb(entry) for job_id, entry in found}


def pull(
    client: Client, queue: str = "q", *, timeout: int = 0, lock_ttl: int = 60_000
) -> tuple[dict[str, Any], str] | None:
    """One leased job and its token, or None."""
    reply = client.ok("PULL", queue=queue, owner="w", timeout=timeout, lockTtl=lock_ttl)
    return None if reply["job"] is None else (reply["job"], reply["token"])


def must_pull(
    client: Client, queue: str = "q", *, timeout: int = 30_000, lock_ttl: int = 60_000
) -> tuple[dict[str, Any], str]:
    """One leased job and its token; there must be one within *timeout* ms."""
    pulled = pull(client, queue, timeout=timeout, lock_ttl=lock_ttl)
    assert pulled is not None
    return pulled


def work_off(client: Client, queue: str = "q") -> list[str]:
    """Pull and complete whatever is ready; the ids."""
    ids = []
    while (pulled := pull(client, queue)) is not None:
        ids.append(pulled[0]["id"])
        client.ok("ACK", id=ids[-1], token=pulled[1])
    return ids
