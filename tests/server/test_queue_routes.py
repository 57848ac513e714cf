"""The dead letters over HTTP: shape, paging, and who may read them."""

import pytest

from bunqueue_trio.model.health import HealthReport
from bunqueue_trio.web.probes import create_app
from bunqueue_trio.web.queues import QueueRoutes
from tests.engine_harness import EngineHarness


class Reader:
    """The engine of a harness, as the routes see it."""

    is_ready = True

    def __init__(self) -> None:
        self.harness = EngineHarness()

    def health(self) -> HealthReport:
        return HealthReport(uptime=1, version="1")

    def dead_letters(self, queue):
        return self.harness.engine.queries.dead_letters(queue)

    def dead_letter_statistics(self, queue):
        return self.harness.engine.queries.dead_letter_statistics(queue, self.harness.now)


@pytest.fixture
def reader() -> Reader:
    reader = Reader()
    for job_id in ("a", "b", "c"):
        reader.harness.push(jobId=job_id, maxAttempts=1, data={"blob": b"\x00\xff", "big": 2**40})
        reader.harness.fail(*reader.harness.pull(), error=f"no {job_id}")
    return reader


def client_of(reader, *tokens):
    return create_app(reader, [QueueRoutes(reader, tokens)]).test_client()


async def test_an_entry_is_shown_whole_with_payloads_as_json(reader):
    reply = await client_of(reader).get("/queues/q/dlq")

    body = await reply.get_json()
    assert (reply.status_code, body["ok"], body["total"]) == (200, True, 3)
    entry = body["entries"][0]
    assert (entry["job"]["id"], entry["reason"], entry["error"]) == ("a", "max_attempts_exceeded", "no a")
    assert entry["job"]["data"] == {"blob": {"$binary": "AP8="}, "big": 2**40}
    assert [record["attempt"] for record in entry["attempts"]] == [1]


@pytest.mark.parametrize(
    ("query", "ids"),
    [
        ("", "abc"),
        ("?limit=2", "ab"),
        ("?limit=1&offset=1", "b"),
        ("?offset=2.9", "c"),
        ("?limit=0", ""),
        ("?limit=", ""),
        ("?limit=-3", ""),
        ("?limit=x&offset=y", "abc"),
        ("?limit=inf", "abc"),
    ],
)
async def test_pages(reader, query, ids):
    body = await (await client_of(reader).get(f"/queues/q/dlq{query}")).get_json()

    assert "".join(entry["job"]["id"] for entry in body["entries"]) == ids
    assert body["total"] == 3


async def test_statistics_count_by_reason(reader):
    stats = (await (await client_of(reader).get("/queues/q/dlq/stats")).get_json())["stats"]

    assert (stats["total"], stats["byReason"]["max_attempts_exceeded"], stats["byQueue"]) == (3, 3, {"q": 3})
    assert stats["oldestEntry"] == stats["newestEntry"] == reader.harness.now.wall_ms


async def test_a_queue_nobody_knows_has_none(reader):
    body = await (await client_of(reader).get("/queues/nobody/dlq/stats")).get_json()

    assert (body["stats"]["total"], body["stats"]["oldestEntry"]) == (0, None)


@pytest.mark.parametrize("path", ["/queues/q/dlq", "/queues/q/dlq/stats"])
@pytest.mark.parametrize(
    ("header", "status"),
    [
        (None, 401),
        ("Bearer wrong", 401),
        ("bearer tok", 401),
        ("Bearer tokx", 401),
        ("Bearer tok", 200),
        ("tok", 200),
    ],
)
async def test_with_tokens_one_must_be_presented(reader, path, header, status):
    headers = {} if header is None else {"Authorization": header}

    reply = await client_of(reader, "other", "tok").get(path, headers=headers)

    assert reply.status_code == status
    if status == 401:
        assert await reply.get_json() == {"ok": False, "error": "Unauthorized"}
