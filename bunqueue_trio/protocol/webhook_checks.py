"""What the webhook commands must satisfy: the URL first, then the events, in the spec's words.

Source: scheduling and flows, "Validation: first the URL, then the events", SD-13.
"""

from collections.abc import Callable
from typing import Any, Final

from bunqueue_trio.errors import ValidationError
from bunqueue_trio.model import commands as c
from bunqueue_trio.protocol.fields import short, text
from bunqueue_trio.protocol.values import js_text
from bunqueue_trio.protocol.webhook_urls import WebhookUrl, host_refusal, parse_url

WEBHOOK_EVENTS: Final = ("job.pushed", "job.started", "job.completed", "job.failed", "job.progress")
MAX_EVENTS = 100  # five names exist; repetitions are legal, a frame full of them is not
MAX_TEXT_LENGTH = 2_048  # of queue and secret, as of the URL
_NAMED_AT_MOST = 20  # unknown events in one error text


def check_add_webhook(command: c.AddWebhook, *, allows_internal: bool) -> WebhookUrl:
    """Check AddWebhook. Called by the room that carries it out, since one rule hangs on a setting of the server.

    Args:
        allows_internal: whether hosts and addresses of the machine and its network are legal.
    Returns:
        The parsed URL; the command keeps it as it was sent.
    Raises:
        ValidationError: the text for the client.
    """
    url = parse_url(command.url)
    if not allows_internal:
        refusal = host_refusal(url.host)
        if refusal is not None:
            raise ValidationError(f"Webhook URL cannot point to {refusal}")
    _check_events(command.events)
    command.queue = _short_text("queue", command.queue)
    command.secret = _short_text("secret", command.secret)
    return url


def _check_events(events: Any) -> None:
    if type(events) is not list:
        raise ValidationError("events must be an array")
    unknown = [event for event in events if type(event) is not str or event not in WEBHOOK_EVENTS]
    if unknown:
        named = ", ".join(js_text(event)[:100] for event in unknown[:_NAMED_AT_MOST])
        raise ValidationError(f"Invalid webhook event(s): {named}. Valid: {', '.join(WEBHOOK_EVENTS)}")
    if len(events) > MAX_EVENTS:
        raise ValidationError(f"Too many webhook events (max {MAX_EVENTS})")


def _short_text(name: str, value: Any) -> str | None:
    return None if value is None else short(name, text(name, value), MAX_TEXT_LENGTH)


def _check_set_enabled(command: c.SetWebhookEnabled) -> None:
    if type(command.enabled) is not bool:
        raise ValidationError("enabled must be a boolean")
    command.id = command.id if type(command.id) is str else None


def _check_remove(command: c.RemoveWebhook) -> None:
    command.webhook_id = command.webhook_id if type(command.webhook_id) is str else None


CHECKS: Final[dict[type, Callable[[Any], None]]] = {
    c.RemoveWebhook: _check_remove,
    c.SetWebhookEnabled: _check_set_enabled,
}
"""AddWebhook is missing on purpose, see `check_add_webhook`."""
