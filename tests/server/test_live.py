"""Readers of server-sent events: what they are told, how much waits for them, what they get when they come back."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
import trio

from bunqueue_trio.config import Config
from bunqueue_trio.model.events import JobEvent, SystemEvent
from bunqueue_trio.server import feed, live
from bunqueue_trio.server.bulletins import run_bulletins
from bunqueue_trio.server.feed import Reader
from bunqueue_trio.server.live import Live
from bunqueue_trio.server.pace import AT_ONCE, Pace
from bunqueue_trio.server.roles import Role
from bunqueue_trio.web import live as web_live
from tests.server.fakes import Rig, settle_down, wait_for
from tests.server.http import Http, live_of

WALL_MS = 1_800_000_000_000


@pytest.fixture
async def watched(rig: Rig, nursery: trio.Nursery, autojump_clock) -> Live:
    """All who watch `rig`, nobody yet."""
    found = live_of(rig)
    await nursery.start(found.run)
    return found


def event(queue: str = "q", job_id: str = "a", kind: str = "pushed", **fields) -> JobEvent:
    return JobEvent(kind, queue, job_id, WALL_MS, **fields)


def blocks(text: bytes) -> list[dict[str, str]]:
    """The blocks of a stream, their fields by name."""
    return [
        {name: value.lstrip() for name, _, value in (line.partition(":") for line in block.split("\n"))}
        for block in text.decode().split("\n\n")[:-1]
    ]


async def read(reader: Reader, count: int) -> list[dict[str, str]]:
    """So many blocks."""
    found: list[dict[str, str]] = []
    with trio.fail_after(100):
        while len(found) < count:
            piece = await reader.next()
            assert piece, "the stream has ended"
            found += blocks(piece)
    assert len(found) == count
    return found


def open_reader(watched: Live, queue: str | None = None, last: int | None = None, cut: Callable = lambda: None):
    return watched.open_reader(queue, last, cut)


# what they are told


async def test_a_stream_begins_with_its_greeting(watched: Live, autojump_clock):
    [greeting] = await read(open_reader(watched), 1)

    assert list(greeting) == ["retry", "data"]
    assert greeting["retry"] == "3000"
    data = json.loads(greeting["data"])
    assert data["connected"] is True
    assert data["clientId"][14] == "7"


async def test_a_job_event_has_number_name_and_data_in_the_order_of_the_wire(watched: Live, rig: Rig, autojump_clock):
    reader = open_reader(watched)
    full = event(kind="pulled", error="no\nluck", progress=50, prev="failed", delay=2.0)

    rig.broker.events.publish([full])

    [_, block] = await read(reader, 2)
    assert list(block) == ["id", "event", "data"]
    assert block["event"] == "job:active"
    assert block["data"] == (
        '{"queue":"q","jobId":"a","timestamp":1800000000000,"error":"no\\nluck","progress":50,"prev":"failed","delay":2}'
    )


async def test_data_and_results_of_jobs_are_never_streamed(watched: Live, rig: Rig, autojump_clock):
    reader = open_reader(watched)

    rig.push("a", data={"secret": 1})
    rig.push("b", data={"secret": 2})

    assert not any("secret" in block.get("data", "") for block in await read(reader, 4))


async def test_numbers_rise_by_one_over_all_kinds(watched: Live, rig: Rig, autojump_clock):
    reader = open_reader(watched)

    rig.broker.events.publish([event(), SystemEvent("cron:fired", WALL_MS, {"name": "c"}), event(job_id="b")])

    numbers = [int(block["id"]) for block in (await read(reader, 4))[1:]]
    assert [number - numbers[0] for number in numbers] == [0, 1, 2]


async def test_a_filter_hides_other_queues_and_keeps_what_concerns_all(watched: Live, rig: Rig, autojump_clock):
    reader = open_reader(watched, "q")

    rig.broker.events.publish(
        [
            event("other"),
            SystemEvent("queue:created", WALL_MS, {"queue": "other"}),
            SystemEvent("queue:created", WALL_MS, {"queue": "q"}),
            SystemEvent("memory:compacted", WALL_MS, {}),
            event("q"),
        ]
    )

    names = [block["event"] for block in (await read(reader, 4))[1:]]
    assert names == ["queue:created", "memory:compacted", "job:pushed"]


@pytest.mark.parametrize(("role", "hears"), [(Role.READ, False), (Role.WORK, False), (Role.ALL, True)])
async def test_webhooks_are_a_secret_from_who_may_not_list_them(watched: Live, rig: Rig, autojump_clock, role, hears):
    reader = watched.open_reader(None, None, lambda: None, role)

    for name in ("webhook:added", "memory:compacted"):
        rig.broker.events.publish([SystemEvent(name, WALL_MS, {"url": "https://example.com/secret"})])

    names = [block["event"] for block in (await read(reader, 2 + hears))[1:]]
    assert names == ["webhook:added"] * hears + ["memory:compacted"]


async def test_what_comes_at_intervals(watched: Live, rig: Rig, nursery, autojump_clock):
    nursery.start_soon(lambda: run_bulletins(rig.broker, idle_threshold_ms=0))
    reader = open_reader(watched)
    await read(reader, 1)

    await trio.sleep(30.5)

    found = blocks(b"".join([await reader.next() for _ in range(1)]))
    names = [block.get("event", "heartbeat") for block in found]
    assert {name: names.count(name) for name in names} == {
        "stats:snapshot": 6, "health:status": 3, "heartbeat": 1, "storage:status": 1,
    }  # fmt: skip
    [health, *_] = [json.loads(block["data"]) for block in found if block.get("event") == "health:status"]
    assert health == {"ok": True, "uptime": 1, "memory": {"rss": 0, "heapUsed": 0}, "connections": {"sse": 1}}


async def test_counts_of_a_queue_follow_its_events(watched: Live, rig: Rig, nursery, autojump_clock):
    nursery.start_soon(lambda: run_bulletins(rig.broker, idle_threshold_ms=0))
    await settle_down()
    reader = open_reader(watched)
    await read(reader, 1)

    rig.push("a")
    rig.push("b", priority=3)

    found = []
    while not found or found[-1]["event"] != "queue:counts":
        found += blocks(await reader.next())
    assert [block["event"] for block in found] == ["queue:created", "job:pushed", "job:pushed", "queue:counts"]
    assert found[-1]["data"] == (
        '{"queue":"q","waiting":1,"prioritized":1,"active":0,"completed":0,"failed":0,"delayed":0}'
    )


# coming back


async def test_who_comes_back_gets_the_job_events_it_has_missed(watched: Live, rig: Rig, autojump_clock):
    reader = open_reader(watched)
    rig.broker.events.publish([event(job_id="seen")])
    seen = int((await read(reader, 2))[1]["id"])
    watched.close_reader(reader)

    rig.broker.events.publish([event("q", "a"), SystemEvent("memory:compacted", WALL_MS, {}), event("other", "b")])

    back = await read(open_reader(watched, None, seen), 3)
    filtered = await read(open_reader(watched, "q", seen), 2)
    assert [json.loads(block["data"]).get("jobId") for block in back] == [None, "a", "b"]
    assert [int(block["id"]) - seen for block in back[1:]] == [1, 3]
    assert json.loads(filtered[1]["data"])["jobId"] == "a"


@pytest.mark.parametrize("last", [1, 57, 2**50])
async def test_who_names_a_number_that_is_not_ours_is_told_to_look_anew(watched: Live, rig: Rig, last, autojump_clock):
    rig.push("a")

    [_, reset] = await read(open_reader(watched, None, last), 2)

    assert reset["event"] == "reset"
    assert json.loads(reset["data"]) == {"lastEventId": last}
    # the number of the reset is a good one to come back with
    [_, *missed] = await read(open_reader(watched, None, int(reset["id"])), 1)
    assert missed == []


async def test_what_is_longer_ago_than_what_is_kept_is_a_gap(watched: Live, rig: Rig, autojump_clock):
    reader = open_reader(watched)
    rig.broker.events.publish([event(job_id="seen")])
    seen = int((await read(reader, 2))[1]["id"])

    rig.broker.events.publish([event(job_id=str(number)) for number in range(1_001)])

    back = blocks(await open_reader(watched, None, seen).next())
    assert back[1]["event"] == "reset"
    assert int(back[1]["id"]) == int(back[2]["id"]) - 1


async def test_events_are_kept_for_a_while_after_the_last_has_gone(watched: Live, rig: Rig, autojump_clock):
    reader = open_reader(watched)
    rig.broker.events.publish([event(job_id="seen")])
    seen = int((await read(reader, 2))[1]["id"])
    watched.close_reader(reader)

    await trio.sleep(live.KEEP_S - 10)
    assert rig.broker.events.is_listened_to
    await trio.sleep(20.5)  # between two rounds of what comes at intervals

    assert not rig.broker.events.is_listened_to
    assert [block.get("event") for block in await read(open_reader(watched, None, seen), 2)] == [None, "reset"]


# who is too slow, and who is too many


async def test_who_does_not_read_is_cut_off_and_nobody_else(watched: Live, rig: Rig, autojump_clock):
    cut: list[str] = []
    slow = open_reader(watched, cut=lambda: cut.append("slow"))
    quick = open_reader(watched, cut=lambda: cut.append("quick"))
    await slow.next()
    await quick.next()

    for number in range(feed.MAX_BUFFERED + 2):  # the greeting took no room
        rig.broker.events.publish([event(job_id=str(number))])
        if number == 500:
            assert len(blocks(await quick.next())) > 100

    assert cut == ["slow"]
    assert slow.was_too_slow
    assert await slow.next() == b""
    assert not quick.is_closed
    watched.close_reader(slow)
    assert rig.broker.events.cut_off_count == 1


async def test_bytes_are_bounded_too(watched: Live, rig: Rig, autojump_clock):
    reader = open_reader(watched)

    rig.broker.events.publish([event(kind="failed", error="x" * 400_000)] * 3)

    assert reader.was_too_slow


async def test_a_write_that_does_not_end_is_cut_off(watched: Live, autojump_clock):
    cut: list[str] = []
    reader = open_reader(watched, cut=lambda: cut.append("reader"))
    await reader.next()  # and never comes for more

    await trio.sleep(live.STALLED_S + live.WATCH_S + 1)

    assert set(cut) == {"reader"}


async def test_there_are_only_so_many(watched: Live, rig: Rig, monkeypatch, autojump_clock):
    monkeypatch.setattr(live, "MAX_READERS", 2)
    monkeypatch.setattr(live, "MAX_SOCKETS", 1)
    readers = [open_reader(watched) for _ in range(2)]

    with pytest.raises(live.LimitError, match="Too many SSE connections"):
        open_reader(watched)
    with watched.open_socket(None, Role.ALL, lambda: None, lambda: None):
        with pytest.raises(live.LimitError, match="Too many WebSocket connections"):  # noqa: SIM117
            with watched.open_socket(None, Role.ALL, lambda: None, lambda: None):
                pass
        assert (watched.reader_count, watched.socket_count) == (2, 1)
        text = rig.broker.monitoring.exposition(rig.clock.now())
        assert "\nbunqueue_sse_connections 2\n" in text
        assert "\nbunqueue_ws_connections 1\n" in text
    watched.close_reader(readers[0])
    open_reader(watched)


async def test_streams_end_with_the_stop_and_none_begins(watched: Live, autojump_clock):
    reader = open_reader(watched)
    await read(reader, 1)

    watched.close()

    assert await reader.next() == b""
    assert await open_reader(watched).next() == b""


# nobody waits for all of them


class Waits:
    """Takes its turn."""

    def __init__(self, log: list[float]) -> None:
        self._log = log

    def go(self) -> None:
        self._log.append(trio.current_time())


async def test_turns_are_given_a_few_at_a_time(nursery, autojump_clock):
    pace = Pace(lambda: trio.current_time() * 1000)
    turns: list[float] = []
    nursery.start_soon(pace.run)

    for _ in range(3 * AT_ONCE):
        pace.want(Waits(turns))
    await wait_for(lambda: len(turns) == 3 * AT_ONCE)

    assert len(set(turns)) == 3
    assert all(turns.count(at) == AT_ONCE for at in set(turns))


async def test_a_thousand_readers_share_one_text(watched: Live, rig: Rig, autojump_clock):
    readers = [open_reader(watched) for _ in range(live.MAX_READERS)]

    rig.broker.events.publish([event()])

    texts = {id(reader._pieces[-1]) for reader in readers}
    assert len(texts) == 1


# over HTTP


async def test_the_stream_over_http(rig: Rig, nursery, autojump_clock):
    http = Http(rig, Config(cors_allow_origin=("*",)))
    await nursery.start(http.live.run)
    async with http.app.test_client().request(
        "/events/queues/a%2Fb", scope_base={"raw_path": b"/events/queues/a%2Fb"}
    ) as connection:
        await connection.send_complete()
        greeting = await connection.receive()
        rig.broker.events.publish([event("other"), event("a/b", "it")])
        told = await connection.receive()

        assert connection.status_code == 200
        headers = {name.lower(): value for name, value in connection.headers.items()}
        http.live.close()

    assert headers["content-type"] == "text/event-stream"
    assert headers["cache-control"] == "no-cache"
    assert headers["access-control-allow-origin"] == "*"
    assert greeting.startswith(b"retry: 3000\n")
    assert [json.loads(block["data"])["jobId"] for block in blocks(told)] == ["it"]
    await wait_for(lambda: http.live.reader_count == 0)


@pytest.mark.parametrize(
    ("path", "queue"),
    [
        (("events",), None),
        (("events", "queues", ""), None),
        (("events", "x", "q"), None),
        (("events", "queues", "q"), "q"),
        (("ws", "queues", "a%2Fb"), "a/b"),
        (("ws", "queues", "a", "b"), "a/b"),
    ],
)
def test_the_queue_of_a_path(path, queue):
    assert web_live.watched_queue(path) == queue


async def test_refusals_over_http(rig: Rig, autojump_clock, monkeypatch):
    http = Http(rig, Config(auth_tokens=("all",), auth_tokens_produce=("p",)))
    token = {"Authorization": "Bearer all"}

    assert await http.ask("GET", "/ws", headers=token) == (400, "WebSocket upgrade failed")
    assert (await http.ask("GET", "/events/queues/%ZZ", headers=token))[0] == 400
    assert (await http.ask("GET", "/events"))[0] == 401
    monkeypatch.setattr(live, "MAX_READERS", 0)
    assert await http.ask("POST", "/events", headers=token) == (503, "Too many SSE connections")


# silent clients of WebSockets


class Silent:
    """A transport whose client answers pings *answers* times."""

    def __init__(self, answers: int) -> None:
        self.heard_s = trio.current_time()
        self.answers = answers
        self.pinged_s: list[float] = []
        self.cut_s: float | None = None

    async def ping(self) -> None:
        self.pinged_s.append(trio.current_time())
        if len(self.pinged_s) <= self.answers:
            self.heard_s = trio.current_time()

    def cut(self) -> None:
        self.cut_s = trio.current_time()


@pytest.mark.parametrize("answers", [0, 1])
async def test_who_is_silent_is_pinged_and_then_cut_off(autojump_clock, answers):
    began_s = trio.current_time()
    transport = Silent(answers)

    await web_live._keep_alive(transport)  # type: ignore[arg-type]

    assert [at - began_s for at in transport.pinged_s] == [100.0, 200.0][: answers + 1]
    assert transport.cut_s == began_s + 100 * answers + 120
