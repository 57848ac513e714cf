"""What the tests of the client's `Queue` share: one server for a module, a queue per test, a hand that works jobs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from bunqueue import Job, Queue

from tests.process import ServerProcess

MINUTE_MS = 60_000


@pytest.fixture(scope="module")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One server for all tests of a module; each of them works on a queue of its own."""
    with ServerProcess(tmp_path_factory.mktemp("surface")) as server:
        yield server.start()
        server.assert_no_faults()


@pytest.fixture
def queue(shared_server: ServerProcess, request: pytest.FixtureRequest) -> Iterator[Queue]:
    """A `Queue` of the published client, named after the test."""
    name = re.sub(r"\W+", "-", request.node.name)
    with Queue(name, host="127.0.0.1", port=shared_server.tcp_port, command_timeout=60) as queue:
        yield queue


def try_pull(queue: Queue, **fields: Any) -> Job | None:
    """Lease the next job of *queue* as a worker does; None when nothing is ready."""
    command = {"cmd": "PULL", "queue": queue.name, "owner": "by hand", "timeout": 0, **fields}
    reply = queue.connection.call(command)
    return Job(reply["job"], queue.connection, token=reply["token"]) if reply.get("job") else None


def pull(queue: Queue, **fields: Any) -> Job:
    """Lease the next job of *queue*, which must be there."""
    job = try_pull(queue, **fields)
    assert job is not None, f"nothing to pull from {queue.name}"
    return job


def complete(queue: Queue, result: Any = None) -> str:
    """Pull the next job and complete it; its id."""
    job = pull(queue)
    queue.move_job_to_completed(job.id, result, job.token)
    return job.id


def bury(queue: Queue, error: str = "boom", **options: Any) -> str:
    """Push a job with one attempt, pull it and fail it; its id."""
    added = queue.add("n", {}, attempts=1, **options)
    job = pull(queue)
    assert job.id == added.id
    queue.move_job_to_failed(job.id, error, job.token)
    return job.id


def ids_of(jobs: list[Job]) -> list[str]:
    """The ids, in their order."""
    return [job.id for job in jobs]
