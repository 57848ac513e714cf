"""The way of an event to its receivers: tries and pauses, counters, bounds, and the stop.

Source: scheduling and flows, "Delivery", SD-12.
"""

import hashlib
import hmac

import pytest
import trio
from msgspec import Raw

from bunqueue_trio.clock import TrioClock
from bunqueue_trio.server.webhooks import delivering
from bunqueue_trio.server.webhooks.bodies import webhook_body
from bunqueue_trio.server.webhooks.delivering import Deliveries
from tests.server.fakes import settle_down
from tests.server.webhook_fakes import FakePoster, collect, event, lane, payload


class Rig:
    def __init__(self, *, max_tries: int = 3, retry_delay_ms: float = 1_000) -> None:
        self.poster = FakePoster()
        self.clock = TrioClock()
        self.deliveries = Deliveries(self.poster, self.clock, max_tries=max_tries, retry_delay_ms=retry_delay_ms)
        self.outcomes = collect(self.deliveries)

    def check_empty(self) -> None:
        assert self.deliveries.pending_count == 0
        assert self.deliveries.held_bytes == 0


@pytest.fixture
async def rig(nursery):
    made = Rig()
    await nursery.start(made.deliveries.run)
    return made


async def test_a_delivery_is_counted_with_its_time(rig, autojump_clock):
    hook = lane()
    await trio.sleep(7)

    assert rig.deliveries.accept(hook, event())
    await settle_down()

    assert (hook.success_count, hook.failure_count) == (1, 0)
    assert hook.last_triggered == rig.clock.now().wall_ms
    assert [(outcome.event_name, outcome.error) for outcome in rig.outcomes] == [("job.pushed", None)]
    assert rig.deliveries.delivered_count == 1
    rig.check_empty()


async def test_tries_are_spaced_by_growing_pauses_and_counted_once(rig, autojump_clock):
    hook = lane()
    rig.poster.default = "HTTP 500"
    start = trio.current_time()

    rig.deliveries.accept(hook, event())
    await trio.sleep(60)

    assert [at - start for at, *_ in rig.poster.posts] == pytest.approx([0, 1, 3])
    assert (hook.success_count, hook.failure_count, hook.last_triggered) == (0, 1, None)
    assert [outcome.error for outcome in rig.outcomes] == ["HTTP 500"]
    assert rig.deliveries.failed_count == 1
    rig.check_empty()


@pytest.mark.parametrize(("max_tries", "delay_ms", "times"), [(1, 5, [0]), (2, 5, [0, 0.005]), (4, 0, [0, 0, 0, 0])])
async def test_number_and_pause_are_settings(nursery, autojump_clock, max_tries, delay_ms, times):
    rig = Rig(max_tries=max_tries, retry_delay_ms=delay_ms)
    await nursery.start(rig.deliveries.run)
    rig.poster.default = "HTTP 500"
    start = trio.current_time()

    rig.deliveries.accept(lane(), event())
    await trio.sleep(60)

    assert [at - start for at, *_ in rig.poster.posts] == pytest.approx(times)


async def test_a_later_try_that_succeeds_is_no_failure(rig, autojump_clock):
    hook = lane()
    rig.poster.results.extend(["HTTP 500", "HTTP 503"])

    rig.deliveries.accept(hook, event())
    await trio.sleep(60)

    assert (hook.success_count, hook.failure_count) == (1, 0)


async def test_body_headers_and_signature_are_the_same_at_every_try(rig, autojump_clock):
    rig.poster.default = "HTTP 500"
    given = event("completed", data=payload({"a": [1, 2]}))

    rig.deliveries.accept(lane(secret="s3"), given)
    await trio.sleep(60)

    assert len({(tuple(headers), body) for _, _, headers, body in rig.poster.posts}) == 1
    _, _, headers, body = rig.poster.posts[0]
    assert body == webhook_body(given)
    assert dict(headers)["X-Webhook-Signature"] == hmac.new(b"s3", body, hashlib.sha256).hexdigest()


async def test_a_large_payload_becomes_json_in_a_thread(rig, monkeypatch):
    threads = []
    monkeypatch.setattr(
        delivering,
        "webhook_body",
        lambda given: threads.append(trio.from_thread.run_sync(trio.current_time)) or webhook_body(given),
    )
    done = trio.Event()
    rig.deliveries.on_outcome = lambda outcome: done.set()

    rig.deliveries.accept(lane(), event("completed", data=payload("x" * delivering.IN_THREAD_FROM_BYTES)))
    with trio.fail_after(5):
        await done.wait()

    assert len(threads) == 1
    assert len(rig.poster.posts) == 1


