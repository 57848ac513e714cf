"""Webhooks over HTTP: the same maps, statuses, and who may use them."""

import pytest

from bunqueue_trio.config import Config
from bunqueue_trio.web.gate import ADMITTED_BODY_BYTES
from tests.server.fakes import Rig, settle_down
from tests.server.http import Http
from tests.server.webhook_fakes import Hooks

HOOK = {"url": "https://example.com/h", "events": ["job.completed", "job.failed"], "queue": "q1", "secret": "s3"}


@pytest.fixture
async def hooks(rig: Rig, ids, nursery) -> Hooks:
    hooks = Hooks(ids, events=rig.broker.events)
    rig.broker.rooms.update(hooks.webhooks.handlers)
    await nursery.start(hooks.deliveries.run)
    return hooks


def client_of(rig: Rig, *tokens):
    return Http(rig, Config(auth_tokens=tokens))


async def test_a_webhook_is_added_shown_switched_and_removed(rig: Rig, hooks: Hooks, autojump_clock):
    client = client_of(rig)

    added = await client.ask("POST", "/webhooks", json=HOOK)
    webhook_id, created_at = added[1]["data"]["webhookId"], added[1]["data"]["createdAt"]
    switched = await client.ask("PUT", f"/webhooks/{webhook_id}/enabled", json={"enabled": False})
    listed = await client.ask("GET", "/webhooks")
    removed = await client.ask("DELETE", f"/webhooks/{webhook_id}")

    shown = {"url": HOOK["url"], "events": HOOK["events"], "queue": "q1", "createdAt": created_at}
    counts = {"lastTriggered": None, "successCount": 0, "failureCount": 0, "enabled": False}
    assert type(created_at) is int
    assert added == (200, {"ok": True, "data": {"webhookId": webhook_id, **shown}})
    assert switched == (200, {"ok": True})
    stats = {"total": 1, "enabled": 0}
    assert listed == (
        200,
        {"ok": True, "data": {"webhooks": [{"id": webhook_id, **shown, **counts}], "stats": stats}},
    )
    assert removed == (200, {"ok": True, "data": {"removed": True}})
    assert (await client.ask("GET", "/webhooks"))[1]["data"]["webhooks"] == []
    gone = {"ok": False, "error": "Webhook not found"}
    assert await client.ask("DELETE", f"/webhooks/{webhook_id}") == (404, gone)
    assert await client.ask("PUT", f"/webhooks/{webhook_id}/enabled", json={"enabled": True}) == (400, gone)


async def test_a_webhook_that_came_this_way_is_called_and_signed(rig: Rig, hooks: Hooks, autojump_clock):
    await client_of(rig).reply("POST", "/webhooks", json={**HOOK, "events": ["job.pushed"]})

    rig.push("elsewhere", queue="q2")
    rig.push("here", queue="q1")
    await settle_down()

    [(_, url, headers, body)] = hooks.poster.posts
    assert url.host == "example.com"
    assert b'"jobId":"here"' in body
    assert "X-Webhook-Signature" in dict(headers)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", "Invalid JSON body"),
        (b"  \n", "Invalid JSON body"),
        (b"{", "Invalid JSON body"),
        (b"{'url': 1}", "Invalid JSON body"),
        (b'{"url": NaN}', "Invalid JSON body"),
        (b"null", "Invalid JSON body"),
        (b"[]", "Invalid JSON body"),
        (b"3", "Invalid JSON body"),
        (b"[" * 3_000, "Invalid JSON body"),
        (b'\xff{"url": 1}', "Invalid JSON body"),
        (b"{}", "Webhook URL is required"),
        (b'{"url": "zzz"}', "Invalid URL format"),
        (b'{"url": "http://10.0.0.1/h"}', "Webhook URL cannot point to private IP"),
        (b'{"url": "http://a.com/"}', "events must be an array"),
        (b'{"url": "http://a.com/", "events": ["job.nope"]}', "Invalid webhook event(s): job.nope. Valid: job.pushed"),
        (b'{"url": "http://a.com/", "events": [], "queue": 5}', "queue must be a string"),
        (b'{"url": "http://a.com/", "events": [], "secret": {"a": [99999999999999999999999]}}', "secret must be a st"),
    ],
)
async def test_what_is_refused(rig: Rig, hooks: Hooks, autojump_clock, body, text):
    status, answer = await client_of(rig).ask("POST", "/webhooks", data=body)

    assert status == 400
    assert answer["error"].startswith(text)
    assert hooks.shown() == []


