"""Fan-out of events to whoever listens: webhooks, subscribers over TCP, server-sent events, WebSockets.

The engine hands events over as a list that it collects only while somebody listens: `on_listening` tells it when that
begins and ends (``None`` in place of the list afterwards), and once per turn the broker calls `publish` with what was
collected. So nothing is built, and nothing is looked at, while nobody listens.

Five kinds of listeners:

- a `Listener` takes each list at once, on the spot (webhooks: who is to be told is decided when the event occurs);
- an `Audience` is a listener behind which any number of subscribers stand, and that sees to their buffers itself;
- subscribers of one queue each, to whom alone `QueueEvents` looks; as long as nobody else listens the engine need not
  make events of other queues, so `on_hearing` tells it which queues are heard;
- a follower, a `Listener` too, makes further events for subscribers, and is asleep while there are none;
- a `Subscription` is a bounded buffer between `publish` and a task that sends at its own pace. A subscriber that lets
  it fill is closed, with what it has not read: a stream with holes would look like one without, and a client that is
  cut off knows that it has to ask anew. Nobody else is held up by it.

Source: design, "The hot path"; style (h) 5.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, Self

import trio

from bunqueue_trio.errors import LimitError
from bunqueue_trio.model.events import Event, NewerJobEvent
from bunqueue_trio.server.queue_events import QueueEvents, Receiver

MAX_SUBSCRIBERS = 1_000
MAX_BUFFERED_EVENTS = 1_000  # of one subscriber: about a second of a busy server
MAX_BUFFERED_BYTES = 8 << 20  # payloads that one subscriber keeps alive; a single larger one still passes


class Listener(Protocol):
    """Takes events where they occur."""

    def take(self, events: Sequence[Event]) -> None:
        """Look at each event. Must not block, and must not raise for anything that an event may hold."""
        ...


class Audience(Listener, Protocol):
    """Takes events for subscribers of its own."""

    @property
    def member_count(self) -> int:
        """How many there are."""
        ...


class Subscription:
    """The events of one subscriber, in order; iterate over it.

    The iteration ends when the subscription is closed. ``was_too_slow`` tells why.
    """

    def __init__(self, wants: Callable[[Event], bool] | None, max_events: int, max_bytes: int) -> None:
        self._wants = wants
        self._max_events = max_events
        self._max_bytes = max_bytes
        self._buffer: deque[Event] = deque()
        self._buffered_bytes = 0
        self._arrived = trio.Event()
        self.is_closed = False
        self.was_too_slow = False

    def offer(self, event: Event) -> bool:
        """Take *event* if it is wanted; False when there is no room for it, and the subscription is closed now."""
        if self.is_closed or (self._wants is not None and not self._wants(event)):
            return True
        size = event.payload_bytes
        if self._buffer and (len(self._buffer) >= self._max_events or self._buffered_bytes + size > self._max_bytes):
            self.was_too_slow = True
            self.close()
            return False
        self._buffer.append(event)
        self._buffered_bytes += size
        self._arrived.set()
        return True

    def close(self) -> None:
        """End the iteration; what is buffered is dropped."""
        self.is_closed = True
        self._buffer.clear()
        self._buffered_bytes = 0
        self._arrived.set()

    def take_nowait(self) -> list[Event]:
        """All that is buffered, possibly nothing."""
        events = list(self._buffer)
        self._buffer.clear()
        self._buffered_bytes = 0
        return events

    async def wait(self) -> list[Event]:
        """The next events, at least one; an empty list once closed.

        Cancel: has taken nothing. Always a checkpoint.
        """
        await self._wait_nonempty()
        return self.take_nowait()

    async def _wait_nonempty(self) -> None:
        await trio.lowlevel.checkpoint()
        while not self._buffer and not self.is_closed:
            self._arrived = trio.Event()
            await self._arrived.wait()

    def __aiter__(self) -> Self:
        # No generator: one that is left in the middle would have to be closed by whoever leaves it.
        return self

    async def __anext__(self) -> Event:
        """The next event. Cancel: has taken nothing. Always a checkpoint."""
        await self._wait_nonempty()
        if not self._buffer:
            raise StopAsyncIteration
        event = self._buffer.popleft()
        self._buffered_bytes -= event.payload_bytes
        return event


class Events:
    """The one place through which events leave the broker.

    Args:
        on_listening: told True when the first listener comes and False when the last has gone.
        on_hearing: told, whenever that changes, of which queues the events are needed; None: whatever happens.
        queue_events: the subscribers of single queues.
    """

    def __init__(
        self,
        on_listening: Callable[[bool], None] | None = None,
        on_hearing: Callable[[Container[str] | None], None] | None = None,
        queue_events: QueueEvents | None = None,
    ) -> None:
        self.on_listening = on_listening
        self._on_hearing = on_hearing
        self.queue_events = QueueEvents(lambda: 0.0) if queue_events is None else queue_events
        self.is_listened_to = False
        """Whether there is any reason to make events."""
        self._is_all_heard = False  # by somebody
        self.published_count = 0
        self.cut_off_count = 0
        """Subscribers that were closed because they were too slow."""
        self._listeners: list[Listener] = []
        self._subscriptions: dict[Subscription, None] = {}
        self._audiences: list[Audience] = []
        self._followers: list[Listener] = []

    @property
    def subscriber_count(self) -> int:
        """How many subscriptions to everything are open, those of audiences included."""
        return len(self._subscriptions) + sum(audience.member_count for audience in self._audiences)

    def sizes(self) -> dict[str, int]:
        """Of each collection; see `server.heap`."""
        return {
            "listeners": len(self._listeners),
            "audiences": len(self._audiences),
            "followers": len(self._followers),
            "subscriptions": len(self._subscriptions),
            **self.queue_events.sizes(),
        }

    def publish(self, events: Sequence[Event]) -> None:
        """Give *events* to everybody who listens, in order. Never blocks.

        Subscribers come first: a listener may publish what it makes of an event, and they are to hear of that after it.

        Cost: a call per listener and list, one per subscriber and event.
        """
        if not self.is_listened_to:
            return
        self.published_count += len(events)
        if self.queue_events.subscriber_count:
            self.queue_events.take(events)
            if not self._is_all_heard:
                return
        events = [event for event in events if type(event) is not NewerJobEvent]
        for subscription in tuple(self._subscriptions):
            if not all(map(subscription.offer, events)):
                self.cut_off_count += 1
                self._drop(subscription)
        for audience in tuple(self._audiences):
            audience.take(events)
        if self._followers and self.subscriber_count:
            for follower in self._followers:
                follower.take(events)
        for listener in tuple(self._listeners):
            listener.take(events)

    def add(self, listener: Listener) -> None:
        """*listener* gets every list from now on. Once is enough; again changes nothing."""
        if listener not in self._listeners:
            with self._change():
                self._listeners.append(listener)

    def add_audience(self, audience: Audience) -> None:
        """*audience* gets every list from now on, before other listeners. Again changes nothing."""
        if audience not in self._audiences:
            with self._change():
                self._audiences.append(audience)

    def remove_audience(self, audience: Audience) -> None:
        """*audience* gets nothing more; one that is unknown is no error."""
        if audience in self._audiences:
            with self._change():
                self._audiences.remove(audience)

    def add_follower(self, follower: Listener) -> None:
        """*follower* gets every list while there are subscribers; it alone is no reason to make events."""
        self._followers.append(follower)

    def remove(self, listener: Listener) -> None:
        """*listener* gets nothing more; one that is unknown is no error."""
        if listener in self._listeners:
            with self._change():
                self._listeners.remove(listener)

    @contextmanager
    def subscribe(
        self,
        wants: Callable[[Event], bool] | None = None,
        *,
        max_events: int = MAX_BUFFERED_EVENTS,
        max_bytes: int = MAX_BUFFERED_BYTES,
    ) -> Iterator[Subscription]:
        """Subscribe for the time of the block.

        Args:
            wants: says whether an event concerns this subscriber; what does not takes no room.
        Raises:
            LimitError: there are `MAX_SUBSCRIBERS` already.
        """
        if len(self._subscriptions) >= MAX_SUBSCRIBERS:
            raise LimitError(f"Too many subscribers (max {MAX_SUBSCRIBERS})")
        subscription = Subscription(wants, max_events, max_bytes)
        with self._change():
            self._subscriptions[subscription] = None
        try:
            yield subscription
        finally:
            subscription.close()
            self._drop(subscription)

    def subscribe_queue(self, receiver: Receiver, queue: str) -> None:
        """Have the events of one queue sent to *receiver*; those of another queue no longer.

        Raises:
            LimitError: there are too many subscribers. Nothing has changed.
        """
        with self._change():
            self.queue_events.subscribe(receiver, queue)

    def unsubscribe_queue(self, receiver: Receiver) -> None:
        """*receiver* gets nothing more; one that has not subscribed is no error."""
        with self._change():
            self.queue_events.unsubscribe(receiver)

    def close(self) -> None:
        """The server stops: every subscription ends."""
        for subscription in tuple(self._subscriptions):
            subscription.close()
            self._drop(subscription)

    def _drop(self, subscription: Subscription) -> None:
        with self._change():
            self._subscriptions.pop(subscription, None)

    @contextmanager
    def _change(self) -> Iterator[None]:
        """Tell `on_listening` and `on_hearing` if the change within makes a difference to them."""
        before, was_all_heard = self.is_listened_to, self._is_all_heard
        yield
        self._is_all_heard = bool(self._listeners or self._subscriptions or self._audiences)
        self.is_listened_to = self._is_all_heard or bool(self.queue_events.subscriber_count)
        if self._on_hearing is not None and self._is_all_heard != was_all_heard:
            self._on_hearing(None if self._is_all_heard else self.queue_events.queues)
        if self.on_listening is not None and self.is_listened_to != before:
            self.on_listening(not before)
