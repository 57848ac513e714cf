"""A response that does not reach its client loses no job (HD-1)."""

import json

import pytest
import trio

from tests.server.fakes import QUEUE, Rig, settle_down
from tests.server.http import app_of


class Visitor:
    """One HTTP request at the level of ASGI: the client may leave at any moment, or read nothing.

    Args:
        reads: False: what is sent to it is never taken.
    """

    def __init__(self, rig: Rig, method: str, path: str, body: bytes = b"", *, reads: bool = True) -> None:
        self.rig = rig
        raw, _, query = path.partition("?")
        self.scope = {
            "type": "http",
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": raw,
            "raw_path": raw.encode(),
            "query_string": query.encode(),
            "headers": [(b"host", b"x")],
            "client": ("127.0.0.1", 5),
            "extensions": {},
        }
        self._body = body
        self._is_asked = False
        self._reads = reads
        self.left = trio.Event()
        self.sent: list[dict] = []

    async def visit(self) -> None:
        await app_of(self.rig)(self.scope, self._receive, self._send)

    async def _receive(self) -> dict:
        if not self._is_asked:
            self._is_asked = True
            return {"type": "http.request", "body": self._body, "more_body": False}
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: dict) -> None:
        await trio.lowlevel.checkpoint()
        if not self._reads:
            await trio.sleep_forever()
        self.sent.append(message)

    @property
    def answer(self) -> dict:
        return json.loads(b"".join(message.get("body", b"") for message in self.sent))


PULLS = [("GET", "/queues/q/jobs?timeout=60000", b""), ("POST", "/queues/q/jobs/pull-batch", b'{"timeout":60000}')]


@pytest.mark.parametrize(("method", "path", "body"), PULLS)
async def test_a_client_that_leaves_while_it_waits_gets_no_job(rig: Rig, autojump_clock, nursery, method, path, body):
    visitor = Visitor(rig, method, path, body)
    nursery.start_soon(visitor.visit)
    await settle_down()

    visitor.left.set()
    await settle_down()
    rig.push("a")
    await settle_down()

    assert rig.state("a") == "waiting"
    assert rig.broker.waiting.count == 0


@pytest.mark.parametrize(("method", "path", "body"), PULLS)
async def test_a_client_that_leaves_just_when_the_job_comes_costs_no_attempt(
    rig: Rig, autojump_clock, nursery, method, path, body
):
    visitor = Visitor(rig, method, path, body)
    nursery.start_soon(visitor.visit)
    await settle_down()

    rig.push("a")  # the request has its job now, and has not run yet
    assert rig.state("a") == "active"
    visitor.left.set()
    await settle_down()

    job = rig.call("GetJob", id="a")["job"]
    assert (job["state"], job["attempts"]) == ("waiting", 0)


async def test_a_client_that_does_not_read_gives_the_job_back_in_the_end(rig: Rig, autojump_clock, nursery):
    rig.push("a")
    visitor = Visitor(rig, "GET", "/queues/q/jobs", reads=False)
    nursery.start_soon(visitor.visit)
    await settle_down()
    assert rig.state("a") == "active"

    visitor.left.set()
    await trio.sleep(10)

    assert rig.state("a") == "waiting"


async def test_a_client_that_has_its_answer_keeps_the_job(rig: Rig, autojump_clock, nursery):
    rig.push("a")
    visitor = Visitor(rig, "GET", "/queues/q/jobs")
    nursery.start_soon(visitor.visit)
    await settle_down()
    visitor.left.set()
    await settle_down()

    assert visitor.answer["job"]["id"] == "a"
    assert rig.state("a") == "active"
    assert rig.engine.state.held == {}
    assert all(connection > 0 for connection in rig.engine.state.connections)


async def test_what_was_asked_for_is_done_although_the_client_has_left(rig: Rig, autojump_clock, nursery):
    rig.store.close_gate()
    rig.push("a")
    visitor = Visitor(rig, "DELETE", "/jobs/a")
    nursery.start_soon(visitor.visit)
    await settle_down()

    visitor.left.set()
    await settle_down()
    rig.store.open_gate()
    await trio.sleep(0.1)

    assert rig.call("GetState", id="a")["state"] == "unknown"
    assert rig.call("Count", queue=QUEUE)["count"] == 0
