"""SubscribeEvents over TCP: what a connection is sent of one queue, when, and what a subscriber may cost us.

Rules: an event leaves after the commit where the reply waits for it; when it leaves, queries show what it reports; the
order is that in which things happened; nobody is sent a frame who did not ask for it.

Source: newer clients, "Events", "TrimEvents".
"""

from typing import Any

import pytest
import trio

from bunqueue_trio.config import Config
from bunqueue_trio.server.monitoring import Monitoring
from bunqueue_trio.server.queue_events import QueueEvents
from tests.server.fakes import QUEUE, Rig, Talker, Wire, is_cut, pull, pushes, settle_down


class Subscriber(Talker):
    """A client that has subscribed; the reply to that is read."""

    def __init__(self, rig: Rig, queue: str = QUEUE, config: Config | None = None) -> None:
        super().__init__(rig, config)
        self.say("SubscribeEvents", queue=queue)
        assert self.take() == [{"ok": True}]

    def heard(self) -> list[tuple[str, str]]:
        """Types and jobs of the events since the last call; nothing else may have come."""
        events = [frame["event"] for frame in self.take()]
        return [(event["eventType"], event["jobId"]) for event in events]


def without_time(frame: dict[str, Any]) -> dict[str, Any]:
    event = dict(frame["event"])
    assert type(event.pop("timestamp")) is float
    return {**frame, "event": event}


# subscribing


async def test_an_event_is_a_frame_of_its_own_without_an_id(rig: Rig, mock_clock):
    subscriber = Subscriber(rig)

    rig.push("a")

    [frame] = subscriber.take()
    assert frame == {
        "type": "event",
        "event": {"eventType": "pushed", "queue": QUEUE, "jobId": "a", "timestamp": rig.clock.now().wall_ms},
    }


async def test_events_of_other_queues_are_not_sent(rig: Rig, mock_clock):
    subscriber = Subscriber(rig)

    rig.push("a", queue="other")
    rig.push("b")

    assert subscriber.heard() == [("pushed", "b")]


async def test_the_reply_comes_first_and_what_happened_before_is_not_told(rig: Rig, mock_clock):
    Subscriber(rig)  # somebody else hears of it
    talker = rig.talker()

    talker.segment(*pushes(["a"]), {"cmd": "SubscribeEvents", "queue": QUEUE, "reqId": "s"}, *pushes(["b"]))

    replies = [frame for frame in talker.replies if "event" not in frame]
    assert replies == [{"ok": True, "id": "a"}, {"ok": True, "reqId": "s"}, {"ok": True, "id": "b"}]
    at = talker.replies.index({"ok": True, "reqId": "s"})
    assert [frame["event"]["jobId"] for frame in talker.replies[at:] if "event" in frame] == ["b"]
    assert not [frame for frame in talker.replies[:at] if "event" in frame]


async def test_the_reply_comes_first_also_while_others_wait_for_jobs(rig: Rig, mock_clock):
    rig.talker().segment(pull(timeout=1_000))  # served within the turn of whoever pushes
    talker = rig.talker()

    talker.segment({"cmd": "SubscribeEvents", "queue": QUEUE}, *pushes(["a"]))

    assert talker.replies[:2] == [{"ok": True}, {"ok": True, "id": "a"}]
    assert [frame["event"]["eventType"] for frame in talker.replies[2:]] == ["pushed", "pulled"]


async def test_a_second_subscription_replaces_the_first_and_a_refused_one_changes_nothing(rig: Rig, mock_clock):
    subscriber = Subscriber(rig, "first")
    subscriber.say("SubscribeEvents", queue="second")
    subscriber.say("SubscribeEvents", queue="a b")
    assert subscriber.take() == [{"ok": True}, {"ok": False, "error": "Queue name contains invalid characters"}]

    rig.push("a", queue="first")
    rig.push("b", queue="second")

    assert subscriber.heard() == [("pushed", "b")]


