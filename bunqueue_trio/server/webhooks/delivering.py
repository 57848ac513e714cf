"""The way of an event to its receivers: queued per webhook, tried, retried, counted; bounded at every step.

    take         accept(webhook, event)     at once: a place in the lane of the webhook, or it is dropped and counted
    lane         at most 10,000 events and 8 MiB wait per webhook, 100,000 and 64 MiB in all
    workers      at most 4 tasks per webhook, which exist only while its lane holds something
    slots        at most 128 tries at a time; a pause between tries holds none

So a receiver that is slow or dead fills its own lane and holds four slots of 128; the others go on.

Source: scheduling and flows, "Delivery", SD-12.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol

import trio

from bunqueue_trio.errors import InvariantError
from bunqueue_trio.logs import get_logger
from bunqueue_trio.model.events import JobEvent
from bunqueue_trio.protocol.webhook_urls import WebhookUrl
from bunqueue_trio.server.webhooks.bodies import WEBHOOK_NAMES, BodyTooLargeError, webhook_body, webhook_headers
from bunqueue_trio.server.webhooks.sending import MAX_CONNECTIONS

if TYPE_CHECKING:
    from bunqueue_trio.clock import Clock

log = get_logger("Webhook")

MAX_IN_FLIGHT = MAX_CONNECTIONS
WORKERS_PER_WEBHOOK = 4
MAX_WAITING = 10_000  # a burst that a receiver which answers works off in half a minute; 2 MB
MAX_WAITING_BYTES = 8 << 20
MAX_WAITING_IN_ALL = 100_000
MAX_BYTES_IN_ALL = 64 << 20
IN_THREAD_FROM_BYTES = 8_192  # a payload of this size takes about a millisecond to become JSON
MAX_ENCODING_THREADS = 2


class Lane:
    """One webhook as the deliveries see it, with what waits for it."""

    def __init__(self, webhook_id: str, url: WebhookUrl, secret: str | None) -> None:
        self.webhook_id = webhook_id
        self.url = url
        self.secret = secret
        self.waiting: deque[JobEvent] = deque()
        self.waiting_bytes = 0
        self.worker_count = 0
        self.success_count = 0
        self.failure_count = 0
        self.last_triggered: float | None = None
        self.is_closed = False
        """Withdrawn: what waits is forgotten, and what is under way is tried no further time."""
        self.failed_in_a_row = 0
        self.dropped_in_a_row = 0


class Poster(Protocol):
    """What the deliveries need of a `Sender`."""

    async def post(self, url: WebhookUrl, headers: list[tuple[str, str]], body: bytes) -> str | None:
        """Try once; None, or what went wrong. Limits its own time."""
        ...


class Outcome(NamedTuple):
    """What became of an event for one webhook; ``error`` None: delivered."""

    lane: Lane
    event_name: str
    error: str | None


class Deliveries:
    """Everything that is on its way.

    Args:
        max_tries: per event and webhook, the first one included.
        retry_delay_ms: the pause after the n-th failed try is n times this.
    """

    def __init__(
        self,
        poster: Poster,
        clock: Clock,
        *,
        max_tries: int,
        retry_delay_ms: float,
    ) -> None:
        self.on_outcome: Callable[[Outcome], None] | None = None
        """Told of each event that was delivered or given up."""
        self.delivered_count = 0
        self.failed_count = 0
        self.dropped_count = 0
        self.waiting_count = 0
        self.in_progress_count = 0
        self.held_bytes = 0
        """Payloads that wait, and bodies under way."""
        self._poster = poster
        self._clock = clock
        self._max_tries = max_tries
        self._retry_delay_ms = retry_delay_ms
        self._slots = trio.CapacityLimiter(MAX_IN_FLIGHT)
        self._encoders = trio.CapacityLimiter(MAX_ENCODING_THREADS)
        self._nursery: trio.Nursery | None = None
        self._early: list[Lane] = []
        self._is_closing = False
        self._became_idle = trio.Event()

    @property
    def pending_count(self) -> int:
        """Events that are neither delivered nor given up, once per webhook."""
        return self.waiting_count + self.in_progress_count

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Deliver until cancelled. What is on its way then is given up, and logged by its number."""
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                for lane in self._early:
                    self._start_worker(lane)
                self._early.clear()
                task_status.started()
                await trio.sleep_forever()
        finally:
            self._nursery = None
            self._is_closing = True
            if self.pending_count:
                log.warning("Webhook deliveries were given up at the stop", count=self.pending_count)

    async def drain(self) -> None:
        """Accept nothing more and wait until all is delivered or given up. Whoever calls this bounds its time."""
        self._is_closing = True
        while self.pending_count:
            await self._became_idle.wait()

    def accept(self, lane: Lane, event: JobEvent) -> bool:
        """Send *event* to the webhook of *lane* in the background.

        Returns:
            False when there was no room for it, or no time: it is dropped, and counted as failed.

        Never blocks. Cost: O(1).
        """
        size = event.payload_bytes
        if self._is_closing:
            self._drop(lane, event, "the server is stopping")
            return False
        if not self._has_room(lane, size):
            if not lane.dropped_in_a_row:
                log.warning("Webhook events are dropped: too many wait for the receiver", webhookId=lane.webhook_id)
            lane.dropped_in_a_row += 1
            self._drop(lane, event, "too many events wait for the receiver")
            return False
        lane.waiting.append(event)
        lane.waiting_bytes += size
        self.held_bytes += size
        self.waiting_count += 1
        if lane.worker_count < WORKERS_PER_WEBHOOK:
            self._start_worker(lane)
        return True

    def close_lane(self, lane: Lane) -> None:
        """The webhook is withdrawn: forget what waits for it."""
        lane.is_closed = True
        self.waiting_count -= len(lane.waiting)
        self.held_bytes -= lane.waiting_bytes
        lane.waiting.clear()
        lane.waiting_bytes = 0
        self._note_idle()

    def _has_room(self, lane: Lane, size: int) -> bool:
        if len(lane.waiting) >= MAX_WAITING or self.waiting_count >= MAX_WAITING_IN_ALL:
            return False
        # A single event larger than the bound of its lane still passes, else it never could.
        fits_lane = not lane.waiting or lane.waiting_bytes + size <= MAX_WAITING_BYTES
        return fits_lane and (self.held_bytes + size <= MAX_BYTES_IN_ALL or not self.pending_count)

    def _drop(self, lane: Lane, event: JobEvent, why: str) -> None:
        self.dropped_count += 1
        self._failed(lane, event, why)

    def _start_worker(self, lane: Lane) -> None:
        if self._nursery is None:
            if lane not in self._early:
                self._early.append(lane)
            return
        lane.worker_count += 1
        self._nursery.start_soon(self._work, lane)

    async def _work(self, lane: Lane) -> None:
        """Deliver what waits in *lane*, one after the other, until nothing does."""
        try:
            while lane.waiting:
                event = lane.waiting.popleft()
                size = event.payload_bytes
                lane.waiting_bytes -= size
                self.waiting_count -= 1
                self.in_progress_count += 1
                await self._deliver(lane, event)
                # Not in a finally: what a cancellation interrupts stays pending, so that it is counted.
                self.in_progress_count -= 1
                self.held_bytes -= size
                self._note_idle()
        finally:
            lane.worker_count -= 1

    async def _deliver(self, lane: Lane, event: JobEvent) -> None:
        try:
            error_text = await self._send(lane, event)
        except InvariantError:
            raise
        except Exception as error:
            # What a payload or a receiver can bring about must not stop the server.
            log.error("Internal error in a webhook delivery", webhookId=lane.webhook_id, exc_info=error)
            error_text = "internal error"
        if error_text is None:
            self._succeeded(lane, event)
        else:
            self._failed(lane, event, error_text)

    async def _send(self, lane: Lane, event: JobEvent) -> str | None:
        try:
            body = await self._body(event)
        except BodyTooLargeError as error:
            return f"too large: {error}"
        headers = webhook_headers(event, body, lane.secret)
        self.held_bytes += len(body)
        try:
            return await self._try_until_done(lane, headers, body)
        finally:
            self.held_bytes -= len(body)

    async def _try_until_done(self, lane: Lane, headers: list[tuple[str, str]], body: bytes) -> str | None:
        error: str | None = None
        for number in range(1, self._max_tries + 1):
            if number > 1:
                await trio.sleep(self._retry_delay_ms * (number - 1) / 1000)
                if lane.is_closed:
                    break
            async with self._slots:
                error = await self._poster.post(lane.url, headers, body)
            if error is None:
                break
        return error

    async def _body(self, event: JobEvent) -> bytes:
        if event.payload_bytes < IN_THREAD_FROM_BYTES:
            return webhook_body(event)
        return await trio.to_thread.run_sync(webhook_body, event, limiter=self._encoders)

    def _succeeded(self, lane: Lane, event: JobEvent) -> None:
        self.delivered_count += 1
        lane.success_count += 1
        lane.last_triggered = self._clock.now().wall_ms
        if lane.failed_in_a_row:
            log.info(
                "Webhook delivers again",
                webhookId=lane.webhook_id,
                failed=lane.failed_in_a_row,
                dropped=lane.dropped_in_a_row,
            )
        lane.failed_in_a_row = lane.dropped_in_a_row = 0
        self._tell(lane, event, None)

    def _failed(self, lane: Lane, event: JobEvent, error: str) -> None:
        self.failed_count += 1
        lane.failure_count += 1
        lane.failed_in_a_row += 1
        if lane.failed_in_a_row == 1:  # a dead receiver must not fill the log
            log.warning("Webhook delivery failed", webhookId=lane.webhook_id, error=error)
        self._tell(lane, event, error)

    def _tell(self, lane: Lane, event: JobEvent, error: str | None) -> None:
        if self.on_outcome is not None:
            self.on_outcome(Outcome(lane, WEBHOOK_NAMES[event.event_type], error))

    def _note_idle(self) -> None:
        if not self.pending_count:
            idle, self._became_idle = self._became_idle, trio.Event()
            idle.set()
