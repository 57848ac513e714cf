"""Events of single queues on their way: encoded once, in order, to whom they concern, and in slices where many listen.

Source: newer clients, "Events"; D-105.
"""

import pytest
import trio
from msgspec import Raw

from bunqueue_trio.errors import LimitError
from bunqueue_trio.model.events import NewerJobEvent, SystemEvent
from bunqueue_trio.protocol import codec
from bunqueue_trio.server import queue_events as module
from bunqueue_trio.server.events import Events
from bunqueue_trio.server.queue_events import QueueEvents
from tests.server.fakes import settle_down, unframe
from tests.server.webhook_fakes import event


class Listener:
    """A receiver that remembers its pieces, and may take its time over them."""

    def __init__(self, watch: "Watch | None" = None, takes_ms: float = 0.0) -> None:
        self.pieces: list[bytes] = []
        self._watch = watch
        self._takes_ms = takes_ms

    def tell(self, frames: bytes) -> None:
        self.pieces.append(frames)
        if self._watch is not None:
            self._watch.ms += self._takes_ms

    @property
    def ids(self) -> list[str]:
        return [frame["event"]["jobId"] for frame in unframe(b"".join(self.pieces))]


class Watch:
    """Real time, that moves only when told."""

    def __init__(self) -> None:
        self.ms = 0.0

    def __call__(self) -> float:
        return self.ms


@pytest.fixture
def watch() -> Watch:
    return Watch()


@pytest.fixture
def queue_events(watch: Watch) -> QueueEvents:
    return QueueEvents(watch)


def listeners(queue_events: QueueEvents, count: int, queue: str = "q", **options) -> list[Listener]:
    made = [Listener(**options) for _ in range(count)]
    for listener in made:
        queue_events.subscribe(listener, queue)
    return made


def numbered(*ids: str, queue: str = "q") -> list:
    return [event(job_id=job_id, queue=queue) for job_id in ids]


# who hears what


def test_an_event_goes_to_the_subscribers_of_its_queue_in_order(queue_events):
    mail, other = listeners(queue_events, 1, "mail") + listeners(queue_events, 1, "other")

    queue_events.take([*numbered("1", queue="mail"), *numbered("2", queue="other"), *numbered("3", queue="mail")])
    queue_events.take(numbered("4", queue="mail"))

    assert mail.ids == ["1", "3", "4"]
    assert other.ids == ["2"]


def test_what_is_about_no_job_is_not_for_them(queue_events):
    [listener] = listeners(queue_events, 1)

    queue_events.take([SystemEvent("queue:created", 1.0, {"queue": "q"})])

    assert listener.pieces == []


def test_one_turn_is_one_piece_encoded_once_and_shared_by_all(queue_events, monkeypatch):
    encoded = []
    monkeypatch.setattr(module, "encode_event", lambda e: encoded.append(e) or codec.encode_event(e))
    made = listeners(queue_events, 3)

    queue_events.take(numbered("1", "2"))

    assert len(encoded) == 2
    assert {len(listener.pieces) for listener in made} == {1}
    assert len({id(listener.pieces[0]) for listener in made}) == 1


def test_a_thousand_subscribers_to_other_queues_cost_a_queue_nothing(queue_events, monkeypatch):
    encoded = []
    monkeypatch.setattr(module, "encode_event", lambda e: encoded.append(e) or b"")
    for n in range(1_000):
        listeners(queue_events, 1, f"other-{n}")

    queue_events.take(numbered(*map(str, range(100))))

    assert encoded == []


def test_a_second_subscription_replaces_the_first(queue_events):
    [listener] = listeners(queue_events, 1, "first")
    queue_events.subscribe(listener, "second")

    queue_events.take(numbered("1", queue="first") + numbered("2", queue="second"))

    assert listener.ids == ["2"]
    assert queue_events.subscriber_count == 1
    assert "first" not in queue_events.queues


def test_who_unsubscribes_hears_nothing_more_and_may_do_so_again(queue_events):
    leaves, stays = listeners(queue_events, 2)
    queue_events.take(numbered("1"))

    queue_events.unsubscribe(leaves)
    queue_events.unsubscribe(leaves)
    queue_events.take(numbered("2"))

    assert (leaves.ids, stays.ids) == (["1"], ["1", "2"])


def test_a_queue_that_nobody_is_left_for_is_forgotten(queue_events):
    [listener] = listeners(queue_events, 1)
    assert "q" in queue_events.queues

    queue_events.unsubscribe(listener)

    assert "q" not in queue_events.queues
    assert queue_events.subscriber_count == 0


def test_there_may_be_so_many_subscribers_and_no_more(watch):
    queue_events = QueueEvents(watch, max_subscribers=2)
    first, _ = listeners(queue_events, 2)
    late = Listener()

    with pytest.raises(LimitError, match=r"^Too many event subscribers \(max 2\)$"):
        queue_events.subscribe(late, "q")
    queue_events.subscribe(first, "other")  # who is there already may change
    queue_events.unsubscribe(first)
    queue_events.subscribe(late, "q")

    assert queue_events.subscriber_count == 2


# slices and rests