async def test_a_payload_that_cannot_be_sent_is_a_failure_without_a_try(nursery, monkeypatch, autojump_clock):
    monkeypatch.setattr(delivering, "IN_THREAD_FROM_BYTES", 1 << 30)  # threads and virtual time do not mix
    rig, hook = Rig(), lane()
    await nursery.start(rig.deliveries.run)

    rig.deliveries.accept(hook, event("completed", data=payload(bytes((1 << 20) + 1))))
    await settle_down()

    assert rig.poster.posts == []
    assert hook.failure_count == 1
    rig.check_empty()


async def test_a_defect_in_one_delivery_stops_neither_the_server_nor_the_next(rig, autojump_clock):
    hook = lane()
    rig.poster.results.append(RuntimeError("oops"))

    rig.deliveries.accept(hook, event())
    rig.deliveries.accept(hook, event())
    await trio.sleep(60)

    assert (hook.success_count, hook.failure_count) == (1, 1)
    rig.check_empty()


async def test_four_at_a_time_per_webhook(rig, autojump_clock):
    hook = lane(url="http://slow.com/")
    rig.poster.hanging.add("slow.com")

    for _ in range(20):
        rig.deliveries.accept(hook, event())
    await settle_down()

    assert rig.poster.under_way == delivering.WORKERS_PER_WEBHOOK
    assert rig.deliveries.pending_count == 20


async def test_a_dead_receiver_does_not_hold_up_the_others(rig, autojump_clock):
    dead, alive = lane("d", "http://dead.com/"), lane("a", "http://alive.com/")
    rig.poster.hanging.add("dead.com")
    start = trio.current_time()

    for _ in range(500):
        rig.deliveries.accept(dead, event())
        rig.deliveries.accept(alive, event())
    await settle_down()

    assert alive.success_count == 500
    assert trio.current_time() == start


async def test_tries_are_bounded_over_all_webhooks_and_pauses_hold_no_slot(rig, autojump_clock, monkeypatch):
    lanes = [lane(str(number), f"http://h{number}.com/") for number in range(60)]
    rig.poster.hanging |= {hook.url.host for hook in lanes}

    for hook in lanes:
        for _ in range(4):
            rig.deliveries.accept(hook, event())
    await settle_down()
    assert rig.poster.under_way == delivering.MAX_IN_FLIGHT
    await trio.sleep(600)

    assert rig.poster.most_under_way == delivering.MAX_IN_FLIGHT
    assert all(hook.failure_count == 4 for hook in lanes)
    rig.check_empty()


async def test_a_lane_that_is_full_drops_and_counts(rig, autojump_clock):
    hook = lane(url="http://dead.com/")
    rig.poster.hanging.add("dead.com")
    room = delivering.MAX_WAITING + delivering.WORKERS_PER_WEBHOOK
    for _ in range(delivering.WORKERS_PER_WEBHOOK):
        rig.deliveries.accept(hook, event())
    await settle_down()

    accepted = [rig.deliveries.accept(hook, event()) for _ in range(delivering.MAX_WAITING + 3)]

    assert accepted == [True] * delivering.MAX_WAITING + [False] * 3
    assert rig.deliveries.pending_count == room
    assert rig.deliveries.dropped_count == 3
    assert hook.failure_count == 3
    assert [outcome.error for outcome in rig.outcomes] == ["too many events wait for the receiver"] * 3


async def test_drops_and_failures_are_logged_once_and_so_is_the_recovery(rig, autojump_clock, capsys):
    hook = lane("w1", "http://dead.com/")
    rig.poster.hanging.add("dead.com")
    for _ in range(delivering.MAX_WAITING + 10):
        rig.deliveries.accept(hook, event())
    rig.poster.hanging.clear()
    await trio.sleep(60)
    captured = capsys.readouterr()

    assert captured.err.count("Webhook events are dropped") == 1
    assert captured.err.count("Webhook delivery failed") == 1
    assert captured.out.count("Webhook delivers again") == 1
    assert '"w1"' in captured.err