async def test_unsubscribing_ends_it_and_is_ok_at_any_time(rig: Rig, mock_clock):
    subscriber = Subscriber(rig)
    subscriber.segment(*pushes(["a"]), {"cmd": "UnsubscribeEvents", "reqId": "u"}, *pushes(["b"]))
    rig.push("c")
    subscriber.say("UnsubscribeEvents")

    assert [frame["event"]["jobId"] for frame in subscriber.replies if "event" in frame] == ["a"]
    assert [frame for frame in subscriber.replies if "event" not in frame] == [
        {"ok": True, "id": "a"},
        {"ok": True, "reqId": "u"},
        {"ok": True, "id": "b"},
        {"ok": True},
    ]
    assert rig.engine.state.events is None


async def test_who_has_not_subscribed_is_sent_nothing_but_replies(rig: Rig, mock_clock):
    talker = rig.talker()
    Subscriber(rig)

    talker.say("PUSH", queue=QUEUE, data=1, jobId="a")

    assert talker.replies == [{"ok": True, "id": "a"}]


async def test_a_closed_connection_is_forgotten(rig: Rig, mock_clock):
    subscriber = Subscriber(rig)
    subscriber.session.close()

    rig.push("a")

    assert subscriber.replies == []
    assert rig.broker.events.queue_events.subscriber_count == 0
    assert rig.engine.state.events is None


async def test_one_subscriber_too_many_is_told_so(rig: Rig, mock_clock, monkeypatch):
    rig.broker.events.queue_events = QueueEvents(rig.clock.stopwatch_ms, max_subscribers=1)
    Subscriber(rig)
    talker = rig.talker()

    talker.say("SubscribeEvents", queue=QUEUE)

    assert talker.replies == [{"ok": False, "error": "Too many event subscribers (max 1)"}]
    assert not talker.session.is_subscribed


async def test_a_subscription_is_no_wait_and_no_event_counts_as_a_request(rig: Rig, mock_clock):
    subscriber = Subscriber(rig, config=Config(rate_limit_max_requests=3))
    for n in range(100):
        rig.push(f"j{n}")

    assert len(subscriber.take()) == 100
    assert not subscriber.session.is_waiting
    subscriber.segment({"cmd": "Ping"}, {"cmd": "Ping"})
    assert [reply["ok"] for reply in subscriber.take()] == [True, True]


# roles


ROLES = {"auth_tokens": ("all",), "auth_tokens_read": ("r",), "auth_tokens_produce": ("p",), "auth_tokens_work": ("w",)}


@pytest.mark.parametrize("token", ["all", "r", "p", "w"])
async def test_whoever_may_read_may_subscribe(rig: Rig, mock_clock, token):
    talker = rig.talker(Config(**ROLES))
    talker.say("Auth", token=token)
    talker.say("SubscribeEvents", queue=QUEUE)
    talker.say("UnsubscribeEvents")

    assert talker.replies == [{"ok": True}] * 3


async def test_strangers_may_not(rig: Rig, mock_clock):
    talker = rig.talker(Config(**ROLES))
    talker.say("SubscribeEvents", queue=QUEUE)
    talker.say("UnsubscribeEvents")

    assert talker.replies == [{"ok": False, "error": "Not authenticated"}] * 2
    assert rig.broker.events.queue_events.subscriber_count == 0


async def test_trimming_is_for_plain_tokens(rig: Rig, mock_clock):
    talker = rig.talker(Config(**ROLES))
    talker.say("Auth", token="w")
    talker.say("TrimEvents", queue=QUEUE, maxLength=1)

    assert talker.replies[1]["error"] == "Not permitted for this token: TrimEvents needs a token of AUTH_TOKENS"


async def test_no_events_are_kept_that_could_be_trimmed(rig: Rig, mock_clock):
    rig.push("a")

    assert rig.call("TrimEvents", queue=QUEUE, maxLength=0) == {"ok": True, "data": {"removed": 0}}
    assert rig.call("TrimEvents", maxLength=0)["error"] == "Queue name is required"
    assert not rig.call("TrimEvents", queue=QUEUE, maxLength=-1)["ok"]
    assert rig.call("ListQueues")["queues"] == [QUEUE]
    assert rig.call("TrimEvents", queue="new", maxLength=0)["ok"]
    assert rig.call("ListQueues")["queues"] == [QUEUE]


# when


