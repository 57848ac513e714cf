"""WebSockets: commands as JSON, replies and events in one order, and what a client that does not read gets."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio

from bunqueue_trio.config import Config
from bunqueue_trio.model.events import JobEvent, SystemEvent
from bunqueue_trio.server import live_socket
from bunqueue_trio.server.holding import see_through
from bunqueue_trio.server.live import Live
from bunqueue_trio.server.live_socket import LiveSocket
from bunqueue_trio.server.roles import Role
from tests.server.fakes import Rig, settle_down
from tests.server.http import Http, live_of


class Client:
    """The far end of a `LiveSocket`: ``told`` is what it was sent, decoded."""

    def __init__(self, rig: Rig, socket: LiveSocket, nursery: trio.Nursery, *, reads: bool = True) -> None:
        self.rig = rig
        self.socket = socket
        self.told: list[Any] = []
        if reads:
            nursery.start_soon(self.read)

    async def read(self) -> None:
        while True:
            text = await self.socket.next()
            self.told.append(json.loads(text))

    async def say(self, message: Any) -> list[Any]:
        """One message; all that has come by the time nothing more happens."""
        text = message if isinstance(message, bytes) else json.dumps(message).encode()
        await see_through(self.socket.session, self.rig.broker, self.socket.receive(text))
        return await self.heard()

    async def heard(self) -> list[Any]:
        await trio.sleep(0.05)
        await settle_down()
        told, self.told = self.told, []
        return told


@pytest.fixture
async def watched(rig: Rig, nursery: trio.Nursery, autojump_clock) -> Live:
    found = live_of(rig)
    await nursery.start(found.run)
    return found


@pytest.fixture
def connect_socket(rig: Rig, watched: Live, nursery: trio.Nursery):
    """Open a socket that is read, unless told otherwise."""
    opened = []

    def connect(queue: str | None = None, granted: Role = Role.ALL, *, reads: bool = True) -> Client:
        context = watched.open_socket(queue, granted, lambda: None, lambda: None)
        client = Client(rig, context.__enter__(), nursery, reads=reads)
        opened.append(context)
        return client

    yield connect
    for context in opened:
        context.__exit__(None, None, None)


PUSH = {"cmd": "PUSH", "queue": "q", "data": {"a": 1}, "jobId": "j", "reqId": "p"}


# commands


@pytest.mark.parametrize(
    ("message", "reply"),
    [
        (b"notjson", {"ok": False, "error": "Invalid JSON"}),
        (b"", {"ok": False, "error": "Invalid JSON"}),
        (b"null", {"ok": False, "error": "Invalid JSON"}),
        (b'{"cmd":"Ping\xff"}', {"ok": False, "error": "Invalid JSON"}),
        (b"5", {"ok": False, "error": "Invalid command"}),
        (b"[]", {"ok": False, "error": "Invalid command"}),
        (b"{}", {"ok": False, "error": "Invalid command"}),
        (b'{"cmd":""}', {"ok": False, "error": "Invalid command"}),
        (b'{"cmd":"Nope","reqId":"x"}', {"ok": False, "error": "Unknown command: Nope", "reqId": "x"}),
        (b'{"cmd":"IsPaused","queue":"q","reqId":7}', {"ok": True, "paused": False, "reqId": 7}),
    ],
)
async def test_a_message_and_its_reply(connect_socket, message, reply, autojump_clock):
    assert await connect_socket().say(message) == [reply]


async def test_binary_comes_back_as_it_was(connect_socket, rig: Rig, autojump_clock):
    client = connect_socket()
    await client.say({**PUSH, "data": {"$binary": "AAE="}})

    [*_, reply] = await client.say({"cmd": "GetJob", "id": "j"})

    assert reply["job"]["data"] == {"$binary": "AAE="}


async def test_an_event_is_told_before_the_reply_of_what_caused_it(connect_socket, autojump_clock):
    client = connect_socket()

    created = await client.say(PUSH)
    pulled = await client.say({"cmd": "PULL", "queue": "q", "reqId": "l"})
    acked = await client.say({"cmd": "ACK", "id": "j", "result": 5, "reqId": "a"})

    assert [m.get("eventType", m.get("reqId")) for m in created + pulled + acked] == [
        "pushed", "p", "pulled", "l", "completed", "a",
    ]  # fmt: skip


async def test_a_parked_pull_holds_up_nobody_and_is_answered(connect_socket, rig: Rig, autojump_clock):
    client = connect_socket()

    first = await client.say({"cmd": "PULL", "queue": "q", "timeout": 5_000, "reqId": "pull"})
    between = await client.say({"cmd": "Ping", "reqId": "ping"})
    rig.push("j")
    later = await client.heard()

    assert first == []
    assert [m["reqId"] for m in between] == ["ping"]
    assert [m["job"]["id"] for m in later if m.get("reqId") == "pull"] == ["j"]


async def test_jobs_and_workers_leave_with_the_socket(rig: Rig, watched: Live, nursery, autojump_clock):
    with watched.open_socket(None, Role.ALL, lambda: None, lambda: None) as socket:
        client = Client(rig, socket, nursery)
        await client.say(PUSH)
        await client.say({"cmd": "PULL", "queue": "q", "owner": "w"})
        await client.say({"cmd": "RegisterWorker", "name": "w", "queues": ["q"]})
        assert rig.state("j") == "active"
        assert rig.engine.state.workers

    assert rig.state("j") == "waiting"
    assert not rig.engine.state.workers


async def test_messages_are_not_limited(rig: Rig, nursery, autojump_clock):
    watched = live_of(rig, Config(rate_limit_max_requests=1))
    with watched.open_socket(None, Role.ALL, lambda: None, lambda: None) as socket:
        client = Client(rig, socket, nursery)

        replies = [await client.say({"cmd": "Ping"}) for _ in range(3)]

    assert all(reply["ok"] for [reply] in replies)


# subscriptions


async def test_subscriptions_add_up_and_go(connect_socket, autojump_clock):
    client = connect_socket()

    said = [
        await client.say({"cmd": "Unsubscribe"}),
        await client.say({"cmd": "Subscribe", "events": ["job:pushed", "queue:*"], "reqId": "s1"}),
        await client.say({"cmd": "Subscribe", "events": ["job:pushed", "dlq:added"]}),
        await client.say({"cmd": "Unsubscribe", "events": ["job:pushed"], "reqId": None}),
        await client.say({"cmd": "Unsubscribe"}),
    ]

    assert [reply for replies in said for reply in replies] == [
        {"ok": True, "subscribed": []},
        {"ok": True, "subscribed": ["job:pushed", "queue:*"], "reqId": "s1"},
        {"ok": True, "subscribed": ["job:pushed", "queue:*", "dlq:added"]},
        {"ok": True, "subscribed": ["queue:*", "dlq:added"], "reqId": None},
        {"ok": True, "subscribed": []},
    ]
    assert [m.get("reqId") for m in await client.say(PUSH)] == ["p"]  # no longer legacy, and told nothing


@pytest.mark.parametrize("events", [[], None, "job:pushed", {}])
async def test_a_subscription_to_nothing_is_refused(connect_socket, events, autojump_clock):
    client = connect_socket()

    assert await client.say({"cmd": "Subscribe", "events": events}) == [
        {"ok": False, "error": "events must be a non-empty array"}
    ]
    assert [m.get("eventType") for m in await client.say(PUSH)] == ["pushed", None]  # still legacy


async def test_unknown_names_are_listed_and_nothing_is_subscribed(connect_socket, autojump_clock):
    client = connect_socket()

    refused = await client.say({"cmd": "Subscribe", "events": ["job:*", "bogus:x", 5, "job:waiting"], "reqId": "s"})

    assert refused == [{"ok": False, "error": "Invalid: bogus:x, 5, job:waiting", "reqId": "s"}]
    assert [m.get("eventType") for m in await client.say(PUSH)] == ["pushed", None]


async def test_a_subscriber_is_told_without_payloads(connect_socket, rig: Rig, autojump_clock):
    client = connect_socket()
    await client.say({"cmd": "Subscribe", "events": ["job:*", "memory:compacted"]})

    rig.broker.events.publish(
        [JobEvent("completed", "q", "j", 5.0, data=live_data()), SystemEvent("memory:compacted", 7.0, {})]
    )

    assert await client.heard() == [
        {"event": "job:completed", "ts": 5, "data": {"queue": "q", "jobId": "j"}},
        {"event": "memory:compacted", "ts": 7, "data": {}},
    ]


@pytest.mark.parametrize("cmd", ["SubscribeEvents", "UnsubscribeEvents"])
async def test_a_socket_that_subscribes_as_over_tcp_is_told_how_to_do_it(connect_socket, rig: Rig, cmd):
    client = connect_socket()

    told = await client.say({"cmd": cmd, "queue": "q", "reqId": "r"})

    text = "A WebSocket gets events by Subscribe; SubscribeEvents is for TCP"
    assert told == [{"ok": False, "error": text, "reqId": "r"}]
    assert rig.broker.events.queue_events.subscriber_count == 0


async def test_legacy_sockets_hear_nothing_that_only_newer_clients_know(connect_socket, rig: Rig, autojump_clock):
    client = connect_socket()
    rig.push("a", maxAttempts=1)
    rig.push("b", maxAttempts=1)
    await client.say({"cmd": "PULL", "queue": "q", "owner": "w", "lockTtl": 1_000})
    pulled = await client.say({"cmd": "PULL", "queue": "q", "owner": "w"})
    [failed, _] = await client.say({"cmd": "FAIL", "id": "b", "token": pulled[-1]["token"]})

    await trio.sleep(3.5)
    told = await client.heard()

    assert set(failed) == {"eventType", "queue", "jobId", "timestamp", "data"}
    assert [(e["eventType"], e["jobId"]) for e in told] == [("failed", "a")]


async def test_legacy_sockets_get_job_events_as_they_are(connect_socket, rig: Rig, autojump_clock):
    client = connect_socket("q")

    rig.broker.events.publish(
        [
            JobEvent("completed", "q", "j", 5.0, data=live_data()),
            JobEvent("completed", "other", "j", 5.0),
            SystemEvent("memory:compacted", 7.0, {}),
        ]
    )

    assert await client.heard() == [
        {"eventType": "completed", "queue": "q", "jobId": "j", "timestamp": 5, "data": {"r": 1}}
    ]


async def test_the_form_of_an_event_is_that_of_its_time(connect_socket, rig: Rig, autojump_clock):
    client = connect_socket()

    rig.broker.events.publish([JobEvent("pushed", "q", "j", 5.0)])
    told = await client.say({"cmd": "Subscribe", "events": ["*"]})

    assert told[0]["eventType"] == "pushed"


@pytest.mark.parametrize(("role", "hears"), [(Role.READ, False), (Role.PRODUCE, False), (Role.ALL, True)])
async def test_webhooks_are_a_secret_from_who_may_not_list_them(connect_socket, rig: Rig, autojump_clock, role, hears):
    client = connect_socket(granted=role)
    await client.say({"cmd": "Subscribe", "events": ["*"]})

    rig.broker.announce("webhook:added", {"url": "https://example.com/secret"})
    rig.broker.announce("queue:paused", {"queue": "q"})
    told = await client.say({"cmd": "Ping", "reqId": "p"})

    assert [m["event"] for m in told if "event" in m] == ["webhook:added"] * hears + ["queue:paused"]


async def test_a_role_holds_on_a_socket_too(connect_socket, autojump_clock):
    client = connect_socket(granted=Role.PRODUCE)

    [refused] = await client.say({"cmd": "Pause", "queue": "q"})

    assert not refused["ok"]


# who does not read


async def test_who_does_not_read_loses_events_only(connect_socket, rig: Rig, monkeypatch, nursery, autojump_clock):
    monkeypatch.setattr(live_socket, "MAX_UNSENT_BYTES", 10_000)
    client = connect_socket(reads=False)

    rig.broker.events.publish([JobEvent("pushed", "q", str(number), 5.0) for number in range(1_000)])
    await client.say({"cmd": "Ping", "reqId": "r"})

    assert client.socket.skipped_count > 900
    assert client.socket.unsent_bytes < 11_000
    with pytest.raises(trio.TooSlowError), trio.fail_after(1):
        await client.socket.wait_for_room()
    nursery.start_soon(client.read)
    told = await client.heard()
    assert told[-1]["reqId"] == "r"
    assert len(told) == 1_000 - client.socket.skipped_count + 1
    await client.socket.wait_for_room()
    assert client.socket.unsent_bytes == 0


def live_data() -> Any:
    from msgspec import Raw, msgpack

    return Raw(msgpack.encode({"r": 1}))


# over the application


async def test_a_socket_over_the_application(rig: Rig, nursery, autojump_clock):
    http = Http(rig)
    await nursery.start(http.live.run)

    async with http.app.test_client().websocket("/ws/queues/q") as socket:
        await socket.send(json.dumps(PUSH))
        told = [json.loads(await socket.receive()) for _ in range(2)]
        assert http.live.socket_count == 1

    assert [m.get("eventType", m.get("reqId")) for m in told] == ["pushed", "p"]
    await settle_down()
    assert http.live.socket_count == 0
