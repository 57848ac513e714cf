"""Every published client makes jobs for every other: name and data as each of them can know them.

Source: newer clients 3.2 and 17.1.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import pytest
from bunqueue import Job, Queue, Worker

from tests.peers.npm import PROGRAMS, Program
from tests.peers.packages import NEWEST, OLDER
from tests.process import ServerProcess, wait_until

pytestmark = pytest.mark.slow

PEERS = ("newest", "older", "python")
PAYLOADS: dict[str, Any] = {
    "map": {"to": "ada"},
    "own-name": {"name": "Bob", "to": "ada"},
    "list": [1, "two"],
    "null": None,
    "missing": None,  # Python has no way to leave data out
}
Seen = dict[str, tuple[str | None, Any]]
MISSING = "no data"

# What clients of protocol 2 push has the name among the data, where the user's own takes its place; what is no map
# becomes one. Every worker finds the name there.
ENVELOPES: dict[str, dict[str, tuple[str, dict[str, Any]]]] = {
    "older": {
        "map": ("send", {"to": "ada"}),
        "own-name": ("Bob", {"to": "ada"}),
        "list": ("send", {"0": 1, "1": "two"}),
        "null": ("send", {}),
        "missing": ("send", {}),
    },
    "python": {
        "map": ("send", {"to": "ada"}),
        "own-name": ("Bob", {"to": "ada"}),
        "list": ("send", {"payload": [1, "two"]}),
        "null": ("send", {}),
        "missing": ("send", {}),
    },
}
# The newest client pushes name and data apart. Names of jobs whose data has no room for one are beyond protocol 2.
APART: dict[str, dict[str, tuple[str | None, Any]]] = {
    "newest": {
        "map": ("send", {"to": "ada"}),
        "own-name": ("send", {"name": "Bob", "to": "ada"}),
        "list": ("send", [1, "two"]),
        "null": ("send", None),
        "missing": ("send", MISSING),
    },
    "older": {
        "map": ("send", {"to": "ada"}),
        "own-name": ("Bob", {"to": "ada"}),
        "list": ("default", {"0": 1, "1": "two"}),
        "null": ("default", None),
        "missing": ("default", MISSING),
    },
    "python": {
        "map": ("send", {"name": "send", "to": "ada"}),
        "own-name": ("Bob", {"name": "Bob", "to": "ada"}),
        "list": (None, [1, "two"]),
        "null": (None, None),
        "missing": (None, MISSING),
    },
}


@pytest.fixture(scope="module")
def seen(packages: None, shared_server: ServerProcess) -> Seen:
    """Name and data of each job as its worker saw them, by job id: producer-to-worker-kind-method."""
    with ExitStack() as running:
        programs = [
            running.enter_context(Program(shared_server, version, PROGRAMS / "pairing.ts", peer, *PEERS))
            for peer, version in (("newest", NEWEST), ("older", OLDER))
        ]
        seen = python_peer(shared_server.tcp_port)
        for program in programs:
            *jobs, last = program.finish()
            assert last == {"errors": []}
            seen |= {job["id"]: (job.get("name"), job.get("data", MISSING)) for job in jobs}
    return seen


def python_peer(port: int) -> Seen:
    """Do what pairing.ts does, with the Python client."""
    seen: Seen = {}
    completed: list[str] = []

    def process(job: Job) -> dict[str, str]:
        seen[job.id] = (job.name, job.raw.get("data", MISSING))
        return {"by": "python"}

    address: dict[str, Any] = {"host": "127.0.0.1", "port": port}
    workers = [Worker(f"{peer}-to-python", process, poll_timeout_ms=100, **address) for peer in PEERS]
    for worker in workers:
        worker.on("completed", lambda job, _result: completed.append(job.id))
    for peer in PEERS:
        with Queue(f"python-to-{peer}", **address) as queue:
            for kind, data in PAYLOADS.items():
                queue.add("send", data, job_id=f"{queue.name}-{kind}-add")
            queue.add_bulk(
                [
                    {"name": "send", "data": data, "job_id": f"{queue.name}-{kind}-bulk"}
                    for kind, data in PAYLOADS.items()
                ]
            )
    wait_until(lambda: len(completed) == len(PEERS) * len(PAYLOADS) * 2, "the Python workers have done their jobs")
    for worker in workers:
        worker.close()
    return seen


def seen_from(seen: Seen, producer: str, worker: str, method: str) -> dict[str, tuple[str | None, Any]]:
    return {kind: seen.get(f"{producer}-to-{worker}-{kind}-{method}", ("never", "seen")) for kind in PAYLOADS}


@pytest.mark.parametrize("method", ["add", "bulk"])
@pytest.mark.parametrize("worker", PEERS)
def test_jobs_of_the_newest_client(seen: Seen, worker: str, method: str) -> None:
    assert seen_from(seen, "newest", worker, method) == APART[worker]


@pytest.mark.parametrize("method", ["add", "bulk"])
@pytest.mark.parametrize("worker", PEERS)
@pytest.mark.parametrize("producer", ["older", "python"])
def test_jobs_of_clients_of_protocol_2(seen: Seen, producer: str, worker: str, method: str) -> None:
    """The npm clients take the name out of the data, the Python client leaves it there."""
    assert seen_from(seen, producer, worker, method) == {
        kind: (name, {"name": name, **data} if worker == "python" else data)
        for kind, (name, data) in ENVELOPES[producer].items()
    }


def test_a_worker_that_writes_back_what_it_was_given_keeps_the_job_as_it_is(queue: Queue) -> None:
    """The name that a Python worker finds among the data does not stay there when it updates them (NC-2)."""
    call = queue.connection.call
    job_id = call({"cmd": "PUSH", "queue": queue.name, "name": "send", "data": {"to": "ada"}})["id"]
    job = queue.get_job(job_id)
    assert job is not None
    assert (job.name, job.data) == ("send", {"name": "send", "to": "ada"})

    job.update_data(job.data | {"copies": 2})

    call({"cmd": "Hello", "protocolVersion": 3})
    stored = call({"cmd": "GetJob", "id": job_id})["job"]
    assert (stored["name"], stored["data"]) == ("send", {"to": "ada", "copies": 2})