async def test_an_event_leaves_at_its_commit_and_not_when_that_fails(rig: Rig, autojump_clock):
    subscriber = Subscriber(rig)
    rig.store.close_gate()
    talker = rig.talker()
    talker.segment(*pushes(["a"], durable=True))
    await settle_down()
    assert (talker.replies, subscriber.heard()) == ([], [])

    rig.store.open_gate()
    await settle_down()
    assert (talker.take(), subscriber.heard()) == ([{"ok": True, "id": "a"}], [("pushed", "a")])

    rig.store.fill_disk()
    talker.segment(*pushes(["b"], durable=True))
    await settle_down()
    assert (talker.take()[0]["ok"], subscriber.heard()) == (False, [])
    rig.store.heal()
    await trio.sleep(5)


QUERIES = ({"cmd": "GetState", "id": "a"}, {"cmd": "GetResult", "id": "a"})


async def test_when_an_event_leaves_queries_show_what_it_reports(rig: Rig, autojump_clock, monkeypatch):
    """A waiter that is told of an end and then asks must see it, even if it asks within the same breath."""
    subscriber, seen = Subscriber(rig), []
    asker = rig.talker()
    tell = subscriber.session.tell

    def ask_when_told(frames: bytes) -> None:
        tell(frames)
        asker.segment(*QUERIES)
        state, result = asker.take()
        seen.extend((kind, state["state"], result.get("result")) for kind, _ in subscriber.heard())

    monkeypatch.setattr(subscriber.session, "tell", ask_when_told)
    talker = rig.talker()
    rig.push("a", maxAttempts=2, backoff=0)
    for end in ({"cmd": "FAIL", "error": "x"}, {"cmd": "ACK", "result": {"n": 1}}):
        talker.segment(pull())
        token = talker.take()[0]["token"]
        talker.segment({**end, "id": "a", "token": token})
        await settle_down()
        talker.take()

    assert seen == [
        ("pushed", "waiting", None),
        ("pulled", "active", None),
        ("failed", "waiting", None),
        ("retried", "waiting", None),
        ("pulled", "active", None),
        ("completed", "completed", {"n": 1}),
    ]


async def test_events_of_a_queue_come_in_the_order_in_which_things_happened(rig: Rig, autojump_clock):
    subscriber = Subscriber(rig)
    worker = rig.talker()
    for n in range(20):
        rig.talker().segment(*pushes([f"b{n}"]), *pushes([f"d{n}"], durable=True))
        worker.segment(pull(), pull())
        if n % 5 == 0:
            await settle_down()
    await settle_down()
    worker.segment(*[pull()] * 40)

    heard = subscriber.heard()
    assert len(heard) == len(set(heard)) == 80
    for kind, job_id in heard:
        if kind == "pulled":
            assert heard.index(("pushed", job_id)) < heard.index((kind, job_id))
    buffered = [job_id for kind, job_id in heard if kind == "pushed" and job_id[0] == "b"]
    assert buffered == [f"b{n}" for n in range(20)]


