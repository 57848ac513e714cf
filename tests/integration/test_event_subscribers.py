"""Subscribers of a real process: waits for the end of jobs as the published client makes them, and restarts.

Source: newer clients, "Events" and "Acceptance", 3 and 5.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.process import Client, ServerProcess, wait_until

pytestmark = pytest.mark.slow

WAITS = 1_000


@pytest.fixture
def clients() -> Iterator[ExitStack]:
    """Closes what is opened."""
    with ExitStack() as stack:
        yield stack


class QueueEvents(threading.Thread):
    """A connection that has subscribed, and what it has heard: the results of completed jobs, each once."""

    def __init__(self, client: Client, queue: str) -> None:
        super().__init__()
        self._client = client
        client.ok("SubscribeEvents", queue=queue)
        self.results: dict[str, Any] = {}

    def run(self) -> None:
        while (frame := self._client.receive()) is not None:
            event = frame["event"]
            if event["eventType"] == "completed":
                assert event["jobId"] not in self.results
                self.results[event["jobId"]] = event["data"]
            if event["eventType"] == "paused":
                break


def finish(client: Client, count: int) -> None:
    """Pull and complete so many jobs; the result of each is its id."""
    while count:
        pulled = client.ok("PULLB", queue="q", owner="w", count=min(count, 50))
        ids = [job["id"] for job in pulled["jobs"]]
        client.ok("ACKB", ids=ids, tokens=pulled["tokens"], results=ids)
        count -= len(ids)


def test_a_thousand_waits_for_jobs_that_end_before_meanwhile_and_after_all_get_their_result(
    server: ServerProcess, clients: ExitStack
) -> None:
    subscriber, asker, producer, worker = (clients.enter_context(server.connect()) for _ in range(4))
    jobs = [{"data": n, "customId": f"j{n}"} for n in range(WAITS)]
    ids = producer.ok("PUSHB", queue="q", jobs=jobs)["ids"]
    finish(worker, WAITS // 3)
    events = QueueEvents(subscriber, "q")
    events.start()
    working = threading.Thread(target=finish, args=(worker, WAITS // 3))
    working.start()

    commands = [{"cmd": cmd, "id": job_id} for job_id in ids for cmd in ("GetState", "GetResult")]
    answers = asker.call_many(commands, at_once=100)
    working.join()
    finish(worker, WAITS - 2 * (WAITS // 3))
    producer.ok("Pause", queue="q")  # the last event
    events.join()

    asked = {
        job_id: result["result"]
        for job_id, state, result in zip(ids, answers[::2], answers[1::2], strict=True)
        if state["state"] == "completed"
    }
    assert len(asked) >= WAITS // 3
    assert len(events.results) >= WAITS - 2 * (WAITS // 3)
    assert {**asked, **events.results} == {job_id: job_id for job_id in ids}
    server.assert_no_faults()


def test_a_thousand_connections_each_hear_of_their_own_queue(server: ServerProcess, clients: ExitStack) -> None:
    subscribers = [clients.enter_context(server.connect()) for _ in range(WAITS)]
    for n, subscriber in enumerate(subscribers):
        subscriber.ok("SubscribeEvents", queue=f"q{n}")
    client = clients.enter_context(server.connect())

    client.call_many([{"cmd": "PUSH", "queue": f"q{n}", "data": n, "jobId": f"j{n}"} for n in range(WAITS)])
    pulled = client.call_many([{"cmd": "PULL", "queue": f"q{n}"} for n in range(WAITS)])
    client.call_many([{"cmd": "ACK", "id": reply["job"]["id"], "result": reply["job"]["data"]} for reply in pulled])

    for n, subscriber in enumerate(subscribers):
        events = [(subscriber.receive() or {})["event"] for _ in range(3)]
        assert [event["eventType"] for event in events] == ["pushed", "pulled", "completed"]
        assert {event["jobId"] for event in events} == {f"j{n}"}
        assert events[2]["data"] == n
    assert b"bunqueue_tcp_event_subscribers 1000" in server.get("/prometheus")[1]
    server.assert_no_faults()


def test_two_hundred_subscribers_of_one_busy_queue_hear_everything_and_hold_up_nobody(
    server: ServerProcess, clients: ExitStack
) -> None:
    subscribers = [clients.enter_context(server.connect()) for _ in range(200)]
    for subscriber in subscribers:
        subscriber.ok("SubscribeEvents", queue="q")
    client = clients.enter_context(server.connect())

    for n in range(300):
        client.ok("PUSH", queue="q", data=n, jobId=f"j{n}")

    wanted = [f"j{n}" for n in range(300)]
    for subscriber in subscribers:
        assert [(subscriber.receive() or {})["event"]["jobId"] for _ in wanted] == wanted


def test_after_a_restart_a_subscriber_that_comes_back_goes_on(server: ServerProcess, clients: ExitStack) -> None:
    before = clients.enter_context(server.connect())
    before.ok("SubscribeEvents", queue="q")
    with server.connect() as client:
        client.ok("PUSH", queue="q", data=1, jobId="j", durable=True)
        assert (before.receive() or {})["event"]["eventType"] == "pushed"
    server.restart()
    assert before.receive() is None

    after = clients.enter_context(server.connect())
    after.ok("SubscribeEvents", queue="q")
    with server.connect() as client:
        finish(client, 1)
        wait_until(lambda: client.state("j") == "completed", "the job is done")

    assert [(after.receive() or {})["event"]["eventType"] for _ in range(2)] == ["pulled", "completed"]
    server.assert_no_faults()


def test_what_is_finished_while_the_server_stops_is_told(server: ServerProcess, clients: ExitStack) -> None:
    subscriber, worker = (clients.enter_context(server.connect()) for _ in range(2))
    subscriber.ok("SubscribeEvents", queue="q")
    worker.ok("PUSH", queue="q", data=1, jobId="j")
    token = worker.ok("PULL", queue="q", owner="w")["token"]
    server.signal(signal.SIGTERM)
    wait_until(lambda: "shutting down" in server.log, "the stop has begun")

    worker.ok("ACK", id="j", token=token, result="done")

    events = [(subscriber.receive() or {})["event"] for _ in range(3)]
    assert [(event["eventType"], event.get("data")) for event in events] == [
        *(("pushed", None), ("pulled", None), ("completed", "done")),
    ]
    assert subscriber.receive() is None
    assert server.wait_exit() == 0
    server.assert_no_faults()