async def test_sending_that_takes_long_is_cut_in_slices_and_goes_on(nursery, queue_events, watch, autojump_clock):
    made = listeners(queue_events, 100, watch=watch, takes_ms=0.25)
    await nursery.start(queue_events.run)

    queue_events.take(numbered("1"))
    at_once = sum(bool(listener.pieces) for listener in made)
    for _ in range(20):
        watch.ms += 50
        await trio.sleep(0.05)

    assert at_once == module.LOOK_EVERY
    assert [listener.ids for listener in made] == [["1"]] * 100
    nursery.cancel_scope.cancel()


async def test_after_a_slice_events_wait_and_leave_together(nursery, queue_events, watch, autojump_clock):
    [listener] = listeners(queue_events, 1, watch=watch, takes_ms=4.0)
    await nursery.start(queue_events.run)
    queue_events.take(numbered("1"))

    for n in "2345":
        queue_events.take(numbered(n))
        watch.ms += 1
    assert len(listener.pieces) == 1
    await settle_down()
    assert len(listener.pieces) == 1  # it rests for twice as long as sending took
    watch.ms += 10
    await trio.sleep(0.02)

    assert len(listener.pieces) == 2
    assert listener.ids == ["1", "2", "3", "4", "5"]
    nursery.cancel_scope.cancel()


def rest(queue_events: QueueEvents, watch: Watch) -> Listener:
    """Make what follows wait; the subscriber to queue ``slow`` that has taken so long."""
    [slow] = listeners(queue_events, 1, "slow", watch=watch, takes_ms=100.0)
    queue_events.take(numbered("0", queue="slow"))
    return slow


def test_who_subscribes_while_events_wait_hears_of_later_ones_only(queue_events, watch):
    rest(queue_events, watch)
    [early] = listeners(queue_events, 1)
    queue_events.take(numbered("1"))
    [late] = listeners(queue_events, 1)
    queue_events.take(numbered("2"))
    [latest] = listeners(queue_events, 1)

    queue_events.send_all()
    queue_events.take(numbered("3"))
    queue_events.send_all()

    assert (early.ids, late.ids, latest.ids) == (["1", "2", "3"], ["2", "3"], ["3"])


def test_who_subscribes_anew_while_events_wait_gets_none_of_before(queue_events, watch):
    rest(queue_events, watch)
    [listener] = listeners(queue_events, 1)
    queue_events.take(numbered("1"))
    queue_events.subscribe(listener, "q")
    queue_events.take(numbered("2"))

    queue_events.send_all()

    assert listener.ids == ["2"]


async def test_who_leaves_while_its_piece_waits_does_not_get_it(queue_events, watch):
    made = listeners(queue_events, 40, watch=watch, takes_ms=1.0)
    queue_events.take(numbered("1"))
    last = made[-1]
    assert last.pieces == []

    queue_events.unsubscribe(last)
    queue_events.subscribe(last, "q")
    queue_events.send_all()

    assert last.pieces == []
    assert made[-2].ids == ["1"]


def test_no_more_than_so_much_waits(queue_events, watch, monkeypatch):
    monkeypatch.setattr(module, "MAX_WAITING_BYTES", 1_000)
    rest(queue_events, watch)
    [listener] = listeners(queue_events, 1)
    large = event(job_id="1", data=Raw(b"\xc4\xff" + b"x" * 255))
    for _ in range(2):
        queue_events.take([large])
    assert listener.pieces == []

    queue_events.take([large, large])

    assert len(listener.ids) == 4


def test_what_waits_for_nobody_any_more_takes_no_room(queue_events, watch, monkeypatch):
    monkeypatch.setattr(module, "MAX_WAITING_BYTES", 1_000)
    rest(queue_events, watch)
    large = event(job_id="1", data=Raw(b"\xc4\xff" + b"x" * 255))
    for _ in range(2):
        [listener] = listeners(queue_events, 1)
        queue_events.take([large])
        queue_events.unsubscribe(listener)
    queue_events.send_all()
    rest(queue_events, watch)
    [listener] = listeners(queue_events, 1)

    queue_events.take([large, large])

    assert listener.pieces == []


# beside other listeners


class Recorder:
    def __init__(self) -> None:
        self.taken: list = []

    def take(self, events) -> None:
        self.taken.extend(events)


def test_the_engine_is_told_of_what_is_heard():
    listening: list = []
    hearing: list = []
    events, recorder, listener = Events(listening.append, hearing.append), Recorder(), Listener()

    events.subscribe_queue(listener, "q")
    events.add(recorder)
    events.remove(recorder)
    events.unsubscribe_queue(listener)

    assert listening == [True, False]
    assert hearing == [None, events.queue_events.queues]


def test_subscribers_of_queues_are_no_reason_for_followers_and_others_hear_nothing_newer():
    events, follower, recorder, listener = Events(), Recorder(), Recorder(), Listener()
    events.add_follower(follower)
    events.subscribe_queue(listener, "q")
    newer = NewerJobEvent("stalled", "q", "2", 1.0)

    events.publish([*numbered("1"), newer])
    assert (listener.ids, follower.taken, events.subscriber_count) == (["1", "2"], [], 0)
    events.add(recorder)
    events.publish([*numbered("3"), newer])

    assert [taken.job_id for taken in recorder.taken] == ["3"]
    assert listener.ids == ["1", "2", "3", "2"]