async def test_each_kind_says_what_belongs_to_it(rig: Rig, autojump_clock):
    subscriber, talker = Subscriber(rig), rig.talker()

    async def do(cmd: str, **fields: Any) -> dict[str, Any]:
        talker.segment({"cmd": cmd, **fields})
        await settle_down()
        return talker.take()[0]

    async def work(**options: Any) -> tuple[str, str]:
        job_id = (await do("PUSH", queue=QUEUE, data={"n": 1}, **options))["id"]
        return job_id, (await do("PULL", queue=QUEUE, owner="w", lockTtl=1_000))["token"]

    def told() -> list[dict[str, Any]]:
        """Events since the last call, but for pushes and deliveries, without what all have."""
        events = [without_time(frame)["event"] for frame in subscriber.take()]
        assert {event.pop("queue") for event in events} == {QUEUE}
        return [event for event in events if event["eventType"] not in ("pushed", "pulled")]

    job_id, token = await work(maxAttempts=2, backoff=0)
    about = {"jobId": job_id}
    await do("Progress", id=job_id, progress=30, message="m")
    await do("FAIL", id=job_id, token=token, error="x")
    assert told() == [
        {"eventType": "progress", **about, "progress": 30, "data": {"progress": 30, "message": "m"}},
        {"eventType": "failed", **about, "error": "x", "data": {"n": 1}, "terminal": False},
        {"eventType": "retried", **about, "prev": "failed"},
    ]
    token = (await do("PULL", queue=QUEUE, owner="w"))["token"]
    await do("FAIL", id=job_id, token=token)
    assert told() == [{"eventType": "failed", **about, "data": {"n": 1}, "terminal": True}]

    job_id, _ = await work()
    about = {"jobId": job_id}
    await do("MoveToDelayed", id=job_id, delay=5)
    await trio.sleep(0.1)
    await do("PULL", queue=QUEUE, owner="w")
    await do("MoveToWait", id=job_id)
    await do("Cancel", id=job_id)
    assert told() == [
        {"eventType": "delayed", **about, "delay": 5},
        {"eventType": "waiting", **about, "prev": "active"},
        {"eventType": "removed", **about, "prev": "waiting"},
    ]

    job_id, token = await work(uniqueKey="k")
    about = {"jobId": job_id}
    await do("PUSH", queue=QUEUE, data=1, uniqueKey="k")
    await do("ACK", id=job_id, token=token)
    assert told() == [{"eventType": "duplicated", **about}, {"eventType": "completed", **about}]

    job_id, _ = await work(maxAttempts=2)
    about = {"jobId": job_id}
    await trio.sleep(3.1)  # end of the lock, and its grace
    await do("PULL", queue=QUEUE, owner="w", lockTtl=1_000)
    await trio.sleep(3.1)
    assert told() == [
        {"eventType": "stalled", **about},
        {"eventType": "stalled", **about, "data": {"stallCount": 2, "action": "move_to_dlq"}},
        {"eventType": "failed", **about, "error": "Lock expired at max attempts (2)"},
    ]

    for command in ("Pause", "Pause", "Resume", "Resume"):
        await do(command, queue=QUEUE)
    kinds = ["paused", "paused", "resumed", "resumed"]
    assert told() == [{"eventType": kind, "jobId": ""} for kind in kinds]


# what it costs


async def test_nothing_is_made_while_nobody_subscribes_and_of_queues_that_nobody_has_subscribed_to(
    rig: Rig, mock_clock
):
    rig.push("a")
    assert rig.engine.state.events is None
    subscribers = [Subscriber(rig, f"other-{n}") for n in range(1_000)]
    before = rig.broker.events.published_count

    rig.talker().segment(*pushes(f"j{n}" for n in range(100)), {"cmd": "PULLB", "queue": QUEUE, "count": 100})

    assert rig.broker.events.published_count == before
    assert not any(subscriber.replies for subscriber in subscribers)


async def test_a_subscriber_that_does_not_read_is_cut_at_its_budget_and_counted(rig: Rig, connect, autojump_clock, log):
    config = Config(tcp_max_write_queue_bytes=100_000)
    slow, good = connect(rig, config, buffer_bytes=4_096), connect(rig)
    for wire in (slow, good):
        assert await wire.call("SubscribeEvents", queue=QUEUE) == {"ok": True}
    for n in range(2):
        await fail_one(rig, f"j{n}")
    assert not slow.has_ended.is_set()

    for n in range(2, 4):
        await fail_one(rig, f"j{n}")
    await slow.has_ended.wait()

    assert [line["message"] for line in log()] == ["Closing connection: write queue exceeded budget"]
    assert rig.broker.events.cut_off_count == 1
    assert rig.broker.events.queue_events.subscriber_count == 1
    assert "bunqueue_event_subscribers_cut_off_total 1" in exposition(rig)
    assert "bunqueue_tcp_event_subscribers 1" in exposition(rig)
    assert [frame["event"]["eventType"] for frame in await good.replies(12)] == ["pushed", "pulled", "failed"] * 4


async def fail_one(rig: Rig, job_id: str) -> None:
    """An event that carries 45 kB."""
    rig.push(job_id, maxAttempts=1, data="x" * 45_000)
    worker = rig.talker()
    worker.segment(pull())
    worker.segment({"cmd": "FAIL", "id": job_id, "token": worker.take()[0]["token"]})
    await settle_down()


def exposition(rig: Rig) -> str:
    monitoring: Monitoring = rig.broker.monitoring
    return monitoring.exposition(rig.clock.now())


