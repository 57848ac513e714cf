"""Who is to be told of what: the webhooks, the commands about them, and the choice of receivers for each event.

In memory only, as clients expect: after a restart there are none. The commands are carried out here and not by the
engine, since they touch no job; the broker hands them over (`handlers`), for every transport alike.

Source: scheduling and flows, "Webhooks"; SD-11 to SD-14.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from bunqueue_trio.errors import LimitError, NotFoundError
from bunqueue_trio.model import commands as c
from bunqueue_trio.model.events import Event, JobEvent, SystemEvent
from bunqueue_trio.model.instant import Now
from bunqueue_trio.model.replies import DataReply, Reply
from bunqueue_trio.protocol.webhook_checks import check_add_webhook
from bunqueue_trio.server.events import Events
from bunqueue_trio.server.facts import WebhookFacts
from bunqueue_trio.server.webhooks.bodies import WEBHOOK_NAMES
from bunqueue_trio.server.webhooks.delivering import Deliveries, Lane, Outcome

if TYPE_CHECKING:
    from bunqueue_trio.clock import Clock

MAX_WEBHOOKS = 1_000


class WebhookIds(Protocol):
    """Where names of webhooks come from."""

    def webhook_id(self, wall_ms: float) -> str:
        """A new UUIDv7."""
        ...


class Webhook:
    """One registration. ``url`` and ``events`` are as they were sent; the lane holds the parsed URL and the secret."""

    def __init__(self, command: c.AddWebhook, lane: Lane, created_at: float) -> None:
        self.url: str = command.url
        self.events: list[str] = command.events
        self.queue: str | None = command.queue
        self.created_at = created_at
        self.lane = lane
        self.is_enabled = True

    @property
    def id(self) -> str:
        """Its UUIDv7."""
        return self.lane.webhook_id

    def shown(self) -> dict[str, Any]:
        """As ListWebhooks shows it; the secret never."""
        return {
            "id": self.id,
            "url": self.url,
            "events": self.events,
            "queue": self.queue,
            "createdAt": self.created_at,
            "lastTriggered": self.lane.last_triggered,
            "successCount": self.lane.success_count,
            "failureCount": self.lane.failure_count,
            "enabled": self.is_enabled,
        }


class Webhooks:
    """All webhooks of a server.

    Listens to *events* only while a webhook is enabled, so that a server without webhooks makes no events for them.

    Args:
        allows_internal: whether receivers inside the network may be registered.
    """

    def __init__(
        self, ids: WebhookIds, clock: Clock, deliveries: Deliveries, events: Events, *, allows_internal: bool
    ) -> None:
        self._ids = ids
        self._clock = clock
        self._deliveries = deliveries
        self._events = events
        self._allows_internal = allows_internal
        self._webhooks: dict[str, Webhook] = {}
        # Invariant: every enabled webhook stands once under each of its events, and no other one.
        self._receivers: dict[tuple[str, str | None], dict[str, Lane]] = {}
        self.enabled_count = 0
        deliveries.on_outcome = self._note_outcome

    @property
    def total_count(self) -> int:
        """How many are registered."""
        return len(self._webhooks)

    def facts(self) -> WebhookFacts:
        """The figures for metrics."""
        deliveries = self._deliveries
        return WebhookFacts(
            total=self.total_count,
            enabled=self.enabled_count,
            waiting=deliveries.pending_count,
            delivered=deliveries.delivered_count,
            failed=deliveries.failed_count,
            dropped=deliveries.dropped_count,
        )

    def sizes(self) -> dict[str, int]:
        """Of each collection; see `server.heap`."""
        return {
            "webhooks": len(self._webhooks),
            "webhookEvents": len(self._receivers),
            "deliveries": self._deliveries.waiting_count,
            "deliveriesUnderWay": self._deliveries.in_progress_count,
        }

    @property
    def handlers(self) -> dict[type, Callable[[Any, Now], Reply]]:
        """What carries out each command of this room."""
        return {
            c.AddWebhook: self.add,
            c.RemoveWebhook: self.remove,
            c.ListWebhooks: self.list,
            c.SetWebhookEnabled: self.set_enabled,
        }

    # commands

    def add(self, command: c.AddWebhook, now: Now) -> DataReply:
        """Register; it is enabled at once.

        Raises:
            ValidationError: the URL or the events are not legal.
            LimitError: there are `MAX_WEBHOOKS`.
        """
        url = check_add_webhook(command, allows_internal=self._allows_internal)
        if len(self._webhooks) >= MAX_WEBHOOKS:
            raise LimitError(f"Too many webhooks (max {MAX_WEBHOOKS})")
        lane = Lane(self._ids.webhook_id(now.wall_ms), url, command.secret)
        webhook = Webhook(command, lane, now.wall_ms)
        self._webhooks[webhook.id] = webhook
        self._enlist(webhook)
        self._announce("webhook:added", id=webhook.id, url=webhook.url, events=webhook.events)
        return DataReply(
            data={
                "webhookId": webhook.id,
                "url": webhook.url,
                "events": webhook.events,
                "queue": webhook.queue,
                "createdAt": webhook.created_at,
            }
        )

    def remove(self, command: c.RemoveWebhook, now: Now) -> DataReply:
        """Withdraw; what waits for it is forgotten.

        Raises:
            NotFoundError: no webhook of that id.
        """
        webhook = self._find(command.webhook_id)
        if webhook.is_enabled:
            self._delist(webhook)
        del self._webhooks[webhook.id]
        self._deliveries.close_lane(webhook.lane)
        self._announce("webhook:removed", id=webhook.id)
        return DataReply(data={"removed": True})

    def list(self, command: c.ListWebhooks, now: Now) -> DataReply:
        """All of them, in the order of their creation."""
        return DataReply(
            data={
                "webhooks": [webhook.shown() for webhook in self._webhooks.values()],
                "stats": {"total": self.total_count, "enabled": self.enabled_count},
            }
        )

    def set_enabled(self, command: c.SetWebhookEnabled, now: Now) -> Reply:
        """Switch on or off; deliveries that have begun go on.

        Raises:
            NotFoundError: no webhook of that id.
        """
        webhook = self._find(command.id)
        if command.enabled and not webhook.is_enabled:
            self._enlist(webhook)
            self._announce("webhook:enabled", webhookId=webhook.id)
        elif webhook.is_enabled and not command.enabled:
            self._delist(webhook)
            self._announce("webhook:disabled", webhookId=webhook.id)
        return Reply()

    # events

    def take(self, events: Sequence[Event]) -> None:
        """Choose the receivers of each event, now, and send it to them later.

        Cost: two look-ups per event, and O(1) per receiver.
        """
        for event in events:
            name = WEBHOOK_NAMES.get(event.event_type) if isinstance(event, JobEvent) else None
            if name is None:
                continue
            assert isinstance(event, JobEvent)
            for key in ((name, None), (name, event.queue)):
                for lane in self._receivers.get(key, _NOBODY).values():
                    self._deliveries.accept(lane, event)

    def check_invariants(self) -> None:
        """Recount. For tests.

        Raises:
            AssertionError: the index or the count is not what the registrations say.
        """
        expected: dict[tuple[str, str | None], set[str]] = {}
        for webhook in self._webhooks.values():
            for name in webhook.events if webhook.is_enabled else ():
                expected.setdefault((name, webhook.queue), set()).add(webhook.id)
        assert {key: set(lanes) for key, lanes in self._receivers.items()} == expected
        assert self.enabled_count == sum(webhook.is_enabled for webhook in self._webhooks.values())

    def _find(self, webhook_id: str | None) -> Webhook:
        webhook = self._webhooks.get(webhook_id) if webhook_id is not None else None
        if webhook is None:
            raise NotFoundError("Webhook not found")
        return webhook

    def _enlist(self, webhook: Webhook) -> None:
        webhook.is_enabled = True
        self.enabled_count += 1
        for name in webhook.events:
            self._receivers.setdefault((name, webhook.queue), {})[webhook.id] = webhook.lane
        if self._receivers:
            self._events.add(self)

    def _delist(self, webhook: Webhook) -> None:
        webhook.is_enabled = False
        self.enabled_count -= 1
        for key in {(name, webhook.queue) for name in webhook.events}:
            lanes = self._receivers[key]
            del lanes[webhook.id]
            if not lanes:
                del self._receivers[key]
        if not self._receivers:
            self._events.remove(self)

    def _note_outcome(self, outcome: Outcome) -> None:
        webhook = self._webhooks.get(outcome.lane.webhook_id)
        if webhook is None:
            return
        data = {"webhookId": webhook.id, "url": webhook.url, "event": outcome.event_name}
        if outcome.error is None:
            self._announce("webhook:fired", **data)
        else:
            self._announce("webhook:failed", **data, error=outcome.error)

    def _announce(self, event: str, /, **data: Any) -> None:
        """For those who watch the server, if there are any."""
        if self._events.is_listened_to:
            self._events.publish([SystemEvent(event, self._clock.now().wall_ms, data)])


_NOBODY: dict[str, Lane] = {}
