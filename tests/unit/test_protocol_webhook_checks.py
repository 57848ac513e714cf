"""Checks of the webhook commands: the order of the texts, and every field."""

import pytest

from bunqueue_trio.errors import ValidationError
from bunqueue_trio.model import commands as c
from bunqueue_trio.protocol.webhook_checks import MAX_EVENTS, MAX_TEXT_LENGTH, WEBHOOK_EVENTS, check_add_webhook
from bunqueue_trio.protocol.wire import checked

URL = "http://example.com/"
VALID = "Valid: job.pushed, job.started, job.completed, job.failed, job.progress"


def add(*, allows_internal=False, **fields):
    command = c.AddWebhook(**{"url": URL, "events": ["job.pushed"], **fields})
    return command, check_add_webhook(command, allows_internal=allows_internal)


def refusal_of(**fields) -> str:
    with pytest.raises(ValidationError) as caught:
        add(**fields)
    return str(caught.value)


def test_a_sound_command_keeps_its_fields_and_gives_the_parsed_url():
    command, url = add(url=" HTTP://EXAMPLE.com/x ", queue="mail", secret="s")

    assert (command.url, command.queue, command.secret) == (" HTTP://EXAMPLE.com/x ", "mail", "s")
    assert (url.host, url.target) == ("example.com", "/x")


def test_the_url_is_looked_at_before_the_events():
    assert refusal_of(url="http://localhost/", events=["foo"]) == "Webhook URL cannot point to localhost"
    assert refusal_of(url="ftp://a/", events=None) == "Webhook URL must use http or https protocol"


def test_the_events_are_looked_at_before_queue_and_secret():
    assert refusal_of(events=None, queue=5, secret=5) == "events must be an array"
    assert refusal_of(queue=5, secret=5) == "queue must be a string"
    assert refusal_of(secret=5) == "secret must be a string"


@pytest.mark.parametrize("events", [None, "job.pushed", {"job.pushed": 1}, 5])
def test_events_must_be_a_list(events):
    assert refusal_of(events=events) == "events must be an array"


def test_all_unknown_events_are_named():
    text = refusal_of(events=["job.completed", "job.stalled", "*", 5, None])

    assert text == f"Invalid webhook event(s): job.stalled, *, 5, null. {VALID}"


def test_the_text_about_unknown_events_is_bounded():
    assert len(refusal_of(events=["x" * 10_000] * 10_000)) < 3_000


def test_no_events_and_repeated_ones_are_legal_up_to_a_bound():
    assert add(events=[])[0].events == []
    assert add(events=["job.failed"] * MAX_EVENTS)[0].events == ["job.failed"] * MAX_EVENTS
    assert refusal_of(events=["job.failed"] * (MAX_EVENTS + 1)) == "Too many webhook events (max 100)"


@pytest.mark.parametrize("event", WEBHOOK_EVENTS)
def test_every_event_is_known(event):
    add(events=[event])


@pytest.mark.parametrize("field", ["queue", "secret"])
def test_texts_are_bounded(field):
    add(**{field: "x" * MAX_TEXT_LENGTH})

    assert refusal_of(**{field: "x" * (MAX_TEXT_LENGTH + 1)}) == f"{field} too long (max 2048 characters)"


def test_an_empty_queue_is_no_absent_queue():
    assert add(queue="")[0].queue == ""
    assert add(queue=None)[0].queue is None


def test_the_switch_of_the_operator_allows_internal_receivers_and_nothing_else():
    assert add(url="http://127.0.0.1:8080/", allows_internal=True)[1].host == "127.0.0.1"
    assert refusal_of(url="ftp://127.0.0.1/", allows_internal=True) == "Webhook URL must use http or https protocol"


@pytest.mark.parametrize("enabled", [None, 0, 1, "true"])
def test_enabled_must_be_a_boolean(enabled):
    with pytest.raises(ValidationError, match=r"^enabled must be a boolean$"):
        checked(c.SetWebhookEnabled(id="w", enabled=enabled))


@pytest.mark.parametrize("webhook_id", [None, 5, ["w"], {"a": 1}])
def test_an_id_that_is_no_text_is_an_unknown_one(webhook_id):
    switch = c.SetWebhookEnabled(id=webhook_id, enabled=True)
    remove = c.RemoveWebhook(webhook_id=webhook_id)

    checked(switch)
    checked(remove)

    assert switch.id is None
    assert remove.webhook_id is None
