"""Crons over HTTP: the same maps, statuses, and who may use them."""

import msgspec
import pytest
import trio

from bunqueue_trio.model.commands import Cron
from bunqueue_trio.model.health import HealthReport
from bunqueue_trio.web.crons import DEFINITION, CronRoutes
from bunqueue_trio.web.probes import create_app
from tests.server.fakes import Rig

CRON = {"name": "h", "queue": "hq", "data": {"big": 2**40}, "schedule": "0 0 1 1 *"}


class Source:
    is_ready = True

    def health(self) -> HealthReport:
        return HealthReport(uptime=1, version="1")


def client_of(rig: Rig, *tokens):
    return create_app(Source(), [CronRoutes(rig.broker, tokens)]).test_client()


async def test_a_cron_is_made_shown_and_removed(rig: Rig, autojump_clock):
    client = client_of(rig)

    made = await client.post("/crons", json=CRON)
    shown = await client.get("/crons/h")
    listed = await client.get("/crons")
    removed = await client.delete("/crons/h")

    next_run = (await made.get_json())["cron"]["nextRun"]
    assert type(next_run) is int
    assert (await made.get_json()) == {
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
    assert (await shown.get_json())["cron"]["executions"] == 0
    assert (await listed.get_json())["crons"] == [(await shown.get_json())["cron"]]
    assert (removed.status_code, await removed.get_json()) == (200, {"ok": True})
    for gone in (await client.get("/crons/h"), await client.delete("/crons/h")):
        assert (gone.status_code, await gone.get_json()) == (404, {"ok": False, "error": "Cron job not found"})


async def test_data_reach_the_job(rig: Rig, autojump_clock):
    await client_of(rig).post("/crons", json={**CRON, "immediately": True})
    await trio.sleep(0.1)

    [job] = rig.call("GetJobs", queue="hq")["jobs"]
    assert job["data"] == {"big": float(2**40)}


@pytest.mark.parametrize("name", ["a b", "a%2Fb", "%C3%BC", "a/b"])
async def test_names_are_decoded(rig: Rig, autojump_clock, name):
    from urllib.parse import unquote

    client = client_of(rig)
    await client.post("/crons", json={**CRON, "name": unquote(name)})

    assert (await (await client.get(f"/crons/{name}")).get_json())["cron"]["name"] == unquote(name)


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
    reply = await client_of(rig).post("/crons", data=body)

    assert reply.status_code == 400
    assert (await reply.get_json())["error"].startswith(text)
    assert rig.call("CronList")["crons"] == []


async def test_a_body_that_is_too_long_is_refused(rig: Rig, autojump_clock):
    reply = await client_of(rig).post("/crons", json={**CRON, "data": "x" * 70_000})

    assert reply.status_code == 413


async def test_two_changes_at_once_come_one_after_the_other(rig: Rig, autojump_clock):
    client = client_of(rig)
    async with trio.open_nursery() as nursery:
        for every in (1_000, 2_000, 3_000):
            nursery.start_soon(lambda every=every: client.post("/crons", json={**CRON, "repeatEvery": every}))

    assert rig.call("CronGet", name="h")["cron"]["executions"] == 0


@pytest.mark.parametrize(("method", "path"), [("GET", "/crons"), ("POST", "/crons"), ("DELETE", "/crons/h")])
async def test_with_tokens_one_must_be_presented(rig: Rig, autojump_clock, method, path):
    client = client_of(rig, "tok")

    refused = await client.open(path, method=method, json=CRON)
    taken = await client.open(path, method=method, json=CRON, headers={"Authorization": "Bearer tok"})

    assert (refused.status_code, await refused.get_json()) == (401, {"ok": False, "error": "Unauthorized"})
    assert taken.status_code != 401


def test_every_field_of_the_command_may_be_sent():
    wire_names = {field.encode_name for field in msgspec.structs.fields(Cron)}

    assert set(DEFINITION) == wire_names - {"reqId"}
