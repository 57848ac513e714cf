"""Crons over HTTP: the same maps, statuses, and who may use them."""

import msgspec
import pytest
import trio

from bunqueue_trio.config import Config
from bunqueue_trio.model.commands import Cron
from bunqueue_trio.web.gate import ADMITTED_BODY_BYTES
from bunqueue_trio.web.routes import ROUTES
from tests.server.fakes import Rig
from tests.server.http import Http

CRON = {"name": "h", "queue": "hq", "data": {"big": 2**40}, "schedule": "0 0 1 1 *"}


def client_of(rig: Rig, *tokens):
    return Http(rig, Config(auth_tokens=tokens))


async def test_a_cron_is_made_shown_and_removed(rig: Rig, autojump_clock):
    client = client_of(rig)

    made = await client.reply("POST", "/crons", json=CRON)
    shown = await client.reply("GET", "/crons/h")
    listed = await client.reply("GET", "/crons")
    removed = await client.reply("DELETE", "/crons/h")

    next_run = made["cron"]["nextRun"]
    assert type(next_run) is int
    assert made == {
        "ok": True,
        "cron": {
            "name": "h",
            "queue": "hq",
            "schedule": "0 0 1 1 *",
            "repeatEvery": None,
            "nextRun": next_run,
            "timezone": None,
            "priority": 0,
        },
    }
    assert shown["cron"]["executions"] == 0
    assert listed["crons"] == [shown["cron"]]
    assert removed == {"ok": True}
    for method in ("GET", "DELETE"):
        assert await client.ask(method, "/crons/h") == (404, {"ok": False, "error": "Cron job not found"})


async def test_data_reach_the_job(rig: Rig, autojump_clock):
    await client_of(rig).reply("POST", "/crons", json={**CRON, "immediately": True})
    await trio.sleep(0.1)

    [job] = rig.call("GetJobs", queue="hq")["jobs"]
    assert job["data"] == {"big": float(2**40)}


@pytest.mark.parametrize("name", ["a%20b", "a%2Fb", "%C3%BC"])
async def test_names_are_decoded(rig: Rig, autojump_clock, name):
    from urllib.parse import unquote

    client = client_of(rig)
    await client.reply("POST", "/crons", json={**CRON, "name": unquote(name)})

    assert (await client.reply("GET", f"/crons/{name}"))["cron"]["name"] == unquote(name)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"{", "Invalid JSON body"),
        (b"", "Invalid JSON body"),
        (b"null", "Invalid JSON body"),
        (b"[]", "Invalid JSON body"),
        (b'"x"', "Invalid JSON body"),
        (b"[" * 2_000, "Invalid JSON body"),
        (b"{}", "Cron job must have either schedule or repeatEvery"),
        (b'{"name": "x", "repeatEvery": 0}', "Cron job must have either schedule or repeatEvery"),
        (b'{"name": "x", "queue": "q", "repeatEvery": -5}', "Cron repeatEvery must be a positive safe integer number"),
        (b'{"queue": "q", "repeatEvery": 5}', "Cron name is required"),
        (b'{"name": "x", "queue": "q", "schedule": "bad", "cmd": "Obliterate"}', "Invalid cron expression: "),
    ],
)
async def test_what_is_refused(rig: Rig, autojump_clock, body, text):
    status, answer = await client_of(rig).ask("POST", "/crons", data=body)

    assert status == 400
    assert answer["error"].startswith(text)
    assert rig.call("CronList")["crons"] == []


async def test_a_body_that_is_too_long_is_refused(rig: Rig, autojump_clock):
    status, _ = await client_of(rig).ask("POST", "/crons", headers={"Content-Length": str(ADMITTED_BODY_BYTES + 1)})

    assert status == 413


async def test_two_changes_at_once_come_one_after_the_other(rig: Rig, autojump_clock):
    client = client_of(rig)
    async with trio.open_nursery() as nursery:
        for every in (1_000, 2_000, 3_000):
            nursery.start_soon(lambda every=every: client.reply("POST", "/crons", json={**CRON, "repeatEvery": every}))

    assert rig.call("CronGet", name="h")["cron"]["executions"] == 0


@pytest.mark.parametrize(("method", "path"), [("GET", "/crons"), ("POST", "/crons"), ("DELETE", "/crons/h")])
async def test_with_tokens_one_must_be_presented(rig: Rig, autojump_clock, method, path):
    client = client_of(rig, "tok")

    refused = await client.ask(method, path, json=CRON)
    status, _ = await client.ask(method, path, json=CRON, headers={"Authorization": "Bearer tok"})

    assert refused == (401, {"ok": False, "error": "Unauthorized"})
    assert status != 401


def test_every_field_of_the_command_may_be_sent():
    wire_names = {field.encode_name for field in msgspec.structs.fields(Cron)}

    [route] = [route for route in ROUTES if route.kind is Cron]
    assert set(route.fields) == wire_names - {"reqId"}


# the overview with runs to come


async def test_the_overview_has_the_next_runs(rig: Rig, autojump_clock):
    client = client_of(rig)
    await client.reply("POST", "/crons", json=CRON)
    await client.reply("POST", "/crons", json={"name": "i", "queue": "q", "repeatEvery": 60_000, "maxLimit": 2})

    shown = await client.reply("GET", "/dashboard/crons?runs=3")

    listed = (await client.reply("GET", "/crons"))["crons"]
    yearly, minutely = (cron.pop("nextRuns") for cron in shown["crons"])
    assert shown["crons"] == listed
    assert yearly[0] == listed[0]["nextRun"]
    assert len(yearly) == 3
    assert minutely == [listed[1]["nextRun"], listed[1]["nextRun"] + 60_000]
    assert (shown["total"], shown["limit"], shown["offset"]) == (2, 100, 0)


@pytest.mark.parametrize(
    ("query", "names", "runs"),
    [
        ("", "abc", 0),
        ("?limit=2&runs=1", "ab", 1),
        ("?offset=1&limit=1&runs=5", "b", 5),
        ("?runs=999", "abc", 10),
        ("?runs=-1", "abc", 0),
        ("?runs=x&limit=999", "abc", 0),
    ],
)
async def test_pages_of_the_overview_are_bounded(rig: Rig, autojump_clock, query, names, runs):
    client = client_of(rig)
    for name in "abc":
        await client.reply("POST", "/crons", json={"name": name, "queue": "q", "repeatEvery": 3_600_000})

    shown = await client.reply("GET", f"/dashboard/crons{query}")

    assert "".join(cron["name"] for cron in shown["crons"]) == names
    assert {len(cron["nextRuns"]) for cron in shown["crons"]} == {runs}
    assert (shown["total"], shown["limit"] <= 100) == (3, True)
