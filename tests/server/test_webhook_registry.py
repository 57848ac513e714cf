"""The registry: commands and their replies, and who is chosen for which event.

Source: scheduling and flows, "Webhooks".
"""

import pytest
import trio

from bunqueue_trio.errors import LimitError, NotFoundError, ValidationError
from bunqueue_trio.model import commands as c
from bunqueue_trio.server.webhooks import registry
from tests.server.fakes import Rig, settle_down
from tests.server.webhook_fakes import Hooks, event

ALL = ["job.pushed", "job.started", "job.completed", "job.failed", "job.progress"]


@pytest.fixture
async def hooks(ids, nursery):
    made = Hooks(ids)
    await nursery.start(made.deliveries.run)
    yield made
    made.webhooks.check_invariants()


async def test_adding_answers_with_what_was_sent(hooks, autojump_clock):
    data = hooks.call(
        c.AddWebhook(url=" HTTP://Example.com ", events=["job.pushed", "job.pushed"], queue="mail", secret="s3")
    )

    assert data.pop("webhookId")[14] == "7"
    assert data == {
        "url": " HTTP://Example.com ",
        "events": ["job.pushed", "job.pushed"],
        "queue": "mail",
        "createdAt": hooks.clock.now().wall_ms,
    }


async def test_the_list_is_in_order_and_shows_no_secret(hooks, autojump_clock):
    first = hooks.add("http://a.com/", ["job.failed"], secret="hidden")
    second = hooks.add("http://b.com/", ALL, queue="mail")

    data = hooks.call(c.ListWebhooks())

    assert data["webhooks"] == [
        {
            "id": first,
            "url": "http://a.com/",
            "events": ["job.failed"],
            "queue": None,
            "createdAt": hooks.clock.now().wall_ms,
            "lastTriggered": None,
            "successCount": 0,
            "failureCount": 0,
            "enabled": True,
        },
        {
            "id": second,
            "url": "http://b.com/",
            "events": ALL,
            "queue": "mail",
            "createdAt": hooks.clock.now().wall_ms,
            "lastTriggered": None,
            "successCount": 0,
            "failureCount": 0,
            "enabled": True,
        },
    ]
    assert data["stats"] == {"total": 2, "enabled": 2}
    assert "hidden" not in str(data)


async def test_the_same_url_may_be_registered_many_times(hooks):
    assert len({hooks.add(), hooks.add(), hooks.add()}) == 3


async def test_switching_is_idempotent_and_counted(hooks):
    webhook_id = hooks.add()

    for enabled in (False, False, True, True):
        hooks.call(c.SetWebhookEnabled(id=webhook_id, enabled=enabled))
        assert hooks.shown()[0]["enabled"] is enabled
        assert hooks.webhooks.enabled_count == int(enabled)

    assert hooks.webhooks.total_count == 1


async def test_removing_forgets_the_webhook(hooks):
    webhook_id, other = hooks.add(), hooks.add()
    hooks.call(c.SetWebhookEnabled(id=other, enabled=False))

    assert hooks.call(c.RemoveWebhook(webhook_id=webhook_id)) == {"removed": True}
    assert [shown["id"] for shown in hooks.shown()] == [other]
    assert hooks.call(c.RemoveWebhook(webhook_id=other)) == {"removed": True}
    assert hooks.shown() == []
    assert hooks.webhooks.enabled_count == 0


@pytest.mark.parametrize(
    "command", [c.RemoveWebhook(webhook_id="nope"), c.RemoveWebhook(), c.SetWebhookEnabled(id="nope", enabled=True)]
)
async def test_an_unknown_webhook_is_not_found(hooks, command):
    hooks.add()

    with pytest.raises(NotFoundError, match=r"^Webhook not found$"):
        hooks.call(command)


async def test_a_refused_webhook_leaves_nothing(hooks):
    with pytest.raises(ValidationError, match=r"^Webhook URL cannot point to localhost$"):
        hooks.add("http://localhost/")

    assert hooks.shown() == []
    assert not hooks.events.is_listened_to


