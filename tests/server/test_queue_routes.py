"""The dead letters over HTTP: shape, paging, and who may read them."""

import pytest
import trio
from msgspec import msgpack

from bunqueue_trio.config import Config
from bunqueue_trio.server import overviews
from bunqueue_trio.web import routes
from tests.server.fakes import Rig, settle_down
from tests.server.http import Http


@pytest.fixture
async def dead(rig: Rig, autojump_clock) -> Rig:
    """A rig with three dead letters."""
    for job_id in ("a", "b", "c"):
        rig.push(job_id, maxAttempts=1, data={"blob": b"\x00\xff", "big": 2**40})
        rig.talker().segment({"cmd": "PULL", "queue": "q"}, {"cmd": "FAIL", "id": job_id, "error": f"no {job_id}"})
        await settle_down()
        await trio.sleep(0.002)  # each has a moment of its own
    return rig


async def test_an_entry_is_shown_whole_with_payloads_as_json(dead):
    body = await Http(dead).reply("GET", "/queues/q/dlq")

    assert (body["ok"], body["total"]) == (True, 3)
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
        ("?offset=1e300", ""),
        ("?limit=inf", "abc"),
    ],
)
async def test_pages(dead, query, ids):
    body = await Http(dead).reply("GET", f"/queues/q/dlq{query}")

    assert "".join(entry["job"]["id"] for entry in body["entries"]) == ids
    assert body["total"] == 3


@pytest.mark.parametrize(("letters", "ids"), [(0.5, "a"), (1, "a"), (2.5, "ab"), (3.5, "abc")])
async def test_a_page_ends_before_it_is_too_long_but_has_an_entry(dead, monkeypatch, letters, ids):
    whole = len(msgpack.encode(dead.engine.queries.dead_letters("q")[0]))
    monkeypatch.setattr(overviews, "PAGE_BYTES", int(letters * whole))

    body = await Http(dead).reply("GET", "/queues/q/dlq")

    assert "".join(entry["job"]["id"] for entry in body["entries"]) == ids
    assert body["total"] == 3


async def test_statistics_count_by_reason(dead):
    stats = (await Http(dead).reply("GET", "/queues/q/dlq/stats"))["stats"]

    assert (stats["total"], stats["byReason"]["max_attempts_exceeded"], stats["byQueue"]) == (3, 3, {"q": 3})
    times = [entry.entered_at for entry in dead.engine.queries.dead_letters("q")]
    assert times[0] < times[2]
    assert (stats["oldestEntry"], stats["newestEntry"]) == (times[0], times[2])


async def test_a_queue_nobody_knows_has_none(dead):
    body = await Http(dead).reply("GET", "/queues/nobody/dlq/stats")

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
async def test_with_tokens_one_must_be_presented(dead, path, header, status):
    headers = {} if header is None else {"Authorization": header}

    answer = await Http(dead, Config(auth_tokens=("other", "tok"))).ask("GET", path, headers=headers)

    assert answer[0] == status
    if status == 401:
        assert answer[1] == {"ok": False, "error": "Unauthorized"}


# bringing back a bounded number


@pytest.mark.parametrize(("body", "count"), [({"count": 2}, 2), ({"count": 10**9}, 3), ({}, 3), ({"count": 0}, 0)])
async def test_the_oldest_are_replayed(dead, body, count):
    http = Http(dead)

    reply = await http.reply("POST", "/queues/q/dlq/replay", json=body)

    assert reply == {"ok": True, "count": count}
    await settle_down()
    left = (await http.reply("GET", "/queues/q/dlq"))["entries"]
    assert [entry["job"]["id"] for entry in left] == ["a", "b", "c"][count:]


async def test_a_replay_is_bounded(dead, monkeypatch):
    monkeypatch.setattr(routes, "MAX_REPLAYED", 2)

    assert (await Http(dead).reply("POST", "/queues/q/dlq/replay", json={"count": 3}))["count"] == 2


@pytest.mark.parametrize("count", ["3", None, True, [3]])
async def test_a_replay_without_a_number_changes_nothing(dead, count):
    http = Http(dead)

    answer = await http.ask("POST", "/queues/q/dlq/replay", json={"count": count})

    assert answer == (400, {"ok": False, "error": "count must be a number"})
    assert (await http.reply("GET", "/queues/q/dlq"))["total"] == 3