async def test_the_bytes_of_a_lane_are_bounded(rig, autojump_clock, monkeypatch):
    monkeypatch.setattr(delivering, "MAX_WAITING_BYTES", 100)
    hook = lane(url="http://dead.com/")
    rig.poster.hanging.add("dead.com")
    for _ in range(delivering.WORKERS_PER_WEBHOOK):
        rig.deliveries.accept(hook, event())
    await settle_down()
    half = event("completed", data=Raw(payload("x" * 48)))

    assert half.payload_bytes == 50
    assert [rig.deliveries.accept(hook, half) for _ in range(3)] == [True, True, False]


async def test_a_single_event_larger_than_the_bound_of_its_lane_passes(rig, autojump_clock, monkeypatch):
    monkeypatch.setattr(delivering, "MAX_WAITING_BYTES", 10)
    hook = lane()

    assert rig.deliveries.accept(hook, event("completed", data=payload("x" * 100)))
    await settle_down()

    assert hook.success_count == 1


async def test_number_and_bytes_over_all_webhooks_are_bounded(rig, autojump_clock, monkeypatch):
    monkeypatch.setattr(delivering, "MAX_WAITING_IN_ALL", 3)
    first, second = lane("a", "http://dead.com/"), lane("b", "http://dead.com/")
    assert [rig.deliveries.accept(first, event()) for _ in range(2)] == [True, True]
    assert [rig.deliveries.accept(second, event()) for _ in range(2)] == [True, False]

    monkeypatch.setattr(delivering, "MAX_WAITING_IN_ALL", 20_000)
    monkeypatch.setattr(delivering, "MAX_BYTES_IN_ALL", 100)
    heavy = event("completed", data=payload("x" * 58))
    assert [rig.deliveries.accept(lane(str(number)), heavy) for number in range(3)] == [True, False, False]


async def test_bodies_under_way_count_as_held(rig, autojump_clock):
    rig.poster.hanging.add("dead.com")

    rig.deliveries.accept(lane(url="http://dead.com/"), event("completed", data=payload("x" * 100)))
    await settle_down()

    assert rig.deliveries.held_bytes > 200
    await trio.sleep(100)
    rig.check_empty()


async def test_a_withdrawn_webhook_gets_nothing_more(rig, autojump_clock):
    hook = lane(url="http://dead.com/")
    rig.poster.hanging.add("dead.com")
    for _ in range(10):
        rig.deliveries.accept(hook, event("completed", data=payload("x")))
    await settle_down()
    assert len(rig.poster.posts) == 4

    rig.deliveries.close_lane(hook)
    await trio.sleep(600)

    assert len(rig.poster.posts) == 4
    rig.check_empty()


async def test_events_that_come_before_the_start_are_delivered_after_it(nursery, autojump_clock):
    rig, hook = Rig(), lane()
    rig.deliveries.accept(hook, event())
    rig.deliveries.accept(hook, event())

    await nursery.start(rig.deliveries.run)
    await settle_down()

    assert hook.success_count == 2


async def test_draining_waits_for_what_is_on_its_way_and_takes_nothing_more(rig, autojump_clock):
    hook = lane()
    rig.poster.results.append("HTTP 500")
    rig.deliveries.accept(hook, event())
    await settle_down()

    with trio.fail_after(2):
        await rig.deliveries.drain()

    assert hook.success_count == 1
    assert not rig.deliveries.accept(hook, event())
    assert rig.outcomes[-1].error == "the server is stopping"


async def test_draining_nothing_takes_no_time(rig, autojump_clock):
    start = trio.current_time()

    await rig.deliveries.drain()

    assert trio.current_time() == start


async def test_draining_ends_when_the_last_webhook_is_withdrawn(rig, nursery, autojump_clock):
    rig.deliveries._nursery = None  # nobody works yet
    hook = lane()
    rig.deliveries.accept(hook, event())
    nursery.start_soon(rig.deliveries.drain)
    await settle_down()

    rig.deliveries.close_lane(hook)

    with trio.fail_after(1):
        await rig.deliveries.drain()


async def test_the_stop_ends_deliveries_at_once_and_tells_how_many(autojump_clock, capsys):
    rig, hook = Rig(), lane(url="http://dead.com/")
    rig.poster.hanging.add("dead.com")
    async with trio.open_nursery() as nursery:
        await nursery.start(rig.deliveries.run)
        for _ in range(6):
            rig.deliveries.accept(hook, event())
        await settle_down()
        nursery.cancel_scope.cancel()

    assert rig.poster.under_way == 0
    assert 'given up at the stop {"count":6}' in capsys.readouterr().err
    assert not rig.deliveries.accept(hook, event())