async def test_the_number_of_webhooks_is_bounded(hooks, monkeypatch):
    monkeypatch.setattr(registry, "MAX_WEBHOOKS", 2)
    first = hooks.add()
    hooks.add()

    with pytest.raises(LimitError, match=r"^Too many webhooks \(max 2\)$"):
        hooks.add()
    hooks.call(c.RemoveWebhook(webhook_id=first))

    hooks.add()


async def test_an_internal_receiver_needs_the_switch_of_the_operator(ids):
    with pytest.raises(ValidationError, match="private IP"):
        Hooks(ids).add("http://10.0.0.1/")

    assert Hooks(ids, internal=True).add("http://10.0.0.1/")


@pytest.mark.parametrize(
    ("event_type", "name"),
    [
        ("pushed", "job.pushed"),
        ("pulled", "job.started"),
        ("completed", "job.completed"),
        ("failed", "job.failed"),
        ("progress", "job.progress"),
    ],
)
async def test_an_event_goes_to_those_who_listed_it(hooks, autojump_clock, event_type, name):
    for listed in ALL:
        hooks.add(f"http://{listed[4:]}.com/", [listed])

    hooks.happen(event(event_type))
    await settle_down()

    assert hooks.poster.hosts() == [f"{name[4:]}.com"]


@pytest.mark.parametrize("event_type", ["duplicated", "retried", "delayed", "waiting", "removed", "stalled", "paused"])
async def test_other_events_go_to_nobody(hooks, autojump_clock, event_type):
    hooks.add(events=ALL)

    hooks.happen(event(event_type))
    await settle_down()

    assert hooks.poster.posts == []


async def test_a_webhook_of_one_queue_gets_that_queues_events_only(hooks, autojump_clock):
    hooks.add("http://all.com/")
    hooks.add("http://mail.com/", queue="mail")
    hooks.add("http://none.com/", queue="")

    hooks.happen(event(queue="mail"), event(queue="other"))
    await settle_down()

    assert sorted(hooks.poster.hosts()) == ["all.com", "all.com", "mail.com"]


async def test_an_event_listed_twice_is_sent_once(hooks, autojump_clock):
    hooks.add(events=["job.pushed", "job.pushed"])

    hooks.happen(event())
    await settle_down()

    assert len(hooks.poster.posts) == 1


async def test_whether_it_is_enabled_counts_when_the_event_occurs(hooks, autojump_clock):
    webhook_id = hooks.add()
    hooks.poster.results.append("HTTP 500")
    hooks.happen(event())
    await settle_down()

    hooks.call(c.SetWebhookEnabled(id=webhook_id, enabled=False))
    hooks.happen(event())
    await trio.sleep(60)
    hooks.call(c.SetWebhookEnabled(id=webhook_id, enabled=True))
    await trio.sleep(60)

    assert len(hooks.poster.posts) == 2  # the first one's second try, although disabled meanwhile
    assert hooks.shown()[0]["successCount"] == 1


async def test_counters_are_those_of_the_webhook(hooks, autojump_clock):
    hooks.add("http://good.com/")
    hooks.add("http://dead.com/")
    hooks.poster.hanging.add("dead.com")

    hooks.happen(event(), event())
    await trio.sleep(120)
    good, dead = hooks.shown()

    assert (good["successCount"], good["failureCount"]) == (2, 0)
    assert good["lastTriggered"] is not None
    assert (dead["successCount"], dead["failureCount"], dead["lastTriggered"]) == (0, 2, None)


async def test_events_are_wanted_only_while_a_webhook_wants_them(hooks):
    assert not hooks.events.is_listened_to
    hooks.add(events=[])
    assert not hooks.events.is_listened_to
    webhook_id = hooks.add()
    assert hooks.events.is_listened_to

    hooks.call(c.SetWebhookEnabled(id=webhook_id, enabled=False))
    assert not hooks.events.is_listened_to
    hooks.call(c.SetWebhookEnabled(id=webhook_id, enabled=True))
    hooks.call(c.RemoveWebhook(webhook_id=webhook_id))

    assert hooks.listening == [True, False, True, False]


