"""Fan-out: who gets what, what a slow subscriber costs (itself), and that silence costs nothing.

Source: design, "The hot path"; style (h) 5.
"""

import pytest
import trio
from msgspec import Raw

from bunqueue_trio.errors import LimitError
from bunqueue_trio.model.events import SystemEvent
from bunqueue_trio.server import events as events_module
from bunqueue_trio.server.events import Events
from tests.server.fakes import settle_down
from tests.server.webhook_fakes import event


class Recorder:
    def __init__(self) -> None:
        self.taken: list = []

    def take(self, events) -> None:
        self.taken.extend(events)


def numbered(count: int, start: int = 0) -> list:
    return [event(job_id=str(number)) for number in range(start, start + count)]


def test_without_listeners_nothing_is_published():
    events = Events()

    events.publish(numbered(3))

    assert not events.is_listened_to
    assert events.published_count == 0


def test_a_listener_takes_events_on_the_spot():
    events, recorder = Events(), Recorder()
    events.add(recorder)
    events.add(recorder)

    events.publish(numbered(2))
    events.remove(recorder)
    events.publish(numbered(2))

    assert [taken.job_id for taken in recorder.taken] == ["0", "1"]
    assert events.published_count == 2
    events.remove(recorder)


def test_a_follower_takes_events_while_there_are_subscribers_and_is_no_reason_to_make_any():
    told: list[bool] = []
    events, follower, listener = Events(told.append), Recorder(), Recorder()
    events.add_follower(follower)
    assert told == []
    assert not events.is_listened_to

    events.add(listener)
    events.publish(numbered(1))
    with events.subscribe():
        events.publish(numbered(1, start=1))
    events.publish(numbered(1, start=2))

    assert [taken.job_id for taken in follower.taken] == ["1"]
    assert len(listener.taken) == 3


def test_the_engine_is_told_when_listening_begins_and_ends():
    told: list[bool] = []
    events, recorder = Events(told.append), Recorder()

    events.add(recorder)
    with events.subscribe(), events.subscribe():
        events.remove(recorder)
        assert told == [True]

    assert told == [True, False]
    assert not events.is_listened_to


async def test_a_subscriber_gets_every_event_in_order(nursery, autojump_clock):
    events, got = Events(), []

    async def read() -> None:
        with events.subscribe() as subscription:
            async for found in subscription:
                got.append(found.job_id)  # noqa: PERF401  (seen as they come)

    nursery.start_soon(read)
    await settle_down()
    events.publish(numbered(2))
    await settle_down()
    events.publish(numbered(2, start=2))
    await settle_down()

    assert got == ["0", "1", "2", "3"]
    events.close()
    await settle_down()
    assert events.subscriber_count == 0


async def test_an_event_that_was_read_makes_room():
    events, large = Events(), event(data=Raw(b"x" * 60))
    with events.subscribe(max_events=2, max_bytes=120) as subscription:
        events.publish([large, large])
        async for _ in subscription:
            break
        events.publish([large])
        assert not subscription.is_closed

        assert len(subscription.take_nowait()) == 2
        assert not subscription.was_too_slow


async def test_what_a_subscriber_does_not_want_takes_no_room():
    events = Events()

    with events.subscribe(lambda found: found.queue == "mail", max_events=1) as subscription:
        events.publish([event(queue="other"), event(queue="mail"), event(queue="other")])

        assert [found.queue for found in await subscription.wait()] == ["mail"]
        assert not subscription.is_closed


async def test_a_full_buffer_is_still_delivered_and_one_event_more_closes_it():
    events = Events()
    with events.subscribe(max_events=3) as full, events.subscribe(max_events=3) as slow:
        events.publish(numbered(3))
        assert len(await full.wait()) == 3

        events.publish(numbered(1))

        assert (slow.is_closed, slow.was_too_slow) == (True, True)
        assert not full.is_closed
        assert await slow.wait() == []
        assert events.cut_off_count == 1
        assert events.subscriber_count == 1


async def test_payloads_are_bounded_by_their_bytes():
    events = Events()
    large = event(data=Raw(b"x" * 60))
    with events.subscribe(max_bytes=100) as subscription:
        events.publish([large])
        assert len(await subscription.wait()) == 1
        events.publish([event(data=Raw(b"x" * 40)), large])
        assert not subscription.is_closed

        events.publish([event(data=Raw(b"x"))])

        assert subscription.was_too_slow


async def test_a_single_event_larger_than_the_buffer_still_passes():
    events = Events()
    with events.subscribe(max_bytes=100) as subscription:
        events.publish([event(data=Raw(b"x" * 5_000))])

        assert len(await subscription.wait()) == 1


async def test_a_slow_subscriber_does_not_keep_others_from_their_events():
    events, recorder = Events(), Recorder()
    with events.subscribe(max_events=1), events.subscribe() as quick:
        events.add(recorder)
        events.publish(numbered(3))

        assert len(await quick.wait()) == 3
        assert len(recorder.taken) == 3


async def test_the_iteration_of_a_slow_subscriber_ends(autojump_clock):
    events = Events()
    with events.subscribe(max_events=1) as subscription:
        events.publish(numbered(2))

        assert [found async for found in subscription] == []


def test_the_number_of_subscribers_is_bounded(monkeypatch):
    monkeypatch.setattr(events_module, "MAX_SUBSCRIBERS", 2)
    events = Events()

    with events.subscribe(), events.subscribe():
        with pytest.raises(LimitError, match="Too many subscribers"), events.subscribe():
            pass
        assert events.subscriber_count == 2

    assert events.subscriber_count == 0


async def test_a_cancelled_wait_has_taken_nothing(autojump_clock):
    events = Events()
    with events.subscribe() as subscription:
        with trio.move_on_after(1):
            await subscription.wait()
        events.publish(numbered(1))

        assert len(await subscription.wait()) == 1


async def test_events_are_dropped_with_a_closed_subscription():
    events = Events()
    with events.subscribe() as subscription:
        events.publish(numbered(1))
        events.close()
        events.publish(numbered(1))

        assert subscription.take_nowait() == []
        assert not subscription.was_too_slow


class Members:
    """An audience."""

    def __init__(self, log: list, count: int) -> None:
        self._log = log
        self.member_count = count

    def take(self, events) -> None:
        self._log.append(("audience", len(events)))


class Notes:
    def __init__(self, log: list, name: str) -> None:
        self._log = log
        self._name = name

    def take(self, events) -> None:
        self._log.append((self._name, len(events)))


@pytest.mark.parametrize(("count", "hears"), [(1, ["audience", "follower", "listener"]), (0, ["audience", "listener"])])
def test_an_audience_hears_before_others_and_counts_its_members(count, hears):
    log: list = []
    told: list[bool] = []
    events = Events(told.append)
    events.add(Notes(log, "listener"))
    events.add_follower(Notes(log, "follower"))
    audience = Members(log, count)
    events.add_audience(audience)
    events.add_audience(audience)

    events.publish([SystemEvent("memory:compacted", 1.0, {})])

    assert [name for name, _ in log] == hears
    assert events.subscriber_count == count
    events.remove_audience(audience)
    events.remove_audience(audience)
    assert events.subscriber_count == 0
    assert told == [True]
