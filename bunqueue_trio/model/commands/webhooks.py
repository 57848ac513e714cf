"""Commands about webhooks. Answered by the room of the webhooks, not by the engine: they touch no job."""

from typing import Any

from bunqueue_trio.model.commands.base import Command


class AddWebhook(Command, tag="AddWebhook"):
    """Have events of jobs sent to a URL; ``queue`` absent means all queues."""

    url: Any = None
    events: Any = None
    queue: Any = None
    secret: Any = None


class RemoveWebhook(Command, tag="RemoveWebhook"):
    """Withdraw a webhook."""

    webhook_id: Any = None


class ListWebhooks(Command, tag="ListWebhooks"):
    """Read all webhooks, without their secrets."""


class SetWebhookEnabled(Command, tag="SetWebhookEnabled"):
    """Switch a webhook on or off; the field is ``id`` here."""

    id: Any = None
    enabled: Any = None