async def test_changes_and_outcomes_are_announced_to_those_who_watch(hooks, autojump_clock):
    with hooks.events.subscribe(lambda found: not hasattr(found, "job_id")) as subscription:
        webhook_id = hooks.add("http://example.com/h", ["job.pushed"])
        hooks.happen(event())
        await settle_down()
        hooks.poster.default = "HTTP 500"
        hooks.happen(event())
        await trio.sleep(60)
        for enabled in (False, False, True):
            hooks.call(c.SetWebhookEnabled(id=webhook_id, enabled=enabled))
        hooks.call(c.RemoveWebhook(webhook_id=webhook_id))
        found = [(told.event, told.data) for told in await subscription.wait()]

    url = "http://example.com/h"
    assert found == [
        ("webhook:added", {"id": webhook_id, "url": url, "events": ["job.pushed"]}),
        ("webhook:fired", {"webhookId": webhook_id, "url": url, "event": "job.pushed"}),
        ("webhook:failed", {"webhookId": webhook_id, "url": url, "event": "job.pushed", "error": "HTTP 500"}),
        ("webhook:disabled", {"webhookId": webhook_id}),
        ("webhook:enabled", {"webhookId": webhook_id}),
        ("webhook:removed", {"id": webhook_id}),
    ]


async def test_what_becomes_of_an_event_is_told_after_it(hooks, autojump_clock):
    hooks.add("http://example.com/h", ["job.pushed"])
    await hooks.deliveries.drain()  # from now on every event is dropped on the spot

    with hooks.events.subscribe() as subscription:
        hooks.happen(event(), event("pulled"))
        found = [getattr(told, "event_type", None) or told.event for told in await subscription.wait()]

    assert found == ["pushed", "pulled", "webhook:failed"]


async def test_an_outcome_of_a_removed_webhook_is_told_to_nobody(hooks, autojump_clock):
    webhook_id = hooks.add("http://dead.com/")
    hooks.poster.hanging.add("dead.com")
    hooks.happen(event())
    await settle_down()

    with hooks.events.subscribe() as subscription:
        hooks.call(c.RemoveWebhook(webhook_id=webhook_id))
        await trio.sleep(60)

        assert [told.event for told in await subscription.wait()] == ["webhook:removed"]


async def test_clients_reach_the_room_through_the_broker(ids, autojump_clock):
    rig, hooks = Rig(), Hooks(ids)
    rig.broker.rooms.update(hooks.webhooks.handlers)

    added = rig.call("AddWebhook", url="http://example.com/", events=["job.pushed"], queue="q", secret="s")
    webhook_id = added["data"]["webhookId"]

    assert added["ok"]
    assert rig.call("SetWebhookEnabled", id=webhook_id, enabled=False) == {"ok": True}
    assert rig.call("ListWebhooks")["data"]["stats"] == {"total": 1, "enabled": 0}
    assert rig.call("AddWebhook", url="http://[::1]/") == {
        "ok": False,
        "error": "Webhook URL cannot point to localhost",
    }
    assert rig.call("SetWebhookEnabled", id=webhook_id) == {"ok": False, "error": "enabled must be a boolean"}
    assert rig.call("RemoveWebhook", id=webhook_id) == {"ok": False, "error": "Webhook not found"}
    assert rig.call("RemoveWebhook", webhookId=webhook_id) == {"ok": True, "data": {"removed": True}}


async def test_a_room_s_reply_waits_for_no_commit(ids, autojump_clock):
    rig, hooks = Rig(), Hooks(ids)
    rig.broker.rooms.update(hooks.webhooks.handlers)
    rig.broker.waits_for_commit = True

    assert rig.call("ListWebhooks")["ok"]
