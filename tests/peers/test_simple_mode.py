"""The Python client's Simple Mode: queue and worker in one object."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from bunqueue import Bunqueue, Job

from tests.process import ServerProcess, wait_until

pytestmark = pytest.mark.slow


def test_routes_middleware_and_retries(shared_server: ServerProcess) -> None:
    tries: list[str | None] = []
    around: list[str] = []
    results: dict[str, Any] = {}

    def send(job: Job) -> dict[str, Any]:
        tries.append(job.name)
        if len(tries) == 1:
            raise ValueError("not yet")
        return {"sent": job.data["to"]}

    def middleware(job: Job, proceed: Callable[[], Any]) -> Any:
        around.append(f"before {job.name}")
        result = proceed()
        around.append(f"after {job.name}")
        return result

    app = Bunqueue(
        "simple",
        routes={"send": send, "count": lambda job: job.data["n"] + 1},
        retry={"max_attempts": 2, "delay": 1},
        host="127.0.0.1",
        port=shared_server.tcp_port,
        poll_timeout_ms=100,
        concurrency=1,
    )
    app.on("completed", lambda job, result: results.update({job.name: result}))
    app.use(middleware)
    try:
        app.add("send", {"to": "ada"})
        app.add_bulk([{"name": "count", "data": {"n": 1}}])
        wait_until(lambda: len(results) == 2, "both are done")
    finally:
        app.close()

    assert results == {"send": {"sent": "ada"}, "count": 2}
    assert tries == ["send", "send"]
    assert around[-2:] == ["before count", "after count"]


def test_schedules_and_control(shared_server: ServerProcess) -> None:
    done: list[Any] = []
    app = Bunqueue(
        "simple-crons",
        processor=lambda job: done.append(job.data),
        host="127.0.0.1",
        port=shared_server.tcp_port,
        poll_timeout_ms=100,
    )
    try:
        app.cron("nightly", "0 3 * * *", {"of": "night"})
        app.every("often", 100, {"of": "day"})
        names = sorted(cron["name"] for cron in app.list_crons() if cron["queue"] == "simple-crons")
        wait_until(lambda: len(done) >= 2, "the interval has made jobs")
        app.remove_cron("often")
        app.pause()
        paused = app.is_paused() and app.queue.is_paused()
        app.add("kept", {})
        count = app.get_job_counts()["paused"]
        app.resume()
        wait_until(lambda: {"name": "kept"} in done, "the job has run")
    finally:
        app.remove_cron("nightly")
        app.close()

    assert names == ["nightly", "often"]
    assert done[0]["of"] == "day"
    assert paused
    assert count >= 1