async def test_half_a_character_is_read_as_the_mark_of_a_missing_one(rig: Rig, hooks: Hooks, autojump_clock):
    await client_of(rig).reply("POST", "/webhooks", data=b'{"url": "http://a.com/\\ud800", "events": ["job.failed"]}')

    assert hooks.shown()[0]["url"] == "http://a.com/\ufffd"


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", "enabled must be a boolean"),
        (b" ", "enabled must be a boolean"),
        (b"{}", "enabled must be a boolean"),
        (b'{"enabled": "no"}', "enabled must be a boolean"),
        (b'{"enabled": null}', "enabled must be a boolean"),
        (b"{", "Invalid JSON body"),
        (b"null", "Invalid JSON body"),
    ],
)
async def test_a_switch_without_a_position_is_refused_and_spoils_nothing(rig, hooks, autojump_clock, body, text):
    webhook_id = hooks.add()

    answer = await client_of(rig).ask("PUT", f"/webhooks/{webhook_id}/enabled", data=body)

    assert answer == (400, {"ok": False, "error": text})
    assert hooks.shown()[0]["enabled"] is True
    assert hooks.webhooks.enabled_count == 1


async def test_the_body_names_neither_the_command_nor_the_webhook(rig: Rig, hooks: Hooks, autojump_clock):
    mine, other = hooks.add(), hooks.add()

    body = {"enabled": False, "id": other, "cmd": "RemoveWebhook", "webhookId": other, "reqId": "x"}
    answer = await client_of(rig).ask("PUT", f"/webhooks/{mine}/enabled", json=body)

    assert answer == (200, {"ok": True})
    assert [(shown["id"], shown["enabled"]) for shown in hooks.shown()] == [(mine, False), (other, True)]


@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", "/webhooks/x"), ("GET", "/webhooks/x"), ("POST", "/webhooks/x/enabled"), ("DELETE", "/webhooks")],
)
async def test_other_methods_and_paths_are_not_found(rig: Rig, hooks: Hooks, autojump_clock, method, path):
    answer = await client_of(rig).ask(method, path)

    assert answer == (404, {"ok": False, "error": "Not found"})


async def test_a_body_that_is_too_long_is_refused(rig: Rig, hooks: Hooks, autojump_clock):
    status, _ = await client_of(rig).ask("POST", "/webhooks", headers={"Content-Length": str(ADMITTED_BODY_BYTES + 1)})

    assert status == 413


ROUTES = [("GET", "/webhooks"), ("POST", "/webhooks"), ("DELETE", "/webhooks/x"), ("PUT", "/webhooks/x/enabled")]


@pytest.mark.parametrize(("method", "path"), ROUTES)
async def test_with_tokens_one_must_be_presented(rig: Rig, hooks: Hooks, autojump_clock, method, path):
    client = client_of(rig, "tok")

    refused = await client.ask(method, path, json=HOOK)
    badly = await client.ask(method, path, data=b"{", headers={"Authorization": "Bearer to"})
    status, _ = await client.ask(method, path, json=HOOK, headers={"Authorization": "Bearer tok"})

    assert refused == badly == (401, {"ok": False, "error": "Unauthorized"})
    assert status != 401
    assert len(hooks.shown()) == (method == "POST")


async def test_no_answer_shows_the_secret(rig: Rig, hooks: Hooks, autojump_clock):
    client = client_of(rig)

    answers = [await client.reply("POST", "/webhooks", json=HOOK), await client.reply("GET", "/webhooks")]

    assert not any("s3" in str(answer) or "secret" in str(answer) for answer in answers)
