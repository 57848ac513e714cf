"""The command lines of both npm packages against a real server.

Source: newer clients 15 and 17.7.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.peers.npm import run_cli
from tests.peers.packages import NEWEST, OLDER
from tests.process import ServerProcess

pytestmark = pytest.mark.slow

Cli = Callable[..., str]


@pytest.fixture
def version() -> str:
    """The package, unless the test says otherwise."""
    return NEWEST


@pytest.fixture
def cli(packages: None, shared_server: ServerProcess, version: str) -> Cli:
    """Runs one command, which must succeed; what it prints."""

    def run(*arguments: str) -> str:
        finished = run_cli(shared_server, version, *arguments)
        assert finished.returncode == 0, (arguments, finished.stdout, finished.stderr)
        return finished.stdout

    return run


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A queue of the test's own."""
    return re.sub(r"\W+", "-", request.node.name)


def parsed(output: str) -> dict[str, Any]:
    reply: dict[str, Any] = json.loads(output)
    assert reply["ok"] is True
    return reply


@pytest.mark.parametrize("version", [NEWEST, OLDER])
def test_a_job_from_push_to_its_result(cli: Cli, name: str) -> None:
    cli("push", name, '{"to": "ada"}', "--priority", "5", "--job-id", f"{name}-1")
    listed = cli("queue", "jobs", name)
    pulled = parsed(cli("pull", name, "--json"))["job"]
    active = cli("job", "state", f"{name}-1")
    shown = cli("job", "get", f"{name}-1")
    acked = cli("ack", f"{name}-1", "--result", '{"sent": true}')
    waited = parsed(cli("job", "wait", f"{name}-1", "--json"))

    assert f"{name}-1" in listed
    assert "prioritized" in listed
    assert (pulled["id"], pulled["data"], pulled["priority"]) == (f"{name}-1", {"to": "ada"}, 5)
    assert active == "State: active\n"
    assert 'Data:       {"to":"ada"}' in shown
    assert acked == "OK\n"
    assert (waited["completed"], waited["result"]) == (True, {"sent": True})


def test_queues(cli: Cli, name: str) -> None:
    for data in ('{"n": 1}', '{"n": 2}'):
        assert cli("push", name, data).startswith("Job created: ")
    listed = cli("queue", "list")
    cli("queue", "pause", name)
    paused = cli("queue", "paused", name)
    cli("queue", "resume", name)
    resumed = cli("queue", "paused", name)
    drained = cli("queue", "drain", name)

    assert f"  - {name}\n" in listed
    assert paused != resumed
    assert drained == "Count: 2\n"


def test_dead_letters(cli: Cli, name: str) -> None:
    cli("push", name, '{"n": 1}', "--max-attempts", "1", "--job-id", f"{name}-1")
    cli("pull", name)
    cli("fail", f"{name}-1", "--error", "boom")
    listed = cli("dlq", "list", name)
    retried = cli("dlq", "retry", name)
    state = cli("job", "state", f"{name}-1")

    assert f"{name}-1" in listed
    assert retried == "Count: 1\n"
    assert state == "State: waiting\n"


def test_crons(cli: Cli, name: str) -> None:
    added = cli("cron", "add", name, "-q", name, "-d", '{"x": 1}', "-s", "0 3 * * *")
    listed = cli("cron", "list")
    deleted = cli("cron", "delete", name)
    left = cli("cron", "list")

    assert added.startswith(f"Cron scheduled: {name}")
    assert "T03:00:00.000Z" in added
    assert name in listed
    assert "Schedule: 0 3 * * *" in listed
    assert deleted == "OK\n"
    assert name not in left


def test_a_name_that_a_queue_gave_is_shown_inside_the_data(
    packages: None, shared_server: ServerProcess, name: str
) -> None:
    with shared_server.connect() as client:
        job_id = client.ok("PUSH", queue=name, name="send", data={"to": "ada"})["id"]

    shown = run_cli(shared_server, NEWEST, "job", "get", job_id).stdout

    assert '"name":"send"' in shown
    assert '"to":"ada"' in shown