async def test_a_connection_that_ends_while_events_wait_for_it_is_no_trouble(rig: Rig, connect, autojump_clock):
    wire, other = connect(rig, buffer_bytes=4_096), connect(rig)
    await wire.call("SubscribeEvents", queue=QUEUE)
    await other.send(*pushes([f"j{n}" for n in range(2_000)]))
    await other.replies(2_000)
    assert not wire.has_ended.is_set()

    wire.close()
    await wire.has_ended.wait()
    rig.push("a")

    assert rig.broker.events.queue_events.subscriber_count == 0
    assert (await other.call("Ping"))["ok"]


async def test_a_client_that_closes_its_half_gets_what_was_on_its_way(rig: Rig, connect, autojump_clock):
    wire, other = connect(rig, buffer_bytes=4_096), connect(rig)
    await wire.call("SubscribeEvents", queue=QUEUE)
    await other.send(*pushes([f"j{n}" for n in range(500)]))
    await other.replies(500)

    wire.socket.shutdown(trio.socket.SHUT_WR)

    assert [frame["event"]["jobId"] for frame in await wire.replies(500)] == [f"j{n}" for n in range(500)]
    assert await is_cut(wire)


async def test_who_comes_back_subscribes_anew_and_goes_on(rig: Rig, connect, autojump_clock):
    first = connect(rig)
    await first.call("SubscribeEvents", queue=QUEUE)
    first.close()
    await settle_down()
    rig.push("missed")
    second = connect(rig)
    await second.silence()

    await second.call("SubscribeEvents", queue=QUEUE)
    rig.push("a")

    assert (await second.reply())["event"]["jobId"] == "a"
    await second.silence()


async def test_a_pull_that_waits_on_the_same_connection_gets_its_job_and_its_events(rig: Rig, connect, autojump_clock):
    wire = connect(rig)
    await wire.call("SubscribeEvents", queue=QUEUE)
    await wire.send(pull(timeout=5_000, reqId="p"))
    await wire.silence()

    rig.push("a")

    frames = await wire.replies(3)
    assert [frame["event"]["eventType"] for frame in frames if "event" in frame] == ["pushed", "pulled"]
    assert [frame["job"]["id"] for frame in frames if frame.get("reqId") == "p"] == ["a"]


class Finished(Wire):
    """Waits for jobs as clients do: subscribes, then asks once, then listens."""

    async def wait_until_finished(self, job_id: str) -> Any:
        await self.send({"cmd": "GetState", "id": job_id}, {"cmd": "GetResult", "id": job_id})
        replies: list[dict[str, Any]] = []
        while len(replies) < 2:
            frame = await self.reply()
            if "event" not in frame:
                replies.append(frame)
            elif frame["event"]["eventType"] == "completed" and frame["event"]["jobId"] == job_id:
                return frame["event"]["data"]
        state, result = replies
        if state["state"] == "completed":
            return result["result"]
        while True:
            event = (await self.reply())["event"]
            if event["eventType"] == "completed" and event["jobId"] == job_id:
                return event["data"]


async def test_connections_that_wait_for_the_end_of_a_job_each_hear_of_it(
    rig: Rig, nursery: trio.Nursery, autojump_clock
):
    """Before, while and after the jobs end: nobody hangs, and everybody gets the result of his own job."""
    count, results = 300, {}
    nursery.start_soon(rig.broker.events.queue_events.run)
    rig.talker().segment(*pushes(f"j{n}" for n in range(count)))

    async def wait(n: int) -> None:
        wire = Finished(rig)
        nursery.start_soon(wire.serve)
        await wire.call("SubscribeEvents", queue=QUEUE)
        results[n] = await wire.wait_until_finished(f"j{n}")
        wire.close()

    async def work(first: int) -> None:
        talker = rig.talker()
        talker.say("PULLB", queue=QUEUE, count=100)
        jobs = talker.take()[0]["jobs"]
        for job in jobs:
            talker.segment({"cmd": "ACK", "id": job["id"], "result": job["id"]})
            await trio.sleep(0.001)
        assert len(jobs) == 100

    async with trio.open_nursery() as waiters:
        for n in range(count):
            waiters.start_soon(wait, n)
            if n % 100 == 50:
                waiters.start_soon(work, n)

    assert results == {n: f"j{n}" for n in range(count)}
